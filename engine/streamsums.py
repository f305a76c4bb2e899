"""Stream sums: how many stream bytes each block of messages of a queue has (docs/format.md, 13).

    STORE/fsstore/sums/<topic>/<queue id>: derived, checked before use, deletable at any time
"""

from __future__ import annotations

from pathlib import Path

from engine.consumequeue import ConsumeQueue
from engine.filequeue import FileQueue

BLOCK_MESSAGES = 1024


class QueueSums:
    """Prefix sums of one queue. Thread safety: any thread; extending takes an own lock."""


class StreamSums:
    """The sums of all queues of a store."""

    def __init__(self, directory: Path | None, log: FileQueue, trusted_start: int, trusted_end: int) -> None:
        """`directory` None keeps them in memory. Sums on disk count for records before `trusted_end`; records from
        `trusted_start` on were written by this process, and their bodies need no CRC check."""
        raise NotImplementedError

    def of(self, topic: str, queue_id: int, queue: ConsumeQueue) -> QueueSums:
        """Sums of a queue, loaded or begun."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what grew to disk (no fsync: derived). OSError is swallowed: sums are only a saving."""
        raise NotImplementedError

    def remove_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        raise NotImplementedError

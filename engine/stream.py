"""QueueStream: a queue as one growing text, body, newline, body, newline (docs/format.md, 13)."""

from __future__ import annotations

from engine.consumequeue import ConsumeQueue
from engine.filequeue import FileQueue
from engine.streamsums import QueueSums


class QueueStream:
    """The text of the messages from `first_offset` on; positions count bytes of that text.

    Thread safety: reads from any thread.
    """

    def __init__(self, topic: str, queue_id: int, queue: ConsumeQueue, log: FileQueue, sums: QueueSums) -> None:
        """Bind to the queue's first message now."""
        raise NotImplementedError

    @property
    def first_offset(self) -> int:
        """Queue offset of the message at position 0."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Bytes in the stream now. Sums whatever was appended since the last call."""
        raise NotImplementedError

    def read(self, position: int, length: int) -> bytes | memoryview:
        """Bytes [position, position + length), fewer at the end. ExpiredMessageError, DamagedRecordError."""
        raise NotImplementedError

"""All consume queues of a store, by topic and queue id: directory discovery, creation, recovery, flush.

    consumequeue/<topic>/<queue id>/<20 digits>

Non-numeric directories below a topic are not queues (docs/format.md, 6).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine.consumequeue import ConsumeQueue
from engine.mappedfile import Access


class ConsumeQueues:
    """Thread safety: one writer (create, recover, truncate, expire, refresh, remove); look-ups from any thread."""

    generation: int
    """Changes whenever a topic or queue comes or goes."""

    def __init__(self, directory: Path, file_bytes: int, access: Access) -> None:
        raise NotImplementedError

    def load(self) -> None:
        """Discover the queues in the directory; opens no file."""
        raise NotImplementedError

    def topics(self) -> list[str]:
        """Topics with at least one queue, sorted."""
        raise NotImplementedError

    def queue_ids(self, topic: str) -> list[int]:
        """Queue ids of a topic, ascending; empty for an unknown one."""
        raise NotImplementedError

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, opened (last file mapped) and recovered at first use; None when there is none."""
        raise NotImplementedError

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new one is in memory until its first entry makes its directory."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[tuple[str, int, ConsumeQueue]]:
        """Every queue (opens all)."""
        raise NotImplementedError

    def recover(self, scan: bool) -> int:
        """Recover all; return the highest physical_end (-1 when all are empty). Without `scan`, queues are recovered at first use and -1 is returned."""
        raise NotImplementedError

    def truncate(self, physical_end: int) -> int:
        """Drop entries of records that end after `physical_end` from all queues; return how many."""
        raise NotImplementedError

    def expire(self, min_physical_offset: int) -> list[tuple[str, int, int, int]]:
        """The log now begins there: move minimum offsets of opened queues; return (topic, queue, old_min, new_min) of those that moved."""
        raise NotImplementedError

    def delete_expired(self) -> int:
        """Delete expired files of all queues; return how many files went."""
        raise NotImplementedError

    def refresh(self, physical_end: int) -> list[tuple[str, int]]:
        """FOLLOW: find new topics, queues and entries; return the queues that changed."""
        raise NotImplementedError

    def flush(self, least_pages: int = 0) -> None:
        """Flush every queue that was appended to since its last flush. OSError."""
        raise NotImplementedError

    def remove_topic(self, topic: str) -> None:
        """Delete the topic's queues, files and directories."""
        raise NotImplementedError

    def close(self) -> None:
        """Unmap everything."""
        raise NotImplementedError

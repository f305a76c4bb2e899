"""Consume queue: where the messages of one topic queue lie in the commit log (docs/format.md, 6).

    physical_offset i64 | size i32 | tags_code i64    big-endian, 20 bytes; entry i is at byte 20*i

Rebuildable from the commit log, so it carries no checksum. One writer (dispatch), any readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from engine.filequeue import FileQueue

ENTRY = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert ENTRY.itemsize == 20

Entries = np.ndarray[Any, Any]
"""dtype ENTRY, shape (n,)."""

PRE_BLANK_SIZE = 0x7FFFFFFF


class ConsumeQueue:
    """Entries addressed by queue offset: a count of messages, never of bytes.

    Thread safety: one writer at a time (append, recover, truncate, expire, refresh); reads from any thread.
    """

    def __init__(self, files: FileQueue) -> None:
        raise NotImplementedError

    @property
    def max_offset(self) -> int:
        """The queue offset that the next entry gets."""
        raise NotImplementedError

    @property
    def min_offset(self) -> int:
        """Queue offset of the first real entry at or after the log's start; max_offset when there is none."""
        raise NotImplementedError

    @property
    def physical_end(self) -> int:
        """Physical offset just past the newest entry's record; -1 when the queue holds none."""
        raise NotImplementedError

    def recover(self, scan: bool = True) -> None:
        """Find where the valid entries end. `scan` reads the newest files whole; without it (after a clean close) a
        binary search finds the end."""
        raise NotImplementedError

    def append(self, queue_offset: int, entries: Entries) -> int:
        """Store those of `entries` (queue offsets `queue_offset` on) that are not there yet; return how many. QueueGapError."""
        raise NotImplementedError

    def append_one(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> int:
        """`append` of one entry, without an array."""
        raise NotImplementedError

    def read(self, queue_offset: int, count: int) -> Entries:
        """View of up to `count` entries of one file, from `queue_offset` on; empty at or past max_offset.

        The view keeps its file mapped. Offsets below min_offset: ExpiredMessageError is the caller's to raise.
        """
        raise NotImplementedError

    def entries(self, queue_offset: int, count: int) -> Entries:
        """Up to `count` entries from `queue_offset` on, across files: a view when they are in one file, else a copy."""
        raise NotImplementedError

    def entry(self, queue_offset: int) -> tuple[int, int, int] | None:
        """(physical_offset, size, tags_code), or None outside [min_offset, max_offset)."""
        raise NotImplementedError

    def offset_at(self, timestamp_ms: int, stored_ms: Callable[[int], int]) -> int:
        """Queue offset of the first message stored at or after `timestamp_ms`; max_offset when there is none.

        `stored_ms` gives the store time of the record at a physical offset, -1 when it can't be read.
        """
        raise NotImplementedError

    def offset_of_physical(self, physical_offset: int) -> int:
        """Queue offset of the first entry whose record starts at or after `physical_offset`; max_offset when none."""
        raise NotImplementedError

    def expire(self, min_physical_offset: int) -> int:
        """The log now begins at `min_physical_offset`: move min_offset; return it. Cheap; files stay."""
        raise NotImplementedError

    def delete_expired(self) -> int:
        """Delete the files whose every entry is before min_offset, never the last one; return how many."""
        raise NotImplementedError

    def truncate(self, physical_end: int) -> int:
        """Drop entries whose record ends after `physical_end`; return how many. The rest of the file is zeroed and synced, later files go."""
        raise NotImplementedError

    def refresh(self, physical_end: int) -> bool:
        """FOLLOW: take in what another process appended (entries whose records end by `physical_end`); True when anything changed."""
        raise NotImplementedError

    def flush(self, least_pages: int = 0) -> bool:
        """Bring entries to disk; True when everything is there. OSError."""
        raise NotImplementedError

    def check(self) -> Iterator[tuple[int, str]]:
        """Yield broken invariants as (queue offset, text): physical offsets rise, sizes are positive."""
        raise NotImplementedError

    def close(self) -> None:
        """Unmap everything."""
        raise NotImplementedError

    def destroy(self) -> None:
        """Delete the queue's files and directory."""
        raise NotImplementedError


def valid_prefix(entries: Entries) -> int:
    """Count of leading entries to trust: size > 0 and records that do not overlap. Pure, no I/O."""
    raise NotImplementedError

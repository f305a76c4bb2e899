"""The commit log: every record of the store, one after another (docs/format.md, 2 and 3).

A record (or a batch, whole) goes into the current file when 8 bytes are left behind it; else a BLANK record fills the file
and the next one takes it:

    ... record | record | BLANK: remaining i32, magic i32, anything ...

The first 8 bytes of a record or batch, its size and magic, are written last: a process that dies before leaves nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from engine.config import Clock
from engine.filequeue import FileQueue
from engine.mappedfile import MappedFile


class Encoded(Protocol):
    """One encoded record or batch, complete but for what is known only under the append lock."""

    @property
    def data(self) -> bytearray | memoryview:
        """The bytes to store; read after `patch`."""

    def patch(self, physical_offset: int, store_time_ms: int) -> None:
        """Fill in where and when the first byte is stored."""


class FileHold:
    """Keeps one commit log file readable until released. A context manager."""

    file: MappedFile

    def view(self, physical_offset: int, length: int) -> memoryview:
        """As `CommitLog.view`, also after the file was retired; RetiredFileError once it was forced away."""
        raise NotImplementedError

    def release(self) -> None:
        """Let the file go; calling it twice is harmless."""
        raise NotImplementedError


class CommitLog:
    """The log: appends under one lock, reads without.

    Thread safety: any thread. `lock` is re-entrant: hold it around `append` to assign queue offsets and dispatch in order.
    """

    lock: threading.RLock  # type: ignore[valid-type]
    files: FileQueue
    last_store_time_ms: int

    def __init__(self, files: FileQueue, clock: Clock) -> None:
        raise NotImplementedError

    @property
    def min_offset(self) -> int:
        """Physical offset of the oldest file's first byte."""
        raise NotImplementedError

    @property
    def readable_end(self) -> int:
        """Physical offset just past what readers may see."""
        raise NotImplementedError

    @property
    def wrote_end(self) -> int:
        """Physical offset just past what was appended."""
        raise NotImplementedError

    def append(self, record: Encoded) -> tuple[int, int]:
        """Store one record or batch whole; (physical offset, store time in ms). StoreFullError, MessageTooLargeError: nothing stored."""
        raise NotImplementedError

    def append_all(self, parts: Sequence[Encoded]) -> list[tuple[int, int]]:
        """Store several batches, all or none, however many files they take; as `append` for each."""
        raise NotImplementedError

    def view(self, physical_offset: int, length: int) -> memoryview:
        """Read-only view of [physical_offset, + length). MessageNotFoundError, ExpiredMessageError, TruncatedFileError."""
        raise NotImplementedError

    def rest(self, physical_offset: int) -> memoryview:
        """Read-only view from there to the end of what is readable in that file. Errors as `view`."""
        raise NotImplementedError

    def next_file_start(self, physical_offset: int) -> int:
        """Where the next file begins."""
        raise NotImplementedError

    def hold(self, physical_offset: int) -> FileHold:
        """Keep the file under `physical_offset` readable. ExpiredMessageError, MessageNotFoundError."""
        raise NotImplementedError

    def resume(self, end: int, last_store_time_ms: int) -> None:
        """Recovery's result: the log ends at `end`, its newest record was stored at that time."""
        raise NotImplementedError

    def commit(self, least_pages: int = 0) -> int:
        """Copy write buffers to the file and publish; the new `readable_end`. Without a pool there is nothing to do."""
        raise NotImplementedError

"""FileQueue: files of one size that together hold one growing range of bytes (docs/format.md, 3).

    00000000000000000000  00000000000016777216  00000000000033554432      named by the offset of byte 0, 20 digits

Files before the last are full. Older files may be gone (retention), and a damaged store may miss one in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.durable import Disk
from engine.mappedfile import Access, MappedFile


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A directory member that is not as it should be: `kind` is "foreign", "short", "long" or "empty"."""

    path: Path
    kind: str
    expected_bytes: int
    found_bytes: int


class FileQueue:
    """The files of one directory, addressed by offset.

    Thread safety: one writer at a time (append, roll, truncate, commit); any readers; flush, retire, refresh from any thread.
    """

    directory: Path
    file_bytes: int
    access: Access

    @classmethod
    def open(
        cls,
        directory: Path,
        file_bytes: int,
        access: Access,
        *,
        disk: Disk | None = None,
        create: Callable[[int], MappedFile] | None = None,
    ) -> FileQueue:
        """Load the directory (missing: no files yet). All bytes count as written until `set_end` or `truncate`.

        `create(start)` makes the file that begins at `start`; by default it is allocated here and now. Nothing is
        changed on disk; what is odd there is in `problems`. Files are mapped when first looked at.
        """
        raise NotImplementedError

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The files, oldest first: a snapshot."""
        raise NotImplementedError

    @property
    def problems(self) -> tuple[FileProblem, ...]:
        """What loading found odd. A short file is loaded and readable as far as it goes."""
        raise NotImplementedError

    @property
    def first(self) -> MappedFile | None:
        raise NotImplementedError

    @property
    def last(self) -> MappedFile | None:
        raise NotImplementedError

    @property
    def min_offset(self) -> int:
        """Offset of the oldest byte; 0 when there are no files."""
        raise NotImplementedError

    @property
    def max_offset(self) -> int:
        """Offset just past the newest readable byte; 0 when there are no files."""
        raise NotImplementedError

    @property
    def wrote_offset(self) -> int:
        """Offset just past the newest written byte (ahead of `max_offset` only while a write buffer is used)."""
        raise NotImplementedError

    @property
    def flushed_offset(self) -> int:
        """Everything before this offset is on disk."""
        raise NotImplementedError

    def find(self, offset: int) -> MappedFile | None:
        """The file that `offset` lies in, or None (expired, missing, not yet there)."""
        raise NotImplementedError

    def view(self, offset: int, length: int) -> memoryview:
        """Read-only view of readable bytes of one file. UnreadableRangeError, TruncatedFileError, RetiredFileError."""
        raise NotImplementedError

    def missing_ranges(self) -> list[tuple[int, int]]:
        """Offset ranges [from, to) between the first and the last file that no file holds."""
        raise NotImplementedError

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Write behind the newest byte, in a new file when the last is full; the offset written at.

        `data` never straddles files: the caller's unit divides the file size, or it rolls before. StoreFullError.
        """
        raise NotImplementedError

    def roll(self, start: int | None = None) -> MappedFile:
        """Add the next file and return it; `start` (a multiple of the file size) for an empty queue. StoreFullError."""
        raise NotImplementedError

    def set_end(self, offset: int) -> None:
        """Recovery's result, in memory only: bytes before `offset` are written and on disk; later files are dropped from the list."""
        raise NotImplementedError

    def truncate(self, offset: int) -> None:
        """As `set_end`, and for good: later files are deleted, the rest of the file at `offset` is zeroed and synced."""
        raise NotImplementedError

    def flush(self, least_pages: int = 0) -> int:
        """Sync files with at least `least_pages` unflushed pages (0: any byte), new names too; the new `flushed_offset`. OSError."""
        raise NotImplementedError

    def retire_first(self, now_ms: int) -> MappedFile | None:
        """Delete the oldest file, never the last one; readers that hold it keep it for a while. None when only one is left."""
        raise NotImplementedError

    def sweep(self, now_ms: int, forced_interval_ms: int) -> int:
        """Let retired files go whose readers are done, or that were kept for `forced_interval_ms`; how many are still kept."""
        raise NotImplementedError

    def delete_all(self) -> None:
        """Delete every file and the directory, durably."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """READ: look for files that came or went; True when any did. Positions are the caller's to set."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of all files."""
        raise NotImplementedError

"""One file of fixed size, mapped (docs/format.md, 3). Nothing about its state is stored in the file.

    0 ..... flushed ..... readable ..... wrote ..... size
      on disk      visible       buffered     free

Writers put bytes first and move the position that publishes them last: that is the whole reader protocol.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from engine.durable import Disk


class Access(Enum):
    """READ: another process may write the file. WRITE: ours. PRIVATE: writes stay in this process's memory."""

    READ = "read"
    WRITE = "write"
    PRIVATE = "private"


class MappedFile:
    """A mapped file; mapped when first looked at. Right after construction all of it counts as written.

    Thread safety: one writer; any readers; `hold`, `release`, `retire` from any thread. Views stay valid for as long as
    they are referenced, whatever happens to this object.
    """

    path: Path
    start: int
    size: int
    access: Access
    wrote: int
    readable: int
    flushed: int

    def __init__(self, path: Path, size: int, access: Access, *, start: int = 0, disk: Disk | None = None) -> None:
        """`start` is the offset of byte 0 within a file queue."""
        raise NotImplementedError

    @classmethod
    def create(cls, path: Path, size: int, access: Access, *, start: int = 0, disk: Disk | None = None) -> MappedFile:
        """Make the file, really allocated, all zeros, nothing written (its directory is not synced). StoreFullError, OSError."""
        raise NotImplementedError

    @property
    def end(self) -> int:
        """Offset just past the readable bytes: start + readable."""
        raise NotImplementedError

    @property
    def full(self) -> bool:
        """Whether nothing more can be written."""
        raise NotImplementedError

    @property
    def remaining(self) -> int:
        """Bytes that can still be written."""
        raise NotImplementedError

    def view(self, position: int, length: int) -> memoryview:
        """Read-only view of readable bytes. UnreadableRangeError, TruncatedFileError, RetiredFileError."""
        raise NotImplementedError

    def pages(self) -> memoryview:
        """Read-only view of all readable bytes, [0, readable)."""
        raise NotImplementedError

    def array(self, dtype: DTypeLike, position: int = 0, count: int = -1) -> np.ndarray[Any, Any]:
        """Readable bytes from `position` on as a read-only array of shape (count,); -1: as many as there are."""
        raise NotImplementedError

    def writable(self) -> memoryview:
        """The whole file for writing in place (WRITE, PRIVATE): moves no position. StoreFullError."""
        raise NotImplementedError

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Write at `wrote`, then publish; the position written at. The caller made sure that it fits."""
        raise NotImplementedError

    def ensure_whole(self) -> None:
        """TruncatedFileError when the file is shorter now than its map (one fstat): touching the page would kill us."""
        raise NotImplementedError

    def set_end(self, position: int) -> None:
        """All positions to `position`: what recovery found. The bytes stay."""
        raise NotImplementedError

    def truncate(self, position: int) -> None:
        """All positions to `position`, the bytes behind zeroed and synced, so that they never come back. READ: positions only."""
        raise NotImplementedError

    def sync(self) -> None:
        """Bring what is readable now to disk, then move `flushed`. OSError leaves `flushed` alone."""
        raise NotImplementedError

    def hold(self) -> bool:
        """Keep the file readable until `release`, even when retired meanwhile; False when it is retired already."""
        raise NotImplementedError

    def release(self) -> None:
        """End one `hold`."""
        raise NotImplementedError

    def retire(self, now_ms: int) -> None:
        """Remove the file's name; its bytes stay readable for those who hold it."""
        raise NotImplementedError

    def force(self) -> None:
        """Refuse new views even to those who hold it."""
        raise NotImplementedError

    def unmap(self) -> None:
        """Give the map back (once the last view is gone); the next look maps again. Not for PRIVATE."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of map and descriptor; later views raise RetiredFileError."""
        raise NotImplementedError

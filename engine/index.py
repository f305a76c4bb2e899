"""Index: the index files of a store, in the order of their names: which records may carry a key (docs/format.md, 7).

One writer (dispatch), any readers. An answer is a candidate: the index holds hashes, so the caller reads the record and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.indexfile import IndexFile
from engine.mappedfile import Access

Int64s = np.ndarray[Any, Any]


class Index:
    """The index of a store. Thread safety: one writer at a time; queries from any thread."""

    def __init__(self, directory: Path, slots: int, entries: int, access: Access, now_ms: Callable[[], int]) -> None:
        """`entries` is the entry area's capacity N; N - 1 of them are usable. `now_ms` names new files (local time)."""
        raise NotImplementedError

    def load(self) -> None:
        """Map the files there are; a file of another size is left out and listed in `foreign`."""
        raise NotImplementedError

    foreign: tuple[Path, ...]

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """Oldest first."""
        raise NotImplementedError

    @property
    def last_physical_offset(self) -> int:
        """Physical offset of the newest record with a key in the index; -1 when there is none."""
        raise NotImplementedError

    def touch(self) -> None:
        """Make sure that there is a file with room, as every dispatched message does, keys or not. StoreFullError."""
        raise NotImplementedError

    def put(self, key_hash: int, physical_offset: int, store_time_ms: int) -> None:
        """Add one key (its index hash), rolling to a new file when the last is full. StoreFullError."""
        raise NotImplementedError

    def put_many(self, key_hashes: Int64s, physical_offsets: Int64s, store_times_ms: Int64s) -> None:
        """Add keys in order (arrays of shape (n,)): exactly the bytes that `put` one by one writes. StoreFullError."""
        raise NotImplementedError

    def candidates(self, topic: str, key: str, min_physical_offset: int = 0) -> Iterator[int]:
        """Physical offsets of records that may carry `key`, newest first, each once, not below `min_physical_offset`."""
        raise NotImplementedError

    def truncate(self, physical_end: int, stored_ms: Callable[[int], int]) -> None:
        """Drop keys of records at or after `physical_end`, and make the touched files' chains anew; synced.

        `stored_ms` gives a kept record's store time (the header of a cut file needs it)."""
        raise NotImplementedError

    def delete_expired(self, min_physical_offset: int) -> int:
        """Delete files whose last record is before `min_physical_offset`, never the last file; return how many."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """FOLLOW: notice new and removed files; True when the set changed."""
        raise NotImplementedError

    def flush(self) -> None:
        """Bring every changed file to disk. OSError."""
        raise NotImplementedError

    def destroy(self) -> None:
        """Delete every file (before a rebuild)."""
        raise NotImplementedError

    def close(self) -> None:
        """Unmap everything."""
        raise NotImplementedError

"""Unread ranges: bytes of the log that the disk refused while recovery made derived data from them.

The messages in them keep their queue offsets: entries that lead there stay unchanged, and offsets without an entry get
one that reads as damaged. No index has the keys of these messages. The recovery point stores the ranges, and the first
opening that can read a range makes its derived data again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import ReadError
from engine.files.mapped_file import unread_end

if TYPE_CHECKING:
    from engine.files.file_queue import FileQueue
    from engine.files.mapped_file import MappedFile
    from engine.log.entries import Entries

Range = tuple[int, int]
"""Physical offsets [start, end)."""


class UnreadRanges:
    """Tells which damaged ranges of a log the disk refuses. Thread safety: one caller."""

    def __init__(self, files: FileQueue, ranges: Iterable[Range] = ()) -> None:
        """`ranges` were refused at an earlier opening."""
        self._files = files
        self._refused: dict[Range, bool] = {}
        known = [(one, self.is_refused(*one)) for one in ranges if one[1] > files.min_offset]
        self.still = tuple(one for one, is_refused in known if is_refused)
        """The `ranges` that the disk still refuses."""
        self.again = tuple(one for one, is_refused in known if not is_refused)
        """The `ranges` that can be read now."""

    def is_refused(self, start: int, end: int) -> bool:
        """Whether the disk refuses a byte of [start, end) of the log. OSError."""
        if (start, end) not in self._refused:
            self._refused[start, end] = any(self._refused_in(start, end))
        return self._refused[start, end]

    def _refused_in(self, start: int, end: int) -> Iterable[bool]:
        for file, first, after in parts_of(self._files, start, end):
            with suppress(ReadError):
                yield unread_end(file, first, after) > first

    def was_refused(self, start: int, end: int) -> bool:
        """Whether [start, end) lies in a range that was refused earlier and can be read now."""
        return any(first <= start and end <= after for first, after in self.again)


def parts_of(files: FileQueue, start: int, end: int) -> Iterator[tuple[MappedFile, int, int]]:
    """Each file with bytes of the physical range [start, end), and their positions [first, after) in it."""
    for file in files.files:
        first, after = max(start - file.start, 0), min(end - file.start, file.size)
        if first < after:
            yield file, first, after


def keep_entries(runs: Iterable[tuple[int, Entries]], first: int, entries: Entries, unread: Iterable[Range]) -> None:
    """Copy into `entries`, which begin at the queue offset `first`, the entries of `runs` that lead to `unread` ranges.
    A run is (queue offset, entries the queue had from there on). Entries after a copied one repeat its physical offset
    and size, because physical offsets in a queue never fall."""
    ranges = list(unread)
    kept = np.zeros(len(entries), dtype=bool)
    for run_first, run in runs:
        start, end = max(first, run_first), min(first + len(entries), run_first + len(run))
        had = run[start - run_first : max(end, start) - run_first]
        starts = had["physical_offset"].astype(np.int64)
        leads = np.zeros(len(had), dtype=bool)
        for begin, after in ranges:
            leads |= (starts >= begin) & (starts < after) & (had["size"] > 0)
        rows = np.flatnonzero(leads)
        entries[rows + start - first] = had[rows]
        kept[rows + start - first] = True
    before = np.maximum.accumulate(np.where(kept, np.arange(len(entries)), -1))
    follows = ~kept & (before >= 0)
    entries[follows] = entries[before[follows]]
    entries["tags_code"][follows] = 0

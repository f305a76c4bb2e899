"""Unread: bytes of the log that the disk refused while recovery made what follows from them.

The messages in them keep their numbers: entries that lead there stay as they were, and numbers without an entry get one
that reads as damaged. Keys of these messages are in no index. The recovery point remembers such ranges, so that the
first opening that can read one makes what follows from it again.
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
    """Which of the damaged ranges of a log the disk refuses. Thread safety: one caller."""

    def __init__(self, files: FileQueue, ranges: Iterable[Range] = ()) -> None:
        """`ranges` are those that were refused at an earlier opening."""
        self._files = files
        self._refused: dict[Range, bool] = {}
        known = [(one, self.is_refused(*one)) for one in ranges if one[1] > files.min_offset]
        self.still = tuple(one for one, is_refused in known if is_refused)
        """Those of `ranges` that are refused now, too."""
        self.again = tuple(one for one, is_refused in known if not is_refused)
        """Those that can be read by now."""

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
        """Whether [start, end) is within a range that was refused and can be read by now."""
        return any(first <= start and end <= after for first, after in self.again)


def parts_of(files: FileQueue, start: int, end: int) -> Iterator[tuple[MappedFile, int, int]]:
    """The files that have bytes of [start, end), and the positions [first, after) of these in each."""
    for file in files.files:
        first, after = max(start - file.start, 0), min(end - file.start, file.size)
        if first < after:
            yield file, first, after


def keep_entries(runs: Iterable[tuple[int, Entries]], first: int, entries: Entries, unread: Iterable[Range]) -> None:
    """Put into `entries`, a queue's from the queue offset `first` on, those of `runs` that lead to `unread` ranges.
    Each run is what the queue had from a queue offset on. Others that follow one repeat where it leads, since entries
    lead ever further."""
    ranges = list(unread)
    kept = np.zeros(len(entries), dtype=bool)
    for run_first, run in runs:
        start, end = max(first, run_first), min(first + len(entries), run_first + len(run))
        had = run[start - run_first : max(end, start) - run_first]
        places = had["physical_offset"].astype(np.int64)
        leads = np.zeros(len(had), dtype=bool)
        for begin, after in ranges:
            leads |= (places >= begin) & (places < after) & (had["size"] > 0)
        rows = np.flatnonzero(leads)
        entries[rows + start - first] = had[rows]
        kept[rows + start - first] = True
    before = np.maximum.accumulate(np.where(kept, np.arange(len(entries)), -1))
    follows = ~kept & (before >= 0)
    entries[follows] = entries[before[follows]]
    entries["tags_code"][follows] = 0

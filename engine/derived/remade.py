"""Remade: entries of a consume queue that the disk refuses, made again from the log and kept in memory.

The log says all that an entry says. It is read from the record of the nearest readable entry before, or from its begin,
to the record of the nearest one behind, or to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from engine.log.entries import ENTRY, PRE_BLANK_SIZE, Entries

Array = np.ndarray[Any, Any]

MOST_RUNS = 16
"""So many are kept of a queue."""
MOST_ENTRIES = 1 << 20
"""A run has no more: a damaged record may have any number."""


class Made(NamedTuple):
    """What a part of the log has of one queue: queue offsets (int64 (n,)) in log order, their entries, the physical
    offset of the record that would follow, and whether nothing in between is damaged."""

    offsets: Array
    entries: Entries
    end: int
    is_whole: bool


Make = Callable[[str, int, int, int | None], Made]
"""Reads the log for a queue (topic, queue id), from the record at a physical offset, or from the log's begin if that is
later, to the record at another; None: to the log's end. Takes long. ReadError, OSError."""


class Run:
    """Consecutive entries of a queue, as far as the log has them. Thread safety: one caller at a time."""

    def __init__(self, first: int, after: int | None, start: int) -> None:
        """Of queue offsets [first, after); None: to the queue's end. `start` is the physical offset to read from; -1:
        there is no entry before."""
        self.first = first
        self.end = start
        """Up to where the log was read."""
        self._after = after
        self._is_oldest = start < 0
        self._entries: Entries = np.zeros(0, ENTRY)

    @property
    def grows(self) -> bool:
        """Whether the log may have more of it by now."""
        return self._after is None

    @property
    def found_end(self) -> int:
        """The queue offset after the newest entry that the log has."""
        return self.first + len(self._entries)

    def reaches(self, queue_offset: int) -> bool:
        """Whether that entry belongs to it."""
        return self.first <= queue_offset and (self._after is None or queue_offset < self._after)

    def find(self, queue_offset: int) -> tuple[int, int, int] | None:
        """An entry; None where the log has none."""
        if not self.first <= queue_offset < self.found_end:
            return None
        entry: tuple[int, int, int] = self._entries[queue_offset - self.first].item()
        return entry if entry[1] else None

    def add(self, made: Made) -> None:
        """Take what the log has. Where it begins with a later number, all before has expired, or never was."""
        after = min(self.first + MOST_ENTRIES, self._after if self._after is not None else MOST_ENTRIES + self.first)
        fits = (made.offsets >= self.first) & (made.offsets < after)
        rows = made.offsets[fits] - self.first
        if len(rows):
            is_first = not len(self._entries)
            missing = max(int(rows.max()) + 1 - len(self._entries), 0)
            self._entries = np.concatenate([self._entries, np.zeros(missing, ENTRY)])
            self._entries[rows] = made.entries[fits]
            if is_first and self._is_oldest and made.is_whole:
                self._entries["size"][: rows.min()] = PRE_BLANK_SIZE
        self.end = made.end

"""Remade entries: entries of a consume queue that the disk refuses, made again from the log and kept in memory.

Entries follow from the log. It is read from the record of the nearest readable entry before, or from its begin, to the
record of the nearest readable one behind, or to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from engine.log.entries import ENTRY, PRE_BLANK_SIZE, Entries

Array = np.ndarray[Any, Any]

MOST_RUNS = 16
"""Number of runs kept for a queue."""
MOST_ENTRIES = 1 << 20
"""Limit of a run's entries, because a damaged record may have any queue offset."""


class Made(NamedTuple):
    """Entries of one queue from a part of the log: queue offsets (int64 (n,)) in log order, their entries, the physical
    end of the part, and whether the part has no damage."""

    offsets: Array
    entries: Entries
    end: int
    is_whole: bool


Make = Callable[[str, int, int, int | None], Made]
"""Reads the log for a queue (topic, queue id) between two physical offsets at which records begin. It starts at the
log's begin if that is later; None as the end: the log's end. Takes long. ReadError, OSError."""


class Run:
    """Consecutive entries of a queue that were made from the log. Thread safety: one caller at a time."""

    def __init__(self, first: int, after: int | None, start: int) -> None:
        """The run has the queue offsets [first, after); None: up to the queue's end. `start` is the physical offset to
        read from; -1: no readable entry is before."""
        self.first = first
        self.end = start
        """Physical offset up to which the log was read."""
        self._after = after
        self._is_oldest = start < 0
        self._entries: Entries = np.zeros(0, ENTRY)

    @property
    def grows(self) -> bool:
        """Whether later records may add entries."""
        return self._after is None

    @property
    def found_end(self) -> int:
        """The queue offset after the newest entry made from the log."""
        return self.first + len(self._entries)

    def reaches(self, queue_offset: int) -> bool:
        """Whether the entry belongs to the run."""
        return self.first <= queue_offset and (self._after is None or queue_offset < self._after)

    def find(self, queue_offset: int) -> tuple[int, int, int] | None:
        """The entry; None if the log lacks it."""
        if not self.first <= queue_offset < self.found_end:
            return None
        entry: tuple[int, int, int] = self._entries[queue_offset - self.first].item()
        return entry if entry[1] else None

    def add(self, made: Made) -> None:
        """Add entries from the log. Older ones of the oldest run have expired or never existed."""
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

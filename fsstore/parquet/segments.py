"""Segments: where the files of a queue begin and end.

A segment ends at each multiple of 65,536 queue offsets, and wherever the next message lies in another file of the
commit log. Both follow from two neighbouring entries of the consume queue, so the same names come out after a restart
and on another machine, and retention, which removes whole files of the log, removes whole segments.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import NamedTuple

from engine import MessageStore
from fsstore.parquet.layout import Layout

SEGMENT_MESSAGES = 65_536


class Segment(NamedTuple):
    """Queue offsets [begin, end); a tail may still grow."""

    begin: int
    end: int
    is_tail: bool


class QueueSegments:
    """The segments of one queue, remembered as far as they are whole. Thread safety: any thread (an own lock)."""

    def __init__(self, store: MessageStore, topic: str, queue: int) -> None:
        self._store = store
        self._topic = topic
        self._queue = queue
        self._lock = threading.Lock()
        self._bounds: list[int] = []
        self._whole: list[Segment] = []  # between each two of them
        self._end_physical = -1
        self.layouts: dict[tuple[int, int], Layout] = {}
        """Layouts of whole segments, by [begin, end): whoever measures one leaves it here."""

    @property
    def known_end(self) -> int:
        """Queue offset up to which whole segments are known."""
        bounds = self._bounds
        return bounds[-1] if bounds else -1

    def now(self) -> list[Segment]:
        """All segments, oldest first. TopicNotFoundError."""
        with self._lock:
            return self._now()

    def _now(self) -> list[Segment]:
        offsets = self._store.bounds(self._topic, self._queue)
        self._forget(offsets.min_offset, offsets.max_offset)
        bounds = self._bounds
        while (end := self._end_of(bounds[-1], offsets.max_offset)) is not None:
            self._whole.append(Segment(bounds[-1], end, False))
            bounds.append(end)
        self._end_physical = self._physical_offset(bounds[-1])
        segments = self._whole.copy()
        if bounds[-1] < offsets.max_offset:
            segments.append(Segment(bounds[-1], offsets.max_offset, True))
        return segments

    def _forget(self, min_offset: int, max_offset: int) -> None:
        """What expired; or everything, where the queue is not the one that it was (deleted, or cut by its writer)."""
        bounds = self._bounds
        if bounds and (bounds[-1] > max_offset or self._has_changed(bounds[-1])):
            bounds.clear()
            self._whole.clear()
            self.layouts = {}  # another one: who is measuring just now puts what it finds into the old one
        expired = bisect_left(bounds, min_offset)
        for segment in self._whole[:expired]:
            self.layouts.pop(segment[:2], None)
        del bounds[:expired], self._whole[:expired]
        if not bounds or bounds[0] != min_offset:
            bounds[:] = [min_offset]
            self._whole.clear()

    def _has_changed(self, known_end: int) -> bool:
        return self._end_physical >= 0 and self._physical_offset(known_end) != self._end_physical

    def _physical_offset(self, queue_offset: int) -> int:
        entries = self._store.entries(self._topic, self._queue, queue_offset, 1)
        return int(entries["physical_offset"][0]) if len(entries) else -1

    def _end_of(self, begin: int, max_offset: int) -> int | None:
        """Where the segment that starts at `begin` ends; None when it is not whole yet."""
        limit = (begin // SEGMENT_MESSAGES + 1) * SEGMENT_MESSAGES
        entries = self._store.entries(self._topic, self._queue, begin, min(limit, max_offset) - begin)
        places = entries["physical_offset"]
        if not len(places):
            return None
        file_bytes = self._store.sizes.commit_log_bytes
        next_file = (int(places[0]) // file_bytes + 1) * file_bytes
        if int(places[-1]) >= next_file:
            return begin + bisect_left(places, next_file)
        return limit if begin + len(places) == limit else None

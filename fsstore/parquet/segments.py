"""Segments: the ranges of a queue's files.

A segment ends at each multiple of 65,536 queue offsets, and before a message in another file of the commit log. Both
follow from two neighbouring entries of the consume queue, so the names are the same after a restart and on another
machine. Retention removes whole files of the log, and thus whole segments.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import NamedTuple

from engine import MessageStore
from fsstore.parquet.layout import Layout
from fsstore.parquet.names import SEGMENT_MESSAGES


class Segment(NamedTuple):
    """Queue offsets [begin, end); a tail may still grow."""

    begin: int
    end: int
    is_tail: bool


class Ends(NamedTuple):
    """Facts that show whether a queue has changed: its bounds, and the physical offset of its newest message (-1:
    none). A queue that was deleted and made again has another offset there; so, mostly, has one that was cut."""

    min_offset: int
    max_offset: int
    newest_physical: int


class QueueSegments:
    """The segments of one queue; whole ones are remembered. Thread safety: any thread (a lock of its own)."""

    def __init__(self, store: MessageStore, topic: str, queue: int) -> None:
        self._store = store
        self._topic = topic
        self._queue = queue
        self._lock = threading.Lock()
        self._bounds: list[int] = []
        self._whole: list[Segment] = []  # one between each two bounds
        self._segments: tuple[Segment, ...] = ()
        self._ends = Ends(-1, -1, -1)  # of the queue when it had these segments
        self.layouts: dict[tuple[int, int], Layout] = {}
        """Layouts of whole segments, by [begin, end). The caller that measures one adds it."""

    @property
    def measured_end(self) -> int:
        """Queue offset up to which whole segments are known and have their layouts; -1: none."""
        end = -1
        for segment in self._segments:
            if segment.is_tail or segment[:2] not in self.layouts:
                break
            end = segment.end
        return end

    def now(self) -> tuple[Segment, ...]:
        """All segments, oldest first. TopicNotFoundError."""
        with self._lock:
            return self._unchanged() or self._now()

    def unchanged(self) -> tuple[Segment, ...] | None:
        """The last result of `now`, the same object, if nothing has changed since; else None. TopicNotFoundError."""
        with self._lock:
            return self._unchanged()

    def forget(self, begin: int, end: int) -> None:
        """Forget the layout of a segment; the next result is another object."""
        with self._lock:
            self.layouts.pop((begin, end), None)
            self._segments = (*self._segments,)

    def _unchanged(self) -> tuple[Segment, ...] | None:
        return self._segments if self._ends.newest_physical >= 0 and self._ends == self._ends_now() else None

    def _ends_now(self) -> Ends:
        offsets = self._store.bounds(self._topic, self._queue)
        return Ends(offsets.min_offset, offsets.max_offset, self._physical_offset(offsets.max_offset - 1))

    def _now(self) -> tuple[Segment, ...]:
        offsets = self._ends_now()
        self._forget(offsets.min_offset, offsets.max_offset)
        bounds = self._bounds
        while (end := self._end_of(bounds[-1], offsets.max_offset)) is not None:
            self._whole.append(Segment(bounds[-1], end, False))
            bounds.append(end)
        tail = (Segment(bounds[-1], offsets.max_offset, True),) if bounds[-1] < offsets.max_offset else ()
        self._segments, self._ends = (*self._whole, *tail), offsets
        return self._segments

    def _forget(self, min_offset: int, max_offset: int) -> None:
        """Forget expired segments; or all of them if the queue is another one now (deleted, or cut by its writer)."""
        bounds = self._bounds
        if self._ends.max_offset > max_offset or self._has_changed():
            bounds.clear()
            self._whole.clear()
            self.layouts = {}  # a new one: a thread that is measuring now adds its layouts to the old one
        expired = bisect_left(bounds, min_offset)
        for segment in self._whole[:expired]:
            self.layouts.pop(segment[:2], None)
        del bounds[:expired], self._whole[:expired]
        if not bounds or bounds[0] != min_offset:
            bounds[:] = [min_offset]
            self._whole.clear()

    def _has_changed(self) -> bool:
        known = self._ends
        return known.newest_physical >= 0 and self._physical_offset(known.max_offset - 1) != known.newest_physical

    def _physical_offset(self, queue_offset: int) -> int:
        entries = self._store.entries(self._topic, self._queue, queue_offset, 1)
        return int(entries["physical_offset"][0]) if len(entries) else -1

    def _end_of(self, begin: int, max_offset: int) -> int | None:
        """The end of the segment that starts at `begin`; None: it is not whole yet."""
        limit = (begin // SEGMENT_MESSAGES + 1) * SEGMENT_MESSAGES
        known = self._store.known_ranges.find(self._topic, self._queue, begin, self._physical_offset(begin))
        fits = known is not None and known.end <= min(limit, max_offset)
        if known is not None and fits and self._physical_offset(known.end - 1) == known.last_physical:
            return known.end
        entries = self._store.entries(self._topic, self._queue, begin, min(limit, max_offset) - begin)
        physical = entries["physical_offset"]
        if not len(physical):
            return None
        file_bytes = self._store.sizes.commit_log_bytes
        next_file = (int(physical[0]) // file_bytes + 1) * file_bytes
        if int(physical[-1]) >= next_file:
            return begin + bisect_left(physical, next_file)
        return limit if begin + len(physical) == limit else None

"""Checking consume queues: their entries, compared with those that a rebuild would write.

A queue ends before an entry with an invalid size (`valid_prefix` in `engine.derived.queue_end`). `engine.results` has
the kinds of findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.derived.consume_queue import ConsumeQueue
from engine.derived.scanned_rows import consecutive_runs, rows_by_queue
from engine.errors import ReadError
from engine.files.file_scan import file_name
from engine.log.entries import ENTRY, LAST_EXTENSION_CODE, Entries, is_pre_blank
from engine.log.sequence import SPARE, Suspect
from engine.record.header import MAX_OFFSET
from engine.results import Problem, ProblemKind

if TYPE_CHECKING:
    from engine.derived.consume_queues import ConsumeQueues
    from engine.derived.derived import Extent
    from engine.record.scan import ScannedRecords
    from engine.settings.delay_levels import DelayLevels

Array = np.ndarray[Any, Any]


class _Wrong(NamedTuple):
    """Wrong or missing entries [first, after). The first one's record is at `physical_offset`."""

    first: int
    after: int
    physical_offset: int
    text: str


class CheckedQueue:
    """Compares one queue with the entries that `append` gets. Thread safety: one caller."""

    def __init__(self, topic: str, queue_id: int, queue: ConsumeQueue | None, *, is_extended: bool) -> None:
        """`queue` is the store's, None if it has none. `is_extended`: tags codes may be addresses."""
        self.topic = topic
        self.queue_id = queue_id
        self.max_offset = 0
        self._queue = queue
        self._is_extended = is_extended
        self._first: int | None = None
        self._gaps: list[tuple[int, int]] = []
        self._wrong: list[_Wrong] = []

    def append(self, queue_offset: int, entries: Entries) -> None:
        """Compare the queue's entries from `queue_offset` on with `entries`."""
        if self._first is None:
            self._first = self.max_offset = queue_offset
        if queue_offset > self.max_offset:
            self._gaps.append((self.max_offset, queue_offset))
        elif queue_offset < self.max_offset:  # numbered again: earlier entries are not expected any more
            self.drop_from(queue_offset)
        self._compare(queue_offset, entries)
        self.max_offset = queue_offset + len(entries)

    def drop_from(self, queue_offset: int) -> None:
        """Forget the entries from `queue_offset` on that were appended."""
        self._wrong = [run for run in self._wrong if run.after <= queue_offset]
        self._gaps = [gap for gap in self._gaps if gap[1] <= queue_offset]
        self._first = queue_offset if self._first is None else min(self._first, queue_offset)
        self.max_offset = queue_offset

    def _compare(self, queue_offset: int, entries: Entries) -> None:
        found = self._entries(queue_offset, len(entries))
        if len(found) < len(entries):
            end = queue_offset + len(entries)
            count = len(entries) - len(found)
            text = f"{count:,} entries are missing from queue offset {end - count} on"
            self._wrong.append(_Wrong(end - count, end, int(entries["physical_offset"][len(found)]), text))
        for name in ENTRY.names or ():
            differs = found[name] != entries[name][: len(found)]
            if name == "tags_code" and self._is_extended:
                differs &= found[name] > LAST_EXTENSION_CODE
            rows = np.flatnonzero(differs)
            if len(rows):
                row = int(rows[0])
                first = queue_offset + row
                said, expected = int(found[name][row]), int(entries[name][row])
                text = f"{len(rows):,} entries from queue offset {first} on have a wrong {name}: {said}, not {expected}"
                physical_offset = int(entries["physical_offset"][row])
                self._wrong.append(_Wrong(first, queue_offset + int(rows[-1]) + 1, physical_offset, text))
                return

    def _entries(self, queue_offset: int, count: int) -> Entries:
        """Up to `count` entries from `queue_offset` on; none if one is unreadable."""
        if self._queue is None or queue_offset < self._begin:
            return np.empty(0, ENTRY)
        try:
            return self._queue.entries(queue_offset, count)
        except ReadError:
            return np.empty(0, ENTRY)

    @property
    def _begin(self) -> int:
        """First queue offset in the files."""
        first = self._queue.files.first if self._queue else None
        return first.start // ENTRY.itemsize if first else 0

    def problems(self, extent: Extent) -> Iterator[Problem]:
        """The queue's problems, after all records."""
        begin = extent.begin(self.topic)
        for wrong in self._wrong:
            if wrong.physical_offset >= begin:
                yield self._problem(wrong.first, wrong.text)
        if self._queue is None:
            return
        first = self.max_offset if self._first is None else self._first
        after = max(self.max_offset, first)
        for start, end in [(self._begin, first), *self._gaps, (after, self._queue.max_offset)]:
            yield from self._idle(start, end, extent)
        for kind, path, size in [(one.kind, one.path.name, one.found_bytes) for one in self._queue.files.problems]:
            text = f"a {kind} file of {size:,} bytes"
            yield Problem(ProblemKind.FOREIGN_FILE, f"{self._folder}/{path}", -1, text)
        if not extent.is_open:
            yield from self._stale()

    def _idle(self, start: int, end: int, extent: Extent) -> Iterator[Problem]:
        """Problems of the entries [start, end), which have no record. Fillers, and entries that lead into unreadable
        ranges, are no problem."""
        entries = self._entries(start, max(end - start, 0))
        starts = entries["physical_offset"].astype(np.int64)
        fillers = self._repeat(start - 1, entries) | self._repeat(end, entries)
        rows = np.flatnonzero(~is_pre_blank(entries) & ~_explained(extent, self.topic, starts) & ~fillers).tolist()
        if len(rows) <= SPARE:
            rows = [
                row for row in rows if not extent.is_moved(int(starts[row]), int(entries["size"][row]), start + row)
            ]
        if rows:
            text = f"{len(rows):,} entries from queue offset {start + rows[0]} on lead to no record"
            yield self._problem(start + rows[0], text)

    def _repeat(self, queue_offset: int, entries: Entries) -> Array:
        """Whether each entry repeats that at `queue_offset`: bool (n,). Recovery makes such ones for lost records."""
        other = self._entries(queue_offset, 1)
        if not len(other):
            return np.zeros(len(entries), dtype=bool)
        same = (entries["physical_offset"] == other["physical_offset"]) & (entries["size"] == other["size"])
        return np.asarray(same & (entries["tags_code"] == 0))

    def _stale(self) -> Iterator[Problem]:
        """A problem if bytes follow the newest entry: they may be entries from before a truncation."""
        assert self._queue is not None
        position = self._queue.max_offset * ENTRY.itemsize
        file = self._queue.files.last
        if file is None or not file.start <= position < file.start + file.size:
            return
        try:
            rest, ranges = file.whole(), list(file.data_ranges(position - file.start))
        except ReadError as error:
            yield Problem(ProblemKind.WRONG_SIZE, f"{self._folder}/{file.path.name}", -1, str(error))
            return
        if any(np.frombuffer(rest[start:end], np.uint8).any() for start, end in ranges):
            yield self._problem(self._queue.max_offset, "bytes that are no entry follow the newest one")

    @property
    def _folder(self) -> str:
        return f"consumequeue/{self.topic}/{self.queue_id}"

    def _problem(self, queue_offset: int, text: str) -> Problem:
        if self._queue is None:
            return Problem(ProblemKind.CONSUME_QUEUE, self._folder, -1, f"there is no such queue: {text}")
        position = queue_offset * ENTRY.itemsize
        start = position - position % self._queue.files.file_bytes
        return Problem(ProblemKind.CONSUME_QUEUE, f"{self._folder}/{file_name(start)}", position - start, text)


class CheckedQueues:
    """Compares all queues of a store: see `engine.derived.derived.Comparison`."""

    def __init__(self, queues: ConsumeQueues, levels: DelayLevels, *, are_extended: bool) -> None:
        """`are_extended`: tags codes may be addresses in extension files."""
        self._queues = queues
        self._levels = levels
        self._are_extended = are_extended
        self._checked: dict[tuple[str, int], CheckedQueue] = {}

    def _queue(self, topic: str, queue_id: int) -> CheckedQueue:
        known = self._checked.get((topic, queue_id))
        if known is None:
            queue = self._queues.get(topic, queue_id)
            known = CheckedQueue(topic, queue_id, queue, is_extended=self._are_extended)
            self._checked[topic, queue_id] = known
        return known

    def put_scanned(self, found: ScannedRecords) -> None:
        for rows in rows_by_queue(found, self._levels) if len(found) else ():
            queue = self._queue(rows.topic, rows.queue_id)
            for start, end in consecutive_runs(rows.queue_offsets):
                queue.append(int(rows.queue_offsets[start]), rows.entries[start:end])

    def take_back(self, suspect: Suspect) -> None:
        self._queue(suspect.topic, suspect.queue_id).drop_from(suspect.expected)

    def problems(self, extent: Extent, progress: Callable[[], None]) -> Iterator[Problem]:
        for queue in self._queues:
            self._queue(queue.topic, queue.queue_id)
        for _, checked in sorted(self._checked.items()):
            yield from checked.problems(extent)
            progress()
        for (topic, queue_id), error in (self._queues.unread or {}).items():
            path = f"consumequeue/{topic}/{queue_id}/{error.path.name}"
            yield Problem(ProblemKind.CONSUME_QUEUE, path, error.position, error.reason)


def _explained(extent: Extent, topic: str, physical_offsets: Array) -> Array:
    """Whether each physical offset may lack a good record, in damage or out of the extent: bool (n,). The queues of an
    open store may have grown."""
    end = max(extent.end, extent.scanned_end) if extent.is_open else MAX_OFFSET
    found = (physical_offsets < extent.begin(topic)) | (physical_offsets >= end)
    for damage in extent.damaged:
        found |= (physical_offsets >= damage.start) & (physical_offsets < damage.end)
    return np.asarray(found)

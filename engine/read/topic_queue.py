"""TopicQueue: the messages of all queues of a topic, in the order of the commit log (docs/format.md, 13).

A row has the physical offset, queue id and queue offset of a message. Rows are merged from the consume queues on demand
and never reordered: each merge ends at a physical offset before which every queue is known to have its entries. Rows
are in memory, those of a long topic in a nameless temporary file; nothing is written to the store.

    queues ──entries before the bound──► a window of the log at a time, sorted ──► rows, numbered in this order
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.deadline import check_deadline
from engine.errors import RetiredFileError, UnreadableRangeError
from engine.files.disk import make_directory
from engine.log.entries import TOPIC_ROW
from engine.record.parsed_headers import ParsedHeaders, misplaced

if TYPE_CHECKING:
    from engine.derived.consume_queue import ConsumeQueue

Array = np.ndarray[Any, Any]

WINDOW_ROWS = 1 << 20
"""Approximate number of rows merged together."""
ROWS_IN_MEMORY = 1 << 16
"""Number of rows above which they are written to a file."""
UNKNOWN_ROWS = 1 << 62
QUICK_QUEUES = 16
"""Queues that are opened at once to count their messages, at some 0.1 ms each."""


class _Source(NamedTuple):
    """A queue, and its first offset that is not merged."""

    queue: ConsumeQueue
    taken: int


class TopicQueue:
    """Has the reading methods of a `ConsumeQueue`; its offsets number the topic's messages in the order of the log.

    Thread safety: any thread; merges take turns under a lock of its own.
    """

    queue_id = -1
    """In errors: no queue."""

    def __init__(
        self,
        topic: str,
        queues: Callable[[], Sequence[ConsumeQueue]],
        queue_count: Callable[[], int],
        log_begin: Callable[[], int],
        bound: Callable[[], int] | None,
        refresh: Callable[[], object],
        scratch: Path | None,
    ) -> None:
        """`queues()` are the topic's current ones, which it opens, and `queue_count()` is their number. After a call of
        `bound()` no queue gets entries of records before the returned physical offset; None: another process writes,
        and `refresh` reloads all queues. Long topics have a file in `scratch`, which is made if it is missing; None:
        the system's folder for temporary files."""
        self.topic = topic
        self.is_stale = False
        """Whether its queues were deleted or cut: it merges nothing more."""
        self._queues = queues
        self._queue_count = queue_count
        self._is_followed = bound is None
        self._log_begin = log_begin
        self._bound = bound or self._followed_bound
        self._refresh = refresh
        self._followed = (-1, -1)  # the bound, and the next one
        self._lock = threading.Lock()
        self._sources: dict[int, _Source] = {}
        self._work: Iterator[None] | None = None
        self._merged_end = -1
        self._rows = _Rows(scratch)
        self._begin = 0
        self._min = (0, -1)
        self.text_blocks: dict[int, tuple[int, int, int]] = {}
        """Always empty for a topic: see `QueueEnd`."""

    # merging

    @property
    def is_merged(self) -> bool:
        """Whether a first merge is complete, so that the first row is known."""
        return self._merged_end >= 0

    @property
    def unmerged(self) -> int:
        """Maximum number of messages that the next merge takes."""
        if not self.is_merged and (self._is_followed or self._queue_count() > QUICK_QUEUES):
            return UNKNOWN_ROWS
        if self.is_stale or self._bound() <= self._merged_end:
            return 0
        return sum(map(self._unmerged_of, self._queues()))

    def _unmerged_of(self, queue: ConsumeQueue) -> int:
        source = self._sources.get(queue.queue_id)
        return max(queue.max_offset - (queue.min_offset if source is None else source.taken), 0)

    def merge_until(self, until_s: float = math.inf) -> bool:
        """Merge new messages until `until_s` (of time.monotonic); returns whether all are merged. WouldBlock on a
        nonblocking thread: another thread merges. ReadError: a queue can't be read. OSError: no space for the rows."""
        if not self._lock.acquire(blocking=False):
            check_deadline()
            if not self._lock.acquire(timeout=-1 if until_s == math.inf else max(until_s - time.monotonic(), 0)):
                return False
        try:
            if self._work is None:
                self._work = self._merging()
            for _ in self._work:
                if time.monotonic() >= until_s:
                    return False
            self._work = None
            return True
        except BaseException:
            self._work = None
            raise
        finally:
            self._lock.release()

    def _merging(self) -> Iterator[None]:
        """Merge all new messages; yields after each step."""
        bound = self._bound()  # first: the queues then have all entries before it
        if self.is_stale or bound <= self._merged_end:
            return
        grown = []
        for number, queue in enumerate(self._queues()):
            source = self._sources.get(queue.queue_id) or _Source(queue, queue.min_offset)
            end = queue.max_offset
            if queue.is_stale or source.queue is not queue or end < source.taken:
                self.is_stale = True
                return
            if end > source.taken:
                grown.append((source, end))
            if number % 256 == 255:
                yield
        for window_end in self._windows(bound, sum(end - source.taken for source, end in grown)):
            yield from self._merge_window(grown, window_end)
        self._merged_end = bound

    def _followed_bound(self) -> int:
        """Bound of a followed store: the end of the queues before their last refresh. The writer dispatches in the
        order of the log, so after the refresh all earlier entries are there."""
        if self._followed[1] < 0:
            self.refreshed()
            self._refresh()
            if self._followed[0] < 0:  # else the refresh has done it
                self.refreshed()
        return self._followed[0]

    def refreshed(self) -> None:
        """Update the bound after all queues were refreshed."""
        newest = max((queue.newest_physical_offset for queue in self._queues()), default=-1)
        self._followed = self._followed[1], newest + 1

    def _windows(self, bound: int, rows: int) -> Iterator[int]:
        """Yields the physical offsets at which merge windows end; a window has about WINDOW_ROWS rows, to bound
        memory."""
        begin = max(self._log_begin(), self._merged_end)
        for window in range(1, rows // WINDOW_ROWS + 1):
            yield begin + (bound - begin) * window * WINDOW_ROWS // rows
        yield bound

    def _merge_window(self, grown: list[tuple[_Source, int]], window_end: int) -> Iterator[None]:
        """Append the rows before `window_end` of queues that have grown."""
        parts, sources = [np.empty(0, TOPIC_ROW)], []
        for number, (source, end) in enumerate(grown):
            part = _rows_of(source, end, window_end)
            parts.append(part)
            if len(part):
                taken = source._replace(taken=int(part["queue_offset"][-1]) + 1)
                sources.append(taken)
                grown[number] = taken, end
            if number % 256 == 255:
                yield
        rows = np.concatenate(parts)
        physical_offsets = np.concatenate([_ascending(part["physical_offset"], window_end) for part in parts])
        self._rows.append(rows[np.argsort(physical_offsets, kind="stable")])
        self._sources.update((source.queue.queue_id, source) for source in sources)
        yield

    def number_from(self, number: int, physical_offset: int) -> bool:
        """Before any row is read: number the rows so that the record at `physical_offset` gets `number`. False: there
        is no such record, or earlier rows would get negative numbers."""
        found = bisect_left(_Places(self._rows), physical_offset)
        if found == len(self._rows) or _Places(self._rows)[found] != physical_offset or found > number:
            return False
        self._begin = number - found
        return True

    # reading, as in a consume queue

    @property
    def min_offset(self) -> int:
        """Number of the first row whose record is in the log."""
        found, log_begin = self._min
        now = self._log_begin()
        if now != log_begin:
            found = bisect_left(_Places(self._rows), now)
            self._min = found, now
        return self._begin + min(found, len(self._rows))

    @property
    def max_offset(self) -> int:
        """Number of the next row."""
        return self._begin + len(self._rows)

    @property
    def empty_offset(self) -> int:
        """A negative number for an empty topic; it changes when messages were published and expired since."""
        return -2 - sum(min(queue.min_offset, queue.max_offset) for queue in self._queues())

    def entries(self, first: int, count: int) -> Array:
        """Up to `count` rows (TOPIC_ROW, shape (n,)) from `first` on."""
        start = first - self._begin
        return self._rows.read(start, max(min(count, len(self._rows) - start), 0))

    read = entries

    def source_of(self, row: Any) -> ConsumeQueue:
        """The queue of a row."""
        return self._sources[int(row["queue_id"])].queue

    def misplaced(self, records: ParsedHeaders, rows: Array) -> Array:
        """Whether each `ok` record names another topic, queue or queue offset than its row: bool (n,)."""
        agree = (records.headers["queue_offset"] == rows["queue_offset"]) & (records.queue_ids == rows["queue_id"])
        headers, parts = records.headers.copy(), records.parts.copy()
        headers["queue_offset"] = np.where(agree, np.arange(len(rows)), -1)
        parts["queue_id"] = 0
        return misplaced(ParsedHeaders(records.log, records.positions, headers, parts), self.topic, 0, 0)


class _Rows:
    """Rows, numbered from 0. Thread safety: one thread appends, any reads."""

    def __init__(self, scratch: Path | None) -> None:
        self._scratch = scratch
        self._count = 0
        self._recent = np.empty(0, TOPIC_ROW)
        self._file: Any = None
        self._in_file = 0

    def __len__(self) -> int:
        return self._count

    def append(self, rows: Array) -> None:
        recent = np.concatenate((self._recent, rows))
        if len(recent) > ROWS_IN_MEMORY:
            if self._file is None:
                if self._scratch is not None:
                    make_directory(self._scratch)
                self._file = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115 # as long as the rows
            _write_all(self._file.fileno(), recent.tobytes(), self._in_file * TOPIC_ROW.itemsize)
            self._in_file += len(recent)
            self._recent = np.empty(0, TOPIC_ROW)
        else:
            self._recent = recent
        self._count += len(rows)

    def read(self, start: int, count: int) -> Array:
        recent, in_file = self._recent, self._in_file
        if start + count > in_file + len(recent):  # rows moved to the file between the two reads
            recent, in_file = self._recent, self._in_file
        parts = []
        if start < in_file and count:
            size = min(count, in_file - start) * TOPIC_ROW.itemsize
            raw = os.pread(self._file.fileno(), size, start * TOPIC_ROW.itemsize)
            parts.append(np.frombuffer(raw, TOPIC_ROW))
        if start + count > in_file:
            parts.append(recent[max(start - in_file, 0) : start + count - in_file])
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, TOPIC_ROW), *parts])


class _Places(Sequence[int]):
    """The physical offsets of rows."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: Any) -> Any:
        return int(self._rows.read(row, 1)["physical_offset"][0])


def _write_all(descriptor: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written


def _rows_of(source: _Source, end: int, window_end: int) -> Array:
    """Unmerged rows of a queue before queue offset `end`, of records before physical offset `window_end`. ReadError.
    Retention may run concurrently."""
    queue, first = source
    while True:
        first = max(first, min(queue.min_offset, end))
        until = end
        if queue.newest_physical_offset >= window_end:
            until = min(queue.offset_of_physical(window_end), end)
        try:
            entries = queue.entries(first, max(until - first, 0))
        except (RetiredFileError, UnreadableRangeError):
            if queue.min_offset <= first:
                raise
            continue
        rows = np.empty(len(entries), TOPIC_ROW)
        rows["physical_offset"] = entries["physical_offset"]
        rows["queue_offset"] = np.arange(first, first + len(entries))
        rows["queue_id"] = queue.queue_id
        return rows


def _ascending(offsets: Array, end: int) -> Array:
    """Physical offsets as sort keys; the invalid one of a damaged entry gets that of the entry before it."""
    return np.maximum.accumulate(np.where((offsets >= 0) & (offsets < end), offsets, 0)) if len(offsets) else offsets

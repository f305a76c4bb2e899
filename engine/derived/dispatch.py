"""Dispatch: from records in the commit log to consume queues and index (docs/format.md, 5).

A writer dispatches each record or run as it appends it, and recovery dispatches the records that a scan of the log
finds. Both make the same entries, in log order. Existing entries are not written again.

    transaction      none, commit: queues and index    prepared: index only    rollback: neither
    delayed          the tags code is the due time
    multi-dispatch   an entry in each secondary queue, after its own: made by brokers, not by our writer

If a writer's dispatch fails, the store takes no more writes: records without entries stay in the log until the next
opening dispatches them.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.errors import QueueGapError, ReadOnlyStoreError
from engine.log.delay import SCHEDULE_TOPIC, tags_code
from engine.log.entries import ENTRY, Entries
from engine.log.sequence import all_or, equal_groups, queue_groups, queued_rows
from engine.record.batch import Share
from engine.record.header import is_rolled_back
from engine.record.inner_batch import may_be_wrapper
from engine.record.kernel.append import DispatchEnd
from engine.record.kernel.encode import EncodedBatch
from engine.record.scan import ScannedRecords
from engine.results import DamagedRange, NewestRecord, PutResult
from engine.settings.delay_levels import DelayLevels

if TYPE_CHECKING:
    from engine.derived.consume_queue import ConsumeQueue
    from engine.derived.consume_queues import ConsumeQueues
    from engine.derived.index import Index
    from engine.files.file_queue import FileQueue
    from engine.log.commit_log import CommitLog
    from engine.log.sequence import Suspect

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

DISPATCH_FAILED = "consume queues and index could not follow the log (the next opening rebuilds them)"


class PlacedRun(NamedTuple):
    """Records of one topic in the log from `physical_offset` on. `shares` gives the rows of each queue, `queues` the
    queues by id. Prepared or rolled back records are never in a run: they are dispatched one by one."""

    topic: str
    queues: Mapping[int, ConsumeQueue]
    shares: Sequence[Share]
    batch: EncodedBatch
    physical_offset: int
    store_time_ms: int

    @property
    def physical_end(self) -> int:
        """Physical offset just past the last record."""
        return self.physical_offset + self.batch.size


class Dispatcher:
    """Dispatches the records that a scan of the log finds. Thread safety: one caller at a time."""

    def __init__(self, queues: ConsumeQueues, index: Index, levels: DelayLevels) -> None:
        self.levels = levels
        self._queues = queues
        self._index = index

    def put_scanned(self, scanned: ScannedRecords) -> list[tuple[str, int]]:
        """Dispatch records of a scan whose queue offsets `QueueSequence` has checked; return the queues they belong to.
        The index gets its keys after all queues have their entries. QueueGapError, StoreFullError: remove the cause and
        call it again with the same records."""
        dispatched: list[tuple[str, int]] = []
        if not len(scanned):
            return dispatched
        for rows in self.rows_by_queue(scanned):
            queue = self._queues.get_or_create(rows.topic, rows.queue_id)
            for start, end in _consecutive_runs(rows.queue_offsets):
                text_bytes = rows.text_bytes[start:end]
                queue.append(int(rows.queue_offsets[start]), rows.entries[start:end], text_bytes)
            dispatched.append((rows.topic, rows.queue_id))
        self.index_scanned(scanned)
        return dispatched

    def rows_by_queue(self, scanned: ScannedRecords) -> Iterator[QueueRows]:
        """The entries that these records add, one queue at a time."""
        return _rows_by_queue(scanned, self.levels)

    def index_scanned(self, scanned: ScannedRecords) -> None:
        """Dispatch records of a scan to the index alone. StoreFullError."""
        if len(scanned):
            headers = scanned.records.headers
            key_rows, key_hashes = scanned.index_keys
            keeps = ~is_rolled_back(headers["sys_flag"][key_rows])
            offsets, times = headers["physical_offset"], headers["store_time_ms"]
            key_rows = key_rows[keeps]
            more = not len(key_rows) or int(key_rows[-1]) < len(offsets) - 1
            self._index.put_many(key_hashes[keeps], offsets[key_rows], times[key_rows], more)


class WriteDispatcher(DispatchEnd):
    """Dispatches a writer's records as they are appended. Thread safety: call under the log's lock.

    Keys may wait in memory, where queries find them. Call `Index.flush` before writing a recovery point that covers
    them.
    """

    def __init__(
        self,
        index: Index,
        newest: NewestRecord | None,
        appended: Callable[[str, int], None],
        broken: Callable[[str], None],
    ) -> None:
        """`newest` is the log's newest record. `appended` is called with each queue that has new messages, `broken`
        with the reason why the store takes no more writes."""
        super().__init__(index, appended, newest, PutResult)
        self._index = index
        self._broken = broken
        self.is_broken = False
        """Whether dispatch failed: its progress may not be recorded any more."""

    @property
    def newest(self) -> NewestRecord | None:
        """The newest dispatched record."""
        newest: NewestRecord | PutResult | None = self._newest
        return NewestRecord(*newest[3:6]) if isinstance(newest, PutResult) else newest

    def put(self, queue: ConsumeQueue | None, stored: PutResult, record: EncodedBatch) -> None:
        """Dispatch one record, stored as in `stored`. `queue` is None for a prepared or rolled back transaction, which
        gets no entry. ReadOnlyStoreError: dispatch failed."""
        topic, queue_id, queue_offset, physical_offset, size, store_time_ms, _ = stored
        try:
            if queue is not None:
                queue.append_one(queue_offset, physical_offset, size, record.tags_code)
                queue.note_batch(record, slice(1), queue_offset, physical_offset)
                self.touched.add(queue)
            self._index.put(record, physical_offset, store_time_ms)
        except BaseException as error:
            raise self._stop(error) from error
        self._newest = stored
        self._appended(topic, queue_id)

    def put_run(self, run: PlacedRun) -> None:
        """Dispatch a run, which must not be empty. ReadOnlyStoreError: dispatch failed."""
        try:
            self._put_run(run)
        except BaseException as error:
            raise self._stop(error) from error
        size = run.batch.last_size
        self._newest = NewestRecord(run.physical_end - size, size, run.store_time_ms)
        for share in run.shares:
            self._appended(run.topic, share.queue_id)

    def _put_run(self, run: PlacedRun) -> None:
        for queue_id, queue_offset, rows in run.shares:
            queue = run.queues[queue_id]
            queue.append(queue_offset, np.frombuffer(run.batch.entries(rows, run.physical_offset), ENTRY))
            queue.note_batch(run.batch, rows, queue_offset, run.physical_offset)
            self.touched.add(queue)
        self._index.put(run.batch, run.physical_offset, run.store_time_ms)

    def _stop(self, error: BaseException) -> BaseException:
        """Stop writes to the store after any error in dispatch; return the error to raise."""
        reason = f"{DISPATCH_FAILED}: {error!r}"
        log.error("%s", reason, exc_info=error)
        self.is_broken = True
        self._broken(reason)
        return ReadOnlyStoreError(reason) if isinstance(error, Exception) else error.with_traceback(None)


class Held(NamedTuple):
    """Dispatch that waits until the log is readable up to `physical_end`. `counts`: queue offsets taken, by queue."""

    physical_end: int
    counts: Counter[ConsumeQueue]
    dispatch: Callable[[], None]


class BufferedDispatcher(WriteDispatcher):
    """Dispatches after the log's write buffer is committed (transient pool), because records are readable only then.
    Thread safety: call under the log's lock."""

    def __init__(
        self,
        index: Index,
        newest: NewestRecord | None,
        appended: Callable[[str, int], None],
        broken: Callable[[str], None],
        commit_log: CommitLog,
    ) -> None:
        super().__init__(index, newest, appended, broken)
        self.at_once = False
        self._log = commit_log
        self._held: deque[Held] = deque()

    def put(self, queue: ConsumeQueue | None, stored: PutResult, record: EncodedBatch) -> None:
        """Hold one record's dispatch until `committed`."""
        counts = Counter([queue] if queue is not None else [])
        self._hold(stored.physical_end, counts, lambda: super(BufferedDispatcher, self).put(queue, stored, record))

    def put_run(self, run: PlacedRun) -> None:
        """Hold a run's dispatch until `committed`."""
        counts = Counter({run.queues[share.queue_id]: share.size for share in run.shares})
        self._hold(run.physical_end, counts, lambda: super(BufferedDispatcher, self).put_run(run))

    def _hold(self, physical_end: int, counts: Counter[ConsumeQueue], dispatch: Callable[[], None]) -> None:
        for queue, count in counts.items():
            queue.pending += count
        self._held.append(Held(physical_end, counts, dispatch))

    def committed(self) -> None:
        """Dispatch the held records that are readable now, unless dispatch failed before. ReadOnlyStoreError."""
        readable_end = self._log.readable_end
        while not self.is_broken and self._held and self._held[0].physical_end <= readable_end:
            held = self._held.popleft()
            held.dispatch()
            for queue, count in held.counts.items():
                queue.pending -= count


# records of a scan past damage

Keep = Callable[[str, int, int, Entries], None]
"""Corrects entries for lost messages of a queue (topic, queue id), from a queue offset on."""


def dispatch_scanned(
    dispatcher: Dispatcher,
    queues: ConsumeQueues,
    log_files: FileQueue,
    found: ScannedRecords,
    damaged: Sequence[DamagedRange],
    keep: Keep = lambda topic, queue_id, first, entries: None,
) -> list[tuple[str, int]]:
    """Dispatch records of a scan, and fill gaps of queue offsets lost to damage; return the queues they belong to."""
    while True:
        try:
            return dispatcher.put_scanned(found)
        except QueueGapError as gap:
            _fill_gap(queues.get_or_create(gap.topic, gap.queue_id), gap, damaged, log_files, keep)


def take_back(queues: ConsumeQueues, suspect: Suspect) -> None:
    """Drop the entry of a dispatched record whose queue offset turned out to be wrong."""
    queue = queues.get(suspect.topic, suspect.queue_id)
    if queue is not None:
        queue.drop_from(suspect.expected)


def _fill_gap(
    queue: ConsumeQueue, gap: QueueGapError, damaged: Sequence[DamagedRange], log: FileQueue, keep: Keep
) -> None:
    """Append entries for lost records that lead into the damaged range, so that they read as damaged."""
    start, size = _lost_range(queue, gap, damaged, log)
    entries = np.zeros(gap.found - gap.expected, ENTRY)
    entries["physical_offset"], entries["size"] = start, size
    keep(gap.topic, gap.queue_id, gap.expected, entries)
    queue.append(queue.max_offset, entries)


def _lost_range(
    queue: ConsumeQueue, gap: QueueGapError, damaged: Sequence[DamagedRange], log: FileQueue
) -> tuple[int, int]:
    """(physical offset, size) of the first damaged range between the gap's two records, within one file and without its
    frame header; else of the record before the gap, or of the one after it."""
    file_bytes = log.file_bytes
    for damage in damaged:
        if queue.physical_end <= damage.start < gap.physical_offset:
            end = min(damage.end, damage.start - damage.start % file_bytes + file_bytes)
            start = min(damage.start + log.framing.header_bytes, end - 1)
            return start, end - start
    if queue.newest_physical_offset < 0:
        return gap.physical_offset, gap.size
    return queue.newest_physical_offset, queue.physical_end - queue.newest_physical_offset


# records of a scan, by queue


@dataclass(frozen=True, slots=True)
class QueueRows:
    """Rows of one queue: queue offsets (int64 (n,)), entries (ENTRY (n,)), text sizes as of `QueueEnd.note_texts`."""

    topic: str
    queue_id: int
    queue_offsets: Array
    entries: Entries
    text_bytes: Array


def _rows_by_queue(scanned: ScannedRecords, levels: DelayLevels) -> Iterator[QueueRows]:
    """The rows of each queue, in log order."""
    tags = scanned.tag_hashes.astype(np.int64)
    records, headers = scanned.records, scanned.records.headers
    rows = queued_rows(scanned)
    topics = {topic: number for number, topic in enumerate(scanned.topics)}
    chosen = all_or(rows, len(headers))
    groups = queue_groups(scanned.topic_rows[chosen], records.queue_ids[chosen])
    offsets = headers["queue_offset"][chosen]
    codes = _with_due_times(scanned, tags, topics.get(SCHEDULE_TOPIC), levels)[chosen]
    if scanned.slots:
        more = np.array(_secondary_rows(scanned, set(rows.tolist()), topics), np.int64).reshape(-1, 4)
        rows = np.concatenate([rows, more[:, 0]])
        order = np.argsort(rows, kind="stable")  # in log order, a record's own queue first
        rows = rows[order]
        groups = np.concatenate([groups, queue_groups(more[:, 1], more[:, 2])])[order]
        offsets = np.concatenate([offsets, more[:, 3]])[order]
        codes = np.concatenate([codes, tags[more[:, 0]]])[order]
    names = list(topics)
    is_plain = (headers["body_size"] >= 0) & ~may_be_wrapper(headers["sys_flag"])
    text_bytes = np.where(is_plain, headers["body_size"] + 1, -1)
    for members in equal_groups(groups):
        group, wanted = int(groups[members][0]), rows[members]
        entries = np.empty(len(wanted), ENTRY)
        of = wanted if scanned.slots else all_or(wanted, len(headers))  # secondary slots repeat rows
        entries["physical_offset"], entries["size"] = headers["physical_offset"][of], headers["store_size"][of]
        entries["tags_code"] = codes[members]
        yield QueueRows(names[group >> 32], group & 0xFFFFFFFF, offsets[members], entries, text_bytes[of])


def _with_due_times(scanned: ScannedRecords, tags: Array, schedule: int | None, levels: DelayLevels) -> Array:
    """`tags`, with due times for records of the schedule's topic (number `schedule`)."""
    if schedule is None:
        return tags
    codes = tags.copy()
    for row in np.flatnonzero(scanned.topic_rows == schedule).tolist():
        store_time_ms = int(scanned.records.headers["store_time_ms"][row])
        codes[row] = tags_code(SCHEDULE_TOPIC, scanned.records.properties_of(row), store_time_ms, levels)
    return codes


def _secondary_rows(scanned: ScannedRecords, rows: set[int], topics: dict[str, int]) -> list[tuple[int, int, int, int]]:
    """(row, topic number, queue id, queue offset) for each secondary slot of `rows`. `topics` gets new topics."""
    return [
        (row, topics.setdefault(slot.topic, len(topics)), slot.queue_id, slot.queue_offset)
        for row, slots in scanned.slots.items()
        if row in rows
        for slot in slots
    ]


def _consecutive_runs(queue_offsets: Array) -> Iterator[tuple[int, int]]:
    """The ranges [start, end) of rows with consecutive `queue_offsets`."""
    breaks = np.flatnonzero(np.diff(queue_offsets) != 1) + 1
    return pairwise([0, *breaks.tolist(), len(queue_offsets)])

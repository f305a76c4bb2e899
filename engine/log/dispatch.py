"""Dispatch: from records in the commit log to consume queues and index (docs/format.md, 5).

One record, a run of records, or whatever a scan of the log found: the same entries come out, in log order, and what is
there already is not written again.

    transaction      none, commit: queues and index    prepared: index only    rollback: neither
    delayed          the tags code is when it is due
    multi-dispatch   an entry in each further queue, after its own

With a transient pool a record is readable when its write buffer is committed; until then its dispatch is held back, and
the queue offsets it took are counted on top of its queue's.

A dispatch that fails is final: the log has records to which nothing leads, until the next opening reads them again.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from engine.errors import ReadOnlyStoreError
from engine.log.commit_log import CommitLog
from engine.log.consume_queue import ENTRY
from engine.log.consume_queues import ConsumeQueues
from engine.log.delay import DelayLevels
from engine.log.index import Index
from engine.log.queue_rows import believable_runs, rows_by_queue
from engine.record.batch import Share
from engine.record.hashes import java_hashes
from engine.record.record import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK, EncodedRecord
from engine.record.scan import ScannedRecords, index_key_rows
from engine.results import NewestRecord, PutResult

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

Queue = tuple[str, int]

DISPATCH_FAILED = "consume queues and index could not follow the log (the next opening makes them anew)"


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """Records of one topic, as arrays of shape (n,), in log order.

    `shares` say which rows are whose queue's. `tags_codes` is one number when it is the same for all. `key_rows` (k,)
    rises: the row of each key; `key_hashes` (k,) its index hash (of topic#key); a row's unique key comes first.
    Plain records only: not prepared or rolled back, no multi-dispatch (those go one by one).
    """

    topic: str
    shares: Sequence[Share]
    physical_offsets: Array
    store_sizes: Array
    store_time_ms: int
    tags_codes: Array | int
    key_rows: Array
    key_hashes: Array

    @property
    def physical_end(self) -> int:
        """Where the last record ends."""
        return int(self.physical_offsets[-1] + self.store_sizes[-1])


class Dispatcher:
    """Feeds the derived data. Thread safety: one caller at a time.

    Keys of few records wait in memory, where queries see them: `Index.flush` must come before any mark that says how
    far dispatch is on disk.
    """

    def __init__(self, queues: ConsumeQueues, index: Index | None, levels: DelayLevels) -> None:
        """`index` None: messages are not indexed."""
        self.queues = queues
        self.index = index
        self.levels = levels

    def put(self, stored: PutResult, record: EncodedRecord) -> None:
        """Dispatch one record, stored there. QueueGapError, StoreFullError (not after the queue's `reserve`)."""
        topic, queue_id, queue_offset, physical_offset, size, store_time_ms, _ = stored
        keys, transaction = record.keys, record.sys_flag & TRANSACTION_MASK
        if not transaction or transaction == TRANSACTION_COMMIT:
            code = record.tags_code
            self.queues.get_or_create(topic, queue_id).append_one(queue_offset, physical_offset, size, code)
            for place in record.places:
                queue = self.queues.get_or_create(place.topic, place.queue_id)
                queue.append_one(place.queue_offset, physical_offset, size, code)
        elif transaction == TRANSACTION_ROLLBACK:
            keys = ()
        if self.index is not None:
            self.index.put(topic, keys, physical_offset, store_time_ms)

    def put_run(self, run: PlacedRun) -> None:
        """Dispatch a run. QueueGapError, StoreFullError (not after the queue's `reserve`)."""
        entries = np.empty(len(run.physical_offsets), ENTRY)
        entries["physical_offset"] = run.physical_offsets
        entries["size"] = run.store_sizes
        entries["tags_code"] = run.tags_codes
        for queue_id, queue_offset, rows in run.shares:
            self.queues.get_or_create(run.topic, queue_id).append(queue_offset, entries[rows])
        if self.index is None:
            return
        if len(run.key_rows):
            times = np.full(len(entries), run.store_time_ms)
            self._index(run.physical_offsets, times, run.key_rows, run.key_hashes)
        else:
            self.index.put(run.topic, (), run.physical_end, run.store_time_ms)  # as of one record without keys

    def _index(self, physical_offsets: Array, store_times_ms: Array, key_rows: Array, key_hashes: Array) -> None:
        assert self.index is not None
        more = not len(key_rows) or int(key_rows[-1]) < len(physical_offsets) - 1
        self.index.put_many(key_hashes, physical_offsets[key_rows], store_times_ms[key_rows], more)

    def put_scanned(self, scanned: ScannedRecords) -> list[tuple[str, int]]:
        """Dispatch what a scan of the log found; the queues that it belongs to. QueueGapError, StoreFullError: to be
        called again with the same records when the cause is mended; the index is fed when all queues are."""
        fed: list[tuple[str, int]] = []
        if not len(scanned):
            return fed
        records = scanned.records
        tags = java_hashes(records.log, *scanned.properties.tags).astype(np.int64)
        for rows in rows_by_queue(scanned, tags, self.levels):
            queue = self.queues.get_or_create(rows.topic, rows.queue_id)
            for start, end in believable_runs(rows.queue_offsets, queue.expected_offset):
                queue.append(int(rows.queue_offsets[start]), rows.entries[start:end])
            fed.append((rows.topic, rows.queue_id))
        self.index_scanned(scanned)
        return fed

    def index_scanned(self, scanned: ScannedRecords) -> None:
        """Dispatch what a scan of the log found to the index alone. StoreFullError."""
        if self.index is not None and len(scanned):
            headers = scanned.records.headers
            key_rows, key_hashes = index_key_rows(scanned)
            keeps = headers["sys_flag"][key_rows] & TRANSACTION_MASK != TRANSACTION_ROLLBACK
            places, times = headers["physical_offset"], headers["store_time_ms"]
            self._index(places, times, key_rows[keeps], key_hashes[keeps])


class Held(NamedTuple):
    """Dispatch that waits until the log can be read up to `physical_end`; `counts` are the numbers it took."""

    physical_end: int
    counts: Counter[Queue]
    dispatch: Callable[[], None]


class Feed:
    """Dispatch at once. Thread safety: call under the log's lock."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        newest: NewestRecord | None,
        *,
        appended: Callable[[str, int], None],
        broken: Callable[[str], None],
    ) -> None:
        """`newest` is the log's newest record. `appended` hears of queues with new messages; `broken` why nothing more
        may be written."""
        self._queues = dispatcher.queues
        self._dispatcher = dispatcher
        self._appended = appended
        self._broken = broken
        self._newest = (newest.physical_offset, newest.size, newest.store_time_ms) if newest else None
        self.touched: set[Queue] = set()
        """Queues that got entries since somebody emptied this set."""
        self.is_broken = False
        """Whether dispatch failed: nothing may be said any more of how far it came."""

    @property
    def newest(self) -> NewestRecord | None:
        """The newest dispatched record."""
        return NewestRecord(*self._newest) if self._newest else None

    def next_offset(self, topic: str, queue_id: int, count: int) -> int:
        """The queue offset for the first of `count` records, their entries' files made. StoreFullError."""
        return self._queues.get_or_create(topic, queue_id).reserve(count)

    def put(self, stored: PutResult, record: EncodedRecord) -> None:
        """Dispatch one record, stored there. ReadOnlyStoreError: that failed."""
        try:
            self._dispatcher.put(stored, record)
        except BaseException as error:
            raise self._stop(error) from error
        topic, queue_id, _, physical_offset, size, store_time_ms, _ = stored
        self._newest = (physical_offset, size, store_time_ms)
        self.touched.add((topic, queue_id))
        for place in record.places:
            self.touched.add((place.topic, place.queue_id))
            self._appended(place.topic, place.queue_id)
        self._appended(topic, queue_id)

    def put_run(self, run: PlacedRun) -> None:
        """Dispatch a run, which is not empty. ReadOnlyStoreError: that failed."""
        try:
            self._dispatcher.put_run(run)
        except BaseException as error:
            raise self._stop(error) from error
        self._newest = (int(run.physical_offsets[-1]), int(run.store_sizes[-1]), run.store_time_ms)
        for share in run.shares:
            self.touched.add((run.topic, share.queue_id))
            self._appended(run.topic, share.queue_id)

    def _stop(self, error: BaseException) -> BaseException:
        """Whatever goes wrong in dispatch stops the store; what to raise."""
        reason = f"{DISPATCH_FAILED}: {error!r}"
        log.error("%s", reason, exc_info=error)
        self.is_broken = True
        self._broken(reason)
        return ReadOnlyStoreError(reason) if isinstance(error, Exception) else error.with_traceback(None)


class HeldFeed(Feed):
    """Dispatch when the log's write buffer is committed. Thread safety: call under the log's lock."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        newest: NewestRecord | None,
        log: CommitLog,
        *,
        appended: Callable[[str, int], None],
        broken: Callable[[str], None],
    ) -> None:
        super().__init__(dispatcher, newest, appended=appended, broken=broken)
        self._log = log
        self._held: deque[Held] = deque()
        self._taken: Counter[Queue] = Counter()

    def next_offset(self, topic: str, queue_id: int, count: int) -> int:
        """As `Feed.next_offset`, behind the numbers that are taken already."""
        taken = self._taken[topic, queue_id]
        return self._queues.get_or_create(topic, queue_id).reserve(taken + count) + taken

    def put(self, stored: PutResult, record: EncodedRecord) -> None:
        """Hold one record's dispatch back."""
        counts = Counter({(stored.topic, stored.queue): 1})
        counts.update((place.topic, place.queue_id) for place in record.places)
        self._hold(stored.physical_end, counts, lambda: super(HeldFeed, self).put(stored, record))

    def put_run(self, run: PlacedRun) -> None:
        """Hold a run's dispatch back."""
        counts = Counter({(run.topic, share.queue_id): share.size for share in run.shares})
        self._hold(run.physical_end, counts, lambda: super(HeldFeed, self).put_run(run))

    def _hold(self, physical_end: int, counts: Counter[Queue], dispatch: Callable[[], None]) -> None:
        self._taken.update(counts)
        self._held.append(Held(physical_end, counts, dispatch))

    def committed(self) -> None:
        """Dispatch what can be read by now, unless dispatch has failed. ReadOnlyStoreError: it fails now."""
        readable_end = self._log.readable_end
        while not self.is_broken and self._held and self._held[0].physical_end <= readable_end:
            held = self._held.popleft()
            held.dispatch()
            self._taken -= held.counts

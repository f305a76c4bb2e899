"""Dispatch: from records that a writer appends to consume queues and index (docs/format.md, 5).

    transaction      none, commit: queues and index    prepared: index only    rollback: neither
    delayed          the tags code is the due time

A scan's records make the same entries and keys (`engine.derived.derived`). If a writer's dispatch fails, the store
takes no more writes: records without entries stay in the log until the next opening dispatches them.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.errors import ReadOnlyStoreError
from engine.log.entries import ENTRY
from engine.record.batch import Share
from engine.record.kernel.append import DispatchEnd
from engine.record.kernel.encode import EncodedBatch
from engine.results import NewestRecord, PutResult

if TYPE_CHECKING:
    from engine.derived.consume_queue import ConsumeQueue
    from engine.derived.index import Index
    from engine.log.commit_log import CommitLog

log = logging.getLogger(__name__)

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

    def note_scanned(self, queues: Sequence[ConsumeQueue], newest: NewestRecord | None) -> None:
        """Records that a scan has found, up to `newest`, are dispatched; `queues` got their entries."""
        self.touched.update(queues)
        self._newest = newest
        for queue in queues:
            self._appended(queue.topic, queue.queue_id)

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

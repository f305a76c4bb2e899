"""Feed: numbers records as they go into the log, and leads their queues and keys to them once they can be read.

With a transient pool a record is readable when its write buffer is committed; until then its dispatch is held back, and
the numbers it took are counted on top of its queue's.

Dispatch that fails is the end of it: the log knows of records to which nothing leads, until the next opening reads them
again.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from engine.errors import ReadOnlyStoreError
from engine.log.dispatch import Dispatcher, PlacedRun
from engine.log.parts import StoreParts
from engine.record.record import EncodedRecord
from engine.results import NewestRecord, PutResult

log = logging.getLogger(__name__)

Queue = tuple[str, int]


DISPATCH_FAILED = "consume queues and index could not follow the log (the next opening makes them anew)"


class Held(NamedTuple):
    """Dispatch that waits until the log can be read up to `physical_end`; `counts` are the numbers it took."""

    physical_end: int
    counts: Counter[Queue]
    dispatch: Callable[[], None]


class Feed:
    """Dispatch at once. Thread safety: call under the log's lock."""

    def __init__(
        self,
        parts: StoreParts,
        newest: NewestRecord | None,
        *,
        appended: Callable[[str, int], None],
        broken: Callable[[str], None],
    ) -> None:
        """`newest` is the log's newest record. `appended` hears of queues with new messages; `broken` why nothing more
        may be written."""
        self._queues = parts.queues
        self._dispatcher: Dispatcher = parts.dispatcher
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
        parts: StoreParts,
        newest: NewestRecord | None,
        *,
        appended: Callable[[str, int], None],
        broken: Callable[[str], None],
    ) -> None:
        super().__init__(parts, newest, appended=appended, broken=broken)
        self._log = parts.log
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

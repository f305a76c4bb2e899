"""Writing: appends messages to the log and dispatches them to queues and index.

    outside the lock   choose the queue, encode the record
    under it           assign the queue offset, reserve space for entries, append, dispatch

A put that fails stores nothing. If dispatch fails after an append, the log has records without queue entries: nothing
more is written, and the next opening adds the entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar

from msgspec.structs import replace

from engine.derived.consume_queue import ConsumeQueue
from engine.derived.consume_queues import ConsumeQueues
from engine.derived.dispatch import PlacedRun, WriteDispatcher
from engine.errors import (
    FlushFailedError,
    IllegalMessageError,
    ReadOnlyStoreError,
    StoreClosedError,
    StoreError,
    StoreFullError,
)
from engine.files.disk import disk_space
from engine.log.commit_log import CommitLog
from engine.log.delay import SCHEDULE_TOPIC, require_delay_level, scheduled, tags_code
from engine.record.batch import ENCODED_AT_ONCE, Lines, Share, encode_lines, line_bodies, shares_of
from engine.record.header import is_queued
from engine.record.kernel.append import PutEnd
from engine.record.kernel.encode import EncodedBatch
from engine.record.message import Message
from engine.record.multi_dispatch import MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from engine.record.record import RecordEncoder, encode_topic
from engine.results import PutRange, PutResult
from engine.settings.config import StoreConfig
from engine.settings.delay_levels import DelayLevels

if TYPE_CHECKING:
    from engine.derived.topic_view import TopicView

P = ParamSpec("P")
T = TypeVar("T")

STORE_PROPERTIES = (MULTI_QUEUE_OFFSET, "__CRC32#")
"""Properties that a store itself sets on a record. They are removed from messages copied from another store."""
SPECIAL_PROPERTIES = ("DELAY", MULTI_DISPATCH, *STORE_PROPERTIES)
"""Properties that change the queue or the form in which a message is stored, or forbid it."""


class Refusal:
    """The reason to refuse writes, if any. Thread safety: any thread; read `error` once."""

    def __init__(self, error: StoreError | None) -> None:
        """`error` refuses from the start: the store is only read."""
        self.error = error
        """Error for writers; None: writing is allowed."""
        self.flush_failure: FlushFailedError | None = None
        """The failed flush that ended durability; None: there was none."""
        self.look_again: Callable[[], None] = lambda: None
        """Checks whether a full disk has space again: see `note_full_disk`."""
        self._stopped = error
        self._full_disk: StoreError | None = None
        self._no_space: StoreFullError | None = None
        self._flush_fails: Callable[[FlushFailedError], None] = lambda error: None

    @property
    def reason(self) -> str | None:
        """`error` as a sentence."""
        self._look()
        error = self.error
        return error.reason if isinstance(error, ReadOnlyStoreError) else str(error) if error is not None else None

    @property
    def is_final(self) -> bool:
        """Whether writing stays refused until the store is opened again."""
        return self._stopped is not None

    def require_none(self) -> None:
        """Raise `error`, if there is one."""
        self._look()
        if self.error is not None:
            raise self.error.with_traceback(None)

    def _look(self) -> None:
        if self.error is not None and self.error is self._full_disk:
            self.look_again()

    def stop(self, reason: str) -> None:
        """Refuse writes from now on; the first reason is kept."""
        self._set(self._stopped or ReadOnlyStoreError(reason))

    def close(self) -> None:
        """Refuse with StoreClosedError, even if there was another reason."""
        self._set(StoreClosedError())

    def note_flush_failure(self, error: FlushFailedError) -> None:
        """Stop writing after a failed flush: written bytes may not be on disk."""
        is_first = self.flush_failure is None
        self.flush_failure = self.flush_failure or error
        self.stop(str(error))
        if is_first:
            self._flush_fails(error)

    def when_flush_fails(self, call: Callable[[FlushFailedError], None]) -> None:
        """Call `call` with the first failed flush; at once, if there was one."""
        self._flush_fails = call
        if self.flush_failure is not None:
            call(self.flush_failure)

    def note_full_disk(self, reason: str | None) -> None:
        """Refuse writes because the disk is too full; None: allow them again."""
        self._full_disk = ReadOnlyStoreError(reason) if reason is not None else None
        self._set(self._stopped)

    @property
    def no_space_reason(self) -> str | None:
        """Reason why the newest put found no space, while that lasts; None: it found space."""
        error = self._no_space
        if error is not None and disk_space(error.path.parent)[0] < error.needed_bytes:
            return f"no space for {error.path.name} ({error.needed_bytes:,} bytes) in {error.path.parent}"
        return None

    def note_no_space(self, error: StoreFullError | None) -> None:
        """Record that a put found no space for a file; None: it found space."""
        self._no_space = error

    def _set(self, stopped: StoreError | None) -> None:
        self._stopped = stopped
        self.error = stopped or self._full_disk


def _noting_space(method: Callable[Concatenate[Writer, P], T]) -> Callable[Concatenate[Writer, P], T]:
    """Decorator for methods that may need a new file: records whether there was space."""

    @wraps(method)
    def noting(writer: Writer, /, *arguments: P.args, **named: P.kwargs) -> T:
        try:
            stored = method(writer, *arguments, **named)
        except StoreFullError as error:
            writer.refusal.note_no_space(error)
            raise
        writer.refusal.note_no_space(None)
        return stored

    return noting


class Writer(PutEnd):
    """Writes a store. Thread safety: any thread; appends take turns under the log's lock."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        dispatcher: WriteDispatcher,
        topics: TopicView,
        levels: DelayLevels,
        config: StoreConfig,
        refusal: Refusal,
    ) -> None:
        """`refusal` is checked before each write."""
        encoder = RecordEncoder(config.store_host, config.max_message_bytes)
        unwritable = topics.table.unwritable
        super().__init__(
            encoder, log, log.lock, queues.by_key, dispatcher, config.clock, refusal, SPECIAL_PROPERTIES, unwritable
        )
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._topics = topics
        self._levels = levels
        self._config = config
        self.refusal = refusal
        self._encoder = encoder
        self._turns: dict[str, int] = {}

    # one message

    def _put_unusual(self, message: Message, queue_id: int | None, queue: ConsumeQueue | None) -> PutResult:
        """Store, or refuse, one message that has special properties or whose queue was not used before."""
        self._topics.require_writable(message.topic)
        if self.is_special(message.properties):
            return self._put_special([message], queue_id)[0]
        topic = message.topic
        if queue_id is None:
            (queue_id,) = self._next_queue_ids(topic, 1)
            queue = self._queues.get(topic, queue_id)
        elif queue is None:
            queue = self._queues.get(topic, queue_id)
            if queue is None and not self._topics.has_queue(topic, queue_id):
                self._require_queue(topic, queue_id)
        return self.put_record(message, self._encoder.encode(message, queue_id, self._config.clock()), queue_id, queue)

    @_noting_space
    def _append(self, message: Message, record: EncodedBatch, queue: ConsumeQueue | None, queue_id: int) -> PutResult:
        """Store and dispatch one record; makes its queue if necessary."""
        queue_offset = 0
        if not is_queued(message.sys_flag):
            queue = None
        else:
            if queue is None or queue.is_stale:
                queue = self._queues.get_or_create(message.topic, queue_id)
            queue_offset = queue.reserve(1)
        physical_offset, store_time_ms = self._log.append(record, queue_offset)
        place = (message.topic, queue_id, queue_offset, physical_offset)
        stored = PutResult(*place, record.size, store_time_ms, record.store_host)
        self._dispatcher.put(queue, stored, record)
        return stored

    # queues

    def _next_queue_ids(self, topic: str, count: int) -> list[int]:
        """Queue ids for the next `count` messages without a queue, in turn; of an unknown topic its future ones."""
        queue_ids = self._topics.writable_ids(topic)
        if not queue_ids:
            if self._topics.has(topic):
                raise IllegalMessageError(f"topic {topic!r} has no queue that may be written")
            queue_ids = list(range(self._config.default_queues))
        turn = self._turns.get(topic, 0)
        self._turns[topic] = turn + count
        return [queue_ids[(turn + row) % len(queue_ids)] for row in range(min(count, len(queue_ids)))]

    def _require_queue(self, topic: str, queue_id: int) -> None:
        """TopicNotFoundError: the queue does not exist, and would not after its topic was made."""
        if self._topics.has(topic) or not 0 <= queue_id < self._config.default_queues:
            self._topics.require_queue(topic, queue_id)

    def _make_topic(self, topic: str) -> None:
        """Make an unknown topic, as a broker does. Called after all checks, so that a refused put makes no topic."""
        if not self._topics.has(topic):
            self.refusal.require_none()
            encode_topic(topic)
            self._topics.ensure(topic, self._config.default_queues)

    # many messages

    def put_batch(
        self, messages: Sequence[Message], queue_id: int | None, queue: ConsumeQueue | None = None
    ) -> PutRange:
        """Store messages of one topic, all or none. `queue` as of `put`."""
        if not messages:
            return self._nothing("", queue_id)
        topic, now_ms = messages[0].topic, self._config.clock()
        self._topics.require_writable(topic)
        batches = [self._encoder.encode_batch(some, now_ms, SPECIAL_PROPERTIES) for some in _runs(messages)]
        if sum(map(len, batches)) < len(messages):
            return _range_of(self._put_special(messages, queue_id))
        if any(messages[row].topic != topic for row in range(0, len(messages), ENCODED_AT_ONCE)):
            raise IllegalMessageError("the messages of a batch have different topics")
        queue_ids = [queue.queue_id] if queue is not None else self._targets(topic, queue_id, len(messages))
        return self._put_encoded(topic, batches, len(messages), queue_ids, queue)

    def put_lines(
        self,
        topic: str,
        lines: Lines,
        queue_id: int | None,
        keys: Sequence[str],
        tags: str,
        properties: Mapping[str, str],
        queue: ConsumeQueue | None = None,
    ) -> PutRange:
        """Store each line, all or none. `queue` as of `put`."""
        self._topics.require_writable(topic)
        if properties and self.is_special(properties):
            messages = [Message(topic, body, keys, tags, properties) for body in line_bodies(lines)]
            return self.put_batch(messages, queue_id, queue)
        sample = Message(topic, b"", keys, tags, properties)
        batches = encode_lines(self._encoder, sample, lines, self._config.clock())
        count = sum(map(len, batches))
        if not count:
            return self._nothing(topic, queue_id)
        queue_ids = [queue.queue_id] if queue is not None else self._targets(topic, queue_id, count)
        return self._put_encoded(topic, batches, count, queue_ids, queue)

    def _targets(self, topic: str, queue_id: int | None, count: int) -> list[int]:
        """Queue ids for `count` messages, in turn."""
        if queue_id is None:
            return self._next_queue_ids(topic, count)
        if self._queues.get(topic, queue_id) is None and not self._topics.has_queue(topic, queue_id):
            self._require_queue(topic, queue_id)
        return [queue_id]

    @_noting_space
    def _put_encoded(
        self,
        topic: str,
        batches: Sequence[EncodedBatch],
        count: int,
        queue_ids: Sequence[int],
        queue: ConsumeQueue | None,
    ) -> PutRange:
        """Store encoded batches as one: row r of `count` goes to queue_ids[r % len(queue_ids)]. `queue`: handle of the
        only queue, if it was looked up already."""
        parts = [part for batch in batches if len(batch) for part in batch.cut(self._log.largest_bytes)]
        if (queue is None or queue.is_stale) and self._queues.get(topic, queue_ids[0]) is None:
            self._make_topic(topic)
        with self._log.lock:
            self.refusal.require_none()
            distributed = self._distribute(topic, parts, count, queue_ids, queue)
            firsts = [part.shares[0].queue_offset for part in distributed]
            stored = (
                [self._log.append(distributed[0], firsts[0])]
                if len(distributed) == 1
                else self._log.append_all(distributed, firsts)
            )
            for part, (physical_offset, store_time_ms) in zip(distributed, stored, strict=True):
                self._dispatcher.put_run(part.placed(topic, physical_offset, store_time_ms))
        self.messages += count
        self.bytes += sum(part.size for part in parts)
        physical_offset, store_time_ms = stored[0]
        end = stored[-1][0] + parts[-1].size
        return PutRange(topic, queue_ids[0], firsts[0], count, physical_offset, end, store_time_ms)

    def _distribute(
        self,
        topic: str,
        parts: Sequence[EncodedBatch],
        count: int,
        queue_ids: Sequence[int],
        known: ConsumeQueue | None,
    ) -> list[_DistributedBatch]:
        """Each part with its shares of the queues; makes the files for all `count` entries."""
        turns = len(queue_ids)
        queues: dict[int, ConsumeQueue] = {}
        offsets = []
        for turn, queue_id in enumerate(queue_ids):
            queue = known
            if queue is None or queue.is_stale:
                queue = self._queues.get_or_create(topic, queue_id)
            queues[queue_id] = queue
            offsets.append(queue.reserve(len(range(turn, count, turns))))
        distributed, start = [], 0
        for part in parts:
            end = start + len(part)
            distributed.append(_DistributedBatch(part, queues, shares_of(queue_ids, offsets, start, end)))
            start = end
        return distributed

    def _nothing(self, topic: str, queue_id: int | None) -> PutRange:
        end = self._log.readable_end
        return PutRange(topic, queue_id or 0, 0, 0, end, end, self._log.last_store_time_ms)

    # delayed messages, transactions in a batch, properties of another store

    @_noting_space
    def _put_special(self, messages: Sequence[Message], queue_id: int | None) -> list[PutResult]:
        """Store messages one record each, all or none, in the queues that their properties require."""
        topic = messages[0].topic
        if any(message.topic != topic for message in messages):
            raise IllegalMessageError("the messages of a batch have different topics")
        queue_ids = self._targets(topic, queue_id, len(messages))
        routed = [self._route(message, queue_ids[row % len(queue_ids)]) for row, message in enumerate(messages)]
        self._make_topic(topic)
        records = [one.record for one in routed]
        with self._log.lock:
            self.refusal.require_none()
            self._log.require_unforged(records)
            taken: Counter[ConsumeQueue] = Counter()
            numbers = [self._number(one, taken) for one in routed]
            stored = self._log.append_all(records, [queue_offset for _, queue_offset in numbers])
            results = []
            for one, (queue, queue_offset), (physical_offset, store_time_ms) in zip(
                routed, numbers, stored, strict=True
            ):
                message, queue_id, record = one
                place = (message.topic, queue_id, queue_offset, physical_offset)
                result = PutResult(*place, record.size, store_time_ms, record.store_host)
                if message.topic == SCHEDULE_TOPIC:
                    record.tags_code = tags_code(SCHEDULE_TOPIC, message.properties, store_time_ms, self._levels)
                self._dispatcher.put(queue, result, record)
                results.append(result)
        self.messages += len(results)
        self.bytes += sum(result.store_size for result in results)
        return results

    def _route(self, message: Message, queue_id: int) -> _Routed:
        """Encode a message for the queue that its properties require. Changes nothing: the batch may be refused."""
        require_delay_level(message.properties)
        if self._config.multi_dispatch and message.properties.get(MULTI_DISPATCH):
            raise IllegalMessageError(
                f"{MULTI_DISPATCH}: with enableMultiDispatch=true this property puts a message into further queues,"
                " which are only read here: publish it through a broker, or leave the property out"
            )
        if any(name in message.properties for name in STORE_PROPERTIES):
            kept = {name: text for name, text in message.properties.items() if name not in STORE_PROPERTIES}
            message = replace(message, properties=kept)
        message, queue_id = scheduled(message, queue_id, self._levels)
        return _Routed(message, queue_id, self._encoder.encode(message, queue_id, self._config.clock()))

    def _number(self, routed: _Routed, taken: Counter[ConsumeQueue]) -> tuple[ConsumeQueue | None, int]:
        """The queue of a message (None: it gets no queue entry), and its queue offset; `taken` counts the offsets
        assigned in this batch."""
        message, queue_id, _ = routed
        if not is_queued(message.sys_flag):
            return None, 0
        queue = self._queues.get_or_create(message.topic, queue_id)
        before = taken[queue]
        taken[queue] += 1
        return queue, queue.reserve(before + 1) + before


class _Routed(NamedTuple):
    """A message as it will be stored, with its encoded record."""

    message: Message
    queue_id: int
    record: EncodedBatch


class _DistributedBatch(NamedTuple):
    """A batch for the log, with each queue's share of it."""

    batch: EncodedBatch
    queues: dict[int, ConsumeQueue]
    shares: list[Share]

    @property
    def buffer(self) -> memoryview:
        return self.batch.buffer

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.batch)

    @property
    def names_magic(self) -> bool:
        """Whether a body may contain a record's magic code."""
        return self.batch.names_magic

    def place(self, _queue_offset: int, physical_offset: int, store_time_ms: int) -> None:
        """Fill in physical offset and store time; each share has its own queue offset."""
        self.batch.distribute(self.shares)
        self.batch.place(None, physical_offset, store_time_ms)

    def placed(self, topic: str, physical_offset: int, store_time_ms: int) -> PlacedRun:
        """The stored batch as dispatch takes it."""
        return PlacedRun(topic, self.queues, self.shares, self.batch, physical_offset, store_time_ms)


def _runs(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yields `rows` in runs of up to ENCODED_AT_ONCE."""
    if len(rows) <= ENCODED_AT_ONCE:
        yield rows
        return
    for start in range(0, len(rows), ENCODED_AT_ONCE):
        yield rows[start : start + ENCODED_AT_ONCE]


def _range_of(results: Sequence[PutResult]) -> PutRange:
    first, last = results[0], results[-1]
    end = last.physical_end
    place = (first.topic, first.queue, first.queue_offset)
    return PutRange(*place, len(results), first.physical_offset, end, first.store_time_ms)

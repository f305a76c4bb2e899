"""Reading: messages by queue offset, by physical offset, by key and by time, one at a time or as arrays.

Nothing is believed that the log does not confirm: an entry of a consume queue leads to a record, and the record must
say that it stands there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from engine.errors import (
    ExpiredMessageError,
    MessageNotFoundError,
    ReadError,
    RetiredFileError,
    UnreadableRangeError,
)
from engine.haste import require_time
from engine.log.consume_queue import ENTRY, ConsumeQueue, Entries
from engine.log.delay import SCHEDULE_TOPIC
from engine.log.entries import LAST_EXTENSION_CODE
from engine.log.parts import StoreParts
from engine.log.queue_records import QueueRecords, runs_by_file
from engine.log.topics import TopicView
from engine.read.blocks import Block, BlockReader, Bodies
from engine.record.byte_columns import SliceColumn, pack_slices
from engine.record.columns import Columns, find_properties, property_texts, read_columns, topics_of
from engine.record.compression import BodySizes
from engine.record.hashes import java_hashes
from engine.record.header import is_queued
from engine.record.inner_batch import may_be_wrapper
from engine.record.located import HEADER, LocatedRecords, locate, read_sizes
from engine.record.message import StoredMessage, decompressed_body
from engine.record.message_run import message_run
from engine.record.properties import KEYS, TAGS, UNIQUE_KEY, find_property, split_keys
from engine.results import QueueBounds

Array = np.ndarray[Any, Any]

REMEMBERED_KEYS = 10_000
"""Of so many keys the newest message is known while the log stays as it is."""
SINGLE_ROWS = 16
"""How many messages are read one by one before more are read at once: four times as many each time, up to RUN_ROWS."""
RUN_ROWS = 8192
SINGLE_CANDIDATES = 64
"""So many records that the index names for a key are decoded one by one, before CANDIDATE_ROWS at a time are looked
over together."""
CANDIDATE_ROWS = 1024
HEADER_ROWS = 1024
"""As COLUMN_ROWS, of headers where there are batches: of their messages copies are made meanwhile."""
COLUMN_ROWS = 8192
"""Rows that are made into columns at once, so that what lies in between stays in the processor's caches."""


class NewestByKey(NamedTuple):
    """Where the newest message of each (topic, key) lies, -1 for none, with `log_end` and `index_end` as they were."""

    log_end: int
    index_end: int
    physical_offsets: dict[tuple[str, str], int]


NOTHING_KNOWN = NewestByKey(-2, -2, {})
"""Says nothing of any log: the ends of one that is empty are 0 and -1."""


class Reader:
    """Reads a store. Thread safety: any thread, no lock."""

    def __init__(self, parts: StoreParts, topics: TopicView, body_limit_bytes: int, *, remember: bool) -> None:
        """`body_limit_bytes` bounds what a compressed body may become. `remember` newest messages of keys while the log
        stays as it is: right when the index never lags behind it."""
        self._parts = parts
        self._log = parts.log
        self._framing = parts.log.framing
        self._queues = parts.queues
        self._index = parts.index
        self._topics = topics
        self._body_limit_bytes = body_limit_bytes
        self._remember = remember
        self.records = QueueRecords(parts.log, parts.queues, body_limit_bytes)
        self._blocks = BlockReader(parts.log, body_limit_bytes, self.records)
        self._newest = NOTHING_KNOWN
        self.body_sizes = BodySizes()
        """Of compressed bodies, for everybody who decompresses them."""
        self.messages = 0
        self.bytes = 0
        self.queries = 0

    # one message

    def get(self, topic: str, queue_id: int, queue_offset: int) -> StoredMessage:
        """The message at a queue offset, with all that can be checked checked."""
        queue = self._queues.get(topic, queue_id)
        try:
            entry = queue.entry(queue_offset) if queue is not None else None
        except (UnreadableRangeError, RetiredFileError):
            entry = None  # retention took the file between two looks
        if entry is None:
            raise self._absent(topic, queue_id, queue_offset)
        assert queue is not None
        message = self.records.get(queue, queue_offset, entry)
        self.messages += 1
        self.bytes += entry[1]
        return message

    def _absent(self, topic: str, queue_id: int, queue_offset: int) -> Exception:
        self._topics.require_queue(topic, queue_id)
        bounds = self.bounds(topic, queue_id)
        if 0 <= queue_offset < bounds.min_offset:
            return ExpiredMessageError(topic, queue_id, queue_offset, bounds.min_offset)
        return MessageNotFoundError(topic, queue_id, queue_offset)

    def at(self, physical_offset: int) -> StoredMessage:
        """The message whose record starts at a physical offset."""
        return self.records.at(physical_offset)

    def known_body_size(self, message: StoredMessage) -> int | None:
        """Bytes of a message's body, where that takes no decompressing."""
        if not message.is_compressed:
            return message.body_size
        size = self.body_sizes.get(message.physical_offset, message.body_crc)
        return None if size == -1 else size

    def body_of(self, message: StoredMessage) -> memoryview:
        """A message's body, decompressed again where it is compressed."""
        if not message.is_compressed:
            return message.body
        body = decompressed_body(message, self._body_limit_bytes)
        self.body_sizes.remember(message.physical_offset, message.body_crc, len(body))
        return body

    # a queue

    def bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """Oldest and next queue offset."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return QueueBounds(0, 0)
        max_offset = queue.max_offset
        return QueueBounds(min(queue.min_offset, max_offset), max_offset)

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, None when it has no entry yet. TopicNotFoundError."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            self._topics.require_queue(topic, queue_id)
        return queue

    def read(self, topic: str, queue_id: int, start: int, count: int | None) -> Iterator[StoredMessage]:
        """Messages from `start` on, damaged ones left out. Reads ahead, the further the longer it is used."""
        self._topics.require_queue(topic, queue_id)
        return chain.from_iterable(self._runs(topic, queue_id, start, count))

    def _runs(self, topic: str, queue_id: int, start: int, count: int | None) -> Iterator[Iterable[StoredMessage]]:
        bounds = self.bounds(topic, queue_id)
        end = bounds.max_offset if count is None else min(bounds.max_offset, start + count)
        first, rows = max(start, bounds.min_offset), SINGLE_ROWS
        yield self._one_by_one(topic, queue_id, first, min(first + rows, end))
        while (first := first + rows) < end:
            rows = min(rows * 4, RUN_ROWS)
            yield from self._run(topic, queue_id, first, min(first + rows, end))

    def _one_by_one(self, topic: str, queue_id: int, first: int, end: int) -> Iterator[StoredMessage]:
        for queue_offset in range(first, end):
            try:
                yield self.get(topic, queue_id, queue_offset)
            except ReadError:
                continue

    def _run(self, topic: str, queue_id: int, first: int, end: int) -> Iterator[Iterable[StoredMessage]]:
        """The messages at [first, end): made together, but for those that need a look of their own."""
        for log, base, places_of in runs_by_file(self._log.files, self._entries_there(topic, queue_id, first, end)):
            records = locate(log, places_of - base, places_of, self._framing)
            sizes = records.headers["store_size"]
            for messages, is_good in message_run(records, base, topic, queue_id, first):
                part, sizes = sizes[: len(is_good)], sizes[len(is_good) :]
                if base < self._log.min_offset:  # retention has taken the file meanwhile
                    yield self._one_by_one(topic, queue_id, first, first + len(is_good))
                else:
                    self.messages += int(np.count_nonzero(is_good))
                    self.bytes += int(part[is_good].sum())
                    yield messages if is_good.all() else self._completed(messages, is_good, topic, queue_id, first)
                first += len(is_good)
        yield self._one_by_one(topic, queue_id, first, end)

    def _entries_there(self, topic: str, queue_id: int, first: int, end: int) -> Entries:
        """Entries from `first` on, as far as the queue can tell them at once."""
        queue = self._queues.get(topic, queue_id)
        try:
            return queue.entries(first, end - first) if queue is not None else np.empty(0, ENTRY)
        except (UnreadableRangeError, RetiredFileError):
            return np.empty(0, ENTRY)  # retention took the file between two looks

    def _completed(
        self, messages: Iterable[StoredMessage], is_good: Array, topic: str, queue_id: int, first: int
    ) -> Iterator[StoredMessage]:
        """`messages` are those of the good rows from `first` on; the others as `get` finds them."""
        made = iter(messages)
        for queue_offset, is_made in enumerate(is_good.tolist(), first):
            if is_made:
                yield next(made)
            else:
                yield from self._one_by_one(topic, queue_id, queue_offset, queue_offset + 1)

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> Entries:
        """Entries of the queue within its bounds."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return np.empty(0, ENTRY)
        first = max(start, queue.min_offset)
        return self._resolved(queue.entries(first, max(start + count - first, 0)))

    def _resolved(self, entries: Entries) -> Entries:
        """The entries, with the records' own tags codes where a broker put addresses in an extension; 0, as of messages
        without tags, where these are delayed or can't be read."""
        codes = entries["tags_code"].astype(np.int64)
        rows = np.flatnonzero(codes <= LAST_EXTENSION_CODE)
        if not len(rows):
            return entries
        codes[rows] = 0
        done = 0
        for log, base, places_of in runs_by_file(self._log.files, entries[rows]):
            records = locate(log, places_of - base, places_of)
            hashes = java_hashes(records.log, *find_properties(records, [TAGS])[0]).astype(np.int64)
            topics, topic_rows = topics_of(records)
            is_delayed = np.array([topic == SCHEDULE_TOPIC for topic in topics], bool)[topic_rows]
            known = records.headers["ok"] & ~is_delayed
            codes[rows[done : done + len(places_of)][known]] = hashes[known]
            done += len(places_of)
        entries = entries.copy()
        entries["tags_code"] = codes
        return entries

    def headers(self, topic: str, queue_id: int, start: int, count: int) -> Array:
        """HEADER (n,), row i for queue offset start + i; not `ok` what is damaged or expired."""
        queue = self._queue(topic, queue_id)
        end = min(start + count, queue.max_offset) if queue is not None else start
        found = np.zeros(max(end - start, 0), HEADER)
        if queue is None or not len(found):
            return found
        first = min(max(start, queue.min_offset), end)
        most_rows = HEADER_ROWS if self.records.has_batches else None
        for run in self.records.runs(queue, first, queue.entries(first, end - first), most_rows):
            row = run.first - start
            found[row : row + len(run.records)] = run.records.headers
            for alone, message in run.alone.items():
                found["physical_offset"][row + alone] = message.place
        found["queue_offset"] = np.arange(start, start + len(found))
        return found

    def record_sizes(self, topic: str, queue_id: int, start: int, count: int) -> tuple[Array, Array]:
        """Store sizes and body sizes of messages from max(start, min_offset) on, as `read_sizes` tells them."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        first = max(start, queue.min_offset)
        runs = runs_by_file(self._log.files, queue.entries(first, max(start + count - first, 0)))
        found = [read_sizes(log, places - base) for log, base, places in runs]
        parts = zip((np.zeros(0, np.int64),) * 2, *found, strict=True)
        store_sizes, body_sizes = (np.concatenate(part) for part in parts)
        for row in np.flatnonzero(store_sizes == 0).tolist():
            message = self.records.alone(queue, first + row)
            if message is not None:
                store_sizes[row] = message.store_size
                body_sizes[row] = -1 if message.is_compressed else len(message.stored_body)
        return store_sizes, body_sizes

    def columns(self, topic: str, queue_id: int, start: int, count: int) -> Columns:
        """Bodies, keys and tags as arrays; rows from max(start, min_offset) on."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return Columns.concatenate([])
        first = max(start, queue.min_offset)
        parts = []
        entries = queue.entries(first, max(start + count - first, 0))
        for run in self.records.runs(queue, first, entries, COLUMN_ROWS):
            columns = read_columns(run.records, self._body_limit_bytes)
            columns.headers["queue_offset"] = np.arange(run.first, run.first + len(columns))
            self.records.note_unread(run, columns.headers["ok"])
            parts.append(columns)
        self.messages += sum(map(len, parts))
        return Columns.concatenate(parts)

    def blocks(self, topic: str, queue_id: int, start: int, count: int) -> list[Block]:
        """All that messages have, as arrays; rows from max(start, min_offset) on."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return []
        first = max(start, queue.min_offset)
        blocks = self._blocks.read(queue, first, max(start + count - first, 0))
        self.messages += sum(map(len, blocks))
        return blocks

    def bodies(self, bodies: Bodies) -> SliceColumn:
        """Bodies of a block."""
        return self._blocks.bodies(bodies)

    def offset_at(self, topic: str, queue_id: int, when_ms: int) -> int:
        """Queue offset of the first message stored at or after `when_ms`."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else queue.offset_at(when_ms, self._parts.stored_ms)

    # keys

    def query(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> list[StoredMessage]:
        """Messages with `key`, newest first."""
        self.queries += 1
        return self._with_key(topic, key, limit, lambda message: begin_ms <= message.store_time_ms <= end_ms)

    def _with_key(
        self, topic: str, key: str, limit: int, is_wanted: Callable[[StoredMessage], bool]
    ) -> list[StoredMessage]:
        """Messages with `key` that are wanted, newest first."""
        found: list[StoredMessage] = []
        oldest = max(self._log.min_offset, self._parts.deleted.until(topic))
        for physical_offset in self._likely(key, self._index.candidates(topic, key, oldest)):
            shown = (message for message in self._shown(topic, physical_offset) if message.topic == topic)
            found += [message for message in shown if carries_key(message, key) and is_wanted(message)]
            if len(found) >= limit:
                break
        return found[:limit]

    def _shown(self, topic: str, physical_offset: int) -> list[StoredMessage]:
        """The messages of the record there, newest first, as the queue shows them that leads to it, else as they
        are."""
        try:
            messages = self.records.messages_at(physical_offset)
        except ReadError:
            messages = []
        newest = messages[-1] if messages else None
        if newest is not None and newest.topic == topic and (not is_in_queue(newest) or self._is_led_to(newest)):
            return messages[::-1]
        mended = self.records.led_to(topic, physical_offset)
        return [mended] if mended is not None else messages[::-1]

    def _is_led_to(self, message: StoredMessage) -> bool:
        """Whether the message is where it says."""
        queue = self._queues.get(message.topic, message.queue_id)
        try:
            entry = queue.entry(message.queue_offset) if queue is not None else None
        except ReadError:
            return False
        return entry is not None and entry[0] == message.physical_offset

    def _likely(self, key: str, candidates: Iterator[int]) -> Iterator[int]:
        """Those of `candidates` whose record may have the key. Many may only share its hash: they are looked over
        together, without a record being decoded."""
        yield from islice(candidates, SINGLE_CANDIDATES)
        while batch := list(islice(candidates, CANDIDATE_ROWS)):
            require_time()
            entries = np.zeros(len(batch), ENTRY)
            entries["physical_offset"] = sorted(batch)
            for log, base, places_of in reversed(list(runs_by_file(self._log.files, entries))):
                records = locate(log, places_of - base, places_of, self._framing)
                rows = rows_naming(records, key)
                batches = np.flatnonzero(may_be_wrapper(records.headers["sys_flag"]))
                yield from places_of[np.union1d(rows, batches)][::-1].tolist()

    def key_places(self, topic: str, key: str) -> Iterator[Array]:
        """Queue ids and queue offsets (int64 (n, 2)) of messages with `key` that their queue leads to, some thousand at
        a time, newest ones first. A message may come twice."""
        self.queries += 1
        oldest = max(self._log.min_offset, self._parts.deleted.until(topic))
        candidates = self._index.candidates(topic, key, oldest, distinct=False)
        while some := list(islice(candidates, COLUMN_ROWS)):
            entries = np.zeros(len(some), ENTRY)
            entries["physical_offset"] = np.sort(np.array(some, np.int64))
            for log, base, places_of in runs_by_file(self._log.files, entries):
                records = locate(log, places_of - base, places_of, self._framing)
                alone = ~records.headers["ok"] | may_be_wrapper(records.headers["sys_flag"])
                yield _places_with_key(records.take(~alone), topic, key)
                shown = [one for place in places_of[alone].tolist() for one in self._shown(topic, place)]
                inside = [
                    (one.queue_id, one.queue_offset)
                    for one in shown
                    if one.topic == topic and is_in_queue(one) and carries_key(one, key)
                ]
                yield np.array(inside, np.int64).reshape(-1, 2)

    def newest_with_key(self, topic: str, key: str) -> StoredMessage | None:
        """The newest message with `key` that its queue leads to; looked up again only when the log has grown.
        TakesLongError in haste: many others have a key of the same hash."""
        self.queries += 1
        newest = self._newest_by_key()
        known = newest.get((topic, key))
        if known is not None:
            return self.at(known) if known >= self._log.min_offset else None
        found = self._with_key(topic, key, 1, is_in_queue)
        if self._remember and len(newest) < REMEMBERED_KEYS:
            newest[topic, key] = found[0].physical_offset if found else -1
        return found[0] if found else None

    def _newest_by_key(self) -> dict[tuple[str, str], int]:
        """What is known of keys in the log as it is now. Threads that come at once may each begin again: no harm."""
        log_end, index_end, known = self._newest
        now = self._log.readable_end, self._index.last_physical_offset
        if now != (log_end, index_end):
            known = {}
            self._newest = NewestByKey(*now, known)
        return known

    def forget_keys(self) -> None:
        """A topic was deleted: its keys lead nowhere."""
        self._newest = NOTHING_KNOWN

    def newest_keys(self, topic: str, limit: int) -> list[str]:
        """Keys of the topic's newest messages, sorted: each queue's newest, `limit` messages in all."""
        queue_ids = self._topics.queue_ids(topic)
        newest: list[Array] = [np.empty(0, ENTRY)]
        for queue_id in queue_ids:
            bounds = self.bounds(topic, queue_id)
            start = max(bounds.min_offset, bounds.max_offset - limit)
            newest.append(self.entries(topic, queue_id, start, bounds.max_offset - start).copy())
        entries = np.concatenate(newest)
        entries = entries[np.argsort(entries["physical_offset"], kind="stable")][-limit:]
        keys: set[str] = set()
        for log, base, places_of in runs_by_file(self._log.files, entries):
            records = locate(log, places_of - base, places_of, self._framing)
            ((starts, sizes),) = find_properties(records, [KEYS])
            is_batch = may_be_wrapper(records.headers["sys_flag"])
            for place in np.unique(places_of[is_batch]).tolist():
                for message in self._shown(topic, place):
                    keys.update(message.keys)
            sizes = np.where(is_batch, 0, sizes)
            for first, size in zip(starts[sizes > 0].tolist(), sizes[sizes > 0].tolist(), strict=True):
                keys.update(split_keys(log[first : first + size].tobytes().decode(errors="replace")))
        return sorted(keys)


def rows_naming(records: LocatedRecords, key: str) -> Array:
    """Rows whose KEYS or UNIQ_KEY hold `key` between spaces or ends, int64 (k,): those that carry it are among them."""
    if "\ufffd" in key:  # stands for bytes that are no UTF-8, too
        return np.arange(len(records))
    wanted = b" %b " % key.encode("utf-8", "surrogatepass")
    rows: set[int] = set()
    for starts, sizes in find_properties(records, [KEYS, UNIQUE_KEY]):
        offsets, packed = pack_slices(records.log, starts, sizes, lead=ord(" "))
        text = packed.tobytes() + b" "
        at = text.find(wanted)
        while at >= 0:
            row = int(np.searchsorted(offsets, at, side="right")) - 1
            rows.add(row)
            at = text.find(wanted, int(offsets[row + 1])) if row + 1 < len(records) else -1
    return np.array(sorted(rows), np.int64)


def is_in_queue(message: StoredMessage) -> bool:
    """Whether its queue leads to it: not to transactions that are prepared or rolled back."""
    return is_queued(message.sys_flag)


def _places_with_key(records: LocatedRecords, topic: str, key: str) -> Array:
    """Queue ids and queue offsets of the records of that topic that carry `key`."""
    records = records.take(np.flatnonzero(records.headers["ok"] & is_queued(records.headers["sys_flag"])))
    records = records.take(rows_naming(records, key))
    topics, topic_rows = topics_of(records)
    keys, unique_keys = property_texts(records, [KEYS, UNIQUE_KEY])
    carry = [key == unique or key in split_keys(own) for own, unique in zip(keys, unique_keys, strict=True)]
    rows = np.array([row for row in np.flatnonzero(carry).tolist() if topics[topic_rows[row]] == topic], np.int64)
    return np.stack([records.queue_ids[rows].astype(np.int64), records.headers["queue_offset"][rows]], axis=1)


def carries_key(message: StoredMessage, key: str) -> bool:
    """Whether `key` is one of the message's keys, or its unique key; the index itself knows only hashes."""
    wanted, properties = key.encode("utf-8", "surrogatepass"), message.raw_properties
    keys = find_property(properties, KEYS)
    if keys == wanted and " " not in key:
        return bool(key)
    if "\ufffd" in key:  # stands for bytes that are no UTF-8, too
        return key in message.keys or key == message.unique_key
    if keys is not None and key and " " not in key and b" %b " % wanted in b" %b " % keys:  # there may be thousands
        return True
    return find_property(properties, UNIQUE_KEY) == wanted

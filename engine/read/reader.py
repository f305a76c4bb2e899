"""Reading: messages by physical offset and by key. By queue offset: `engine.queue`.

Derived data is checked against the log: the record of a consume-queue entry must have the entry's topic, queue and
queue offset.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.deadline import WouldBlock, check_deadline
from engine.derived.deleted_topics import DeletedTopics
from engine.derived.queue_records import QueueRecords
from engine.errors import ReadError
from engine.log.commit_log import CommitLog
from engine.log.entries import ENTRY, runs_by_file
from engine.read.blocks import BlockReader, Bodies
from engine.record.byte_columns import SliceColumn
from engine.record.columns import find_properties, property_texts, topics_of
from engine.record.compression import BodySizes, decompressed_body
from engine.record.header import is_queued
from engine.record.inner_batch import may_be_wrapper
from engine.record.kernel.columns import gather
from engine.record.kernel.decode import KeyReader, StoredMessage, carries_key
from engine.record.kernel.encode import index_hash
from engine.record.parsed_headers import ParsedHeaders, parse_headers
from engine.record.properties import KEYS, UNIQUE_KEY, split_keys

if TYPE_CHECKING:
    from engine.derived.consume_queues import ConsumeQueues
    from engine.derived.index import Index
    from engine.derived.topic_view import TopicView

Array = np.ndarray[Any, Any]

REMEMBERED_KEYS = 10_000
"""Maximum number of keys whose newest message is cached while the log does not grow."""
CANDIDATE_ROWS = 1024
"""Records of the index's candidates for a key that are searched together, after the first ones were decoded singly."""
REMEMBERED_COLLISIONS = 100_000
"""Maximum number of keys whose newest message is cached for long hash chains, over all chains."""
COLUMN_ROWS = 8192
"""Rows made into columns at once, so that intermediate arrays stay in the processor's caches."""
VIEWED_ROWS = 16
"""A queue's entries are viewed as an array from this number of rows on, and for at most as many entries a row."""


class NewestByKey(NamedTuple):
    """Physical offset of the newest message of each (topic, key), -1 for none, valid for `log_end` and `index_end`."""

    log_end: int
    index_end: int
    physical_offsets: dict[tuple[str, str], int]


class Chain(NamedTuple):
    """Cache for the keys of one hash, for a topic with many such records."""

    end: int
    """Physical offset before which the records were read."""
    newest: dict[str, int]
    """Physical offset of the newest message of each key, among those records."""


NO_CHAIN = Chain(0, {})
NOTHING_KNOWN = NewestByKey(-2, -2, {})
"""Matches no log: the ends of an empty log are 0 and -1."""


class Reader(KeyReader):
    """Reads a store. Thread safety: any thread, no lock."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index,
        topics: TopicView,
        deleted: DeletedTopics,
        body_limit_bytes: int,
        *,
        remember: bool,
    ) -> None:
        """`body_limit_bytes` limits a decompressed body. `remember` caches newest messages of keys while the log does
        not grow; the index must never lag behind the log then."""
        self._is_ledger = is_ledger = log.framing.is_ledger
        super().__init__(index, deleted, log.files, queues.by_key, queues.is_on_disk, is_ledger, body_limit_bytes)
        self.log = log
        self.queues = queues
        self.topics = topics
        self.records = QueueRecords(log, queues, body_limit_bytes)
        self.blocks = BlockReader(log, body_limit_bytes, self.records)
        self._index = index
        self._deleted = deleted
        self._remember = remember
        self._newest = NOTHING_KNOWN
        self._chains: OrderedDict[tuple[str, int], Chain] = OrderedDict()
        self._learning = threading.Lock()
        self.body_sizes = BodySizes()
        """Sizes of compressed bodies, shared by all users."""
        self.messages = 0
        self.bytes = 0

    # one message

    def at(self, physical_offset: int) -> StoredMessage:
        """The message whose record starts at a physical offset."""
        return self.records.at(physical_offset)

    def known_body_size(self, message: StoredMessage) -> int | None:
        """Size of a message's body in bytes; None: it must be decompressed first."""
        if not message.is_compressed:
            return message.body_size
        size = self.body_sizes.get(message.physical_offset, message.body_crc)
        return None if size == -1 else size

    def body_of(self, message: StoredMessage) -> memoryview:
        """A message's body, decompressed if necessary."""
        if not message.is_compressed:
            return message.body
        body = decompressed_body(message, self.body_limit_bytes)
        self.body_sizes.remember(message.physical_offset, message.body_crc, len(body))
        return body

    def bodies(self, bodies: Bodies) -> SliceColumn:
        """Bodies of a block."""
        return self.blocks.bodies(bodies)

    # keys

    def _shown(self, physical_offset: int, in_queue: bool = True) -> list[StoredMessage]:
        """The messages of the record at `physical_offset`, newest first; `in_queue`: only those with a queue entry."""
        try:
            messages = self.records.messages_at(physical_offset)[::-1]
        except ReadError:
            return []
        return [one for one in messages if self._is_led_to(one)] if in_queue else messages

    def _likely(self, candidates: Iterator[int], key: str) -> Iterator[int]:
        """The `candidates` whose record may have the key. Most may only share its hash, so records are searched
        together, without decoding them."""
        while batch := list(islice(candidates, CANDIDATE_ROWS)):
            check_deadline()
            entries = np.zeros(len(batch), ENTRY)
            entries["physical_offset"] = sorted(batch)
            for log, base, offsets in reversed(list(runs_by_file(self.log.files, entries))):
                records = parse_headers(log, offsets - base, offsets, self._is_ledger)
                rows = rows_naming(records, key)
                batches = np.flatnonzero(may_be_wrapper(records.headers["sys_flag"]))
                yield from offsets[np.union1d(rows, batches)][::-1].tolist()

    def key_slots(self, topic: str, key: str) -> Iterator[Array]:
        """Yields queue ids and queue offsets, int64 (n, 2), of messages with `key` that have a queue entry, newest
        first, some thousand rows each. A row may occur twice."""
        self.queries += 1
        oldest = max(self.log.min_offset, self._deleted.until(topic))
        candidates = self._index.candidates(topic, key, oldest, distinct=False)
        while some := list(islice(candidates, COLUMN_ROWS)):
            entries = np.zeros(len(some), ENTRY)
            entries["physical_offset"] = np.sort(np.array(some, np.int64))
            for log, base, offsets in runs_by_file(self.log.files, entries):
                records = parse_headers(log, offsets - base, offsets, self._is_ledger)
                alone = ~records.headers["ok"] | may_be_wrapper(records.headers["sys_flag"])
                slots = _slots_with_key(records.take(~alone), topic, key)
                yield slots[~self._are_anothers(topic, slots), :2]
                shown = [one for start in offsets[alone].tolist() for one in self._shown(start)]
                inside = [
                    (one.queue, one.queue_offset) for one in shown if one.topic == topic and carries_key(one, key)
                ]
                yield np.array(inside, np.int64).reshape(-1, 2)

    def _is_led_to(self, message: StoredMessage) -> bool:
        """Whether the message is in a queue, and its queue entry does not refer to another record."""
        row = message.queue, message.queue_offset, message.physical_offset
        return is_queued(message.sys_flag) and not self._is_anothers(message.topic, *row)

    def _is_anothers(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> bool:
        """Whether the entry at `queue_offset` refers to another record than the one at `physical_offset`, because that
        one is damaged, or its broker assigned the queue offset twice."""
        queue = self.queues.get(topic, queue_id)
        try:
            entry = queue.entry(queue_offset) if queue is not None else None
        except ReadError:
            return False
        return entry is not None and entry[0] != physical_offset

    def _are_anothers(self, topic: str, slots: Array) -> Array:
        """`_is_anothers` for rows of queue id, queue offset and physical offset: bool (n,). Most rows use a view of the
        queue's entries, the others single look-ups."""
        others = np.ones(len(slots), bool)
        queue_ids, counts = np.unique(slots[:, 0], return_counts=True)
        for queue_id in queue_ids[counts >= VIEWED_ROWS].tolist():
            rows = np.flatnonzero(slots[:, 0] == queue_id)
            first, last = slots[rows[[0, -1]], 1].tolist()
            queue = self.queues.get(topic, queue_id)
            if queue is not None and 0 <= first <= last < first + VIEWED_ROWS * len(rows):
                with suppress(ReadError):
                    entries = queue.entries(first, last - first + 1)
                    rows = rows[(slots[rows, 1] >= first) & (slots[rows, 1] < first + len(entries))]
                    others[rows] = entries["physical_offset"][slots[rows, 1] - first] != slots[rows, 2]
        for row in np.flatnonzero(others).tolist():
            others[row] = self._is_anothers(topic, *slots[row].tolist())
        return others

    def newest_with_key(self, topic: str, key: str) -> StoredMessage | None:
        """The newest message with `key` that has a queue entry; cached until the log grows. WouldBlock on a
        nonblocking thread when many records share the key's hash."""
        self.queries += 1
        newest = self._newest_by_key()
        known = newest.get((topic, key))
        if known is not None:
            return self.at(known) if known >= self.log.min_offset else None
        found = self._newest_with(topic, key)
        if self._remember and len(newest) < REMEMBERED_KEYS:
            newest[topic, key] = found.physical_offset if found is not None else -1
        return found

    def _newest_with(self, topic: str, key: str) -> StoredMessage | None:
        """As `newest_with_key`. Many records with a key of that hash are read only once, for all such keys; later calls
        read new records only."""
        if not self._remember or "\ufffd" in key:  # U+FFFD may stand for any invalid UTF-8
            return next(self._with_key(topic, key, in_queue=True), None)
        chain = self._chains.get((topic, index_hash(topic, key)), NO_CHAIN) if self._chains else NO_CHAIN
        try:
            found = next(self._with_key(topic, key, chain.end, is_short=True, in_queue=True), None)
        except WouldBlock:
            check_deadline()
            found, chain = None, self._learned(topic, key)
        if found is not None:
            return found
        known = chain.newest.get(key, -1)
        return self.at(known) if known >= max(self.log.min_offset, self._deleted.until(topic)) else None

    def _learned(self, topic: str, key: str) -> Chain:
        """Add the records with a key of the same hash that were not read before to the key's chain."""
        key_hash = index_hash(topic, key)
        with self._learning:
            known = self._chains.pop((topic, key_hash), NO_CHAIN)
            end = self._index.last_physical_offset + 1
            oldest = max(self.log.min_offset, self._deleted.until(topic), known.end)
            candidates = self._index.candidates(topic, key, oldest)
            newest: dict[str, int] = {}
            while batch := list(islice(candidates, CANDIDATE_ROWS)):
                for physical_offset, word in self._words(topic, batch):
                    is_wanted = word not in newest and index_hash(topic, word) == key_hash
                    if is_wanted and self._has_message(topic, physical_offset, word):
                        newest[word] = physical_offset
            chain = Chain(end, known.newest | newest)
            self._chains[topic, key_hash] = chain
            while sum(1 + len(one.newest) for one in self._chains.values()) > REMEMBERED_COLLISIONS:
                self._chains.popitem(last=False)
            return chain

    def _words(self, topic: str, batch: list[int]) -> Iterator[tuple[int, str]]:
        """Yields (physical offset, key) for all keys of the records, newest first; of equal keys the newest record."""
        entries = np.zeros(len(batch), ENTRY)
        entries["physical_offset"] = sorted(batch)
        for log, base, offsets in reversed(list(runs_by_file(self.log.files, entries))):
            records = parse_headers(log, offsets - base, offsets, self._is_ledger)
            found: dict[str, int] = {}
            for texts in property_texts(records, [KEYS, UNIQUE_KEY]):
                rows = dict(zip(texts, range(len(texts)), strict=True))  # of equal texts the newest record
                for text, row in rows.items():
                    for word in (text, *split_keys(text)):
                        found[word] = max(found.get(word, 0), int(offsets[row]))
            alone = ~records.headers["ok"] | may_be_wrapper(records.headers["sys_flag"])
            for physical_offset in offsets[alone].tolist():
                for message in self._shown(physical_offset):
                    for word in (*message.keys, message.unique_key or ""):
                        found[word] = max(found.get(word, 0), physical_offset)
            yield from sorted(((physical_offset, word) for word, physical_offset in found.items()), reverse=True)

    def _has_message(self, topic: str, physical_offset: int, key: str) -> bool:
        """Whether a message in the record at `physical_offset` has the key and a queue entry."""
        return any(one.topic == topic and carries_key(one, key) for one in self._shown(physical_offset))

    def _newest_by_key(self) -> dict[tuple[str, str], int]:
        """The cache for the current log. Concurrent threads may each start a new one, which is harmless."""
        log_end, index_end, known = self._newest
        now = self.log.readable_end, self._index.last_physical_offset
        if now != (log_end, index_end):
            known = {}
            self._newest = NewestByKey(*now, known)
        return known

    def forget_keys(self) -> None:
        """Drop all cached keys, because a topic was deleted."""
        self._newest = NOTHING_KNOWN
        with self._learning:
            self._chains.clear()

    def newest_keys(self, topic: str, limit: int) -> list[str]:
        """Keys of the topic's newest `limit` messages, sorted. WouldBlock on a nonblocking thread."""
        check_deadline()
        queue_ids = self.topics.queue_ids(topic)
        newest: list[Array] = [np.empty(0, ENTRY)]
        for queue_id in queue_ids:
            queue = self.queues.get(topic, queue_id)
            if queue is not None:
                end = queue.max_offset
                start = max(queue.min_offset, end - limit)
                newest.append(queue.entries(start, max(end - start, 0)).copy())
        entries = np.concatenate(newest)
        entries = entries[np.argsort(entries["physical_offset"], kind="stable")][-limit:]
        keys: set[str] = set()
        for log, base, offsets in runs_by_file(self.log.files, entries):
            records = parse_headers(log, offsets - base, offsets, self._is_ledger)
            ((starts, sizes),) = find_properties(records, [KEYS])
            is_batch = may_be_wrapper(records.headers["sys_flag"])
            for physical_offset in np.unique(offsets[is_batch]).tolist():
                for message in self._shown(physical_offset):
                    keys.update(message.keys)
            sizes = np.where(is_batch, 0, sizes)
            for first, size in zip(starts[sizes > 0].tolist(), sizes[sizes > 0].tolist(), strict=True):
                keys.update(split_keys(log[first : first + size].tobytes().decode(errors="replace")))
        return sorted(keys)


def rows_naming(records: ParsedHeaders, key: str) -> Array:
    """Rows whose KEYS or UNIQ_KEY contain `key` as a word, int64 (k,): a superset of the rows that carry it."""
    if "\ufffd" in key:  # U+FFFD may stand for any invalid UTF-8
        return np.arange(len(records))
    wanted = b" %b " % key.encode("utf-8", "surrogatepass")
    rows: set[int] = set()
    for starts, sizes in find_properties(records, [KEYS, UNIQUE_KEY]):
        offsets, packed = gather(records.log, starts, sizes, lead=ord(" "))
        text = packed.tobytes() + b" "
        at = text.find(wanted)
        while at >= 0:
            row = int(np.searchsorted(offsets, at, side="right")) - 1
            rows.add(row)
            at = text.find(wanted, int(offsets[row + 1])) if row + 1 < len(records) else -1
    return np.array(sorted(rows), np.int64)


def _slots_with_key(records: ParsedHeaders, topic: str, key: str) -> Array:
    """Queue ids, queue offsets and physical offsets, int64 (n, 3), of the topic's records that carry `key`."""
    records = records.take(np.flatnonzero(records.headers["ok"] & is_queued(records.headers["sys_flag"])))
    records = records.take(rows_naming(records, key))
    topics, topic_rows = topics_of(records)
    keys, unique_keys = property_texts(records, [KEYS, UNIQUE_KEY])
    carry = [key == unique or key in split_keys(own) for own, unique in zip(keys, unique_keys, strict=True)]
    rows = np.array([row for row in np.flatnonzero(carry).tolist() if topics[topic_rows[row]] == topic], np.int64)
    headers = records.headers[rows]
    return np.stack([records.queue_ids[rows].astype(np.int64), headers["queue_offset"], headers["physical_offset"]], 1)

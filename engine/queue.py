"""Queue: handle for writing and reading one queue of a store.

A handle caches the look-up by topic and queue id. It looks up again only after the queue was deleted, recreated or cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.derived.consume_queue import ConsumeQueue
from engine.derived.queue_records import Run
from engine.errors import (
    ExpiredMessageError,
    IllegalMessageError,
    MessageNotFoundError,
    ReadError,
    RetiredFileError,
    UnreadableRangeError,
)
from engine.files.file_queue import FileQueue
from engine.log.delay import SCHEDULE_TOPIC
from engine.log.entries import ENTRY, LAST_EXTENSION_CODE, Entries, file_pages, runs_by_file
from engine.read.blocks import Block, Outline
from engine.read.reader import COLUMN_ROWS, Reader
from engine.read.stream import QueueStream
from engine.record.batch import Lines
from engine.record.byte_columns import SliceColumn
from engine.record.columns import Columns, columns_of, find_properties, read_bodies, topics_of
from engine.record.compression import COMPRESSED_FLAG
from engine.record.hashes import java_hashes
from engine.record.kernel.scan import read_sizes
from engine.record.kernel.search import Texts, find_bodies, find_texts
from engine.record.message import Message, StoredMessage
from engine.record.parsed_headers import HEADER, parse_headers
from engine.record.properties import TAGS
from engine.results import PutRange, PutResult, QueueAtRest, QueueBounds

if TYPE_CHECKING:
    from engine.read.offset_index import OffsetIndexes
    from engine.write.writer import Refusal, Writer

Array = np.ndarray[Any, Any]

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})

SINGLE_ROWS = 16
"""Messages read singly at first. Later runs are four times as long each, up to RUN_ROWS."""
RUN_ROWS = 8192
GROUP_ROWS = 512
"""Maximum number of messages that are decoded together."""
HEADER_ROWS = 1024
"""As COLUMN_ROWS, for headers of a log with batches: the messages of a batch are copied."""
HELD_ROWS, HELD_BYTES = 16_384, 4 << 20
"""Limits of one search step: entries, and approximate bytes of records."""
SPARSE_BYTES = 4096
"""Average distance of records above which the log is not read ahead: only the touched pages are read."""
APART_ROWS = 512
"""Messages that are searched separately once one can't be searched in the log: more such messages are likely near."""


Damaged = Callable[[int], None]
"""Callback for the queue offset of a damaged message, which a read skips."""


def ignore(queue_offset: int) -> None:
    """Default `Damaged` callback: does nothing."""


@dataclass(frozen=True, slots=True)
class Held:
    """Messages whose body contains one of several texts: their queue offsets, the index of the first text that matched
    (both int64 (n,)), and their bodies, which may view the mapped log."""

    offsets: Array
    numbers: Array
    bodies: SliceColumn


class Queue:
    """One queue of a store; `MessageStore.queue` returns it. It is usable while the store is open.

    After the queue was deleted every call raises TopicNotFoundError; once it is recreated, calls use the new queue.

    topic, queue  the topic's name, and the number of the queue in it

    Thread safety: any thread; writers take turns, readers never wait for writers.
    """

    __slots__ = (
        "_consume_queue",
        "_log",
        "_offset_indexes",
        "_queues",
        "_reader",
        "_records",
        "_refusal",
        "_topics",
        "_writer",
        "queue",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue: int,
        reader: Reader,
        offset_indexes: OffsetIndexes,
        refusal: Refusal,
        writer: Writer | None,
    ) -> None:
        """Use `MessageStore.queue`. `refusal` has the reason when `writer` is None."""
        self.topic = topic
        self.queue = queue
        self._log = reader.log
        self._queues = reader.queues
        self._topics = reader.topics
        self._records = reader.records
        self._reader = reader
        self._offset_indexes = offset_indexes
        self._refusal = refusal
        self._writer = writer
        self._consume_queue: ConsumeQueue | None = None

    def __repr__(self) -> str:
        return f"<Queue {self.topic}/{self.queue}>"

    def _resolve(self) -> ConsumeQueue | None:
        """The current consume queue; None when it has no entries yet."""
        queue = self._consume_queue
        if queue is None or queue.is_stale:
            queue = self._consume_queue = self._queues.get(self.topic, self.queue)
        return queue

    def _current(self) -> ConsumeQueue | None:
        """As `_resolve`. TopicNotFoundError: there is no such queue."""
        queue = self._resolve()
        if queue is None:
            self._topics.require_queue(self.topic, self.queue)
        return queue

    # publishing

    def put(self, message: Message) -> PutResult:
        """Store one message of this topic, as `MessageStore.put`. TopicNotFoundError after the topic was deleted."""
        queue = self._consume_queue
        if queue is None or queue.is_stale:
            queue = self._current()
        if message.topic != self.topic:
            raise self._not_of(message.topic)
        return (self._writer or self._require_writer()).put(message, self.queue, queue)

    def put_batch(self, messages: Sequence[Message]) -> PutRange:
        """Store messages of this topic, all or none: as `MessageStore.put_batch`. TopicNotFoundError."""
        queue = self._current()
        if messages and messages[0].topic != self.topic:
            raise self._not_of(messages[0].topic)
        return (self._writer or self._require_writer()).put_batch(messages, self.queue, queue)

    def put_lines(
        self,
        lines: Lines,
        *,
        keys: Sequence[str] = (),
        tags: str = "",
        properties: Mapping[str, str] = NO_PROPERTIES,
    ) -> PutRange:
        """Store each line as a message, all or none: as `MessageStore.put_lines`. TopicNotFoundError."""
        queue = self._consume_queue
        if queue is None or queue.is_stale:
            queue = self._current()
        writer = self._writer or self._require_writer()
        return writer.put_lines(self.topic, lines, self.queue, keys, tags, properties, queue)

    def _not_of(self, topic: str) -> IllegalMessageError:
        return IllegalMessageError(f"it is of topic {topic!r}, and the queue of {self.topic!r}")

    def _require_writer(self) -> Writer:
        """The writer. ReadOnlyStoreError: the store is not open for writing."""
        self._refusal.require_none()
        assert self._writer is not None
        return self._writer

    # reading

    def bounds(self) -> QueueBounds:
        """Oldest and next queue offset. TopicNotFoundError."""
        queue = self._consume_queue
        if queue is None or queue.is_stale:
            queue = self._current()
            if queue is None:
                return QueueBounds(0, 0)
        max_offset = queue.max_offset
        return QueueBounds(min(queue.min_offset, max_offset), max_offset)

    def at_rest(self) -> QueueAtRest | None:
        """The begin of the queue and the age of its newest message, without opening it. None: it is open, or must be
        opened for that: ask `bounds` and `get`. TopicNotFoundError."""
        if self._consume_queue is not None:
            return None
        if not self._queues.has_queue(self.topic, self.queue):
            self._topics.require_queue(self.topic, self.queue)
            return QueueAtRest(0, None)
        ends = self._queues.ends_at_rest(self.topic, self.queue)
        if ends is None:
            return None
        try:
            newest = self._reader.at(ends.newest_physical)
        except ReadError:
            return None
        slot = newest.topic, newest.queue, newest.queue_offset
        if slot != (self.topic, self.queue, ends.max_offset - 1):
            return None
        return QueueAtRest(ends.min_offset, newest.store_time_ms)

    def get(self, queue_offset: int) -> StoredMessage:
        """The message at a queue offset; its slot, framing and CRC are checked. Errors as `MessageStore.get`."""
        queue = self._consume_queue
        if queue is None or queue.is_stale:
            queue = self._current()
        try:
            entry = queue.entry(queue_offset) if queue is not None else None
        except (UnreadableRangeError, RetiredFileError):
            entry = None  # retention took the file between two looks
        if entry is None:
            raise self._absent(queue_offset)
        assert queue is not None
        message = self._records.get(queue, queue_offset, entry)
        self._reader.messages += 1
        self._reader.bytes += entry[1]
        return message

    def _absent(self, queue_offset: int) -> Exception:
        min_offset = self.bounds().min_offset
        if 0 <= queue_offset < min_offset:
            return ExpiredMessageError(self.topic, self.queue, queue_offset, min_offset)
        return MessageNotFoundError(self.topic, self.queue, queue_offset)

    def read(self, start: int, count: int | None = None, damaged: Damaged = ignore) -> Iterator[StoredMessage]:
        """As `MessageStore.read`."""
        self._current()
        return chain.from_iterable(self._runs(start, count, damaged))

    def _runs(self, start: int, count: int | None, damaged: Damaged) -> Iterator[Iterable[StoredMessage]]:
        bounds = self.bounds()
        end = bounds.max_offset if count is None else min(bounds.max_offset, start + count)
        first, rows = max(start, bounds.min_offset), SINGLE_ROWS
        yield self._one_by_one(first, min(first + rows, end), damaged)
        while (first := first + rows) < end:
            rows = min(rows * 4, RUN_ROWS)
            yield from self._run(first, min(first + rows, end), damaged)

    def _one_by_one(self, first: int, end: int, damaged: Damaged) -> Iterator[StoredMessage]:
        for queue_offset in range(first, end):
            try:
                yield self.get(queue_offset)
            except (ExpiredMessageError, MessageNotFoundError, RetiredFileError):
                continue
            except ReadError:
                damaged(queue_offset)

    def _run(self, first: int, end: int, damaged: Damaged) -> Iterator[Iterable[StoredMessage]]:
        """The messages at [first, end). They are decoded together, except those that must be read singly."""
        physical_offsets = self._physical_offsets(first, end)
        while len(physical_offsets):
            group = self._records.group(self.topic, self.queue, first, physical_offsets[:GROUP_ROWS])
            if group is None:
                break
            messages, alone, size = group
            self._reader.messages += len(messages) - alone
            self._reader.bytes += size
            yield self._completed(messages, first, damaged) if alone else messages  # type: ignore[misc]  # none is None
            first += len(messages)
            physical_offsets = physical_offsets[len(messages) :]
        yield self._one_by_one(first, end, damaged)

    def _physical_offsets(self, first: int, end: int) -> Array:
        """Physical offsets of the records from queue offset `first` on, int64 (n,); n may be less than end - first."""
        queue = self._resolve()
        try:
            found = queue.known_entries(first, end - first) if queue is not None else np.empty(0, ENTRY)
        except (UnreadableRangeError, RetiredFileError):
            found = np.empty(0, ENTRY)  # retention took the file between two looks
        return found["physical_offset"].astype(np.int64)

    def _completed(
        self, messages: Sequence[StoredMessage | None], first: int, damaged: Damaged
    ) -> Iterator[StoredMessage]:
        """The messages from queue offset `first` on; each None is replaced by a single read."""
        for queue_offset, message in enumerate(messages, first):
            if message is not None:
                yield message
            else:
                yield from self._one_by_one(queue_offset, queue_offset + 1, damaged)

    def entries(self, start: int, count: int) -> Entries:
        """As `MessageStore.entries`."""
        queue = self._current()
        if queue is None:
            return np.empty(0, ENTRY)
        first = max(start, queue.min_offset)
        return _with_tags_codes(queue.known_entries(first, max(start + count - first, 0)), self._log.files)

    def headers(self, start: int, count: int) -> Array:
        """HEADER (n,); row i has queue offset start + i. `ok` is false for damaged and expired messages."""
        queue = self._current()
        end = min(start + count, queue.max_offset) if queue is not None else start
        found = np.zeros(max(end - start, 0), HEADER)
        if queue is None or not len(found):
            return found
        first = min(max(start, queue.min_offset), end)
        most_rows = HEADER_ROWS if self._records.has_batches else None
        for run in self._records.runs(queue, first, queue.known_entries(first, end - first), most_rows):
            row = run.first - start
            found[row : row + len(run.records)] = run.records.headers
            for alone, message in run.alone.items():
                found["physical_offset"][row + alone] = message.place
        found["queue_offset"] = np.arange(start, start + len(found))
        return found

    def record_sizes(self, start: int, count: int) -> tuple[Array, Array]:
        """Store sizes and body sizes in bytes, from queue offset max(start, min_offset) on, as `read_sizes`."""
        queue = self._current()
        if queue is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        first = max(start, queue.min_offset)
        runs = runs_by_file(self._log.files, queue.known_entries(first, max(start + count - first, 0)))
        found = [read_sizes(log, physical_offsets - base) for log, base, physical_offsets in runs]
        parts = zip((np.zeros(0, np.int64),) * 2, *found, strict=True)
        store_sizes, body_sizes = (np.concatenate(part) for part in parts)
        for row in np.flatnonzero(store_sizes == 0).tolist():
            message = self._records.alone(queue, first + row)
            if message is not None:
                store_sizes[row] = message.store_size
                body_sizes[row] = -1 if message.is_compressed else len(message.stored_body)
        return store_sizes, body_sizes

    def holding(
        self, start: int, count: int, texts: Sequence[bytes], any_case: bool = False, damaged: Damaged = ignore
    ) -> Iterator[Held]:
        """As `MessageStore.holding`."""
        queue = self._current()
        if queue is None:
            return
        files, is_ledger = self._log.files, self._log.framing.is_ledger
        topic, wanted = self.topic.encode(), None
        for first, entries in self._ahead(queue, start, min(start + count, queue.max_offset)):
            while len(entries):
                base = int(entries["physical_offset"][0]) // files.file_bytes * files.file_bytes
                log = np.frombuffer(file_pages(files, base), np.uint8)
                wanted = wanted or Texts(texts, any_case, log)
                done, found = find_bodies(wanted, log, base, entries, topic, self.queue, first, is_ledger, HELD_BYTES)
                rows, numbers, starts, sizes = found
                if len(rows):
                    yield Held(first + rows, numbers, SliceColumn(log, starts, sizes))
                if not done:
                    done = min(APART_ROWS, len(entries))
                    for run in self._records.runs(queue, first, entries[:done]):
                        yield self._held_apart(queue, run, wanted, damaged)
                first, entries = first + done, entries[done:]

    def _ahead(self, queue: ConsumeQueue, first: int, end: int) -> Iterator[tuple[int, Entries]]:
        """Yields (queue offset, entries) for [first, end). The disk reads the next records during the caller's work."""
        found: tuple[int, Entries] | None = None
        while (first := max(first, queue.min_offset)) < end:
            entries = queue.known_entries(first, min(HELD_ROWS, end - first))
            if not len(entries):
                break  # the queue was cut meanwhile
            begin, (last, size, _) = entries[0].item()[0], entries[-1].item()
            if 0 <= last - begin <= len(entries) * SPARSE_BYTES:
                self._log.files.read_soon(begin, last + size)
            if found is not None:
                yield found
            found = first, entries
            first += len(entries)
        if found is not None:
            yield found

    def _held_apart(self, queue: ConsumeQueue, run: Run, texts: Texts, damaged: Damaged) -> Held:
        """The messages of a run that contain one of `texts`; handles compressed bodies and inner batches, too."""
        records = run.records
        is_packed = records.headers["sys_flag"] & COMPRESSED_FLAG != 0
        numbers = find_texts(texts, records.log, *records.bodies)
        rows = np.flatnonzero(records.headers["ok"] & (is_packed | (numbers >= 0)))
        is_good, bodies = read_bodies(records.take(rows), self._reader.body_limit_bytes)
        good = records.headers["ok"].copy()
        good[rows] = is_good
        self._records.note_unread(run, good)
        for queue_offset in (run.first + np.flatnonzero(~good)).tolist():
            if queue_offset >= queue.min_offset:  # else retention came in between
                damaged(queue_offset)
        numbers = (
            find_texts(texts, bodies.data, bodies.starts, bodies.sizes) if is_packed[rows].any() else numbers[rows]
        )
        taken = np.flatnonzero(is_good & (numbers >= 0))
        return Held(run.first + rows[taken], numbers[taken], bodies.take(taken))

    def columns(self, start: int, count: int) -> Columns:
        """Bodies, keys and tags as arrays, from queue offset max(start, min_offset) on. TopicNotFoundError."""
        queue = self._current()
        if queue is None:
            return Columns.concatenate([])
        first = max(start, queue.min_offset)
        parts = []
        entries = queue.entries(first, max(start + count - first, 0))
        for run in self._records.runs(queue, first, entries, COLUMN_ROWS):
            good, bodies = read_bodies(run.records, self._reader.body_limit_bytes)
            self._records.note_unread(run, good)
            columns = columns_of(run.records, good, bodies)
            columns.headers["queue_offset"] = np.arange(run.first, run.first + len(columns))
            parts.append(columns)
        self._reader.messages += sum(map(len, parts))
        return Columns.concatenate(parts)

    def blocks(self, start: int, count: int) -> list[Block]:
        """All fields as arrays, from queue offset max(start, min_offset) on. TopicNotFoundError."""
        queue = self._current()
        if queue is None:
            return []
        first = max(start, queue.min_offset)
        blocks = self._reader.blocks.read(queue, first, max(start + count - first, 0))
        self._reader.messages += sum(map(len, blocks))
        return blocks

    def outline(self, start: int, count: int) -> Outline | None:
        """Sizes and texts of the block of `count` messages from queue offset `start` on. None: only the block itself
        has them. TopicNotFoundError."""
        queue = self._current()
        return None if queue is None or start < queue.min_offset else self._reader.blocks.outline(queue, start, count)

    def offset_at(self, when_ms: int) -> int:
        """Queue offset of the first message stored at or after `when_ms`."""
        queue = self._current()
        return 0 if queue is None else queue.offset_at(when_ms, self._log.stored_ms)

    def stream(self) -> QueueStream:
        """The queue as one growing text: body, newline, body, newline. TopicNotFoundError."""
        queue = self._current() or self._queues.get_or_create(self.topic, self.queue)
        return QueueStream(queue, self._offset_indexes.of(queue))


def _with_tags_codes(entries: Entries, log_files: FileQueue) -> Entries:
    """The entries with the tags codes of their records where a broker stored extension addresses instead.

    The code is 0, as without tags, for messages that are delayed or can't be read.
    """
    codes = entries["tags_code"].astype(np.int64)
    rows = np.flatnonzero(codes <= LAST_EXTENSION_CODE)
    if not len(rows):
        return entries
    codes[rows] = 0
    done = 0
    for log, base, offsets in runs_by_file(log_files, entries[rows]):
        records = parse_headers(log, offsets - base, offsets)
        hashes = java_hashes(records.log, *find_properties(records, [TAGS])[0]).astype(np.int64)
        topics, topic_rows = topics_of(records)
        is_delayed = np.array([topic == SCHEDULE_TOPIC for topic in topics], bool)[topic_rows]
        known = records.headers["ok"] & ~is_delayed
        codes[rows[done : done + len(offsets)][known]] = hashes[known]
        done += len(offsets)
    entries = entries.copy()
    entries["tags_code"] = codes
    return entries

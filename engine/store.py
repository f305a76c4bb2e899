"""MessageStore: the engine's public entry point. It wires commit log, derived data and background threads."""

from __future__ import annotations

import heapq
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import numpy as np

from engine.deadline import check_deadline, uncollected
from engine.derived.consume_queue import ConsumeQueue
from engine.derived.dispatch import BufferedDispatcher, WriteDispatcher
from engine.derived.known_ranges import KnownRanges
from engine.derived.topic_view import TopicView
from engine.errors import (
    ConfigFileError,
    ConsumerOffsetError,
    FlushFailedError,
    MessageNotFoundError,
    OptionError,
    ReadOnlyStoreError,
    StoreError,
    TopicNotFoundError,
)
from engine.events import Expired, Listeners, StoreListener
from engine.files.disk import disk_space, is_refused_by_disk, write_own_file
from engine.files.news import NewsWatch
from engine.files.paths import open_file, store_root, unlink
from engine.log.commit_log import FileHold
from engine.open.check import check_store_files
from engine.open.follower import Follower
from engine.open.geometry import layout_of
from engine.open.open import Opened, open_store
from engine.open.preflight import is_new
from engine.queue import NO_PROPERTIES, Damaged, Held, Queue, ignore
from engine.read.blocks import Block, Bodies, Outline
from engine.read.offset_index import QUICK_SUM_MESSAGES, OffsetIndexes
from engine.read.reader import Reader
from engine.read.stream import QueueStream
from engine.read.stream_rows import RowSource
from engine.read.topic_queue import TopicQueue
from engine.record.batch import Lines
from engine.record.byte_columns import SliceColumn
from engine.record.columns import Columns
from engine.record.kernel.guard import all_pages_refused
from engine.record.message import Message, StoredMessage
from engine.replication.acks import when_both
from engine.replication.answers import Answers
from engine.replication.master import Master
from engine.results import (
    CheckProgress,
    IndexState,
    MasterFigures,
    Problem,
    PutRange,
    PutResult,
    QueueBounds,
    QueueState,
    RecoveryReport,
    StoreStats,
    TextAtRest,
)
from engine.settings.broker_options import read_retention
from engine.settings.config import FileSizes, OpenMode, Retention, StoreConfig, StoreIdentity
from engine.settings.consumer_offsets import ConsumerOffsets
from engine.settings.notes import CheckNote, ReplicaNote, read_check_note, read_replica_note
from engine.write.drop_box import DropBox, FoundBox, boxes_below, is_used
from engine.write.durability import Durability
from engine.write.flush import wait_until
from engine.write.receiver import Receiver
from engine.write.retention import Cleaner, ExpiringLog
from engine.write.retention_plan import DiskUse, RetentionPlan, disk_use
from engine.write.writer import Refusal, Writer

Hold = FileHold
"""Keeps the commit-log file at one physical offset readable; release it, or use it as a context manager."""

MAX_TIME_MS = (1 << 63) - 1
"""Default end of the time range of a query."""

CLOSING_S = 0.5
"""Time limit in seconds for summing streams at closing; the next opening uses the sums."""

MOST_AT_REST = 256
"""Messages of a topic that are measured without opening its queues."""

ROOM_FACTOR = 2
"""Free disk space, in log files, from which a stopped store may be reopened for writing."""

BODY_LIMIT_FACTOR = 16
"""Limit of a decompressed body, as a multiple of the message limit."""


class MessageStore:
    """A store of messages in topics and queues, in Apache RocketMQ's on-disk format.

    Open it with `MessageStore.open`; close it, or use it as a context manager. Thread safety: every method may be
    called from any thread; writers take turns, readers never wait for writers.
    """

    def __init__(self, path: Path, config: StoreConfig, opened: Opened, disk_use: DiskUse) -> None:
        """Use `open`. The store owns `opened` from now on."""
        self.path = path
        self.config = config
        self.mode = config.mode
        self.recovery: RecoveryReport = opened.recovered.report
        self.opened_at_ms = config.clock()
        self.log_generation = 0
        """FOLLOW: changes whenever another log replaced the one that was shown."""
        self._opened = opened
        self._parts = opened.parts
        self._log = opened.parts.log
        self._listeners = Listeners()
        self._topics = TopicView(opened.table, opened.parts.queues, self._listeners.topics_changed)
        body_limit_bytes = config.max_message_bytes * BODY_LIMIT_FACTOR
        remember = config.mode is not OpenMode.FOLLOW
        parts = opened.parts
        self._reader = Reader(
            parts.log, parts.queues, parts.index, self._topics, parts.deleted, body_limit_bytes, remember=remember
        )
        self._queues: dict[str, dict[int, Queue]] = {}
        layout = opened.parts.layout
        self._consumer_offsets = ConsumerOffsets(layout.consumer_offsets, layout.lmq_consumer_offsets)
        writes = config.mode is OpenMode.WRITE and config.stopped is None
        self._sums = OffsetIndexes(
            opened.parts.layout.sums,
            RowSource(opened.parts.log.files, body_limit_bytes, self._reader.records.of_entry, self._reader.body_sizes),
            trusted_end=opened.recovered.trusted_end,
            checked_before=opened.parts.log.readable_end,
            writable=writes,
            ignored=parts.ignored,
        )
        self.known_ranges = KnownRanges(layout.ranges, parts.log.files, parts.ignored, writable=writes)
        """Data that readers keep for later openings, by range of a queue."""
        if writes:
            self._listeners.subscribe(_Expiry(self.known_ranges))
        self._opened_end = parts.log.readable_end
        self._expiring = ExpiringLog(layout.root, parts.log, parts.queues, config.clock, disk_use)
        self._refusal = Refusal(_why_read_only(config))
        self._known_durable_end: int | None = None
        """Stopped store: physical offset before which the log is certainly on disk."""
        if config.stopped is not None:
            self._known_durable_end = opened.recovered.trusted_end
        self._lifecycle = threading.Lock()
        self._summing = threading.Lock()
        self._grown: _Grown | None = None
        self._closed = False
        self._write_side: _WriteSide | None = None
        self._writer: Writer | None = None
        self._follower: Follower | None = None
        self._master: Master | None = None
        if writes:
            self._write_side = _WriteSide(opened, self._topics, config, self._listeners, self._refusal, self._expiring)
            self._writer = self._write_side.writer
        elif config.mode is OpenMode.FOLLOW:
            self._listeners.subscribe(_Forgetting(self))  # before any other listener
            self._follower = Follower(parts, self._topics, opened.choice, config, self._listeners)
        if config.master is not None:
            answers = Answers(parts, config.master, opened.identity.name or "fsstore")
            self._master = Master(parts.log, answers, config.master, config.clock)

    @classmethod
    def open(
        cls,
        path: Path | str,
        config: StoreConfig | None = None,
        *,
        create: bool = False,
        disk_use: DiskUse = disk_use,
    ) -> MessageStore:
        """Open the store at `path` in `config.mode`: WRITE recovers it, READ_ONLY reads it, FOLLOW reads it while
        another process writes it. With `create`, WRITE makes a missing store; a new directory is private to its owner.

        `disk_use` measures the disk for retention. NotAStoreError (nothing or something else is there),
        StoreLockedError (another process writes it), UnsupportedStoreError (names the unsupported feature),
        ConfigFileError, AnotherStoreError (its identity is not `config.identity`), ListenError (a port for replicas),
        OptionError (replicas, and a mode that only reads), ObstructedError, StoreFullError, FlushFailedError, OSError;
        ValueError: `create` with a mode that only reads.
        """
        path, config = Path(path).absolute(), config or StoreConfig()
        if config.master is not None and config.mode is not OpenMode.WRITE:
            raise OptionError("brokerRole", "only a store that is opened to write serves replicas")
        has_readers = config.serves_readers and not is_new(layout_of(store_root(path), config))
        try:
            return cls._open(path, config, create, disk_use)
        except (StoreError, OSError) as error:
            if not has_readers or not is_refused_by_disk(error):
                raise
            stopped = replace(config, stopped=f"the disk refuses to be written: {_said_by(error)}")
        return cls._open(path, stopped, create, disk_use)

    @classmethod
    def _open(cls, path: Path, config: StoreConfig, create: bool, disk_use: DiskUse) -> MessageStore:
        opened = open_store(store_root(path), config, create)
        try:
            store = cls(path, config, opened, disk_use)
        except BaseException:
            opened.close()
            raise
        try:
            store._start()
        except BaseException:
            store._abandon()
            raise
        return store

    def _start(self) -> None:
        if self._write_side is not None:
            self._write_side.start()
        if self._master is not None:
            self._listeners.subscribe(self._master)
            self._master.start()
        if self._follower is not None:
            self._follower.begin()

    def close(self) -> None:
        """Flush, mark the store as cleanly closed, close every file. Calling it twice is harmless.

        FlushFailedError: not everything reached the disk; the store is closed all the same, and the next opening
        recovers it.
        """
        with self._lifecycle:
            if self._closed:
                return
            self._closed = True
        self._refusal.close()
        self._close_master()
        try:
            with uncollected():  # the extents of all queues are made
                self._close_files()
        finally:
            self._opened.close()
        if self._refusal.flush_failure is not None:
            raise self._refusal.flush_failure.with_traceback(None)

    def _close_files(self) -> None:
        durable = self._write_side is not None and self._write_side.close()
        with self._summing:  # another thread sums only for a short time
            if self._write_side is not None:
                noted = [queue for queue in self._parts.queues.opened() if queue.text_blocks]
                self._sums.keep({*self._sums.in_use, *noted}, CLOSING_S)
        self._parts.close()
        self._close_follower()
        if durable and self._write_side is not None:
            self._write_side.durability.mark_clean(deletions_done=self._parts.deleted.are_finished)

    def _abandon(self) -> None:
        """Close everything without the clean mark, so that the next opening recovers as after a crash."""
        self._closed = True
        self._refusal.close()
        self._close_master()
        if self._write_side is not None:
            self._write_side.close()
        self._opened.close()
        self._close_follower()

    def _close_master(self) -> None:
        if self._master is not None:
            self._master.close()

    def _close_follower(self) -> None:
        if self._follower is not None:
            self._follower.close()

    @property
    def identity(self) -> StoreIdentity:
        """Identity of the store: pass it as `StoreConfig.identity` to open the same store again."""
        return self._opened.identity

    def __repr__(self) -> str:
        return f"<MessageStore {str(self.path)!r}, {'closed' if self._closed else self.mode.value}>"

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def sizes(self) -> FileSizes:
        """The sizes of the store's files."""
        return self._parts.sizes

    @property
    def index_state(self) -> IndexState:
        """State of the key index."""
        if self._follower is not None:
            return self._follower.index_state
        rebuilt = [name for name in self.recovery.rebuilt if name.startswith("index")]
        if not rebuilt:
            return IndexState("in use")
        return IndexState("rebuilt", self._opened.choice.note or f"{rebuilt[0]}: made again from the commit log")

    @property
    def queues_derived(self) -> str | None:
        """Reason why consume queues are derived from the log; None when the store's own are used."""
        if self._follower is not None:
            return self._follower.derived_reason
        kind = self._opened.kind
        return None if kind.has_both and "consume queues" not in self.recovery.rebuilt else kind.queues

    @property
    def not_shown(self) -> tuple[str, ...]:
        """Sentences: data in a form that is not read, and the offset after which a follower can't read the log."""
        return self._follower.not_shown if self._follower is not None else self._opened.kind.not_shown

    # why not to write

    @property
    def read_only_reason(self) -> str | None:
        """Sentence with the reason why nothing can be published now; None when publishing works."""
        return self._refusal.reason

    @property
    def flush_failure(self) -> FlushFailedError | None:
        """The failed flush after which nothing becomes durable any more; None when there was none."""
        return self._refusal.flush_failure or self._never_durable(self.physical_end)

    def when_flush_fails(self, call: Callable[[FlushFailedError], None]) -> None:
        """Call `call` once, on any thread, with the failed flush that ends durability. Pass its text as
        `StoreConfig.stopped` to the next opening."""
        self._refusal.when_flush_fails(call)

    def disk_takes_writes(self) -> bool:
        """Whether a stopped store may be reopened for writing: the newest log file can be opened, a small file can be
        written, and the disk has space for the next log files. Waits for the disk."""
        layout, log_bytes = self._parts.layout, self.sizes.commit_log_bytes
        room = max(free for free, _ in map(disk_space, layout.commit_log.writable))
        if room < ROOM_FACTOR * log_bytes:
            return False
        newest = self._log.files.last
        try:
            if newest is not None:
                os.close(open_file(newest.path, os.O_RDWR))
            write_own_file(layout.own / "probe", None, self._parts.disk)
            unlink(layout.own / "probe")
        except (StoreError, OSError):
            return False
        return True

    def _require_write_side(self) -> _WriteSide:
        self._refusal.require_none()
        assert self._write_side is not None
        return self._write_side

    def receiver(self) -> Receiver:
        """The only writer of a replica (`StoreConfig.is_replica`), for its master's log. Call it once."""
        assert self._write_side is not None
        return Receiver(self._parts, self._write_side.dispatcher, self._write_side.durability)

    # topics

    @property
    def topics_removed(self) -> int:
        """Changes after topics or queues were deleted."""
        return self._topics.removals

    def topics(self) -> list[str]:
        """Names of all topics, sorted: the union of config/topics.json and consumequeue/."""
        return self._topics.names()

    def has_topic(self, topic: str) -> bool:
        """Whether there is such a topic; cheap, never raises."""
        return self._topics.has(topic)

    def queues(self, topic: str) -> list[int]:
        """Queue ids of a topic, ascending. TopicNotFoundError."""
        return self._topics.queue_ids(topic)

    def queues_by_topic(self) -> dict[str, list[int]]:
        """Topic -> queue ids, both sorted. Never raises, even while topics are made or deleted."""
        return self._topics.queue_ids_by_topic()

    def queue_states(self, topics: Iterable[str] | None = None) -> list[QueueState]:
        """The state of each queue of `topics` (None: of all, by topic), by queue id; a topic that is not there has
        none. The call leaves no queue open, so it takes less memory than `bounds` of each. WouldBlock on a nonblocking
        thread."""
        check_deadline()
        state = self._parts.queues.state
        found = self._topics.queue_ids_by_topic(topics).items()
        return [state(topic, queue) for topic, queues in found for queue in queues]

    def has_queue(self, topic: str, queue: int) -> bool:
        """Whether the topic has the queue; cheap, never raises."""
        return self._topics.has_queue(topic, queue)

    def require_writable(self, topic: str) -> None:
        """Raise TopicPermissionError for a topic whose `perm` in config/topics.json has no write bit."""
        self._topics.require_writable(topic)

    def is_writable(self, topic: str) -> bool:
        """Whether the `perm` of a topic allows publishing; True for a topic without `perm`."""
        return topic not in self._topics.table.unwritable

    def queue(self, topic: str, queue: int) -> Queue:
        """Handle of one queue. Its calls need no look-up by topic and queue id. TopicNotFoundError."""
        self._topics.require_queue(topic, queue)
        return self._queue(topic, queue)

    def _queue(self, topic: str, queue_id: int) -> Queue:
        """As `queue`, also for a queue that does not exist."""
        of_topic = self._queues.get(topic)
        found = None if of_topic is None else of_topic.get(queue_id)
        if found is None:
            found = Queue(topic, queue_id, self._reader, self._sums, self._refusal, self._writer)
            if self._parts.queues.has_queue(topic, queue_id):  # else failed look-ups would fill the cache
                self._queues.setdefault(topic, {})[queue_id] = found
        return found

    def _forget_queues(self, topic: str) -> None:
        """Drop the handles and sums of a topic whose queues were deleted or replaced."""
        self._sums.forget_topic(topic)
        self._queues.pop(topic, None)

    def create_topic(self, topic: str, queues: int | None = None) -> None:
        """Make a topic with `queues` queues; None: `config.default_queues`.

        TopicExistsError, IllegalTopicError, ReadOnlyStoreError, ConfigFileError, OSError.
        """
        self.create_topics({topic: self.config.default_queues if queues is None else queues})

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Make topics with these numbers of queues, all or none, with one write of config/topics.json.

        TopicExistsError, IllegalTopicError; TopicsRefusedError if several are refused; ReadOnlyStoreError,
        ConfigFileError, OSError.
        """
        self._refusal.require_none()
        self._topics.create(topics)

    def grow_topic(self, topic: str, queues: int) -> None:
        """Give a topic at least `queues` queues. TopicNotFoundError, IllegalTopicError, ReadOnlyStoreError, OSError."""
        self._refusal.require_none()
        if not self._topics.has(topic):
            raise TopicNotFoundError(topic)
        self._topics.ensure(topic, queues)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages permanently: a rebuild does not restore them.

        Their bytes stay in the log until retention deletes the files. A later `put` makes a new topic of that name.
        TopicNotFoundError, ReadOnlyStoreError, OSError: the topic is unchanged, or has no message, or the next opening
        finishes the deletion.
        """
        durability = self._require_write_side().durability
        if not self._topics.has(topic):
            raise TopicNotFoundError(topic)
        self.flush()
        deleted, queues = self._parts.deleted, self._parts.queues
        ends, deleted_before = queues.ends(topic), deleted.until(topic)
        deleted.add(topic, self._log.wrote_end)
        failure: Exception | None = None
        try:
            self._topics.forget(topic)
        except (StoreError, OSError) as error:
            if deleted.take_back(topic, deleted_before):
                raise
            failure = error
        with self._log.lock:  # publishers wait from here on, for memory and not for the disk
            durability.commit()
            if queues.ends(topic) != ends:  # messages were published meanwhile
                deleted.add(topic, self._log.wrote_end)
            gone = queues.contents(topic)
            self._topics.remove_queues(topic)
            self._forget_queues(topic)
            self._reader.forget_keys()
        queues.sync_names()
        for expired in gone:
            self._listeners.expired(expired)
        durability.forget_topic(topic)
        deleted.finish(topic)
        if failure is not None:
            raise failure

    # publishing

    def put(self, message: Message, queue: int | None = None) -> PutResult:
        """Store one message; it is readable when this returns (durable: see `wait_durable`).

        `queue` None uses the topic's queues in turn. An unknown topic is made, as a broker does. TopicNotFoundError
        (no such queue), TopicPermissionError, MessageTooLargeError, IllegalMessageError, StoreFullError,
        ObstructedError, ReadOnlyStoreError.
        """
        return (self._writer or self._require_write_side().writer).put(message, queue)

    def put_batch(self, messages: Sequence[Message], queue: int | None = None) -> PutRange:
        """Store messages of one topic, all or none. Errors as `put`.

        `queue` None distributes them over the topic's queues in turn; queue and offset of the range are the first's.
        """
        return (self._writer or self._require_write_side().writer).put_batch(messages, queue)

    def put_lines(
        self,
        topic: str,
        lines: Lines,
        queue: int | None = None,
        *,
        keys: Sequence[str] = (),
        tags: str = "",
        properties: Mapping[str, str] = NO_PROPERTIES,
    ) -> PutRange:
        """Store each line as a message, all or none: `put_batch`, much faster.

        `lines` is a buffer of whole lines, or a sequence of lines: each ends in a newline, which is dropped; empty
        ones are skipped. Errors as `put`.
        """
        writer = self._writer or self._require_write_side().writer
        return writer.put_lines(topic, lines, queue, keys, tags, properties)

    def when_placing(self, call: Callable[[int], None]) -> None:
        """Call `call` with the physical offset of each put right before it is published, on the thread of the put.

        After a kill the messages of that put are in the store if and only if the log goes on behind that offset.
        """
        self._log.placing = call

    # durability

    @property
    def physical_end(self) -> int:
        """Physical offset just past the newest record written."""
        return self._log.wrote_end

    @property
    def durable_end(self) -> int:
        """Physical offset before which everything is known to be on disk."""
        known = self._known_durable_end
        return self._log.files.flushed_offset if known is None else known

    def master_figures(self) -> MasterFigures | None:
        """The figures of the replicas that this store serves (`StoreConfig.master`); of a copy, as the replication that
        writes it has noted them. None: none are served."""
        if self._master is not None:
            return self._master.figures()
        note = self.replica()
        return note.serves if note is not None and note.is_running(self.config.clock()) else None

    @property
    def sync_flush(self) -> bool:
        """Whether this store's policy is to acknowledge only what is on disk (the caller waits: `wait_durable`)."""
        return self.config.flush.sync

    def wait_durable(self, physical_end: int) -> None:
        """Return when everything before `physical_end` is on disk and, for a SYNC_MASTER, on its replicas.
        FlushFailedError, StoreClosedError; NotReplicatedError: too few replicas acknowledged it in time."""
        if self._write_side is not None:
            wait_until(self.request_durable, physical_end)
        elif (failure := self._never_durable(physical_end)) is not None:
            raise failure

    def request_durable(self, physical_end: int, done: Callable[[StoreError | None], None]) -> None:
        """Call `done(None)` when everything before `physical_end` is on disk and, for a SYNC_MASTER, on its replicas;
        `done(error)` when that failed. Errors as `wait_durable`.

        `done` runs on the thread that flushes or on the master's, or at once on this one; it must be quick and must not
        raise.
        """
        if self._write_side is None:
            done(self._never_durable(physical_end))
            return
        acks = None if self._master is None else self._master.acks
        if acks is not None:
            done = when_both(done)
            acks.request(physical_end, done)
        self._write_side.durability.log_flusher.request_durable(physical_end, done)

    def _never_durable(self, physical_end: int) -> FlushFailedError | None:
        """The error for data before `physical_end` that a stopped store never brings to disk; None: it is on disk."""
        stopped = self.config.stopped
        if stopped is None or physical_end <= self.durable_end:
            return None
        return FlushFailedError(self.path, stopped)

    def flush(self) -> None:
        """Return when everything written so far is on disk, derived data too. FlushFailedError, StoreClosedError."""
        if self._write_side is not None:
            self._write_side.durability.flush()
        elif (failure := self._never_durable(self.physical_end)) is not None:
            raise failure

    # reading

    def bounds(self, topic: str, queue: int) -> QueueBounds:
        """Oldest and next queue offset. TopicNotFoundError."""
        return self._queue(topic, queue).bounds()

    def get(self, topic: str, queue: int, queue_offset: int) -> StoredMessage:
        """The message at a queue offset; its slot, framing and CRC are checked.

        MessageNotFoundError, ExpiredMessageError, DamagedRecordError, TruncatedFileError, TopicNotFoundError.
        """
        return self._queue(topic, queue).get(queue_offset)

    def at(self, physical_offset: int) -> StoredMessage:
        """The message whose record starts at a physical offset. Errors as `get`; MessageNotFoundError for a message of
        a deleted topic."""
        message = self._reader.at(physical_offset)
        if physical_offset < self._parts.deleted.until(message.topic):
            raise MessageNotFoundError(physical_offset=physical_offset)
        return message

    def known_body_size(self, message: StoredMessage) -> int | None:
        """Size of a message's body in bytes; None for a compressed body that was not decompressed recently."""
        return self._reader.known_body_size(message)

    def body_of(self, message: StoredMessage) -> memoryview:
        """A message's body, decompressed if necessary; only its size is cached. BodyTooLargeError, DamagedRecordError;
        WouldBlock on a nonblocking thread."""
        return self._reader.body_of(message)

    def read(
        self, topic: str, queue: int, start: int, count: int | None = None, damaged: Damaged = ignore
    ) -> Iterator[StoredMessage]:
        """Messages at queue offsets [start, start + count), oldest first. `damaged` gets the offsets of damaged ones,
        which are skipped. The read-ahead grows as the iteration goes on. TopicNotFoundError."""
        return self._queue(topic, queue).read(start, count, damaged)

    @overload
    def follow(
        self,
        topic: str,
        queue: int | None = ...,
        start: int | None = ...,
        *,
        timeout: None = ...,
        poll_ms: int = ...,
        damaged: Callable[[int, int], None] | None = ...,
    ) -> Iterator[StoredMessage]: ...
    @overload
    def follow(
        self,
        topic: str,
        queue: int | None = ...,
        start: int | None = ...,
        *,
        timeout: float,
        poll_ms: int = ...,
        damaged: Callable[[int, int], None] | None = ...,
    ) -> Iterator[StoredMessage | None]: ...
    def follow(
        self,
        topic: str,
        queue: int | None = None,
        start: int | None = None,
        *,
        timeout: float | None = None,
        poll_ms: int = 100,
        damaged: Callable[[int, int], None] | None = None,
    ) -> Iterator[StoredMessage] | Iterator[StoredMessage | None]:
        """Messages of a topic, or of one queue, as they are published; waits for more until the store is closed.

        `start` is a queue offset in each queue (0: from the oldest message); None: only new messages. Messages found
        at one poll are in the order of the log. With `timeout` the iterator yields None each time that no message has
        come for so many seconds, and goes on. `damaged` gets queue and queue offset of each damaged message, which is
        skipped. FOLLOW: polls every `poll_ms`. TopicNotFoundError, also when the topic is deleted during the iteration.
        """
        self.refresh()
        ends = {number: self._first_to_follow(topic, number, start) for number in self._followed(topic, queue)}
        return self._as_they_come(topic, queue, ends, timeout, poll_ms / 1000, damaged)

    def _followed(self, topic: str, queue: int | None) -> list[int]:
        if queue is None:
            return self.queues(topic)
        self._topics.require_queue(topic, queue)
        return [queue]

    def _first_to_follow(self, topic: str, queue: int, start: int | None) -> int:
        bounds = self.bounds(topic, queue)
        return bounds.max_offset if start is None else max(start, bounds.min_offset)

    def _as_they_come(
        self,
        topic: str,
        queue: int | None,
        ends: dict[int, int],
        timeout: float | None,
        poll_seconds: float,
        damaged: Callable[[int, int], None] | None,
    ) -> Iterator[StoredMessage | None]:
        news = _News(topic)
        unsubscribe = self.subscribe(news)
        seconds = math.inf if timeout is None else timeout
        end_of_wait = time.monotonic() + seconds
        try:
            while not self._closed:
                news.clear()
                self.refresh()
                come = []
                for number in self._followed(topic, queue):
                    start, end = ends.get(number, 0), self.bounds(topic, number).max_offset
                    if end > start:
                        tell = ignore if damaged is None else partial(damaged, number)
                        come.append(self.read(topic, number, start, end - start, tell))
                        ends[number] = end
                yield from heapq.merge(*come, key=attrgetter("physical_offset"))
                left = end_of_wait - time.monotonic()
                if not come and left > 0:
                    news.wait(min(poll_seconds, left))
                    continue
                if not come:
                    yield None
                end_of_wait = time.monotonic() + seconds
        finally:
            unsubscribe()

    def entries(self, topic: str, queue: int, start: int, count: int) -> np.ndarray[Any, Any]:
        """Consume-queue entries (ENTRY, shape (n,)) at queue offsets [max(start, min_offset), start + count). An entry
        that the disk can't read has size 0. TopicNotFoundError."""
        return self._queue(topic, queue).entries(start, count)

    def headers(self, topic: str, queue: int, start: int, count: int) -> np.ndarray[Any, Any]:
        """Headers of messages (HEADER, shape (n,)); row i has queue offset start + i.

        `ok` is false for damaged and expired messages. CRCs are not checked.
        """
        return self._queue(topic, queue).headers(start, count)

    def columns(self, topic: str, queue: int, start: int, count: int) -> Columns:
        """Bodies, keys and tags of up to `count` messages from queue offset max(start, min_offset) on, as arrays."""
        return self._queue(topic, queue).columns(start, count)

    def record_sizes(
        self, topic: str, queue: int, start: int, count: int
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Record sizes and body sizes in bytes, both int64 (n,), of up to `count` messages from queue offset
        max(start, min_offset) on. Both are 0 without a good record; a compressed body has -1. TopicNotFoundError."""
        return self._queue(topic, queue).record_sizes(start, count)

    def blocks(self, topic: str, queue: int, start: int, count: int) -> list[Block]:
        """All fields of up to `count` messages from queue offset max(start, min_offset) on, as arrays: one block for
        each log file. Damaged messages are skipped and counted. TopicNotFoundError."""
        return self._queue(topic, queue).blocks(start, count)

    def outline(self, topic: str, queue: int, start: int, count: int) -> Outline | None:
        """Sizes and texts of the block of `count` messages from queue offset `start` on. None: only the block itself
        has them (messages are damaged, compressed, in several log files …). TopicNotFoundError."""
        return self._queue(topic, queue).outline(start, count)

    def bodies(self, bodies: Bodies) -> SliceColumn:
        """The bodies of a block's messages; the column may view the mapped log. Errors as `at`."""
        return self._reader.bodies(bodies)

    def holding(
        self,
        topic: str,
        queue: int,
        start: int,
        count: int,
        texts: Sequence[bytes],
        any_case: bool = False,
        damaged: Damaged = ignore,
    ) -> Iterator[Held]:
        """Search `count` messages from queue offset max(start, min_offset) on for bodies that contain one of `texts`.

        Without texts every message matches. `any_case` ignores the case of ASCII letters. Yields matches, oldest first.
        `damaged` gets the queue offsets of damaged messages, which are skipped; only bodies with a match have their CRC
        checked. TopicNotFoundError.
        """
        return self._queue(topic, queue).holding(start, count, texts, any_case, damaged)

    def query(
        self, topic: str, key: str, limit: int = 64, begin_ms: int = 0, end_ms: int = MAX_TIME_MS
    ) -> list[StoredMessage]:
        """Messages that carry `key` (in KEYS or as UNIQ_KEY), newest first, stored within [begin_ms, end_ms].

        As in RocketMQ, they include records of transactions that are in no queue.
        """
        return self._reader.query(topic, key, limit, begin_ms, end_ms)

    def newest_with_key(self, topic: str, key: str) -> StoredMessage | None:
        """The newest message with `key` that is in a queue, or None; cached until the log grows. WouldBlock on a
        nonblocking thread."""
        return self._reader.newest_with_key(topic, key)

    def key_slots(self, topic: str, key: str) -> Iterator[np.ndarray[Any, Any]]:
        """Yields arrays of queue ids and queue offsets, int64 (n, 2), of the messages that carry `key`, some thousand
        rows each. A row may occur twice."""
        return self._reader.key_slots(topic, key)

    def newest_keys(self, topic: str, limit: int = 10_000) -> list[str]:
        """Keys of the topic's newest `limit` messages, sorted. TopicNotFoundError."""
        return self._reader.newest_keys(topic, limit)

    def offset_at(self, topic: str, queue: int, when_ms: int) -> int:
        """Queue offset of the first message stored at or after `when_ms`; max_offset when there is none."""
        return self._queue(topic, queue).offset_at(when_ms)

    def stream(self, topic: str, queue: int) -> QueueStream:
        """The queue as one growing text: body, newline, body, newline. TopicNotFoundError."""
        return self._queue(topic, queue).stream()

    def topic_queue(self, topic: str) -> TopicQueue:
        """The messages of all queues of a topic in the order of the log, as far as they are merged. Use the object for
        one operation only. TopicNotFoundError."""
        if not self._topics.has(topic):
            raise TopicNotFoundError(topic)
        return self._sums.topic(topic, lambda: self._merged(topic))

    def _merged(self, topic: str) -> TopicQueue:
        queues, known = self._parts.queues, (-1, list[ConsumeQueue]())

        def of_topic() -> list[ConsumeQueue]:
            nonlocal known
            if known[0] != (generation := queues.generation):
                found = (queues.get(topic, queue_id) for queue_id in queues.queue_ids(topic))
                known = generation, [queue for queue in found if queue is not None]
            return known[1]

        return TopicQueue(
            topic,
            of_topic,
            lambda: len(queues.queue_ids(topic)),
            lambda: self._log.min_offset,
            None if self.mode is OpenMode.FOLLOW else self._dispatched_end,
            self.refresh,
            self.config.cache,
        )

    def _dispatched_end(self) -> int:
        """Physical offset before which all queues have their entries, unless another process writes them."""
        newest = None if self._write_side is None else self._write_side.dispatcher.newest
        return self._opened_end if newest is None else max(newest.end, self._opened_end)

    def topic_stream(self, topic: str) -> QueueStream:
        """The topic as one growing text, as `stream`, with its messages in the order of the log. TopicNotFoundError;
        WouldBlock on a nonblocking thread when many messages must be merged first."""
        merged = self.topic_queue(topic)
        unmerged = merged.unmerged
        if unmerged > QUICK_SUM_MESSAGES:
            check_deadline()
        if unmerged:
            merged.merge_until()
        return QueueStream(merged, self._sums.of(merged))

    def text_at_rest(self, topic: str) -> TextAtRest | None:
        """Size and begin of the text that `topic_stream` would show, for a topic of few messages whose queues are not
        open. The call opens none. None: the caller has to ask `topic_stream`."""
        rows = self._parts.queues.rows_at_rest(topic, MOST_AT_REST)
        found = None if rows is None else self._sums.text_at_rest(topic, rows)
        return found if found is not None and found.first_offset >= self._log.min_offset else None

    def state_of_topic(self, topic: str) -> tuple[int, ...]:
        """Changes with each message that comes to the topic or expires, and also at other times. Cheap."""
        return self._log.min_offset, *self._parts.queues.state_of_topic(topic)

    def sum_streams(self, seconds: float) -> bool:
        """Compute sizes of long streams and of streams in use, for about `seconds`; returns whether all are done. Only
        the first call looks at all queues, each later one at those with new messages.

        WRITE: the sums are stored for the next opening. OSError.
        """
        with self._summing:
            return self._closed or self._sums.keep(self._grown_queues(), seconds)

    def queues_since(self, physical_offset: int) -> list[tuple[str, int]]:
        """Topics and ids of the open queues with messages from a physical offset on; those that were written are."""
        opened = self._parts.queues.opened()
        return [(one.topic, one.queue_id) for one in opened if one.newest_physical_offset >= physical_offset]

    def _grown_queues(self) -> list[ConsumeQueue]:
        """Queues with new messages since the last call; at the first call all long queues and all opened ones."""
        queues = self._parts.queues
        if self._grown is None:
            self._grown = _Grown()
            self.subscribe(self._grown)
            queues.open_long()
            return queues.opened()
        return [queue for key in self._grown.take() if (queue := queues.by_key.get(key)) is not None]

    # files that become messages

    @property
    def log_begin(self) -> int:
        """Physical offset of the oldest byte of the log."""
        return self._log.min_offset

    def drop_box(self, topic: str, queue: int | None = None) -> DropBox:
        """The drop box of a topic, or of one of its queues: its files become messages. One caller at a time.
        TopicNotFoundError, ReadOnlyStoreError, OSError; WouldBlock on a nonblocking thread if a file was ever dropped
        there: they are listed."""
        self._refusal.require_none()
        if queue is None:
            self._topics.queue_ids(topic)
        else:
            self._topics.require_queue(topic, queue)
        folder, config = self._parts.layout.drop, self.config
        if is_used(folder, topic, queue):
            check_deadline()
        return DropBox(self, folder, topic, queue, config.clock, config.max_message_bytes)

    def drop_boxes(self) -> list[FoundBox]:
        """The drop boxes that may contain files. OSError, ObstructedError."""
        return list(boxes_below(self._parts.layout.drop))

    # life

    def hold(self, physical_offset: int) -> Hold:
        """Keep the log file at `physical_offset` readable until released. ExpiredMessageError, MessageNotFoundError."""
        return self._log.hold(physical_offset)

    def refresh(self) -> bool:
        """FOLLOW: load the writer's changes; True when there were any. Cheap without changes."""
        if self._follower is None:
            return False
        with self._lifecycle:
            changed = not self._closed and self._follower.refresh()
            self._sums.refreshed()
            return changed

    def _forget_log(self) -> None:
        self.log_generation += 1
        self._sums.forget_log()
        self.known_ranges.forget_log()
        self._reader.records.forget_damaged()

    def clean(self) -> int:
        """Run retention once; returns the number of log files deleted. OSError."""
        return self._write_side.cleaner.clean() if self._write_side is not None else 0

    @property
    def retention(self) -> Retention | None:
        """The retention in force; None if this store deletes nothing, for example because it is only read."""
        return self._write_side.cleaner.retention if self._write_side is not None else None

    def plan_retention(self, retention: Retention | None) -> RetentionPlan:
        """The files that `retention` would delete if it were in force now. Works in any mode and deletes nothing."""
        return self._expiring.plan(retention)

    def asked_retention(self) -> Retention | None:
        """The retention that a writer of this store has in force: the one it was opened with, else the one in
        config/retention.json. ConfigFileError."""
        return self.config.retention or read_retention(self._parts.layout.retention)

    def reread_retention(self) -> Retention | None:
        """Apply the current config/retention.json, unless this store was opened with `config.retention`; returns the
        retention in force. ConfigFileError, OSError: the retention is unchanged."""
        if self._write_side is None:
            return None
        if self.config.retention is None:
            self._write_side.cleaner.apply(self.asked_retention())
        return self.retention

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Notify `listener` of later events; the returned function unsubscribes it."""
        return self._listeners.subscribe(listener)

    def consumer_offsets(self) -> dict[str, dict[str, dict[int, int]]]:
        """Committed offsets: group -> topic -> queue -> next queue offset; read-only. ConfigFileError; WouldBlock on a
        nonblocking thread."""
        return self._consumer_offsets.read()

    @property
    def consumer_offsets_changed_ns(self) -> int | None:
        """Time of the last change of the committed offsets in ns since the epoch; None: there are none."""
        return self._consumer_offsets.changed_ns

    def commit_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Durably commit the next queue offset, at most the queue's end, of a consumer group; brokers use it, too.
        ConsumerOffsetError, TopicNotFoundError, ReadOnlyStoreError, ConfigFileError, OSError."""
        self._refusal.require_none()
        self._topics.require_queue(topic, queue)
        end = self.bounds(topic, queue).max_offset
        if not 0 <= offset <= end:
            raise ConsumerOffsetError(group, f"{topic}/{queue} has no offset {offset}: it ends at {end}")
        self._consumer_offsets.commit(group, topic, queue, offset, self._parts.disk, self.config.clock())

    def settings_problems(self) -> list[str]:
        """Sentences, with paths, about files below config/ that can't be parsed and are not used."""
        problems = self._topics.table.problems()
        try:
            self.consumer_offsets()
        except ConfigFileError as error:
            problems.append(str(error))
        return problems

    def check(self, progress: Callable[[CheckProgress], None] | None = None) -> Iterator[Problem]:
        """Re-derive every consume-queue and index byte from the commit log; yield the differences.

        Records written during the check are not checked. Retention and topic changes during it may be reported.
        """
        if not self._refusal.is_final and self._write_side is not None:
            self._write_side.durability.commit()
        with self._log.lock:  # what is readable is dispatched
            end = self._log.readable_end
        if not self._refusal.is_final:
            self.flush()  # its keys, too, are in the index's files
        return check_store_files(self._parts, end, progress)

    def last_check(self) -> CheckNote | None:
        """The last online check (`check_online`), finished or running; None: there was none."""
        return read_check_note(self._parts.layout.check_note)

    def replica(self) -> ReplicaNote | None:
        """The state of the replication that writes this store; None: it is no replica, or its note can't be read."""
        return read_replica_note(self._parts.layout.replica_note)

    def watch_news(self) -> NewsWatch | None:
        """FOLLOW: a watch that wakes when a replication has written, or fsstore's writer has flushed; None: there can
        be none. The caller closes it."""
        try:
            return NewsWatch(self._parts.layout.own)
        except OSError:
            return None

    def stats(self, queues: Sequence[QueueState] | None = None) -> StoreStats:
        """Sizes and counters of the store; `queues`: what `queue_states` has just returned. WouldBlock on a nonblocking
        thread; OSError."""
        check_deadline()
        queues = self.queue_states() if queues is None else queues
        write_side, index = self._write_side, self.index_state
        parts, sizes, log_files = self._parts, self.sizes, len(self._log.files.files)
        index_files = len(parts.index.files)
        queue_files = sum(queue.files for queue in queues)
        disk_free, disk_total = max(map(disk_space, parts.layout.commit_log.writable))
        return StoreStats(
            path=str(self.path),
            mode=self.mode.value,
            read_only_reason=self.read_only_reason,
            topics=len(self.topics()),
            queues=len(queues),
            durable_end=self.durable_end,
            put_messages=self._writer.messages if self._writer else 0,
            put_bytes=self._writer.bytes if self._writer else 0,
            read_messages=self._reader.messages,
            read_bytes=self._reader.bytes,
            queries=self._reader.queries,
            flushes=write_side.durability.log_flusher.flushes if write_side else 0,
            expired_files=write_side.cleaner.expired_files if write_side else 0,
            expired_messages=write_side.cleaner.expired_messages if write_side else 0,
            expired_bytes=write_side.cleaner.expired_bytes if write_side else 0,
            last_deletion=write_side.cleaner.last_deletion if write_side else None,
            no_space_reason=self._refusal.no_space_reason,
            sync_flush=self.sync_flush,
            opened_at_ms=self.opened_at_ms,
            index=index.state,
            index_reason=index.reason,
            queues_derived=self.queues_derived,
            not_shown=self.not_shown,
            damaged_places=self._reader.records.damaged_places,
            refused_pages=all_pages_refused(),
            ignored_errors=parts.ignored.count,
            last_ignored_error=parts.ignored.last,
            recovery=self.recovery,
            messages=sum(queue.messages for queue in queues),
            min_physical_offset=self._log.min_offset,
            physical_end=self._log.wrote_end,
            commit_log_kind=self._log.framing.kind,
            commit_log_files=log_files,
            consume_queue_files=queue_files,
            index_files=index_files,
            commit_log_file_bytes=sizes.commit_log_bytes,
            consume_queue_file_bytes=sizes.consume_queue_bytes,
            index_slots=sizes.index_slots,
            index_entries=sizes.index_entries,
            size_bytes=log_files * sizes.commit_log_bytes
            + queue_files * sizes.consume_queue_bytes
            + index_files * sizes.index_bytes,
            disk_free_bytes=disk_free,
            disk_total_bytes=disk_total,
        )


class _Forgetting(StoreListener):
    """Drops what a follower's store remembers of queues and of a log that are gone, and notes what has grown."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def appended(self, topic: str, queue: int) -> None:
        self._store._sums.note_growth(topic)

    def topics_changed(self) -> None:
        self._store._sums.note_growth()

    def queue_gone(self, topic: str, queue: int) -> None:
        self._store._forget_queues(topic)

    def log_rewritten(self, physical_end: int) -> None:
        self._store._forget_log()


class _Expiry(StoreListener):
    """Deletes what is known of expired messages."""

    def __init__(self, ranges: KnownRanges) -> None:
        self._ranges = ranges

    def expired(self, expired: Expired) -> None:
        self._ranges.delete_expired()


class _Grown(StoreListener):
    """Collects the queues that get messages."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, int]] = set()

    def appended(self, topic: str, queue: int) -> None:
        self._keys.add((topic, queue))

    def take(self) -> set[tuple[str, int]]:
        """The queues since the last call."""
        return {self._keys.pop() for _ in range(len(self._keys))}


class _News(StoreListener):
    """Wakes a thread that waits for messages of a topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._event = threading.Event()

    def appended(self, topic: str, queue: int) -> None:
        if topic == self._topic:
            self._event.set()

    def clear(self) -> None:
        """Reset before reading: later messages wake the thread again."""
        self._event.clear()

    def wait(self, seconds: float) -> None:
        """Return when messages were appended, or after `seconds`."""
        self._event.wait(seconds)


class _WriteSide:
    """Parts of a store that is open for writing: writer, flushers, retention. `start` and `close` once."""

    def __init__(
        self,
        opened: Opened,
        topics: TopicView,
        config: StoreConfig,
        listeners: Listeners,
        refusal: Refusal,
        expiring: ExpiringLog,
    ) -> None:
        """Starts no thread before `start`. ConfigFileError: config/retention.json can't be parsed."""
        parts, recovered = opened.parts, opened.recovered
        log, queues, index = parts.log, parts.queues, parts.index
        arguments = (index, recovered.newest, listeners.appended, refusal.stop)
        buffers = config.transient_pool_buffers
        dispatcher = BufferedDispatcher(*arguments, log) if buffers else WriteDispatcher(*arguments)
        self._log = log
        self._taken_over = recovered.was_clean
        self.dispatcher = dispatcher
        self.writer = Writer(log, queues, dispatcher, topics, parts.levels, config, refusal)
        self.durability = Durability(
            parts, dispatcher, recovered.queues, recovered.unread, config.flush, refusal.note_flush_failure
        )
        self.cleaner = Cleaner(
            expiring,
            parts,
            config.retention or read_retention(parts.layout.retention),
            config.clock,
            expired=listeners.expired,
            refused=refusal.note_full_disk,
            marked=self.durability.note_expired,
            failed=lambda error: refusal.stop(f"retention failed: {_said_by(error)}"),
        )
        refusal.look_again = self.cleaner.look_again

    def start(self) -> None:
        """Start the background threads; recovered data is flushed first. FlushFailedError."""
        self.durability.start()
        if not self._taken_over:
            self.durability.flush()
        self.cleaner.start()

    def close(self) -> bool:
        """Flush, end the background threads; returns whether everything is on disk. Nothing is written afterwards."""
        self.cleaner.close()
        with self._log.lock:  # a put that is under way ends first
            pass
        return self.durability.close()


def _said_by(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) if isinstance(error, StoreError | OSError) else repr(error)


def _why_read_only(config: StoreConfig) -> ReadOnlyStoreError | None:
    """The error for puts from the start; None: the store takes them."""
    if config.stopped is not None or config.mode is not OpenMode.WRITE:
        return ReadOnlyStoreError(config.stopped or _READ_ONLY_REASONS[config.mode])
    return ReadOnlyStoreError("it is a replica: its messages come from its master") if config.is_replica else None


_READ_ONLY_REASONS = {
    OpenMode.READ_ONLY: "it was opened read-only",
    OpenMode.FOLLOW: "another process writes it, and it is only followed",
}

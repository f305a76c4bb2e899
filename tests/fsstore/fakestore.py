"""A message store in memory that fails when it is told to: what the engine promises, without a file."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from engine import (
    EMBEDDED_SIZES,
    CheckNote,
    DamagedRecordError,
    Expired,
    ExpiredMessageError,
    FlushFailedError,
    Host,
    IllegalTopicError,
    Message,
    MessageNotFoundError,
    MessageStore,
    OpenMode,
    PutRange,
    QueueBounds,
    StoreConfig,
    StoreError,
    StoreIdentity,
    StoreStats,
    TopicExistsError,
    TopicNotFoundError,
    TopicPermissionError,
    check_message,
)
from engine.deadline import check_deadline
from engine.read.offset_index import QUICK_SUM_MESSAGES

HEADER = np.dtype(
    [
        ("queue_offset", "i8"),
        ("physical_offset", "i8"),
        ("store_size", "i4"),
        ("body_size", "i8"),
        ("store_time_ms", "i8"),
        ("sys_flag", "i4"),
        ("ok", "?"),
    ]
)
FIRST_STORE_TIME_MS = 1_700_000_000_000
_RECORD_BYTES = 100


class FakeMessage(SimpleNamespace):
    """The fields of a StoredMessage that the filesystem reads."""

    @property
    def place(self) -> int:
        return int(self.physical_offset)

    @property
    def physical_end(self) -> int:
        return int(self.physical_offset + self.store_size)


class FakeStore:
    """As much of MessageStore as the filesystem calls.

    Tests set `put_error` (what every put raises), `damaged` (physical offsets), `compressed` (physical offsets whose
    size no header tells; `decompressed` then says which were, `measured` whose size is known),
    `flush_failure`, and call `expire`.
    """

    def __init__(self, path: Path, *, mode: OpenMode = OpenMode.WRITE, max_message_bytes: int = 4 << 20) -> None:
        self.path = path
        self.mode = mode
        self.sizes = EMBEDDED_SIZES
        self.identity = StoreIdentity("a fake", 1)
        self.config = StoreConfig(mode=mode, max_message_bytes=max_message_bytes)
        self.sync_flush = False
        self.retention = None
        self.read_only_reason: str | None = None
        self.unwritable: set[str] = set()
        self.flush_failure: FlushFailedError | None = None
        self.put_error: StoreError | None = None
        self.damaged: set[int] = set()
        self.compressed: set[int] = set()
        self.measured: set[int] = set()
        self.decompressed: list[int] = []
        self.offsets: dict[str, dict[str, dict[int, int]]] = {}
        self.topics_generation = 0
        self.unsummed = 0
        self.physical_end = 0
        self.durable_end = 0
        self.held: list[int] = []
        self.gets = 0
        self._log: dict[int, FakeMessage] = {}
        self._topics: dict[str, dict[int, list[FakeMessage]]] = {}
        self._first: dict[tuple[str, int], int] = {}
        self._turn = 0

    def last_check(self) -> CheckNote | None:
        return None

    def as_store(self) -> MessageStore:
        return cast(MessageStore, self)

    # topics

    def topics(self) -> list[str]:
        return sorted(self._topics)

    def queues(self, topic: str) -> list[int]:
        return sorted(self._queues(topic))

    def queues_by_topic(self) -> dict[str, list[int]]:
        return {topic: self.queues(topic) for topic in self.topics()}

    def has_queue(self, topic: str, queue: int) -> bool:
        return queue in self._topics.get(topic, {})

    def is_writable(self, topic: str) -> bool:
        return topic not in self.unwritable

    def require_writable(self, topic: str) -> None:
        if topic in self.unwritable:
            raise TopicPermissionError(topic, 4)

    def queue(self, topic: str, queue: int) -> FakeQueue:
        self._messages(topic, queue)
        return FakeQueue(self, topic, queue)

    def create_topic(self, topic: str, queues: int = 4) -> None:
        if topic in self._topics:
            raise TopicExistsError(topic)
        if not topic.replace("-", "").isalnum():
            raise IllegalTopicError(topic, "characters")
        self._topics[topic] = {queue: [] for queue in range(queues)}
        self.topics_generation += 1

    def grow_topic(self, topic: str, queues: int) -> None:
        for queue in range(queues):
            self._queues(topic).setdefault(queue, [])
        self.topics_generation += 1

    def delete_topic(self, topic: str) -> None:
        self._queues(topic)
        del self._topics[topic]
        self.topics_generation += 1

    def bounds(self, topic: str, queue: int) -> QueueBounds:
        return QueueBounds(self._first.get((topic, queue), 0), len(self._messages(topic, queue)))

    # publishing

    def put(self, message: Message, queue: int | None = None) -> FakeMessage:
        if self.put_error:
            raise self.put_error
        check_message(message, self.config.max_message_bytes)
        return self.keep(message, queue)

    def put_batch(self, messages: Sequence[Message], queue: int | None = None) -> PutRange:
        if self.put_error:
            raise self.put_error
        for message in messages:
            check_message(message, self.config.max_message_bytes)
        start = self.physical_end
        for message in messages:
            self.keep(message, queue)
        return PutRange(messages[0].topic if messages else "", 0, 0, len(messages), start, self.physical_end, 0)

    def put_lines(
        self,
        topic: str,
        lines: bytes,
        queue: int | None = None,
        *,
        keys: Sequence[str] = (),
        tags: str = "",
        properties: Mapping[str, str] = {},
    ) -> PutRange:
        assert lines.endswith(b"\n"), "whole lines only"
        bodies = [line for line in lines.split(b"\n") if line]
        return self.put_batch([Message(topic, body, keys, tags, properties) for body in bodies], queue)

    def keep(self, message: Message, queue: int | None = None) -> FakeMessage:
        """As a broker does: whatever it is."""
        queues = self._topics.setdefault(message.topic, {number: [] for number in range(4)})
        if queue is None:
            queue = sorted(queues)[self._turn % len(queues)]
            self._turn += 1
        body = bytes(message.body)
        properties = dict(message.properties)
        stored = FakeMessage(
            topic=message.topic,
            queue_id=queue,
            queue_offset=len(queues[queue]),
            physical_offset=self.physical_end,
            store_size=_RECORD_BYTES + len(body),
            body=memoryview(body),
            body_size=len(body),
            body_crc=zlib.crc32(body) & 0x7FFFFFFF,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_time_ms=FIRST_STORE_TIME_MS - 1,
            store_time_ms=FIRST_STORE_TIME_MS + 1000 * len(self._log),
            born_host=Host(b"\x7f\x00\x00\x01", 1234),
            store_host=Host(b"\x7f\x00\x00\x01", 10911),
            reconsume_times=0,
            keys=list(message.keys),
            tags=message.tags,
            unique_key=properties.get("UNIQ_KEY", ""),
            msg_id=f"{self.physical_end:032X}",
            properties=({"KEYS": " ".join(message.keys)} if message.keys else {}) | properties,
        )
        queues[queue].append(stored)
        self._log[self.physical_end] = stored
        self.physical_end = stored.physical_end
        return stored

    # reading

    def get(self, topic: str, queue: int, queue_offset: int) -> FakeMessage:
        self.gets += 1
        messages = self._messages(topic, queue)
        first = self._first.get((topic, queue), 0)
        if 0 <= queue_offset < first:
            raise ExpiredMessageError(topic, queue, queue_offset, first)
        if queue_offset >= len(messages):
            raise MessageNotFoundError(topic, queue, queue_offset)
        return self._checked(messages[queue_offset])

    def at(self, physical_offset: int) -> FakeMessage:
        self.gets += 1
        message = self._log.get(physical_offset)
        if message is None:
            raise MessageNotFoundError(physical_offset=physical_offset)
        if message.queue_offset < self._first.get((message.topic, message.queue_id), 0):
            raise ExpiredMessageError("", -1, physical_offset, physical_offset + 1)
        return self._checked(message)

    def _checked(self, message: FakeMessage) -> FakeMessage:
        if message.physical_offset in self.damaged:
            raise DamagedRecordError(message.physical_offset, "told so")
        message.is_compressed = message.physical_offset in self.compressed
        return message

    def known_body_size(self, message: FakeMessage) -> int | None:
        is_known = not message.is_compressed or message.physical_offset in self.measured
        return int(message.body_size) if is_known else None

    def body_of(self, message: FakeMessage) -> bytes:
        if message.is_compressed:
            self.decompressed.append(message.physical_offset)
            self.measured.add(message.physical_offset)
        return bytes(message.body)

    def headers(self, topic: str, queue: int, start: int, count: int) -> np.ndarray[Any, Any]:
        rows = [
            (
                message.queue_offset,
                message.physical_offset,
                message.store_size,
                -1 if message.physical_offset in self.compressed else message.body_size,
                message.store_time_ms,
                message.sys_flag,
                message.physical_offset not in self.damaged,
            )
            for message in self._messages(topic, queue)[start : start + count]
        ]
        return np.array(rows, dtype=HEADER)

    def entries(self, topic: str, queue: int, start: int, count: int) -> np.ndarray[Any, Any]:
        first = max(start, self.bounds(topic, queue).min_offset)
        return self.headers(topic, queue, first, start + count - first)

    def query(self, topic: str, key: str, limit: int = 64) -> list[FakeMessage]:
        found = [
            message
            for messages in self._queues(topic).values()
            for message in messages
            if key in message.keys or key == message.unique_key
        ]
        return sorted(found, key=lambda message: -message.physical_offset)[:limit]

    def key_places(self, topic: str, key: str) -> Iterator[np.ndarray[Any, Any]]:
        for message in self.query(topic, key, 1 << 31):
            yield np.array([[message.queue_id, message.queue_offset]] * 2, np.int64)

    def newest_with_key(self, topic: str, key: str) -> FakeMessage | None:
        return next(iter(self.query(topic, key, 1)), None)

    def newest_keys(self, topic: str, limit: int = 10_000) -> list[str]:
        check_deadline()
        messages = [message for messages in self._queues(topic).values() for message in messages]
        return sorted({key for message in messages for key in message.keys})

    def offset_at(self, topic: str, queue: int, when_ms: int) -> int:
        messages = self._messages(topic, queue)
        return next((one.queue_offset for one in messages if one.store_time_ms >= when_ms), len(messages))

    def stream(self, topic: str, queue: int) -> FakeStream:
        return FakeStream(self, topic, queue, self.bounds(topic, queue).min_offset)

    def hold(self, physical_offset: int) -> SimpleNamespace:
        self.held.append(physical_offset)
        return SimpleNamespace(release=lambda: self.held.remove(physical_offset))

    def consumer_offsets(self) -> dict[str, dict[str, dict[int, int]]]:
        return self.offsets

    @property
    def consumer_offsets_changed_ns(self) -> int | None:
        return None

    def settings_problems(self) -> list[str]:
        return []

    def stats(self) -> StoreStats:
        check_deadline()
        queues = [messages for queues in self._topics.values() for messages in queues.values()]
        figures = {field.name: 0 for field in fields(StoreStats) if field.name != "recovery"}
        facts = {
            "path": str(self.path),
            "mode": self.mode.name.lower(),
            "read_only_reason": self.read_only_reason,
            "messages": sum(map(len, queues)),
            "sync_flush": self.sync_flush,
            "queues_derived": None,
            "not_shown": (),
        }
        return StoreStats(**(figures | facts))  # type: ignore[arg-type]

    def request_durable(self, physical_end: int, done: Callable[[StoreError | None], None]) -> None:
        self.durable_end = max(self.durable_end, physical_end)
        done(None)

    # what tests do

    def expire(self, topic: str, queue: int, new_min: int) -> Expired:
        """Let retention remove the messages before `new_min`; what listeners are told."""
        old_min = self.bounds(topic, queue).min_offset
        gone = self._queues(topic)[queue][old_min:new_min]
        self._first[topic, queue] = new_min
        places = np.array([message.physical_offset for message in gone], np.int64)
        return Expired(topic, queue, old_min, new_min, places)

    def bodies(self, topic: str, queue: int) -> list[bytes]:
        """Bodies of a queue, oldest first."""
        return [bytes(message.body) for message in self._messages(topic, queue)]

    def _queues(self, topic: str) -> dict[int, list[FakeMessage]]:
        if topic not in self._topics:
            raise TopicNotFoundError(topic)
        return self._topics[topic]

    def _messages(self, topic: str, queue: int) -> list[FakeMessage]:
        queues = self._queues(topic)
        if queue not in queues:
            raise TopicNotFoundError(topic, queue)
        return queues[queue]


class FakeQueue:
    """One queue of a FakeStore; as a Queue, it makes no topic again."""

    def __init__(self, store: FakeStore, topic: str, queue_id: int) -> None:
        self._store = store
        self.topic = topic
        self.queue_id = queue_id

    def put(self, message: Message) -> FakeMessage:
        self.bounds()
        return self._store.put(message, self.queue_id)

    def put_batch(self, messages: Sequence[Message]) -> PutRange:
        self.bounds()
        return self._store.put_batch(messages, self.queue_id)

    def put_lines(
        self,
        lines: bytes,
        *,
        keys: Sequence[str],
        tags: str,
    ) -> PutRange:
        self.bounds()
        return self._store.put_lines(self.topic, lines, self.queue_id, keys=keys, tags=tags)

    def bounds(self) -> QueueBounds:
        return self._store.bounds(self.topic, self.queue_id)

    def get(self, queue_offset: int) -> FakeMessage:
        return self._store.get(self.topic, self.queue_id, queue_offset)

    def headers(self, start: int, count: int) -> np.ndarray[Any, Any]:
        return self._store.headers(self.topic, self.queue_id, start, count)

    def entries(self, start: int, count: int) -> np.ndarray[Any, Any]:
        return self._store.entries(self.topic, self.queue_id, start, count)

    def offset_at(self, when_ms: int) -> int:
        return self._store.offset_at(self.topic, self.queue_id, when_ms)

    def stream(self) -> FakeStream:
        return self._store.stream(self.topic, self.queue_id)


class FakeStream:
    """A queue's text, joined anew at each call."""

    def __init__(self, store: FakeStore, topic: str, queue: int, first_offset: int) -> None:
        self._store = store
        self._topic = topic
        self._queue = queue
        self.first_offset = first_offset
        self.decompresses = False

    @property
    def size(self) -> int:
        return len(self._summed_text())

    def sum_for(self, seconds: float) -> bool:
        self._store.unsummed = 0
        return True

    @property
    def kept_bytes(self) -> int:
        return 0

    def let_go(self) -> None:
        pass

    def reader(self, background: Executor) -> FakeStream:
        return self

    def read(self, position: int, length: int) -> bytes:
        first_now = self._store.bounds(self._topic, self._queue).min_offset
        gone = sum(
            len(body) + 1 for body in self._store.bodies(self._topic, self._queue)[self.first_offset : first_now]
        )
        if position < gone:
            raise ExpiredMessageError(self._topic, self._queue, self.first_offset, first_now)
        return self._summed_text()[position : position + length]

    def _summed_text(self) -> bytes:
        if self._store.unsummed > QUICK_SUM_MESSAGES:
            check_deadline()
        self._store.unsummed = 0
        bodies = self._store.bodies(self._topic, self._queue)[self.first_offset :]
        return b"".join(body + b"\n" for body in bodies)

"""MessageStore: the engine's front door, wiring the commit log, its derived data and their keepers together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.listeners import StoreListener
from engine.problem import CheckProgress, Problem
from engine.results import PutRange, PutResult, QueueBounds, RecoveryReport, StoreStats

if TYPE_CHECKING:
    from engine.columns import Columns
    from engine.config import FileSizes, OpenMode, StoreConfig
    from engine.errors import StoreError
    from engine.message import Message, StoredMessage
    from engine.stream import QueueStream

MAX_TIME_MS = (1 << 63) - 1
"""The end of time, for queries without one."""


class Hold:
    """Keeps the commit-log file under one physical offset readable until released (retention waits, within bounds)."""

    def release(self) -> None:
        """Let the file go; calling it twice is harmless."""
        raise NotImplementedError

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class MessageStore:
    """A store of messages in topics and queues, in Apache RocketMQ's on-disk format.

    Open it with `MessageStore.open`; close it, or use it as a context manager. Thread safety: every method may be called
    from any thread; writers take turns, readers never wait for writers.
    """

    path: Path
    config: StoreConfig
    mode: OpenMode
    sizes: FileSizes
    recovery: RecoveryReport
    topics_generation: int

    @classmethod
    def open(cls, path: Path | str, config: StoreConfig | None = None) -> MessageStore:
        """Open the store at `path`: create it when nothing is there (WRITE), recover it, or follow its writer.

        Raises StoreLockedError (another process writes it), NotAStoreError, UnsupportedStoreError (names what is not
        read), StoreFullError, and OSError when the folder can't be used.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Flush, mark the store as cleanly closed, release everything. Calling it twice is harmless."""
        raise NotImplementedError

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def read_only_reason(self) -> str | None:
        """Why nothing can be published now, in a sentence; None when it can."""
        raise NotImplementedError

    # topics

    def topics(self) -> list[str]:
        """Names of all topics, sorted: the union of config/topics.json and consumequeue/."""
        raise NotImplementedError

    def queues(self, topic: str) -> list[int]:
        """Queue ids of a topic, ascending. TopicNotFoundError."""
        raise NotImplementedError

    def has_queue(self, topic: str, queue: int) -> bool:
        """Whether that topic has that queue; cheap, never raises."""
        raise NotImplementedError

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Make a topic. TopicExistsError, IllegalTopicError, ReadOnlyStoreError."""
        raise NotImplementedError

    def grow_topic(self, topic: str, queues: int) -> None:
        """Give a topic at least `queues` queues. TopicNotFoundError, IllegalTopicError, ReadOnlyStoreError."""
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        """Forget a topic and its messages, for good (a rebuild does not bring it back). TopicNotFoundError."""
        raise NotImplementedError

    # publishing

    def bounds(self, topic: str, queue: int) -> QueueBounds:
        """Oldest and next queue offset. TopicNotFoundError, QueueNotFoundError."""
        raise NotImplementedError

    def put(self, message: Message, queue: int | None = None) -> PutResult:
        """Store one message; it is readable when this returns (durable: see `wait_durable`).

        `queue` None takes the topic's queues in turn. An unknown topic is created with 4 queues, as a broker does.
        MessageTooLargeError, IllegalMessageError, StoreFullError, ReadOnlyStoreError.
        """
        raise NotImplementedError

    def put_batch(self, messages: Sequence[Message], queue: int | None = None) -> PutRange:
        """Store messages of one topic in one queue, all or none. Errors as `put`."""
        raise NotImplementedError

    def put_lines(
        self,
        topic: str,
        lines: bytes | bytearray | memoryview,
        queue: int | None = None,
        *,
        keys: Sequence[str] = (),
        tags: str = "",
        properties: Mapping[str, str] = {},  # noqa: B006 (never written)
    ) -> PutRange:
        """Store each line of `lines` (whole lines, each ending in a newline, which is dropped; empty ones are skipped) as a
        message, all or none. Errors as `put`."""
        raise NotImplementedError

    # durability

    @property
    def physical_end(self) -> int:
        """Physical offset just past the newest readable record."""
        raise NotImplementedError

    @property
    def durable_end(self) -> int:
        """Everything before this physical offset is on disk."""
        raise NotImplementedError

    @property
    def sync_flush(self) -> bool:
        """Whether this store's policy is to acknowledge only what is on disk (the caller waits: `wait_durable`)."""
        raise NotImplementedError

    def wait_durable(self, physical_end: int) -> None:
        """Return when everything before `physical_end` is on disk. FlushFailedError."""
        raise NotImplementedError

    def request_durable(self, physical_end: int, done: Callable[[StoreError | None], None]) -> None:
        """Call `done(None)` when everything before `physical_end` is on disk, `done(error)` when that failed.

        `done` runs on the flush thread, or at once on this one.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Bring everything written so far to disk, derived data too. FlushFailedError."""
        raise NotImplementedError

    # reading

    def get(self, topic: str, queue: int, queue_offset: int) -> StoredMessage:
        """The message at a queue offset, checked (place, framing, CRC).

        MessageNotFoundError, ExpiredMessageError, DamagedRecordError(reason), TopicNotFoundError, QueueNotFoundError.
        """
        raise NotImplementedError

    def at(self, physical_offset: int) -> StoredMessage:
        """The message whose record starts at a physical offset. Errors as `get`."""
        raise NotImplementedError

    def read(self, topic: str, queue: int, start: int, count: int | None = None) -> Iterator[StoredMessage]:
        """Messages from queue offset `start` on, oldest first, up to `count` offsets; damaged ones are left out."""
        raise NotImplementedError

    def entries(self, topic: str, queue: int, start: int, count: int) -> np.ndarray[Any, Any]:
        """Consume-queue entries (dtype ENTRY, shape (n,), n <= count) from queue offset `start` on; never across the bounds."""
        raise NotImplementedError

    def headers(self, topic: str, queue: int, start: int, count: int) -> np.ndarray[Any, Any]:
        """Facts of messages (dtype HEADER, shape (n,)) gathered without an object each; `ok` false where damaged."""
        raise NotImplementedError

    def columns(self, topic: str, queue: int, start: int, count: int) -> Columns:
        """Bodies, keys and tags of up to `count` messages as arrays, for fast sequential decoding."""
        raise NotImplementedError

    def query(
        self, topic: str, key: str, limit: int = 64, begin_ms: int = 0, end_ms: int = MAX_TIME_MS
    ) -> list[StoredMessage]:
        """Messages that carry `key` (in KEYS or as UNIQ_KEY), newest first, stored within [begin_ms, end_ms]."""
        raise NotImplementedError

    def newest_with_key(self, topic: str, key: str) -> StoredMessage | None:
        """The newest message with `key`, or None; remembered until the log grows."""
        raise NotImplementedError

    def newest_keys(self, topic: str, limit: int = 10_000) -> list[str]:
        """Keys of the topic's newest messages, sorted, from about the newest `limit` messages."""
        raise NotImplementedError

    def offset_at(self, topic: str, queue: int, when_ms: int) -> int:
        """Queue offset of the first message stored at or after `when_ms`; max_offset when there is none."""
        raise NotImplementedError

    def stream(self, topic: str, queue: int) -> QueueStream:
        """The queue as one growing text: body, newline, body, newline. TopicNotFoundError, QueueNotFoundError."""
        raise NotImplementedError

    # life

    def hold(self, physical_offset: int) -> Hold:
        """Keep the file under `physical_offset` readable until released. ExpiredMessageError when it is gone."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """FOLLOW only: look for what the writer did; True when anything changed. Cheap when nothing did."""
        raise NotImplementedError

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Tell `listener` what happens from now on; the returned function ends that."""
        raise NotImplementedError

    def stats(self) -> StoreStats:
        """The store in figures."""
        raise NotImplementedError

    def consumer_offsets(self) -> dict[str, dict[str, dict[int, int]]]:
        """config/consumerOffset.json as group -> topic -> queue -> next queue offset (empty when there is none)."""
        raise NotImplementedError

    def check(self, progress: Callable[[CheckProgress], None] | None = None) -> Iterator[Problem]:
        """Re-derive every consume-queue and index byte from the commit log; yield what is wrong."""
        raise NotImplementedError

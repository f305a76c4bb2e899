"""LocalStore: a store that this process has open while a verb runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine import (
    Block,
    ByteColumn,
    ConsumerOffsetError,
    DamagedRecordError,
    Message,
    MessageStore,
    OpenMode,
    PutRange,
    ReadError,
    RecoveryProgress,
    SliceColumn,
    StoreConfig,
    StoredMessage,
    StoreLockedError,
    TruncatedFileError,
    group_problem,
)
from fsstore.query.where import READ_TOGETHER, Where, blocks
from fsstore.tree.status import status_of
from fsstore.tree.xattrs import PREFIX, attributes_of
from mountctl.client import Bodies, Labels, LeftOut, MessageRow, Placed, Queue, Topic, batches, whole_lines
from mountctl.mount_client import MountClient
from mountctl.output import progress
from mountctl.process import raise_open_files


@contextmanager
def opened(path: Path, config: StoreConfig, *modes: OpenMode) -> Iterator[MessageStore]:
    """The store at `path`, open in the first of `modes` whose lock is free. Errors as `MessageStore.open`."""
    raise_open_files()
    with progress() as show:  # the bar ends with the opening: later output has the terminal to itself

        def report(now: RecoveryProgress) -> None:
            show(now.stage, now.done_bytes, now.total_bytes)

        *first, last = [replace(config, mode=mode, progress=report) for mode in modes]
        for one in first:
            with suppress(StoreLockedError):
                store = MessageStore.open(path, one)
                break
        else:
            store = MessageStore.open(path, last)
    with store:
        yield store


class LocalClaim:
    """A claim in a store that this process has open for writing, so no other member can have one."""

    def __init__(self, store: MessageStore, group: str, topic: str, queue: int) -> None:
        self._store = store
        self._place = group, topic, queue

    def offset(self) -> int | None:
        group, topic, queue = self._place
        return self._store.consumer_offsets().get(group, {}).get(topic, {}).get(queue)

    def commit(self, offset: int) -> None:
        self._store.commit_offset(*self._place, offset)

    def release(self) -> None:
        """Nothing to do: closing the store releases it."""


class LocalStore:
    """An open store, for reading and, in WRITE mode, for writing. `left_out` records the damaged messages that reading
    skipped. Errors are the engine's."""

    def __init__(self, store: MessageStore, daemon: MountClient | None = None) -> None:
        """`daemon` serves the store, if it is mounted: it knows keys that are not in the index's files yet."""
        self.store = store
        self.left_out = LeftOut()
        self.published = 0
        self._daemon = daemon

    def status(self) -> dict[str, Any]:
        return dict(status_of(self.store))

    def topics(self) -> list[Topic]:
        self.store.refresh()
        found: dict[str, list[Queue]] = {topic: [] for topic in self.store.topics()}
        for topic, queue, min_offset, max_offset, _, refused in self.store.queue_states():
            if refused is not None:
                raise refused
            found.setdefault(topic, []).append(Queue(queue, min_offset, max_offset))
        return [Topic(name, tuple(queues)) for name, queues in found.items()]

    def has_topic(self, topic: str) -> bool:
        return self.store.has_topic(topic)

    def bounds(self, topic: str, queue: int) -> Queue:
        """A queue with its current bounds."""
        self.store.refresh()
        return self._bounds(topic, queue)

    def _bounds(self, topic: str, queue: int) -> Queue:
        bounds = self.store.bounds(topic, queue)
        return Queue(queue, bounds.min_offset, bounds.max_offset)

    def messages(self, topic: str, queue: int, start: int, count: int | None, attributes: bool) -> Iterator[MessageRow]:
        """Messages at queue offsets [start, start + count), oldest first; damaged and expired ones are skipped."""
        bounds = self.bounds(topic, queue)
        end = bounds.max_offset if count is None else min(start + count, bounds.max_offset)
        next_offset, start = start, max(start, bounds.min_offset)
        for row in self._rows(topic, queue, start, end - start, attributes) if start < end else ():
            if row.offset > next_offset:
                self.note_expired(topic, queue, next_offset, row.offset)
            next_offset = row.offset + 1
            yield row
        self.note_expired(topic, queue, next_offset, end)

    def note_expired(self, topic: str, queue: int, start: int, end: int) -> None:
        """Have `left_out` record those of the messages in [start, end) that have expired by now."""
        if start < end:
            self.left_out.expire(topic, queue, start, min(end, self.bounds(topic, queue).min_offset))

    def _rows(self, topic: str, queue: int, start: int, count: int, attributes: bool) -> Iterator[MessageRow]:
        damaged = self.left_out.noting(topic, queue)
        for message in self.store.read(topic, queue, start, count, damaged):
            try:
                row = _shown(message, topic, queue, attributes)
            except (DamagedRecordError, TruncatedFileError):  # damaged since the header was read
                damaged(message.queue_offset)
            else:
                yield row

    def bodies(
        self, topic: str, queue: int, start: int, end: int, texts: Sequence[bytes] = (), any_case: bool = False
    ) -> Iterator[Bodies]:
        """Groups of messages in [start, end), oldest first; damaged ones are skipped. They include all messages whose
        body contains one of `texts`; `any_case` ignores the case of ASCII letters."""
        self.note_expired(topic, queue, start, end)
        damaged = self.left_out.noting(topic, queue)
        for held in self.store.holding(topic, queue, start, max(end - start, 0), texts, any_case, damaged):
            yield Bodies(held.offsets, held.numbers, held.bodies)

    def texts(self, topic: str, queue: int, start: int, end: int, part: str) -> Iterator[Bodies]:
        """As `bodies`, for one of PARTS: each row is one text, so a message may have several rows, or none."""
        self.note_expired(topic, queue, start, end)
        for block in blocks(self.store, topic, queue, start, end, self.left_out.noting(topic, queue)):
            counts, texts = _texts(block, part)
            yield Bodies(np.repeat(block.queue_offset, counts), np.full(len(texts), -1), texts)

    def matching(self, topic: str, queue: int, start: int, end: int, where: Where) -> Iterator[Bodies]:
        """Groups of the messages in [start, end) for which `where` is true, oldest first; damaged ones are skipped."""
        self.note_expired(topic, queue, start, end)
        damaged = self.left_out.noting(topic, queue)
        for offsets, bodies in where.matching(self.store, topic, queue, start, end, damaged):
            if len(offsets):
                yield Bodies(offsets, np.full(len(offsets), -1), bodies)

    def with_key(self, topic: str, key: str) -> Iterator[MessageRow]:
        """Messages that carry exactly `key`, each once, by queue and offset, with their attributes."""
        found = sorted(set(self._with_key(topic, key)))
        self.store.refresh()  # the daemon may have found messages that were stored since the last refresh
        for queue, offset in found:
            yield from self._rows(topic, queue, offset, 1, attributes=True)

    def _with_key(self, topic: str, key: str) -> Iterator[tuple[int, int]]:
        """Queue and queue offset of each message that carries `key`."""
        if self._daemon is not None:
            return self._daemon.with_key(topic, key)
        return ((queue, offset) for found in self.store.key_slots(topic, key) for queue, offset in found.tolist())

    def property_values(self, topic: str, name: str) -> Iterator[str]:
        """Values of one property of the topic's messages; none for an unknown topic."""
        for queue in self.store.queues_by_topic().get(topic, ()):
            bounds = self.bounds(topic, queue)
            for first in range(bounds.min_offset, bounds.max_offset, READ_TOGETHER):
                for block in self.store.blocks(topic, queue, first, READ_TOGETHER):
                    values = block.properties.value(name.encode())
                    yield from (values[row].decode() for row in values.sizes.nonzero()[0].tolist())

    def offset_at(self, topic: str, queue: int, when_ms: int) -> int:
        """Queue offset of the first message stored at or after `when_ms`; the queue's end without one."""
        return self.store.offset_at(topic, queue, when_ms)

    def claim(self, group: str, topic: str, queue: int) -> LocalClaim | None:
        if problem := group_problem(group):
            raise ConsumerOffsetError(group, problem)
        return LocalClaim(self.store, group, topic, queue)

    def body_limit_bytes(self) -> int:
        return self.store.config.max_message_bytes

    def publish(
        self, queue: int | None, messages: Iterable[Message], stored: Callable[[Placed], None] | None = None
    ) -> None:
        for batch in batches((message, bytes(message.body)) for message in messages):
            put = self.store.put_batch([message for message, _ in batch], queue)
            self.published += len(batch)
            if stored:
                for placed in self._placed(put):
                    stored(placed)

    def _placed(self, put: PutRange) -> Iterator[Placed]:
        """The slot of each message of a batch: their records are contiguous, up to a log file's end."""
        if self.store.config.transient_pool_buffers:
            self.store.wait_durable(put.physical_end)  # before, the records can't be read
        offset, file_bytes = put.physical_offset, self.store.sizes.commit_log_bytes
        while offset < put.physical_end:
            try:
                message = self.store.at(offset)
            except ReadError:
                offset += file_bytes - offset % file_bytes
                continue
            yield Placed(message.topic, message.queue, message.queue_offset)
            offset += message.store_size

    def publish_lines(self, topic: str, queue: int | None, chunks: Iterable[bytes], labels: Labels) -> None:
        for lines in whole_lines(chunks):
            stored = self.store.put_lines(
                topic, lines, queue, keys=labels.keys, tags=labels.tags, properties=labels.properties
            )
            self.published += stored.count

    def create_topics(self, topics: Mapping[str, int]) -> None:
        self.store.create_topics(topics)

    def delete_topic(self, topic: str) -> None:
        self.store.delete_topic(topic)


def _texts(block: Block, part: str) -> tuple[Any, SliceColumn]:
    """The number of texts of each message in a block, int64 (n,), and the texts, as PARTS."""
    properties = block.properties
    if part == "keys":
        starts, keys = block.keys()
        return np.diff(starts), keys
    if part == "tags":
        return np.ones(len(block), np.int64), properties.value(b"TAGS")
    names, values = properties.names, properties.values
    leads = [names.texts[code] + b"=" for code in range(len(names.texts))]
    pairs = [leads[code] + values[item] for item, code in enumerate(names.codes.tolist())]
    return np.diff(properties.row_starts), ByteColumn.of(pairs).slices


def _shown(message: StoredMessage, topic: str, queue: int, attributes: bool) -> MessageRow:
    facts = {}
    if attributes:
        named = attributes_of(message).items()
        facts = {name.removeprefix(PREFIX): value.decode("utf-8", "replace") for name, value in named}
    where = topic, queue, message.queue_offset
    return MessageRow(*where, message.copy_body(), message.store_time_ms, message.physical_offset, facts)

"""An unmounted store, opened for as long as a verb needs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from engine import (
    Block,
    ByteColumn,
    ConsumerOffsetError,
    Message,
    MessageStore,
    OpenMode,
    RecoveryProgress,
    SliceColumn,
    StoreConfig,
    StoredMessage,
    StoreLockedError,
    TopicNotFoundError,
    group_problem,
)
from fsstore.tree.status import status_of
from fsstore.tree.xattrs import PREFIX, attributes_of
from mountctl.access import Bodies, Labels, LeftOut, MessageRow, Placed, Queue, Topic, whole_lines
from mountctl.errors import CommandError
from mountctl.options import StoreSettings
from mountctl.output import progress
from mountctl.process import raise_open_files

READ_TOGETHER = 65_536


@contextmanager
def opened(path: Path, settings: StoreSettings, writing: bool, following: bool) -> Iterator[OpenedStore]:
    """The store at `path`. A reader of a store that another process writes follows it, and changes nothing."""
    if not settings.log_paths:
        require_files(path)
    raise_open_files()
    modes = [OpenMode.WRITE] if writing else [OpenMode.FOLLOW] if following else [OpenMode.READ_ONLY, OpenMode.FOLLOW]
    with progress() as show:  # until it is open: what is printed then has the terminal for itself

        def report(now: RecoveryProgress) -> None:
            show(now.stage, now.done_bytes, now.total_bytes)

        try:
            store = MessageStore.open(path, settings.applied_to(StoreConfig(mode=modes[0], progress=report)))
        except StoreLockedError:
            if len(modes) == 1:
                raise
            store = MessageStore.open(path, settings.applied_to(StoreConfig(mode=modes[1], progress=report)))
    with store:
        yield OpenedStore(store)


def require_files(path: Path) -> None:
    """CommandError: a folder is empty, so it is no store, and perhaps a mount point."""
    if not any(path.iterdir()):
        reason = f"nothing is mounted at {path}, and no store is in it"
        raise CommandError(reason, f"`mountctl mount STORE {path}`, or name the store", os.EX_NOINPUT)


class OpenedClaim:
    """A queue of a store that nobody else has open to write."""

    def __init__(self, store: MessageStore, group: str, topic: str, queue: int) -> None:
        self._store = store
        self._place = group, topic, queue

    def offset(self) -> int | None:
        group, topic, queue = self._place
        return self._store.consumer_offsets().get(group, {}).get(topic, {}).get(queue)

    def commit(self, offset: int) -> None:
        self._store.commit_offset(*self._place, offset)

    def release(self) -> None:
        """It goes with the store."""


class OpenedStore:
    """Access to an open store. Errors are the engine's."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.left_out = LeftOut()
        self.published = 0

    @property
    def store(self) -> MessageStore:
        """For what a mount can't be asked."""
        return self._store

    def status(self) -> dict[str, Any]:
        return dict(status_of(self._store))

    def topics(self) -> list[Topic]:
        found = []
        for name, queues in self._store.queues_by_topic().items():
            with suppress(TopicNotFoundError):  # deleted this moment
                found.append(Topic(name, tuple(self.bounds(name, queue) for queue in queues)))
        return found

    def has_topic(self, topic: str) -> bool:
        return topic in self._store.topics()

    def bounds(self, topic: str, queue: int) -> Queue:
        if self._store.mode is OpenMode.FOLLOW:
            self._store.refresh()
        bounds = self._store.bounds(topic, queue)
        return Queue(queue, bounds.min_offset, bounds.max_offset)

    def messages(self, topic: str, queue: int, start: int, count: int | None, attributes: bool) -> Iterator[MessageRow]:
        bounds = self.bounds(topic, queue)
        end = bounds.max_offset if count is None else min(start + count, bounds.max_offset)
        start = max(start, bounds.min_offset)
        if start < end:
            for message in self._store.read(topic, queue, start, end - start, self.left_out.noting(topic, queue)):
                yield _shown(message, topic, queue, attributes)

    def bodies(
        self, topic: str, queue: int, start: int, end: int, texts: Sequence[bytes] = (), any_case: bool = False
    ) -> Iterator[Bodies]:
        damaged = self.left_out.noting(topic, queue)
        for held in self._store.holding(topic, queue, start, max(end - start, 0), texts, any_case, damaged):
            yield Bodies(held.offsets, held.numbers, held.bodies)

    def texts(self, topic: str, queue: int, start: int, end: int, part: str) -> Iterator[Bodies]:
        first = max(start, self.bounds(topic, queue).min_offset)
        for begin in range(first, end, READ_TOGETHER):
            until = min(begin + READ_TOGETHER, end)
            blocks = self._store.blocks(topic, queue, begin, until - begin)
            self._note_damaged(topic, queue, begin, until, blocks)
            for block in blocks:
                counts, texts = _texts(block, part)
                yield Bodies(np.repeat(block.queue_offset, counts), np.full(len(texts), -1), texts)

    def _note_damaged(self, topic: str, queue: int, begin: int, end: int, blocks: Sequence[Block]) -> None:
        """What is missing of [begin, end) in its blocks."""
        if any(block.damaged for block in blocks):
            bounds = self.bounds(topic, queue)
            asked = np.arange(max(begin, bounds.min_offset), min(end, bounds.max_offset))
            for offset in np.setdiff1d(asked, np.concatenate([block.queue_offset for block in blocks])).tolist():
                self.left_out.note(topic, queue, offset)

    def with_key(self, topic: str, key: str) -> Iterator[MessageRow]:
        places = {(queue, offset) for found in self._store.key_places(topic, key) for queue, offset in found.tolist()}
        for queue, offset in sorted(places):
            for message in self._store.read(topic, queue, offset, 1, self.left_out.noting(topic, queue)):
                yield _shown(message, topic, queue, True)

    def property_values(self, topic: str, name: str) -> Iterator[str]:
        for queue in self._store.queues_by_topic().get(topic, ()):
            bounds = self.bounds(topic, queue)
            for first in range(bounds.min_offset, bounds.max_offset, READ_TOGETHER):
                for block in self._store.blocks(topic, queue, first, READ_TOGETHER):
                    values = block.properties.value(name.encode())
                    yield from (values[row].decode() for row in values.sizes.nonzero()[0].tolist())

    def offset_at(self, topic: str, queue: int, when_ms: int) -> int:
        return self._store.offset_at(topic, queue, when_ms)

    def claim(self, group: str, topic: str, queue: int) -> OpenedClaim | None:
        if problem := group_problem(group):
            raise ConsumerOffsetError(group, problem)
        return OpenedClaim(self._store, group, topic, queue)

    def body_limit_bytes(self) -> int:
        return self._store.config.max_message_bytes

    def publish(
        self, queue: int | None, messages: Iterable[Message], stored: Callable[[Placed], None] | None = None
    ) -> None:
        for message in messages:
            put = self._store.put(message, queue)
            self.published += 1
            if stored:
                stored(Placed(put.topic, put.queue, put.queue_offset))

    def publish_lines(self, topic: str, queue: int | None, chunks: Iterable[bytes], labels: Labels) -> None:
        for lines in whole_lines(chunks):
            stored = self._store.put_lines(
                topic, lines, queue, keys=labels.keys, tags=labels.tags, properties=labels.properties
            )
            self.published += stored.count

    def create_topic(self, topic: str, queues: int) -> None:
        self._store.create_topic(topic, queues)

    def delete_topic(self, topic: str) -> None:
        self._store.delete_topic(topic)


def _texts(block: Block, part: str) -> tuple[Any, SliceColumn]:
    """How many texts each message of a block has (int64, shape (n,)), and those; as PARTS has them."""
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
    return MessageRow(topic, queue, message.queue_offset, bytes(message.body), facts, message.physical_offset)

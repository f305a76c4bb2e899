"""Computed names: `@first`, `@last` and `@<time>` in a queue, and the directories `keys/` and `keys/<key>@all/`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import cast, overload

import numpy as np

from engine import Queue, StoredMessage
from fsstore.interface import SLICE_S, Array, Attributes, OpenedDirectory, WorkKind
from fsstore.tree.deferred import deferred, in_thread
from fsstore.tree.inodes import KEY_LINK, MATCH_LINK, Maker, NodeKey
from fsstore.tree.listing import Described, Listing, NamesListing
from fsstore.tree.memory_budget import MemoryBudget
from fsstore.tree.messages import MessageFiles
from fsstore.tree.names import (
    MATCHES_SUFFIX,
    decode_key,
    encode_key,
    from_name,
    offset_name,
    parse_match,
    parse_time_ms,
)
from fsstore.tree.nodes import NOT_CACHED, Context, Directory, Node, not_found

LISTED_KEYS = 10_000
"""`ls keys/` lists the keys of about this number of a topic's newest messages: the index itself has only hashes."""

SLOT_BYTES = 16
"""Memory for an entry of `keys/<key>@all` while it is listed."""


class QueueLink(Node):
    """A link in a queue's directory to a message in it."""

    def __init__(self, context: Context, queue_offset: int) -> None:
        self._context = context
        self._target = offset_name(queue_offset)

    def attributes(self) -> Attributes:
        return self._context.attribute_factory.link(self.inode, self._target)

    def target(self) -> bytes:
        return self._target


def register_links(context: Context, messages: MessageFiles) -> None:
    """Have links that the kernel knows made again after a take-over."""

    def matches(key: NodeKey) -> Node:
        assert key.topic is not None
        return MatchesDirectory(context, messages, key.topic, str(key.detail))

    context.inodes.makers += [
        Maker(QueueLink, lambda key: QueueLink(context, cast("int", key.detail))),
        Maker(MatchesDirectory, matches),
    ]


def look_up_queue_link(context: Context, queue: Queue, name: bytes) -> Attributes:
    """Attributes of `@first`, `@last`, `@<time>`; ENOENT for other names, or if there is no such message."""
    queue_offset = _queue_offset(queue, name)
    key = NodeKey(QueueLink, queue.topic, queue.queue, queue_offset)
    link = context.inodes.named(key, lambda: QueueLink(context, queue_offset), is_made_up=True)
    return link.attributes()


def _queue_offset(queue: Queue, name: bytes) -> int:
    bounds = queue.bounds()
    if name == b"@first":
        queue_offset = bounds.min_offset
    elif name == b"@last":
        queue_offset = bounds.max_offset - 1
    else:
        when_ms = parse_time_ms(name[1:]) if name[:1] == b"@" else None
        if when_ms is None:
            raise not_found()
        queue_offset = queue.offset_at(when_ms)
    if not bounds.min_offset <= queue_offset < bounds.max_offset:
        raise not_found()
    return queue_offset


class KeysDirectory(Directory):
    """`keys/`: each key is a link to its newest message; `<key>@all` is a directory of all its messages."""

    def __init__(self, context: Context, messages: MessageFiles, topic: str) -> None:
        super().__init__(context)
        self._messages = messages
        self._topic = topic

    @property
    def path(self) -> str:
        return f"{self._topic}/keys"

    def lookup(self, name: bytes) -> Attributes:
        if name.endswith(MATCHES_SUFFIX):
            key, _ = self._newest(name[: -len(MATCHES_SUFFIX)])
            return self._matches(key).attributes()
        return self._messages.link(self._newest(name)[1], KEY_LINK)

    def names(self) -> Sequence[bytes]:
        keys = self._context.store.newest_keys(self._topic, LISTED_KEYS)
        return [name for name in map(encode_key, keys) if name is not None]

    def _newest(self, name: bytes) -> tuple[str, StoredMessage]:
        key = decode_key(name)
        message = self._newest_with(key) if key else None
        if key is None or message is None:
            raise not_found()
        return key, message

    def _newest_with(self, key: str) -> StoredMessage | None:
        """The newest message with a key. SlowWork if many messages have a key with the same hash."""
        store, topic = self._context.store, self._topic
        return deferred(lambda: store.newest_with_key(topic, key), (self, key), WorkKind.KEYS)

    def _matches(self, key: str) -> Node:
        return self._context.inodes.named(
            NodeKey(MatchesDirectory, self._topic, None, key),
            lambda: MatchesDirectory(self._context, self._messages, self._topic, key),
            is_made_up=True,
        )


class MatchesDirectory(Directory):
    """`keys/<key>@all/`: a link `<queue>-<offset>` for each message with the key, by queue and offset."""

    def __init__(self, context: Context, messages: MessageFiles, topic: str, key: str) -> None:
        super().__init__(context)
        self._messages = messages
        self._topic = topic
        self._key = key

    @property
    def path(self) -> str:
        return f"{self._topic}/keys/{from_name((encode_key(self._key) or b'?') + MATCHES_SUFFIX)}"

    def attributes(self) -> Attributes:
        return self._context.attribute_factory.directory(self.inode, computed=True)

    def lookup(self, name: bytes) -> Attributes:
        entry = parse_match(name)
        if entry is None:
            raise not_found()
        message = self._context.store.get(self._topic, *entry)
        if self._key not in message.keys and self._key != message.unique_key:
            raise not_found()
        return self._messages.link(message, MATCH_LINK)

    def opendir(self) -> tuple[Listing, OpenedDirectory]:
        store, topic, key = self._context.store, self._topic, self._key
        return MatchesListing(self, lambda: store.key_slots(topic, key), self._context.memory), NOT_CACHED


class SlotNames(Sequence[bytes]):
    """Names `<queue>-<offset>` of slots (queue and offset; int64, shape (n, 2)), made when they are needed."""

    def __init__(self, slots: Array) -> None:
        self._slots = slots

    def __len__(self) -> int:
        return len(self._slots)

    @overload
    def __getitem__(self, rows: int) -> bytes: ...

    @overload
    def __getitem__(self, rows: slice) -> Sequence[bytes]: ...

    def __getitem__(self, rows: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(rows, int):
            return self[rows : rows + 1][0]
        return [b"%d-%s" % (queue, offset_name(offset)) for queue, offset in self._slots[rows].tolist()]


class MatchesListing(NamesListing):
    """All messages with a key, by queue and offset. There may be millions, so they are collected in pieces, as numbers.
    ENOBUFS: there is not enough memory for them."""

    def __init__(self, directory: Described, slots: Callable[[], Iterator[Array]], memory: MemoryBudget) -> None:
        """`slots` begins the search."""
        super().__init__(directory, memory)
        self._find = slots
        self._finding: Iterator[Array] | None = None
        self._slots: list[Array] = []

    def _collected(self) -> SlotNames:
        while (names := in_thread(self._find_some, self, WorkKind.KEYS)) is None:
            pass  # and the next slice
        return names

    def _find_some(self) -> SlotNames | None:
        """The names; None: there may be more."""
        if self._finding is None:
            self._finding, self._slots = self._find(), []
        until_s = time.monotonic() + SLICE_S
        for some in self._finding:
            self._slots.append(some)
            self._memory.resize(2 * sum(found.nbytes for found in self._slots))  # sorting makes a copy
            if time.monotonic() >= until_s:
                return None
        found, self._slots, self._finding = self._slots, [], None
        return SlotNames(in_order(np.concatenate([np.empty((0, 2), np.int64), *found])))

    def _bytes_of(self, names: Sequence[bytes]) -> int:
        return SLOT_BYTES * len(names)


def in_order(slots: Array) -> Array:
    """Slots (int64, shape (n, 2)) by queue and offset, without duplicates."""
    slots = slots[np.lexsort((slots[:, 1], slots[:, 0]))]
    is_new = np.ones(len(slots), bool)
    is_new[1:] = (slots[1:] != slots[:-1]).any(axis=1)
    return slots[is_new]

"""Message files and the links to them, found by physical offset without a table.

Thread safety: the filesystem's thread only.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from typing import TypeAlias

from engine import ExpiredMessageError, Hold, MessageNotFoundError, MessageStore, StoredMessage
from fsstore.interface import SMALL_BODY_BYTES, Attributes, FilesystemError, WorkKind
from fsstore.tree.attributes import BRIEF_S, IMMUTABLE_S, AttributeFactory
from fsstore.tree.deferred import in_thread
from fsstore.tree.inodes import KEY_LINK, MESSAGE, ComputedInodes
from fsstore.tree.memory_budget import MemoryBudget, Purpose
from fsstore.tree.names import offset_name
from fsstore.tree.nodes import OpenFile

KEPT_BYTES = 16 << 20
"""Memory for recently opened bodies."""

OBJECT_BYTES = 260
"""Memory of a kept body in addition to its bytes, about."""


BodyKey: TypeAlias = tuple[int, int]
"""Physical offset and CRC: a writer may take a record back and put another one there."""


class SmallBody(OpenFile):
    """An open message, copied: it needs nothing of the store, and several handles may share it."""

    __slots__ = ("body", "inode", "store_time_ms")

    body: bytes

    def __init__(self, body: bytes, inode: int, store_time_ms: int) -> None:
        self.body = body
        self.inode = inode
        self.store_time_ms = store_time_ms

    @property
    def size(self) -> int:
        return len(self.body)

    def read(self, position: int, size: int) -> bytes:
        return self.body[position : position + size]


class HeldBody(OpenFile):
    """An open message in the mapped page, which retention does not delete while it is held."""

    __slots__ = ("_body", "_hold", "_is_lost", "inode", "size", "store_time_ms")

    def __init__(self, body: memoryview, hold: Hold, inode: int, store_time_ms: int) -> None:
        self._body = body
        self._hold = hold
        self._is_lost = False
        self.inode = inode
        self.store_time_ms = store_time_ms
        self.size = len(body)

    def read(self, position: int, size: int) -> memoryview:
        if self._is_lost:
            raise FilesystemError(errno.ESTALE)
        return self._body[position : position + size]

    def log_rewritten(self) -> None:
        """Answer further reads with ESTALE: another log's bytes may be mapped there now."""
        self._is_lost = True

    def release(self) -> None:
        self._body = memoryview(b"")
        self._hold.release()


class DecompressedBodies:
    """Recently decompressed bodies, one copy for all readers of a message. Thread safety: any thread."""

    def __init__(self, store: MessageStore, memory: MemoryBudget) -> None:
        self._store = store
        self._memory = memory
        self._bodies: dict[BodyKey, memoryview] = {}

    def size_of(self, message: StoredMessage) -> int:
        """Bytes of a message's body. SlowWork if it must be decompressed for that."""
        if not message.is_compressed:
            return message.body_size
        size = self._store.known_body_size(message)
        if size is None:
            size = in_thread(lambda: len(self._body(message)), (self, _key_of(message)), WorkKind.DECOMPRESSING)
        return size

    def read(self, message: StoredMessage, position: int, size: int) -> bytes | memoryview:
        """A piece of a compressed body. SlowWork while it is decompressed; the repeated request gets its piece even if
        there is no memory to keep the body."""
        key = _key_of(message)
        body = self._bodies.get(key)
        if body is not None:
            self._keep(key, body)
            return body[position : position + size]
        return in_thread(
            lambda: bytes(self._body(message)[position : position + size]),
            (self, key, position, size),
            WorkKind.DECOMPRESSING,
        )

    def clear(self) -> None:
        for key in list(self._bodies):
            self._memory.keep(key, Purpose.BODIES, 0, lambda: None)
            self._bodies.pop(key, None)

    def _body(self, message: StoredMessage) -> memoryview:
        key = _key_of(message)
        body = self._bodies.get(key)
        if body is None:
            self._bodies[key] = body = self._store.body_of(message)
            self._keep(key, body)
        return body

    def _keep(self, key: BodyKey, body: memoryview) -> None:
        def evict() -> None:
            self._bodies.pop(key, None)

        self._memory.keep(key, Purpose.BODIES, len(body), evict)


def _key_of(message: StoredMessage) -> BodyKey:
    return message.physical_offset, message.body_crc


class CompressedBody(OpenFile):
    """An open message whose body is compressed in the mapped page. It has no copy of its own."""

    __slots__ = ("_bodies", "_hold", "_message", "inode", "size", "store_time_ms")

    def __init__(self, bodies: DecompressedBodies, message: StoredMessage, hold: Hold, inode: int, size: int) -> None:
        self._bodies = bodies
        self._message: StoredMessage | None = message
        self._hold = hold
        self.inode = inode
        self.size = size
        self.store_time_ms = message.store_time_ms

    def read(self, position: int, size: int) -> bytes | memoryview:
        size = min(size, self.size - position)
        return self._bodies.read(self._message, position, size) if self._message is not None and size > 0 else b""

    def release(self) -> None:
        self._message = None
        self._hold.release()


class SmallBodies:
    """Recently opened bodies by inode, so that opening one again reads and checks nothing."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._bodies: OrderedDict[int, SmallBody] = OrderedDict()  # which finds its first item at once
        self.get = self._bodies.get
        """The body of an inode; None: it is not kept."""

    def add(self, body: SmallBody) -> None:
        """Keep a body; the oldest ones are evicted."""
        self._bodies[body.inode] = body
        self._bytes += len(body.body) + OBJECT_BYTES
        while self._bytes > self._limit_bytes:
            _, oldest = self._bodies.popitem(last=False)
            self._bytes -= len(oldest.body) + OBJECT_BYTES

    def clear(self) -> None:
        self._bodies.clear()
        self._bytes = 0


class MessageFiles:
    """The message files of a store. The last message that was looked up is kept for the open that follows."""

    def __init__(
        self, store: MessageStore, attribute_factory: AttributeFactory, inodes: ComputedInodes, memory: MemoryBudget
    ) -> None:
        self._store = store
        self._inodes = inodes
        self._decompressed = DecompressedBodies(store, memory)
        self._attribute_factory = attribute_factory
        self._last: StoredMessage | None = None
        self._last_offset = -1
        self._small = SmallBodies(KEPT_BYTES)

    def found(self, message: StoredMessage) -> Attributes:
        """Attributes of a message just looked up. SlowWork while its size is measured."""
        self._last = message
        self._last_offset = place = message.place
        return self._attribute_factory.message(
            place + self._inodes.begin | MESSAGE,
            self._decompressed.size_of(message),
            message.store_time_ms,
            IMMUTABLE_S,
        )

    def link(self, message: StoredMessage, kind: int) -> Attributes:
        """Attributes of `keys/<key>` (`kind` KEY_LINK) or `keys/<key>@all/<queue>-<offset>` (MATCH_LINK)."""
        self._last = message
        self._last_offset = message.place
        inode = message.place + self._inodes.begin | kind
        return self._attribute_factory.link(inode, _target(message, kind), message.store_time_ms)

    def message(self, inode: int) -> StoredMessage:
        """The message of a computed inode. ESTALE: it has expired, and the kernel looks up its path again."""
        offset = self._inodes.physical_offset(inode)
        if offset == self._last_offset and self._last is not None:
            return self._last
        try:
            return self._store.at(offset)
        except (ExpiredMessageError, MessageNotFoundError):
            raise FilesystemError(errno.ESTALE) from None

    def attributes(self, inode: int) -> Attributes:
        message = self.message(inode)
        if inode >= MESSAGE:
            size = self._decompressed.size_of(message)
            return self._attribute_factory.message(inode, size, message.store_time_ms, IMMUTABLE_S)
        return self._attribute_factory.link(inode, self.target(inode), message.store_time_ms)

    def attributes_of_open(self, file: SmallBody | HeldBody | CompressedBody) -> Attributes:
        """Attributes of an open message, which may have expired: fstat succeeds as reading does."""
        return self._attribute_factory.message(file.inode, file.size, file.store_time_ms, BRIEF_S)

    def target(self, inode: int) -> bytes:
        return _target(self.message(inode), inode)

    def open(self, inode: int) -> SmallBody | HeldBody | CompressedBody:
        """Open a message. SlowWork while it is decompressed."""
        known = self._small.get(inode)
        if known is not None:
            return known
        message = self.message(inode)
        is_compressed = message.is_compressed
        size = self._decompressed.size_of(message) if is_compressed else message.body_size
        if size <= SMALL_BODY_BYTES:
            body = self._decompressed.read(message, 0, size) if is_compressed else message.body
            small = SmallBody(bytes(body), inode, message.store_time_ms)
            self._small.add(small)
            return small
        try:
            hold = self._store.hold(message.physical_offset)
        except (ExpiredMessageError, MessageNotFoundError):
            raise FilesystemError(errno.ESTALE) from None
        if is_compressed:
            return CompressedBody(self._decompressed, message, hold, inode, size)
        return HeldBody(message.body, hold, inode, message.store_time_ms)

    def forget(self) -> None:
        """Drop all kept messages, because a file of the log is about to be deleted."""
        self._last = None
        self._last_offset = -1
        self._small.clear()
        self._decompressed.clear()


def _target(message: StoredMessage, inode: int) -> bytes:
    target = b"../%d/%s" % (message.queue, offset_name(message.queue_offset))
    return target if inode >= KEY_LINK else b"../" + target

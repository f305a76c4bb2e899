"""Message files: found by physical offset, with no table, and the links that lead to them.

Thread safety: none; the filesystem's thread alone.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from typing import TypeAlias

from engine import ExpiredMessageError, Hold, MessageNotFoundError, MessageStore, StoredMessage
from fsstore.interface import SMALL_BODY_BYTES, Attributes, FilesystemError, SlowWork, WorkKind
from fsstore.tree.attributes import BRIEF_S, IMMUTABLE_S, AttributeFactory
from fsstore.tree.deferred import DoneInThread
from fsstore.tree.inodes import KEY_LINK, MATCH_LINK, MESSAGE, ComputedInodes
from fsstore.tree.memory_budget import MemoryBudget, Purpose
from fsstore.tree.names import offset_name
from fsstore.tree.nodes import OpenFile

KEPT_BYTES = 16 << 20
"""Memory for bodies that were opened lately."""

OBJECT_BYTES = 260
"""What a kept body takes besides its bytes, about."""


BodyKey: TypeAlias = tuple[int, int]
"""Physical offset and CRC: another record may come in the place of one that its writer took back."""


class SmallBody(OpenFile):
    """An open message, copied: needs nothing of the store, and any number of handles may share it."""

    __slots__ = ("body", "inode", "store_time_ms")

    def __init__(self, body: bytes, inode: int, store_time_ms: int) -> None:
        self.body = body
        self.inode = inode
        self.store_time_ms = store_time_ms

    @property
    def size(self) -> int:
        """Length of the body."""
        return len(self.body)

    def read(self, position: int, size: int) -> bytes:
        return self.body[position : position + size]


class HeldBody(OpenFile):
    """An open message in the mapped page, which retention leaves alone while it is held."""

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
        """Its bytes may be another message's by now: whoever reads on gets ESTALE."""
        self._is_lost = True

    def release(self) -> None:
        self._body = memoryview(b"")
        self._hold.release()


class DecompressedBodies:
    """Bodies that were decompressed lately: one copy for all who read the message. Thread safety: any thread."""

    def __init__(self, store: MessageStore, memory: MemoryBudget) -> None:
        self._store = store
        self._memory = memory
        self._bodies: dict[BodyKey, memoryview] = {}
        self._pieces: DoneInThread[bytes] = DoneInThread(WorkKind.DECOMPRESSING)

    def size_of(self, message: StoredMessage) -> int:
        """Bytes of a message's body. SlowWork where only decompressing tells."""
        if not message.is_compressed:
            return message.body_size
        size = self._store.known_body_size(message)
        if size is None:
            raise SlowWork(lambda: self._body(message), WorkKind.DECOMPRESSING)
        return size

    def read(self, message: StoredMessage, position: int, size: int) -> bytes | memoryview:
        """A piece of a compressed body. SlowWork where it is decompressed for that; who asked gets it then, however
        little memory there is to keep the body."""
        key = _key_of(message)
        body = self._bodies.get(key)
        if body is not None:
            self._keep(key, body)
            return body[position : position + size]
        return self._pieces.do((key, position, size), lambda: bytes(self._body(message)[position : position + size]))

    def clear(self) -> None:
        """Forget them all."""
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
    """An open message whose body is compressed in the mapped page. It keeps no copy of its own."""

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
    """Bodies that were opened lately, by inode: to open one again, nothing is read and checked a second time."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._bodies: OrderedDict[int, SmallBody] = OrderedDict()  # whose first one is found at once
        self.get = self._bodies.get
        """The body of an inode, None when it isn't here."""

    def add(self, body: SmallBody) -> None:
        """Keep a body; the oldest ones make room."""
        self._bodies[body.inode] = body
        self._bytes += len(body.body) + OBJECT_BYTES
        while self._bytes > self._limit_bytes:
            _, oldest = self._bodies.popitem(last=False)
            self._bytes -= len(oldest.body) + OBJECT_BYTES

    def clear(self) -> None:
        """Forget them all."""
        self._bodies.clear()
        self._bytes = 0


class MessageFiles:
    """The message files of a store. Remembers the last one looked up: an open that follows doesn't read it again."""

    def __init__(
        self, store: MessageStore, attribute_factory: AttributeFactory, inodes: ComputedInodes, memory: MemoryBudget
    ) -> None:
        self._store = store
        self._inodes = inodes
        self._decompressed = DecompressedBodies(store, memory)
        self._appearance = attribute_factory
        self._last: StoredMessage | None = None
        self._last_offset = -1
        self._small = SmallBodies(KEPT_BYTES)

    def found(self, message: StoredMessage) -> Attributes:
        """Attributes of a message just looked up. SlowWork: its size is not known."""
        self._last = message
        self._last_offset = place = message.place
        return self._appearance.message(
            place + self._inodes.begin | MESSAGE,
            self._decompressed.size_of(message),
            message.store_time_ms,
            IMMUTABLE_S,
        )

    def key_link(self, message: StoredMessage) -> Attributes:
        """Attributes of `keys/<key>`."""
        return self._link(message, KEY_LINK, _from_keys(message))

    def match_link(self, message: StoredMessage) -> Attributes:
        """Attributes of `keys/<key>@all/<queue>-<offset>`."""
        return self._link(message, MATCH_LINK, b"../" + _from_keys(message))

    def message(self, inode: int) -> StoredMessage:
        """The message that a computed inode stands for. ESTALE when it has gone: the kernel looks its path up again."""
        offset = self._inodes.physical_offset(inode)
        if offset == self._last_offset and self._last is not None:
            return self._last
        try:
            return self._store.at(offset)
        except (ExpiredMessageError, MessageNotFoundError):
            raise FilesystemError(errno.ESTALE) from None

    def attributes(self, inode: int) -> Attributes:
        """Attributes of any computed inode."""
        message = self.message(inode)
        if inode >= MESSAGE:
            size = self._decompressed.size_of(message)
            return self._appearance.message(inode, size, message.store_time_ms, IMMUTABLE_S)
        return self._appearance.link(inode, self.target(inode), message.store_time_ms)

    def attributes_of_open(self, file: SmallBody | HeldBody | CompressedBody) -> Attributes:
        """Attributes of an open message, which may have expired: fstat goes on as reading does."""
        return self._appearance.message(file.inode, file.size, file.store_time_ms, BRIEF_S)

    def target(self, inode: int) -> bytes:
        """Where a link points."""
        target = _from_keys(self.message(inode))
        return target if inode >= KEY_LINK else b"../" + target

    def open(self, inode: int) -> SmallBody | HeldBody | CompressedBody:
        """Open a message. SlowWork where it has to be decompressed for that."""
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
        """Forget what is remembered: a file of the log is to go, and what was in it is not to be found any more."""
        self._last = None
        self._last_offset = -1
        self._small.clear()
        self._decompressed.clear()

    def _link(self, message: StoredMessage, kind: int, target: bytes) -> Attributes:
        self._last = message
        self._last_offset = message.place
        inode = message.place + self._inodes.begin | kind
        return self._appearance.link(inode, target, message.store_time_ms)


def _from_keys(message: StoredMessage) -> bytes:
    return b"../%d/%s" % (message.queue_id, offset_name(message.queue_offset))

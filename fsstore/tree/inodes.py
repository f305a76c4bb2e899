"""Inode numbers: computed for what is a message, counted out for everything else.

    bit 62 | physical offset      a message file
    bit 61 | physical offset      keys/<key>: a link to the message, from one folder below the topic
    bit 60 | physical offset      keys/<key>@all/<queue>-<offset>: a link to the message, from two folders below
    bit 59 | directory, name      what stat says of an `append`: no inode is ever known by it
    bit 58 | hash                 what stat says of a stream: topic, queue, first offset; no inode is known by it either
    below                         topics, queues, streams, append files, reports: numbers from a table, never used twice

So a million messages that the kernel has seen cost no memory here, and a number never comes to mean another message. A
log would need 2**60 bytes for the ranges to meet.

Where another process writes, another log may come in place of the one that was shown, and its physical offsets mean
other messages. Its numbers begin after those of the log before it.

Each look-up of an `append` gives a number of its own, so that the kernel lets writers go at once. Programs that compare
what they looked up with what they opened (cp, tar) must not see that: stat answers one number for the name. So it does
for a stream, which has an inode while it grows and another while it rests.
"""

from __future__ import annotations

import errno
import hashlib
import zlib
from collections.abc import Callable, Hashable, Set
from typing import Generic, NamedTuple, Protocol, TypeVar

from fsstore.interface import ROOT_INODE, FilesystemError

MESSAGE = 1 << 62
KEY_LINK = 1 << 61
MATCH_LINK = 1 << 60
COMPUTED = MATCH_LINK
"""Inodes from here on are computed from a physical offset."""
SHOWN_APPEND = 1 << 59
SHOWN_STREAM = 1 << 58
PHYSICAL_OFFSET_MASK = MATCH_LINK - 1


class ComputedInodes:
    """The numbers of what is computed from a physical offset, in the log that is shown now."""

    def __init__(self) -> None:
        self.begin = 0
        """What is added to a physical offset."""

    def physical_offset(self, inode: int) -> int:
        """Where the message of a number is. ESTALE when it was in a log that is not there any more."""
        physical_offset = (inode & PHYSICAL_OFFSET_MASK) - self.begin
        if physical_offset < 0:
            raise FilesystemError(errno.ESTALE)
        return physical_offset

    def log_rewritten(self, physical_end: int) -> None:
        """Another log came in place of the one that was shown up to `physical_end`."""
        self.begin += physical_end


def shown_append_inode(directory_inode: int, name: bytes) -> int:
    """The number that stat says of an `append` name in a directory."""
    return SHOWN_APPEND | (directory_inode << 24 & SHOWN_APPEND - 1) | zlib.crc32(name) & 0xFFFFFF


def shown_stream_inode(topic: str, queue: int, first_offset: int) -> int:
    """The number that stat says of a queue's stream from one first message on."""
    digest = hashlib.blake2b(f"{topic}/{queue}/{first_offset}".encode(errors="surrogateescape"), digest_size=8).digest()
    return SHOWN_STREAM | int.from_bytes(digest) & SHOWN_STREAM - 1


class NodeKey(NamedTuple):
    """What a node is known by in the table."""

    kind: type
    topic: str | None = None
    """That it belongs to; None: to none."""
    queue: int | None = None
    """That it belongs to; None: to none, or to the whole topic."""
    detail: Hashable = None
    """What tells it from others of its kind."""


class Numbered(Protocol):
    """What a table can hold: it gets its number."""

    inode: int


N = TypeVar("N", bound=Numbered)


class _Nodes(dict[int, N]):
    def __missing__(self, inode: int) -> N:
        raise FilesystemError(errno.ESTALE)


class InodeTable(Generic[N]):
    """The nodes that a kernel may ask for by number, until it forgets them or they are dropped."""

    def __init__(self) -> None:
        self.nodes: dict[int, N] = _Nodes()
        """Node of each number; ESTALE (`[]`) when it stands for nothing (any more)."""
        self._numbers: dict[NodeKey, int] = {}
        self._names: dict[int, NodeKey] = {}
        self._lookups: dict[int, int] = {}
        self._pinned: set[int] = set()
        self._next_inode = ROOT_INODE

    def pin(self, node: N) -> int:
        """As `add`, for a node that is there as long as the mount, whether or not the kernel knows it."""
        inode = self.add(node)
        self._pinned.add(inode)
        return inode

    def add(self, node: N) -> int:
        """A number of its own for `node`, never used again. The first one added is the root."""
        inode = self._next_inode
        self._next_inode = inode + 1
        node.inode = inode
        self.nodes[inode] = node
        return inode

    def named(self, name: NodeKey, make: Callable[[], N]) -> N:
        """The node known by `name`, made now if there is none."""
        inode = self._numbers.get(name)
        if inode is not None:
            return self.nodes[inode]
        node = make()
        inode = self.add(node)
        self._numbers[name] = inode
        self._names[inode] = name
        return node

    def find(self, name: NodeKey) -> int | None:
        """The number of the node known by `name`, if there is one."""
        return self._numbers.get(name)

    def count(self, inode: int) -> None:
        """Note that the kernel was given this number once more."""
        self._lookups[inode] = self._lookups.get(inode, 0) + 1

    def are_valid(self, inodes: Set[int]) -> bool:
        """Whether all of these numbers stand for something."""
        return self.nodes.keys() >= inodes

    def forget(self, inode: int, count: int) -> None:
        """Take back `count` of them; the last one drops the node."""
        left = self._lookups.get(inode, 0) - count
        if left > 0:
            self._lookups[inode] = left
            return
        self._lookups.pop(inode, None)
        if inode not in self._pinned:
            self.nodes.pop(inode, None)
            self._unname(inode)

    def drop_unknown(self, inode: int) -> bool:
        """Drop the node of a number that the kernel does not know (any more); whether that was so."""
        self.forget(inode, 0)
        return inode not in self.nodes

    def drop(self, inode: int) -> None:
        """Drop a node that has no name before the kernel forgets it: nobody will ask for that number again."""
        if inode not in self._names:
            self._lookups.pop(inode, None)
            self.nodes.pop(inode, None)

    def retire(self, unwanted: Callable[[NodeKey], bool]) -> list[int]:
        """Drop the nodes of such names: their numbers, returned, are stale from now on. What is open stays open."""
        inodes = [inode for name, inode in self._numbers.items() if unwanted(name)]
        for inode in inodes:
            self._unname(inode)
            del self.nodes[inode]
        return inodes

    def _unname(self, inode: int) -> None:
        name = self._names.pop(inode, None)
        if name is not None:
            del self._numbers[name]

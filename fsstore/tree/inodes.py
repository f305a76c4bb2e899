"""Inode numbers: computed for messages and links to them, sequential for all other nodes.

    bit 62 | physical offset      a message file     bit 61 | physical offset      keys/<key>: a link to the message,
from one folder below the topic     bit 60 | physical offset      keys/<key>@all/<queue>-<offset>: a link to the
message, from two folders below     bit 59 | directory, name      the number that stat shows for an `append`; no inode
has it     bit 58 | hash                 the number that stat shows for a topic, for a stream (topic, queue, first
offset) or for a report in                  `@store`; no inode has it     below                         topics, queues,
streams, append files, reports: numbers from a table, never reused

So a million messages that the kernel has looked up take no memory here, and a number never changes its message. The
ranges would meet only in a log of 2**60 bytes.

Another process that writes the store may replace the log, and its physical offsets then mean other messages. The
numbers of the new log begin after those of the old one.

Each look-up of an `append` gives a number of its own, so that the kernel does not serialize writers. Programs that
compare a look-up with an open file (cp, tar) must not see that, so stat shows one number for the name. The same holds
for a stream, which has one inode while it grows and another while it is idle, and for a report, with an inode per
look-up.
"""

from __future__ import annotations

import errno
import hashlib
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import astuple, is_dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from fsstore.accounts import Accounts, Resource
from fsstore.handover.nodes import NodeRecords, NodeText
from fsstore.interface import ROOT_INODE, Array, FilesystemError

MESSAGE = 1 << 62
KEY_LINK = 1 << 61
MATCH_LINK = 1 << 60
COMPUTED = MATCH_LINK
"""Inodes from here on are computed from a physical offset."""
SHOWN_APPEND = 1 << 59
SHOWN_STREAM = 1 << 58
NOTED_AT_ONCE = 1_000
"""More numbers than programs ask for in the time in which the kernel looks a name up again."""
_EMPTY_DIGEST = hashlib.blake2b(digest_size=16)
PHYSICAL_OFFSET_MASK = MATCH_LINK - 1


class ComputedInodes:
    """Inode numbers of physical offsets in the present log."""

    def __init__(self) -> None:
        self.begin = 0
        """The number that is added to a physical offset."""

    def physical_offset(self, inode: int) -> int:
        """The physical offset of a number. ESTALE: it is of an earlier log."""
        physical_offset = (inode & PHYSICAL_OFFSET_MASK) - self.begin
        if physical_offset < 0:
            raise FilesystemError(errno.ESTALE)
        return physical_offset

    def log_rewritten(self, physical_end: int) -> None:
        """Note that another log replaced the one that was shown up to `physical_end`."""
        self.begin += physical_end


def shown_append_inode(directory_inode: int, name: bytes) -> int:
    """The number that stat shows for an `append` name in a directory."""
    return SHOWN_APPEND | (directory_inode << 24 & SHOWN_APPEND - 1) | zlib.crc32(name) & 0xFFFFFF


def shown_stream_inode(topic: str, queue: int | None, first_offset: int) -> int:
    """The number that stat shows for a queue's stream from `first_offset` on, or for a topic's stream (no queue)."""
    return _shown_of_topic(topic, 1) if queue is None else _shown_as(f"{topic}/{queue}/{first_offset}")


def shown_topic_inode(topic: str) -> int:
    """The number that stat shows for a topic's directory."""
    return _shown_of_topic(topic, 0)


def shown_report_inode(path: str) -> int:
    """The number that stat shows for a report in `@store`."""
    return _shown_as(path)


def shown_inodes(topics: Iterable[bytes]) -> Array:
    """`shown_topic_inode` and `shown_stream_inode` of topics with these names: int64 (n, 2)."""
    digests = np.frombuffer(b"".join(map(_digest, topics)), ">i8").reshape(-1, 2)
    return digests.astype(np.int64) & SHOWN_STREAM - 1 | SHOWN_STREAM


def _shown_of_topic(topic: str, half: int) -> int:
    """The number of a topic, or of its stream: the two halves of one digest."""
    return _number(_digest(topic.encode(errors="surrogateescape"))[8 * half :])


def _shown_as(path: str) -> int:
    return _number(_digest(path.encode(errors="surrogateescape")))


def _number(digest: bytes) -> int:
    return SHOWN_STREAM | int.from_bytes(digest[:8]) & SHOWN_STREAM - 1


def _digest(text: bytes) -> bytes:
    digest = _EMPTY_DIGEST.copy()  # two thirds of what making a new one takes
    digest.update(text)
    return digest.digest()


class NodeKey(NamedTuple):
    """The key of a node in the table."""

    kind: type
    topic: str | None = None
    """The node's topic; None: it has none."""
    queue: int | None = None
    """The node's queue; None: it has none, or belongs to the whole topic."""
    detail: Hashable = None
    """Distinguishes nodes of the same kind, topic and queue."""


Owner = tuple[str | None, int | None]
"""Topic and queue of a node: see `NodeKey`."""


class Numbered(Protocol):
    """A node that can be in a table, which sets its number."""

    inode: int

    def forgotten(self) -> None:
        """Called when its number becomes invalid."""


N = TypeVar("N", bound=Numbered)
_NONE: Mapping[NodeKey, int] = {}


class Maker(NamedTuple, Generic[N]):
    """Makes nodes of one kind again whose numbers were taken over from the last server."""

    kind: type
    make: Callable[[NodeKey], N]
    """Makes a node from its key. FilesystemError: it no longer exists."""
    detail: Callable[[Any], Hashable] = lambda detail: detail
    """The key's detail from its JSON, in which a dataclass is the tuple of its fields."""


class _Nodes(dict[int, N]):
    def __init__(self, inherited: Callable[[int], N]) -> None:
        super().__init__()
        self._inherited = inherited

    def __missing__(self, inode: int) -> N:
        return self._inherited(inode)


class MadeUpNames:
    """Numbers of names that users make up (`append@OPTIONS`, `keys/KEY@all`), up to a share of each user. The oldest
    number that is not open is dropped for a new one; the kernel looks up its name again if needed."""

    def __init__(self, accounts: Accounts, forget: Callable[[int], None]) -> None:
        """`forget` drops a number and calls `gone`."""
        self._accounts = accounts
        self._forget = forget
        self._user_of: dict[int, int] = {}
        self._open: dict[int, int] = {}
        """Open handles of each number."""
        self._idle: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        """Numbers without open handles, by user, the oldest first."""

    def add(self, inode: int) -> None:
        """Add a number for the caller. FilesystemError: all numbers of the share are open."""
        user = self._accounts.caller
        while not self._accounts.try_take(user, Resource.NAMES):
            oldest = next(iter(self._idle.get(user, ())), None)
            if oldest is None:
                self._accounts.take(user, Resource.NAMES)
                break
            self._forget(oldest)
        self._user_of[inode] = user
        self._idle[user][inode] = None

    def user(self, inode: int) -> int | None:
        """The user of a number; None: it is not of a made-up name."""
        return self._user_of.get(inode)

    def inherit(self, inode: int, user: int) -> None:
        """Add a number that the last server gave out."""
        self._accounts.inherit(user, Resource.NAMES)
        self._user_of[inode] = user
        self._idle[user][inode] = None

    def opened(self, inode: int) -> bool:
        """Count an open; returns whether the number is of a made-up name, so that `closed` must be called."""
        user = self._user_of.get(inode)
        if user is None:
            return False
        self._open[inode] = self._open.get(inode, 0) + 1
        self._leave_idle(inode, user)
        return True

    def closed(self, inode: int) -> None:
        self._open[inode] -= 1
        if not self._open[inode]:
            del self._open[inode]
            if inode in self._user_of:
                self._idle[self._user_of[inode]][inode] = None

    def gone(self, inode: int) -> None:
        """Forget a number, if it is of a made-up name."""
        user = self._user_of.pop(inode, None)
        if user is not None:
            self._leave_idle(inode, user)
            self._accounts.give(user, Resource.NAMES)

    def _leave_idle(self, inode: int, user: int) -> None:
        idle = self._idle[user]
        idle.pop(inode, None)
        if not idle:
            del self._idle[user]


class InodeTable(Generic[N]):
    """Nodes by inode number, until the kernel forgets them or they are dropped.

    After `survive`, the numbers are noted for the next server. It makes a node again when its number is used.
    """

    def __init__(self, accounts: Accounts) -> None:
        self.made_up = MadeUpNames(accounts, self._gone)
        self.nodes: dict[int, N] = _Nodes(self._make_again)
        """Nodes by number; a number that is not (or no longer) valid raises ESTALE."""
        self.makers: list[Maker[N]] = []
        """One for each kind that survives a restart."""
        self._records: NodeRecords | None = None
        self._inherited: dict[int, tuple[Maker[N], NodeKey]] = {}
        self._numbers: dict[Owner, dict[NodeKey, int]] = {}
        self._names: dict[int, NodeKey] = {}
        self._lookups: dict[int, int] = {}
        self._unopened: dict[int, NodeKey] = {}
        """Numbers without open files, which the next server need not know: the kernel looks up their names again."""
        self._noted_at_once = 0
        """So many further numbers are noted when they are given out, not when they are opened."""
        self._pinned: dict[int, NodeText] = {}
        self._next_inode = ROOT_INODE

    def survive(self, records: NodeRecords) -> list[int]:
        """Take over the numbers that the last server gave out, and note all further ones there. Returns the numbers
        taken over. Call it when only pinned nodes have been added."""
        makers = {maker.kind.__name__: maker for maker in self.makers}
        known: dict[NodeText, int] = {}
        self._next_inode = max(self._next_inode, records.next_number)
        for inode, text, is_named, lookups, user in records.all():
            if user is not None:
                self.made_up.inherit(inode, user)
            known[text] = inode
            self._lookups[inode] = lookups
            maker = makers.get(text.kind)
            if maker is not None:
                key = NodeKey(maker.kind, text.topic, text.queue, maker.detail(text.detail))
                self._inherited[inode] = maker, key
                if is_named:
                    self._name(inode, key)
        pinned, self._pinned = self._pinned, {}
        nodes = {inode: self.nodes.pop(inode) for inode in pinned}
        for inode, text in pinned.items():
            number = known.get(text)
            if number is None:
                number = inode if inode == ROOT_INODE else self._next_inode
                self._next_inode = max(self._next_inode, number + 1)
                records.add(number, text, is_named=False)
            nodes[inode].inode = number
            self.nodes[number] = nodes[inode]
            self._pinned[number] = text
        self._records = records
        return list(self._inherited)

    def _make_again(self, inode: int) -> N:
        """Make the node of a number that the last server gave out. ESTALE: there is no such number, or no such node."""
        inherited = self._inherited.get(inode)
        if inherited is None:
            # the kernel looks the name up once more, and gives up if another server is asked for the new number
            self._noted_at_once = NOTED_AT_ONCE
            raise FilesystemError(errno.ESTALE)
        maker, key = inherited
        node = maker.make(key)
        del self._inherited[inode]
        node.inode = inode
        self.nodes[inode] = node
        return node

    def pin(self, node: N, name: str) -> int:
        """As `add`, for a node that exists as long as the mount. `name` is unique among pinned nodes."""
        inode = self.add(node)
        self._pinned[inode] = NodeText("pinned", None, None, name)
        return inode

    def pinned_name(self, inode: int) -> str | None:
        """The name that a node was pinned with; None for any other node."""
        pinned = self._pinned.get(inode)
        return None if pinned is None else str(pinned.detail)

    def add(self, node: N, key: NodeKey | None = None, *, is_made_up: bool = False) -> int:
        """Give `node` a number of its own, which is never reused. The first one is the root's. A node with a `key`
        survives a restart once it was `opened`; several nodes may have the same key. `is_made_up`: see MadeUpNames;
        FilesystemError."""
        inode = self._next_inode
        if is_made_up:
            self.made_up.add(inode)
        self._next_inode = inode + 1
        node.inode = inode
        self.nodes[inode] = node
        if self._records is not None:
            self._records.next_number = inode + 1
            if key is not None:
                self._leave_unopened(inode, key)
        return inode

    def _leave_unopened(self, inode: int, key: NodeKey) -> None:
        self._unopened[inode] = key
        if self._noted_at_once:
            self._noted_at_once -= 1
            with suppress(OSError, FilesystemError):  # no room: it is noted when it is open, or that is refused
                self.opened(inode)

    def opened(self, inode: int) -> None:
        """Note a number that was added with a key for the next server, because it is open. OSError: no room."""
        key = self._unopened.get(inode)
        if key is not None and self._records is not None:
            lookups, user = self._lookups.get(inode, 0), self.made_up.user(inode)
            is_named = inode in self._names
            self._records.add(inode, _text_of(key), is_named=is_named, lookups=lookups, user=user)
            del self._unopened[inode]

    def closed(self, inode: int) -> None:
        """A number has no open handle any more. If its node is noted `while_open`, the next server need not know it."""
        name = self._names.get(inode)
        if name is not None and self._records is not None and inode not in self._unopened:
            self._records.drop(inode)
            self._unopened[inode] = name

    def named(self, name: NodeKey, make: Callable[[], N], *, is_made_up: bool = False, while_open: bool = False) -> N:
        """The node of that key, made now if there is none. It survives a restart; with `while_open`, only between
        `opened` and `closed`. OSError: no room to note it; `is_made_up` as in `add`."""
        inode = self.find(name)
        if inode is not None:
            return self.nodes[inode]
        node = make()
        inode = self.add(node, is_made_up=is_made_up)
        if self._records is not None and not while_open:
            try:
                self._records.add(inode, _text_of(name), is_named=True, user=self.made_up.user(inode))
            except OSError:
                self._gone(inode)
                raise
        self._name(inode, name)
        if self._records is not None and while_open:
            self._leave_unopened(inode, name)
        return node

    def _name(self, inode: int, name: NodeKey) -> None:
        self._numbers.setdefault((name.topic, name.queue), {})[name] = inode
        self._names[inode] = name

    def inherited(self, inode: int) -> NodeKey | None:
        """The key of a node that the last server gave a number to, if it was not made again yet."""
        inherited = self._inherited.get(inode)
        return None if inherited is None else inherited[1]

    def find(self, name: NodeKey) -> int | None:
        """The number of the node with that key, if there is one."""
        return self._numbers.get((name.topic, name.queue), _NONE).get(name)

    def count(self, inode: int) -> None:
        """Count a look-up that returned this number to the kernel."""
        lookups = self._lookups[inode] = self._lookups.get(inode, 0) + 1
        if self._records is not None:
            self._records.count(inode, lookups)

    def note(self, inode: int, value: int) -> None:
        """Note a value with a number, for a server that makes its node again. Thread safety: any thread."""
        if self._records is not None:
            self._records.set_extra(inode, value)

    def noted(self, inode: int | None) -> int:
        """The value noted with a number; 0 at first."""
        return self._records.extra(inode) if self._records is not None and inode is not None else 0

    def are_valid(self, inodes: Set[int]) -> bool:
        return self.nodes.keys() >= inodes or self.nodes.keys() | self._inherited.keys() >= inodes

    def forget(self, inode: int, count: int) -> None:
        """Take back `count` look-ups; the last one drops the node."""
        left = self._lookups.get(inode, 0) - count
        if left > 0:
            self._lookups[inode] = left
            if self._records is not None:
                self._records.count(inode, left)
            return
        if inode not in self._pinned:
            self._gone(inode)
        else:
            self._lookups.pop(inode, None)

    def drop_unknown(self, inode: int) -> bool:
        """Drop a node if the kernel has no look-up of it; returns whether it is dropped now."""
        self.forget(inode, 0)
        return inode not in self.nodes and inode not in self._inherited

    def drop(self, inode: int) -> None:
        """Drop a node without a name before the kernel forgets it: no request will come for its number."""
        if inode not in self._names:
            self._gone(inode)

    def invalidate(self, unwanted: Callable[[NodeKey], bool], owner: Owner | None = None) -> list[int]:
        """Drop nodes by key, of all topics or of one `owner`; returns their numbers, which are stale from now on. Open
        files stay open."""
        owned = self._numbers.values() if owner is None else (self._numbers.get(owner, _NONE),)
        inodes = [inode for numbers in owned for name, inode in numbers.items() if unwanted(name)]
        for inode in inodes:
            self._gone(inode)
        return inodes

    def invalidate_named(self, name: NodeKey) -> None:
        """As `invalidate`, for the node of one key, if there is one."""
        inode = self.find(name)
        if inode is not None:
            self._gone(inode)

    def _gone(self, inode: int) -> None:
        """Invalidate a number."""
        self._lookups.pop(inode, None)
        node = self.nodes.pop(inode, None)
        if node is not None:
            node.forgotten()
        self._inherited.pop(inode, None)
        self._unopened.pop(inode, None)
        self.made_up.gone(inode)
        name = self._names.pop(inode, None)
        if name is not None:
            numbers = self._numbers[name.topic, name.queue]
            del numbers[name]
            if not numbers:
                del self._numbers[name.topic, name.queue]
        if self._records is not None:
            self._records.drop(inode)


def _text_of(key: NodeKey) -> NodeText:
    detail = astuple(key.detail) if is_dataclass(key.detail) and not isinstance(key.detail, type) else key.detail
    return NodeText(key.kind.__name__, key.topic, key.queue, detail)

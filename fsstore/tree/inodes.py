"""Inode numbers: computed for what is a message, counted out for everything else.

    bit 62 | physical offset      a message file
    bit 61 | physical offset      keys/<key>: a link to the message, from one folder below the topic
    bit 60 | physical offset      keys/<key>@all/<queue>-<offset>: a link to the message, from two folders below
    bit 59 | directory, name      what stat says of an `append`: no inode is ever known by it
    bit 58 | hash                 what stat says of a stream (topic, queue, first offset) or of a report in `@store`; no
                                  inode is known by it either
    below                         topics, queues, streams, append files, reports: numbers from a table, never used twice

So a million messages that the kernel has seen cost no memory here, and a number never comes to mean another message. A
log would need 2**60 bytes for the ranges to meet.

Where another process writes, another log may come in place of the one that was shown, and its physical offsets mean
other messages. Its numbers begin after those of the log before it.

Each look-up of an `append` gives a number of its own, so that the kernel lets writers go at once. Programs that compare
what they looked up with what they opened (cp, tar) must not see that: stat answers one number for the name. So it does
for a stream, which has an inode while it grows and another while it rests, and for a report, which has one a look-up.
"""

from __future__ import annotations

import errno
import hashlib
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Set
from dataclasses import astuple, is_dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from fsstore.accounts import Accounts, Resource
from fsstore.handover.nodes import NodeRecords, NodeText
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


def shown_stream_inode(topic: str, queue: int | None, first_offset: int) -> int:
    """The number that stat says of a queue's stream from one first message on; of a topic's (no queue), always."""
    return _shown_as(f"{topic}/{queue}/{0 if queue is None else first_offset}")


def shown_report_inode(path: str) -> int:
    """The number that stat says of a report in `@store`."""
    return _shown_as(path)


def _shown_as(path: str) -> int:
    digest = hashlib.blake2b(path.encode(errors="surrogateescape"), digest_size=8).digest()
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

    def forgotten(self) -> None:
        """Its number stands for nothing any more."""


N = TypeVar("N", bound=Numbered)


class Maker(NamedTuple, Generic[N]):
    """How nodes of one kind are made again by a server that was handed their numbers over."""

    kind: type
    make: Callable[[NodeKey], N]
    """From its key. FilesystemError: what it stood for is gone."""
    detail: Callable[[Any], Hashable] = lambda detail: detail
    """The key's detail, from its JSON; a dataclass is the tuple of its fields there."""


class _Nodes(dict[int, N]):
    def __init__(self, inherited: Callable[[int], N]) -> None:
        super().__init__()
        self._inherited = inherited

    def __missing__(self, inode: int) -> N:
        return self._inherited(inode)


class MadeUpNames:
    """Numbers by names that users make up (`append@OPTIONS`, `keys/KEY@all`): of each user only a share is known. The
    oldest that is not open makes room for another one: a kernel that asks for it looks its name up anew."""

    def __init__(self, accounts: Accounts, forget: Callable[[int], None]) -> None:
        """`forget` drops a number, and calls `gone`."""
        self._accounts = accounts
        self._forget = forget
        self._user_of: dict[int, int] = {}
        self._open: dict[int, int] = {}
        """How often each is open."""
        self._idle: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        """Those that are not, by user, the oldest first."""

    def add(self, inode: int) -> None:
        """One more, of the user who asks for it. FilesystemError: all of the share is open."""
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
        """Whose a number is; None: not one of these."""
        return self._user_of.get(inode)

    def inherit(self, inode: int, user: int) -> None:
        """One that another server knew."""
        self._accounts.inherit(user, Resource.NAMES)
        self._user_of[inode] = user
        self._idle[user][inode] = None

    def opened(self, inode: int) -> bool:
        """A number is open once more; whether it is one of these, so that `closed` is to be called."""
        user = self._user_of.get(inode)
        if user is None:
            return False
        self._open[inode] = self._open.get(inode, 0) + 1
        self._leave_idle(inode, user)
        return True

    def closed(self, inode: int) -> None:
        """It is open once less."""
        self._open[inode] -= 1
        if not self._open[inode]:
            del self._open[inode]
            if inode in self._user_of:
                self._idle[self._user_of[inode]][inode] = None

    def gone(self, inode: int) -> None:
        """The number stands for nothing any more, whichever it is."""
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
    """The nodes that a kernel may ask for by number, until it forgets them or they are dropped.

    With `survive`, the numbers are noted where the next server finds them, should this one be killed. That makes a node
    again when its number is asked for.
    """

    def __init__(self, accounts: Accounts) -> None:
        self.made_up = MadeUpNames(accounts, self._gone)
        self.nodes: dict[int, N] = _Nodes(self._make_again)
        """Node of each number; ESTALE (`[]`) when it stands for nothing (any more)."""
        self.makers: list[Maker[N]] = []
        """Of each kind that survives."""
        self._records: NodeRecords | None = None
        self._inherited: dict[int, tuple[Maker[N], NodeKey]] = {}
        self._numbers: dict[NodeKey, int] = {}
        self._names: dict[int, NodeKey] = {}
        self._lookups: dict[int, int] = {}
        self._unopened: dict[int, NodeKey] = {}
        """Numbers that a kernel asks for anew if another server does not know them: nothing is open by them."""
        self._pinned: dict[int, NodeText] = {}
        self._next_inode = ROOT_INODE

    def survive(self, records: NodeRecords) -> list[int]:
        """Take over the numbers that another server gave out, returned, and note there what is given out from now on.
        All that is pinned, and nothing else, was added before."""
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
                    self._numbers[key], self._names[inode] = inode, key
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
        """The node of a number that another server gave out. ESTALE: it stands for nothing (any more)."""
        inherited = self._inherited.get(inode)
        if inherited is None:
            raise FilesystemError(errno.ESTALE)
        maker, key = inherited
        node = maker.make(key)
        del self._inherited[inode]
        node.inode = inode
        self.nodes[inode] = node
        return node

    def pin(self, node: N, name: str) -> int:
        """As `add`, for a node that is there as long as the mount, whether or not the kernel knows it; `name` tells it
        from others that are."""
        inode = self.add(node)
        self._pinned[inode] = NodeText("pinned", None, None, name)
        return inode

    def pinned_name(self, inode: int) -> str | None:
        """What it was pinned as; None for any other node."""
        pinned = self._pinned.get(inode)
        return None if pinned is None else str(pinned.detail)

    def add(self, node: N, key: NodeKey | None = None, *, is_made_up: bool = False) -> int:
        """A number of its own for `node`, never used again. The first one added is the root. With `key` it survives
        once it was `opened`; others may have the same one. `is_made_up`: see MadeUpNames; FilesystemError."""
        inode = self._next_inode
        if is_made_up:
            self.made_up.add(inode)
        self._next_inode = inode + 1
        node.inode = inode
        self.nodes[inode] = node
        if self._records is not None:
            self._records.next_number = inode + 1
            if key is not None:
                self._unopened[inode] = key
        return inode

    def opened(self, inode: int) -> None:
        """Note a number that was added with a key: it is open, so another server is to know it. OSError: no room."""
        key = self._unopened.get(inode)
        if key is not None and self._records is not None:
            lookups, user = self._lookups.get(inode, 0), self.made_up.user(inode)
            is_named = inode in self._names
            self._records.add(inode, _text_of(key), is_named=is_named, lookups=lookups, user=user)
            del self._unopened[inode]

    def closed(self, inode: int) -> None:
        """Nothing is open any more by a number whose node is noted only `while_open`: another server need not know
        it."""
        name = self._names.get(inode)
        if name is not None and self._records is not None and inode not in self._unopened:
            self._records.drop(inode)
            self._unopened[inode] = name

    def named(self, name: NodeKey, make: Callable[[], N], *, is_made_up: bool = False, while_open: bool = False) -> N:
        """The node known by `name`, made now if there is none. It survives; with `while_open`, from when it is `opened`
        until it is `closed`. OSError: no room to note it; `is_made_up` as in `add`."""
        inode = self._numbers.get(name)
        if inode is not None:
            return self.nodes[inode]
        node = make()
        inode = self.add(node, is_made_up=is_made_up)
        if self._records is not None and while_open:
            self._unopened[inode] = name
        elif self._records is not None:
            try:
                self._records.add(inode, _text_of(name), is_named=True, user=self.made_up.user(inode))
            except OSError:
                self._gone(inode)
                raise
        self._numbers[name] = inode
        self._names[inode] = name
        return node

    def inherited(self, inode: int) -> NodeKey | None:
        """The key of a node that another server gave a number to, if it was not asked for since."""
        inherited = self._inherited.get(inode)
        return None if inherited is None else inherited[1]

    def find(self, name: NodeKey) -> int | None:
        """The number of the node known by `name`, if there is one."""
        return self._numbers.get(name)

    def count(self, inode: int) -> None:
        """Note that the kernel was given this number once more."""
        lookups = self._lookups[inode] = self._lookups.get(inode, 0) + 1
        if self._records is not None:
            self._records.count(inode, lookups)

    def note(self, inode: int, value: int) -> None:
        """Note something beside a number, for who makes its node again. Thread safety: any thread."""
        if self._records is not None:
            self._records.set_extra(inode, value)

    def noted(self, inode: int | None) -> int:
        """What was noted beside a number; 0 at first."""
        return self._records.extra(inode) if self._records is not None and inode is not None else 0

    def are_valid(self, inodes: Set[int]) -> bool:
        """Whether all of these numbers stand for something."""
        return self.nodes.keys() >= inodes or self.nodes.keys() | self._inherited.keys() >= inodes

    def forget(self, inode: int, count: int) -> None:
        """Take back `count` of them; the last one drops the node."""
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
        """Drop the node of a number that the kernel does not know (any more); whether that was so."""
        self.forget(inode, 0)
        return inode not in self.nodes and inode not in self._inherited

    def drop(self, inode: int) -> None:
        """Drop a node that has no name before the kernel forgets it: nobody will ask for that number again."""
        if inode not in self._names:
            self._gone(inode)

    def retire(self, unwanted: Callable[[NodeKey], bool]) -> list[int]:
        """Drop the nodes of such names: their numbers, returned, are stale from now on. What is open stays open."""
        inodes = [inode for name, inode in self._numbers.items() if unwanted(name)]
        for inode in inodes:
            self._gone(inode)
        return inodes

    def retire_named(self, name: NodeKey) -> None:
        """As `retire`, for one of that name, if there is one."""
        inode = self._numbers.get(name)
        if inode is not None:
            self._gone(inode)

    def _gone(self, inode: int) -> None:
        """The number stands for nothing from now on."""
        self._lookups.pop(inode, None)
        node = self.nodes.pop(inode, None)
        if node is not None:
            node.forgotten()
        self._inherited.pop(inode, None)
        self._unopened.pop(inode, None)
        self.made_up.gone(inode)
        name = self._names.pop(inode, None)
        if name is not None:
            del self._numbers[name]
        if self._records is not None:
            self._records.drop(inode)


def _text_of(key: NodeKey) -> NodeText:
    detail = astuple(key.detail) if is_dataclass(key.detail) and not isinstance(key.detail, type) else key.detail
    return NodeText(key.kind.__name__, key.topic, key.queue, detail)

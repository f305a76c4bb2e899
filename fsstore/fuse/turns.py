"""Users take turns for the request loop and for the threads of slow work.

    /dev/fuse ──all that have come──► RequestQueue ──one of each user──► request loop
    slow work ──────────────────────► SlowThreads  ──one of each user──► a thread

A user's requests reach the request loop in their order. The kernel's requests need no other order: the kernel sends no
request that depends on an unanswered one, and those that it sends without waiting (FORGET, INTERRUPT) are valid in any
order. Slow work of one user that arrives together may begin in any order.
Requests that the last server left unanswered need no order either: the kernel sends them before all others, and the
journal notes each when it is read.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from fsstore.accounts import Accounts, Resource
from fsstore.fuse.protocol import REQUEST, REQUEST_OF_USER
from fsstore.interface import WorkKind
from fsstore.tree.memory_budget import MemoryBudget, Purpose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T")

MOST_REQUESTS = 16_384
MOST_BYTES = 16 << 20
"""Bytes of requests that were read and wait; further requests wait in the kernel, in the order in which they came."""
CROWD = 64
REQUEST_BYTES = 256
"""Memory for a request in addition to its own bytes."""
STEP_BYTES = 1 << 20
"""The step in which the memory budget is updated."""


class Turns(Generic[T]):
    """Items of several users: one of each user in turn, and each user's items in their order. Thread safety: none."""

    def __init__(self) -> None:
        self._of: OrderedDict[int, deque[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._of)

    def __iter__(self) -> Iterator[T]:
        for items in self._of.values():
            yield from items

    def add(self, user: int, item: T) -> None:
        items = self._of.get(user)
        if items is None:
            self._of[user] = deque((item,))
        else:
            items.append(item)

    def count(self, user: int) -> int:
        """The number of items of a user."""
        return len(self._of.get(user, ()))

    def most(self) -> int:
        """The number of items of the user who has the most."""
        return max(map(len, self._of.values()), default=0)

    def take(self, may: Callable[[int], bool] = lambda user: True) -> T | None:
        """Take the next item of the first user in turn for whom `may` is true; that user goes to the end."""
        user = next((user for user in self._of if may(user)), None)
        if user is None:
            return None
        items = self._of[user]
        item = items.popleft()
        if items:
            self._of.move_to_end(user)
        else:
            del self._of[user]
        return item


class RequestQueue:
    """Requests that were read from the kernel and wait for their turn. Thread safety: none."""

    def __init__(self, memory: MemoryBudget) -> None:
        self._turns: Turns[bytes] = Turns()
        self._memory = memory
        self._counted = 0
        self._count = 0
        self._bytes = 0

    def __bool__(self) -> bool:
        return self._count > 0

    @property
    def has_room(self) -> bool:
        """Whether another request may be read."""
        return self._count < MOST_REQUESTS and self._bytes < MOST_BYTES

    @property
    def has_crowd(self) -> bool:
        """Whether many requests of one user wait."""
        return self._count > CROWD and self._turns.most() > CROWD

    def add(self, request: bytes) -> None:
        self._turns.add(REQUEST_OF_USER.unpack_from(request)[4], request)
        self._changed(1, REQUEST_BYTES + len(request))

    def take(self, of_crowds: bool = True) -> bytes | None:
        """The next request; None: none waits. `of_crowds`: also those of users of whom more than CROWD wait."""
        request = self._turns.take(lambda user: of_crowds or self._turns.count(user) <= CROWD)
        if request is not None:
            self._changed(-1, -REQUEST_BYTES - len(request))
        return request

    def holds(self, inode: int) -> bool:
        """Whether a request for an inode is queued."""
        return any(REQUEST.unpack_from(request)[3] == inode for request in self._turns)

    def _changed(self, count: int, size: int) -> None:
        self._count += count
        self._bytes += size
        counted = self._bytes // STEP_BYTES * STEP_BYTES
        if counted != self._counted:
            self._memory.hold(Purpose.REQUESTS, self._counted, counted)
            self._counted = counted


class SlowThreads:
    """Threads by kind of work. Work waits for a free thread of its kind and its user's share. Thread safety: trio's."""

    def __init__(self, threads: Mapping[WorkKind, int], accounts: Accounts) -> None:
        self._free = dict(threads)
        self._accounts = accounts
        self._waiting: dict[WorkKind, Turns[trio.Event]] = {kind: Turns() for kind in threads}

    @asynccontextmanager
    async def one(self, kind: WorkKind, user: int) -> AsyncIterator[None]:
        """Meanwhile a thread of that kind is taken. Cancelling here is for the mount's end only."""
        begins = trio.Event()
        self._waiting[kind].add(user, begins)
        self._begin(kind)
        await begins.wait()
        try:
            yield
        finally:
            self._free[kind] += 1
            self._accounts.give(user, Resource.SLOW_THREADS)
            for each in self._free:
                self._begin(each)

    def _begin(self, kind: WorkKind) -> None:
        """Let waiting work begin if it may."""
        while self._free[kind] and (begins := self._waiting[kind].take(self._may)) is not None:
            self._free[kind] -= 1
            begins.set()

    def _may(self, user: int) -> bool:
        return self._accounts.try_take(user, Resource.SLOW_THREADS)

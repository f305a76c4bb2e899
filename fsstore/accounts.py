"""An account for each user id: how much one user may take of what all users of a mount share.

    share     what a user holds, with what is asked for, is at most an eighth of what the others leave free. So many
              users at once make everybody's share smaller, and none can take all
    floor     so much a user gets in any case, as long as the pool lasts: a normal use is never refused
    reserve   the last eighth of each pool is for root and the mount's owner, who are bound by the whole pool alone

An account is that of the user who opened a handle or named a file. What ends a use (RELEASE, write-back, INTERRUPT)
carries no user that counts, so the holder notes whose account it took from.
"""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

from fsstore.interface import FilesystemError

SHARES = 8
"""A user gets one of so many parts of what is free."""

ROOT = 0


class Resource(StrEnum):
    """What all users of a mount share."""

    DESCRIPTORS = "descriptors"
    """Descriptors of the daemon that stay open with a user's files."""
    STAGED_FILES = "staged_files"
    """Files that wait in drop boxes."""
    HELD_BYTES = "held_bytes"
    """Beginnings of messages, names of listings and texts of reports, in the daemon's memory."""
    HANDOVER_BYTES = "handover_bytes"
    """What the next server needs of it, in the shared memory."""
    NAMES = "names"
    """Names that a user made up and the kernel knows: `append@OPTIONS`, `keys/KEY@all`."""
    SLOW_THREADS = "slow_threads"
    """Threads at slow work: who asks for more waits."""
    UNANSWERED = "unanswered"
    """Requests that publish or change something and wait for their answers, in the shared memory."""


class Bound(NamedTuple):
    """How much there is of a resource."""

    limit: int
    """All users together."""
    floor: int
    """What a user gets in any case."""


REFUSALS = {
    Resource.DESCRIPTORS: errno.EMFILE,
    Resource.STAGED_FILES: errno.EDQUOT,
    Resource.HELD_BYTES: errno.ENOBUFS,
    Resource.HANDOVER_BYTES: errno.ENOBUFS,
    Resource.NAMES: errno.ENOBUFS,
    Resource.SLOW_THREADS: errno.EAGAIN,
    Resource.UNANSWERED: errno.ENOBUFS,
}
"""The errno of who asks for too much; for threads, requests wait instead."""

SHARE_OF_DESCRIPTORS = 8
"""The pool is one of so many parts of the process's descriptors: a store takes three quarters of them."""
MOST_DESCRIPTORS = 16_384
FEWEST_THREADS = 2

BOUNDS = {
    Resource.STAGED_FILES: Bound(65_536, 64),
    Resource.HELD_BYTES: Bound(384 << 20, 1 << 20),
    Resource.HANDOVER_BYTES: Bound(128 << 20, 1 << 20),
    Resource.NAMES: Bound(1 << 16, 256),
    Resource.SLOW_THREADS: Bound(16, FEWEST_THREADS),
    Resource.UNANSWERED: Bound(49_152, 64),
}


def bounds_here() -> dict[Resource, Bound]:
    """BOUNDS, and descriptors by the process's soft limit now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    some = MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft // SHARE_OF_DESCRIPTORS, MOST_DESCRIPTORS)
    return {Resource.DESCRIPTORS: Bound(some, 8), **BOUNDS}


class ResourceFigures(NamedTuple):
    """Of one resource, now."""

    limit: int
    used: int
    users: int
    """How many hold some."""
    largest_user: int | None
    """Who holds most of it; None: nobody holds any."""
    largest: int
    """How much that is."""
    refused: int
    """How often somebody was refused."""


class _Pool:
    """Who holds how much of one resource."""

    __slots__ = ("bound", "held", "refused", "used")

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.held: dict[int, int] = {}
        self.used = 0
        self.refused = 0

    def share(self, user: int) -> int:
        """How much a user may hold."""
        limit, floor = self.bound
        others = self.used - self.held.get(user, 0)
        return min(max((limit - others) // SHARES, floor), limit - limit // SHARES - others)


class Accounts:
    """The accounts of one mount. Each call takes constant time, but for `figures`. Thread safety: any thread, but for
    `caller`."""

    def __init__(self, owner: int, bounds: Mapping[Resource, Bound] | None = None) -> None:
        """`owner` is the user id of the mount's owner; `bounds` (None: `bounds_here`) are of each resource."""
        self._pools = {kind: _Pool(bound) for kind, bound in (bounds or bounds_here()).items()}
        self._privileged = frozenset((ROOT, owner))
        self._lock = threading.Lock()
        self.caller = owner
        """Whose request is being answered: the request loop's thread alone sets and reads it."""

    def is_privileged(self, user: int) -> bool:
        """Whether that is root or the mount's owner."""
        return user in self._privileged

    @contextmanager
    def acting_for(self, user: int) -> Iterator[None]:
        """Meanwhile what is taken is that user's: who opened a handle pays for it, whoever uses it."""
        caller, self.caller = self.caller, user
        try:
            yield
        finally:
            self.caller = caller

    def take(self, user: int, kind: Resource, amount: int = 1) -> None:
        """Add `amount` (0 or more) to what a user holds. FilesystemError with the resource's errno: it would be more
        than the user's share, and nothing has changed."""
        if self.try_take(user, kind, amount):
            return
        with self._lock:
            pool = self._pools[kind]
            pool.refused += 1
            held, share = pool.held.get(user, 0), max(self._share(user, pool), 0)
        what = kind.value.replace("_", " ")
        reason = f"{what} of user {user}: {held:,}, and {amount:,} more are asked for, of a share of {share:,} now"
        raise FilesystemError(REFUSALS[kind], reason)

    def try_take(self, user: int, kind: Resource, amount: int = 1) -> bool:
        """As `take`, for who waits or makes room instead of being refused: whether it succeeded."""
        with self._lock:
            pool = self._pools[kind]
            fits = pool.held.get(user, 0) + amount <= self._share(user, pool)
            if fits:
                self._add(pool, user, amount)
            return fits

    def set_bound(self, kind: Resource, bound: Bound) -> None:
        """There is so much of a resource, known later than the rest."""
        with self._lock:
            self._pools[kind].bound = bound

    def inherit(self, user: int, kind: Resource, amount: int = 1) -> None:
        """As `take`, for what a user held before this server began: never refused."""
        with self._lock:
            self._add(self._pools[kind], user, amount)

    def give(self, user: int, kind: Resource, amount: int = 1) -> None:
        """Take `amount` back from what a user holds."""
        with self._lock:
            self._add(self._pools[kind], user, -amount)

    def held(self, user: int, kind: Resource) -> int:
        """How much a user holds."""
        return self._pools[kind].held.get(user, 0)

    def figures(self) -> dict[Resource, ResourceFigures]:
        """Of each resource."""
        with self._lock:
            return {kind: _figures_of(pool) for kind, pool in self._pools.items()}

    def _share(self, user: int, pool: _Pool) -> int:
        if self.is_privileged(user):
            return pool.bound.limit - pool.used + pool.held.get(user, 0)
        return pool.share(user)

    def _add(self, pool: _Pool, user: int, amount: int) -> None:
        left = pool.held.get(user, 0) + amount
        pool.used += amount
        if left:
            pool.held[user] = left
        else:
            pool.held.pop(user, None)  # the table holds no users who hold nothing


def _figures_of(pool: _Pool) -> ResourceFigures:
    largest_user = max(pool.held, key=pool.held.__getitem__, default=None)
    largest = 0 if largest_user is None else pool.held[largest_user]
    return ResourceFigures(pool.bound.limit, pool.used, len(pool.held), largest_user, largest, pool.refused)

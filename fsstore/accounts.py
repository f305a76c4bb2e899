"""An account for each user id: limits of one user's part in the resources that all users of a mount share.

    share     a user may hold at most an eighth of the amount that the other users leave free. More users at once get
              smaller shares, and no user can take all
    floor     the amount that a user gets in any case, while the pool has it: normal use is never refused
    reserve   the last eighth of each pool is for root and the mount's owner, who are limited by the pool alone

The account is that of the user who opened a handle or named a file. Requests that end a use (RELEASE, write-back,
INTERRUPT) carry no valid user, so the holder notes whose account it took from.
"""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from engine import counter, gauge
from fsstore.interface import FilesystemError

SHARES = 8
"""The denominator of a share: a user gets one such part of the free amount."""

ROOT = 0


class Resource(StrEnum):
    """Resources that all users of a mount share."""

    DESCRIPTORS = "descriptors"
    """Descriptors of the daemon that stay open with a user's files."""
    STAGED_FILES = "staged_files"
    """Files that wait in drop boxes."""
    HELD_BYTES = "held_bytes"
    """Incomplete messages, names of listings and texts of reports, in the daemon's memory."""
    HANDOVER_BYTES = "handover_bytes"
    """State for the next server, in the shared memory."""
    NAMES = "names"
    """Names that a user made up and the kernel knows: `append@OPTIONS`, `keys/KEY@all`."""
    SLOW_THREADS = "slow_threads"
    """Threads for slow work. Requests beyond a share wait."""
    UNANSWERED = "unanswered"
    """Unanswered requests that publish or change something, in the shared memory."""


class Bound(NamedTuple):
    """The amount of a resource."""

    limit: int
    """The amount for all users together."""
    floor: int
    """The amount for one user in any case."""


REFUSALS = {
    Resource.DESCRIPTORS: errno.EMFILE,
    Resource.STAGED_FILES: errno.EDQUOT,
    Resource.HELD_BYTES: errno.ENOBUFS,
    Resource.HANDOVER_BYTES: errno.ENOBUFS,
    Resource.NAMES: errno.ENOBUFS,
    Resource.SLOW_THREADS: errno.EAGAIN,
    Resource.UNANSWERED: errno.ENOBUFS,
}
"""The errno of a request beyond the share; requests for threads wait instead."""

SHARE_OF_DESCRIPTORS = 8
"""The denominator of the pool's part in the process's descriptors: a store takes three quarters of them."""
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
    """BOUNDS, and descriptors by the process's present soft limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft // SHARE_OF_DESCRIPTORS, MOST_DESCRIPTORS)
    return {Resource.DESCRIPTORS: Bound(count, 8), **BOUNDS}


@dataclass(frozen=True, slots=True)
class ResourceFigures:
    """Present figures of one resource."""

    limit: int = gauge("Amount for all users together")
    used: int = gauge("Amount that users hold")
    users: int = gauge("Number of users that hold some")
    largest_user: int | None = field(kw_only=True)
    """The user with the largest amount; None: no user holds any."""
    largest: int = gauge("Largest amount that one user holds")
    refused: int = counter("Requests beyond their user's share")


class _Pool:
    """The amounts of one resource by user."""

    __slots__ = ("bound", "held", "refused", "used")

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.held: dict[int, int] = {}
        self.used = 0
        self.refused = 0

    def share(self, user: int) -> int:
        """The amount that a user may hold."""
        limit, floor = self.bound
        others = self.used - self.held.get(user, 0)
        return min(max((limit - others) // SHARES, floor), limit - limit // SHARES - others)


class Accounts:
    """The accounts of one mount. All calls but `figures` take constant time. Thread safety: any; `caller`: one
    thread."""

    def __init__(self, owner: int, bounds: Mapping[Resource, Bound] | None = None) -> None:
        """`owner` is the user id of the mount's owner; `bounds` has a bound for each resource (None: `bounds_here`)."""
        self._pools = {kind: _Pool(bound) for kind, bound in (bounds or bounds_here()).items()}
        self._privileged = frozenset((ROOT, owner))
        self._lock = threading.Lock()
        self.caller = owner
        """The user of the present request. Only the request loop's thread sets and reads it."""
        self.process = 0
        """The process of the present request; as `caller`."""

    def is_privileged(self, user: int) -> bool:
        """Whether the user is root or the mount's owner."""
        return user in self._privileged

    @contextmanager
    def acting_for(self, user: int) -> Iterator[None]:
        """While a handle of `user` is used: takings count to `user`, even if another user sent the request."""
        caller, self.caller = self.caller, user
        try:
            yield
        finally:
            self.caller = caller

    def take(self, user: int, kind: Resource, amount: int = 1) -> None:
        """Add `amount` (0 or more) to a user's holding. FilesystemError with the resource's errno: it would exceed the
        user's share, and nothing has changed."""
        if self.try_take(user, kind, amount):
            return
        with self._lock:
            pool = self._pools[kind]
            pool.refused += 1
            held, share = pool.held.get(user, 0), max(self._share(user, pool), 0)
        name = kind.value.replace("_", " ")
        reason = f"{name} of user {user}: {held:,} held, {amount:,} more requested, but the share is {share:,} now"
        raise FilesystemError(REFUSALS[kind], reason)

    def try_take(self, user: int, kind: Resource, amount: int = 1) -> bool:
        """As `take`, but returns whether it succeeded: for callers that wait or make room instead of refusing."""
        with self._lock:
            pool = self._pools[kind]
            fits = pool.held.get(user, 0) + amount <= self._share(user, pool)
            if fits:
                self._add(pool, user, amount)
            return fits

    def set_bound(self, kind: Resource, bound: Bound) -> None:
        """Set the bound of a resource that becomes known later than the others."""
        with self._lock:
            self._pools[kind].bound = bound

    def inherit(self, user: int, kind: Resource, amount: int = 1) -> None:
        """Add the amount that a user held before this server began. It is never refused."""
        with self._lock:
            self._add(self._pools[kind], user, amount)

    def give(self, user: int, kind: Resource, amount: int = 1) -> None:
        """Take `amount` off a user's holding."""
        with self._lock:
            self._add(self._pools[kind], user, -amount)

    def held(self, user: int, kind: Resource) -> int:
        return self._pools[kind].held.get(user, 0)

    def figures(self) -> dict[Resource, ResourceFigures]:
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
            pool.held.pop(user, None)  # the table has no users with 0


def _figures_of(pool: _Pool) -> ResourceFigures:
    largest_user = max(pool.held, key=pool.held.__getitem__, default=None)
    largest = 0 if largest_user is None else pool.held[largest_user]
    counts = pool.bound.limit, pool.used, len(pool.held), largest, pool.refused
    return ResourceFigures(*counts, largest_user=largest_user)

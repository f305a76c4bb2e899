"""One budget for the memory that all clients together make a daemon hold.

    held    can't be read again: incomplete messages, names of an open listing, texts of reports. Beyond its share of
            the budget, or a user's share of that (accounts), no more is held: ENOBUFS, and held bytes stay.
    kept    can be read again: decompressed bodies, buffers of streams, columns of `@parquet`. The least recently used
            is evicted, of any kind, as soon as held and kept exceed the budget.

Memory with a limit of its own (rendered files of `@parquet`, small bodies, tables of a fixed size) is not counted here.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from enum import StrEnum

from fsstore.accounts import ROOT, Accounts, Resource
from fsstore.interface import FilesystemError

BUDGET_BYTES = 512 << 20
"""The largest memory of a daemon in addition to its own 35 MiB and to memory with limits of its own."""

SMALL_BYTES = 64 << 10
"""A holding up to this size is refused last, as publishing is, so that long lines of others stop no publisher."""

_EIGHTHS_HELD = 4
_EIGHTHS_HELD_LATE = 6


class Purpose(StrEnum):
    """Uses of memory."""

    MESSAGES_BEGUN = "messages_begun"
    """Held: publishers' lines without a newline yet, and unpublished `frame=file` messages."""
    PUBLISHING = "publishing"
    """Held: write requests that wait for the thread that publishes their lines."""
    REQUESTS = "requests"
    """Held, but never refused: requests that were read and wait for their turn, which have a limit of their own."""
    LISTINGS = "listings"
    """Held: names of open directories."""
    REPORTS = "reports"
    """Held: texts of open files of `@store`."""
    HANDOVER = "handover"
    """Held: state of open files for the next server, in the shared memory."""
    BODIES = "decompressed_bodies"
    """Kept: bodies that all readers of a message share."""
    STREAMS = "stream_buffers"
    """Kept: buffers of handles that read a `.log`."""
    PARQUET = "parquet_buffers"
    """Kept: buffers of handles that read a file of `@parquet`."""


class MemoryBudget:
    """The ledger of one mount. Thread safety: any thread."""

    def __init__(self, limit_bytes: int = BUDGET_BYTES, accounts: Accounts | None = None) -> None:
        """`accounts` limits each user's part; None: there is no such limit."""
        self.limit_bytes = limit_bytes
        self.accounts = accounts or Accounts(ROOT)
        self._lock = threading.Lock()
        self._used = dict.fromkeys(Purpose, 0)
        self._held = 0
        self._total = 0
        self._kept: OrderedDict[Hashable, tuple[Purpose, int, Callable[[], None]]] = OrderedDict()
        self.refused = 0
        """Number of ENOBUFS answers."""
        self.evicted = 0

    @property
    def used(self) -> dict[str, int]:
        with self._lock:
            return {purpose.value: size for purpose, size in self._used.items()}

    def hold(self, purpose: Purpose, before: int, after: int, *, is_there: bool = False) -> None:
        """Hold `after` bytes instead of `before`. ENOBUFS: the budget has no room for more, and nothing has changed.
        `is_there`: the last server held the bytes already, so they are not refused."""
        with self._lock:
            more = after - before
            comes_late = after <= SMALL_BYTES or purpose is Purpose.PUBLISHING
            eighths = _EIGHTHS_HELD_LATE if comes_late else _EIGHTHS_HELD
            is_bounded = is_there or purpose is Purpose.REQUESTS
            if more > 0 and not is_bounded and self._held + more > self.limit_bytes // 8 * eighths:
                self.refused += 1
                name = purpose.value.replace("_", " ")
                raise FilesystemError(errno.ENOBUFS, f"the daemon has no memory left for {name}: try again later")
            self._held += more
            self._count(purpose, more)
            evicted = self._make_room()
        for evict in evicted:
            evict()

    def keep(self, key: Hashable, purpose: Purpose, size: int, evict: Callable[[], None]) -> None:
        """Keep `size` bytes as `key`, used now; 0: no longer. `evict` drops them; it is called on any thread."""
        with self._lock:
            known = self._kept.pop(key, None)
            if known is not None:
                if known[1] == size:
                    self._kept[key] = known
                    return
                self._count(known[0], -known[1])
            if size:
                self._kept[key] = purpose, size, evict
                self._count(purpose, size)
            evicted = self._make_room()
        for evict in evicted:
            evict()

    def _make_room(self) -> list[Callable[[], None]]:
        """Evict down to the budget, but never the newest, which is about to be used. Returns the functions to call."""
        evicted = []
        while self._total > self.limit_bytes and len(self._kept) > 1:
            _, (purpose, size, evict) = self._kept.popitem(last=False)
            self._count(purpose, -size)
            self.evicted += 1
            evicted.append(evict)
        return evicted

    def _count(self, purpose: Purpose, more: int) -> None:
        self._used[purpose] += more
        self._total += more


class HandoverShares:
    """Users' shares of the memory that outlives the daemon, which also counts in the budget
    (`fsstore.handover.Shares`). Thread safety: any thread."""

    def __init__(self, accounts: Accounts, budget: MemoryBudget) -> None:
        self._accounts = accounts
        self._budget = budget

    def take(self, user: int, size: int) -> None:
        self._accounts.take(user, Resource.HANDOVER_BYTES, size)
        try:
            self._budget.hold(Purpose.HANDOVER, 0, size)
        except FilesystemError:
            self._accounts.give(user, Resource.HANDOVER_BYTES, size)
            raise

    def give(self, user: int, size: int) -> None:
        self._accounts.give(user, Resource.HANDOVER_BYTES, size)
        self._budget.hold(Purpose.HANDOVER, size, 0)

    def inherit(self, user: int, size: int) -> None:
        self._accounts.inherit(user, Resource.HANDOVER_BYTES, size)
        self._budget.hold(Purpose.HANDOVER, 0, size, is_there=True)


class UnansweredShares:
    """Users' shares of unanswered requests, as `HandoverShares`."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def take(self, user: int, size: int) -> None:
        self._accounts.take(user, Resource.UNANSWERED, size)

    def give(self, user: int, size: int) -> None:
        self._accounts.give(user, Resource.UNANSWERED, size)

    def inherit(self, user: int, size: int) -> None:
        self._accounts.inherit(user, Resource.UNANSWERED, size)


class Holding:
    """Memory that one handle holds, in the account of the user who opened it. Thread safety: none."""

    __slots__ = ("_budget", "_purpose", "_user", "size")

    def __init__(self, budget: MemoryBudget, purpose: Purpose) -> None:
        self._budget = budget
        self._purpose = purpose
        self._user = budget.accounts.caller
        self.size = 0

    def resize(self, size: int) -> None:
        """Hold `size` bytes from now on. ENOBUFS: it exceeds the user's share, or see `MemoryBudget.hold`."""
        before, accounts = self.size, self._budget.accounts
        if size == before:
            return
        if size > before:
            accounts.take(self._user, Resource.HELD_BYTES, size - before)
            try:
                self._budget.hold(self._purpose, before, size)
            except FilesystemError:
                accounts.give(self._user, Resource.HELD_BYTES, size - before)
                raise
        else:
            self._budget.hold(self._purpose, before, size)
            accounts.give(self._user, Resource.HELD_BYTES, before - size)
        self.size = size

    def inherit(self, size: int) -> None:
        """Hold bytes that the last server held; never refused."""
        self._budget.hold(self._purpose, self.size, size, is_there=True)
        self._budget.accounts.inherit(self._user, Resource.HELD_BYTES, size - self.size)
        self.size = size

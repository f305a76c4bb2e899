"""One budget for what clients make a daemon hold in memory, whoever asks and however many they are.

    held    what can't be had again: beginnings of messages, names of a listing that was begun, texts of reports. Over
            its share of the budget nothing more is held, nor over a user's share of that (accounts): ENOBUFS, and
            nothing is lost that was held before.
    kept    what can: decompressed bodies, buffers of streams, columns of `@parquet`. The least recently used goes, of
            whatever kind, as soon as held and kept are more than the budget.

What has a bound of its own (rendered files of `@parquet`, small bodies, tables of a fixed size) is not counted here.
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
"""What a daemon takes at most beside its own 35 MiB and what has a bound of its own."""

SMALL_BYTES = 64 << 10
"""Who holds no more than this is refused last, and so is who publishes: others' long lines are not to stop a publisher
of short ones."""

_EIGHTHS_HELD = 4
_EIGHTHS_HELD_LATE = 6


class Purpose(StrEnum):
    """What memory is used for."""

    MESSAGES_BEGUN = "messages_begun"
    """Lines without their newline, and `frame=file` messages, of publishers: held."""
    PUBLISHING = "publishing"
    """Write requests whose lines wait for the thread that publishes them: held."""
    REQUESTS = "requests"
    """Requests that were read and wait for their turn, up to a bound of their own: held, and never refused."""
    LISTINGS = "listings"
    """Names of directories that are open: held."""
    REPORTS = "reports"
    """Texts of open files of `@store`: held."""
    HANDOVER = "handover"
    """What the next server needs of open files, in the shared memory: held."""
    BODIES = "decompressed_bodies"
    """Shared by all who read the message: kept."""
    STREAMS = "stream_buffers"
    """Of handles that read a `.log`: kept."""
    PARQUET = "parquet_buffers"
    """Of handles that read a file of `@parquet`: kept."""


class MemoryBudget:
    """The ledger of one mount. Thread safety: any thread."""

    def __init__(self, limit_bytes: int = BUDGET_BYTES, accounts: Accounts | None = None) -> None:
        """`accounts` bound what one user has it hold; None: nothing does."""
        self.limit_bytes = limit_bytes
        self.accounts = accounts or Accounts(ROOT)
        self._lock = threading.Lock()
        self._used = dict.fromkeys(Purpose, 0)
        self._held = 0
        self._total = 0
        self._kept: OrderedDict[Hashable, tuple[Purpose, int, Callable[[], None]]] = OrderedDict()
        self.refused = 0
        """How often somebody was answered ENOBUFS."""
        self.evicted = 0
        """How often something that was kept had to go."""

    @property
    def used(self) -> dict[str, int]:
        """Bytes by purpose."""
        with self._lock:
            return {purpose.value: size for purpose, size in self._used.items()}

    def hold(self, purpose: Purpose, before: int, after: int, *, is_there: bool = False) -> None:
        """Hold `after` bytes instead of `before`. ENOBUFS, and nothing has changed: they are more, and too many, unless
        another server has left them."""
        with self._lock:
            more = after - before
            comes_late = after <= SMALL_BYTES or purpose is Purpose.PUBLISHING
            eighths = _EIGHTHS_HELD_LATE if comes_late else _EIGHTHS_HELD
            is_bounded = is_there or purpose is Purpose.REQUESTS
            if more > 0 and not is_bounded and self._held + more > self.limit_bytes // 8 * eighths:
                self.refused += 1
                what = purpose.value.replace("_", " ")
                raise FilesystemError(errno.ENOBUFS, f"the daemon has no memory left for {what}: try again later")
            self._held += more
            self._count(purpose, more)
            gone = self._make_room()
        for evict in gone:
            evict()

    def keep(self, key: Hashable, purpose: Purpose, size: int, evict: Callable[[], None]) -> None:
        """Keep `size` bytes as `key`, used this moment; 0 is nothing. `evict` is called, on any thread, when they have
        to go, and drops them."""
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
            gone = self._make_room()
        for evict in gone:
            evict()

    def _make_room(self) -> list[Callable[[], None]]:
        """What has to go: never the newest, which somebody is about to use."""
        gone = []
        while self._total > self.limit_bytes and len(self._kept) > 1:
            _, (purpose, size, evict) = self._kept.popitem(last=False)
            self._count(purpose, -size)
            self.evicted += 1
            gone.append(evict)
        return gone

    def _count(self, purpose: Purpose, more: int) -> None:
        self._used[purpose] += more
        self._total += more


class HandoverShares:
    """What users may take of the memory that outlives the daemon: their shares, and of the budget. See
    `fsstore.handover.Shares`. Thread safety: any thread."""

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
    """How many requests of a user may wait for their answers: as `HandoverShares`."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def take(self, user: int, size: int) -> None:
        self._accounts.take(user, Resource.UNANSWERED, size)

    def give(self, user: int, size: int) -> None:
        self._accounts.give(user, Resource.UNANSWERED, size)

    def inherit(self, user: int, size: int) -> None:
        self._accounts.inherit(user, Resource.UNANSWERED, size)


class Holding:
    """What one handle holds, in the account of who opens it. Thread safety: none."""

    __slots__ = ("_budget", "_purpose", "_user", "size")

    def __init__(self, budget: MemoryBudget, purpose: Purpose) -> None:
        self._budget = budget
        self._purpose = purpose
        self._user = budget.accounts.caller
        self.size = 0

    def resize(self, size: int) -> None:
        """Hold that many bytes from now on. ENOBUFS: it is more than the user's share, or see `MemoryBudget.hold`."""
        before, accounts = self.size, self._budget.accounts
        if size > before:
            accounts.take(self._user, Resource.HELD_BYTES, size - before)
            try:
                self._budget.hold(self._purpose, before, size)
            except FilesystemError:
                accounts.give(self._user, Resource.HELD_BYTES, size - before)
                raise
        elif size < before:
            self._budget.hold(self._purpose, before, size)
            accounts.give(self._user, Resource.HELD_BYTES, before - size)
        self.size = size

    def inherit(self, size: int) -> None:
        """Hold that many bytes, which another server held: they are never refused."""
        self._budget.hold(self._purpose, self.size, size, is_there=True)
        self._budget.accounts.inherit(self._user, Resource.HELD_BYTES, size - self.size)
        self.size = size

"""The part of the memory that outlives a server that each user holds and may hold."""

from __future__ import annotations

from typing import Protocol

QUANTUM_BYTES = 1 << 14
"""The pieces in which shares are taken."""
IDLE_USERS = 64
"""Users without records that may keep a piece for the next time."""


class Shares(Protocol):
    """The account of each user's share: part of `fsstore.accounts.Accounts`, and of the memory budget."""

    def take(self, user: int, size: int) -> None:
        """Count `size` to a user. OSError: it is more than the user's share."""

    def give(self, user: int, size: int) -> None:
        """Take `size` back from a user."""

    def inherit(self, user: int, size: int) -> None:
        """Count the bytes that a user held before. It is never refused."""


class NoShares:
    """Shares without limits."""

    def take(self, user: int, size: int) -> None:
        pass

    give = inherit = take


class Ledger:
    """Bytes of records by user. Shares are taken and given back in pieces, so that most records need no look at the
    account. An idle user keeps a piece for a while."""

    def __init__(self) -> None:
        self.shares: Shares = NoShares()
        self._held: dict[int, int] = {}
        self._granted: dict[int, int] = {}

    def charge(self, user: int, more: int) -> None:
        """Count bytes to a user; a negative `more` gives back. OSError: beyond the share, and nothing has changed."""
        held = self._held.get(user, 0) + more
        spare = self._granted.get(user, 0) - held
        if not 0 <= spare <= 2 * QUANTUM_BYTES:
            self._adjust(user, spare)
        self._held[user] = held

    def _adjust(self, user: int, spare: int) -> None:
        """Take or give back pieces until at most one is spare."""
        pieces = spare // QUANTUM_BYTES - (spare > 0)
        if spare < 0:
            self._give_idle()
            self.shares.take(user, -pieces * QUANTUM_BYTES)
        else:
            self.shares.give(user, pieces * QUANTUM_BYTES)
        self._granted[user] = self._granted.get(user, 0) - pieces * QUANTUM_BYTES

    def _give_idle(self) -> None:
        """Take back the spare pieces of users without records, if there are many such users."""
        if len(self._held) > IDLE_USERS:
            for user in [user for user, held in self._held.items() if not held]:
                self.shares.give(user, self._granted.pop(user))
                del self._held[user]

    def inherit(self, user: int, size: int) -> None:
        """Count the bytes that a user held before."""
        self._held[user] = self._granted[user] = self._held.get(user, 0) + size

    def share_out(self, shares: Shares) -> None:
        """From now on each user gets at most a share."""
        self.shares = shares
        for user, size in self._granted.items():
            shares.inherit(user, size)

"""Requests that must not be done twice."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

from fsstore.handover.layout import REQUEST_WORDS, REQUESTS, REQUESTS_BEGIN, REQUESTS_USED_WORD
from fsstore.handover.shares import NoShares, Shares

UNCOUNTED_REQUESTS = 64
"""Requests at once that count to no user's share: requests that are answered at once need no look at it."""
RESENT = 1 << 63
"""The bit that the kernel sets in `unique` of a request that it sends again."""
_BEGUN, _PLACED, _STORED, _DONE = 1, 2, 3, 4


class _Slot(threading.local):
    """The slot of the request that a thread works on; 0: none."""

    number = 0


class RequestJournal:
    """Unanswered requests that must not be done twice.

    begun ──► placed (the physical offset of its messages) ──► done ──► free, after the answer
                └ the server died: stored if the recovered log reaches beyond that offset, else begun
    """

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._current = _Slot()
        self.slots: dict[int, int] = {}
        """The slot of each request, by `unique` without RESENT."""
        self._free: list[int] = []
        self._shares: Shares = NoShares()
        for number in range(words[REQUESTS_USED_WORD]):
            slot = REQUESTS_BEGIN + number * REQUEST_WORDS
            if words[slot]:
                self.slots[words[slot]] = slot
            else:
                self._free.append(slot)
        self.unclaimed = set(self.slots)
        """Requests of the last server that the kernel has not sent again yet."""
        self._inherited = frozenset(self.slots)

    def share_out(self, shares: Shares) -> None:
        """From now on each user has at most a share of the requests beyond UNCOUNTED_REQUESTS."""
        self._shares = shares
        for slot in self.slots.values():
            if self._words[slot + 3]:
                shares.inherit(self._words[slot + 3] - 1, 1)

    def settle(self, log_end: int) -> None:
        """Find out which puts are in the log, after it was recovered and before anything is put."""
        words = self._words
        for slot in self.slots.values():
            if words[slot + 1] == _PLACED:
                words[slot + 1] = _STORED if words[slot + 2] < log_end else _BEGUN

    def begin(self, unique: int, user: int | None = None) -> int:
        """The slot of a request, which may exist already. OSError: there is no room for it, or the user's share is used
        up. A request with no `user` can't be refused and counts to no share."""
        key = unique & ~RESENT
        slot = self.slots.get(key)
        if slot is not None:
            return slot
        words = self._words
        slot = self._free.pop() if self._free else self._one_more()
        if len(self.slots) < UNCOUNTED_REQUESTS:
            user = None
        elif user is not None:
            try:
                self._shares.take(user, 1)
            except OSError:
                self._free.append(slot)
                raise
        words[slot + 1] = _BEGUN
        words[slot + 3] = 0 if user is None else user + 1
        words[slot] = key
        self.slots[key] = slot
        return slot

    def _one_more(self) -> int:
        """A slot that was never used. OSError: there is none."""
        used = self._words[REQUESTS_USED_WORD]
        if used == REQUESTS:
            raise OSError(errno.ENOBUFS, "too many requests wait for their answers")
        self._words[REQUESTS_USED_WORD] = used + 1
        return REQUESTS_BEGIN + used * REQUEST_WORDS

    def arrived(self, unique: int) -> None:
        """Note that a request was read. The kernel sends the unanswered ones of the last server again before any other,
        so the first new request shows that the remaining ones were answered."""
        if unique & RESENT:
            self.unclaimed.discard(unique & ~RESENT)
        else:
            for answered in self.unclaimed:
                self.free(answered)
            self.unclaimed.clear()

    def was_begun(self, unique: int) -> bool:
        """Whether a server that was killed had begun the request."""
        return unique & ~RESENT in self._inherited

    def is_stored(self, slot: int) -> bool:
        """Whether only this is known of the request in `slot`: its messages are in the log."""
        return slot != 0 and self._words[slot + 1] == _STORED

    def done_until(self, slot: int) -> int | None:
        """The physical offset that a finished request waits for (0: none); None: it is not done."""
        return self._words[slot + 2] if slot and self._words[slot + 1] == _DONE else None

    def done(self, unique: int, physical_end: int) -> None:
        """Note that a request is done but may still wait for the disk up to `physical_end`."""
        slot = self.slots.get(unique & ~RESENT)
        if slot is not None:
            words = self._words
            if words[slot + 1] != _PLACED:  # else a kill here would leave one state with the offset of the other
                words[slot + 2] = physical_end
                words[slot + 1] = _DONE
            else:
                words[slot + 1] = _STORED
                words[slot + 2] = physical_end
                words[slot + 1] = _DONE

    def enter(self, slot: int) -> None:
        """From now on this thread puts for the request in `slot`; 0: for none."""
        self._current.number = slot

    def run(self, slot: int, work: Callable[[], object]) -> None:
        """Do a request's work in this thread, another than the request loop's."""
        self._current.number = slot
        try:
            work()
        finally:
            self._current.number = 0

    def placing(self, physical_offset: int) -> None:
        """Note where the log is about to publish this thread's messages."""
        slot = self._current.number
        if slot:
            self._words[slot + 2] = physical_offset
            self._words[slot + 1] = _PLACED

    def free(self, unique: int) -> None:
        """Forget a request that was answered."""
        slot = self.slots.pop(unique & ~RESENT, None)
        if slot is not None:
            user = self._words[slot + 3]
            self._words[slot] = 0
            self._free.append(slot)
            if user:
                self._shares.give(user - 1, 1)

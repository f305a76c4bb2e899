"""Acknowledgements: how far replicas have the log, and the writers that wait for them (SYNC_MASTER)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from engine.errors import NotReplicatedError, StoreClosedError, StoreError

Done = Callable[[StoreError | None], None]


class Acknowledgements:
    """Calls writers back once enough replicas have acknowledged their messages, or once their time is over.

    Thread safety: any thread. `done` callbacks run on the thread that calls `note`, `expire` or `close`, or at once on
    the caller's; they must be quick and must not raise.
    """

    def __init__(self, needed: int, timeout_ms: int, wake: Callable[[], None]) -> None:
        """`needed` replicas have to acknowledge within `timeout_ms`. `wake` is called when a writer begins to wait."""
        self._needed = needed
        self._timeout_seconds = timeout_ms / 1000
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, int, Done]] = []
        self._ends: Sequence[int] = ()
        self._given_up: StoreError | None = None
        self.confirmed_end = 0
        """Physical offset before which the log was acknowledged by enough replicas at one time."""
        self.timeouts = 0
        """Number of writers whose time was over."""

    @property
    def is_waited_for(self) -> bool:
        """Whether a writer waits."""
        return bool(self._waiting)

    def request(self, physical_end: int, done: Done) -> None:
        """Call `done(None)` when enough replicas have everything before `physical_end`, `done(error)` when it is too
        late: NotReplicatedError; StoreClosedError."""
        with self._lock:
            given_up = self._given_up if physical_end > self.confirmed_end else None
            is_waiting = physical_end > self.confirmed_end and given_up is None
            if is_waiting:
                self._waiting.append((time.monotonic() + self._timeout_seconds, physical_end, done))
        if is_waiting:
            self._wake()
        else:
            done(given_up)

    def note(self, ends: Sequence[int]) -> None:
        """Take the ends that the replicas in sync have acknowledged, one for each of them."""
        with self._lock:
            self._ends = ends
            if len(ends) >= self._needed:
                self.confirmed_end = max(self.confirmed_end, sorted(ends)[-self._needed])
            confirmed_end = self.confirmed_end
            reached = [done for _, end, done in self._waiting if end <= confirmed_end]
            if reached:
                self._waiting = [one for one in self._waiting if one[1] > confirmed_end]
        for done in reached:
            done(None)

    def expire(self) -> float | None:
        """Answer the writers whose time is over. Returns the seconds that the next one has left; None: none waits."""
        now = time.monotonic()
        with self._lock:  # they wait equally long, so the first to come is the first to go
            late = [one for one in self._waiting if one[0] <= now]
            del self._waiting[: len(late)]
            self.timeouts += len(late)
            next_seconds = self._waiting[0][0] - now if self._waiting else None
        for _, end, done in late:
            done(self._not_replicated(end))
        return next_seconds

    def _not_replicated(self, physical_end: int) -> NotReplicatedError:
        have = sum(end >= physical_end for end in self._ends)
        return NotReplicatedError(physical_end, have, self._needed, self._timeout_seconds)

    def close(self, error: StoreError | None = None) -> None:
        """Answer present and later writers with `error`, by default StoreClosedError. Calling it twice is harmless."""
        with self._lock:
            self._given_up = given_up = self._given_up or error or StoreClosedError()
            waiting, self._waiting = self._waiting, []
        for _, _, done in waiting:
            done(given_up)


def when_both(done: Done) -> Done:
    """A callback for two conditions: its second call without an error, or its first one with an error, calls
    `done`."""
    lock, missing = threading.Lock(), 2

    def one_done(error: StoreError | None) -> None:
        nonlocal missing
        with lock:
            if missing <= 0:
                return
            missing = missing - 1 if error is None else 0
            is_last = missing == 0
        if is_last:
            done(error)

    return one_done

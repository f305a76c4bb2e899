"""Shares: the part of connections and threads that one client of the server may hold.

A client is a token, a certificate, a user of this machine, or an address. Each may hold a hundredth of all connections.
A connection holds little memory, and never more: a piece of an answer, and its socket's buffers. So the share of
connections is one of memory, too. Threads wait for the mount; requests beyond a share of them wait for their turn.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import trio
from outcome import Outcome

from fsstore.serve.tree import RefusedError

T = TypeVar("T")

MOST_CONNECTIONS = 10_000
SHARES = 100
FEWEST_CONNECTIONS = 16
"""The connections that a client may always have, while there are any."""
THREADS = 64
THREADS_EACH = 4
PATIENCE_S = 30.0
"""Seconds that a request waits for the mount."""


MOMENT_S, PAUSE_S = 0.001, 0.02
"""Seconds for which the loop itself waits for a thread, and seconds without such a wait after one that timed out."""
MOST_AT_ONCE = 16
"""Threads that the loop waits for before others have their turn."""


class BusyError(RefusedError):
    """A share, or all that the server has, is taken."""


class Shares:
    """Connections by client, and turns in threads. Thread safety: trio's thread alone."""

    def __init__(self, connections: int) -> None:
        self.most = min(connections, MOST_CONNECTIONS)
        self.each = min(max(self.most // SHARES, FEWEST_CONNECTIONS), self.most)
        self.held: Counter[str] = Counter()
        self._threads = trio.Semaphore(THREADS)
        self._turns: WeakValueDictionary[str, _Turns] = WeakValueDictionary()  # a thread that hangs keeps its own
        self._waits_from_s = 0.0
        self._at_once = 0

    @property
    def connections(self) -> int:
        return self.held.total()

    def take(self, client: str) -> None:
        """Count a connection of `client`. BusyError."""
        if self.held[client] >= self.each:
            raise BusyError(429, f"{client} has {self.each} connections already")
        if self.connections >= self.most:
            raise BusyError(503, f"the server has {self.most:,} connections already")
        self.held[client] += 1

    def give(self, client: str) -> None:
        self.held[client] -= 1
        if not self.held[client]:
            del self.held[client]

    async def run(self, client: str, work: Callable[[], T]) -> T:
        """The result of `work`, done in a thread. If the mount does not answer in time, the thread is left to itself,
        and holds its turn. BusyError; errors of `work`."""
        return await self._run(client, work, 0.0)

    async def run_short(self, client: str, work: Callable[[], T]) -> T:
        """As `run`, for work that takes some 10 us if the mount has the answer: the loop waits for it, which costs a
        fifth of a turn in a thread. It waits at most MOMENT_S. After a wait that timed out it does not wait again
        for PAUSE_S."""
        moment = MOMENT_S if time.monotonic() >= self._waits_from_s else 0.0
        return await self._run(client, work, moment)

    async def _run(self, client: str, work: Callable[[], T], moment_s: float) -> T:
        turns = self._turns.get(client)
        if turns is None:
            turns = self._turns[client] = _Turns(self._threads)
        with trio.CancelScope(deadline=trio.current_time() + PATIENCE_S):
            await turns.take()
            thread = _Thread(work, turns.give)
            if not thread.is_done_within(moment_s):
                if moment_s:
                    self._waits_from_s = time.monotonic() + PAUSE_S
                return await thread.result()
            self._at_once += 1
            if self._at_once >= MOST_AT_ONCE:
                self._at_once = 0
                await trio.lowlevel.checkpoint()
            return thread.found()
        raise BusyError(503, f"the mount did not answer within {PATIENCE_S:.0f} s")


class _Turns:
    """One client's threads, within those of all."""

    def __init__(self, every: trio.Semaphore) -> None:
        self._every = every
        self._own = trio.Semaphore(THREADS_EACH)

    async def take(self) -> None:
        await _acquire(self._own)
        try:
            await _acquire(self._every)
        except BaseException:
            self._own.release()
            raise

    def give(self) -> None:
        self._every.release()
        self._own.release()


async def _acquire(semaphore: trio.Semaphore) -> None:
    try:
        semaphore.acquire_nowait()  # else each request would wait a turn of the loop
    except trio.WouldBlock:
        await semaphore.acquire()


class _Thread(Generic[T]):
    """A thread with some work. trio.to_thread has two calls of the system more for the name of a thread, and the lock
    of the interpreter changes hands at each."""

    def __init__(self, work: Callable[[], T], ended: Callable[[], None]) -> None:
        """Start it. `ended` is called in trio's thread when it has ended, however long it takes."""
        self._ended = ended
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        self._token = trio.lowlevel.current_trio_token()
        self._outcome: Outcome[T] | None = None
        self._first = threading.Lock()  # taken by the end of the work, or by the end of waiting for it
        self._is_done = threading.Lock()
        self._is_done.acquire()
        try:
            trio.lowlevel.start_thread_soon(work, self._deliver)
        except BaseException:
            ended()
            raise

    def is_done_within(self, seconds: float) -> bool:
        """Whether the work is done when trio's thread has waited so long. Called once."""
        return (seconds > 0 and self._is_done.acquire(timeout=seconds)) or not self._first.acquire(blocking=False)

    def found(self) -> T:
        """The result of work that is done. Errors of the work."""
        assert self._outcome is not None
        self._ended()
        return self._outcome.unwrap()

    async def result(self) -> T:
        """The result, as soon as the work is done; a task that is cancelled leaves the thread to itself. Errors of the
        work."""

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        result: T = await trio.lowlevel.wait_task_rescheduled(abort)
        return result

    def _deliver(self, outcome: Outcome[T]) -> None:
        """Called in the thread."""
        self._outcome = outcome
        if self._first.acquire(blocking=False):
            self._is_done.release()
        else:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._end)

    def _end(self) -> None:
        self._ended()
        if self._task is not None and self._outcome is not None:
            trio.lowlevel.reschedule(self._task, self._outcome)

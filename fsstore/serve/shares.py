"""Shares: the part of connections and threads that one client of the server may hold.

A client is a token, a certificate, a user of this machine, or an address. Each may hold a hundredth of all connections.
A connection holds little memory, and never more: a piece of an answer, and its socket's buffers. So the share of
connections is one of memory, too. Threads wait for the mount; requests beyond a share of them wait for their turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar
from weakref import WeakValueDictionary

import trio
from outcome import Outcome

from fsstore.serve.tree import RefusedError

T = TypeVar("T")

MOST_CONNECTIONS = 10_000
SHARES = 100
FEWEST_CONNECTIONS = 16
"""What a client may hold in any case, while there are connections."""
THREADS = 64
THREADS_EACH = 4
PATIENCE_S = 30.0
"""Seconds that a request waits for the mount."""


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
        turns = self._turns.get(client)
        if turns is None:
            turns = self._turns[client] = _Turns(self._threads)
        with suppress(trio.TooSlowError), trio.fail_after(PATIENCE_S):
            await turns.take()
            return await _in_thread(work, turns.give)
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


async def _in_thread(work: Callable[[], T], ended: Callable[[], None]) -> T:
    """The result of `work`, done in a thread, and `ended` called when it is done; a task that is cancelled leaves the
    thread to itself. trio.to_thread has two calls of the system more for the name of a thread, and the lock of the
    interpreter changes hands at each."""
    task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
    is_awaited = True

    def end(result: Outcome[T]) -> None:
        ended()
        if is_awaited:
            trio.lowlevel.reschedule(task, result)

    def deliver(result: Outcome[T]) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(end, result)

    def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
        nonlocal is_awaited
        is_awaited = False
        return trio.lowlevel.Abort.SUCCEEDED

    try:
        trio.lowlevel.start_thread_soon(work, deliver)
    except BaseException:
        ended()
        raise
    result: T = await trio.lowlevel.wait_task_rescheduled(abort)
    return result

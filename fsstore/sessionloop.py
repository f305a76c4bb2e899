"""How requests get from the kernel to their handlers, one after the other on trio's thread.

pyfuse3's own loop goes through trio for each request: a lock, an epoll registration, a turn of the scheduler. That
costs more than answering. `FastSessionLoop` keeps the workers that pyfuse3 starts, and changes how they wait:

    worker ──leads──► poll the descriptor in place ──ready──► receive, handle, reply ──► poll again …
                         │ nothing for LINGER_MS: wait through trio
    other workers: parked until the leader steps aside, which a handler does before it waits for a disk or a thread

So an answer that needs no waiting costs no scheduler turn, and a handler that waits costs the others nothing. trio gets
its turn after CHECKPOINT_REQUESTS requests, at once when something that a handler waits for has finished, and whenever
the kernel is idle.

This is the one module that touches private names of pyfuse3 (`_wait_fuse_readable`, `_session_loop`). `choose_loop`
looks whether they are what we know, and falls back to pyfuse3's own loop.
"""

from __future__ import annotations

import inspect
import logging
import os
import select
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import pyfuse3
import trio

from engine import StoreError

log = logging.getLogger(__name__)

T = TypeVar("T")

CHECKPOINT_REQUESTS = 256
"""Requests answered at most before trio's other tasks (signals, followers, invalidation) get a turn."""

LINGER_MS = 10
"""How long an idle loop waits in place, before it waits through trio. Longer than the kernel's own tick: for a shorter
time it would set up and take down a timer at each request."""


class Completion:
    """What one handler waits for: finished by another thread, with an error or without."""

    __slots__ = ("error", "event", "finished")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.error: StoreError | None = None
        self.finished = False


class SessionLoop:
    """pyfuse3's own loop, and how a handler waits without holding up the others.

    Thread safety: everything on trio's thread, except the callback that `completed` hands out.
    """

    def __init__(self) -> None:
        self._finished: deque[Completion] = deque()

    async def run(self, max_waiting: int) -> None:
        """Serve until the file system is unmounted or `stop` is called; at most `max_waiting` handlers wait at once."""
        await pyfuse3.main(min_tasks=1, max_tasks=max_waiting)

    def stop(self) -> None:
        """End `run` after the requests under way."""
        pyfuse3.terminate()

    async def completed(self, request: Callable[[Callable[[StoreError | None], None]], None]) -> None:
        """Call `request(done)` and wait until any thread calls `done(error)`; raise the error if there is one."""
        completion = Completion()
        token = trio.lowlevel.current_trio_token()

        def done(error: StoreError | None) -> None:
            completion.error, completion.finished = error, True
            self._finished.append(completion)
            with suppress(trio.RunFinishedError):  # the mount failed meanwhile: nobody waits any more
                token.run_sync_soon(self._deliver, idempotent=True)
            self._nudge()

        request(done)
        if not completion.finished:  # else it was on disk already: no other worker needs to lead
            with self._waiting():
                await completion.event.wait()
        if completion.error is not None:
            raise completion.error

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run slow work in a thread; requests go on meanwhile."""
        with self._waiting():
            return await trio.to_thread.run_sync(function)

    def _deliver(self) -> None:
        """Let the handlers go on whose completions have come."""
        while self._finished:
            self._finished.popleft().event.set()

    def _nudge(self) -> None:
        """Called on any thread after a completion was queued."""

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        yield


class FastSessionLoop(SessionLoop):
    """Polls the FUSE descriptor in place before it waits through trio. See the module's text."""

    def __init__(self, fuse_fd: int) -> None:
        super().__init__()
        self._fuse_fd = fuse_fd
        self._parked: list[trio.lowlevel.Task] = []
        self._leader: trio.lowlevel.Task | None = None
        self._until_checkpoint = CHECKPOINT_REQUESTS
        self._threads = 0
        self._stopping = False
        self._lingering = False
        self._nudge_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ready = select.poll()
        self._ready.register(fuse_fd, select.POLLIN)
        self._ready.register(self._nudge_fd, select.POLLIN)
        self._stock_worker: Any = None

    async def run(self, max_waiting: int) -> None:
        """As the stock loop; puts pyfuse3's names back when it ends."""
        names: Any = pyfuse3
        stock_wait, self._stock_worker = names._wait_fuse_readable, names._session_loop
        names._wait_fuse_readable, names._session_loop = self._wait_readable, self._worker
        try:
            await super().run(max_waiting)
        finally:
            names._wait_fuse_readable, names._session_loop = stock_wait, self._stock_worker
            os.close(self._nudge_fd)

    def stop(self) -> None:
        """End `run` after the requests under way."""
        self._end()
        super().stop()

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run slow work in a thread; trio gets a turn after each request until it is done."""
        self._threads += 1
        try:
            return await super().in_thread(function)
        finally:
            self._threads -= 1

    async def _worker(self, *arguments: Any) -> None:
        """One of pyfuse3's workers. It returns when the session has ended, and then the parked ones have to, too."""
        try:
            await self._stock_worker(*arguments)
        finally:
            self._end()

    def _end(self) -> None:
        self._stopping = True
        while self._parked:
            trio.lowlevel.reschedule(self._parked.pop())

    async def _wait_readable(self) -> bool:
        """What pyfuse3's workers call before each request: True when there is one, False when the session ends."""
        task = trio.lowlevel.current_task()
        while self._leader is not task:
            if self._stopping:
                return False
            if self._leader is None:
                self._leader = task
            else:
                await self._park(task)
        self._until_checkpoint -= 1
        if self._finished or self._threads or self._until_checkpoint <= 0:
            await self._give_trio_a_turn()
        while not self._stopping:
            if self._linger():
                return True
            if self._finished:
                await self._give_trio_a_turn()
            elif not await self._wait_through_trio():
                return False
        return False

    async def _give_trio_a_turn(self) -> None:
        self._until_checkpoint = CHECKPOINT_REQUESTS
        self._deliver()
        await trio.lowlevel.checkpoint()

    async def _wait_through_trio(self) -> bool:
        try:
            await trio.lowlevel.wait_readable(self._fuse_fd)
        except trio.ClosedResourceError:
            return False
        self._until_checkpoint = CHECKPOINT_REQUESTS
        return True

    async def _park(self, task: trio.lowlevel.Task) -> None:
        def abort(_: object) -> trio.lowlevel.Abort:
            self._parked.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        self._parked.append(task)  # the last one parked goes first: few workers, so few warm buffers
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _linger(self) -> bool:
        """Wait in place for a moment; True when there is a request. A completion ends it early."""
        self._lingering = True  # before the look at _finished: whoever finishes after that look sees it and nudges
        ready = self._ready.poll(0 if self._finished or self._threads else LINGER_MS)
        self._lingering = False
        if not ready:
            return False
        if len(ready) == 1 and ready[0][0] == self._fuse_fd:
            return True
        os.eventfd_read(self._nudge_fd)
        return len(ready) > 1

    def _nudge(self) -> None:
        if self._lingering:
            os.eventfd_write(self._nudge_fd, 1)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Around a handler's waiting: another worker leads meanwhile."""
        if self._leader is trio.lowlevel.current_task():  # a handler that waits a second time leads no more
            self._leader = None
            if self._parked:
                trio.lowlevel.reschedule(self._parked.pop())
        yield


def fuse_descriptors() -> set[int]:
    """This process's open descriptors of /dev/fuse; the one that `pyfuse3.init` adds is the session's."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                found.add(int(name))
        except FileNotFoundError:
            continue  # the listing's own descriptor
    return found


def choose_loop(new_descriptors: set[int], fast: bool) -> SessionLoop:
    """The fast loop when it is wanted and this pyfuse3 is as we know it, else pyfuse3's own."""
    if fast and len(new_descriptors) == 1 and _names_are_known():
        return FastSessionLoop(next(iter(new_descriptors)))
    if fast:
        log.warning("this pyfuse3 (%s) has another request loop: using it as it is, slower", pyfuse3.__version__)
    return SessionLoop()


def _names_are_known() -> bool:
    wait = getattr(pyfuse3, "_wait_fuse_readable", None)
    worker = getattr(pyfuse3, "_session_loop", None)
    if not callable(wait) or not callable(worker):
        return False
    try:
        return not inspect.signature(wait).parameters
    except (TypeError, ValueError):
        return False

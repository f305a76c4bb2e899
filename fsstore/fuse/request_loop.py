"""How requests get from the kernel to their handlers, one after the other on trio's thread.

    poll the descriptor in place ──ready──► receive, handle, reply ──► poll again …
        │ nothing for LINGER_MS: wait through trio

Most answers need no waiting, and going through trio for each would cost more than answering. trio gets its turn after
TURN_REQUESTS requests, after each one while somebody waits for slow work or for pyfuse3, and whenever the kernel is
idle.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import trio

from fsstore.fuse.answers import errno_for
from fsstore.fuse.channel import Channel
from fsstore.fuse.handlers import Handler
from fsstore.fuse.protocol import REQUEST, Opcode, failed
from fsstore.fuse.relay import Relay
from fsstore.interface import Kind, SlowWork

log = logging.getLogger(__name__)

TURN_REQUESTS = 256
"""Requests answered at most before trio's other tasks (signals, followers, expiry) get a turn."""

THREADS = {Kind.DECOMPRESSING: 1, Kind.PUBLISHING: 1, Kind.PUBLISHING_LITTLE: 4}
"""At one time: who decompresses may take three times 64 MiB, with what it makes of a body; who publishes what takes
long, as much."""

LINGER_MS = 10
"""How long an idle loop waits in place, before it waits through trio. Longer than the kernel's own tick: for a shorter
time it would set up and take down a timer at each request."""


class RequestLoop:
    """Serves one mount. Thread safety: trio's thread only."""

    def __init__(
        self,
        channel: Channel,
        handlers: dict[int, Handler],
        relay: Relay,
        max_slow: int,
        ending: Callable[[], None],
    ) -> None:
        """What `handlers` (by opcode) don't know is the relay's. At most `max_slow` threads do slow work of any kind
        that is not in THREADS; `ending` is called when no more requests are taken, to hurry those threads: the loop
        waits for them."""
        self._channel = channel
        self._handlers = handlers
        self._relay = relay
        self._threads = {kind: trio.CapacityLimiter(THREADS.get(kind, max_slow)) for kind in Kind}
        self._ending = ending
        self._slow: list[int] = []
        self._behind: dict[int, deque[bytes]] = {}  # requests that wait for another one's turn, by inode

    def holds(self, inode: int) -> bool:
        """Whether a request for an inode is at slow work."""
        return inode in self._slow

    async def run(self) -> None:
        """Serve until the mount is gone, or cancelled."""
        async with trio.open_nursery() as nursery:
            try:
                await self._take_requests(nursery)
            finally:
                self._ending()

    async def _take_requests(self, nursery: trio.Nursery) -> None:
        left = TURN_REQUESTS
        while self._channel.is_mounted:
            is_busy = self._slow or self._relay.waiting
            if is_busy or not left:
                await trio.lowlevel.checkpoint()
                left = TURN_REQUESTS
            if not self._channel.is_ready(0 if is_busy else LINGER_MS):
                await self._channel.wait()
                left = TURN_REQUESTS
            left -= 1
            request = self._channel.receive()
            if request is not None:
                self._take(request, nursery)

    def _take(self, request: memoryview, nursery: trio.Nursery) -> None:
        _, opcode, unique, inode = REQUEST.unpack_from(request)
        if inode in self._behind:
            self._behind[inode].append(bytes(request))
            return
        handler = self._handlers.get(opcode)
        if handler is None:
            self._relay.forward(bytes(request))
            return
        try:
            handler(unique, inode, request)
        except SlowWork as slow:
            self._slow.append(inode)
            if slow.is_in_turn:
                self._behind[inode] = deque()
            nursery.start_soon(self._after, slow, handler, memoryview(bytes(request)), nursery)
        except Exception as error:
            self._refuse(error, handler, unique, request)

    def _refuse(self, error: Exception, handler: Handler, unique: int, request: memoryview) -> None:
        """Answer a failure with its errno."""
        number = errno_for(error, handler.__name__)
        if REQUEST.unpack_from(request)[1] not in (Opcode.FORGET, Opcode.BATCH_FORGET):  # those hear no answer
            self._channel.send(failed(unique, number))

    async def _after(self, slow: SlowWork, handler: Handler, request: memoryview, nursery: trio.Nursery) -> None:
        """Do slow work in a thread, then try again; there may be more to do."""
        _, _, unique, inode = REQUEST.unpack_from(request)
        try:
            await self._work(slow, handler, unique, inode, request)
        finally:
            self._slow.remove(inode)
        if slow.is_in_turn:
            self._take_those_behind(inode, nursery)

    async def _work(self, slow: SlowWork, handler: Handler, unique: int, inode: int, request: memoryview) -> None:
        while True:
            try:
                await trio.to_thread.run_sync(slow.work, limiter=self._threads[slow.kind])
                handler(unique, inode, request)
            except SlowWork as more:
                slow = more.with_traceback(None)  # it would hold this frame, and be held by it
            except Exception as error:
                self._refuse(error, handler, unique, request)
                return
            else:
                return

    def _take_those_behind(self, inode: int, nursery: trio.Nursery) -> None:
        """In their order; the first that has a turn of its own has the others behind it."""
        behind = self._behind.pop(inode)
        while behind:
            self._take(memoryview(behind.popleft()), nursery)
            if inode in self._behind:
                self._behind[inode].extend(behind)
                return

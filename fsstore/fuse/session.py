"""A mount's session with the kernel: the /dev/fuse descriptor, and the loop that takes requests from it.

fusermount3 mounts (it may do so for any user) and passes the descriptor. A reply and a notice are one write each.
Requests are handled one after the other on trio's thread:

    receive, handle, reply ──► receive …
            │ none has come: poll in place; none for LINGER_MS: wait through trio
            │ CROWD_REQUESTS came without a wait: receive up to READ_AT_MOST, handle one of each user in turn (turns)

In a turn the loop never blocks: what takes long is done in a thread (`SlowWork`, `WouldBlock`), then the request is
handled again. Most answers need no waiting, and a trio checkpoint for each would cost more than the answer. trio runs
after TURN_REQUESTS requests or LONGEST_TURN_S, after BUSY_REQUESTS while a request waits for slow work or for pyfuse3,
and whenever the kernel is idle. Reads and writes that never block keep the interpreter's lock from the threads of slow
work.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import math
import mmap
import os
import select
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from engine import WouldBlock, nonblocking, read_at_once, read_through, write_at_once
from fsstore.accounts import FEWEST_THREADS, Accounts, Bound, Resource
from fsstore.fuse import protocol as wire
from fsstore.fuse.errors import errno_for
from fsstore.fuse.protocol import REPLY, REQUEST, REQUEST_OF_CALLER, Opcode, failed
from fsstore.fuse.turns import RequestQueue, SlowThreads
from fsstore.handover.keeper import Keeper
from fsstore.handover.layout import WORKERS
from fsstore.handover.requests import RESENT, RequestJournal
from fsstore.interface import Data, Pieces, SlowWork, WorkKind
from fsstore.options import MountError
from fsstore.tree.memory_budget import MemoryBudget
from fsstore.tree.metrics import SAMPLE_OF, RequestFigures

log = logging.getLogger(__name__)

_UNMOUNTED = (errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED)
_TRY_AGAIN = (errno.ENOENT, errno.EINTR, errno.EAGAIN)
"""The request was taken back before it was read, or there was none."""
_NOT_DELIVERED = (errno.ENOENT, errno.ECONNABORTED)
"""The request was taken back before it was answered, or the mount has ended."""

Handler = Callable[[int, int, memoryview], None]
"""Takes `unique`, the inode, and the whole request, which is valid until it returns."""

LOOKS = 40
"""Polls for a request before the loop sleeps, which take some 30 µs. A process that was answered often asks again
within that time, and a sleeping processor, a virtual one above all, wakes up later than that."""


class Channel:
    """The connection of a mounted filesystem. Thread safety: `receive` and `wait` on one thread; replies and notices
    from any thread, those of other threads by `send_late`."""

    def __init__(self, descriptor: int, mountpoint: Path) -> None:
        """Take the descriptor over and make it non-blocking: a request may be taken back between being seen and being
        read, and the loop must not wait for the next one."""
        os.set_blocking(descriptor, False)
        self.mountpoint = mountpoint
        self._descriptor = descriptor
        self._buffers = tuple(bytearray(wire.LARGEST_REQUEST_BYTES) for _ in range(2))
        for buffer in self._buffers:
            _pin(buffer)
        self._views = tuple(memoryview(buffer) for buffer in self._buffers)
        self._requests: RequestJournal | None = None
        self._first_answer: Callable[[int], None] | None = None
        """Called with the time of the first answer."""
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self.had_one = False
        """Whether a request had come when `is_ready` was called last."""
        self._ending = threading.Lock()
        self._is_open = True
        self.is_mounted = True
        """False once the kernel has reported that the mount has ended."""

    @classmethod
    def mount(cls, mountpoint: Path, options: Iterable[bytes]) -> Channel:
        """Mount, with options as after `-o`. MountError with the output of fusermount3."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [b"fusermount3", b"-o", b",".join(options), b"--", os.fsencode(mountpoint)]
            try:
                helper = subprocess.run(
                    command,
                    check=False,
                    env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                )
            except OSError as error:
                raise MountError(mountpoint, f"fusermount3: {error}") from error
            said = helper.stderr.decode(errors="replace").strip()
            if helper.returncode:
                raise MountError(mountpoint, said or f"fusermount3 ended with {helper.returncode}")
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        return cls(descriptors[0], mountpoint)

    # mounts that outlive this process

    def survive(self, keeper: Keeper) -> None:
        """Have the mount outlive this process, and note answers in the journal."""
        self._requests = keeper.memory.requests
        self._first_answer = keeper.memory.answered
        if keeper.inherited is None:
            keeper.keep(self._descriptor)

    def resend(self) -> None:
        """Have the kernel send the requests again that the last server received and did not answer."""
        with suppress(OSError):  # unmounted, as `receive` will report
            os.write(self._descriptor, wire.RESEND)

    # requests

    def is_ready(self, wait_ms: int) -> bool:
        """Whether a request waits, or comes within `wait_ms`, or the mount has ended; `had_one`: whether it waited."""
        poll = self._poll.poll
        self.had_one = bool(poll(0))
        return self.had_one or any(poll(0) for _ in range(LOOKS - 1)) or bool(poll(wait_ms))

    async def wait(self) -> None:
        """Return when `is_ready`, in trio's own time."""
        await trio.lowlevel.wait_readable(self._descriptor)

    def receive(self, into: int = 0) -> memoryview | None:
        """The next request, in buffer 0 or 1, valid until the next one there. None: there is none, or `is_mounted`
        became False.

        One buffer stays in the processor's cache; two in turn would not."""
        size = read_at_once(self._descriptor, self._buffers[into])
        if size < 0:
            if -size in _UNMOUNTED:
                self.is_mounted = False
            elif -size not in _TRY_AGAIN:
                raise OSError(-size, os.strerror(-size))
            return None
        request = self._views[into][:size]
        if self._requests is not None and self._requests.unclaimed:
            _, opcode, unique, _ = REQUEST.unpack_from(request)
            if opcode not in (Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT):  # those are not sent in their turn
                self._requests.arrived(unique)
        return request

    # replies and notices

    def send(self, reply: bytes) -> None:
        """Answer a request. An answer to one that was taken back, or after the mount's end, is dropped."""
        size = write_at_once(self._descriptor, reply)
        if size < 0 and -size not in _NOT_DELIVERED:
            raise OSError(-size, os.strerror(-size))
        if self._first_answer is not None:
            self._note_first_answer()
        if self._requests is not None and self._requests.slots:
            self._requests.free(REPLY.unpack_from(reply)[2])

    def _note_first_answer(self) -> None:
        noted, self._first_answer = self._first_answer, None
        if noted is not None:
            noted(time.monotonic_ns())

    def send_with(self, head: bytes, data: Data) -> None:
        """As `send`, for a reply in pieces, without a copy of `data`. RefusedReadError, TruncatedFileError: `data` is
        mapped from a file that can't be read."""
        pieces = data.pieces if type(data) is Pieces else (data,)
        for piece in pieces:
            if type(piece) is memoryview:  # a kill while the kernel copies an unmapped page would be EIO for the reader
                read_through(piece)
        try:
            os.writev(self._descriptor, (head, *pieces))
        except (FileNotFoundError, ConnectionAbortedError):
            return
        if self._first_answer is not None:
            self._note_first_answer()

    def send_late(self, reply: bytes) -> None:
        """As `send`, from any thread, also after `close`."""
        with self._ending:
            if self._is_open:
                with suppress(OSError):
                    os.write(self._descriptor, reply)
            if self._requests is not None:
                self._requests.free(REPLY.unpack_from(reply)[2])

    def drop_attributes(self, inode: int) -> None:
        """Drop an inode's attributes from the kernel's cache. Takes no lock that a reader may hold."""
        with suppress(OSError):
            os.write(self._descriptor, wire.attributes_changed(inode))

    def push(self, inode: int, body: bytes) -> bool:
        """Put an inode's first bytes into the kernel's cache; False: it does not know the inode, or has no memory."""
        try:
            os.writev(self._descriptor, (wire.data_of(inode, 0, len(body)), body))
        except OSError:
            return False
        return True

    def drop_data(self, inode: int, position: int) -> None:
        """Drop an inode's bytes from `position` on from the kernel's cache. Call it in a thread: it waits for reads."""
        with suppress(OSError):
            os.write(self._descriptor, wire.data_changed(inode, position))

    def extend(self, inode: int, size: int, last: bytes) -> bool:
        """Set an inode's size in the kernel to `size` and cache its last byte `last`; False: the kernel does not know
        the inode. Call it in a thread, as `drop_data`."""
        try:
            os.writev(self._descriptor, (wire.data_of(inode, size - 1, 1), last))
        except FileNotFoundError:
            return False
        except OSError:
            return True  # no memory for the byte, or the mount has ended: the size is set
        return True

    # the end

    def close(self) -> None:
        """Let the kernel fail all unanswered requests; unmount if that has not happened yet."""
        with self._ending:
            self._is_open = False
            gone = not self.is_mounted or any(event & select.POLLERR for _, event in self._poll.poll(0))
            os.close(self._descriptor)
        if not gone:
            subprocess.run(["fusermount3", "-u", "-q", "-z", "--", self.mountpoint], check=False, capture_output=True)


TURN_REQUESTS, BUSY_REQUESTS = 256, 8
"""Requests to answer before trio's other tasks run; the second while a request waits for slow work or for pyfuse3."""

LONGEST_TURN_S = 0.002
"""Time after which trio's other tasks run though fewer requests came. A program that asks every few milliseconds would
keep them from running for TURN_REQUESTS times as long."""

CROWD_REQUESTS = 4
"""So many requests that come without a wait show that several processes ask at once. One process rarely has more than
two: the kernel does not wait for the answer to RELEASE. Reading ahead for one would cost a call and a copy each."""

BURST_REQUESTS, PAUSES, PAUSE_S, OTHERS_S = 4, 4, 0.0001, 1.0
"""While many requests of one user wait, and another user has asked within OTHERS_S seconds, the loop pauses after so
many answers. Each answer wakes a process, and where hundreds run, those of the other user wait long for a processor.
The pause has PAUSES parts; other users' requests that come in one of them are answered at its end."""

OF_NO_USER = (Opcode.RELEASE, Opcode.RELEASEDIR, Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT)
"""The kernel sends these without a user."""

READ_AT_MOST = 256
"""Requests read at most between two answers: reading a thousand that came at once takes some milliseconds."""

THREADS = {WorkKind.KEYS: 1, WorkKind.DECOMPRESSING: 1, WorkKind.PUBLISHING: 1, WorkKind.PUBLISHING_LITTLE: 4}
"""Threads per kind. Decompressing may take three times 64 MiB, with the result; long publishing takes as much."""

UNLIMITED = trio.CapacityLimiter(math.inf)
"""`SlowThreads` has the limits."""

LINGER_MS = 10
"""Time for which an idle loop waits in place before it waits through trio. It is longer than the kernel's tick, or each
request would set up and cancel a timer."""


class Forwarding(Protocol):
    """The receiver of requests that have no handler here."""

    waiting: int
    """Requests that were forwarded and not answered yet."""

    def forward(self, request: bytes) -> None:
        """Have a request answered."""


class RequestLoop:
    """Serves one mount. Thread safety: trio's thread only."""

    def __init__(
        self,
        channel: Channel,
        handlers: dict[int, Handler],
        relay: Forwarding,
        max_slow: int,
        ending: Callable[[], None],
        accounts: Accounts,
        memory: MemoryBudget,
    ) -> None:
        """`handlers` are by opcode; requests without one go to `relay`. At most `max_slow` threads do slow work of a
        kind that is not in THREADS. `ending` is called when no more requests are taken, so that those threads end soon:
        the loop waits for them. Queued requests count in `memory`."""
        self._channel = channel
        self._handlers = handlers
        self._relay = relay
        threads = {kind: THREADS.get(kind, max_slow) for kind in WorkKind}
        accounts.set_bound(Resource.SLOW_THREADS, Bound(sum(threads.values()), FEWEST_THREADS))
        self._threads = SlowThreads(threads, accounts)
        self._requests = RequestQueue(memory)
        self._ending = ending
        self._accounts = accounts
        self.refused: Callable[[Exception, int, memoryview], None] = lambda error, number, request: None
        """Called with each failure, its errno and the request, before the answer."""
        self.working: list[int] | memoryview[int] = [0] * WORKERS
        """The request that each thread works on: the loop's, pyfuse3's, and those of slow work. Answered requests may
        stay there, as they are not sent again."""
        self._idle_workers = list(range(2, WORKERS))
        self.poisoned: Mapping[int, Handler] = {}
        """Handlers by `unique` without RESENT, for requests that killed servers."""
        self.figures = RequestFigures()
        self._at_once = 0
        """Requests that came one after the other without a wait."""
        self._user = -1
        self._others_s = 0.0
        """When a request came whose user is not that of the request before."""
        self._slow: list[int] = []
        self._queued: dict[int, deque[bytes]] = {}  # requests that wait for an earlier one, by inode

    def holds(self, inode: int) -> bool:
        """Whether a request for an inode is in slow work or queued."""
        return inode in self._slow or self._requests.holds(inode)

    async def run(self) -> None:
        """Serve until the mount ends, or cancelled."""
        async with trio.open_nursery() as nursery:
            try:
                await self._take_requests(nursery)
            finally:
                self._ending()

    async def _take_requests(self, nursery: trio.Nursery) -> None:
        while self._channel.is_mounted:
            with nonblocking():
                is_idle = self._turn(nursery)
            if is_idle:
                self.working[0] = 0
                await self._channel.wait()
            else:
                await trio.lowlevel.checkpoint()

    def _turn(self, nursery: trio.Nursery) -> bool:
        """Take requests until trio has to run; returns whether there are none."""
        taken, began_s = 0, time.monotonic()
        while self._channel.is_mounted:
            is_busy = self._slow or self._relay.waiting
            if taken >= (BUSY_REQUESTS if is_busy else TURN_REQUESTS):
                return False
            comes_at_once = bool(self._at_once or self._requests or is_busy)
            if not comes_at_once:  # to receive what has not come would cost a call
                if taken and time.monotonic() - began_s > LONGEST_TURN_S:
                    return False
                if not self._channel.is_ready(LINGER_MS):
                    return True
                comes_at_once = self._channel.had_one
            request = self._next(read_on=self._at_once >= CROWD_REQUESTS)
            self._at_once = self._at_once + 1 if comes_at_once and request is not None else 0
            if request is not None:
                taken += 1
                self._take(request, nursery)
                if taken % BURST_REQUESTS == 0 and self._must_pause():
                    taken += self._pause(nursery)
            elif is_busy:
                return True
        return False

    def _must_pause(self) -> bool:
        """Whether a user asks so much that the processes of another one hardly run."""
        return self._requests.has_crowd and time.monotonic() - self._others_s < OTHERS_S

    def _pause(self, nursery: trio.Nursery) -> int:
        """Leave the processors to others for a while; returns the number of requests of other users that came and were
        taken."""
        taken = 0
        for _ in range(PAUSES):
            time.sleep(PAUSE_S)
            self._read_on()
            while (request := self._requests.take(of_crowds=False)) is not None:
                self._take(memoryview(request), nursery)
                taken += 1
        return taken

    def _next(self, read_on: bool) -> memoryview | None:
        """The next request that has come; None: there is none yet. `read_on`: read those that came after it, too, and
        return that of the user in turn."""
        channel, requests = self._channel, self._requests
        if not requests:
            first = channel.receive()
            if first is None or not read_on:
                return first
            following = channel.receive(into=1)
            if following is None:
                return first  # the only one: it need not be copied
            requests.add(bytes(first))
            requests.add(bytes(following))
        self._read_on()
        waiting = requests.take()
        return None if waiting is None else memoryview(waiting)

    def _read_on(self) -> None:
        """Queue the requests that have come."""
        for _ in range(READ_AT_MOST):
            if not self._requests.has_room or (request := self._channel.receive()) is None:
                return
            self._requests.add(bytes(request))

    def _take(self, request: memoryview, nursery: trio.Nursery) -> None:
        _, opcode, unique, inode, user, process = REQUEST_OF_CALLER.unpack_from(request)
        if inode in self._queued:
            self._queued[inode].append(bytes(request))
            return
        self._accounts.caller, self._accounts.process = user, process
        if user != self._user and opcode not in OF_NO_USER:
            self._user, self._others_s = user, time.monotonic()
        counts = self.figures.counts
        count = counts[opcode] = counts[opcode] + 1
        handler = self._handlers.get(opcode)
        if self.poisoned:
            handler = self.poisoned.get(unique & ~RESENT, handler)
        if handler is None:
            self.working[1] = unique
            self._relay.forward(bytes(request))
            return
        if count % SAMPLE_OF == 1:
            handler = self._timed(opcode, handler)
        self.working[0] = unique
        try:
            handler(unique, inode, request)
        except (SlowWork, WouldBlock) as blocked:
            slow = _slow_work(blocked)
            self.working[0] = 0
            self._slow.append(inode)
            if slow.is_in_turn:
                self._queued[inode] = deque()
            kept = request if type(request.obj) is bytes else memoryview(bytes(request))
            nursery.start_soon(self._after, slow, handler, kept, nursery)
        except Exception as error:
            self._refuse(error, handler, unique, request)

    def _timed(self, opcode: int, handler: Handler) -> Handler:
        """The same handler, which notes the time from now on if it succeeds."""
        began_s = time.perf_counter()

        def timed(unique: int, inode: int, request: memoryview) -> None:
            handler(unique, inode, request)
            self.figures.times[opcode].took(time.perf_counter() - began_s)

        timed.__name__ = handler.__name__
        return timed

    def _refuse(self, error: Exception, handler: Handler, unique: int, request: memoryview) -> None:
        """Answer a failed request with its errno."""
        number = errno_for(error, handler.__name__)
        self.refused(error, number, request)
        if REQUEST.unpack_from(request)[1] not in (Opcode.FORGET, Opcode.BATCH_FORGET):  # these have no reply
            self._channel.send(failed(unique, number))

    async def _after(self, slow: SlowWork, handler: Handler, request: memoryview, nursery: trio.Nursery) -> None:
        """Do slow work in a thread, then call the handler again, which may raise more of it."""
        _, _, _, inode = REQUEST.unpack_from(request)
        try:
            await self._work(slow, handler, request)
        finally:
            self._slow.remove(inode)
        if slow.is_in_turn:
            with nonblocking():
                self._take_queued(inode, nursery)

    async def _work(self, slow: SlowWork, handler: Handler, request: memoryview) -> None:
        _, _, unique, inode, user, process = REQUEST_OF_CALLER.unpack_from(request)
        while True:
            try:
                work = slow.work if slow.waits else partial(self._work_on, unique, slow.work)
                async with self._threads.one(slow.kind, user):
                    await trio.to_thread.run_sync(work, limiter=UNLIMITED)
                self._accounts.caller, self._accounts.process = user, process
                self.working[0] = unique
                with nonblocking():
                    handler(unique, inode, request)
            except (SlowWork, WouldBlock) as more:
                self.working[0] = 0
                slow = _slow_work(more.with_traceback(None))  # else it and this frame would hold each other
            except Exception as error:
                self._refuse(error, handler, unique, request)
                return
            else:
                return

    def _work_on(self, unique: int, work: Callable[[], object]) -> None:
        """Do work for a request in a thread. Requests are not noted while `working` has too few words."""
        worker = self._idle_workers.pop() if self._idle_workers else None
        if worker is None:
            work()
            return
        self.working[worker] = unique
        try:
            work()
        finally:
            self.working[worker] = 0
            self._idle_workers.append(worker)

    def _take_queued(self, inode: int, nursery: trio.Nursery) -> None:
        """Take queued requests in order. One that has requests wait for it gets the rest of the queue."""
        queued = self._queued.pop(inode)
        while queued:
            self._take(memoryview(queued.popleft()), nursery)
            if inode in self._queued:
                self._queued[inode].extend(queued)
                return


def _slow_work(blocked: SlowWork | WouldBlock) -> SlowWork:
    """The slow work that a request has to wait for."""
    return blocked if isinstance(blocked, SlowWork) else SlowWork(blocked.work)


def _pin(buffer: bytearray) -> None:
    """Keep all pages of a buffer in memory from now on. If the process is killed while the kernel copies into or out of
    a page that is not mapped yet, that request ends with EIO."""
    pages = range(0, len(buffer), mmap.PAGESIZE)
    buffer[:: mmap.PAGESIZE] = bytes(len(pages))
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(len(buffer))):
        log.debug("the request buffer can't be locked into memory: %s", os.strerror(ctypes.get_errno()))

"""pyfuse3 answers the rare requests: INIT, statfs, setting attributes, and everything that is refused.

libfuse takes an open descriptor for a mount ("/dev/fd/N"). It gets one end of a socket pair, and its replies are read
from the other end. The frequent requests are answered in `handlers` and never get here.

    kernel ◄──► Channel ──request──► Relay ◄──socket pair──► libfuse, pyfuse3 ──► RareOperations
"""

from __future__ import annotations

import errno
import functools
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from mmap import PAGESIZE
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import pyfuse3
import trio

from fsstore.core import Filesystem
from fsstore.fuse import protocol as wire
from fsstore.fuse.errors import errno_for
from fsstore.fuse.request_log import RequestLog
from fsstore.fuse.session import Channel
from fsstore.fuse.turns import Turns
from fsstore.handover.layout import HandoverError
from fsstore.handover.requests import RESENT
from fsstore.interface import FilesystemError, SlowWork

READY_TASKS = 8
"""Tasks of pyfuse3 that stay: each has a buffer of 1 MiB, which must not be allocated anew with every burst."""
LARGEST_REPLY_BYTES = 1 << 20
DISAGREED = "this version and the kernel agree on other features than the version before"


O = TypeVar("O")  # noqa: E741
P = ParamSpec("P")
R = TypeVar("R")


class Relay:
    """Passes requests to pyfuse3, and its replies to the kernel. Thread safety: trio's thread only."""

    def __init__(self, channel: Channel, ours: socket.socket) -> None:
        self.serving = trio.Event()
        """Set when the kernel's first request has been answered."""
        self.waiting = 0
        """Requests that were forwarded and not answered yet."""
        self.agreed: Callable[[bytes, bytes], None] = lambda request, reply: None
        """Called with the kernel's INIT request and the reply to it."""
        self.log: RequestLog | None = None
        """The log that notes each request and reply."""
        self._expected: bytes | None = None
        self._first = b""
        self._resent: set[int] = set()
        self._channel = channel
        self._socket = ours
        self._backlog: Turns[bytes] = Turns()
        self._next: bytes | None = None
        self._in_hand = 0
        """Requests that libfuse works on. More of them wait in `_backlog`."""
        self._reply = bytearray(LARGEST_REPLY_BYTES)  # one buffer for all: allocating it anew would fragment the heap

    @classmethod
    @contextmanager
    def to_pyfuse3(cls, channel: Channel, operations: pyfuse3.Operations) -> Iterator[Relay]:
        """Start pyfuse3, which keeps its session in globals: one per process at a time."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.setblocking(False)
            pyfuse3.init(operations, f"/dev/fd/{theirs.detach()}", set())
            try:
                yield cls(channel, ours)
            finally:
                pyfuse3.close(unmount=False)

    def replay(self, request: bytes, reply: bytes) -> None:
        """Have libfuse answer INIT as in the last process. `run` raises HandoverError if it answers otherwise."""
        self._expected = reply
        self.forward(request)

    def forward(self, request: bytes) -> None:
        """Have pyfuse3 answer a request."""
        length, opcode, unique, inode = wire.REQUEST.unpack_from(request)
        if unique & RESENT:  # libfuse does not know the bit
            unique &= ~RESENT
            self._resent.add(unique)
            request = wire.REQUEST.pack(length, opcode, unique, inode) + request[wire.REQUEST.size :]
        self._first = self._first or request
        if self.log is not None:
            self.log.begin(request)
        self.waiting += 1
        self._backlog.add(wire.REQUEST_OF_USER.unpack_from(request)[4], request)
        self._hand_over()

    def _hand_over(self) -> None:
        while self._in_hand < READY_TASKS and (self._next or self._backlog):
            self._next = self._next or self._backlog.take()
            assert self._next is not None
            try:
                self._socket.send(self._next)
            except BlockingIOError:  # the socket is full: try again after the next reply
                return
            self._next = None
            self._in_hand += 1

    async def run(self) -> None:
        """Have pyfuse3 answer until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_replies_on)
            await pyfuse3.main(min_tasks=READY_TASKS)

    async def _pass_replies_on(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            size = self._socket.recv_into(self._reply)
            if not size:
                return
            reply = bytes(memoryview(self._reply)[:size])
            if not self.serving.is_set():
                self._agree(wire.serving_as_wanted(reply, PAGESIZE))
                self.serving.set()
            else:
                self._channel.send(self._marked(reply) if self._resent else reply)
                if self.log is not None:
                    _, error, unique = wire.REPLY.unpack_from(reply)
                    self.log.answered(unique, -error)
            self.waiting -= 1
            self._in_hand -= 1
            self._hand_over()

    def _agree(self, reply: bytes) -> None:
        if self._expected is None:
            self._channel.send(reply)
            self.agreed(self._first, reply)
        elif reply != self._expected:
            raise HandoverError(DISAGREED)

    def _marked(self, reply: bytes) -> bytes:
        """A reply with the RESENT bit of its request."""
        length, error, unique = wire.REPLY.unpack_from(reply)
        if unique not in self._resent:
            return reply
        self._resent.discard(unique)
        return wire.REPLY.pack(length, error, unique | RESENT) + reply[wire.REPLY.size :]


async def agree_again(request: bytes, reply: bytes) -> None:
    """Have libfuse answer INIT without a kernel. HandoverError: its answer is not `reply`."""
    with Relay.to_pyfuse3(None, pyfuse3.Operations()) as relay:  # type: ignore[arg-type] # nothing is sent
        relay.replay(request, reply)
        differs = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(relay.run)
                await relay.serving.wait()
                nursery.cancel_scope.cancel()
        except* HandoverError:
            differs = True
        if differs:
            raise HandoverError(DISAGREED)


def answered(
    handler: Callable[Concatenate[O, P], R],
) -> Callable[Concatenate[O, P], Coroutine[Any, Any, R]]:
    """Make a pyfuse3 handler of a plain method. Slow work is done in a thread, then the method is called again."""

    @functools.wraps(handler)
    async def answer(self: O, /, *arguments: P.args, **named: P.kwargs) -> R:
        try:
            while True:
                try:
                    return handler(self, *arguments, **named)
                except SlowWork as slow:
                    work = slow.work
                await trio.to_thread.run_sync(work)
        except Exception as error:
            raise pyfuse3.FUSEError(errno_for(error, handler.__name__)) from None

    return answer


class RareOperations(pyfuse3.Operations):  # type: ignore[misc] # pyfuse3 has no types
    """pyfuse3's handlers over one core. Thread safety: none; trio's thread only."""

    def __init__(self, core: Filesystem) -> None:
        super().__init__()
        self._core = core

    @answered
    def statfs(self, _: object) -> pyfuse3.StatvfsData:
        space = self._core.statfs()
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = space.block_size
        answer.f_blocks, answer.f_bfree, answer.f_bavail = space.blocks, space.blocks_free, space.blocks_available
        answer.f_files, answer.f_ffree, answer.f_favail = space.files, space.files_free, space.files_free
        answer.f_namemax = space.name_max
        return answer

    @answered
    def poll(self, _inode: int, _handle: int, _poll_handle: object, _: object) -> NoReturn:
        raise FilesystemError(errno.ENOSYS)  # the kernel then answers itself, as for any regular file

    # refused requests: each has a handler, because a missing one means "Function not implemented"

    @answered
    def mknod(self, parent: int, name: bytes, _mode: int, _device: int, _: object) -> NoReturn:
        self._core.refuse_creation(parent, name)

    @answered
    def symlink(self, _parent: int, name: bytes, _target: bytes, _: object) -> NoReturn:
        self._core.refuse(name)

    @answered
    def link(self, _inode: int, _parent: int, name: bytes, _: object) -> NoReturn:
        self._core.refuse(name)

    @answered
    def setxattr(self, inode: int, _name: bytes, _value: bytes, _: object) -> NoReturn:
        self._core.setxattr(inode)

    @answered
    def removexattr(self, inode: int, _name: bytes, _: object) -> NoReturn:
        self._core.setxattr(inode)

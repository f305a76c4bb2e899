"""The requests that are rare (the first one, mkdir, extended attributes, all that is refused) are pyfuse3's to answer.

libfuse takes an open descriptor for a mount ("/dev/fd/N"). It is given one end of a pair of sockets: what comes out of
the other end are its replies.

    kernel ◄──► Channel ──request──► Relay ◄──socket pair──► libfuse, pyfuse3 ──► RareOperations
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import PAGESIZE

import pyfuse3
import trio

from fsstore.fuse import protocol as wire
from fsstore.fuse.channel import Channel

READY_TASKS = 8
"""Tasks of pyfuse3 that stay: each has a buffer of 1 MiB, which is not to come and go with every burst."""
LARGEST_REPLY_BYTES = 1 << 20


class Relay:
    """Hands requests to pyfuse3, and its replies to the kernel. Thread safety: trio's thread only."""

    def __init__(self, channel: Channel, ours: socket.socket) -> None:
        self.serving = trio.Event()
        """Set when the kernel's first request has been answered."""
        self.waiting = 0
        """Requests that were handed over and not answered yet."""
        self._channel = channel
        self._socket = ours
        self._backlog: deque[bytes] = deque()
        self._reply = bytearray(LARGEST_REPLY_BYTES)  # one for all: a new one each time would leave holes in the heap

    @classmethod
    @contextmanager
    def to_pyfuse3(cls, channel: Channel, operations: pyfuse3.Operations) -> Iterator[Relay]:
        """pyfuse3 holds its session in globals: one at a time in a process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.setblocking(False)
            pyfuse3.init(operations, f"/dev/fd/{theirs.detach()}", set())
            try:
                yield cls(channel, ours)
            finally:
                pyfuse3.close(unmount=False)

    def forward(self, request: bytes) -> None:
        """Hand a request over."""
        self.waiting += 1
        self._backlog.append(request)
        self._hand_over()

    def _hand_over(self) -> None:
        while self._backlog:
            try:
                self._socket.send(self._backlog[0])
            except BlockingIOError:  # so many at once: after the next reply
                return
            self._backlog.popleft()

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
                reply = wire.serving_as_wanted(reply, PAGESIZE)
            self._channel.send(reply)
            self.serving.set()
            self.waiting -= 1
            self._hand_over()

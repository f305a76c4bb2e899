"""TCP connections on trio's loop: what the kernel can do at once takes no turn of the loop.

trio's own streams take a turn for each call. With them a request on a connection of its own, as Hadoop's client sends
each, took twice the processor time. A scope with a deadline around each wait costs as much as the wait, so one task
looks for the streams whose deadline has passed.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
from collections.abc import Awaitable, Callable

import trio

BACKLOG = 1_024
MOST_AT_ONCE = 16
"""Connections that are accepted, and calls of one connection that the kernel answers at once, before others have their
turn."""
DEFAULT_BYTES = 1 << 16
_FULL = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_FULL_PAUSE_S = 0.1
_LOOK_S = 1.0
"""Seconds between two looks for streams that wait beyond their deadlines."""

log = logging.getLogger("fsstore.serve")


def listen(address: str, port: int, send_buffer_bytes: int) -> socket.socket:
    """A socket that waits for connections, which have its options. OSError: it can't listen there."""
    [(family, *_, where), *_] = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    listener = socket.create_server(where, family=family, backlog=BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    listener.setblocking(False)
    return listener


async def accept(listener: socket.socket, connected: Callable[[TcpStream], Awaitable[object]]) -> None:
    """Accept connections until it is cancelled, with a task of `connected` for each, which closes it."""
    async with trio.open_nursery() as nursery:
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                for _ in range(MOST_AT_ONCE):
                    nursery.start_soon(connected, TcpStream(listener.accept()[0]))
            except (BlockingIOError, ConnectionAbortedError):
                pass
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                log.error("no connection can be accepted at this moment: %s", error.strerror)
                await trio.sleep(_FULL_PAUSE_S)


class TcpStream(trio.abc.HalfCloseableStream):
    """A connection. Its methods are trio's; OSErrors of the socket are BrokenResourceErrors. A method that would wait
    beyond `deadline`, on trio's clock, is ended by a TooSlowError within _LOOK_S."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.deadline = math.inf
        self._at_once = 0

    def end_within(self, seconds: float) -> None:
        """Set the deadline."""
        self.deadline = trio.current_time() + seconds

    def send_now(self, data: bytes | bytearray | memoryview) -> int:
        """The number of bytes that the kernel took at once."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            try:
                data = self.socket.recv(max_bytes or DEFAULT_BYTES)
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_readable)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            else:
                await self._give_way()
                return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with memoryview(data) as left:
            sent = 0
            while sent < len(left):
                if count := self.send_now(left[sent:]):
                    sent += count
                else:
                    await self.wait_send_all_might_not_block()
        await self._give_way()

    async def wait_send_all_might_not_block(self) -> None:
        await self._wait(trio.lowlevel.wait_writable)

    async def send_eof(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    def close(self) -> None:
        """Close it now. A connection has one task, so none waits for the socket that would have to be told."""
        self.socket.close()

    async def aclose(self) -> None:
        self.close()

    async def _wait(self, until: Callable[[socket.socket], Awaitable[None]]) -> None:
        self._at_once = 0
        waiting = _waiting_streams()
        waiting.add(self)
        try:
            await until(self.socket)
        except trio.ClosedResourceError:
            raise trio.TooSlowError from None
        finally:
            waiting.discard(self)

    async def _give_way(self) -> None:
        """Let others have their turn, now and then: a client that always has something to say would keep the loop."""
        self._at_once += 1
        if self._at_once >= MOST_AT_ONCE:
            self._at_once = 0
            await trio.lowlevel.checkpoint()


_waiting: trio.lowlevel.RunVar[set[TcpStream]] = trio.lowlevel.RunVar("waiting")


def _waiting_streams() -> set[TcpStream]:
    """The streams of this run of trio that wait. A task ends the waits that are late."""
    try:
        return _waiting.get()
    except LookupError:
        waiting: set[TcpStream] = set()
        _waiting.set(waiting)
        trio.lowlevel.spawn_system_task(_end_late, waiting)
        return waiting


async def _end_late(waiting: set[TcpStream]) -> None:
    while True:
        await trio.sleep(_LOOK_S)
        now = trio.current_time()
        for stream in [stream for stream in waiting if stream.deadline <= now]:
            trio.lowlevel.notify_closing(stream.socket)

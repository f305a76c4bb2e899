"""One connection: requests are read, and answers sent, by the rules of HTTP/1.1, which h11 knows.

    no request within SILENT_S seconds, or headers not complete within HEADERS_S     the connection ends
    nothing of an answer was taken for SILENT_S                                      the connection ends

Files go from the mount to the socket by sendfile(2), in a thread: a read of the mount may take long. The socket never
blocks, so a slow reader holds no thread. Through TLS they are read, and sent in pieces.

An answer may have pauses, positions at which the client may have enough: there the server waits for the end of the
connection. Hadoop asks for "all from here on", and hangs up when it has decoded its part; bytes that were sent
meanwhile are rendered for nothing. A client that lets the first pause pass wants more, most likely, so the others are
short.
"""

from __future__ import annotations

import os
import select
import socket
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from io import FileIO
from typing import Any, cast
from urllib.parse import parse_qsl, unquote_to_bytes

import h11
import trio

from fsstore.serve.tree import RefusedError

SILENT_S, HEADERS_S = 60.0, 10.0
HEADER_BYTES = 16 << 10
SEND_BUFFER_BYTES = 128 << 10
"""The kernel doubles it. It bounds what a connection holds, and what is sent to a client that hangs up."""
SHORT_BYTES = 32 << 10
PIECE_BYTES = 128 << 10
"""Bytes of a file that are read at a time, where they go through TLS."""
FIRST_PAUSE_S, PAUSE_S = 2.0, 0.005
LINGER_S = 1.0
_WORK_S, _WAIT_MS = 0.1, 5
"""The longest work of a thread, after which other requests may have it; and its longest wait for a socket."""
_MOST_PARAMETERS = 64
_CLOSED = select.POLLRDHUP | select.POLLHUP | select.POLLERR

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
Headers = Sequence[tuple[str, str]]
RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class CutError(Exception):
    """An answer can't be completed: the connection ends, so that the client sees it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request: its path is decoded; the first of equal headers and parameters counts."""

    method: str
    target: str
    path: bytes
    parameters: dict[str, str]
    headers: dict[str, str]


@dataclass(slots=True)
class Answer:
    """An answer. Its content is `body`, or the bytes [begin, end) of `file`, or `pieces`, which are made in threads."""

    status: int
    headers: Headers = ()
    body: bytes = b""
    file: FileIO | None = None
    begin: int | None = None
    end: int = 0
    pauses: Sequence[int] = ()
    """Ascending positions in the file."""
    pieces: Iterator[bytes] | None = None
    sent: int = field(default=0, init=False)
    """Bytes of the content that left the server."""

    @property
    def size(self) -> int | None:
        """Bytes of the content; None: unknown."""
        if self.pieces is not None:
            return None
        return len(self.body) if self.file is None else self.end - (self.begin or 0)


def answer_with(
    status: int, headers: Headers, file: FileIO, begin: int, end: int, pauses: Sequence[int] = ()
) -> Answer:  # fmt: skip
    """An answer with the bytes [begin, end) of a file; a few are read at once, which saves another turn in a thread.
    Blocks. OSError."""
    if end - begin > SHORT_BYTES:
        return Answer(status, headers, file=file, begin=begin, end=end, pauses=pauses)
    body = os.pread(file.fileno(), end - begin, begin)
    if len(body) < end - begin:
        raise CutError("the file is shorter than it was")
    return Answer(status, headers, body, begin=begin)


class Connection:
    """One connection of a client."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES)
        self._has_content = True

    @property
    def may_go_on(self) -> bool:
        """Whether another request may follow the one that was answered."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def request(self) -> Request | None:
        """The next request; None: the client is gone, or silent. h11.RemoteProtocolError: it is none."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        has_begun = False
        with trio.move_on_after(SILENT_S) as waiting:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                held = len(self._http.trailing_data[0])
                if held and not has_begun:
                    has_begun, waiting.deadline = True, trio.current_time() + HEADERS_S
                self._http.receive_data(bytes(await self._stream.receive_some(HEADER_BYTES + 1 - held)))
            if isinstance(event, h11.Request):
                self._http.next_event()  # the end of the request, unless it has a body, which is not read
                request = _parsed(event)
                self._has_content = request.method != "HEAD"
                return request
        return None

    async def send(self, answer: Answer, run: RunInThread) -> None:
        """Send an answer. CutError: it can't be completed. OSError, trio.BrokenResourceError: the client is gone."""
        size = answer.size
        headers = [*answer.headers, *([] if size is None else [("Content-Length", str(size))])]
        reason = HTTPStatus(answer.status).phrase.encode()
        head = self._http.send(h11.Response(status_code=answer.status, headers=headers, reason=reason)) or b""
        if not self._has_content:
            answer = replace(answer, body=b"", file=None, pieces=None)
        await self._send(head + self._data(answer.body))
        answer.sent = len(answer.body)
        if answer.file is not None:
            await self._send_file(answer, answer.file, run)
        elif answer.pieces is not None:
            while piece := await run(partial(next, answer.pieces, b"")):
                await self._send(self._data(piece))
                answer.sent += len(piece)
        await self._send(self._http.send(h11.EndOfMessage()) or b"")

    async def close(self) -> None:
        """End the connection. What the client still sends is read for a moment: otherwise it would see a reset, and
        perhaps not the answer."""
        with trio.move_on_after(LINGER_S), suppress(trio.BrokenResourceError, OSError):
            if isinstance(self._stream, trio.SocketStream):
                await self._stream.send_eof()
                while await self._stream.receive_some(HEADER_BYTES):
                    pass
        with trio.move_on_after(LINGER_S, shield=True), suppress(trio.BrokenResourceError, OSError):
            await self._stream.aclose()

    def _data(self, data: bytes) -> bytes:
        return (self._http.send(h11.Data(data=data)) or b"") if data else b""

    async def _send(self, data: bytes) -> None:
        if data:
            with _within(SILENT_S):
                await self._stream.send_all(data)

    @property
    def _socket(self) -> Any:
        """Trio's socket below TLS or HTTP."""
        return (self._stream.transport_stream if isinstance(self._stream, trio.SSLStream) else self._stream).socket

    async def _send_file(self, answer: Answer, file: FileIO, run: RunInThread) -> None:
        target = _duplicate(self._socket)  # a thread that hangs may outlive the connection: it must not meet another's
        try:
            await self._send_by(target, answer, file, run)
        except (trio.Cancelled, RefusedError):
            raise  # a thread may still use both, and closes them when it ends
        except BaseException:
            file.close()
            target.close()
            raise
        target.close()

    async def _send_by(self, target: socket.socket, answer: Answer, file: FileIO, run: RunInThread) -> None:
        position, stops = answer.begin or 0, [*answer.pauses, answer.end]
        by_kernel = isinstance(self._stream, trio.SocketStream)
        while position < answer.end:
            stop = stops[bisect_right(stops, position)]
            if by_kernel:
                with _within(SILENT_S):
                    await trio.lowlevel.wait_writable(self._socket)
                sent = await run(partial(pump, target, file, position, stop))
                self._http.send_with_data_passthrough(h11.Data(data=cast(bytes, range(sent))))  # it counts them
            else:
                piece = await run(partial(read_piece, file, position, stop))
                await self._send(self._data(piece))
                sent = len(piece)
            position += sent
            answer.sent += sent
            if position == stop < answer.end:
                await self._pause(target, FIRST_PAUSE_S if stop == stops[0] else PAUSE_S)

    async def _pause(self, target: socket.socket, seconds: float) -> None:
        """Wait for the client's close. ConnectionResetError: it came."""
        with trio.move_on_after(seconds):
            await trio.lowlevel.wait_readable(self._socket)
        if not _poll(target, _CLOSED, 0):
            await trio.sleep(PAUSE_S)  # TLS says goodbye before it closes
        if _poll(target, _CLOSED, 0):
            raise ConnectionResetError("the client has closed")


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """TimeoutError: the block took longer."""
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise TimeoutError(f"the client took nothing for {seconds:.0f} s")


def _duplicate(known: Any) -> socket.socket:
    """A descriptor of the same socket, closed with the object."""
    return socket.socket(known.family, known.type, known.proto, fileno=os.dup(known.fileno()))


def pump(target: socket.socket, file: FileIO, position: int, end: int) -> int:
    """Send bytes [position, end) of a file, or as many as the socket takes; returns their number. An error that comes
    after some were sent is raised by the next call. CutError: the file ends early. OSError, also if the client is gone.
    """
    begin, until_s = position, time.monotonic() + _WORK_S
    while position < end and time.monotonic() < until_s:
        try:
            sent = os.sendfile(target.fileno(), file.fileno(), position, end - position)
            if not sent:
                raise CutError("the file is shorter than it was")
        except BlockingIOError:
            if not _poll(target, select.POLLOUT, _WAIT_MS):
                break
            continue
        except (OSError, CutError):
            if position > begin:
                break
            raise
        position += sent
    return position - begin


def read_piece(file: FileIO, position: int, end: int) -> bytes:
    """A piece of the bytes [position, end) of a file. Errors as `pump`."""
    piece = os.pread(file.fileno(), min(end - position, PIECE_BYTES), position)
    if not piece:
        raise CutError("the file is shorter than it was")
    return piece


def _poll(target: socket.socket, events: int, wait_ms: int) -> bool:
    poll = select.poll()
    poll.register(target, events)
    return bool(poll.poll(wait_ms))


def _parsed(event: h11.Request) -> Request:
    target = event.target.decode("ascii", "replace")
    path, _, query = target.partition("?")
    headers: dict[str, str] = {}
    for raw_name, raw_value in event.headers:
        headers.setdefault(raw_name.decode("ascii"), raw_value.decode("latin-1"))
    parameters: dict[str, str] = {}
    with suppress(ValueError):  # there are more
        for name, value in parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS):
            parameters.setdefault(name.lower(), value)
    return Request(event.method.decode("ascii"), target, unquote_to_bytes(path), parameters, headers)

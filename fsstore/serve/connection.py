"""One connection: requests are read, and answers sent, by the rules of HTTP/1.1.

    a request's head, up to its empty line     llhttp takes it apart (httptools); what that refuses ends the connection
    an answer                                  has its length, or goes in chunks, or ends with the connection (HTTP/1.0)

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

import math
import os
import re
import select
import socket
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from http import HTTPStatus
from io import FileIO
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

import trio
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from fsstore.serve.stream import TcpStream
from fsstore.serve.tree import RefusedError

SILENT_S, HEADERS_S = 60.0, 10.0
HEADER_BYTES, FORM_BYTES = 16 << 10, 16 << 10
SEND_BUFFER_BYTES = 128 << 10
"""The kernel doubles it. It bounds what a connection holds, and what is sent to a client that hangs up."""
SHORT_BYTES = 64 << 10
PIECE_BYTES = 128 << 10
"""Bytes of a file that are read at a time, where they go through TLS."""
FIRST_PAUSE_S, PAUSE_S = 2.0, 0.005
LINGER_S = 1.0
_WORK_S, _WAIT_MS = 0.1, 5
"""The longest work of a thread, after which other requests may have it; and its longest wait for a socket."""
_MOST_PARAMETERS = 64
_CLOSED = select.POLLRDHUP | select.POLLHUP | select.POLLERR

_HEAD_END = re.compile(rb"\n\r?\n")
_CHUNKED, _CLOSING = ("Transfer-Encoding", "chunked"), ("Connection", "close")

Stream = TcpStream | trio.SSLStream[TcpStream]
Headers = Sequence[tuple[str, str]]
RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class RequestError(Exception):
    """The client sent bytes that are not a request. It is answered with `status`, and the connection ends."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class CutError(Exception):
    """An answer can't be completed: the connection ends, so that the client sees it."""


class Request(NamedTuple):
    """A request: its path is decoded; the first of equal headers and parameters counts."""

    method: str
    target: str
    path: bytes
    parameters: dict[str, str]
    headers: dict[str, str]
    form: bytes = b""
    """The content of a POST of up to FORM_BYTES."""


@dataclass(slots=True)
class Answer:
    """An answer. Its content is `body`, or the bytes [begin, end) of `file`, of which `body` has the first, or
    `pieces`, which are made in threads."""

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
    """An answer with the bytes [begin, end) of a file; a few, up to the end or the first pause, are read at once, which
    saves another turn in a thread. Blocks. OSError."""
    stop = pauses[0] if pauses else end
    first = stop - begin if stop - begin <= SHORT_BYTES else 0
    body = os.pread(file.fileno(), first, begin)
    if len(body) < first:
        raise CutError("the file is shorter than it was")
    if begin + first == end:
        return Answer(status, headers, body, begin=begin)
    return Answer(status, headers, body, file, begin, end, pauses)


def answer_in_pieces(status: int, headers: Headers, pieces: Iterator[bytes]) -> Answer:
    """An answer whose content is made in pieces; a short one is made at once, which saves turns in a thread. Blocks."""
    begun = b""
    for piece in pieces:
        begun += piece
        if len(begun) > SHORT_BYTES:
            return Answer(status, headers, pieces=chain((begun,), pieces))
    return Answer(status, headers, begun)


class Connection:
    """One connection of a client."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._socket_stream = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        self._received = bytearray()
        self._searched = 0
        self._head = _Head()
        self._is_gone = False

    @property
    def may_go_on(self) -> bool:
        """Whether another request may follow the one that was answered."""
        return self._head.may_go_on

    async def request(self) -> Request | None:
        """The next request; None: the client is gone, or silent. RequestError: it is none."""
        self._head = _Head()
        try:
            head = self._next_head() or await self._receive_head()
            if head is None:
                return None
            request = self._head.parse(head)
            return request if request.method != "POST" else request._replace(form=await self._form(request))
        except trio.TooSlowError:
            return None

    async def _form(self, request: Request) -> bytes:
        """The content of a POST; empty if its length is not told, or too great. TooSlowError: it does not come."""
        length = request.headers.get("content-length", "")
        size = int(length) if length.isdecimal() and len(length) < 10 else 0
        if size > FORM_BYTES:
            return b""
        self._socket_stream.end_within(HEADERS_S)
        while len(self._received) < size and (data := await self._stream.receive_some(HEADER_BYTES)):
            self._received += data
        form = bytes(self._received[:size])
        del self._received[:size]
        return form if len(form) == size else b""

    async def _receive_head(self) -> bytes | None:
        self._socket_stream.end_within(HEADERS_S if self._received else SILENT_S)
        while data := await self._stream.receive_some(HEADER_BYTES + 1 - len(self._received)):
            if not self._received:
                self._socket_stream.end_within(HEADERS_S)
            self._received += data
            if (head := self._next_head()) is not None:
                return head
        self._is_gone = True
        return None

    def _next_head(self) -> bytes | None:
        """The next head that has come, up to its empty line; None: it has not come. RequestError: it is too long."""
        received = self._received
        if received.startswith((b"\r", b"\n")):  # RFC 9112, 2.2: empty lines before a request
            received[:] = received.lstrip(b"\r\n")
        found = _HEAD_END.search(received, max(self._searched - 2, 0))
        end = len(received) if found is None else found.end()
        if end > HEADER_BYTES:
            raise RequestError(431)
        if found is None:
            self._searched = end
            if received and not received[:1].isalpha():
                raise RequestError(400)  # such as the hello of TLS
            return None
        self._searched = 0
        head = bytes(received[:end])
        del received[:end]
        return head

    async def send(self, answer: Answer, run: RunInThread) -> None:
        """Send an answer. CutError: it can't be completed. OSError, trio.BrokenResourceError: the client is gone.
        trio.TooSlowError: it takes nothing."""
        is_chunked = answer.pieces is not None and self._head.takes_chunks
        head = self._head.of_answer(answer, is_chunked)
        if self._head.method == "HEAD":
            answer = replace(answer, body=b"", file=None, pieces=None)
        await self._send(head + answer.body)
        answer.sent = len(answer.body)
        if answer.file is not None:
            await self._send_file(answer, answer.file, run)
        elif answer.pieces is not None:
            while piece := await run(partial(next, answer.pieces, b"")):
                await self._send(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
                answer.sent += len(piece)
            await self._send(b"0\r\n\r\n" if is_chunked else b"")

    async def close(self) -> None:
        """End the connection. What the client still sends is read for a moment: otherwise it would see a reset, and
        perhaps not the answer."""
        if isinstance(self._stream, TcpStream) and self._is_gone:
            self._stream.close()
            return
        self._socket_stream.deadline = math.inf
        with trio.move_on_after(LINGER_S), suppress(trio.BrokenResourceError, OSError):
            if isinstance(self._stream, TcpStream):
                await self._stream.send_eof()
                while await self._stream.receive_some(HEADER_BYTES):
                    pass
        with trio.move_on_after(LINGER_S, shield=True), suppress(trio.BrokenResourceError, OSError):
            await self._stream.aclose()

    async def _send(self, data: bytes) -> None:
        if isinstance(self._stream, TcpStream) and data:
            data = data[self._stream.send_now(data) :]
        if data:
            self._socket_stream.end_within(SILENT_S)
            await self._stream.send_all(data)

    async def _send_file(self, answer: Answer, file: FileIO, run: RunInThread) -> None:
        position = (answer.begin or 0) + answer.sent
        try:
            await self._pause(answer, position)
            # a thread that hangs may outlive the connection: it must not meet another's
            target = _duplicate(self._socket_stream.socket)
        except BaseException:
            file.close()
            raise
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
        position, stops = (answer.begin or 0) + answer.sent, [*answer.pauses, answer.end]
        by_kernel, is_full = not isinstance(self._stream, trio.SSLStream), False
        while position < answer.end:
            stop = stops[bisect_right(stops, position)]
            if by_kernel:
                if is_full:
                    self._socket_stream.end_within(SILENT_S)
                    await self._socket_stream.wait_send_all_might_not_block()
                sent = await run(partial(pump, target, file, position, stop))
                is_full = position + sent < stop
            else:
                piece = await run(partial(read_piece, file, position, stop))
                await self._send(piece)
                sent = len(piece)
            position += sent
            answer.sent += sent
            if position == stop:
                await self._pause(answer, position)

    async def _pause(self, answer: Answer, position: int) -> None:
        """Wait for the client's close, if the answer pauses there. ConnectionResetError: it came."""
        if position not in answer.pauses:
            return
        connected = self._socket_stream.socket
        seconds = FIRST_PAUSE_S if position == answer.pauses[0] else PAUSE_S
        with trio.CancelScope(deadline=trio.current_time() + seconds):
            await trio.lowlevel.wait_readable(connected)
        if not _poll(connected, _CLOSED, 0):
            await trio.sleep(PAUSE_S)  # TLS says goodbye before it closes
        if _poll(connected, _CLOSED, 0):
            self._is_gone = True
            raise ConnectionResetError("the client has closed")


def _duplicate(known: socket.socket) -> socket.socket:
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


class _Head:
    """The head of a request, as llhttp parses it, and the form of the answer that it asks for."""

    def __init__(self) -> None:
        self.method = ""
        self.takes_chunks = False
        self.may_go_on = False
        self._target = b""
        self._headers: dict[str, str] = {}
        self._is_complete = False
        self._has_ended = False

    def on_url(self, part: bytes) -> None:
        """Of llhttp."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of llhttp."""
        known = name.decode("ascii").lower()
        if known == "host" and known in self._headers:
            raise RequestError(400)
        self._headers.setdefault(known, value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """Of llhttp."""
        self._is_complete = True

    def on_message_complete(self) -> None:
        """Of llhttp."""
        self._has_ended = True

    def parse(self, head: bytes) -> Request:
        """The request. RequestError."""
        parser = HttpRequestParser(self)
        try:
            parser.feed_data(head)
        except HttpParserUpgrade:
            pass  # it stays HTTP/1.1
        except HttpParserError:
            raise RequestError(400) from None
        version = parser.get_http_version()
        if not self._is_complete or version not in ("1.0", "1.1"):
            raise RequestError(400)
        self.method = parser.get_method().decode("ascii")
        self.takes_chunks = version == "1.1"
        stays = "close" not in self._headers.get("connection", "").lower()
        self.may_go_on = self.takes_chunks and stays and self._has_ended  # a body is not read
        target = self._target.decode("ascii")
        path, _, query = target.partition("?")
        parameters: dict[str, str] = {}
        with suppress(ValueError):  # there are more
            for name, value in parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS):
                parameters.setdefault(name.lower(), value)
        return Request(self.method, target, unquote_to_bytes(path), parameters, self._headers)

    def of_answer(self, answer: Answer, is_chunked: bool) -> bytes:
        """The head of the answer. ValueError: a header would have two lines."""
        size, headers = answer.size, list(answer.headers)
        if is_chunked:
            headers.append(_CHUNKED)
        elif size is None:
            self.may_go_on = False
        elif answer.status != HTTPStatus.NOT_MODIFIED:
            headers.append(("Content-Length", str(size)))
        if not self.may_go_on:
            headers.append(_CLOSING)
        text = "".join([_status_line(answer.status), *[f"{name}: {value}\r\n" for name, value in headers], "\r\n"])
        if text.count("\n") != len(headers) + 2 or text.count("\r") != len(headers) + 2:
            raise ValueError("a header has a line break")
        return text.encode("latin-1")


@lru_cache
def _status_line(status: int) -> str:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"

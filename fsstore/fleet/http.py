"""A client of `mountctl serve`: answers to questions, and a file that is read by ranges."""

from __future__ import annotations

import errno
import io
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from fsstore.fleet.datasets import BrokerError
from fsstore.fleet.unusable import UnusableFileError

CLIENT_CERTIFICATE = "FSSTORE_CLIENT_CERTIFICATE"
"""The environment variable that names the certificate that servers are shown: a chain and its key (PEM)."""
PATIENCE_S = 60.0
"""Seconds for which a server may be silent."""
_PIECE_BYTES, _SAID_BYTES = 64 << 10, 200
_ABSENT = "there is no such file"
"""The text of our server's 404. Another server's 404 has another text."""


class ClientCertificateError(UnusableFileError):
    """The certificate that servers should be shown can't be used."""


class Server(NamedTuple):
    """The server of a broker's mount, and the token that it takes (None: none)."""

    broker: str
    url: str
    token: str | None

    def ask(self, path: str, parameters: Mapping[str, object] | None = None) -> bytes:
        """The content at a path. FileNotFoundError: it is not there. BrokerError, ClientCertificateError."""
        target = f"{quote(path)}?{urlencode(parameters)}" if parameters else quote(path)
        with self.errors(), closing(self.connection()) as connection:
            return self.answer(connection, "GET", target).read()

    def answer(
        self, connection: HTTPConnection, method: str, target: str, headers: Mapping[str, str] | None = None
    ) -> HTTPResponse:  # fmt: skip
        """The answer to a request. FileNotFoundError: there is no such file. BrokerError; OSError, HTTPException."""
        own = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        connection.request(method, target, headers={**own, **(headers or {})})
        answer = connection.getresponse()
        if answer.status in (200, 206):
            return answer
        said = answer.read().decode("utf-8", "replace").strip()
        if answer.status == 404 and (method == "HEAD" or said == _ABSENT):
            raise FileNotFoundError(errno.ENOENT, _ABSENT, target)
        raise BrokerError(self.broker, self.url, f"{answer.status} {answer.reason}: {said}")

    def connection(self, patience_s: float = PATIENCE_S) -> HTTPConnection:
        """A connection, which is made with its first request. ClientCertificateError."""
        parts = urlsplit(self.url)
        if parts.scheme == "https":
            return HTTPSConnection(parts.netloc, timeout=patience_s, context=_tls())
        return HTTPConnection(parts.netloc, timeout=patience_s)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what a connection raises into a BrokerError."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, HTTPException) as error:
            raise BrokerError(self.broker, self.url, str(error) or type(error).__name__) from error


class Question:
    """A question to a server that may be none of ours. It may be silent for so many seconds, and its answer may have so
    many bytes; another thread ends an answer that drips (`give_up`). It is asked once."""

    def __init__(
        self, server: Server, path: str, parameters: Mapping[str, object], seconds: float, most_bytes: int
    ) -> None:
        self._server = server
        self._target = f"{quote(path)}?{urlencode(parameters, errors='surrogateescape')}"
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._socket: socket.socket | None = None

    def ask(self) -> bytes:
        """The content of the answer. Blocks. BrokerError, ClientCertificateError."""
        server = self._server
        own = {} if server.token is None else {"Authorization": f"Bearer {server.token}"}
        with server.errors(), closing(server.connection(self._seconds)) as connection:
            connection.connect()
            self._socket = connection.sock
            connection.request("GET", self._target, headers=own)
            answer = connection.getresponse()
            content = bytearray()
            while piece := answer.read1(_PIECE_BYTES):
                content += piece
                if len(content) > self._most_bytes:
                    raise self._error(f"its answer has more than {self._most_bytes:,} bytes")
        if answer.status != 200:
            said = content[:_SAID_BYTES].decode("utf-8", "replace").strip()
            raise self._error(f"{answer.status} {answer.reason}: {said}")
        return bytes(content)

    def give_up(self) -> None:
        """End the connection, whatever another thread waits for in it."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _error(self, reason: str) -> BrokerError:
        return BrokerError(self._server.broker, self._server.url, reason)


def _tls() -> ssl.SSLContext:
    """Trusts the CAs of the system, or of SSL_CERT_FILE, and shows the user's certificate. ClientCertificateError."""
    context = ssl.create_default_context()
    if named := os.environ.get(CLIENT_CERTIFICATE):
        try:
            context.load_cert_chain(named, password=_no_password)
        except (OSError, ValueError) as error:  # the system's words for it name no file
            shown = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ClientCertificateError(Path(named), f"this is not a certificate with its key: {shown}") from None
    return context


def _no_password() -> str:
    raise ValueError("its key has a password, and this program can't ask for one")


class RemoteFile(io.RawIOBase):
    """A file of a server, read by ranges over one connection. It stays the file that was there when it was opened:
    another one of its name is a BrokerError. FileNotFoundError, BrokerError."""

    def __init__(self, server: Server, path: str) -> None:
        self._server = server
        self._target = quote(path)
        self._connection = server.connection()
        self._position = 0
        with server.errors():
            head = self._ask("HEAD", {})
            head.read()
        self._tag, self._size = head.headers["ETag"], int(head.headers["Content-Length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Read as many bytes as the buffer has, or those up to the file's end."""
        size = min(len(buffer), self._size - self._position)
        if size <= 0:
            return 0
        wanted = {"Range": f"bytes={self._position}-{self._position + size - 1}", "If-Range": self._tag}
        with self._server.errors():
            answer = self._ask("GET", wanted)
            if answer.status != 206:
                self._connection.close()  # and with it an answer of any length
                raise BrokerError(self._server.broker, self._server.url, f"another file is at {self._target} now")
            filled, view = 0, memoryview(buffer)[:size]
            while filled < size and (count := answer.readinto(view[filled:])):
                filled += count
        if filled < size:
            raise BrokerError(self._server.broker, self._server.url, "an answer ended early")
        self._position += size
        return size

    def close(self) -> None:
        self._connection.close()
        super().close()

    def _ask(self, method: str, headers: Mapping[str, str]) -> HTTPResponse:
        """The answer, on a new connection if the server has ended the last one meanwhile."""
        is_used = self._connection.sock is not None
        try:
            return self._server.answer(self._connection, method, self._target, headers)
        except (OSError, HTTPException) as error:
            self._connection.close()
            if not is_used or not isinstance(error, ConnectionError):
                raise
        return self._ask(method, headers)

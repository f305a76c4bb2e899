"""A server beside a mount for tests, and a client that says exactly what it is told to."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import forkserver
from tests.mountctl.conftest import DEADLINE_SECONDS, eventually

CERTIFICATES = Path(__file__).parents[1] / "data/tls"
FIRST_TOKEN, SECOND_TOKEN = "5f0e3c1a9b7d2468ace013579bdf2468", "ace013579bdf24685f0e3c1a9b7d2468"


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Server:
    """A server that runs. `messages` has its standard error."""

    port: int
    process: subprocess.Popen[bytes] | forkserver.Process
    access_log: Path
    messages: Path
    scheme: str

    @property
    def origin(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def ask(self, path: str, method: str = "GET", certificate: Path | None = None, **headers: str) -> Reply:
        """One request on a connection of its own; `_` in the name of a header stands for `-`."""
        connection: http.client.HTTPConnection
        if self.scheme == "https":
            trusting = ssl.create_default_context(cafile=CERTIFICATES / "ca.pem")
            if certificate is not None:
                trusting.load_cert_chain(certificate)
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS, context=trusting)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        """A connection on which nothing was said."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_SECONDS)

    def logged(self, word: str, count: int = 1) -> list[list[str]]:
        """The words of the lines of the access log with `word`, as soon as there are so many."""

        def lines() -> list[str]:
            return [line for line in self.access_log.read_text().splitlines() if word in line]

        eventually(lambda: len(lines()) >= count, f"{word} in the access log")
        return [line.split(" ") for line in lines()]


@contextmanager
def served(place: Path, folder: Path, *options: str | Path, address: str = "127.0.0.1") -> Iterator[Server]:
    """A server of `place` for the block; its logs are in `folder`."""
    access_log, messages = folder / "access.log", folder / "server.log"
    words = ["serve", place, "--listen", f"{address}:0", "--access-log", access_log, *options]
    with messages.open("wb") as said:
        process = forkserver.start("mountctl", [str(word) for word in words], stderr=said)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert " is served at " in line, messages.read_text()
        scheme, port = line.split()[-1].partition(":")[0], int(line.rpartition(":")[2])
        yield Server(port, process, access_log, messages, scheme)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0, messages.read_text()
        assert "Traceback" not in messages.read_text()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def tokens_in(path: Path, **tokens: str) -> Path:
    """A file of tokens."""
    path.touch(0o600)
    path.write_text("".join(f"{name} {token}\n" for name, token in tokens.items()))
    return path

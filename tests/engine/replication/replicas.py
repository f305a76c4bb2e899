"""A replica that a test plays byte by byte, and the store that serves it."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine import MasterConfig, MasterFigures, MessageStore
from engine.replication.address import Address, parse_address
from engine.replication.wire import Frame, FrameDecoder, encode_report
from tests.engine.storetools import SMALL, opened

LIMIT_SECONDS = 20.0
MASTER = MasterConfig(ha_port=0, remoting_port=0)


@contextmanager
def serving(path: Path, master: MasterConfig = MASTER, **changes: Any) -> Iterator[MessageStore]:
    """A store that serves replicas at ports of its own."""
    with opened(path, replace(SMALL, master=master), **changes) as store:
        yield store


def figures(store: MessageStore) -> MasterFigures:
    found = store.master_figures()
    assert found is not None
    return found


def ports(store: MessageStore) -> tuple[Address, Address]:
    """Where the log is served, and where requests are answered."""
    found = figures(store)
    return parse_address(found.address, 0, "address"), parse_address(found.remoting_address, 0, "address")


def free_port() -> int:
    """A port of the loopback that is free, and so is the one below it; the kernel gives neither to a client."""
    while True:
        port = random.randrange(16_000, 32_000)
        with (
            suppress(OSError),
            socket.create_server(("127.0.0.1", port)),
            socket.create_server(("127.0.0.1", port - 1)),
        ):
            return port


def until(holds: Callable[[], bool], what: str) -> None:
    """Return once a condition holds, in time."""
    limit = time.monotonic() + LIMIT_SECONDS
    while not holds():
        assert time.monotonic() < limit, what
        time.sleep(0.002)


class ScriptedReplica:
    """Says what it is told to say, and keeps the log that it is sent. A context manager."""

    def __init__(self, address: Address, *, receive_buffer: int | None = None) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(LIMIT_SECONDS)
        self._socket.connect(address)
        self._decoder = FrameDecoder("master")
        self.begin: int | None = None
        self.log = bytearray()
        self.heartbeats: list[Frame] = []

    def report(self, physical_offset: int) -> None:
        self._socket.sendall(encode_report(physical_offset))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    @property
    def end(self) -> int:
        """Physical offset of the byte after the log that it has."""
        return (self.begin or 0) + len(self.log)

    def receive(self, end: int) -> bytes:
        """The log from its begin on, once it has it up to the physical offset `end`."""
        while self.begin is None or self.end < end:
            assert self.receive_some(), f"closed at {self.end}, before {end}"
        assert self.end == end
        return bytes(self.log)

    def receive_some(self) -> bool:
        """Take what comes next; False: the master closed the connection."""
        try:
            data = self._socket.recv(256 << 10)
        except ConnectionResetError:
            return False
        for frame in self._decoder.feed(data):
            if not frame.data:
                self.heartbeats.append(frame)
                continue
            if self.begin is None:
                self.begin = frame.physical_offset
            assert frame.physical_offset == self.end
            self.log += frame.data
        return bool(data)

    def await_close(self) -> None:
        """Return when the master has closed the connection."""
        while self.receive_some():
            pass

    def __enter__(self) -> ScriptedReplica:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def replica_of(store: MessageStore, asks: int | None = None, *, receive_buffer: int | None = None) -> ScriptedReplica:
    """A replica that has connected, and asked for the log from `asks` on."""
    replica = ScriptedReplica(ports(store)[0], receive_buffer=receive_buffer)
    if asks is not None:
        replica.report(asks)
    return replica


def log_of(path: Path) -> bytes:
    """The bytes of the log's files, in order."""
    return b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))

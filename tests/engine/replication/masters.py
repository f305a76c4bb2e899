"""A master that a script plays: it serves the log of a store byte for byte, and can be told to misbehave."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from struct import iter_unpack, pack

from engine import MessageStore
from engine.replication.address import Address
from engine.replication.remoting import CommandDecoder
from engine.replication.replica import ReplicaOptions
from engine.replication.wire import ReportDecoder, encode_frame_header

SETTINGS_FILES = {
    21: "topics.json",
    43: "consumerOffset.json",
    45: "delayOffset.json",
    201: "subscriptionGroup.json",
}


class ScriptedMaster:
    """Serves `store` on two ports of the loopback. Thread safety: any thread may change its fields."""

    def __init__(self, store: MessageStore, ports: tuple[int, int] = (0, 0)) -> None:
        """OSError: a port is taken; 0: any free one."""
        self.store = store
        self.folder = Path(store.path)
        self.frame_bytes = 1_000
        self.tamper: Callable[[int, bytes], bytes] = lambda physical_offset, frame: frame
        """Changes a frame, header included, on its way."""
        self.settings = {
            "brokerName": "broker-a",
            "brokerClusterName": "cluster",
            "mappedFileSizeCommitLog": str(store.sizes.commit_log_bytes),
            "mappedFileSizeConsumeQueue": str(store.sizes.consume_queue_bytes),
            "maxHashSlotNum": str(store.sizes.index_slots),
            "maxIndexNum": str(store.sizes.index_entries),
        }
        self.told_end: int | None = None
        """The log's end that it tells; None: the true one."""
        self.begin = 0
        self.epochs: list[tuple[int, int]] = []
        """Number and begin of each; with any, it has a controller."""
        self.confirmed_end: int | None = None
        """The physical offset up to which its log is confirmed; None: all of it."""
        self.handshakes: list[bytes] = []
        self.tamper_handshake: Callable[[bytes], bytes] = lambda answer: answer
        self.refuses: set[int] = set()
        """Codes of requests that it refuses."""
        self.reports: list[int] = []
        self.requests: list[int] = []
        """The first report of each connection."""
        self.closing = threading.Event()
        self._listeners = [socket.create_server(("127.0.0.1", port)) for port in ports]
        master, remoting = (Address(*one.getsockname()) for one in self._listeners)
        self.options = ReplicaOptions(master, remoting, heartbeat_seconds=0.2, silence_seconds=5)
        self._connections: list[socket.socket] = []
        for listener, serve in zip(self._listeners, (self._serve_log, self._answer), strict=True):
            threading.Thread(target=self._accept, args=(listener, serve), daemon=True).start()

    def log_bytes(self, start: int, most: int) -> bytes:
        """Bytes of the log from `start` on, of one file."""
        file_bytes, end = self.store.sizes.commit_log_bytes, self.store.physical_end
        file_start = start - start % file_bytes
        size = min(most, end - start, file_start + file_bytes - start)
        if size <= 0 or start < self.begin:
            return b""
        with (self.folder / "commitlog" / f"{file_start:020d}").open("rb") as file:
            file.seek(start - file_start)
            return file.read(size)

    def hang_up(self) -> None:
        """Close all connections."""
        connections, self._connections = self._connections, []
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.closing.set()
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.hang_up()

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._served, args=(connection, serve), daemon=True).start()

    def _served(self, connection: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        with connection, suppress(OSError):
            serve(connection)

    def _serve_log(self, connection: socket.socket) -> None:
        epochs, position, decoder = self.epochs[:], -1, ReportDecoder("replica")
        if epochs:
            self.handshakes.append(connection.recv(16, socket.MSG_WAITALL))
            header = pack(">iiqi", 1, 12 * len(epochs), self.store.physical_end, epochs[-1][0])
            answer = header + b"".join(pack(">iq", *one) for one in epochs)
            connection.sendall(self.tamper_handshake(answer))
        connection.settimeout(0.02)
        while not self.closing.is_set():
            try:
                data = connection.recv(4_096)
                if not data:
                    return
                reports = [end for _, end in iter_unpack(">iq", data)] if epochs else decoder.feed(data)
                if position < 0 and reports:
                    position = self._first(reports[0], has_epochs=bool(epochs))
                    self.requests.append(reports[0])
                self.reports += reports
            except TimeoutError:
                if position >= 0:
                    connection.sendall(self._frame(position, b"", epochs))
            connection.settimeout(5)
            while position >= 0 and (sent := self.log_bytes(position, self._most(position, epochs))):
                connection.sendall(self.tamper(position, self._frame(position, sent, epochs)))
                position += len(sent)
            connection.settimeout(0.02)

    def _first(self, request: int, *, has_epochs: bool) -> int:
        """Where transfer starts: 0 asks for the newest file, or, of a master with a controller, for all."""
        end, file_bytes = self.store.physical_end, self.store.sizes.commit_log_bytes
        return request or (self.begin if has_epochs else end - end % file_bytes)

    def _most(self, position: int, epochs: list[tuple[int, int]]) -> int:
        """Bytes of a frame, which is of one epoch."""
        return min(self.frame_bytes, *(begin - position for _, begin in epochs if begin > position), 1 << 30)

    def _frame(self, position: int, data: bytes, epochs: list[tuple[int, int]]) -> bytes:
        """RocketMQ says of the last bytes of an epoch that they are of the next one."""
        if not epochs:
            return encode_frame_header(position, len(data)) + data
        epoch = max((one for one in epochs if one[1] <= position + len(data)), default=epochs[0])
        confirmed_end = self.store.physical_end if self.confirmed_end is None else self.confirmed_end
        return pack(">iiqiqq", 2, len(data), position, *epoch, confirmed_end) + data

    def _answer(self, connection: socket.socket) -> None:
        decoder = CommandDecoder("replica")
        while data := connection.recv(4_096):
            for request in decoder.feed(data):
                refused = request.code in self.refuses
                answer = request.refusal(1, "not here") if refused else request.answer(self._body(request.code))
                connection.sendall(answer.encode())

    def _body(self, code: int) -> bytes:
        if code == 26:
            settings = {**self.settings, "enableControllerMode": str(bool(self.epochs)).lower()}
            return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        if code == 28:
            end = self.store.physical_end if self.told_end is None else self.told_end
            figures = {"commitLogMinOffset": str(self.begin), "commitLogMaxOffset": str(end)}
            return json.dumps({"table": figures}).encode()
        path = self.folder / "config" / SETTINGS_FILES[code]
        return path.read_bytes() if path.exists() else b"{}"


@contextmanager
def serving(store: MessageStore) -> Iterator[ScriptedMaster]:
    """A master of `store`."""
    with ExitStack() as stack:
        master = ScriptedMaster(store)
        stack.callback(master.close)
        yield master


def eventually(is_so: Callable[[], bool], seconds: float = 30) -> None:
    """Return once `is_so` is true. AssertionError: it was not in time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)

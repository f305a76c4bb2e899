"""Publishers of every kind: threads that write to a mount until the daemon is gone, and note each answer.

lines    many lines per write, dealt over a topic's queues; sometimes synced, sometimes unterminated
writes   one message a write request, one queue
files    one message a file, with a key, up to 100 KB in pieces
records  JSON lines, each with its own key
hostile  JSON lines to a topic of its own that attack other topics (tests/durability/attacks.py)
"""

from __future__ import annotations

import errno
import json
import os
import random
import threading
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from tests.durability.attacks import MALFORMED_LINES, Attacker, Queue, Sight
from tests.durability.bodies import body_of
from tests.durability.ledger import Request

TOPICS = ("orders", "photos", "events")
HOSTILE_TOPIC = "ordesT"
"""Java's hash of it is that of "orders": so have equal keys in both topics."""

REFUSED = {errno.EINVAL, errno.EFBIG, errno.EMSGSIZE, errno.E2BIG}
DAEMON_GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT}
"""What calls answer when nobody serves the mount: the call under way (EIO: the daemon was killed while it took the
request or gave its answer; an EIO that it gives itself is in its log), later ones, those after it was unmounted."""


class Publisher:
    """Publishes to a mount until it fails. Thread safety: `stop` from anywhere; the lists when the thread has ended."""

    def __init__(self, writer: int, seed: int, budget_bytes: int) -> None:
        """`writer` numbers the messages; past `budget_bytes` since `start` they are small."""
        self._writer = writer
        self._random = random.Random(seed)
        self._budget_bytes = budget_bytes
        self._left = 0
        self._number = 0
        self.acknowledged: list[Request] = []
        self.in_flight: list[Request] = []
        self.complaints: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread()

    def start(self, root: Path) -> None:
        """Begin to publish to the mount at `root`."""
        self.acknowledged, self.in_flight, self.complaints = [], [], []
        self._left = self._budget_bytes
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, args=(root,))
        self._thread.start()

    def join(self) -> None:
        """Return when this publisher has noticed that the daemon is gone."""
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a publisher hangs in a mount whose daemon is dead"

    def _run(self, root: Path) -> None:
        try:
            while not self._stopping.is_set():
                self.publish(root)
        except OSError as error:
            if error.errno not in DAEMON_GONE:
                self.complaints.append(f"{type(self).__name__}: {error}")
        except AssertionError as error:
            self.complaints.append(f"{type(self).__name__}: {error}")

    def publish(self, root: Path) -> None:
        """One request or a few. OSError when the daemon is gone."""
        raise NotImplementedError

    def message(self, largest: int) -> bytes:
        """The next body."""
        size = self._random.randrange(20, largest if self._left > 0 else 60)
        self._left -= size
        self._number += 1
        return body_of(self._writer, self._number, size)

    def numbers(self, count: int) -> list[tuple[int, int]]:
        """Identities of the last `count` bodies."""
        return [(self._writer, number) for number in range(self._number - count + 1, self._number + 1)]

    def send(self, request: Request, call: Callable[[], object]) -> None:
        """`call` publishes `request`: note how it ended."""
        self.in_flight.append(request)
        call()
        self.acknowledged.append(self.in_flight.pop())

    def count(self, most: int) -> int:
        """Number of messages to send together."""
        return self._random.randrange(1, most) if self._left > 0 else 1


class Lines(Publisher):
    """Many lines a write; every so often the last one waits for the close, every so often all is synced."""

    def publish(self, root: Path) -> None:
        with (root / "orders" / "append").open("ab", buffering=0) as file:  # which closes its descriptor once
            for _ in range(self._random.randrange(1, 20)):
                count = self.count(80)
                text = b"".join(self.message(600) + b"\n" for _ in range(count))
                self.send(Request("orders", self.numbers(count)), lambda text=text: write_all(file.fileno(), text))  # type: ignore[misc]
            if self._random.random() < 0.2:
                os.fsync(file)
            self._end_unterminated(file)

    def _end_unterminated(self, file: FileIO) -> None:
        text = self.message(600)

        def call() -> None:
            write_all(file.fileno(), text)
            file.close()

        self.send(Request("orders", self.numbers(1)), call)


class Writes(Publisher):
    """One message a write request, all to one queue."""

    def publish(self, root: Path) -> None:
        body = self.message(5_000)
        place = root / "orders" / "1" / "append@frame=write"
        self.send(Request("orders", self.numbers(1)), lambda: write_file(place, body))


class Files(Publisher):
    """One message a file, in pieces, with a key."""

    def publish(self, root: Path) -> None:
        body = self.message(100_000)
        key = f"F{self._number}"
        place = root / "photos" / f"append@frame=file,keys={key}"
        self.send(Request("photos", self.numbers(1), [key]), lambda: write_file(place, body, 30_000))


class Records(Publisher):
    """JSON lines, each with its own key; to topics and queues in turn."""

    def publish(self, root: Path) -> None:
        count = self.count(30)
        bodies = [self.message(1_500).decode() for _ in range(count)]
        identities = self.numbers(count)
        keys = [f"R{number}" for _, number in identities]
        text = b"".join(
            json.dumps({"body": body, "keys": [key], "tags": "t"}).encode() + b"\n"
            for body, key in zip(bodies, keys, strict=True)
        )
        place = root / "events" / self._random.choice(["", "0", "2"]) / "append@format=json"
        self.send(Request("events", identities, keys), lambda: write_file(place, text))


class Hostile(Publisher):
    """Send attacks as JSON lines. Their results are not checked; `attacks` counts them."""

    def __init__(self, writer: int, seed: int, budget_bytes: int, log_file_bytes: int) -> None:
        super().__init__(writer, seed, budget_bytes)
        self._log_file_bytes = log_file_bytes
        self._victims = [Queue(topic, 0) for topic in TOPICS]
        self._attacker = Attacker(self._random, HOSTILE_TOPIC, self._victims)
        self.attacks = 0

    def publish(self, root: Path) -> None:
        lines = self._lines(root) if self._left > 0 else b'{"body":"all of it is spent"}\n'
        self._left -= len(lines)
        try:
            write_file(root / HOSTILE_TOPIC / "0" / "append@format=json", lines)
        except OSError as error:
            if error.errno not in REFUSED:
                raise
        self.attacks += 1

    def _lines(self, root: Path) -> bytes:
        if self._random.random() < 0.1:
            return self._random.choice(MALFORMED_LINES) + b"\n"
        status = json.loads((root / "@store" / "status.json").read_text())
        sight = Sight.of_status(status, self._log_file_bytes, self._victims, int(time.time() * 1_000))
        return self._attacker.attack(sight).json_lines()


def publishers(seed: int, budget_bytes: int, log_file_bytes: int) -> list[Publisher]:
    """One of each kind, to a store whose log has files of that size."""
    kinds: list[type[Publisher]] = [Lines, Writes, Files, Records]
    ordinary = [kind(writer, seed + writer, budget_bytes) for writer, kind in enumerate(kinds)]
    return [*ordinary, Hostile(len(kinds), seed + len(kinds), budget_bytes // 4, log_file_bytes)]


def write_all(fd: int, data: bytes) -> None:
    """One write, taken whole."""
    written = os.write(fd, data)
    assert written == len(data), f"{written} of {len(data)} bytes taken"


def write_file(place: Path, data: bytes, piece: int = 1 << 20) -> None:
    """Open, write, close, as cp does: the result of close counts."""
    with place.open("ab", buffering=0) as file:
        for start in range(0, len(data), piece):
            write_all(file.fileno(), data[start : start + piece])

"""Repeated kill -9 of a master and of its replica, in turn: is an acknowledged message ever lost, or are logs mixed?

    python -m tests.durability.replication [--kills 1000] [--seed 1]

A master publishes to a store of small files, and waits for its replica after each few messages (SYNC_MASTER). In each
round one of them is killed, or both are, at a random moment under load, and begins again. What the master acknowledged
has to be in the log of both, equal in each byte, at once; neither may refuse the other. In the end the copy catches up:
both logs are equal, both stores pass their check, and every acknowledged message is in the copy once and in its order.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from engine import (
    Address,
    FileSizes,
    MasterConfig,
    Message,
    MessageStore,
    OpenMode,
    RemotingError,
    ReplicaOptions,
    StoreConfig,
    check_store,
    replicate,
)
from tests.durability.figures import keep
from tests.durability.reached import Reached
from tests.engine.replication.replicas import free_port

SIZES = FileSizes(commit_log_bytes=256 << 10, consume_queue_entries=256, index_slots=500, index_entries=2_000)
TOPIC, QUEUES = "orders", 4
LIFE = 1_000_000
"""Numbers that the messages of one life of the master may have."""
MOST_BEFORE_A_WAIT = 40
PATIENCE_S = 60.0
LONGEST_LOAD_S = 0.1

MASTER, REPLICA, BOTH = "a kill of the master", "a kill of the replica", "a kill of both"
IN_FLIGHT = "a kill while messages were published and not acknowledged"
STATES = (MASTER, REPLICA, BOTH, IN_FLIGHT)


class Process:
    """Work in a fork, which may print lines."""

    def __init__(self, work: Callable[[int], None], errors: Path) -> None:
        self._lines, ours = os.pipe()
        self._errors = errors
        self._text = b""
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._lines)
            self._run(work, ours)
        os.close(ours)
        os.set_blocking(self._lines, False)

    def _run(self, work: Callable[[int], None], out: int) -> None:
        """In the child."""
        code = 1
        try:
            os.setsid()
            os.dup2(os.open(self._errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
            work(out)
            code = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def lines(self) -> list[list[int]]:
        """The numbers in the lines that it has printed since the last call."""
        try:
            while data := os.read(self._lines, 1 << 16):
                self._text += data
        except BlockingIOError:
            pass
        *whole, self._text = self._text.split(b"\n")
        return [[int(word) for word in line.split()] for line in whole]

    def has_ended(self) -> bool:
        """Whether it ended by itself."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self, number: int) -> None:
        """Send it a signal, and wait for its end."""
        os.kill(self.pid, number)
        os.waitpid(self.pid, 0)

    def close(self) -> None:
        os.close(self._lines)


def until_terminated() -> threading.Event:
    """An event that SIGTERM sets."""
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    return stopping


def serve(path: Path, port: int, first: int | None, out: int) -> None:
    """A master that publishes from message `first` on and says which it has acknowledged, with the log's end then. With
    None it publishes nothing, and says where the log ends."""
    stopping, chance = until_terminated(), random.Random(first)
    master = MasterConfig(sync=True, ha_port=port, remoting_port=port - 1, timeout_ms=int(PATIENCE_S * 1000))
    with MessageStore.open(path, StoreConfig(sizes=SIZES, master=master), create=True) as store:
        if first is None:
            os.write(out, b"0 %d\n" % store.physical_end)
            stopping.wait()
            return
        number = first
        while not stopping.is_set():
            for _ in range(chance.randrange(1, MOST_BEFORE_A_WAIT)):
                body = b"%d " % number * chance.randrange(1, 200)
                end = store.put(Message(TOPIC, body, keys=[f"K{number}"]), queue=number % QUEUES).physical_end
                number += 1
            store.wait_durable(end)
            os.write(out, b"%d %d\n" % (number, end))


def copy_of(path: Path, port: int) -> None:
    """A replica of that master. A copy that is not made yet needs its master's answer, so it asks again."""
    options = ReplicaOptions(Address("127.0.0.1", port), Address("127.0.0.1", port - 1))
    stopping = until_terminated()
    while not stopping.is_set():
        try:
            replicate(path, options, StoreConfig(), stopping)
        except RemotingError:
            stopping.wait(0.02)


@dataclass
class Rounds:
    """Kill after kill of two processes over one pair of stores."""

    folder: Path
    seed: int
    wrong: list[str] = field(default_factory=list)
    acknowledged: list[range] = field(default_factory=list)
    kills: int = 0

    def __post_init__(self) -> None:
        self.reached = Reached(*STATES)
        self.store, self.copy = self.folder / "master", self.folder / "replica"
        self._errors = self.folder / "errors"
        self._errors.touch()
        self._chance = random.Random(self.seed)
        self._port = free_port()
        self._lives = itertools.count(1)
        self._first = 0
        self._end = self._compared = 0
        self._master = self._next_master()
        self._replica = self._next_replica()

    @property
    def messages(self) -> int:
        """Number of acknowledged messages."""
        return sum(map(len, self.acknowledged))

    def _next_master(self) -> Process:
        self._first = next(self._lives) * LIFE
        first = self._first
        return Process(lambda out: serve(self.store, self._port, first, out), self._errors)

    def _next_replica(self) -> Process:
        return Process(lambda out: copy_of(self.copy, self._port), self._errors)

    def round(self) -> None:
        """Load, kill, compare, begin again."""
        if not self._await_acknowledgement():
            return
        time.sleep(self._chance.random() * LONGEST_LOAD_S)
        self.kills += 1
        state = BOTH if self._chance.random() < 0.1 else (MASTER, REPLICA)[self.kills % 2]
        self.reached.note(state)
        if state in (MASTER, BOTH):
            self._master.end(signal.SIGKILL)
        if state in (REPLICA, BOTH):
            self._replica.end(signal.SIGKILL)
        self._collect()
        self._compare()
        if state in (MASTER, BOTH):
            self.reached.note(IN_FLIGHT, log_end(self.store) > self._end)
            self._master.close()
            self._master = self._next_master()
        if state in (REPLICA, BOTH):
            self._replica.close()
            self._replica = self._next_replica()

    def _await_acknowledgement(self) -> bool:
        """Return once another message was acknowledged; False: that never happened."""
        before, limit = self._end, time.monotonic() + PATIENCE_S
        while self._end == before:
            ended = [name for name, one in (("master", self._master), ("replica", self._replica)) if one.has_ended()]
            if ended or time.monotonic() > limit:
                why = f"the {ended[0]} has ended" if ended else f"nothing was acknowledged in {PATIENCE_S:g} s"
                self._note(f"{why}: {self._errors.read_text()[-2000:]}")
                return False
            time.sleep(0.002)
            self._collect()
        return True

    def _collect(self) -> None:
        """Take what the master has acknowledged."""
        for number, end in self._master.lines():
            begin = self.acknowledged[-1].stop if self.acknowledged else 0
            self.acknowledged.append(range(max(begin, self._first), number))
            self._end = end

    def _compare(self) -> None:
        """What was acknowledged is in both logs, equal."""
        ours, theirs = (log_bytes(path, self._compared, self._end) for path in (self.store, self.copy))
        if ours != theirs:
            self._note(f"the logs differ between {self._compared} and {self._end}, which was acknowledged")
        self._compared = self._end

    def finish(self) -> None:
        """Let the copy catch up, end both cleanly, and look at all of both stores."""
        self._master.end(signal.SIGKILL)
        self._collect()
        self._master.close()
        self._master = Process(lambda out: serve(self.store, self._port, None, out), self._errors)
        end, limit = 0, time.monotonic() + PATIENCE_S
        while (not end or log_bytes(self.copy, 0, end) != log_bytes(self.store, 0, end)) and time.monotonic() < limit:
            time.sleep(0.05)
            end = next((line[1] for line in self._master.lines()), end)
        for process in (self._replica, self._master):
            process.end(signal.SIGTERM)
            process.close()
        if not end or log_bytes(self.copy, 0, end) != log_bytes(self.store, 0, end):
            self._note(f"the copy never had the whole log: {self._errors.read_text()[-2000:]}")
        for path in (self.store, self.copy):
            self.wrong += [f"{path.name}: {problem}" for problem in check_store(path)]
            self._look(path)

    def _look(self, path: Path) -> None:
        """Every acknowledged message is there once, and those of a queue are in their order."""
        found: set[int] = set()
        with MessageStore.open(path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
            for queue in store.queues(TOPIC):
                numbers = [int(bytes(message.body).split()[0]) for message in store.read(TOPIC, queue, 0)]
                if numbers != sorted(set(numbers)):
                    self._note(f"{path.name}: queue {queue} is not in its order, or has a message twice")
                found.update(numbers)
        lost = [number for numbers in self.acknowledged for number in numbers if number not in found]
        if lost:
            self._note(f"{path.name}: {len(lost)} acknowledged messages are lost, first {lost[0]}")

    def abandon(self) -> None:
        """Kill what still runs."""
        for process in (self._master, self._replica):
            if not process.has_ended():
                process.end(signal.SIGKILL)

    def _note(self, wrong: str) -> None:
        self.wrong.append(f"after kill {self.kills}: {wrong}")


def log_bytes(store: Path, begin: int, end: int) -> bytes:
    """The bytes [begin, end) of a log, as far as its files have them."""
    found, file_bytes = [], SIZES.commit_log_bytes
    for start in range(begin - begin % file_bytes, end, file_bytes):
        file = store / "commitlog" / f"{start:020d}"
        content = file.read_bytes() if file.exists() else b""
        found.append(content[max(begin - start, 0) : min(end - start, file_bytes)])
    return b"".join(found)


def log_end(store: Path) -> int:
    """Physical offset behind the last byte of a log that is not zero."""
    newest = [file for file in sorted((store / "commitlog").iterdir()) if file.read_bytes().strip(b"\0")][-1]
    return int(newest.name) + len(newest.read_bytes().rstrip(b"\0"))


def run(folder: Path, kills: int, seed: int, tell: Callable[[Rounds], None] = lambda rounds: None) -> Rounds:
    """Do `kills` rounds below `folder`; stops at the first that finds something wrong."""
    rounds = Rounds(folder, seed)
    try:
        while rounds.kills < kills and not rounds.wrong:
            rounds.round()
            tell(rounds)
        if not rounds.wrong:
            rounds.finish()
    finally:
        if rounds.wrong:
            rounds.abandon()
    return rounds


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    began = time.monotonic()

    def tell(rounds: Rounds) -> None:
        if rounds.kills % 50 == 0:
            print(f"{time.monotonic() - began:6.0f} s  {rounds.kills} kills  {rounds.messages} messages", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="replication-"))
    rounds = run(folder, chosen.kills, chosen.seed, tell)
    findings = rounds.wrong + rounds.reached.missed()
    keep(
        "replication",
        {
            "kills": rounds.kills,
            "messages_acknowledged": rounds.messages,
            "log_bytes": rounds._end,
            "reached": rounds.reached.times,
            "findings": findings,
            "seconds": round(time.monotonic() - began),
        },
    )
    if rounds.wrong:
        print(f"the stores are left in {folder}")
        return 1
    shutil.rmtree(folder)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

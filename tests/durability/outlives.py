"""Repeated kill -9 of a mount's daemon while programs use the mount: does any of them notice?

    python -m tests.durability.outlives [--kills 1000 | --restarts 30] [--seed 1] [--every 0.8]

Sixteen writers (lines, lines begun in one write and ended in the next, lines that wait for the disk, files, JSON),
sixteen readers (streams, messages, listings, reports, links by key), `tail -f` and a Spark stream keep their files
open, while the daemon is killed at random, sometimes before it has opened the store. No call may fail. Each message has
to exist once, in its writer's order. Shown bytes of a stream must never change, and Spark delivers each message once,
in order. With --restarts the daemon is replaced by `mountctl restart` instead. In the end the mount has to work
(tests/durability/liveness.py), and each of the states in KILLED or REPLACED must have occurred.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median

from engine import MessageStore, check_store
from mountctl.deaths import MOST_UNANSWERED
from tests.durability.figures import keep
from tests.durability.liveness import ALIVE, level_of, not_alive
from tests.durability.reached import Reached
from tests.durability.spark_stream import newest_offset, shown
from tests.mount.harness import REPOSITORY, unmount_lazily

WRITERS = ("line", "begun", "sync", "file", "json", "write", "large", "line") * 2
READERS = ("stream", "message", "listing", "report", "link", "stream", "message", "listing") * 2
PATIENCE_S = 60.0
TEXT = re.compile(rb"w(\d+) (\d+)( [x]*)?")
PACE_S = 0.002
RESENT_STORED = "a resent write that the log had"
RESENT_NOT_STORED = "a resent write that the log did not have"
BEGUN = "a line that was begun when the server went"
TWICE = "two deaths in a row, the next server's before it served"
KILLED = (RESENT_STORED, RESENT_NOT_STORED, BEGUN, TWICE)
REPLACED = (BEGUN,)
"""States that must have occurred when servers were killed, and when they were replaced."""

KILLS_A_STORE = 100
"""Then another store: readers list and check all of it, time and again."""

KILLED_SERVING = 0.9
"""So many of the kills come after the daemon serves again; the others soon after the kill before. Restarts need not
wait for that."""
SOON_S = 0.2
"""In this time the next server takes over, as a rule."""


@dataclass(frozen=True)
class Wait:
    """A call of a writer whose first message has that number; times in milliseconds since 1970."""

    writer: int
    number: int
    began_ms: float
    ended_ms: float


@dataclass
class Seen:
    """The clients' observations."""

    errors: list[str] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=dict)
    """Messages of each writer, all of them acknowledged."""
    calls: list[tuple[float, float]] = field(default_factory=list)
    """When a writer's call began, and how long it took, where that was more than 20 ms."""
    waits: list[Wait] = field(default_factory=list)
    """Those calls by the clock that stamps messages."""
    begun: set[int] = field(default_factory=set)
    """Writers that have begun a line and not ended it."""
    reads: int = 0
    descriptors: set[int] = field(default_factory=set)

    def open(self, path: Path, flags: int) -> int:
        """Open a file, to be closed at the end."""
        descriptor = os.open(path, flags)
        self.descriptors.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close a file."""
        self.descriptors.discard(descriptor)
        os.close(descriptor)

    def close_all(self) -> None:
        """Close all open files."""
        for descriptor in list(self.descriptors):
            self.close(descriptor)


class Client(threading.Thread):
    """One writer or reader."""

    def __init__(self, name: str, work: Callable[[], None], seen: Seen, over: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._seen = seen
        self._over = over

    def run(self) -> None:
        """Work until it is over."""
        while not self._over.is_set():
            try:
                self._work()
            except Exception as error:  # any error is a failure of the proof
                where = traceback.extract_tb(error.__traceback__)[-1]
                self._seen.errors.append(f"{self.name}: {error!r}, at {where.name}, {where.line}")
                print(self._seen.errors[-1], flush=True)
                time.sleep(0.1)


class Writers:
    """Sixteen threads, each with its descriptor."""

    def __init__(self, queue: Path, seen: Seen, over: threading.Event, seed: int) -> None:
        self._queue = queue
        self._seen = seen
        self.threads = [
            Client(
                f"{kind} writer {number}", self._writer(kind, number, random.Random(seed * 100 + number)), seen, over
            )
            for number, kind in enumerate(WRITERS)
        ]

    def _timed(self, call: Callable[[], object], writer: int) -> None:
        began, began_ms = time.monotonic(), time.time() * 1_000
        call()
        took = time.monotonic() - began
        if took > 0.02:
            self._seen.calls.append((began, took))
            self._seen.waits.append(Wait(writer, self._seen.sent[writer], began_ms, began_ms + took * 1_000))

    def _writer(self, kind: str, number: int, rng: random.Random) -> Callable[[], None]:
        name = {"file": "append@frame=file", "json": "append@format=json", "write": "append@frame=write"}.get(
            kind, "append"
        )
        flags = os.O_WRONLY | (os.O_DSYNC if kind == "sync" else 0) | (0 if kind == "large" else os.O_APPEND)
        descriptor = -1 if kind == "file" else self._seen.open(self._queue / name, flags)
        sent = self._seen.sent
        sent[number] = 0

        def text(ahead: int = 0) -> bytes:
            return b"w%d %d %s" % (number, sent[number] + ahead, b"x" * rng.randrange(40))

        def write(data: bytes) -> None:
            self._timed(lambda: os.write(descriptor, data), number)

        def lines() -> None:
            count = rng.choice((1, 1, 1, 2, 5))
            write(b"".join(text(ahead) + b"\n" for ahead in range(count)))
            sent[number] += count

        def begun() -> None:
            whole, line = text() + b"\n", text(1)
            cut = rng.randrange(len(line))
            write(whole + line[:cut])
            sent[number] += 1
            self._seen.begun.add(number)
            write(line[cut : cut + 2])
            if rng.random() < 0.3:
                write(line[cut + 2 :])
                self._timed(lambda: os.fsync(descriptor), number)
            else:
                write(line[cut + 2 :] + b"\n")
            self._seen.begun.discard(number)
            sent[number] += 1

        def file() -> None:
            body = b"w%d %d %s" % (number, sent[number], b"x" * rng.randrange(30_000))
            one = self._seen.open(self._queue / name, flags)
            try:
                for start in range(0, len(body), 8_192):
                    self._timed(partial(os.write, one, body[start : start + 8_192]), number)
            finally:
                self._timed(lambda: self._seen.close(one), number)
            sent[number] += 1

        def json_lines() -> None:
            count = rng.choice((1, 1, 3))
            rows = [json.dumps({"body": text(ahead).decode(), "keys": [f"k{number}"]}) for ahead in range(count)]
            write("".join(f"{row}\n" for row in rows).encode())
            sent[number] += count

        def one() -> None:
            write(text())
            sent[number] += 1

        def large() -> None:
            count = 3_000
            write(b"".join(text(ahead) + b"\n" for ahead in range(count)))
            sent[number] += count
            time.sleep(0.5)

        work = {"begun": begun, "file": file, "json": json_lines, "write": one, "large": large}.get(kind, lines)

        def paced() -> None:
            work()
            time.sleep(PACE_S * rng.random() * 10)

        return paced


class Readers:
    """Sixteen reading threads."""

    def __init__(self, queue: Path, seen: Seen, over: threading.Event, seed: int) -> None:
        self._queue = queue
        self._seen = seen
        self._over = over
        make = {
            "stream": self._stream, "message": self._message, "listing": self._listing, "report": self._report,
            "link": self._link,
        }  # fmt: skip
        self.threads = [
            Client(f"{kind} reader {number}", make[kind](random.Random(seed * 200 + number)), seen, over)
            for number, kind in enumerate(READERS)
        ]

    def _require(self, is_right: bool, what: str) -> None:
        self._seen.reads += 1
        if not is_right:
            self._seen.errors.append(what)

    def _stream(self, rng: random.Random) -> Callable[[], None]:
        stream = self._queue.with_name("0.log")
        descriptor = self._seen.open(stream, os.O_RDONLY)
        where, rest = 0, b""
        last: dict[int, int] = {}

        def read() -> None:
            nonlocal where, rest
            found = os.pread(descriptor, rng.choice((1_000, 100_000, 1 << 20)), where)
            where += len(found)
            *lines, rest = (rest + found).split(b"\n")
            for line in lines:
                match = TEXT.fullmatch(line)
                self._require(match is not None, f"the stream shows {line[:60]!r}")
                if match is not None:
                    writer, number = int(match[1]), int(match[2])
                    expected = last.get(writer, -1) + 1
                    self._require(number == expected, f"the stream shows w{writer} {number}, not {expected}")
                    last[writer] = number
            if not found:
                time.sleep(0.05)

        return read

    def _message(self, rng: random.Random) -> Callable[[], None]:
        kept: dict[int, bytes] = {}
        held: list[tuple[int, int]] = []

        def read() -> None:
            count = self._count()
            if not count:
                return
            number = rng.randrange(count)
            descriptor = self._seen.open(self._queue / f"{number:020d}", os.O_RDONLY)
            held.append((number, descriptor))
            if len(held) > 20:
                number, descriptor = held.pop(rng.randrange(len(held)))
                body = os.pread(descriptor, 1 << 20, 0)
                self._require(TEXT.fullmatch(body) is not None, f"message {number} reads {body[:60]!r}")
                self._require(kept.setdefault(number, body) == body, f"message {number} changed")
                self._require(os.fstat(descriptor).st_size == len(body), f"message {number} has another size")
                self._seen.close(descriptor)
            time.sleep(PACE_S)

        return read

    def _count(self) -> int:
        return int(os.readlink(self._queue / "@last")) + 1

    def _listing(self, _: random.Random) -> Callable[[], None]:
        def read() -> None:
            least = self._count()
            with os.scandir(self._queue) as found:
                names = []
                for entry in found:
                    names.append(entry.name)
                    if len(names) % 2_000 == 0:
                        time.sleep(PACE_S)
            numbers = [int(name) for name in names if name.isdigit()]
            self._require(numbers == list(range(len(numbers))), "a listing has gaps, or names twice")
            self._require(len(numbers) >= least, f"a listing has {len(numbers)} names of {least}")
            time.sleep(0.2)

        return read

    def _report(self, rng: random.Random) -> Callable[[], None]:
        root = self._queue.parents[1]
        mine, made = rng.randrange(1 << 30), 0

        def read() -> None:
            nonlocal made
            if rng.random() < 0.05:
                (root / f"made-{mine}-{made}").mkdir()
                made += 1
            status = json.loads((root / "@store/status.json").read_bytes())
            self._require(status["mode"] == "write", "the store can't be written")
            self._require(b"fsstore_restarts_total" in (root / "@store/metrics").read_bytes(), "metrics are not whole")
            os.statvfs(root)
            time.sleep(0.1)

        return read

    def _link(self, rng: random.Random) -> Callable[[], None]:
        keys = self._queue.parent / "keys"
        held: list[tuple[Path, int]] = []

        def read() -> None:
            key = keys / f"k{rng.choice([n for n, kind in enumerate(WRITERS) if kind == 'json'])}"
            try:
                descriptor = self._seen.open(key, os.O_RDONLY)
            except FileNotFoundError:  # nothing has that key yet
                time.sleep(PACE_S)
                return
            held.append((key, descriptor))
            if len(held) > 5:
                key, descriptor = held.pop(0)
                body = os.read(descriptor, 1 << 16)
                self._require(body.startswith(b"w" + key.name[1:].encode() + b" "), f"{key} leads to {body[:60]!r}")
                self._seen.close(descriptor)
            time.sleep(PACE_S)

        return read


@contextmanager
def following(command: list[str], output: Path) -> Iterator[None]:
    """A program that writes its input into `output`."""
    with output.open("wb") as out, output.with_suffix(".err").open("wb") as errors:
        program = subprocess.Popen(command, stdout=out, stderr=errors, cwd=REPOSITORY)
        try:
            yield
        finally:
            program.terminate()
            program.wait(PATIENCE_S)


def brought_by(spark: Path, count: int) -> list[str]:
    """The bodies that a Spark stream delivered, after `count` of them or when no more come."""
    newest, deadline = -1, time.monotonic() + PATIENCE_S
    while newest + 1 < count and time.monotonic() < deadline and not (spark / "failed").exists():
        time.sleep(0.5)
        before, newest = newest, newest_offset(spark)
        if newest > before:
            deadline = time.monotonic() + PATIENCE_S
    return [body for _, _, body in shown(spark)]


@dataclass
class Daemon:
    """Pid of the mount's present server."""

    keeper: int

    def pid(self) -> int | None:
        """None: there is none at the moment."""
        children = Path(f"/proc/{self.keeper}/task/{self.keeper}/children").read_text().split()
        return int(children[0]) if children else None

    def kill(self) -> bool:
        """Kill it as the OOM killer would; whether there was one."""
        pid = self.pid()
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False


@dataclass
class Result:
    """Result of a run; `kills` counts restarts if they are planned."""

    kills: int
    seen: Seen
    wrong: list[str]
    messages: int
    pauses: list[float]
    """The longest call of a writer around each."""
    unserved: list[float]
    """Pauses in seconds without a server, from the daemons' log, at each planned restart."""
    reached: Reached


def run(
    folder: Path,
    kills: int,
    seed: int,
    every_s: float,
    tell: Callable[[int, Seen], None] | None = None,
    *,
    with_spark: bool = False,
    planned: bool = False,
) -> Result:
    """Kill the daemon of one mount so often, or have it replaced."""
    store, root = folder / "store", folder / "mount"
    root.mkdir(parents=True)
    command = [sys.executable, "-m", "mountctl"]
    environment = {**os.environ, "FSSTORE_STEADY_SECONDS": "0"}  # no pauses
    log = folder / "daemon.log"
    subprocess.run(
        [*command, "mount", "--log-file", log, store, root], check=True, cwd=REPOSITORY, env=environment,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        (root / "t").mkdir()
        daemon = Daemon(json.loads((root / "@store/status.json").read_bytes())["keeper_pid"])
        seen, over, rng = Seen(), threading.Event(), random.Random(seed)
        queue, stream = root / "t/0", root / "t/0.log"
        killed: list[tuple[float, float]] = []
        deaths_ms: list[float] = []
        reached, before = Reached(*(REPLACED if planned else KILLED)), level_of(root)
        spark = folder / "spark"
        streaming = [sys.executable, "-m", "tests.durability.spark_stream", str(root), "t", str(spark)]
        with (
            following(["tail", "-n", "+1", "-f", str(stream)], folder / "tail"),
            following(streaming, folder / "spark.out") if with_spark else nullcontext(),
        ):
            writers = Writers(queue, seen, over, seed).threads
            readers_over = threading.Event()
            readers = Readers(queue, seen, readers_over, seed).threads
            for client in (*writers, *readers):
                client.start()
            blind = 0  # kills in a row that may meet servers before their first answer: too many end the mount
            while len(killed) < kills and len(seen.errors) < 20:
                blind = 0 if rng.random() < KILLED_SERVING or blind >= MOST_UNANSWERED - 2 else blind + 1
                if not blind:
                    (root / "@store/status.json").read_bytes()
                time.sleep(rng.random() * (SOON_S if blind and not planned else 2 * every_s))
                began = time.monotonic()
                deaths_ms.append(time.time() * 1_000)
                reached.note(BEGUN, bool(seen.begun))
                if planned:
                    subprocess.run([*command, "restart", root], check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
                elif not daemon.kill():
                    continue
                killed.append((began, time.monotonic()))
                if tell is not None:
                    tell(len(killed), seen)
            over.set()
            for client in writers:
                client.join(PATIENCE_S)
                if client.is_alive():
                    seen.errors.append(f"{client.name} hangs")
            readers_over.set()
            for client in readers:
                client.join(PATIENCE_S)
                if client.is_alive():
                    seen.errors.append(f"{client.name} hangs")
            seen.close_all()
            expected = stream.read_bytes() if not seen.errors else b""
            deadline = time.monotonic() + 20
            while (folder / "tail").stat().st_size < len(expected) and time.monotonic() < deadline:
                time.sleep(0.1)
            brought = [] if not with_spark or seen.errors else brought_by(spark, expected.count(b"\n"))
        is_shown = bool(seen.errors) or (folder / "tail").read_bytes() == expected
        wrong = [] if is_shown else ["`tail -f` shows something else than the stream"]
        if with_spark and not seen.errors and "".join(f"{body}\n" for body in brought).encode() != expected:
            wrong.append(f"Spark brought {len(brought)} messages, not those of the stream in their order")
        wrong += not_alive(root, before)
        subprocess.run([*command, "umount", root], check=True, cwd=REPOSITORY, timeout=PATIENCE_S)
    finally:
        unmount_lazily(root)
    times_ms: dict[tuple[int, int], int] = {}
    wrong += settled(store, seen, times_ms)
    timed, unserved = pauses(killed, seen.calls), hand_overs(log.read_text())
    if not planned:
        note_resent(reached, seen.waits, deaths_ms, times_ms)
        reached.note(TWICE, deaths_in_a_row(log.read_text()))
    return Result(len(killed), seen, wrong, sum(seen.sent.values()), timed, unserved, reached)


def note_resent(
    reached: Reached, waits: list[Wait], deaths_ms: list[float], times_ms: dict[tuple[int, int], int]
) -> None:
    """Writes that a death met: the server that was killed had stored them, or the next one did; by the time that it
    stamped their first message with."""
    for wait in waits:
        death = next((death for death in deaths_ms if wait.began_ms < death < wait.ended_ms), None)
        stored_ms = times_ms.get((wait.writer, wait.number))
        if death is not None and stored_ms is not None:
            reached.note(RESENT_STORED if stored_ms < death else RESENT_NOT_STORED)


def deaths_in_a_row(log: str) -> int:
    """Servers that were killed before they went on where the one before them was."""
    found, serves = 0, True
    for line in log.splitlines():
        if " was killed by " in line:
            found += not serves
            serves = False
        elif "took over from a " in line:
            serves = True
    return found


def settled(store: Path, seen: Seen, times_ms: dict[tuple[int, int], int]) -> list[str]:
    """Lost, duplicate and misordered messages. `times_ms` gets the store time of each message by writer and number."""
    wrong = [str(problem) for problem in check_store(store)]
    found: dict[int, list[int]] = {number: [] for number in seen.sent}
    with MessageStore.open(store) as opened:
        end = opened.bounds("t", 0).max_offset
        for offset in range(end):
            message = opened.get("t", 0, offset)
            body = bytes(message.body)
            match = TEXT.fullmatch(body)
            if match is not None:
                found[int(match[1])].append(int(match[2]))
                times_ms[int(match[1]), int(match[2])] = message.store_time_ms
            elif not body.startswith(ALIVE):
                wrong.append(f"message {offset} is nobody's")
    for number, sent in seen.sent.items():
        there = found[number]
        if there[:sent] != list(range(sent)) or len(there) > sent + 2:
            lost, doubled = len(set(range(sent)) - set(there)), len(there) - len(set(there))
            wrong.append(
                f"writer {number} ({WRITERS[number]}): of {sent} lost {lost}, doubled {doubled}, or not in order"
            )
    return wrong


def pauses(killed: list[tuple[float, float]], calls: list[tuple[float, float]]) -> list[float]:
    """The longest call of a writer around each kill or restart, from its begin to its end."""
    return [
        max((took for began, took in calls if began - 0.1 <= end and begin <= began + took), default=0.0)
        for begin, end in killed
    ]


def hand_overs(log: str) -> list[float]:
    """From when a daemon takes no more requests until the next one answers, in seconds."""
    found, left = [], None
    for line in log.splitlines():
        if "leaving the mount to the next server" in line:
            left = line[:23]
        elif " is mounted at " in line and left is not None:
            begin, end = (datetime.fromisoformat(one.replace(",", ".")) for one in (left, line[:23]))
            found.append((end - begin).total_seconds())
            left = None
    return found


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--restarts", type=int, default=0, help="have the daemon replaced instead of killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two kills, on average")
    chosen = parser.parse_args()
    began, results = time.monotonic(), list[Result]()
    planned, count = bool(chosen.restarts), chosen.restarts or chosen.kills
    what = "restarts" if planned else "kills"

    def tell(kills: int, seen: Seen) -> None:
        if kills % 10 == 0:
            sent, errors = sum(seen.sent.values()), len(seen.errors)
            print(f"{time.monotonic() - began:6.0f} s  {kills} {what}  {sent} messages  {errors} errors", flush=True)

    for number, before in enumerate(range(0, count, KILLS_A_STORE)):
        folder = Path(tempfile.mkdtemp(prefix="outlives-"))
        kills = min(KILLS_A_STORE, count - before)
        results.append(run(folder, kills, chosen.seed + number, chosen.every, tell, with_spark=True, planned=planned))
        if results[-1].wrong or results[-1].seen.errors:
            break
        shutil.rmtree(folder)
    keep("outlives-restarts" if planned else "outlives", figures_of(results, what, time.monotonic() - began))
    last = results[-1]
    for problem in (*last.seen.errors[:20], *last.wrong[:20]):
        print(problem)
    if last.wrong or last.seen.errors:
        print(f"store and log are left in {folder}")
        return 1
    return 1 if never_reached(results) else 0


def never_reached(results: list[Result]) -> list[str]:
    """States that none of the stores had."""
    return list(set.intersection(*(set(result.reached.missed()) for result in results)))


def figures_of(results: list[Result], what: str, seconds: float) -> dict[str, object]:
    """The figures to keep."""
    unserved = sorted(pause for result in results for pause in result.unserved)
    timed = sorted(pause for result in results for pause in result.pauses) or [0.0]
    return {
        what: sum(result.kills for result in results),
        "messages": sum(result.messages for result in results),
        "reads_checked": sum(result.seen.reads for result in results),
        "errors": sum(len(result.seen.errors) for result in results),
        "wrong": sum(len(result.wrong) for result in results),
        "pause_longest_s": round(timed[-1], 2),
        "pause_median_s": round(median(timed), 2),
        "pause_p99_s": round(timed[len(timed) * 99 // 100], 2),
        "reached": {state: sum(one.reached.times[state] for one in results) for state in results[0].reached.times},
        "findings": never_reached(results),
        "unserved_ms": [round(one * 1000) for one in unserved],
        "load_average": round(os.getloadavg()[0], 1),
        "seconds": round(seconds),
    }


if __name__ == "__main__":
    sys.exit(main())

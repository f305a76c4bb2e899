"""What a broker loses to a full scan of its store through a server: rows `fleet loss`.

A real broker takes a fixed rate of messages, in phases with and without a scan, in turns. The mount that follows its
store, the mount's server and the client that scans are in a control group with the weight that the units in the docs
set. A scan begins with a new mount, which has rendered nothing, and is repeated until the phase ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from engine import FileSizes
from tests.bench.measure import LeftOutError, Pairs, cpu_seconds
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.interop.brokers import Broker, live_broker
from tests.interop.driver import Driver
from tests.interop.room import java_config
from tests.interop.toolchain import LINES, BuildError, NotAvailableError, build_drivers
from tests.mount.harness import unmount_lazily
from tests.mountctl.conftest import eventually

CPU_WEIGHT = 20
RATE, QUEUES, BODY_BYTES = 3_000, 8, 1_000
FILL_RATE, FILL_SECONDS, WARM_UP_SECONDS = 20_000, 15, 20
SIZES = FileSizes(
    commit_log_bytes=256 << 20, consume_queue_entries=300_000, index_slots=500_000, index_entries=2_000_000
)
STORED, SENT = "stored", "sent"
LEAST_RATE, MOST_P99, MOST_CPU = 0.95, 1.5, 1.05


@dataclass(frozen=True, slots=True)
class Phase:
    """Messages a second that were sent, milliseconds of the slowest hundredth, microseconds of the broker's processor
    time a message, sends that failed, and bytes that were scanned."""

    rate: float
    p99_ms: float
    cpu_us: float
    failures: int
    scanned: int = 0


@contextmanager
def weighted_group(name: str) -> Iterator[list[str]]:
    """A control group with CPU_WEIGHT: the words that run a command in it. LeftOutError."""
    first, second = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    is_first = first.is_dir()
    group = (first if is_first else second) / name
    file, weight = ("cpu.shares", CPU_WEIGHT * 1024 // 100) if is_first else ("cpu.weight", CPU_WEIGHT)
    try:
        group.mkdir()
    except OSError as error:
        raise LeftOutError(f"no control group can be made: {error}") from None
    try:
        (group / file).write_text(str(weight))
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    except FileNotFoundError as error:
        raise LeftOutError(f"control groups have no weights here: {error}") from None
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text(), "all processes of the group ended")
        group.rmdir()


class Scanner:
    """Scans a store through a new mount and a server of it, again and again, until it is stopped."""

    def __init__(self, store: Path, folder: Path, inside: Sequence[str]) -> None:
        self._folder, self._inside = folder, inside
        self._root = folder / "mnt"
        self._root.mkdir()
        self._stopping = threading.Event()
        self.scanned = 0
        mountctl = (*inside, sys.executable, "-m", "mountctl")
        self._log = (folder / "log").open("wb")
        self._mount = self._start(*mountctl, "mount", "--foreground", "--follow", store, self._root)
        eventually((self._root / "@parquet").is_dir, "the store is mounted")
        self._server = self._start(*mountctl, "serve", self._root, "--listen", "127.0.0.1:0", stdout=subprocess.PIPE)
        assert self._server.stdout is not None
        self._origin = self._server.stdout.readline().decode().split()[-1]
        self._thread = threading.Thread(target=self._scan)

    def _start(self, *words: str | Path, stdout: int | None = None) -> subprocess.Popen[bytes]:
        to = self._log if stdout is None else stdout
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=to, stderr=self._log)

    def start(self) -> None:
        self._thread.start()

    def _scan(self) -> None:
        while not self._stopping.is_set():
            with urlopen(f"{self._origin}/datasets", timeout=60) as answer:
                files = [json.loads(line) for line in answer]
            for file in files:
                if self._stopping.is_set():
                    return
                words = [*self._inside, "curl", "--silent", "--fail", "--output", "/dev/null", file["url"]]
                subprocess.run(words, check=True)
                self.scanned += file["bytes"]

    def stop(self) -> int:
        """The number of bytes that were scanned."""
        self._stopping.set()
        self._thread.join()
        for process in (self._server, self._mount):
            process.terminate()
            process.wait(60)
        unmount_lazily(self._root)
        self._log.close()
        return self.scanned


def phase(broker: Broker, seconds: int, scanner: Scanner | None, topic: str = SENT, rate: int = RATE) -> Phase:
    """Send for so long, beside a scan or not."""
    pid, began = broker.driver.pid, cpu_seconds(broker.driver.pid)
    broker.make_topic(topic, QUEUES)
    load = {"topic": topic, "queues": QUEUES, "body_bytes": BODY_BYTES, "rate": rate, "seconds": seconds}
    broker.driver.call("produce", names=broker.names, **load)
    if scanner is not None:
        scanner.start()
    done: dict[str, Any] = broker.driver.call("produced")
    count = sum(done["by_queue"])
    spent = cpu_seconds(pid) - began
    scanned = 0 if scanner is None else scanner.stop()
    return Phase(count / done["seconds"], done["sends"]["p99_us"] / 1e3, 1e6 * spent / count, done["failures"], scanned)


def phases(room: Room) -> list[tuple[Phase, Phase]]:
    """Pairs of phases, with and without a scan. LeftOutError."""
    line = LINES[-1]
    try:
        build_drivers((line,))
    except NotAvailableError as error:
        raise LeftOutError(str(error)) from error
    except BuildError as error:
        raise LeftOutError("RocketMQ's driver does not build: see ./run interop") from error
    folder, seconds, found = room.new_folder(), room.scale.loss_seconds, []
    store = folder / "store"
    with (
        weighted_group(f"fsstore-bench-{os.getpid()}") as inside,
        Driver(line, folder / "java", heap_mib=2_048, threads=True) as driver,
        live_broker(driver, store, java_config(SIZES)) as broker,
    ):
        phase(broker, FILL_SECONDS, None, STORED, FILL_RATE)
        phase(broker, WARM_UP_SECONDS, None)
        for number in range(room.scale.loss_phases // 2):
            pair = {}
            for scans in (number % 2 == 0, number % 2 == 1):
                scanner = Scanner(store, room.new_folder(), inside) if scans else None
                pair[scans] = phase(broker, seconds, scanner)
            found.append((pair[True], pair[False]))
    return found


def rows(room: Room) -> Iterator[Row]:
    """The rows, of the same phases."""
    try:
        found: list[tuple[Phase, Phase]] | LeftOutError = phases(room)
    except LeftOutError as reason:
        found = reason
    against, work = "without the scan", f"a broker at {RATE:,} messages/s beside a full scan"
    run = partial(figures, found, room.scale.loss_seconds)
    yield Row("fleet loss rate", f"{work}: rate", against, "messages/s", LEAST_RATE, partial(run, "rate"))
    yield Row("fleet loss p99", "the same: slowest hundredth", against, "ms", MOST_P99, partial(run, "p99_ms"), True)
    yield Row("fleet loss CPU", "the same: its CPU a message", against, "µs", MOST_CPU, partial(run, "cpu_us"), True)


def figures(found: list[tuple[Phase, Phase]] | LeftOutError, seconds: int, name: str, _: Room) -> Pairs:
    """A figure of the phases. LeftOutError."""
    if isinstance(found, LeftOutError):
        raise found
    failed = sum(one.failures for pair in found for one in pair)
    scanned = sum(busy.scanned for busy, _ in found) / len(found) / seconds / 1e6
    note = (
        f"{2 * len(found)} phases of {seconds} s in turns, {failed} sends failed; {scanned:,.0f} MB/s were scanned, in "
        f"a control group of CPU weight {CPU_WEIGHT}; the store is in the page cache, so that no weight of IO counts"
    )
    busy, calm = zip(*((getattr(busy, name), getattr(calm, name)) for busy, calm in found), strict=True)
    return Pairs(busy, calm, note=note if name == "rate" else "")

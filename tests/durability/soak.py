"""An hour at load with retention on: is the daemon as large at the end as at the beginning, and did it complain?

    python -m tests.durability.soak [--minutes 60] [--rate 30]

One daemon serves a small store whose retention removes a log file every few seconds. Publishers and readers use the
mount in every way at a steady rate; every body that is read back is checked in full. Beside them HOSTILE clients do the
worst they can that leaves no memory behind, and a reader of one small message is timed. Meanwhile the daemon's memory
(private: what it allocated; the mapped files belong to the kernel's cache), descriptors, threads and maps are
sampled. At the end a line is fitted through each, the part after warming up: flat means that it rises by next to
nothing over that time. Then the counts have to agree, the log has to be free of complaints, the store has to check
clean, the mount has to be alive (tests/durability/liveness.py), and each of STATES must have been.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from engine import check_store
from tests.durability.bodies import body_of, identify
from tests.durability.bounds import Times, private_kib, started, times_of
from tests.durability.figures import keep
from tests.durability.liveness import level_of, not_alive
from tests.durability.reached import Reached
from tests.mount.harness import Mounted, mounted

TOPICS = ("orders", "events", "photos")
RETENTION = {
    "max_bytes": 8 << 20,
    "clean_interval_ms": 1_000,
    "delete_pause_ms": 0,
    "forced_destroy_interval_ms": 5_000,
}
HELD_FILES = 8
"""Message files that stay open for a while, so that retention meets readers."""

HELD_STREAMS = 4
"""Streams that do, each for 64 rounds."""

FILE_EXPIRED = "a file of the log that expired"
NAME_EXPIRED = "a name that expired before it was opened"
READ_EXPIRED = "expiry during a read: of bytes of a stream that is open"
STATES = (FILE_EXPIRED, NAME_EXPIRED, READ_EXPIRED)

HOSTILE = ("keys", "topics")
"""Clients of tests.durability.bounds that run meanwhile."""

SMALL, TARGET = "small", "plain"
"""Topics of the timed reader and of the hostile clients."""

PROMISED = "WARNING fsstore.fuse.errors: read answered EIO: [Errno 5]"
"""A reader read bytes of a stream that expired after it was opened."""

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """The daemon at one moment. Memory in KiB; `private_kib` is allocated memory, without mapped files."""

    seconds: float
    private_kib: int
    resident_kib: int
    descriptors: int
    threads: int
    maps: int


@dataclass(frozen=True)
class Limits:
    """How much the fitted line of each may rise over the measured time and still be flat."""

    private_kib: float = 2_048
    descriptors: float = 8
    threads: float = 3
    maps: float = 24


@dataclass
class Report:
    """Findings of a soak."""

    samples: list[Sample]
    rises: dict[str, float]
    complaints: list[str]
    published: int
    read: int
    expired_files: int
    small_reads: Times
    cpu_share: float
    limits: Limits
    reached: Reached
    wrong: list[str] = field(default_factory=list)

    def not_flat(self) -> list[str]:
        """Values that rose by more than their limits, as sentences."""
        names = [limit.name for limit in fields(Limits)]
        return [
            f"{name} rose by {self.rises[name]:.0f}" for name in names if self.rises[name] > getattr(self.limits, name)
        ]

    def findings(self) -> list[str]:
        """Everything that makes this soak a failure."""
        return [*self.wrong, *self.complaints, *self.not_flat()]


def sample(pid: int, began: float) -> Sample:
    """Look at a process."""
    proc = Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return Sample(
        seconds=time.monotonic() - began,
        private_kib=private_kib(pid),
        resident_kib=int(status["VmRSS"].split()[0]),
        descriptors=len(os.listdir(proc / "fd")),
        threads=int(status["Threads"]),
        maps=(proc / "maps").read_text().count("\n"),
    )


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / CLOCK_TICKS


def rise(seconds: list[float], values: list[float]) -> float:
    """By how much the line fitted through `values` rises from the first moment to the last."""
    slope = float(np.polyfit(seconds, values, 1)[0])
    return slope * (seconds[-1] - seconds[0])


def rises(samples: list[Sample], warm_up: float) -> dict[str, float]:
    """The rise of each sampled value, the first part of the samples left out."""
    measured = samples[int(len(samples) * warm_up) :]
    seconds = [one.seconds for one in measured]
    names = [name.name for name in fields(Sample) if name.name != "seconds"]
    return {name: rise(seconds, [getattr(one, name) for one in measured]) for name in names}


class Load:
    """Everything people do with a mount, a round at a time."""

    def __init__(self, mount: Mounted, seed: int) -> None:
        self._root = mount.root
        self._mount = mount
        self._random = random.Random(seed)
        self._lines = [self._topic(name) for name in TOPICS]
        for name in (SMALL, TARGET):
            mount.topic(name)
        self._publish_small()
        self._held: deque[int] = deque()
        self._streams: deque[int] = deque()
        self.reached = Reached(*STATES)
        self._status: dict[str, Any] = mount.status()
        self.published = dict.fromkeys(TOPICS, 0)
        self.read = 0
        self._number = 0

    def _topic(self, name: str) -> int:
        self._mount.topic(name)
        return os.open(self._root / name / "append", os.O_WRONLY | os.O_APPEND)

    def round(self, number: int) -> None:
        """One round: publish in every way, read in every way, now and then list and sync."""
        index = number % len(TOPICS)
        topic = TOPICS[index]
        self._publish_lines(topic, self._lines[index])
        self._publish_one(topic, "append@frame=write")
        self._publish_small()
        key = f"K{number}"
        body = self._publish_one(topic, f"append@frame=file,keys={key}", largest=20_000)
        assert (self._root / topic / "keys" / key).read_bytes() == body, f"{key} leads elsewhere"
        self._read_stream(topic)
        for _ in range(4):
            self._read_random()
        if number % 16 == 0:
            self._status = self._mount.status()
            os.fsync(self._lines[index])
            self._hold_stream(topic)
        if number % 64 == 0:
            self._list_queue(topic)
            self._reopen(index)

    def close(self) -> None:
        """Close all open files."""
        for fd in (*self._lines, *self._held, *self._streams):
            os.close(fd)

    def _body(self, largest: int) -> bytes:
        self._number += 1
        return body_of(1, self._number, self._random.randrange(40, largest))

    def _publish_lines(self, topic: str, fd: int) -> None:
        count = self._random.randrange(1, 80)
        text = b"".join(self._body(400) + b"\n" for _ in range(count))
        assert os.write(fd, text) == len(text)
        self.published[topic] += count

    def _publish_small(self) -> None:
        """Its reader wants the newest: retention takes the older ones."""
        (self._root / SMALL / "0" / "append").write_bytes(b"small\n")

    def _publish_one(self, topic: str, name: str, largest: int = 2_000) -> bytes:
        body = self._body(largest)
        fd = os.open(self._root / topic / name, os.O_WRONLY | os.O_APPEND)
        try:
            assert os.write(fd, body) == len(body)
        finally:
            os.close(fd)
        self.published[topic] += 1
        return body

    def _read_random(self) -> None:
        topic = self._random.choice(TOPICS)
        queue, bounds = self._random.choice(sorted(self._status["topics"][topic]["queues"].items()))
        if bounds["max_offset"] <= bounds["min_offset"]:
            return
        path = self._root / topic / queue / f"{self._random.randrange(bounds['min_offset'], bounds['max_offset']):020d}"
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # retention was faster
            self.reached.note(NAME_EXPIRED)
            return
        identify(os.read(fd, os.fstat(fd).st_size + 1))
        self.read += 1
        self._held.append(fd)
        while len(self._held) > HELD_FILES:
            os.close(self._held.popleft())

    def _read_stream(self, topic: str) -> None:
        with suppress(FileNotFoundError), (self._root / topic / "0.log").open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            start = self._random.randrange(size + 1)
            with suppress(OSError):  # the beginning expired since it was opened: EIO, as promised
                os.pread(log.fileno(), 65_536, start)

    def _hold_stream(self, topic: str) -> None:
        """Open one, and look whether the first bytes of the oldest that is open have expired since."""
        self._streams.append(os.open(self._root / topic / "0.log", os.O_RDONLY))
        if len(self._streams) > HELD_STREAMS:
            fd = self._streams.popleft()
            try:
                os.pread(fd, 4_096, 0)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self.reached.note(READ_EXPIRED)
            finally:
                os.close(fd)

    def _list_queue(self, topic: str) -> None:
        with os.scandir(self._root / topic / "1") as listing:
            for entry in listing:
                with suppress(FileNotFoundError):
                    entry.stat()

    def _reopen(self, index: int) -> None:
        os.close(self._lines[index])
        self._lines[index] = os.open(self._root / TOPICS[index] / "append", os.O_WRONLY | os.O_APPEND)


def soak(folder: Path, seconds: float, rounds_a_second: float, limits: Limits, *, warm_up: float) -> Report:
    """Run the load for `seconds` below `folder`; `warm_up` is the part of the samples that does not count."""
    with ExitStack() as stack:
        mount = stack.enter_context(mounted(folder, config={"retention": RETENTION}))
        before = level_of(mount.root)
        load = Load(mount, seed=1)
        hostile_clients = stack.enter_context(ExitStack())
        hostile = {name: hostile_clients.enter_context(beside(mount, name, 1)) for name in HOSTILE}
        reader = hostile_clients.enter_context(beside(mount, "reader", seconds))
        pid, began = mount.daemon.pid, time.monotonic()
        samples, cpu_before = [sample(pid, began)], cpu_seconds(pid)
        number = 0
        while (now := time.monotonic() - began) < seconds:
            load.round(number)
            number += 1
            if now - samples[-1].seconds >= min(seconds / 60, 10):
                samples.append(sample(pid, began))
                tell(samples[-1], load)
            time.sleep(max(0.0, began + number / rounds_a_second - time.monotonic()))
        used = (cpu_seconds(pid) - cpu_before) / (time.monotonic() - began)
        small_reads = times_of(reader)
        ended_early = [f"client {name} ended" for name, client in hostile.items() if client.poll() is not None]
        hostile_clients.close()
        load.close()
        status = mount.status()
        late = not_alive(mount.root, before)
    stored = {
        name: sum(bounds["max_offset"] for bounds in one["queues"].values()) for name, one in status["topics"].items()
    }
    wrong = [
        f"{name}: {load.published[name]} published, {stored[name]} stored"
        for name in TOPICS
        if stored[name] != load.published[name]
    ]
    wrong += ended_early + late
    load.reached.note(FILE_EXPIRED, status["stats"]["expired_files"])
    wrong += [str(problem) for problem in check_store(mount.store)]
    return Report(
        samples,
        rises(samples, warm_up),
        complaints_in(mount.log),
        sum(load.published.values()),
        load.read,
        status["stats"]["expired_files"],
        small_reads,
        used,
        limits,
        load.reached,
        wrong,
    )


@contextmanager
def beside(mount: Mounted, name: str, number: float) -> Iterator[subprocess.Popen[bytes]]:
    """A client of tests.durability.bounds, or its reader, that is killed in the end."""
    client = started(mount, name, number)
    try:
        yield client
    finally:
        client.kill()
        client.wait()
        assert client.stdout is not None
        client.stdout.close()


def complaints_in(log: Path) -> list[str]:
    """Lines of a daemon's log above INFO, except the expected ones in PROMISED."""
    return [line for line in log.read_text(errors="replace").splitlines() if not line.startswith(("INFO", PROMISED))]


def tell(now: Sample, load: Load) -> None:
    """How it is, in a line."""
    print(
        f"{now.seconds:7.0f} s  private {now.private_kib / 1024:6.1f} MiB  resident {now.resident_kib / 1024:6.1f} MiB"
        f"  descriptors {now.descriptors:4}  threads {now.threads:3}  maps {now.maps:4}"
        f"  published {sum(load.published.values()):9,}  read {load.read:8,}",
        flush=True,
    )


def figures_of(report: Report, minutes: float) -> dict[str, object]:
    """The report as figures to keep."""
    first, last = report.samples[1], report.samples[-1]
    middles = {
        name: round(float(np.median([getattr(one, name) for one in report.samples[len(report.samples) // 4 :]])))
        for name in report.rises
    }
    return {
        "minutes": minutes,
        "published": report.published,
        "read_back_and_equal": report.read,
        "log_files_expired": report.expired_files,
        "small_reads_beside_hostile_clients_ms": report.small_reads.figures(),
        "daemon_cores_used": round(report.cpu_share, 3),
        "first_sample": first.__dict__,
        "last_sample": last.__dict__,
        "medians": middles,
        "fitted_rise": {name: round(value, 1) for name, value in report.rises.items()},
        "allowed_rise": report.limits.__dict__,
        "complaints_in_log": len(report.complaints),
        "reached": report.reached.times,
        "findings": report.findings() + report.reached.missed(),
    }


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=30.0, metavar="ROUNDS", help="rounds of the load a second")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = soak(Path(folder), chosen.minutes * 60, chosen.rate, Limits(), warm_up=0.25)
    keep("soak", figures_of(report, chosen.minutes))
    findings = report.findings() + report.reached.missed()
    print("flat, and not a word of complaint" if not findings else "NOT well: see the findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

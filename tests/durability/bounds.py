"""The worst clients together: how much memory do they make the daemon take, and how long does a small reader wait?

    python -m tests.durability.bounds [--minutes 10] [--scale 1.0]

A store is prepared with expensive data: compressed bodies, a key of many messages, keys of one hash, a damaged
message. It is mounted, and a reader of one small message is timed alone, then beside each of CLIENTS, each a process
that repeats one thing, then beside all of them, then alone once more. The daemon's private memory is sampled meanwhile.
The results are its maximum, and how much longer the slowest hundredth of the small reads takes beside one client than
alone (NOISE_MS of it is noise of a shared machine). The time beside all clients is only reported, since they share the
machine's processors.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path

from engine import EMBEDDED_SIZES, Message, MessageStore, StoreConfig
from fsstore.tree.memory_budget import BUDGET_BYTES
from tests.durability.figures import keep
from tests.durability.liveness import level_of, not_alive
from tests.durability.reached import Reached
from tests.mount.harness import REPOSITORY, Mounted, mounted

OWN_MIB = {
    "the daemon itself": 35,
    "small bodies that were opened lately": 16,
    "newest messages of keys, keys on their way to the index, lengths of compressed bodies": 8,
    "a compressed body that is undone this moment, and the text that it goes into": 150,
    "what takes long to publish, one request at a time": 150,
    "handles, 2 KiB each": 8,
    "what the allocator loses between pieces, a tenth of the budget": 51,
}
"""Memory that a daemon may take beside the budget, as in docs/operations.md."""

OWN_BYTES = sum(OWN_MIB.values()) << 20

MOST_TIMES_QUIET = 10
"""How many times longer the slowest hundredth of the small reads may take."""

NOISE_MS = 1.0
"""Least value for the slowest hundredth of quiet reads: less is the scheduler's noise, not the daemon's time."""

FEWEST_READS = 2_000
"""Small reads of each part of the long form: a hundredth of fewer is a few reads."""

REFUSED = "a share of the memory that was refused"
LET_GO = "something that was kept to be read again, and had to go"
STATES = (REFUSED, LET_GO)

COMPRESSED = 1
SAMPLE_S = 0.2


@dataclass(frozen=True)
class Times:
    """Of the small reads, in milliseconds: median, 99th percentile, slowest; and how many they were."""

    median: float
    p99: float
    slowest: float
    reads: int

    @classmethod
    def of(cls, took_ms: list[float]) -> Times:
        """Those of reads that took so long."""
        ordered = sorted(took_ms)
        return cls(ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1], len(ordered))

    def __str__(self) -> str:
        return (
            f"median {self.median:7.2f}  p99 {self.p99:7.2f}  slowest {self.slowest:7.2f} ms  of {self.reads:6,} reads"
        )

    def figures(self) -> list[float]:
        """As numbers to keep."""
        return [round(self.median, 2), round(self.p99, 2), round(self.slowest, 2), self.reads]


@dataclass
class Report:
    """Results of a run."""

    most_bytes: int
    quiet: Times
    quiet_after: Times
    beside: dict[str, Times]
    beside_all: Times
    memory: dict[str, object]
    reached: Reached = field(default_factory=Reached)
    ended_early: list[str] = field(default_factory=list)

    @property
    def most_p99_ms(self) -> float:
        """Limit for the slowest hundredth of the small reads beside one client."""
        return MOST_TIMES_QUIET * max(self.quiet.p99, self.quiet_after.p99, NOISE_MS)

    def findings(self, *, timed: bool) -> list[str]:
        """Broken promises."""
        found = list(self.ended_early)
        if self.most_bytes > BUDGET_BYTES + OWN_BYTES:
            found.append(f"the daemon took {self.most_bytes >> 20} MiB, not {BUDGET_BYTES + OWN_BYTES >> 20} MiB")
        for name, times in self.beside.items():
            if timed and times.p99 > self.most_p99_ms:
                found.append(
                    f"beside {name}, p99 of a small read was {times.p99:.1f} ms, not {self.most_p99_ms:.1f} ms"
                )
        return found


# the clients


def begin_messages(root: Path, name: str, handles: int) -> None:
    """Unfinished lines and files in many handles; a refused write is tried again."""
    fds = [os.open(root / "plain" / "0" / name, os.O_WRONLY | os.O_APPEND) for _ in range(handles)]
    piece = b"x" * 65_536
    while True:
        for fd in fds:
            with suppress(OSError):
                os.write(fd, piece)


def read_bodies(root: Path, handles: int) -> None:
    """Many compressed messages open at once, each read here and there."""
    names = sorted(name for name in os.listdir(root / "packed" / "0") if name.isdigit())
    fds = [os.open(root / "packed" / "0" / names[number % len(names)], os.O_RDONLY) for number in range(handles)]
    position = 0
    while True:
        for fd in fds:
            os.pread(fd, 65_536, position)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        position += 1 << 20


def read_streams(root: Path, handles: int) -> None:
    """Many handles on streams, each reading on."""
    paths = [root / "plain" / "1.log", root / "packed" / "0.log"]
    fds = [os.open(paths[number % 8 == 0], os.O_RDONLY) for number in range(handles)]
    while True:
        for fd in fds:
            if not os.read(fd, 131_072):
                os.lseek(fd, 0, os.SEEK_SET)


def list_compressed(root: Path) -> None:
    """`ls -l` of compressed messages, and stat of their stream."""
    while True:
        with os.scandir(root / "packed" / "0") as entries:
            for entry in entries:
                entry.stat()
        os.stat(root / "packed" / "0.log")


def list_matches(root: Path, handles: int) -> None:
    """A key of many messages, listed by many at once."""
    while True:
        listings = [os.scandir(root / "plain" / "keys" / "K@all") for _ in range(handles)]
        for listing in listings:
            with suppress(OSError):
                next(listing)
        for listing in listings:
            listing.close()


def look_up_keys(root: Path) -> None:
    """Keys that no message has, and whose hash thousands of keys have."""
    while True:
        (root / "plain" / "keys" / "BB").is_symlink()


def publish_records(root: Path) -> None:
    """Long JSON lines, full of escapes; refused while others hold the memory for lines without an end."""
    line = b'{"body": "' + b"x\\n" * (1 << 20) + b'"}\n'
    while True:
        with suppress(OSError), (root / "plain" / "0" / "append@format=json").open("ab", buffering=0) as file:
            for start in range(0, len(line), 1 << 20):
                file.write(line[start : start + (1 << 20)])


def publish_short(root: Path) -> None:
    """As many lines as a write takes. Those of JSON are refused for the last of them, those of text fill the disk."""
    records, lines = b'{"body":""}\n' * 87_000 + b"{}\n", b"a\n" * (1 << 19)
    with (root / "plain" / "0" / "append").open("ab", buffering=0) as file:
        while True:
            with suppress(OSError):
                file.write(lines)
            until = time.monotonic() + 2
            while time.monotonic() < until:
                with suppress(OSError), (root / "plain" / "0" / "append@format=json").open("ab", buffering=0) as other:
                    other.write(records)


def change_topics(root: Path) -> None:
    """Make topics and delete them."""
    name = f"passing-{os.getpid()}"
    while True:
        (root / name).mkdir()
        (root / "@store" / "control").write_text(json.dumps({"delete_topic": name}))


def stat_damaged(root: Path) -> None:
    """A message that can't be read."""
    while True:
        with suppress(OSError):
            os.stat(root / "damaged" / "0" / "0")


CLIENTS: dict[str, Callable[[Path, float], None]] = {
    "lines": lambda root, scale: begin_messages(root, "append@format=json", int(1024 * scale)),
    "files": lambda root, scale: begin_messages(root, "append@frame=file", int(1024 * scale)),
    "bodies": lambda root, scale: read_bodies(root, int(1000 * scale)),
    "streams": lambda root, scale: read_streams(root, int(1000 * scale)),
    "listing": lambda root, scale: list_compressed(root),
    "matches": lambda root, scale: list_matches(root, int(200 * scale)),
    "keys": lambda root, scale: look_up_keys(root),
    "records": lambda root, scale: publish_records(root),
    "short": lambda root, scale: publish_short(root),
    "topics": lambda root, scale: change_topics(root),
    "damaged": lambda root, scale: stat_damaged(root),
}


def read_small(root: Path, seconds: float) -> list[float]:
    """Milliseconds that each read of a small message took; its name is looked up each time. Goes on for up to twice as
    long where FEWEST_READS take longer."""
    took: list[float] = []
    until, latest = time.monotonic() + seconds, time.monotonic() + 2 * seconds
    path = root / "small" / "0" / "@last"
    while (began := time.monotonic()) < until or (len(took) < FEWEST_READS and began < latest):
        assert path.read_bytes() == b"small"
        took.append((time.monotonic() - began) * 1000)
        time.sleep(0.002)
    return took


# the proof


def prepare(folder: Path, scale: float) -> None:
    """Make the store."""
    with MessageStore.open(folder, StoreConfig(sizes=EMBEDDED_SIZES), create=True) as store:
        for topic in ("small", "plain", "packed", "damaged"):
            store.create_topic(topic, 2)
        store.put(Message("small", b"small"), 0)
        spoilt = store.put(Message("damaged", b"to be spoilt"), 0).physical_offset
        line = b"x" * 1000 + b"\n"
        for _ in range(max(int(100 * scale), 1)):
            store.put_lines("plain", line * 1000, 1)
            store.put_lines("plain", b"k\n" * 5000, 0, keys=["K"])
        store.put_lines("plain", b"h\n" * int(50_000 * scale), 0, keys=["Aa"])
        for number in range(max(int(1000 * scale), 8)):
            mebibytes = 60 if number % 50 == 0 else 2
            body = zlib.compress(number.to_bytes(4) * (mebibytes << 18), 1)
            store.put(Message("packed", body, sys_flag=COMPRESSED), 0)
    with (folder / "commitlog" / f"{0:020d}").open("r+b") as file:
        position = file.read(1 << 20).index(b"to be spoilt", spoilt)
        file.seek(position)
        file.write(b"T")


def run(folder: Path, seconds: float, scale: float, alone: Sequence[str], tell: Callable[[str], None]) -> Report:
    """The clients in `alone` one after the other, then all, for that long altogether, on a store below `folder`; `tell`
    hears how it goes."""
    tell("preparing the store")
    prepare(folder / "store", scale)
    with mounted(folder, store=folder / "store", config={}) as mount:
        watch = Watch(mount)
        before = level_of(mount.root)
        each_s = max(seconds / (len(alone) + 3), 2)

        def timed(title: str, names: Sequence[str]) -> Times:
            times = watch.beside(names, each_s, scale)
            tell(f"{title:12} {times}  daemon at most {watch.most_bytes >> 20:4} MiB")
            return times

        quiet = timed("quiet", ())
        beside = {name: timed(name, (name,)) for name in alone}
        beside_all = timed("all", tuple(CLIENTS))
        memory, metrics = mount.status()["memory"], (mount.root / "@store/metrics").read_text()
        reached = Reached(*STATES)
        reached.note(REFUSED, memory["refused"])
        reached.note(LET_GO, int(metrics.partition("\nfsstore_memory_evicted_total ")[2].split()[0]))
        quiet_again = timed("quiet again", ())
        late = not_alive(mount.root, before)
        ended = watch.ended_early + late
        report = Report(watch.most_bytes, quiet, quiet_again, beside, beside_all, memory, reached, ended)
        mount.kill()  # nothing of what was begun is to be kept
    return report


class Watch:
    """Runs clients beside a reader, and watches the daemon's memory."""

    def __init__(self, mount: Mounted) -> None:
        self._mount = mount
        self.most_bytes = 0
        self.ended_early: list[str] = []

    def beside(self, names: Sequence[str], seconds: float, scale: float) -> Times:
        """A reader's measurements while these clients run."""
        clients = {name: started(self._mount, name, scale) for name in names}
        reader = started(self._mount, "reader", seconds)
        try:
            while reader.poll() is None:
                self.most_bytes = max(self.most_bytes, private_kib(self._mount.daemon.pid) << 10)
                time.sleep(SAMPLE_S)
            ended = [name for name, client in clients.items() if client.poll() is not None]
            self.ended_early += [f"client {name} ended" for name in ended]
            return times_of(reader)
        finally:
            for client in (reader, *clients.values()):
                client.kill()
            for client in (reader, *clients.values()):
                client.wait()
                assert client.stdout is not None
                client.stdout.close()


def started(mount: Mounted, name: str, number: float) -> subprocess.Popen[bytes]:
    """A client, or the reader, in a process of its own."""
    command = [sys.executable, "-m", "tests.durability.bounds", "--client", name, str(mount.root), str(number)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE)


def times_of(reader: subprocess.Popen[bytes]) -> Times:
    """A reader's measurements."""
    output, _ = reader.communicate()
    return Times(*json.loads(output))


def private_kib(pid: int) -> int:
    """Memory that a process has allocated, without mapped files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0])


def client(name: str, root: Path, number: float) -> None:
    """The work of a process of `started`."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
    if name == "reader":
        print(json.dumps(astuple(Times.of(read_small(root, number)))))  # all of them would fill the pipe
    else:
        CLIENTS[name](root, number)


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of handles and messages")
    parser.add_argument("--client", nargs=3, metavar=("NAME", "ROOT", "NUMBER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.client:
        client(chosen.client[0], Path(chosen.client[1]), float(chosen.client[2]))
        return 0
    with tempfile.TemporaryDirectory(prefix="bounds-") as folder:
        tell = partial(print, flush=True)
        report = run(Path(folder), chosen.minutes * 60, chosen.scale, tuple(CLIENTS), tell)
    findings = report.findings(timed=True) + report.reached.missed()
    figures = {
        "minutes": chosen.minutes,
        "scale": chosen.scale,
        "most_private_mib": round(report.most_bytes / (1 << 20)),
        "allowed_private_mib": {"budget": BUDGET_BYTES >> 20, **OWN_MIB},
        "small_read_quiet_ms": [report.quiet.figures(), report.quiet_after.figures()],
        "noise_floor_ms": NOISE_MS,
        "allowed_p99_ms": round(report.most_p99_ms, 2),
        "beside_ms": {name: times.figures() for name, times in report.beside.items()},
        "beside_all_ms": report.beside_all.figures(),
        "memory_at_the_end": report.memory,
        "reached": report.reached.times,
        "findings": findings,
    }
    keep("bounds", figures)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

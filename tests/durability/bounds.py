"""The worst clients together: how much memory do they make the daemon take, and how long does a small reader wait?

    python -m tests.durability.bounds [--minutes 10] [--scale 1.0]

A store is prepared that has what is expensive: compressed bodies, a key of many messages, keys of one hash, a damaged
message. It is mounted, and a reader of one small message is timed alone, then beside each of CLIENTS, which does the
same over and over in a process of its own, then beside all of them. The daemon's private memory is sampled meanwhile.
What counts is its maximum, and how much longer the slowest hundredth of the small reads takes beside one client than in
the quiet; beside all of them it is told, since they share the machine's processors.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from engine import EMBEDDED_SIZES, Message, MessageStore, StoreConfig
from fsstore.memory import BUDGET_BYTES
from tests.durability.figures import keep
from tests.durability.soak import sample
from tests.mount.harness import REPOSITORY, Mounted, mounted

OWN_BYTES = 384 << 20
"""What a daemon may take beside the budget: its own 35 MiB, some 200 MiB for a body that is being decompressed this
moment, and what the allocator loses between pieces."""

MOST_TIMES_QUIET = 10
"""How many times longer the slowest hundredth of the small reads may take."""

COMPRESSED = 1
SAMPLE_S = 0.2


Times: TypeAlias = tuple[float, float, float]
"""Of the small reads, in milliseconds: median, 99th percentile, slowest."""


@dataclass
class Report:
    """What was found."""

    most_bytes: int
    quiet_ms: Times
    beside_ms: dict[str, Times]
    beside_all_ms: Times
    memory: dict[str, object]
    ended_early: list[str] = field(default_factory=list)

    def findings(self, *, timed: bool) -> list[str]:
        """What is not as promised."""
        found = list(self.ended_early)
        if self.most_bytes > BUDGET_BYTES + OWN_BYTES:
            found.append(f"the daemon took {self.most_bytes >> 20} MiB")
        for name, times_ms in self.beside_ms.items():
            if timed and times_ms[1] > MOST_TIMES_QUIET * self.quiet_ms[1]:
                found.append(f"beside {name}, a small read took {times_ms[1]:.1f} ms, not {self.quiet_ms[1]:.1f} ms")
        return found


# the clients


def begin_messages(root: Path, name: str, handles: int) -> None:
    """Lines and files without an end, in many handles; what is refused is tried again."""
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
    """Keys that nobody has, and whose hash thousands have."""
    while True:
        (root / "plain" / "keys" / "BB").is_symlink()


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
    "topics": lambda root, scale: change_topics(root),
    "damaged": lambda root, scale: stat_damaged(root),
}


def read_small(root: Path, seconds: float) -> list[float]:
    """Milliseconds that each read of a small message took; its name is looked up each time."""
    took, until = [], time.monotonic() + seconds
    path = root / "small" / "0" / "@last"
    while (began := time.monotonic()) < until:
        assert path.read_bytes() == b"small"
        took.append((time.monotonic() - began) * 1000)
        time.sleep(0.002)
    return took


# the proof


def prepare(folder: Path, scale: float) -> None:
    """Make the store."""
    with MessageStore.open(folder, StoreConfig(sizes=EMBEDDED_SIZES)) as store:
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


def run(folder: Path, seconds: float, scale: float, alone: Sequence[str]) -> Report:
    """The clients in `alone` one after the other, then all, for that long altogether, on a store below `folder`."""
    prepare(folder / "store", scale)
    with mounted(folder, store=folder / "store", config={}) as mount:
        watch = Watch(mount)
        each_s = max(seconds / (len(alone) + 2), 2)
        quiet = watch.beside((), each_s, scale)
        beside = {name: watch.beside((name,), each_s, scale) for name in alone}
        beside_all = watch.beside(tuple(CLIENTS), each_s, scale)
        report = Report(watch.most_bytes, quiet, beside, beside_all, mount.status()["memory"], watch.ended_early)
        mount.kill()  # nothing of what was begun is to be kept
    return report


class Watch:
    """Runs clients beside a reader, and watches the daemon's memory."""

    def __init__(self, mount: Mounted) -> None:
        self._mount = mount
        self.most_bytes = 0
        self.ended_early: list[str] = []

    def beside(self, names: Sequence[str], seconds: float, scale: float) -> Times:
        """What a reader measures while these clients run."""
        clients = {name: started(self._mount, name, scale) for name in names}
        try:
            reader = started(self._mount, "reader", seconds)
            while reader.poll() is None:
                self.most_bytes = max(self.most_bytes, sample(self._mount.daemon.pid, 0).private_kib << 10)
                time.sleep(SAMPLE_S)
            ended = [name for name, client in clients.items() if client.poll() is not None]
            self.ended_early += [f"client {name} ended" for name in ended]
            return percentiles(times_of(reader))
        finally:
            for client in clients.values():
                client.kill()
                client.communicate()


def started(mount: Mounted, name: str, number: float) -> subprocess.Popen[bytes]:
    """A client, or the reader, in a process of its own."""
    command = [sys.executable, "-m", "tests.durability.bounds", "--client", name, str(mount.root), str(number)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE)


def times_of(reader: subprocess.Popen[bytes]) -> list[float]:
    """What a reader measured."""
    output, _ = reader.communicate()
    times: list[float] = json.loads(output)
    return times


def percentiles(times: list[float]) -> Times:
    """Median, 99th percentile, slowest."""
    ordered = sorted(times)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1]


def client(name: str, root: Path, number: float) -> None:
    """What a process of `started` does."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
    if name == "reader":
        print(json.dumps(read_small(root, number)))
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
        report = run(Path(folder), chosen.minutes * 60, chosen.scale, tuple(CLIENTS))
    findings = report.findings(timed=True)
    figures = {
        "minutes": chosen.minutes,
        "scale": chosen.scale,
        "most_private_mib": round(report.most_bytes / (1 << 20)),
        "small_read_quiet_ms": [round(one, 2) for one in report.quiet_ms],
        "beside_ms": {name: [round(one, 2) for one in times] for name, times in report.beside_ms.items()},
        "beside_all_ms": [round(one, 2) for one in report.beside_all_ms],
        "memory_at_the_end": report.memory,
        "findings": findings,
    }
    keep("bounds", figures)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

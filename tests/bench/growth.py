"""What a mount costs as its store grows: to 10 million messages, and to 1,000 queues."""

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine import MessageStore
from tests.bench.measure import medians_in_turns, seconds
from tests.bench.report import Result
from tests.bench.room import Room
from tests.bench.workload import BODY_BYTES, TAG, TOPIC, batches, body, key
from tests.interop.mounts import status

FIRST_NAMES = 100
READ_BYTES = 4_096
IDLE_SECONDS = 3.0
SETTLE_SECONDS = 1.0
MOST_TIMES = 2.0
MOST_PRIVATE_MIB = 150.0
MOST_IDLE_PERCENT = 1.0
TIMES = ("mount_s", "last_s", "key_s", "names_s", "middle_s", "append_s")


@dataclass(frozen=True, slots=True)
class Point:
    """A store of so many messages, mounted. Times in seconds, medians of many probes but for the mount.

    mount_s   from the command to a mount that answers, of a store that was closed
    last_s    `cat 0/@last`
    key_s     readlink of the newest message's key
    names_s   the first 100 names of queue 0
    middle_s  a read in the middle of 0.log
    append_s  open `append`, one line, close
    """

    messages: int
    queues: int
    mount_s: float
    last_s: float
    key_s: float
    names_s: float
    middle_s: float
    append_s: float
    private_mib: float
    idle_percent: float


@dataclass(frozen=True, slots=True)
class Grown:
    """A closed store of so many messages, dealt over so many queues."""

    path: Path
    messages: int
    queues: int


def grow(room: Room) -> tuple[list[Point], list[Point]]:
    """Stores of more and more messages in one queue, then stores of equal size with more and more queues."""
    scale = room.scale
    sizes = measure(room, [fill(room, messages, 1) for messages in scale.growth])
    queues = measure(room, [fill(room, scale.growth_queue_messages, number) for number in scale.growth_queues])
    return sizes, queues


def fill(room: Room, messages: int, queues: int) -> Grown:
    """Make a store; its streams are summed, as a reader once made them."""
    path = room.folder / f"grown-{messages}-{queues}"
    with MessageStore.open(path) as store:
        store.create_topic(TOPIC, queues)
        for batch in batches(0, messages):
            store.put_batch(batch)
        assert sum(store.stream(TOPIC, queue).size for queue in store.queues(TOPIC)) >= messages * (BODY_BYTES + 1)
    return Grown(path, messages, queues)


def measure(room: Room, stores: Sequence[Grown]) -> list[Point]:
    """A point of each store. Their probes take turns: whatever else the machine does meanwhile, it does to all."""
    scale = room.scale
    mount_s = medians_in_turns([partial(mount_seconds, room, store.path) for store in stores], scale.rounds)
    with ExitStack() as mounts:
        queues = [mounts.enter_context(room.mounted(store.path)) for store in stores]
        pids = [int(status(queue.parents[1])["pid"]) for queue in queues]
        time.sleep(SETTLE_SECONDS)
        idle = [round(cpu_percent(pid), 2) for pid in pids]
        probes = [probes_of(queue, key(store.messages - 1)) for store, queue in zip(stores, queues, strict=True)]
        times = [
            medians_in_turns([partial(seconds, probe) for probe in alike], scale.probes)
            for alike in zip(*probes, strict=True)
        ]
        private = [private_mib(pid) for pid in pids]
    rows = zip(stores, mount_s, *times, private, idle, strict=True)
    return [Point(store.messages, store.queues, *figures) for store, *figures in rows]


def mount_seconds(room: Room, store: Path) -> float:
    began = time.perf_counter()
    with room.mounted(store) as queue:
        os.stat(queue)
        return time.perf_counter() - began


def probes_of(queue: Path, newest_key: str) -> list[Callable[[], object]]:
    """In the order of Point's fields."""
    stream = Path(f"{queue}.log")
    middle = stream.stat().st_size // 2
    return [
        (queue / "@last").read_bytes,
        lambda: os.readlink(queue.parent / "keys" / newest_key),
        lambda: first_names(queue),
        lambda: read_at(stream, middle),
        lambda: append(queue / f"append@tags={TAG}"),
    ]


def first_names(queue: Path) -> None:
    with os.scandir(queue) as entries:
        for _ in zip(range(FIRST_NAMES), entries, strict=False):
            pass


def read_at(stream: Path, position: int) -> None:
    """A read that the daemon answers: not from the kernel's cache, and with nothing read ahead."""
    descriptor = os.open(stream, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(descriptor, READ_BYTES, position)
    os.close(descriptor)


def append(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, body(0) + b"\n")
    os.close(descriptor)


def private_mib(pid: int) -> float:
    """Memory of that process that nothing backs: what the store's own pages in the page cache are not."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def cpu_percent(pid: int) -> float:
    """Share of a core that an idle process takes."""
    before = cpu_seconds(pid)
    took = seconds(lambda: time.sleep(IDLE_SECONDS))
    return 100 * (cpu_seconds(pid) - before) / took


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def verdicts(sizes: list[Point]) -> list[Result]:
    """Flat means: at the largest at most twice what it is at the smallest."""
    small, large = asdict(sizes[0]), asdict(sizes[-1])
    results = [flat(name, small, large) for name in TIMES]
    return [
        *results,
        bounded("private_mib", "daemon's private memory", "MiB", large["private_mib"], MOST_PRIVATE_MIB),
        bounded("idle_percent", "idle daemon", "% of a core", max(p.idle_percent for p in sizes), MOST_IDLE_PERCENT),
    ]


WORK = {
    "mount_s": "mount of a clean store",
    "last_s": "`cat @last`",
    "key_s": "lookup of the newest key",
    "names_s": "first 100 names",
    "middle_s": "read in the middle of `.log`",
    "append_s": "one append",
}


def flat(name: str, small: dict[str, Any], large: dict[str, Any]) -> Result:
    ratio = large[name] / small[name]
    return Result(
        id=f"growth {name.removesuffix('_s')}",
        work=f"{WORK[name]}, {large['messages']:,} messages",
        against=f"{small['messages']:,} messages",
        unit="ms",
        ours=1e3 * large[name],
        peer=1e3 * small[name],
        ratio=ratio,
        target=MOST_TIMES,
        ok=ratio <= MOST_TIMES,
        at_most=True,
    )


def bounded(name: str, work: str, unit: str, found: float, most: float) -> Result:
    return Result(
        id=f"growth {name.split('_')[0]}",
        work=work,
        against="a bound",
        unit=unit,
        ours=found,
        peer=most,
        ratio=found / most,
        target=1.0,
        ok=found <= most,
        at_most=True,
    )

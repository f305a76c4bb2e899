"""What a mount costs as its store grows: to 10 million messages, and to 1,000 queues."""

import os
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine import MessageStore
from tests.bench.measure import median_seconds, seconds
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


def grow(room: Room) -> tuple[list[Point], list[Point]]:
    """One store growing in one queue, then stores of equal size with more and more queues."""
    store = room.folder / "growing"
    sizes, made = [], 0
    for count in room.scale.growth:
        fill(store, made, count, queues=1)
        made = count
        sizes.append(measure(room, store, count, 1))
    queues = []
    for number in room.scale.growth_queues:
        store = room.folder / f"queues-{number}"
        fill(store, 0, room.scale.growth_queue_messages, number)
        queues.append(measure(room, store, room.scale.growth_queue_messages, number))
    return sizes, queues


def fill(path: Path, first: int, until: int, queues: int) -> None:
    """Messages `first` … dealt over the queues; the streams are summed, as a reader once made them."""
    with MessageStore.open(path) as store:
        if not first:
            store.create_topic(TOPIC, queues)
        for batch in batches(first, until - first):
            store.put_batch(batch)
        assert sum(store.stream(TOPIC, queue).size for queue in store.queues(TOPIC)) >= until * (BODY_BYTES + 1)


def measure(room: Room, store: Path, messages: int, queues: int) -> Point:
    mount_s = statistics.median(mount_seconds(room, store) for _ in range(room.scale.rounds))
    probes = room.scale.probes
    with room.mounted(store) as queue:
        pid = int(status(queue.parents[1])["pid"])
        time.sleep(SETTLE_SECONDS)
        idle_percent = cpu_percent(pid)
        last_s, key_s, names_s, middle_s, append_s = (
            median_seconds(probe for _ in range(probes)) for probe in probes_of(queue, key(messages - 1))
        )
        private = private_mib(pid)
    return Point(messages, queues, mount_s, last_s, key_s, names_s, middle_s, append_s, private, round(idle_percent, 2))


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

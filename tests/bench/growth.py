"""The costs of a mount as its store grows: to 10 million messages, 100 million on request, and to 1,000 queues."""

import contextlib
import os
import re
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb

from engine import MessageStore
from tests.bench.measure import cpu_seconds, seconds
from tests.bench.report import Result
from tests.bench.room import Room
from tests.bench.scale import Scale
from tests.bench.workload import BODY_BYTES, TAG, TOPIC, batches, body, key
from tests.interop.mounts import status

FIRST_NAMES = 100
READ_BYTES = 4_096
IDLE_SECONDS = 3.0
SETTLE_SECONDS = 1.0
MOST_TIMES = 2.0
MOST_RECOUNT_S = 5.0
MOST_PRIVATE_MIB = 150.0
MOST_IDLE_PERCENT = 1.0
STORE_BYTES_A_MESSAGE = 450
FLAT_TIMES = ("mount_s", "last_s", "key_s", "names_s", "middle_s", "append_s")
"""In the order of Point's fields, and of `probes_of` behind the first."""
FIRST_TIMES = ("stat_s", "count_s", "recount_s")
"""Taken in the first mounts of a new store, in the order of `first_times`. To count looks at each message, once."""
HUGE = "huge"
"""The flag's name, and the end of its rows'."""


@dataclass(frozen=True, slots=True)
class Point:
    """A store of so many messages, mounted. Times in seconds, medians of many probes but for the mount.

    mount_s   from the command to a mount that answers, of a store that was closed
    last_s    `cat 0/@last`
    key_s     readlink of the newest message's key
    names_s   the first 100 names of queue 0
    middle_s  a read in the middle of 0.log
    append_s  open `append`, one line, close
    stat_s    the first `stat` of each .log, which nobody has read before
    count_s   the first count(*) over `@parquet`, by DuckDB
    recount_s the first one of the next mount
    """

    messages: int
    queues: int
    mount_s: float
    last_s: float
    key_s: float
    names_s: float
    middle_s: float
    append_s: float
    stat_s: float
    count_s: float
    recount_s: float
    private_mib: float
    idle_percent: float


@dataclass(frozen=True, slots=True)
class Grown:
    """A store to be measured: so many messages, dealt over the queues."""

    path: Path
    messages: int
    queues: int


def sizes_of(scale: Scale, *, huge: bool) -> tuple[int, ...]:
    """Messages of the stores that grow."""
    return (*scale.growth, scale.growth_huge) if huge else scale.growth


def check_disk(folder: Path, scale: Scale, *, huge: bool) -> None:
    """Say how much the stores take; SystemExit when the disk has less."""
    needed = STORE_BYTES_A_MESSAGE * sum(sizes_of(scale, huge=huge))
    free = shutil.disk_usage(folder).free
    said = f"growth: stores of {needed / 1e9:.1f} GB below {folder}, where {free / 1e9:.1f} GB are free"
    if needed > free:
        raise SystemExit(said)
    print(said, flush=True)


def grow(room: Room, *, huge: bool) -> tuple[list[Point], list[Point]]:
    """Stores of one queue and more and more messages, then stores of as many messages in more and more queues."""
    scale = room.scale
    sizes = [Grown(room.folder / f"messages-{count}", count, 1) for count in sizes_of(scale, huge=huge)]
    queues = [
        Grown(room.folder / f"queues-{number}", scale.growth_queue_messages, number) for number in scale.growth_queues
    ]
    return measure(room, sizes), measure(room, queues)


def fill(store: Grown) -> None:
    """Its messages, which no reader has read."""
    with MessageStore.open(store.path, create=True) as opened:
        opened.create_topic(TOPIC, store.queues)
        for batch in batches(0, store.messages):
            opened.put_batch(batch)


def first_times(room: Room, store: Grown) -> tuple[float, ...]:
    """FIRST_TIMES of new mounts."""
    with room.mounted(store.path) as queue:
        topic = queue.parent
        summing, counting = seconds(lambda: stat_streams(topic, store)), seconds(lambda: count_rows(topic, store))
    with room.mounted(store.path) as queue:
        return summing, counting, seconds(lambda: count_rows(queue.parent, store))


def stat_streams(topic: Path, store: Grown) -> None:
    streamed = sum((topic / f"{queue}.log").stat().st_size for queue in range(store.queues))
    assert streamed == store.messages * (BODY_BYTES + 1)


def count_rows(topic: Path, store: Grown) -> None:
    files = f"{topic.parent}/@parquet/topic={TOPIC}/queue=*/*.parquet"
    with duckdb.connect() as connection:
        assert connection.execute("select count(*) from read_parquet(?)", [files]).fetchone() == (store.messages,)


def measure(room: Room, stores: Sequence[Grown]) -> list[Point]:
    """All of them mounted side by side and measured in turns, so that other load on the machine hits each of them."""
    for store in stores:
        fill(store)
    firsts = [first_times(room, store) for store in stores]
    mounts = in_turns([partial(mount_seconds, room, store.path) for store in stores], room.scale.rounds)
    with contextlib.ExitStack() as resources:
        queues = [resources.enter_context(room.mounted(store.path)) for store in stores]
        pids = [int(status(queue.parents[1])["pid"]) for queue in queues]
        time.sleep(SETTLE_SECONDS)
        idle = cpu_percents(pids)
        probes = [probes_of(queue, key(store.messages - 1)) for queue, store in zip(queues, stores, strict=True)]
        alike = zip(*probes, strict=True)
        times = [in_turns([partial(seconds, probe) for probe in same], room.scale.probes) for same in alike]
        points = zip(stores, zip(mounts, *times, strict=True), firsts, pids, idle, strict=True)
        return [
            Point(
                store.messages,
                store.queues,
                **dict(zip(FLAT_TIMES + FIRST_TIMES, (*medians, *first), strict=True)),
                private_mib=private_mib(pid),
                idle_percent=round(percent, 2),
            )
            for store, medians, first, pid, percent in points
        ]


def in_turns(works: Sequence[Callable[[], float]], rounds: int) -> list[float]:
    """The median of the results of each of `works`, run one after the other in each round."""
    told = [[work() for work in works] for _ in range(rounds)]
    return [statistics.median(of_one) for of_one in zip(*told, strict=True)]


def mount_seconds(room: Room, store: Path) -> float:
    began = time.perf_counter()
    with room.mounted(store) as queue:
        os.stat(queue)
        return time.perf_counter() - began


def probes_of(queue: Path, newest_key: str) -> list[Callable[[], object]]:
    """What takes the FLAT_TIMES behind the first."""
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


def cpu_percents(pids: Sequence[int]) -> list[float]:
    """Share of a core that each of these idle processes takes."""
    before = [cpu_seconds(pid) for pid in pids]
    took = seconds(lambda: time.sleep(IDLE_SECONDS))
    return [100 * (cpu_seconds(pid) - then) / took for pid, then in zip(pids, before, strict=True)]


def verdicts(sizes: list[Point], *, huge: bool) -> list[Result]:
    """Of the usual sizes; with the huge one, of all of them as well."""
    return [*verdicts_of(sizes[:-1]), *verdicts_of(sizes, f" {HUGE}")] if huge else verdicts_of(sizes)


def verdicts_of(sizes: list[Point], ending: str = "") -> list[Result]:
    """Flat means: at the largest at most twice what it is at the smallest. `ending` is that of the rows' names."""
    small, large = asdict(sizes[0]), asdict(sizes[-1])
    idle_percent = max(point.idle_percent for point in sizes)
    return [
        *(compared(name, small, large, ending, MOST_TIMES) for name in FLAT_TIMES),
        compared("stat_s", small, large, ending, MOST_TIMES),
        compared("count_s", small, large, ending, None),
        bounded(f"recount{ending}", RECOUNT.format(sizes[-1].messages), "s", sizes[-1].recount_s, MOST_RECOUNT_S),
        bounded(f"private{ending}", "daemon's private memory", "MiB", sizes[-1].private_mib, MOST_PRIVATE_MIB),
        bounded(f"idle{ending}", "idle daemon", "% of a core", idle_percent, MOST_IDLE_PERCENT),
    ]


WORK = {
    "mount_s": "mount of a clean store",
    "last_s": "`cat @last`",
    "key_s": "lookup of the newest key",
    "names_s": "first 100 names",
    "middle_s": "read in the middle of `.log`",
    "append_s": "one append",
    "stat_s": "first `stat` of `.log`",
    "count_s": "first `count(*)` over `@parquet`, DuckDB",
}
RECOUNT = "the same in the next mount, {:,} messages"


def compared(name: str, small: dict[str, Any], large: dict[str, Any], ending: str, target: float | None) -> Result:
    ratio = large[name] / small[name]
    return Result(
        id=f"growth {name.removesuffix('_s')}{ending}",
        work=f"{WORK[name]}, {large['messages']:,} messages",
        against=f"{small['messages']:,} messages",
        unit="ms",
        ours=1e3 * large[name],
        peer=1e3 * small[name],
        ratio=ratio,
        target=target,
        ok=ratio <= target if target is not None else None,
        at_most=True,
    )


def bounded(name: str, work: str, unit: str, found: float, most: float) -> Result:
    return Result(
        id=f"growth {name}",
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

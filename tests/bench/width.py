"""The costs of a store as its topics grow: `./run bench width [--topics 100 2000 20000]`, a run of its own.

Each store has so many topics of QUEUES queues, and MESSAGES messages in each queue. It is made once. The stores are
asked in turns, so that other load on the machine hits each of them.
"""

import contextlib
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from engine import FileSizes, Message, MessageStore, Retention, StoreConfig
from tests.bench.growth import append, in_turns, private_mib
from tests.bench.measure import LeftOutError, Pairs, interleave, seconds
from tests.bench.report import Result
from tests.bench.rocketmq import RocketMQ, RocketMQError
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.bench.workload import body, key
from tests.interop.mounts import MOUNTCTL, mounted

TOPICS = (100, 2_000, 20_000)
QUEUES, MESSAGES = 4, 3
MOST_TIMES, BOUND = 2.0, "a bound"
LEAST = 0.001
"""In any figure's unit: a smaller one is noise, and nothing is judged beside it."""
NAMES, FOUND = 2, 5 + 2 * QUEUES
"""Names of a topic in the root (itself and its stream), and those that `find -maxdepth 2` prints."""
KEPT_FOR_EVER = Retention(max_bytes=1 << 60)
KILLED = """
import os, sys
from engine import Message, MessageStore
MessageStore.open(sys.argv[1]).put(Message(sys.argv[2], b"the last message"), 0)
os._exit(0)
"""

NEW_QUEUES = 100
"""Queues that get their first message beside RocketMQ."""

Figures = dict[str, float]
"""What was measured of one store, by the figure's name: in its unit, of all items."""


@dataclass(frozen=True, slots=True)
class Wide:
    """A store of so many topics."""

    path: Path
    topics: int

    @property
    def queues(self) -> int:
        return QUEUES * self.topics

    def topic(self) -> str:
        """Any of its topics."""
        return topic_name(random.randrange(self.topics))


@dataclass(frozen=True, slots=True)
class Figure:
    """What is measured at each size. It should not depend on the size, or, with so many `items` a topic, an item should
    cost the same. `limit` bounds it at the largest size; one that is not `compared` has nothing but that."""

    name: str
    work: str
    unit: str
    limit: float | None = None
    items: int = 0
    compared: bool = True


FIGURES = (
    Figure("create", "make a topic", "ms", limit=5),
    Figure("first", "first message of a queue", "ms", limit=0.5),
    Figure("second", "second message of a queue", "µs"),
    Figure("disk", "disk a queue", "KiB", limit=8, items=QUEUES, compared=False),
    Figure("memory", "private memory a queue that was not asked for", "KiB", limit=1.5, items=QUEUES, compared=False),
    Figure("mount", "mount after a clean end, beside `find`", "times", limit=3, compared=False),
    Figure("killed", "mount after a kill, beside `find`", "times", limit=6, compared=False),
    Figure("close", "close after a message in each queue, beside `find`", "times", limit=2, compared=False),
    Figure("ls", "`ls` of the root, first time, a name", "µs", items=NAMES),
    Figure("long", "`ls -l` of the root, first time, a name", "µs", limit=60, items=NAMES),
    Figure("again", "`ls -l` of the root, again, a name", "µs", items=NAMES),
    Figure("find", "`find -maxdepth 2`, a name", "µs", items=FOUND),
    Figure("status", "`mountctl status --json`, a queue", "µs", items=QUEUES),
    Figure("topics", "`mountctl topics`, a queue", "µs", items=QUEUES),
    Figure("retention", "a round of retention that deletes nothing, a queue", "µs", items=QUEUES),
    Figure("cat", "`cat` of a message", "ms"),
    Figure("key", "look-up of a key", "ms"),
    Figure("append", "one append", "ms"),
)


def topic_name(number: int) -> str:
    return f"topic-{number:06d}"


def message(number: int, topic: str) -> Message:
    return Message(topic, body(number), keys=(key(number),))


def wide_stores(room: Room, topics: Sequence[int]) -> list[Wide]:
    """Stores of so many topics, the smallest first. They are not there yet."""
    return [Wide(room.folder / f"topics-{count}", count) for count in sorted(topics)]


def measure(room: Room, stores: Sequence[Wide]) -> list[Result]:
    """Make the stores and ask them."""
    closings = [fill(store) for store in stores]
    found: list[Figures] = [{"disk": kib_on_disk(store.path / "consumequeue")} for store in stores]
    for more in (beside_find(room, stores, closings), in_process(room, stores), through_mounts(room, stores)):
        for figures, these in zip(found, more, strict=True):
            figures.update(these)
    return list(verdicts(stores, found))


def fill(store: Wide) -> float:
    """Make it; how many seconds its close took."""
    opened = MessageStore.open(store.path, create=True)
    names = [topic_name(number) for number in range(store.topics)]
    opened.create_topics(dict.fromkeys(names, QUEUES))
    for number, name in enumerate(names):
        for queue in range(QUEUES):
            opened.put_batch([message(number, name)] * MESSAGES, queue)
    return seconds(opened.close)


def kib_on_disk(folder: Path) -> float:
    """Disk space of the files below a folder."""
    return int(subprocess.run(["du", "-sk", folder], check=True, capture_output=True, text=True).stdout.split()[0])


# mounting and closing


def beside_find(room: Room, stores: Sequence[Wide], closings: Sequence[float]) -> Iterator[Figures]:
    """In multiples of the time in which `find` has listed the consume queues, in a warm cache."""
    rounds = room.scale.rounds
    finds = in_turns([partial(find_seconds, store) for store in stores], rounds)
    mounts = in_turns([partial(mount_seconds, room, store) for store in stores], rounds)
    killed = in_turns([partial(mount_killed_seconds, room, store) for store in stores], rounds)
    for store, find, mount_s, killed_s, close_s in zip(stores, finds, mounts, killed, closings, strict=True):
        multiples = {"mount": mount_s / find, "killed": killed_s / find, "close": close_s / find}
        yield {**multiples, "memory": private_kib(room, store)}


def find_seconds(store: Wide) -> float:
    return seconds(lambda: run("sh", "-c", 'find "$0" | wc -l', store.path / "consumequeue"))


def mount_seconds(room: Room, store: Wide) -> float:
    began = time.perf_counter()
    with mount(room, store) as root:
        os.stat(root / store.topic())
        return time.perf_counter() - began


def mount_killed_seconds(room: Room, store: Wide) -> float:
    subprocess.run([sys.executable, "-c", KILLED, store.path, store.topic()], check=True)
    return mount_seconds(room, store)


def private_kib(room: Room, store: Wide) -> float:
    """Private memory of the daemon of a new mount."""
    with mount(room, store) as root:
        return 1024 * private_mib(serving(root))


def serving(root: Path) -> int:
    """The process that serves a mount, from its log: its status would ask for all queues."""
    found = re.findall(r"process (\d+) opens", root.with_name(f"{root.name}.log").read_text())
    return int(found[-1])


def mount(room: Room, store: Wide) -> contextlib.AbstractContextManager[Path]:
    return mounted(store.path, room.new_folder() / "wide")


def run(*command: str | Path) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"}, check=True)


# in this process


def in_process(room: Room, stores: Sequence[Wide]) -> Iterator[Figures]:
    """All stores open side by side."""
    config = StoreConfig(retention=KEPT_FOR_EVER)
    with contextlib.ExitStack() as resources:
        opened = [resources.enter_context(MessageStore.open(store.path, config)) for store in stores]
        rounds = [[publish(store, number) for store in opened] for number in range(room.scale.probes)]
        cleaned = in_turns([partial(seconds, store.clean) for store in opened], room.scale.rounds)
    for of_one, clean_s in zip(zip(*rounds, strict=True), cleaned, strict=True):
        medians = {name: statistics.median(figures[name] for figures in of_one) for name in of_one[0]}
        yield {**medians, "retention": 1e6 * clean_s}


def publish(store: MessageStore, number: int) -> Figures:
    """A new topic, and the first two messages of one of its queues."""
    topic = f"new-{number}"
    made = seconds(lambda: store.create_topic(topic, QUEUES))
    first, second = (seconds(lambda: store.put(message(number, topic), 0)) for _ in range(2))
    return {"create": 1e3 * made, "first": 1e3 * first, "second": 1e6 * second}


# through mounts


def through_mounts(room: Room, stores: Sequence[Wide]) -> Iterator[Figures]:
    """All stores mounted side by side. What is listed the first time has its mount for itself before it."""
    once, rounds, probes = 1, room.scale.rounds, room.scale.probes
    works: Mapping[str, tuple[float, int, Callable[[Wide, Path], object]]] = {
        "ls": (1e6, once, lambda _, root: run("ls", root)),
        "long": (1e6, once, lambda _, root: run("ls", "-l", root)),
        "again": (1e6, rounds, lambda _, root: run("ls", "-l", root)),
        "find": (1e6, once, lambda _, root: run("find", root, "-maxdepth", "2", "-not", "-path", "*/@*")),
        "status": (1e6, once, lambda _, root: run(MOUNTCTL, "status", "--json", root)),
        "topics": (1e6, once, lambda _, root: run(MOUNTCTL, "topics", root)),
        "cat": (1e3, probes, lambda store, root: (root / store.topic() / "0" / "0").read_bytes()),
        "key": (1e3, probes, look_up),
        "append": (1e3, probes, lambda store, root: append(root / store.topic() / "0" / "append")),
    }
    with contextlib.ExitStack() as resources:
        pairs = [(store, resources.enter_context(mount(room, store))) for store in stores]
        took = {
            name: [unit * one for one in in_turns([partial(seconds, partial(work, *pair)) for pair in pairs], times)]
            for name, (unit, times, work) in works.items()
        }
    for number in range(len(stores)):
        yield {name: of_each[number] for name, of_each in took.items()}


def look_up(store: Wide, root: Path) -> None:
    number = random.randrange(store.topics)
    os.readlink(root / topic_name(number) / "keys" / key(number))


# beside a C program


def peer_rows(store: Wide) -> tuple[Row, ...]:
    """Listings of the root, on both sides in a new mount each time."""
    peer, unit, limit = "C libfuse", "names/s", 0.5
    return (
        Row("width ls peer", "`ls` of the root, first time", peer, unit, limit, partial(listings, store, ("ls",), 1)),
        Row("width again peer", "`ls -l` of it, again", peer, unit, limit, partial(listings, store, ("ls", "-l"), 2)),
    )


def listings(store: Wide, command: tuple[str, ...], times: int, room: Room) -> Pairs:
    """Names a second of the last of so many listings of the root."""

    def listed(mounting: contextlib.AbstractContextManager[Path]) -> float:
        with mounting as root:
            *_, last = [seconds(lambda: run(*command, root)) for _ in range(times)]
            return NAMES * store.topics / last

    return interleave(
        lambda: listed(mount(room, store)), lambda: listed(room.wide_peer_mounted(store.path)), room.scale.rounds
    )


# beside RocketMQ


class Cycle(NamedTuple):
    """Seconds that parts of one life of a store took: its opening, the first message of NEW_QUEUES, its close."""

    open: float
    first: float
    close: float


Sides = tuple[list[Cycle], list[Cycle]]


def rocketmq_rows(store: Wide) -> tuple[Row, ...]:
    """A store's life on both sides, each with a copy of its own."""
    lives: Callable[[Room], Sides | LeftOutError] = cache(lambda room: lives_of(room, store))

    def row(name: str, work: str, took: Callable[[Cycle], float]) -> Row:
        def run(room: Room) -> Pairs:
            found = lives(room)
            if isinstance(found, LeftOutError):
                raise found
            ours, theirs = (tuple(map(took, side)) for side in found)
            return Pairs(ours, theirs)

        what = f"{work}, {store.topics:,} topics"
        return Row(f"width {name} {store.topics}", what, "RocketMQ", "s", 1, run, at_most=True, judged=False)

    return (
        row("open", "open the store", lambda cycle: cycle.open),
        row("news", f"first messages of {NEW_QUEUES} queues", lambda cycle: cycle.first),
        row("end", "close it then", lambda cycle: cycle.close),
    )


def lives_of(room: Room, store: Wide) -> Sides | LeftOutError:
    """What each side took, in turns."""
    ours, theirs = (room.new_folder() / "store" for _ in range(2))
    sides: Sides = [], []
    try:
        rocketmq = room.rocketmq()
        for copy in (ours, theirs):
            run("cp", "-a", "--sparse=always", store.path, copy)
        with MessageStore.open(ours) as opened:
            sizes = opened.sizes
        for number in range(room.scale.rounds):
            topic = f"life-{number}"  # `publish` has made other new topics
            sides[0].append(our_life(ours, topic))
            sides[1].append(their_life(rocketmq, theirs, sizes, topic))
    except LeftOutError as reason:
        return reason
    except RocketMQError as error:
        return LeftOutError(f"{error}".splitlines()[0])
    return sides


def our_life(store: Path, topic: str) -> Cycle:
    opened: list[MessageStore] = []
    open_s = seconds(lambda: opened.append(MessageStore.open(store)))
    opened[0].create_topic(topic, NEW_QUEUES)  # RocketMQ's store takes messages of any topic
    first_s = seconds(lambda: [opened[0].put(message(number, topic), number) for number in range(NEW_QUEUES)])
    return Cycle(open_s, first_s, seconds(opened[0].close))


def their_life(rocketmq: RocketMQ, store: Path, sizes: FileSizes, topic: str) -> Cycle:
    open_s = rocketmq.open(store, sizes)
    first_s = rocketmq.put(store, 0, NEW_QUEUES, topic=topic, queues=NEW_QUEUES).seconds
    return Cycle(open_s, first_s, rocketmq.close(store))


# verdicts


class Peer(NamedTuple):
    """What a figure is compared with: it may be `most` times this one."""

    name: str
    figure: float
    most: float


def verdicts(stores: Sequence[Wide], found: Sequence[Figures]) -> Iterator[Result]:
    """Those of the largest store; stores between it and the smallest are reported."""
    topics = [store.topics for store in stores]
    for figure in FIGURES:
        values = costs(figure, topics, [figures[figure.name] for figures in found])
        of_size = dict(zip(topics[len(topics) - len(values) :], values, strict=True))
        smallest = min(of_size)
        for size, value in of_size.items():
            is_judged = size == topics[-1] and of_size[smallest] > LEAST
            if figure.compared and size > smallest:
                beside = Peer(f"{smallest:,} topics", of_size[smallest], MOST_TIMES)
                yield verdict(figure, size, value, beside, is_judged=is_judged)
            if figure.limit is not None and size >= topics[min(1, len(topics) - 1)]:
                yield verdict(figure, size, value, Peer(BOUND, figure.limit, 1), is_judged=size == topics[-1])


def costs(figure: Figure, topics: Sequence[int], values: Sequence[float]) -> list[float]:
    """The figure at each size; of one with items, what one more item costs at each size but the smallest: so what a
    command takes to begin does not count."""
    if not figure.items or len(topics) < 2:
        return [value / (figure.items * topics[0] or 1) for value in values]
    return [
        max((value - values[0]) / (figure.items * (count - topics[0])), LEAST)
        for count, value in zip(topics[1:], values[1:], strict=True)
    ]


def verdict(figure: Figure, topics: int, found: float, beside: Peer, *, is_judged: bool) -> Result:
    name = f"width {figure.name}{'' if is_judged else f' {topics}'}"
    return Result(
        id=f"{name} limit" if beside.name == BOUND else name,
        work=f"{figure.work}, {topics:,} topics",
        against=beside.name,
        unit=figure.unit,
        ours=found,
        peer=beside.figure,
        ratio=found / beside.figure,
        target=beside.most,
        ok=found <= beside.most * beside.figure if is_judged else None,
        at_most=True,
    )

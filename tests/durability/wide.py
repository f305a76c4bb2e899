"""A wide store, topics by the thousand: each drill that a narrow one goes through.

    python -m tests.durability.wide [--topics 20000] [--kills 20] [--images 3] [--only NAME...] [--seed 1]

One store of so many topics, of QUEUES queues with MESSAGES messages each, goes through the drills in their order: it is
mounted and asked by every kind of verb, followed, killed under publishers, copied, damaged and repaired. Two more
stores have small files: one is cut from its power, one is on a disk that is full while 1,000 queues get their first
message. Each acknowledged message has to be there, and each of the others as it was. LIMITS_S are for a quiet machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from errno import ENOSPC
from functools import partial
from pathlib import Path

import duckdb

from engine import Message, MessageStore, check_store
from engine.derived.consume_queues import MANY_FILES
from engine.files.disk import Disk
from tests.durability.bodies import body_of, identify
from tests.durability.figures import keep
from tests.durability.fulldisk import SmallDisk, small_disk
from tests.durability.kills import collected
from tests.durability.ledger import Contents, Ledger, Queue, Request
from tests.durability.powerloss import SIZES as SMALL_SIZES
from tests.durability.powerloss import Inspection, NoDisk, Sent, Tally, reopened
from tests.durability.powerloss import Ledger as Promises
from tests.durability.publishers import Publisher, write_file
from tests.durability.recorder import Recorder, build_image
from tests.interop.mounts import MOUNTCTL
from tests.mount.harness import Mounted, mounted, until

QUEUES, MESSAGES = 4, 3
PUBLISHED_TO = 200
"""Topics to which the publishers of a kill publish."""
LOOKED_AT = 100
PUBLISHERS = 3
BODY_BYTES = 60
FILLED_QUEUES = 1_000
IDLE_S = 2.0
MOST_IDLE = 0.05
"""Of a core, while a `tail -f` waits."""
DAMAGED_QUEUES = 20
FILES_A_TOPIC = 4
"""Of the store that is cut from its power: two folders, a queue's file, and what is published to it later."""
VERB_LIMIT_S = 3_600
LIMITS_S = {"duckdb": 1.0, "follow": 3.0}
"""The text of an idle topic shows news after a second or two (semantics 2.11), and `tail` looks each second."""


@dataclass
class Wide:
    """The store, and what it has to hold."""

    folder: Path
    topics: int
    kills: int = 20
    images: int = 3
    seed: int = 1
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def some(self, count: int) -> list[int]:
        """Numbers of some of its topics."""
        return random.Random(self.seed).sample(range(self.topics), min(count, self.topics))

    def fill(self) -> None:
        """Make it."""
        with MessageStore.open(self.store, create=True) as store:
            store.create_topics({name_of(number): QUEUES for number in range(self.topics)})
            for number in range(self.topics):
                for queue in range(QUEUES):
                    store.put_batch([Message(name_of(number), body) for body in first_bodies(number, queue)], queue)


def name_of(number: int) -> str:
    return f"topic-{number:06d}"


def first_numbers(topic: int, queue: int) -> list[int]:
    first = (topic * QUEUES + queue) * MESSAGES
    return list(range(first, first + MESSAGES))


def first_bodies(topic: int, queue: int) -> list[bytes]:
    """What the store is made with: messages of writer 0."""
    return [body_of(0, number, BODY_BYTES) for number in first_numbers(topic, queue)]


def verb(*arguments: str | Path) -> str:
    """What a verb printed. AssertionError: it failed."""
    done = subprocess.run(
        [MOUNTCTL, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=VERB_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"mountctl {arguments[0]}: {done.returncode}, {done.stderr[-300:]}{done.stdout[-300:]}"
    return done.stdout


def differing(store: Path, topics: list[int]) -> list[str]:
    """Which of these topics do not hold the messages that they were made with."""
    with MessageStore.open(store) as opened:
        return [
            f"{name_of(topic)}/{queue} differs"
            for topic in topics
            for queue in range(QUEUES)
            if [bytes(opened.get(name_of(topic), queue, number).body) for number in range(MESSAGES)]
            != first_bodies(topic, queue)
        ]


# a mount, asked by every verb


def verbs(wide: Wide) -> Iterator[str]:
    """status, topics, sql and grep through a mount. Each takes about as long as the store is wide; none takes a
    daemon for dead."""
    topic, whole = name_of(wide.some(1)[0]), QUEUES * MESSAGES
    with mounted(wide.folder, store=wide.store, config={}) as mount:
        expected = {
            ("status", mount.root): f"{wide.topics:,} topics",
            ("topics", mount.root): topic,
            ("sql", mount.root, f'select count(*) as found from "{topic}"', "--csv"): f"{whole}",
            ("grep", mount.root, "-c", "0", topic): f"{whole}",
        }
        for arguments, part in expected.items():
            began = time.monotonic()
            printed = verb(*arguments)
            wide.figures[f"{arguments[0]}_s"] = round(time.monotonic() - began, 2)
            if part not in printed:
                yield f"{arguments[0]} prints no {part!r}"


def duck(wide: Wide) -> Iterator[str]:
    """One topic's Parquet files, read by DuckDB."""
    topic = name_of(wide.some(1)[0])
    with mounted(wide.folder, store=wide.store, config={}) as mount, duckdb.connect() as connection:
        began = time.monotonic()
        pattern = f"{mount.root}/@parquet/topic={topic}/*/*.parquet"
        (found,) = connection.sql(f"select count(*), count(distinct body) from read_parquet('{pattern}')").fetchall()
        wide.figures["duckdb_s"] = round(time.monotonic() - began, 2)
        if found != (QUEUES * MESSAGES,) * 2:
            yield f"DuckDB finds {found}"


def follow(wide: Wide) -> Iterator[str]:
    """`tail -f` of one topic's stream: sees a message, and costs an idle daemon nothing."""
    topic = name_of(wide.some(1)[0])
    with (
        mounted(wide.folder, store=wide.store, config={}) as mount,
        subprocess.Popen(["tail", "-n", "+1", "-f", mount.root / f"{topic}.log"], stdout=subprocess.PIPE) as tail,
    ):
        assert tail.stdout is not None
        lines = [tail.stdout.readline() for _ in range(QUEUES * MESSAGES)]
        began, spent = time.monotonic(), cpu_seconds(mount)
        time.sleep(IDLE_S)
        idle = (cpu_seconds(mount) - spent) / (time.monotonic() - began)
        began = time.monotonic()
        write_file(mount.root / topic / "append", b"new\n")
        lines.append(tail.stdout.readline())
        wide.figures |= {"idle_daemon": round(idle, 3), "follow_s": round(time.monotonic() - began, 2)}
        tail.terminate()
    bodies = {body for queue in range(QUEUES) for body in first_bodies(wide.some(1)[0], queue)}
    if {line[:-1] for line in lines} != bodies | {b"new"}:
        yield f"tail -f shows {lines}"
    if idle > MOST_IDLE:
        yield f"an idle daemon takes {idle:.0%} of a core"


def cpu_seconds(mount: Mounted) -> float:
    """The processor time of a mount's daemon."""
    fields = Path(f"/proc/{mount.daemon.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# kills


class Spread(Publisher):
    """Lines to any of some topics."""

    def __init__(self, writer: int, seed: int, topics: list[str]) -> None:
        super().__init__(writer, seed, 1 << 20)
        self._topics = topics

    def publish(self, root: Path) -> None:
        topic, count = self._random.choice(self._topics), self.count(6)
        text = b"".join(self.message(300) + b"\n" for _ in range(count))
        self.send(Request(topic, self.numbers(count)), partial(write_file, root / topic / "append", text))


def kills(wide: Wide) -> Iterator[str]:
    """`kill -9` under publishers, again and again."""
    numbers, ledger = wide.some(PUBLISHED_TO + LOOKED_AT), Ledger()
    topics = [name_of(number) for number in numbers]
    publishers = [Spread(one, wide.seed * 10 + one, topics[:PUBLISHED_TO]) for one in range(1, PUBLISHERS + 1)]
    chance = random.Random(wide.seed)
    new = [
        Request(name_of(one), [(0, x) for queue in range(QUEUES) for x in first_numbers(one, queue)]) for one in numbers
    ]
    in_flight: list[Request] = []
    for _ in range(wide.kills):
        with mounted(wide.folder, store=wide.store, config={}) as mount:
            yield from ledger.settle(new, in_flight, contents(mount.root, topics))
            for publisher in publishers:
                publisher.start(mount.root)
            time.sleep(0.1 + chance.random())
            mount.kill()
        for publisher in publishers:
            publisher.join()
            yield from publisher.complaints
        new, in_flight = collected(list(publishers))
    with mounted(wide.folder, store=wide.store, config={}) as mount:
        yield from ledger.settle(new, in_flight, contents(mount.root, topics))
    wide.figures |= {"kills": wide.kills, "acknowledged": ledger.tally.acknowledged, "lost": ledger.tally.lost}


def contents(root: Path, topics: list[str]) -> dict[Queue, Contents]:
    """What each queue of these topics holds, but for what another drill published."""
    found = {}
    for topic, queue in itertools.product(topics, range(QUEUES)):
        lines = (root / topic / f"{queue}.log").read_bytes().splitlines()
        found[topic, queue] = Contents(0, [identify(line) for line in lines if line != b"new"])
    return found


# check, backup, repair


def check(wide: Wide) -> Iterator[str]:
    """The store as the kills left it."""
    if (printed := verb("check", wide.store)).count("\n") > 2 or "no findings" not in printed:
        yield printed[:300]


def backup(wide: Wide) -> Iterator[str]:
    """A copy, and once more after a message."""
    copy = wide.folder / "copy"
    for turn in ("first", "again"):
        began = time.monotonic()
        verb("backup", wide.store, copy)
        wide.figures[f"backup_{turn}_s"] = round(time.monotonic() - began, 2)
        verb("put", wide.store, name_of(wide.some(1)[0]), f"after the {turn} backup")
    yield from differing(copy, wide.some(LOOKED_AT))
    shutil.rmtree(copy)


def repair(wide: Wide) -> Iterator[str]:
    """Some queues damaged, some lost, and no index: all is derived again from the log."""
    chosen, queues = wide.some(DAMAGED_QUEUES), wide.store / "consumequeue"
    for number in chosen[::2]:
        (file,) = (queues / name_of(number) / "0").iterdir()
        with file.open("r+b") as opened:
            opened.write(random.Random(number).randbytes(20 * MESSAGES))
    for number in chosen[1::2]:
        shutil.rmtree(queues / name_of(number))
    shutil.rmtree(wide.store / "index")
    verb("check", "--repair", wide.store)
    yield from check(wide)
    yield from differing(wide.store, [*chosen, *wide.some(DAMAGED_QUEUES + LOOKED_AT)])


# power cuts


class RarelyLooking(Recorder):
    """Looks where something is synced. A look goes through the whole store: there is none at each new file."""

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        Disk.allocate(self, descriptor, path, start, size_bytes)


def power_cuts(wide: Wide) -> Iterator[str]:
    """Images of the disk, some time after the store was opened again. All files are open meanwhile, and an image is
    opened beside them: the store has as many topics as half of the descriptors allow."""
    path, promises, tally = wide.folder / "cut", Promises(), Tally()
    chance = random.Random(wide.seed)
    count = min(wide.topics, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // (2 * FILES_A_TOPIC))
    topics = ["orders", *(name_of(number) for number in range(1, count))]
    with MessageStore.open(path, reopened(NoDisk()), create=True) as store:
        store.create_topics(dict.fromkeys(topics, QUEUES))
        for number, topic in enumerate(topics):
            published(store, promises, topic, number % QUEUES)
        promises.promised(durable_end=store.physical_end, topics=frozenset(topics))
    with closing(RarelyLooking(path, lambda: promises.promise)) as recorder:
        with MessageStore.open(path, reopened(recorder)) as store:
            for of_all in (False, True):
                for _ in range(2 * MANY_FILES):
                    published(store, promises, chance.choice(topics), chance.randrange(QUEUES))
                recorder.note("after some messages")
                end = store.physical_end
                store.flush() if of_all else store.wait_durable(end)
                promises.promised(durable_end=end)
        for number in range(wide.images):
            moment, image = chance.choice(recorder.moments), wide.folder / "image"
            build_image(moment, chance, image)
            yield from Inspection(image, moment, promises, tally, random.Random(number)).run(NoDisk())
            shutil.rmtree(image)
    wide.figures |= {
        "topics cut": count,
        "images": wide.images,
        "required": tally.acknowledged_messages_required,
        "lost in a cut": tally.lost,
    }
    shutil.rmtree(path)


def published(store: MessageStore, promises: Promises, topic: str, queue: int) -> None:
    """Put a message, and note it."""
    number = len(promises.sent)
    body = body_of(0, number, BODY_BYTES)
    put = store.put(Message(topic, body, [f"K{number}"]), queue)
    end = put.physical_offset + put.store_size
    promises.sent[topic, queue, put.queue_offset] = Sent(body, put.physical_offset, end, (f"K{number}",))


# a full disk


def full_disk(wide: Wide) -> Iterator[str]:
    """1,000 queues get their first message at once, and there is room for some of them."""
    topics, sizes = FILLED_QUEUES // QUEUES, asdict(SMALL_SIZES)
    queues = [(name_of(number), queue) for number in range(topics) for queue in range(QUEUES)]
    with small_disk(wide.folder) as disk:
        store = disk.folder / "store"
        with mounted(wide.folder, store=store, config={"sizes": sizes}) as mount:
            asked = {"create_topics": {name_of(number): QUEUES for number in range(topics)}}
            (mount.root / "@store" / "control").write_text(json.dumps(asked))
            yield from filled(wide, mount, disk, queues)
        yield from map(str, check_store(store))


def filled(wide: Wide, mount: Mounted, disk: SmallDisk, queues: list[Queue]) -> Iterator[str]:
    disk.fill()
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(partial(first_message, mount.root), queues))
    refused = [queue for queue, answer in zip(queues, answers, strict=True) if answer]
    wide.figures |= {"first_messages_refused": len(refused), "first_messages_taken": len(queues) - len(refused)}
    if not 0 < len(refused) < len(queues) or set(answers) > {0, ENOSPC}:
        yield f"{len(refused)} of {len(queues)} first messages were refused, with {set(answers)}"
    yield from unlike(mount.root, set(queues) - set(refused), refused)
    disk.free()
    until("the store takes messages again", lambda: first_message(mount.root, refused[0]) == 0)
    yield from (f"{queue} is still refused" for queue in refused[1:] if first_message(mount.root, queue))
    yield from unlike(mount.root, set(queues), [])


def first_message(root: Path, queue: Queue) -> int:
    """Publish it; the errno, 0 if it was taken."""
    try:
        write_file(root / queue[0] / str(queue[1]) / "append@frame=write", f"first of {queue}".encode())
    except OSError as error:
        return error.errno or -1
    return 0


def unlike(root: Path, taken: set[Queue], refused: list[Queue]) -> Iterator[str]:
    """Queues that do not hold just what was acknowledged."""
    for queue in (*taken, *refused):
        expected = [f"first of {queue}".encode()] if queue in taken else []
        found = (root / queue[0] / f"{queue[1]}.log").read_bytes().splitlines()
        if found != expected:
            yield f"{queue} holds {found}, not {expected}"


DRILLS: dict[str, Callable[[Wide], Iterator[str]]] = {
    "verbs": verbs,
    "duckdb": duck,
    "follow": follow,
    "kills": kills,
    "check": check,
    "backup": backup,
    "repair": repair,
    "power cuts": power_cuts,
    "full disk": full_disk,
}


def drill(wide: Wide, tell: Callable[[str], None] = lambda line: None, only: tuple[str, ...] = ()) -> list[str]:
    """Make the store and go through the drills; what is wrong."""
    wide.fill()
    wrong = []
    for name, work in DRILLS.items():
        if only and name not in only:
            continue
        began = time.monotonic()
        try:
            found = [f"{name}: {text}" for text in work(wide)]
        except Exception as error:  # the other drills are to be tried
            found = [f"{name}: {type(error).__name__}: {error}"]
        wrong += found
        tell(f"{name:<12} {time.monotonic() - began:7.1f} s  {'; '.join(found)[:500] or 'well'}")
    return wrong


def main() -> int:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], choices=DRILLS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wide-") as folder:
        wide = Wide(Path(folder), chosen.topics, chosen.kills, chosen.images, chosen.seed)
        wrong = drill(wide, partial(print, flush=True), tuple(chosen.only))
    seconds = {name: wide.figures.get(f"{name}_s", 0.0) for name in LIMITS_S}
    slow = [f"{name} took {took} s" for name, took in seconds.items() if took > LIMITS_S[name]]
    keep("wide", {"topics": wide.topics, **wide.figures, "findings": wrong + slow})
    return 1 if wrong or slow else 0


if __name__ == "__main__":
    sys.exit(main())

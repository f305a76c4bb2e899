"""Reading through the mount, beside a C program that does no more than it must (rows 8 to 12, and 14)."""

import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tests.bench.measure import Pairs, Turn, interleave, rate
from tests.bench.room import Room
from tests.bench.rows import POLLING, Row, busy, polling
from tests.bench.workload import BODY_BYTES, key, make_store, make_stream_store, random_numbers

MIB = 1 << 20


def listed_store(room: Room) -> Path:
    return room.store("listed", lambda path: make_store(path, room.scale.listed))


Measure = Callable[[Path, int], Turn]
"""Called with the folder of queue 0 and the process that serves it."""


def after_remount(room: Room, measure: Measure, *peer_options: str) -> Pairs:
    """`measure` on both sides, in a new mount each time."""
    return remounted(room, listed_store(room), measure, *peer_options)


def remounted(room: Room, store: Path, measure: Measure, *peer_options: str, our_options: Sequence[str] = ()) -> Pairs:
    def side(mount: AbstractContextManager[Path]) -> Turn:
        with mount as queue:
            return measure(queue, room.server(queue))

    return interleave(
        lambda: side(room.mounted(store, *our_options)),
        lambda: side(room.peer_mounted(store, *peer_options)),
        room.scale.rounds,
    )


def cold_files(room: Room, *peer_options: str) -> Pairs:
    count, client = room.scale.opened, room.client()

    def measure(queue: Path, server: int) -> Turn:
        return client.open(queue, count, BODY_BYTES, server=server).rate(count)

    return after_remount(room, measure, *peer_options)


def warm_files(room: Room, *peer_options: str, our_options: Sequence[str] = ()) -> Pairs:
    count, client = room.scale.opened, room.client()

    def measure(queue: Path, server: int) -> Turn:
        return client.reopen(queue, count, BODY_BYTES, server=server).rate(count)

    return remounted(room, listed_store(room), measure, *peer_options, our_options=our_options)


def read_only(room: Room) -> Pairs:
    return warm_files(room, our_options=("--read-only",))


def names(room: Room) -> Pairs:
    count, client = room.scale.listed, room.client()
    return after_remount(room, lambda queue, server: client.names(queue, count, server=server).rate(count))


def long_listing(room: Room) -> Pairs:
    count = room.scale.listed
    return after_remount(room, lambda queue, server: rate(count, lambda: list_long(queue), server))


def list_long(queue: Path) -> None:
    subprocess.run(["ls", "-l", queue], stdout=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"}, check=True)


def streamed(room: Room) -> Pairs:
    size, client = room.scale.streamed * (BODY_BYTES + 1), room.client()
    store = room.store("streamed", lambda path: make_stream_store(path, room.scale.streamed))

    def measure(queue: Path, server: int) -> Turn:
        return client.stream(Path(f"{queue}.log"), size, server=server).rate(size / MIB)

    return remounted(room, store, measure)


def links(room: Room, *peer_options: str) -> Pairs:
    numbers, client = random_numbers(room.scale.links, room.scale.listed, seed=14), room.client()
    ends = [(key(number), f"{number:020d}") for number in numbers]

    def measure(queue: Path, server: int) -> Turn:
        return client.readlink(queue.parent / "keys", ends, server=server).rate(len(ends))

    return after_remount(room, measure, *peer_options)


C = "C libfuse"

ROWS = (
    Row("8", "mount: cold open + read + close of messages", C, "files/s", 1.5, cold_files),
    Row("8 polling", "the same", POLLING, "files/s", 0.6, polling(cold_files), judged=False),
    Row("8 busy", "the same, other work on every core", C, "files/s", 0.8, busy(cold_files), by_cpu=True),
    Row("9", "mount: row 8, warm", C, "files/s", 1.3, warm_files),
    Row("9 polling", "the same", POLLING, "files/s", 0.6, polling(warm_files), judged=False),
    Row("9 read-only", "the same, our mount made with `--read-only`", C, "files/s", 20, read_only),
    Row("10", "mount: names of a queue", C, "names/s", 0.7, names),
    Row("11", "mount: `ls -l` of a queue", C, "files/s", 0.7, long_listing),
    Row("12", "mount: stream a cold `.log`", C, "MiB/s", 0.9, streamed, by_cpu=True),
    Row("14", "mount: `readlink keys/K`", C, "links/s", 0.5, links),
    Row("14 polling", "the same", POLLING, "links/s", 0.6, polling(links), judged=False),
)

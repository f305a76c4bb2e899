"""Reading through the mount, beside a C program that does no more than it must (rows 8 to 12, and 14)."""

import mmap
import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.bench.measure import Pairs, interleave, rate, seconds
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.bench.workload import BODY_BYTES, key, make_store, make_stream_store, random_numbers

READ_BYTES = 4_096
STREAM_READ_BYTES = 1 << 20
MIB = 1 << 20


def listed_store(room: Room) -> Path:
    return room.store("listed", lambda path: make_store(path, room.scale.listed))


def after_remount(room: Room, measure: Callable[[Path], float]) -> Pairs:
    """`measure`(folder of queue 0) on both sides, in a new mount each time."""
    return remounted(room, listed_store(room), measure)


def remounted(room: Room, store: Path, measure: Callable[[Path], float]) -> Pairs:
    def side(mount: Callable[[Path], AbstractContextManager[Path]]) -> float:
        with mount(store) as queue:
            return measure(queue)

    return interleave(lambda: side(room.mounted), lambda: side(room.peer_mounted), room.scale.rounds)


def cold_files(room: Room) -> Pairs:
    count = room.scale.opened
    return after_remount(room, lambda queue: rate(count, lambda: read_files(queue, count)))


def warm_files(room: Room) -> Pairs:
    count = room.scale.opened

    def measure(queue: Path) -> float:
        read_files(queue, count)
        return rate(count, lambda: read_files(queue, count))

    return after_remount(room, measure)


def read_files(queue: Path, count: int) -> None:
    """Open, read and close message after message."""
    folder = str(queue)
    for number in range(count):
        descriptor = os.open(f"{folder}/{number:020d}", os.O_RDONLY)
        read = os.read(descriptor, READ_BYTES)
        os.close(descriptor)
        assert len(read) == BODY_BYTES


def names(room: Room) -> Pairs:
    count = room.scale.listed
    return after_remount(room, lambda queue: rate(count, lambda: count_names(queue, count)))


def count_names(queue: Path, count: int) -> None:
    found = 0
    with os.scandir(queue) as entries:
        for _ in entries:
            found += 1
    assert found >= count, found


def long_listing(room: Room) -> Pairs:
    count = room.scale.listed
    return after_remount(room, lambda queue: rate(count, lambda: list_long(queue)))


def list_long(queue: Path) -> None:
    subprocess.run(["ls", "-l", queue], stdout=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"}, check=True)


def streamed(room: Room) -> Pairs:
    size = room.scale.streamed * (BODY_BYTES + 1)
    store = room.store("streamed", lambda path: make_stream_store(path, room.scale.streamed))
    return remounted(room, store, lambda queue: size / MIB / seconds(lambda: read_stream(queue, size)))


def read_stream(queue: Path, size: int) -> None:
    descriptor = os.open(f"{queue}.log", os.O_RDONLY)
    buffer = mmap.mmap(-1, STREAM_READ_BYTES)  # at a page's beginning, as cat's is: else a read is two requests
    total = 0
    while got := os.readv(descriptor, [buffer]):
        total += got
    os.close(descriptor)
    assert total == size, total


def links(room: Room) -> Pairs:
    numbers = random_numbers(room.scale.links, room.scale.listed, seed=14)

    def read_links(queue: Path) -> None:
        keys = f"{queue.parent}/keys/"
        for number in numbers:
            assert os.readlink(keys + key(number)).endswith(f"{number:020d}")

    return after_remount(room, lambda queue: rate(len(numbers), lambda: read_links(queue)))


C = "C libfuse"

ROWS = (
    Row("8", "mount: cold open + read + close of messages", C, "files/s", 0.9, cold_files),
    Row("9", "mount: the same, warm", C, "files/s", 0.7, warm_files),
    Row("10", "mount: names of a queue", C, "names/s", 0.7, names),
    Row("11", "mount: `ls -l` of a queue", C, "files/s", 0.7, long_listing),
    Row("12", "mount: stream a cold `.log`", C, "MiB/s", 0.7, streamed),
    Row("14", "mount: `readlink keys/K`", C, "links/s", 0.5, links),
)

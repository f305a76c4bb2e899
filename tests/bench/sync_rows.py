"""Publishing that returns when the bytes are on disk, through the mount (rows 6 and 7)."""

import contextlib
import os
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.bench.measure import Pairs, interleave, rate, seconds
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.bench.workload import body, make_store

WRITERS = 64
STORED = 1_000
PREALLOCATED_BYTES = 16 << 20
LEAST_SYNC_MS = 1.0
"""A disk that syncs faster than this does not sync: then the row says nothing about group commit."""


def one_writer(room: Room) -> Pairs:
    """write(2) in a sync-flush mount, and pwrite + fdatasync into a preallocated file of the same disk."""
    count = room.scale.synced_writes
    with preallocated(room) as descriptor, room.mounted(synced_store(room), "--sync-flush") as queue:
        pairs = interleave(
            lambda: rate(count, lambda: write_lines(queue / "append", count)),
            lambda: rate(count, lambda: write_and_sync(descriptor, count)),
            room.scale.rounds,
        )
    return judged(pairs, sync_ms=1_000 / statistics.median(pairs.peer))


@contextlib.contextmanager
def preallocated(room: Room) -> Iterator[int]:
    """A descriptor of a new file that has its blocks already."""
    descriptor = os.open(room.new_folder() / "preallocated", os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, PREALLOCATED_BYTES)
        os.fsync(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def many_writers(room: Room) -> Pairs:
    """64 writers beside one, in the same mount."""
    count = room.scale.synced_writes
    with preallocated(room) as descriptor:
        sync_ms = 1_000 * seconds(lambda: write_and_sync(descriptor, count)) / count
    with room.mounted(synced_store(room), "--sync-flush") as queue:
        pairs = interleave(
            lambda: rate(WRITERS * count, lambda: write_lines_at_once(queue / "append", count)),
            lambda: rate(count, lambda: write_lines(queue / "append", count)),
            room.scale.rounds,
        )
    return judged(pairs, sync_ms)


def synced_store(room: Room) -> Path:
    return room.store("synced", lambda path: make_store(path, STORED))


def judged(pairs: Pairs, sync_ms: float) -> Pairs:
    counts = sync_ms >= LEAST_SYNC_MS
    note = f"pwrite + fdatasync takes {sync_ms:.1f} ms here" + ("" if counts else ": too fast to judge by")
    return Pairs(pairs.ours, pairs.peer, note, counts)


def write_lines(append: Path, count: int) -> None:
    line = body(0) + b"\n"
    descriptor = os.open(append, os.O_WRONLY)
    try:
        for _ in range(count):
            os.write(descriptor, line)
    finally:
        os.close(descriptor)


def write_lines_at_once(append: Path, count: int) -> None:
    writers = [threading.Thread(target=write_lines, args=(append, count)) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()


def write_and_sync(descriptor: int, count: int) -> None:
    line = body(0) + b"\n"
    for number in range(count):
        os.pwrite(descriptor, line, number * len(line) % (PREALLOCATED_BYTES - len(line)))
        os.fdatasync(descriptor)


ROWS = (
    Row("6", "mount, sync flush: 1 writer", "pwrite + fdatasync", "messages/s", 0.8, one_writer),
    Row("7", "mount, sync flush: 64 writers", "the same, 1 writer", "messages/s", 15.0, many_writers),
)

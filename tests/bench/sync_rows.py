"""Publishing that returns when the bytes are on disk, through the mount (rows 6 and 7)."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.bench.measure import LeftOutError, Pairs, interleave
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.bench.slow_disk import slow_disk
from tests.bench.workload import body, make_store

WRITERS = 64
STORED = 1_000
PREALLOCATED_BYTES = 16 << 20
LEAST_SYNC_MS = 1.0
"""A disk that syncs faster than this does not sync: then the row says nothing about group commit."""
LINE = body(0) + b"\n"


def one_writer(room: Room) -> Pairs:
    """write(2) in a sync-flush mount, and pwrite + fdatasync into a preallocated file of the same disk."""
    count, client = room.scale.synced_writes, room.client()
    with synced_mount(room) as (queue, preallocated):
        sync_ms = sync_milliseconds(room, preallocated)
        pairs = interleave(
            lambda: client.write(queue / "append", LINE, count).rate(count),
            lambda: client.sync(preallocated, LINE, count).rate(count),
            room.scale.rounds,
        )
    return counted(pairs, sync_ms)


def many_writers(room: Room) -> Pairs:
    """64 writers beside one, in the same mount."""
    count, client = room.scale.synced_writes, room.client()
    with synced_mount(room) as (queue, preallocated):
        sync_ms = sync_milliseconds(room, preallocated)
        pairs = interleave(
            lambda: client.write(queue / "append", LINE, count, WRITERS).rate(WRITERS * count),
            lambda: client.write(queue / "append", LINE, count).rate(count),
            room.scale.rounds,
        )
    return counted(pairs, sync_ms)


@contextlib.contextmanager
def synced_mount(room: Room) -> Iterator[tuple[Path, Path]]:
    """The folder of queue 0 of a sync-flush mount, and a file of the same disk that has its blocks already."""
    with disk(room) as folder:
        make_store(folder / "store", STORED)
        preallocated = folder / "preallocated"
        with preallocated.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, PREALLOCATED_BYTES)
            os.fsync(file.fileno())
        with room.mounted(folder / "store", "--sync-flush") as queue:
            yield queue, preallocated


@contextlib.contextmanager
def disk(room: Room) -> Iterator[Path]:
    """A folder on a disk whose sync takes its time; where there can't be one, on the room's own disk."""
    with contextlib.ExitStack() as resources:
        try:
            folder = resources.enter_context(slow_disk(room))
        except LeftOutError:
            folder = room.new_folder()
        yield folder


def sync_milliseconds(room: Room, preallocated: Path) -> float:
    """How long pwrite + fdatasync takes there."""
    count = room.scale.synced_writes
    return 1_000 * room.client().sync(preallocated, LINE, count).seconds / count


def counted(pairs: Pairs, sync_ms: float) -> Pairs:
    counts = sync_ms >= LEAST_SYNC_MS
    note = f"pwrite + fdatasync takes {sync_ms:.1f} ms here" + ("" if counts else ": too fast to judge by")
    return replace(pairs, note=note, counts=counts)


ROWS = (
    Row("6", "mount, sync flush: 1 writer", "pwrite + fdatasync", "messages/s", 0.8, one_writer),
    Row("7", "mount, sync flush: 64 writers", "the same, 1 writer", "messages/s", 15.0, many_writers),
)

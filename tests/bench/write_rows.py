"""Publishing through the mount (rows 4 and 5)."""

import os
import sqlite3
import subprocess
from pathlib import Path

from tests.bench.measure import Pairs, interleave, rate
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.bench.workload import BODY_BYTES, TAG, body, lines, make_store

BIG_LOG_LINE_BYTES = 200
SMALL_STORE = 1_000


def single_writes(room: Room) -> Pairs:
    """A line a write(2); the peer's handler takes the bytes and forgets them."""
    store = room.store("written", lambda path: make_store(path, SMALL_STORE))
    peer_store = room.store("unwritten", lambda path: make_store(path, SMALL_STORE))
    count = room.scale.writes
    with room.mounted(store) as ours, room.peer_mounted(peer_store) as theirs:
        return interleave(
            lambda: rate(count, lambda: write_singly(ours / f"append@tags={TAG}", count)),
            lambda: rate(count, lambda: write_singly(theirs / "append", count)),
            room.scale.rounds,
        )


def write_singly(append: Path, count: int) -> None:
    line = body(0)[:BODY_BYTES] + b"\n"
    write = os.write
    descriptor = os.open(append, os.O_WRONLY)
    try:
        for _ in range(count):
            write(descriptor, line)
    finally:
        os.close(descriptor)


def big_log(room: Room) -> Pairs:
    """`cat big.log >> append`, and SQLite's executemany over the same file's lines."""
    count, folder = room.scale.big_log_lines, room.new_folder()
    file = folder / "big.log"
    file.write_bytes(lines(count, BIG_LOG_LINE_BYTES))
    store = room.store("written", lambda path: make_store(path, SMALL_STORE))
    database = sqlite3.connect(folder / "lines.db")
    database.execute("pragma journal_mode = wal")
    database.execute("pragma synchronous = normal")
    database.execute("create table lines (number integer primary key, line blob)")
    with room.mounted(store) as queue:
        pairs = interleave(
            lambda: rate(count, lambda: cat(file, queue / "append")),
            lambda: rate(count, lambda: insert(database, file)),
            room.scale.rounds,
        )
    database.close()
    return pairs


def cat(file: Path, append: Path) -> None:
    with append.open("ab", buffering=0) as output:
        subprocess.run(["cat", file], stdout=output, check=True)


def insert(database: sqlite3.Connection, file: Path) -> None:
    with database, file.open("rb") as read:
        database.executemany("insert into lines (line) values (?)", ((line,) for line in read))


ROWS = (
    Row("4", "mount: one write(2), one message", "C libfuse, no-op write", "messages/s", 0.6, single_writes),
    Row("5", "mount: `cat big.log >> append`, 200-byte lines", "SQLite executemany", "lines/s", 5.0, big_log),
)

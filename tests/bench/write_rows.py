"""Publishing through the mount (rows 4 and 5)."""

import sqlite3
import subprocess
from pathlib import Path

from tests.bench.measure import Pairs, interleave, rate
from tests.bench.room import Room
from tests.bench.rows import POLLING, Row, busy, polling
from tests.bench.workload import TAG, body, lines, make_store

BIG_LOG_LINE_BYTES = 200
SMALL_STORE = 1_000


def single_writes(room: Room, *peer_options: str) -> Pairs:
    """A line a write(2); the peer's handler takes the bytes and forgets them."""
    store = room.store("written", lambda path: make_store(path, SMALL_STORE))
    peer_store = room.store("unwritten", lambda path: make_store(path, SMALL_STORE))
    count, client, line = room.scale.writes, room.client(), body(0) + b"\n"
    with room.mounted(store) as ours, room.peer_mounted(peer_store, *peer_options) as theirs:
        our_server, their_server = room.server(ours), room.server(theirs)
        return interleave(
            lambda: client.write(ours / f"append@tags={TAG}", line, count, server=our_server).rate(count),
            lambda: client.write(theirs / "append", line, count, server=their_server).rate(count),
            room.scale.rounds,
        )


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
        server = room.server(queue)
        pairs = interleave(
            lambda: rate(count, lambda: cat(file, queue / "append"), server),
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


NO_OP = "C libfuse, no-op write"

ROWS = (
    Row("4", "mount: one write(2), one message", NO_OP, "messages/s", 1.0, single_writes),
    Row("4 polling", "the same", f"{POLLING}, no-op write", "messages/s", 0.6, polling(single_writes), judged=False),
    Row("4 busy", "the same, other work on every core", NO_OP, "messages/s", 0.8, busy(single_writes), by_cpu=True),
    Row("5", "mount: `cat big.log >> append`, 200-byte lines", "SQLite executemany", "lines/s", 5.0, big_log),
)

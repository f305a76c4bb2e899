"""The engine without a mount: puts, batches, queries, sequential reads (rows 1, 2, 3, 13, 15)."""

import contextlib
import itertools
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import numpy as np

from engine import MessageStore, StoreConfig
from tests.bench.measure import Pairs, interleave, rate
from tests.bench.rocketmq import RocketMQ
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.bench.workload import (
    LINES_A_PUT,
    SIZES,
    TAG,
    TOPIC,
    batches,
    body,
    key,
    lines,
    make_store,
    message,
    random_numbers,
)

LMDB_BYTES = 16 << 30
COLUMNS_AT_ONCE = 8_192
WARM_UP_PUTS = 20_000


@contextlib.contextmanager
def both_open(room: Room) -> Iterator[tuple[MessageStore, RocketMQ, Path]]:
    """Two new stores of the same file sizes: ours, and RocketMQ's with the path it knows it by; both warmed up."""
    rocketmq, folder = room.rocketmq(), room.new_folder()
    theirs = folder / "theirs"
    with MessageStore.open(folder / "ours", StoreConfig(sizes=SIZES), create=True) as store:
        store.create_topic(TOPIC, 1)
        rocketmq.open(theirs)
        rocketmq.put(theirs, 0, WARM_UP_PUTS)
        put_singly(store, 0, WARM_UP_PUTS // 4)
        yield store, rocketmq, theirs
        rocketmq.close(theirs)
    shutil.rmtree(folder)


def put_singly(store: MessageStore, first: int, count: int) -> None:
    put = store.put
    for number in range(first, first + count):
        put(message(number), 0)


def put_in_batches(store: MessageStore, first: int, count: int) -> None:
    for batch in batches(first, count):
        store.put_batch(batch, 0)


def puts_against_rocketmq(room: Room, put: Callable[[MessageStore, int, int], None], count: int) -> Pairs:
    """Rates of `put`(store, first, count) beside RocketMQ's putMessage, with keys on both sides."""
    firsts = itertools.count(WARM_UP_PUTS, count)
    with both_open(room) as (store, rocketmq, theirs):
        return interleave(
            lambda: rate(count, lambda: put(store, next(firsts), count)),
            lambda: rocketmq.put(theirs, next(firsts), count).rate(count),
            room.scale.rounds,
        )


def single_puts(room: Room) -> Pairs:
    return puts_against_rocketmq(room, put_singly, room.scale.puts)


def batch_puts(room: Room) -> Pairs:
    return puts_against_rocketmq(room, put_in_batches, room.scale.batch_puts)


def line_puts(room: Room) -> Pairs:
    """Lines share their keys, so here neither side has any."""
    count, buffer = room.scale.batch_puts, lines(LINES_A_PUT)
    with both_open(room) as (store, rocketmq, theirs):
        return interleave(
            lambda: rate(count, lambda: put_buffers(store, buffer, count)),
            lambda: rocketmq.put(theirs, 0, count, keys=False).rate(count),
            room.scale.rounds,
        )


def put_buffers(store: MessageStore, buffer: bytes, count: int) -> None:
    for _ in range(count // LINES_A_PUT):
        store.put_lines(TOPIC, buffer, 0, tags=TAG)


class Lmdb:
    """LMDB with bodies by number and numbers by key, as our log and index; like our async flush, it does not sync."""

    def __init__(self, path: Path) -> None:
        self._environment = lmdb.open(str(path), map_size=LMDB_BYTES, max_dbs=2, sync=False)
        self._bodies = self._environment.open_db(b"bodies")
        self._keys = self._environment.open_db(b"keys")

    def put_numbers(self, first: int, count: int) -> None:
        """Bodies and keys in one transaction."""
        numbers = range(first, first + count)
        with self._environment.begin(write=True) as transaction:
            bodies = ((struct.pack(">Q", number), body(number)) for number in numbers)
            transaction.cursor(self._bodies).putmulti(bodies, append=True)
            keys = ((key(number).encode(), struct.pack(">Q", number)) for number in numbers)
            transaction.cursor(self._keys).putmulti(keys)

    def put_lines(self, first: int, buffer: bytes, times: int) -> None:
        """Lines of a buffer, again and again, in one transaction."""
        numbers = itertools.count(first)
        with self._environment.begin(write=True) as transaction:
            for _ in range(times):
                items = ((struct.pack(">Q", next(numbers)), line) for line in buffer.split(b"\n") if line)
                transaction.cursor(self._bodies).putmulti(items, append=True)

    def close(self) -> None:
        self._environment.close()


@contextlib.contextmanager
def ours_and_lmdb(room: Room) -> Iterator[tuple[MessageStore, Lmdb]]:
    folder = room.new_folder()
    with (
        MessageStore.open(folder / "ours", StoreConfig(sizes=SIZES), create=True) as store,
        contextlib.closing(Lmdb(folder / "lmdb")) as peer,
    ):
        store.create_topic(TOPIC, 1)
        put_singly(store, 0, 1_000)
        yield store, peer
    shutil.rmtree(folder)


def batches_against_lmdb(room: Room) -> Pairs:
    count = room.scale.batch_puts
    ours, theirs = itertools.count(0, count), itertools.count(0, count)
    with ours_and_lmdb(room) as (store, peer):
        return interleave(
            lambda: rate(count, lambda: put_in_batches(store, next(ours), count)),
            lambda: rate(count, lambda: peer.put_numbers(next(theirs), count)),
            room.scale.rounds,
        )


def lines_against_lmdb(room: Room) -> Pairs:
    count, buffer = room.scale.batch_puts, lines(LINES_A_PUT)
    firsts = itertools.count(0, count)
    with ours_and_lmdb(room) as (store, peer):
        return interleave(
            lambda: rate(count, lambda: put_buffers(store, buffer, count)),
            lambda: rate(count, lambda: peer.put_lines(next(firsts), buffer, count // LINES_A_PUT)),
            room.scale.rounds,
        )


@contextlib.contextmanager
def both_filled(room: Room) -> Iterator[tuple[MessageStore, RocketMQ, Path]]:
    """The same store twice: ours opens one, RocketMQ the copy."""
    rocketmq = room.rocketmq()
    path = room.store("filled", lambda store: make_store(store, room.scale.stored, SIZES))
    copy = room.new_folder() / "copy"
    subdirectories_copied(path, copy)
    with MessageStore.open(path) as store:
        rocketmq.open(copy)
        yield store, rocketmq, copy
        rocketmq.close(copy)
    shutil.rmtree(copy)


def subdirectories_copied(source: Path, target: Path) -> None:
    """RocketMQ ignores the files that we keep beside its own."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("fsstore", "lock"))


def key_queries(room: Room) -> Pairs:
    numbers = random_numbers(room.scale.queries, room.scale.stored, seed=13)
    with both_filled(room) as (store, rocketmq, theirs):

        def query() -> None:
            for number in numbers:
                assert store.query(TOPIC, key(number))

        rocketmq.query(theirs, numbers)
        return interleave(
            lambda: rate(len(numbers), query),
            lambda: rocketmq.query(theirs, numbers).rate(len(numbers)),
            room.scale.rounds,
        )


def message_reads(room: Room) -> Pairs:
    return reads(room, read_messages)


def column_reads(room: Room) -> Pairs:
    return reads(room, read_columns)


def reads(room: Room, read: Callable[[MessageStore, int], int]) -> Pairs:
    count = room.scale.stored
    with both_filled(room) as (store, rocketmq, theirs):
        rocketmq.read(theirs, count)
        return interleave(
            lambda: rate(count, lambda: read(store, count)),
            lambda: rocketmq.read(theirs, count).rate(count),
            room.scale.rounds,
        )


def read_messages(store: MessageStore, count: int) -> int:
    """Touch body, keys and tags of each message."""
    touched = 0
    for found in store.read(TOPIC, 0, 0, count):
        touched += found.body[0] + len(found.keys[0]) + len(found.tags)
    return touched


def read_columns(store: MessageStore, count: int) -> int:
    """The same of each message, as arrays."""
    touched = 0
    for begin in range(0, count, COLUMNS_AT_ONCE):
        found = store.columns(TOPIC, 0, begin, COLUMNS_AT_ONCE)
        first_bytes = found.bodies.data[found.bodies.offsets[:-1]]
        touched += int(first_bytes.sum() + np.diff(found.keys.offsets).sum() + np.diff(found.tags.offsets).sum())
    return touched


PUT = "RocketMQ putMessage"

ROWS = (
    Row("1", "`put`, one at a time, dispatched", PUT, "messages/s", 1.3, single_puts, by_cpu=True),
    Row("2 batch", "`put_batch`, a key each, dispatched", PUT, "messages/s", 2.0, batch_puts, by_cpu=True),
    Row("2 lines", "`put_lines`, no keys, dispatched", PUT, "messages/s", 6.0, line_puts, by_cpu=True),
    Row("3 batch", "`put_batch`, a key each", "LMDB, one transaction", "messages/s", 1.0, batches_against_lmdb),
    Row("3 lines", "`put_lines`, no keys", "LMDB, one transaction", "messages/s", 2.0, lines_against_lmdb),
    Row("13", "key query", "RocketMQ queryMessage", "queries/s", 1.0, key_queries),
    Row("15 messages", "sequential read, decoded", "RocketMQ getMessage + decode", "messages/s", 0.9, message_reads),
    Row("15 columns", "the same, in columns", "RocketMQ getMessage + decode", "messages/s", 2.5, column_reads),
)

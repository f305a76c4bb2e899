"""Opening a store that was not closed (row 16)."""

import shutil
from pathlib import Path

from engine import FileSizes, MessageStore
from tests.bench.measure import Pairs, interleave, seconds
from tests.bench.room import Room
from tests.bench.rows import Row
from tests.bench.workload import TOPIC, make_store, message

MIB = 1 << 20


def recovery(room: Room) -> Pairs:
    """The same store by turns, as a crash without any checkpoint leaves it: all of the log has to be looked at."""
    rocketmq, size = room.rocketmq(), room.scale.recovered_bytes
    sizes = FileSizes(size, consume_queue_entries=300_000, index_slots=500_000, index_entries=2_000_000)
    store = room.store("recovered", lambda path: make_store(path, size // record_bytes(room), sizes))

    def ours() -> float:
        make_crashed(store)
        opened: list[MessageStore] = []
        took = seconds(lambda: opened.append(MessageStore.open(store)))
        opened[0].close()
        return took

    def theirs() -> float:
        make_crashed(store)
        took = rocketmq.open(store, sizes)
        rocketmq.close(store)
        return took

    return interleave(ours, theirs, room.scale.rounds)


def record_bytes(room: Room) -> int:
    """Size of one record in the log."""
    with MessageStore.open(room.new_folder(), create=True) as store:
        store.create_topic(TOPIC, 1)
        return store.put(message(0), 0).store_size


def make_crashed(store: Path) -> None:
    """The marks of a crash, and nothing that would spare looking."""
    shutil.rmtree(store / "fsstore", ignore_errors=True)
    (store / "checkpoint").unlink(missing_ok=True)
    (store / "abort").touch()


ROWS = (Row("16", "recovery after a crash", "RocketMQ, same store", "s", 0.35, recovery, at_most=True),)

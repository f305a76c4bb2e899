"""They write, we read: stores of the real RocketMQ, clean and killed, through our engine."""

import contextlib
import time
from pathlib import Path
from typing import Any

from engine import FileSizes, MessageStore, OpenMode, StoreConfig, check_store
from tests.interop.compare import Tally, compare_dump, compare_queries, queries_for
from tests.interop.driver import Driver, LoadRefusedError, RealStore
from tests.interop.messages import PREPARED, ROLLBACK, TRANSACTION, Mix, Put, large_puts
from tests.interop.room import LARGE, SMALL, Room, java_config, snapshot

RECORD_CHECKSUM = "__CRC32#"
PUTS = 700
QUERIES = 250
KILLS = 8
PUTS_A_CALL = 60
MEBIBYTE = 1 << 20
BODY_SIZES = (0, 1, 4_095, 4_096, 65_536, MEBIBYTE - 1, MEBIBYTE, 3 * MEBIBYTE, 4 * MEBIBYTE - 1, 4 * MEBIBYTE)


def clean(room: Room) -> None:
    """Every kind of message; the store was closed."""
    they_write_we_read(room, room.puts(PUTS), SMALL)


def large_bodies(room: Room) -> None:
    """Bodies up to 4 MiB."""
    they_write_we_read(room, large_puts(room.seed, BODY_SIZES), LARGE)


def long_topics(room: Room) -> None:
    """Topic names of 128 to 200 bytes, which take RocketMQ 5's second record format."""
    topics = ("t" * 128, "u" * 200, "short")
    they_write_we_read(room, room.puts(200, Mix(topics=topics)), SMALL)


def property_crc(room: Room) -> None:
    """RocketMQ 5's checksum over the whole record, kept in its properties."""
    they_write_we_read(room, room.puts(300), SMALL, enabledAppendPropCRC="true")


def light_queues(room: Room) -> None:
    """Messages that one put dispatches to several queues (LMQ)."""
    puts = [
        Put("lmq-parent", index % 2, b"%d" % index, (("KEYS", f"L{index}"), ("INNER_MULTI_DISPATCH", "%LMQ%a,%LMQ%b")))
        for index in range(100)
    ]
    they_write_we_read(room, puts, SMALL, enableLmq="true", enableMultiDispatch="true")


def they_write_we_read(room: Room, puts: list[Put], sizes: FileSizes, **more: Any) -> None:
    path = room.folder / "theirs"
    queries = queries_for(puts, QUERIES)
    with room.driver() as driver, driver.store(path, java_config(sizes, **more)) as store:
        results = put_all(store, puts)
        dump = store.dump()
        answers = store.query(queries)
    read_without_writing(room, path, dump)
    room.tally.expect("problems that a check finds", [], [str(problem) for problem in check_store(path)])
    with MessageStore.open(room.copy(path, "ours")) as ours:
        compare_dump(room.tally, dump, ours)
        compare_queries(room.tally, queries, answers, ours, ours_may_find_more=False)
        compare_unqueued(room.tally, puts, results, ours)


def put_all(store: RealStore, puts: list[Put], *, plain_items: bool | None = None) -> list[dict[str, Any]]:
    """Put all, some in each call. `plain_items`: batches encoded the same way for every line of RocketMQ."""
    results: list[dict[str, Any]] = []
    for begin in range(0, len(puts), PUTS_A_CALL):
        messages = [{**put.to_java(), "plain_items": plain_items} for put in puts[begin : begin + PUTS_A_CALL]]
        results += store.put(messages)
    return results


def read_without_writing(room: Room, path: Path, dump: dict[str, Any]) -> None:
    """Open read-only: the same messages, and not a byte of the store changes."""
    before = snapshot(path)
    with MessageStore.open(path, StoreConfig(mode=OpenMode.READ_ONLY)) as ours:
        compare_dump(room.tally, dump, ours)
    room.tally.expect("files after a read-only visit", before, snapshot(path))


def compare_unqueued(tally: Tally, puts: list[Put], results: list[dict[str, Any]], ours: MessageStore) -> None:
    """Prepared and rolled back messages are in the log only: each is compared with its put."""
    for put, result in zip(puts, results, strict=True):
        if put.sys_flag & TRANSACTION in (PREPARED, ROLLBACK):
            message = ours.at(result["physical_offset"])
            tally.messages += 1
            tally.expect(
                f"unqueued message at {result['physical_offset']}",
                [put.topic, put.queue, put.flag, put.born_time_ms, result["store_time_ms"], dict(put.properties)],
                [
                    message.topic,
                    message.queue,
                    message.flag,
                    message.born_time_ms,
                    message.store_time_ms,
                    {name: value for name, value in message.properties.items() if name != RECORD_CHECKSUM},
                ],
            )
            if put.compress is None:
                tally.expect("its body", put.body, bytes(message.body))


def killed(room: Room) -> None:
    """SIGKILL in the middle of puts. What RocketMQ recovers, we recover, and every put that it acknowledged.

    Killed while it made a file, RocketMQ may not start on its own store. Ours opens it all the same; for the comparison
    another one is killed.
    """
    puts = room.puts(PUTS)
    for attempt in range(KILLS):
        path = room.folder / f"theirs-{attempt}"
        acknowledged = they_write_until_killed(room, path, puts)
        with MessageStore.open(room.copy(path, f"ours-{attempt}")) as ours:
            compare_acknowledged(room.tally, puts, acknowledged, ours)
            with contextlib.suppress(LoadRefusedError), room.driver() as driver:
                compare_recovered(room, driver, path, puts, ours)
                return
    room.tally.differences.append(f"RocketMQ never started on its killed store, {KILLS} times")


def compare_recovered(room: Room, driver: Driver, path: Path, puts: list[Put], ours: MessageStore) -> None:
    """What RocketMQ recovers from its own store against what we recovered from a copy."""
    queries = queries_for(puts, QUERIES)
    # a slave delivers no delayed messages: 4.9 would deliver at once what it dispatched again (see mend_due_times)
    with driver.store(path, java_config(SMALL, brokerRole="SLAVE")) as store:
        compare_dump(room.tally, store.dump(), ours)
        compare_queries(room.tally, queries, store.query(queries), ours, ours_may_find_more=True)


def they_write_until_killed(room: Room, path: Path, puts: list[Put]) -> list[dict[str, Any]]:
    """Put all; the JVM dies while it works at the last of them. The results that came back before."""
    sure, unsure = puts[: len(puts) * 3 // 4], puts[len(puts) * 3 // 4 :]
    with room.driver() as driver:
        driver.call("open", store="killed", path=str(path), config=java_config(SMALL))
        acknowledged = put_all(RealStore(driver, "killed"), sure)
        driver.ask("put", store="killed", messages=[put.to_java() for put in unsure])
        time.sleep(room.seed % 7 * 0.01)  # whichever put this hits
        driver.kill()
    return acknowledged


def compare_acknowledged(tally: Tally, puts: list[Put], acknowledged: list[dict[str, Any]], ours: MessageStore) -> None:
    """Every acknowledged put is readable, and equal."""
    for put, result in zip(puts, acknowledged, strict=False):
        physical_offset = result["physical_offset"]
        for index, message in enumerate(put.messages):
            stored = ours.at(physical_offset)
            tally.messages += 1
            tally.expect(
                f"acknowledged message {index} at {physical_offset}",
                [message.flag, message.queue, result["store_time_ms"]],
                [stored.flag, int(stored.properties.get("REAL_QID", stored.queue)), stored.store_time_ms],
            )
            if message.compress is None:
                tally.expect("its body", message.body, bytes(stored.body))
            physical_offset = stored.physical_end

"""What a topic's stream would show, of queues that nobody opened."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message, MessageStore, OpenMode, StoreConfig, TextAtRest
from tests.engine.storetools import SMALL, SMALL_SIZES, killed, opened

BODIES = (b"first", b"", b"third, which is longer")


def fill(path: Path, config: StoreConfig = SMALL, queues: int = 3) -> None:
    """Messages of two topics in turns, in several queues."""
    with opened(path, config) as store:
        put_all(store, queues)


def put_all(store: MessageStore, queues: int = 3) -> None:
    for number, body in enumerate(BODIES * 2):
        store.put(Message("orders", body), (number * 2) % queues)
        store.put(Message("others", b"of another topic"), number % queues)


def as_opened(store: MessageStore, topic: str) -> TextAtRest:
    stream, queue = store.topic_stream(topic), store.topic_queue(topic)
    size = stream.size
    row = queue.entries(queue.max_offset - 1, 1)[0]
    newest = store.get(topic, int(row["queue_id"]), int(row["queue_offset"]))
    return TextAtRest(stream.first_offset, size, newest.store_time_ms)


@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.READ_ONLY])
def test_it_is_what_the_stream_shows_and_no_queue_is_opened(tmp_path: Path, mode: OpenMode) -> None:
    fill(tmp_path)
    with opened(tmp_path, replace(SMALL, mode=mode)) as store:
        found = store.text_at_rest("orders")
        assert store._parts.queues.opened() == []
        assert found == as_opened(store, "orders")


def test_after_a_kill_it_is_known_of_the_queues_that_were_not_written_since(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    fill(path)
    with killed(path, copy) as store:
        store.put(Message("others", b"one more"), 0)
    with opened(copy) as store:
        assert store.text_at_rest("others") is None
        assert store.text_at_rest("orders") in (None, as_opened(store, "orders"))


def test_records_in_several_files_of_the_log(tmp_path: Path) -> None:
    config = replace(SMALL, sizes=replace(SMALL_SIZES, commit_log_bytes=400))
    fill(tmp_path, config)
    with opened(tmp_path, config) as store:
        assert len(store._log.files.files) > 2
        assert store.text_at_rest("orders") == as_opened(store, "orders")


OPENING: dict[str, Callable[[MessageStore], object]] = {
    "a queue is open": lambda store: store.get("orders", 0, 0),
    "a message came": lambda store: store.put(Message("orders", b"new"), 1),
    "no such topic": lambda store: store.delete_topic("orders"),
}


@pytest.mark.parametrize("work", OPENING.values(), ids=OPENING.keys())
def test_it_is_not_known_when(tmp_path: Path, work: Callable[[MessageStore], object]) -> None:
    fill(tmp_path)
    with opened(tmp_path) as store:
        work(store)
        assert store.text_at_rest("orders") is None


def damage_body(path: Path) -> None:
    (log,) = (path / "commitlog").iterdir()
    data = log.read_bytes()
    log.write_bytes(data.replace(BODIES[0], b"fIrst"))


def lose_file(path: Path) -> None:
    next((path / "consumequeue/orders/2").iterdir()).unlink()


def change_entry(path: Path, number: int, entry: bytes) -> None:
    file = next((path / "consumequeue/orders/0").iterdir())
    with file.open("r+b") as changed:
        changed.seek(20 * number)
        changed.write(entry)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a damaged body": damage_body,
    "a lost file": lose_file,
    "an entry of another message": lambda path: change_entry(path, 0, bytes(8)),
    "an entry that leads nowhere": lambda path: change_entry(path, 0, b"\xff" * 20),
    "no last entry": lambda path: change_entry(path, 1, bytes(20)),
    "an entry behind the last": lambda path: change_entry(path, 2, b"\0" * 11 + b"\x40" + b"\0" * 8),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_what_is_not_whole_is_left_to_the_stream(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    fill(tmp_path)
    damage(tmp_path)
    with MessageStore.open(tmp_path, SMALL) as store:
        assert store.text_at_rest("orders") is None


def test_a_compressed_body_is_left_to_the_stream(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put(Message("orders", zlib.compress(b"long and even " * 20), sys_flag=0x301), 0)
    with opened(tmp_path) as store:
        assert store.text_at_rest("orders") is None


def test_many_messages_are_left_to_the_stream(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put_batch([Message("orders", b"body")] * 300, 0)
    with opened(tmp_path) as store:
        assert store.text_at_rest("orders") is None

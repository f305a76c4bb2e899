"""Going through a queue: messages that are made in runs are the same as those that are read alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lz4.frame
import pytest

from engine import Host, Message, MessageStore, Retention, StoredMessage, TopicNotFoundError
from engine.queue import SINGLE_ROWS
from engine.record.multi_dispatch import MULTI_DISPATCH
from tests.engine.light_queues import put_as_broker
from tests.engine.storetools import SMALL, SMALL_SIZES

METHODS = ("find_property", "copy_body")
NAMES = [name for name in vars(StoredMessage) if not name.startswith("_") and name not in METHODS]
LZ4_COMPRESSED = 0x1 | 0x1 << 8
COUNT = 700

SPACIOUS = replace(SMALL, sizes=replace(SMALL_SIZES, commit_log_bytes=1 << 20, consume_queue_entries=256))


def various(number: int) -> Message:
    """Messages of every kind, and mostly plain ones."""
    body = b"%d " % number * (number % 50)
    kinds = {
        3: Message("T", b""),
        5: Message("T", body, keys=["a", f"ä{number}"], tags="täg", properties={"color": "blue", "UNIQ_KEY": "u"}),
        7: Message("T", lz4.frame.compress(body), sys_flag=LZ4_COMPRESSED, keys=["packed"]),
        11: Message("T", body, born_host=Host(bytes(16), 1), properties={"KEYS": " two  words ", "TAGS": ""}),
        13: Message("T", body, store_host=Host(bytes(15) + b"\1", 1), flag=-1, properties={MULTI_DISPATCH: "other"}),
    }
    return kinds.get(number % 16, Message("T", body, keys=[f"k{number}"], tags="t"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """Messages in one queue, and some of them in a second, over several files of log and queue."""
    config = replace(SPACIOUS, sizes=replace(SMALL_SIZES, commit_log_bytes=64 << 10, consume_queue_entries=256))
    with MessageStore.open(tmp_path_factory.mktemp("run"), config, create=True) as opened:
        opened.create_topic("other")
        for message in map(various, range(COUNT)):
            (put_as_broker if MULTI_DISPATCH in message.properties else MessageStore.put)(opened, message, 0)
        yield opened


def facts(message: StoredMessage) -> dict[str, Any]:
    """All that can be asked of a message."""
    found = {name: getattr(message, name) for name in NAMES}
    found |= {"color": message.find_property(b"color"), "copied": message.copy_body()}
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in found.items()}


@pytest.mark.parametrize(
    ("topic", "start", "count"), [("T", 0, None), ("T", 100, 300), ("T", 690, 99), ("other", 0, None)]
)
def test_messages_of_a_run_are_the_messages(store: MessageStore, topic: str, start: int, count: int | None) -> None:
    end = min(store.bounds(topic, 0).max_offset, start + (count or COUNT))
    found = [facts(message) for message in store.read(topic, 0, start, count)]
    assert found == [facts(store.get(topic, 0, queue_offset)) for queue_offset in range(start, end)]


def test_messages_of_a_run_say_in_short_what_they_are(store: MessageStore) -> None:
    assert [repr(one) for one in store.read("T", 0, 0)] == [repr(store.get("T", 0, number)) for number in range(COUNT)]


def test_what_a_run_read_is_counted(store: MessageStore) -> None:
    before = store.stats()
    sizes = [message.store_size for message in store.read("T", 0, 0)]
    after = store.stats()
    assert after.read_messages - before.read_messages == COUNT
    assert after.read_bytes - before.read_bytes == sum(sizes)


def test_damaged_messages_are_left_out_of_a_run_and_no_other(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SPACIOUS, create=True) as store:
        store.put_batch([Message("T", b"%d" % number * 200, ["k"]) for number in range(COUNT)], 0)
        entries = store.entries("T", 0, 0, COUNT)
    damaged = {SINGLE_ROWS + 5: 100, 200: 4, 201: 9, 202: 87, 590: 300, COUNT - 1: 100}
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        for row, position in damaged.items():
            log.seek(int(entries["physical_offset"][row]) + position)
            log.write(b"\xff")
    with MessageStore.open(tmp_path, SPACIOUS) as store:
        found = [message.queue_offset for message in store.read("T", 0, 0)]
    assert found == [row for row in range(COUNT) if row not in damaged]


def test_an_entry_that_leads_to_another_message_is_left_out_of_a_run(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SPACIOUS, create=True) as store:
        store.put_batch([Message("T", b"x") for _ in range(COUNT)], 0)
        with (tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}").open("r+b") as queue:
            first = queue.read(20)
            queue.seek(20 * 99)
            queue.write(first)
        found = [message.queue_offset for message in store.read("T", 0, 50, 60)]
        assert found == [*range(50, 99), *range(100, 110)]


def test_what_expires_while_a_queue_is_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.queue.GROUP_ROWS", 4)
    retention = Retention(max_bytes=4096, clean_interval_ms=3_600_000, delete_pause_ms=0)
    with MessageStore.open(tmp_path, replace(SMALL, retention=retention), create=True) as store:
        store.put_batch([Message("T", b"%03d" % number) for number in range(600)], 0)
        messages = store.read("T", 0, 0)
        begun = [next(messages) for _ in range(22)]
        while store.clean():
            pass
        oldest = store.bounds("T", 0).min_offset
        assert oldest > 200
        rest = [message.queue_offset for message in messages]
        assert rest == [22, 23, *range(oldest, 600)], "and what was made already"
        assert [bytes(message.body) for message in begun] == [b"%03d" % number for number in range(len(begun))]


def test_a_queue_is_read_up_to_where_it_ended_at_first(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SPACIOUS, create=True) as store:
        store.put_batch([Message("T", b"x")] * COUNT, 0)
        messages = store.read("T", 0, 0)
        next(messages)
        store.put_batch([Message("T", b"x")] * COUNT, 0)
        assert sum(1 for _ in messages) == COUNT - 1
        with pytest.raises(TopicNotFoundError):
            store.read("T", 9, 0)

"""Stores that RocketMQ wrote, read by this engine: every message, every field, every bound, every query."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import MessageStore, OpenMode, StoreConfig, check_store
from engine.record.kernel.decode import carries_key
from engine.record.message import StoredMessage
from engine.record.properties import split_keys
from tests.golden import NAMES, Golden, golden

MODES = (OpenMode.WRITE, OpenMode.READ_ONLY, OpenMode.FOLLOW)


CASES = [(name, mode) for name in NAMES for mode in MODES]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1].value}")
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Golden, MessageStore]]:
    """A golden store, opened once for all evidence about it; checked when it is closed."""
    name, mode = request.param
    given = golden(name, tmp_path_factory.mktemp(name))
    before = snapshot(given.path)
    with MessageStore.open(given.path, StoreConfig(mode=mode)) as store:
        yield given, store
        if mode is not OpenMode.FOLLOW:
            assert list(store.check()) == []
    if mode is OpenMode.WRITE:
        assert list(check_store(given.path)) == []
    else:
        assert snapshot(given.path) == before


def snapshot(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in path.rglob("*")
        if file.is_file()
    }


def expected_fields(line: dict[str, Any]) -> dict[str, Any]:
    return {
        "topic": line["topic"],
        "queue": line["queueId"],
        "queue_offset": line["queueOffset"],
        "physical_offset": line["physicalOffset"],
        "store_size": line["storeSize"],
        "sys_flag": line["sysFlag"],
        "flag": line["flag"],
        "born_time_ms": line["bornTimestamp"],
        "store_time_ms": line["storeTimestamp"],
        "born_host": line["bornHostRaw"],
        "store_host": line["storeHostRaw"],
        "reconsume_times": line["reconsumeTimes"],
        "prepared_transaction_offset": line["preparedTransactionOffset"],
        "body_crc": line["bodyCRC"],
        "msg_id": line["offsetMsgId"],
        "body": line["body"],
        "raw_properties": line["propertiesRaw"],
        "properties": line["properties"],
    }


SAME_NAMES = (
    "topic queue queue_offset physical_offset store_size sys_flag flag born_time_ms store_time_ms reconsume_times"
    " prepared_transaction_offset body_crc msg_id properties"
)


def fields_of(message: StoredMessage) -> dict[str, Any]:
    return {name: getattr(message, name) for name in SAME_NAMES.split()} | {
        "body": message.stored_body.hex(),
        "born_host": message.born_host.encode().hex(),
        "store_host": message.store_host.encode().hex(),
        "raw_properties": message.raw_properties.hex(),
    }


def test_every_message_has_the_fields_that_rocketmq_read(opened: tuple[Golden, MessageStore]) -> None:
    given, store = opened
    lines = given.messages
    for line in lines:
        message = store.get(line["topic"], line["queueId"], line["cqOffset"])
        assert fields_of(message) == expected_fields(line)
        assert fields_of(store.at(line["physicalOffset"])) == expected_fields(line)
    assert store.stats().messages == len(lines)


def test_records_that_no_queue_leads_to_are_read_by_physical_offset(opened: tuple[Golden, MessageStore]) -> None:
    given, store = opened
    for line in given.dump:
        if line["type"] == "nocq":
            assert fields_of(store.at(line["physicalOffset"])) == expected_fields(line)


def test_entries_are_those_of_the_consume_queue_files(opened: tuple[Golden, MessageStore]) -> None:
    given, store = opened
    for line in given.messages:
        (entry,) = store.entries(line["topic"], line["queueId"], line["cqOffset"], 1).tolist()
        assert entry == (line["cqPhysicalOffset"], line["cqSize"], line["tagsCode"])


def test_queues_begin_and_end_where_rocketmq_says(opened: tuple[Golden, MessageStore]) -> None:
    given, store = opened
    found = {}
    for topic in store.topics():
        for queue in store.queues(topic):
            bounds = store.bounds(topic, queue)
            found[topic, queue] = (bounds.min_offset, bounds.max_offset)
    assert found == {(line["topic"], line["queueId"]): (line["minOffset"], line["maxOffset"]) for line in given.queues}


def carrying(given: Golden, topic: str, key: str) -> list[dict[str, Any]]:
    """Records that an index leads to by this key, newest first: all but transactions rolled back."""
    found = []
    for line in given.dump:
        if line["type"] in ("msg", "nocq") and line["topic"] == topic and line["sysFlag"] & 0xC != 0xC:
            properties = line["properties"]
            if key in properties.get("KEYS", "").split(" ") or key == properties.get("UNIQ_KEY"):
                found.append(line)
    return sorted(found, key=lambda line: line["physicalOffset"], reverse=True)


def test_queries_find_every_message_with_the_key_stored_in_that_time(opened: tuple[Golden, MessageStore]) -> None:
    given, store = opened
    for query in given.queries:
        topic, key, begin, end = query["topic"], query["key"], query["begin"], query["end"]
        lines = [line for line in carrying(given, topic, key) if begin <= line["storeTimestamp"] <= end]
        found = store.query(topic, key, query["max"], begin, end)
        assert [one.physical_offset for one in found] == [line["physicalOffset"] for line in lines][: query["max"]]


def test_queries_find_what_rocketmq_finds_less_the_hits_without_the_key(opened: tuple[Golden, MessageStore]) -> None:
    given, store = opened
    for query in given.queries:
        topic, key = query["topic"], query["key"]
        hits = [store.at(offset) for offset in sorted(set(query["offsets"]), reverse=True)]
        expected = [hit.physical_offset for hit in hits if hit.topic == topic and carries_key(hit, key)]
        # RocketMQ's index stores seconds, so it also returns messages stored just outside of the query's times.
        found = [one.physical_offset for one in store.query(topic, key, 10_000)]
        assert [offset for offset in found if offset in expected] == expected


def test_sizes_are_found_from_the_files(opened: tuple[Golden, MessageStore]) -> None:
    given, store = opened
    assert store.sizes == given.sizes
    assert store.recovery.rebuilt == ()


def test_arrays_tell_the_same_as_messages(opened: tuple[Golden, MessageStore]) -> None:
    _, store = opened
    for topic in store.topics():
        for queue in store.queues(topic):
            bounds = store.bounds(topic, queue)
            headers = store.headers(topic, queue, bounds.min_offset, bounds.count)
            columns = store.columns(topic, queue, bounds.min_offset, bounds.count)
            messages = list(store.read(topic, queue, bounds.min_offset))
            assert headers["ok"].all()
            assert headers["physical_offset"].tolist() == [message.physical_offset for message in messages]
            assert headers["store_time_ms"].tolist() == [message.store_time_ms for message in messages]
            store_sizes, body_sizes = store.record_sizes(topic, queue, bounds.min_offset, bounds.count)
            assert store_sizes.tolist() == headers["store_size"].tolist() == [one.store_size for one in messages]
            assert body_sizes.tolist() == headers["body_size"].tolist()
            assert [columns.bodies[row] for row in range(len(columns))] == [bytes(one.body) for one in messages]
            keys = [split_keys(columns.keys[row].decode()) for row in range(len(columns))]
            assert keys == [message.keys for message in messages]
            text = b"".join(bytes(message.body) + b"\n" for message in messages)
            stream = store.stream(topic, queue)
            assert stream.size == len(text)
            assert bytes(stream.read(0, len(text))) == text


def test_offset_at_a_time_is_the_first_message_stored_then_or_later(opened: tuple[Golden, MessageStore]) -> None:
    given, store = opened
    for line in given.messages[:: max(len(given.messages) // 50, 1)]:
        topic, queue, when = line["topic"], line["queueId"], line["storeTimestamp"]
        later = [
            other["cqOffset"]
            for other in given.messages
            if (other["topic"], other["queueId"]) == (topic, queue) and other["storeTimestamp"] >= when
        ]
        assert store.offset_at(topic, queue, when) == min(later)


def test_the_crashed_store_opens_with_every_message_that_rocketmq_recovers(tmp_path: Path) -> None:
    given = golden("crash", tmp_path)
    recovered = tmp_path / "recovered"
    shutil.copytree(given.recovered, recovered)
    with MessageStore.open(recovered) as theirs, MessageStore.open(given.path) as ours:
        for topic in theirs.topics():
            for queue in theirs.queues(topic):
                for message in theirs.read(topic, queue, 0):
                    same = ours.get(topic, queue, message.queue_offset)
                    assert bytes(same.record) == bytes(message.record)

"""The puts that made RocketMQ's stores, done again on an empty one: the same bytes come out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine import EMBEDDED_SIZES, FlushPolicy, Host, Message, MessageStore, StoreConfig
from tests.engine.test_golden_messages import expected_fields, fields_of
from tests.golden import Golden, golden

SAME_BYTES = ("basic", "rolled", "txn", "ipv6", "batch")


class TurnedClock:
    """Shows the store time of the record that is written next."""

    def __init__(self) -> None:
        self.now_ms = 1

    def __call__(self) -> int:
        return self.now_ms


def properties_of(raw_hex: str | None) -> dict[str, str]:
    """Properties in stored order, empty values too (which reading leaves out)."""
    text = bytes.fromhex(raw_hex or "").decode()
    return dict(item.split("\x01", 1) for item in text.split("\x02") if item)


def message_of(op: Mapping[str, Any], part: Mapping[str, Any]) -> Message:
    """The message of an operation; of a batch, one `part` with the batch's properties behind its own."""
    return Message(
        op["topic"],
        bytes.fromhex(part["body"]),
        properties={**properties_of(part["propertiesString"]), **properties_of(op.get("batchPropertiesString"))},
        flag=part["flag"],
        sys_flag=op["sysFlag"],
        born_time_ms=op["bornTimestamp"],
        born_host=Host.parse(op["bornHost"]),
        store_host=Host.parse(op["storeHost"]),
        reconsume_times=op["reconsumeTimes"],
        prepared_transaction_offset=op["preparedTransactionOffset"],
    )


def replay(given: Golden, path: Path, clock: TurnedClock) -> None:
    """Do all puts of `given` on an empty store; each must have RocketMQ's result."""
    config = StoreConfig(sizes=given.sizes, clock=clock, flush=FlushPolicy(consume_queue_interval_ms=60_000))
    with MessageStore.open(path, config, create=True) as store:
        for op in given.ops:
            if op["op"] not in ("put", "batch"):
                continue
            result = op["result"]
            clock.now_ms = result["storeTimestamp"]
            if op["op"] == "put":
                put = store.put(message_of(op, op), op["queueId"])
                found = (put.physical_offset, put.store_size, put.queue_offset, put.msg_id)
                assert found == (
                    result["wroteOffset"],
                    result["wroteBytes"],
                    result["logicsOffset"],
                    result["msgId"].split(",")[0],
                )
            else:
                many = store.put_batch([message_of(op, part) for part in op["messages"]], op["queueId"])
                stored = (many.physical_offset, many.physical_end - many.physical_offset, many.queue_offset, many.count)
                assert stored == (
                    result["wroteOffset"],
                    result["wroteBytes"],
                    result["logicsOffset"],
                    result["msgNum"],
                )


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


def numbered_files(directory: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(directory)): file.read_bytes() for file in sorted(directory.rglob("*")) if file.is_file()
    }


def index_contents(directory: Path) -> list[bytes]:
    """Index files in order; their names are the times of their making."""
    return [file.read_bytes() for file in sorted(directory.iterdir())]


@pytest.mark.parametrize("name", SAME_BYTES)
def test_replayed_puts_give_the_same_bytes(name: str, tmp_path: Path, clock: TurnedClock) -> None:
    given = golden(name, tmp_path)
    path = tmp_path / "ours"
    replay(given, path, clock)
    assert numbered_files(path / "commitlog") == numbered_files(given.path / "commitlog")
    assert numbered_files(path / "consumequeue") == numbered_files(given.path / "consumequeue")
    assert index_contents(path / "index") == index_contents(given.path / "index")


def test_replayed_puts_before_a_crash_give_the_recovered_log(tmp_path: Path, clock: TurnedClock) -> None:
    given = golden("crash", tmp_path)
    replay(given, tmp_path / "ours", clock)
    assert numbered_files(tmp_path / "ours" / "commitlog") == numbered_files(given.recovered / "commitlog")


def test_replayed_puts_give_the_files_that_retention_left(tmp_path: Path, clock: TurnedClock) -> None:
    given = golden("retention", tmp_path)
    replay(given, tmp_path / "ours", clock)
    for kind in ("commitlog", "consumequeue"):
        ours = numbered_files(tmp_path / "ours" / kind)
        for name, content in numbered_files(given.path / kind).items():
            assert ours[name] == content, (kind, name)
    theirs = index_contents(given.path / "index")
    assert index_contents(tmp_path / "ours" / "index")[-len(theirs) :] == theirs


def test_replayed_delayed_messages_have_the_same_fields(tmp_path: Path, clock: TurnedClock) -> None:
    given = golden("delay", tmp_path)
    put = {op["result"]["wroteOffset"] for op in given.ops if op["op"] == "put"}
    delivered = [line for line in given.messages if line["physicalOffset"] not in put]
    assert len(delivered) == 4, "four records were delivered by the broker, which we do not do"
    first_delivery = min(line["physicalOffset"] for line in delivered)
    given.ops[:] = [op for op in given.ops if op["op"] == "put" and op["result"]["wroteOffset"] < first_delivery]
    assert len(given.ops) > 50
    replay(given, tmp_path / "ours", clock)
    with MessageStore.open(tmp_path / "ours") as store:
        for line in given.messages:
            if line["physicalOffset"] < first_delivery:
                message = store.get(line["topic"], line["queueId"], line["cqOffset"])
                ours, theirs = fields_of(message), expected_fields(line)
                del ours["raw_properties"], theirs["raw_properties"]  # the order of a Java map
                assert ours == theirs
                (entry,) = store.entries(line["topic"], line["queueId"], line["cqOffset"], 1).tolist()
                assert entry == (line["cqPhysicalOffset"], line["cqSize"], line["tagsCode"])


def test_a_golden_store_goes_on_where_rocketmq_left_it(tmp_path: Path) -> None:
    given = golden("rolled", tmp_path)
    with MessageStore.open(given.path) as store:
        bounds = {line["topic"]: store.bounds(line["topic"], line["queueId"]) for line in given.queues}
        for topic, before in bounds.items():
            queue = next(line["queueId"] for line in reversed(given.queues) if line["topic"] == topic)
            put = store.put(Message(topic, b"and on", keys=["new"]), queue)
            assert put.queue_offset == before.max_offset
            assert bytes(store.get(topic, queue, put.queue_offset).body) == b"and on"
            assert store.newest_with_key(topic, "new") is not None
        assert list(store.check()) == []
    assert store.sizes != EMBEDDED_SIZES

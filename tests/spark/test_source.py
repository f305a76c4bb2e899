"""The data source `fsstore` over a real mount: every message comes once, in order, after any interruption."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from fsstore.fleet.sources import MountedSource
from fsstore.jobs.mount import QueueRange
from fsstore.spark import MESSAGE_SCHEMA, DataLossError, FsstoreSource, SourceOptionError
from fsstore.spark.frame import BROKER_SCHEMA
from fsstore.spark.offsets import Position
from fsstore.spark.reading import RangeReader
from fsstore.spark.source import StreamReader
from tests.mount.daemon import HELD_RANGES
from tests.mount.harness import PATIENCE_S, SMALL_SIZES, Mounted, mounted, until
from tests.spark.streams import Received, running, source

RETAINING = {
    "sizes": SMALL_SIZES | {"consume_queue_entries": 2_000},
    "retention": {"max_bytes": 2 << 20, "clean_interval_ms": 100, "delete_pause_ms": 0},
}

LONG_RANGE = 60_000
"""Messages of several row groups: more than is read ahead of the first."""


def publish(mount: Mounted, queue: int, begin: int, end: int) -> None:
    """Messages whose bodies are their queue offsets."""
    (mount.root / f"orders/{queue}/append").write_bytes(b"".join(b"%d\n" % number for number in range(begin, end)))


@contextmanager
def publisher(path: Path, begin: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that publishes the numbers from `begin` on, some at a time, until it is killed."""
    code = """
import os, sys, time
from itertools import count
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for begin in count(int(sys.argv[2]), 50):
    os.write(fd, b"".join(b"%d\\n" % number for number in range(begin, begin + 50)))
    time.sleep(0.01)  # a test needs no more
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(path), str(begin)], stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def bounds(mount: Mounted, queue: int) -> dict[str, int]:
    found: dict[str, int] = mount.status()["topics"]["orders"]["queues"][str(queue)]
    return found


def received_all(received: Received, count: int) -> None:
    until(f"{count} messages have come, not {received.count}", lambda: received.count >= count)


def numbered(count: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in range(count)]


def test_every_message_comes_once_and_in_order_through_every_end(spark: SparkSession, tmp_path: Path) -> None:
    received, checkpoint = Received(), tmp_path / "checkpoint"
    with mounted(tmp_path) as mount:
        mount.topic("orders")
        publish(mount, 0, 0, 300)
        stream = source(spark, mount.root, subscribe="orders", startingOffsets="earliest")
        query = running(stream, received, checkpoint)
        with query as running_query:
            received_all(received, 300)
            publish(mount, 0, 300, 600)
            mount.kill()
            with mounted(tmp_path, store=mount.store) as again:  # the same query goes on
                publish(again, 1, 0, 200)
                received_all(received, 800)
                assert running_query.isActive
                running_query.stop()
                publish(again, 0, 600, 700)
                with running(stream, received, checkpoint):  # another one goes on where that stopped
                    publish(again, 1, 200, 400)
                    received_all(received, 1_100)
    assert received.queues() == {0: numbered(700), 1: numbered(400)}


def test_a_daemon_killed_while_a_range_is_read_costs_a_stream_nothing(spark: SparkSession, tmp_path: Path) -> None:
    received, gate, held = Received(), tmp_path / "gate", tmp_path / "held"
    gate.touch()
    with mounted(tmp_path, gate=gate) as mount:
        mount.topic("orders")
        publish(mount, 0, 0, 500)
        stream = source(spark, mount.root, subscribe="orders", startingOffsets="earliest")
        with running(stream, received, tmp_path / "checkpoint") as query:
            received_all(received, 500)
            (tmp_path / HELD_RANGES).touch()
            publish(mount, 0, 500, 1_000)
            until("a task is in the middle of its range", held.exists)
            mount.kill()
            with mounted(tmp_path, store=mount.store) as again:
                publish(again, 1, 0, 100)
                received_all(received, 1_100)
                assert query.isActive
                query.stop()
    assert received.queues() == {0: numbered(1_000), 1: numbered(100)}


def test_messages_of_a_range_come_once_when_the_daemon_is_killed_between_them(tmp_path: Path) -> None:
    schema = StructType([MESSAGE_SCHEMA["queue_offset"], MESSAGE_SCHEMA["body"]])
    with mounted(tmp_path, config={"sizes": SMALL_SIZES | {"commit_log_bytes": 4 << 20}}) as mount:
        mount.topic("orders")
        publish(mount, 0, 0, LONG_RANGE)
        readers = [RangeReader([MountedSource("a", str(mount.root))], schema, 60.0, fails) for fails in (True, False)]
        batches = readers[0].read(QueueRange("orders", 0, 0, LONG_RANGE), Position(LONG_RANGE))
        found = [next(batches)]
        of_another = QueueRange("orders", 0, 0, 10), Position(10, 12345)
        assert not list(readers[1].read(*of_another))
        with pytest.raises(DataLossError, match="was deleted"):
            list(readers[0].read(*of_another))
        mount.kill()
        with mounted(tmp_path, store=mount.store) as again:
            found += batches
            assert again.status()["parquet"]["rendered_files"] == 1, "all had been read before the kill"
    table = pa.Table.from_batches(found)
    assert list(zip(table["queue_offset"].to_pylist(), table["body"].to_pylist(), strict=True)) == numbered(LONG_RANGE)


def test_a_publisher_killed_while_a_stream_runs_leaves_whole_messages_that_come_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    received = Received()
    with mounted(tmp_path) as mount:
        append = mount.topic("orders") / "0" / "append"
        publish(mount, 0, 0, 10)
        stream = source(spark, mount.root, subscribe="orders", startingOffsets="earliest")
        with running(stream, received, tmp_path / "checkpoint"):
            count = 10
            for _ in range(3):
                received_all(received, count)
                with publisher(append, count) as process:
                    until("it publishes, and some of it has come", lambda begin=count: received.count > begin)
                    process.kill()
                    process.wait(PATIENCE_S)
                count = bounds(mount, 0)["max_offset"]
            received_all(received, count)
    assert received.queues() == {0: numbered(count)}


def test_a_stream_begins_at_the_end_unless_told_and_topics_may_come_later(spark: SparkSession, tmp_path: Path) -> None:
    received = Received()
    with mounted(tmp_path) as mount:
        mount.topic("orders")
        publish(mount, 0, 0, 10)
        stream = source(spark, mount.root, subscribePattern="orders|late.*")
        with running(stream, received, tmp_path / "checkpoint") as query:
            until("it has begun", lambda: query.lastProgress is not None)
            publish(mount, 0, 10, 20)
            mount.topic("latecomer")
            (mount.root / "latecomer/2/append").write_bytes(b"late\n")
            (mount.root / "orders/6").mkdir()
            publish(mount, 6, 0, 5)
            received_all(received, 16)
    assert received.queues() == {0: numbered(20)[10:], 2: [(0, b"late")], 6: numbered(5)}


def test_a_rate_limit_cuts_what_waits_into_batches(spark: SparkSession, tmp_path: Path) -> None:
    by_number, by_bytes = Received(), Received()
    with mounted(tmp_path) as mount:
        mount.topic("orders")
        publish(mount, 0, 0, 900)
        publish(mount, 1, 0, 100)
        options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 300}  # which a last batch needs not have
        stream = source(spark, mount.root, **options, maxOffsetsPerTrigger=400)
        with running(stream, by_number, tmp_path / "checkpoint", availableNow=True) as query:
            assert query.awaitTermination(60)
        stream = source(spark, mount.root, **options, maxBytesPerTrigger=250_000)
        with running(stream, by_bytes, tmp_path / "other", availableNow=True) as query:
            assert query.awaitTermination(60)
    assert [len(batch) for _, batch in sorted(by_number.batches.items())] == [400, 400, 200]
    assert len(by_bytes.batches) == 2
    for received in (by_number, by_bytes):
        assert received.queues() == {0: numbered(900), 1: numbered(100)}


def test_a_stream_waits_for_enough_messages_but_not_for_ever(spark: SparkSession, tmp_path: Path) -> None:
    received = Received()
    with mounted(tmp_path) as mount:
        mount.topic("orders")
        publish(mount, 0, 0, 10)
        between = time.time_ns() // 1_000_000 + 1
        until("a later message has another time", lambda: time.time_ns() // 1_000_000 > between)
        publish(mount, 0, 10, 20)
        stream = source(
            spark, mount.root, startingTimestamp=between, startingOffsetsByTimestampStrategy="latest",
            minOffsetsPerTrigger=8, maxTriggerDelay="2s",
        )  # fmt: skip
        with running(stream, received, tmp_path / "checkpoint"):
            received_all(received, 10)
            publish(mount, 0, 20, 25)
            publish(mount, 0, 25, 30)  # enough together
            received_all(received, 20)
            publish(mount, 0, 30, 31)  # never enough
            received_all(received, 21)
    assert received.queues() == {0: numbered(31)[10:]}
    assert [len(batch) for _, batch in sorted(received.batches.items())] == [10, 10, 1]


def test_expired_messages_fail_a_stream_unless_that_is_allowed(spark: SparkSession, tmp_path: Path) -> None:
    received, checkpoint = Received(), tmp_path / "checkpoint"
    with mounted(tmp_path, config=RETAINING) as mount:
        mount.topic("orders")
        publish(mount, 0, 0, 10)
        options = {"startingOffsets": "earliest", "subscribe": "orders"}
        with running(source(spark, mount.root, **options), received, checkpoint, availableNow=True) as query:
            query.awaitTermination(60)
        for _ in range(40):
            (mount.root / "orders/0/append").write_bytes(b"%01000d\n" % 7 * 200)
        until("what follows has expired", lambda: bounds(mount, 0)["min_offset"] > 10)
        failing = running(source(spark, mount.root, **options), Received(), checkpoint, availableNow=True)
        with failing as query, pytest.raises(Exception, match="failOnDataLoss"):
            query.awaitTermination(60)
        allowed = source(spark, mount.root, **options, failOnDataLoss="false")
        with running(allowed, received, checkpoint, availableNow=True) as query:
            query.awaitTermination(60)
        end = bounds(mount, 0)["max_offset"]
    offsets = [offset for offset, _ in received.queues()[0]]
    assert offsets[:10] == list(range(10))
    assert offsets[10] > 10
    assert offsets[10:] == list(range(offsets[10], end))


def test_a_repeated_batch_is_the_same_and_a_topic_that_was_made_again_is_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    options = {"startingOffsets": "earliest", "subscribe": "orders"}

    def read(mount: Mounted, **more: str) -> Received:
        received = Received()
        stream = source(spark, mount.root, **options, **more)
        with running(stream, received, checkpoint, availableNow=True) as query:
            query.awaitTermination(60)
        return received

    with mounted(tmp_path) as mount:
        mount.topic("orders")
        publish(mount, 0, 0, 100)
        read(mount)
        (checkpoint / "commits/0").unlink()  # as if the query had died before it committed the batch
        (checkpoint / "commits/.0.crc").unlink()
        publish(mount, 0, 100, 130)
        repeated = read(mount)
        assert [len(repeated.batches[number]) for number in (0, 1)] == [100, 30]
        assert repeated.queues() == {0: numbered(130)}
        (mount.root / "@store/control").write_text(json.dumps({"delete_topic": "orders"}) + "\n")
        mount.topic("orders")
        publish(mount, 0, 0, 200)
        with pytest.raises(Exception, match=r"orders/0: .*made again.*failOnDataLoss"):
            read(mount)
        assert read(mount, failOnDataLoss="false").queues() == {0: numbered(200)}


def test_a_batch_reads_between_offsets_and_only_the_columns_of_its_schema(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(FsstoreSource)
    with mounted(tmp_path) as mount:
        mount.topic("orders")
        publish(mount, 0, 0, 70)
        reader = spark.read.format("fsstore").option("subscribe", "orders")
        frame = reader.load(str(mount.root))
        assert (frame.where("queue_offset < 5").count(), frame.count()) == (5, 70), "a filter stays with its query"
        assert len(reader.load(str(mount.root)).limit(5).collect()) == 5
        part = reader.schema("queue_offset long, topic string").option("startingOffsets", '{"orders": {"0": 20}}')
        rows = part.option("endingOffsets", '{"orders": {"0": 25}}').load(str(mount.root)).collect()
        assert [tuple(row) for row in rows] == [(offset, "orders") for offset in range(20, 25)]


def test_an_option_that_is_not_there_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(FsstoreSource)
    with pytest.raises(Exception, match="SourceOptionError"):
        spark.read.format("fsstore").option("subscribed", "orders").load(str(tmp_path)).count()


@pytest.mark.parametrize(
    "options",
    [
        {"failOnDataLoss": "maybe"},
        {"maxOffsetsPerTrigger": "0"},
        {"maxBytesPerTrigger": "1 MB"},
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
        {"maxTriggerDelay": "soon"},
        {"startingTimestamp": "2026-01-31"},
        {"startingOffsetsByTimestamp": '{"orders": 7}'},
        {"startingOffsetsByTimestampStrategy": "earliest"},
        {"endingOffsets": "latest"},
        {"places": '{"a": "/mnt/a"}'},  # and a path
        {"path": "https://broker-a"},
        {"failOnBrokerLoss": "maybe"},
        {"brokerLossTimeout": "soon"},
    ],
)
def test_options_that_say_nothing_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(SourceOptionError):
        StreamReader({"path": "/mnt/mq"} | options, MESSAGE_SCHEMA)


@pytest.mark.parametrize(
    "options",
    [
        {"places": "{}"},
        {"places": "/mnt/a"},
        {"places": '{"a": 7}'},
        {"places": '{"a": "/mnt/a", "a": "/mnt/b"}'},
        {"places": '{"a": "http://broker-a"}'},
        {"places": '{"a": "/mnt/a"}', "startingOffsetsByTimestamp": '{"orders": {"0": 7}}'},
    ],
)
def test_places_that_say_nothing_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(SourceOptionError):
        StreamReader(options, BROKER_SCHEMA)


def test_places_may_be_a_group_of_the_fleet_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / ".config/fsstore/fleet.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[prod]\na = '/mnt/a'\nb = { ssh = 'b:/mnt/mq', url = 'https://broker-b:9870' }\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    reader = StreamReader({"places": "@prod"}, BROKER_SCHEMA)
    assert [(one.broker, one.place) for one in reader._brokers.places] == [
        ("a", "/mnt/a"),
        ("b", "https://broker-b:9870"),
    ]

"""docs/fleet.md, 5: one stream over the stores of several brokers, served and mounted here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from engine import back_up
from fsstore.spark import FsstoreSource
from tests.mountctl.conftest import Site, clear, eventually, site_in, succeed
from tests.mountctl.served import Server, served
from tests.spark.streams import PROJECT, running

SMALL_BATCH = 300
Places = dict[str, str]


@contextmanager
def mounted(folder: Path) -> Iterator[Site]:
    """A mounted store with a topic `orders`."""
    folder.mkdir()
    with contextmanager(site_in)(folder) as site:
        try:
            site.mounted()
            succeed("topics", "create", site.mountpoint, "orders")
            yield site
        finally:
            clear([site.mountpoint])


def publish(site: Site, begin: int, end: int) -> None:
    """Messages of queue 0 with numbers as bodies."""
    (site.mountpoint / "orders/0/append").write_text("".join(f"{number}\n" for number in range(begin, end)))


@contextmanager
def without(site: Site) -> Iterator[None]:
    """The store is unmounted for the block."""
    succeed("umount", site.mountpoint)
    yield
    site.mounted()


@contextmanager
def mounted_copy(folder: Path, original: Site) -> Iterator[Site]:
    """A backup of a store as it is now, mounted to read."""
    folder.mkdir()
    with contextmanager(site_in)(folder) as site:
        try:
            with without(original):
                back_up(original.store, site.store)
            yield site.mounted("--read-only")
        finally:
            clear([site.mountpoint])


def bring_up_to_date(copy: Site, original: Site) -> None:
    succeed("umount", copy.mountpoint)
    back_up(original.store, copy.store)
    copy.mounted("--read-only")


class Received:
    """Rows of a stream by batch: broker, queue offset, body."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, int, str]]] = {}

    def take(self, batch: DataFrame, number: int) -> None:
        """For foreachBatch."""
        self.batches[number] = [(row.broker, row.queue_offset, row.body.decode()) for row in batch.collect()]

    def brokers(self) -> dict[str, list[tuple[int, str]]]:
        """What came of each broker, in order."""
        return by_broker([row for number in sorted(self.batches) for row in self.batches[number]])


def by_broker(rows: list[tuple[str, int, str]]) -> dict[str, list[tuple[int, str]]]:
    found = defaultdict(list)
    for broker, offset, body in rows:
        found[broker].append((offset, body))
    return dict(found)


def numbered(begin: int, end: int) -> list[tuple[int, str]]:
    return [(number, str(number)) for number in range(begin, end)]


def stream_of(spark: SparkSession, places: Places, **options: object) -> DataFrame:
    spark.dataSource.register(FsstoreSource)
    return spark.readStream.format("fsstore").options(places=json.dumps(places), **options).load()


def read_once(spark: SparkSession, places: Places, checkpoint: Path, **options: object) -> dict[str, Any]:
    """What a query reads that ends when it has read all."""
    received = Received()
    stream = stream_of(spark, places, **{"startingOffsets": "earliest", **options})
    with running(stream, received, checkpoint, availableNow=True) as query:
        assert query.awaitTermination(60)
    return received.brokers()


def read_single(spark: SparkSession, site: Site, checkpoint: Path) -> list[tuple[int, str]]:
    """What a query over a single mount reads."""
    received = Received()
    spark.dataSource.register(FsstoreSource)
    stream = spark.readStream.format("fsstore").option("startingOffsets", "earliest").load(str(site.mountpoint))
    with running(stream.selectExpr("*", "'' as broker"), received, checkpoint, availableNow=True) as query:
        assert query.awaitTermination(60)
    return received.brokers().get("", [])


def has_received(received: Received, **counts: int) -> None:
    def has_all() -> bool:
        found = received.brokers()
        return all(len(found.get(broker, ())) >= count for broker, count in counts.items())

    eventually(has_all, f"{counts} have come")


@contextmanager
def job(*arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A stream in a process of its own, killed at the end with all that it started."""
    words = [sys.executable, "-m", "tests.spark.streamjob", *map(str, arguments)]
    process = subprocess.Popen(words, cwd=PROJECT, start_new_session=True, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_each_message_of_each_broker_comes_once(tmp_path: Path) -> None:
    """5.7 `spark.readStream.format("fsstore")` with the option `places` is one stream over all brokers, with the
    broker's name in `broker`. Each message comes in exactly one batch, and the messages of a queue come in order.
    This holds when the query, a server or a daemon is killed and started again."""
    kept = tmp_path / "kept"
    kept.mkdir()

    def rows() -> list[tuple[str, int, str]]:
        return [tuple(row) for file in sorted(kept.glob("*.json")) for row in json.loads(file.read_text())]

    def until_count(count: int) -> None:
        eventually(lambda: len(rows()) >= count, f"{count} rows")

    with mounted(tmp_path / "a") as a, mounted(tmp_path / "b") as b, ExitStack() as stack:
        publish(a, 0, 900)
        publish(b, 0, 900)
        first = stack.enter_context(served(a.mountpoint, tmp_path / "a"))
        arguments = json.dumps({"a": first.origin, "b": str(b.mountpoint)}), tmp_path / "checkpoint", kept
        with job(*arguments):
            until_count(SMALL_BATCH)
        with job(*arguments):  # the first was killed among its batches
            until_count(SMALL_BATCH * 3)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
            succeed("umount", "--lazy", b.mountpoint)
            b.mounted()
            publish(b, 900, 1_000)
            stack.pop_all()  # it was killed: nothing of it is to be ended in order
            with served(a.mountpoint, tmp_path / "b", "--listen", f"127.0.0.1:{first.port}"):
                publish(a, 900, 960)
                until_count(1_960)
                eventually(lambda: len(rows()) == 1_960, "all came")
    assert by_broker(rows()) == {"a": numbered(0, 960), "b": numbered(0, 1_000)}


def test_a_broker_that_is_away_is_named_and_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    """5.8 While a broker is away, the stream reads the others. The driver's log and the query's progress name the
    missing broker. When it is back, reading goes on from the last position. After `brokerLossTimeout` the query
    fails with an error that names the broker, unless `failOnBrokerLoss` is false. A batch that has begun always
    waits that long for its brokers."""
    received, checkpoint = Received(), tmp_path / "checkpoint"
    with mounted(tmp_path / "a") as a, mounted(tmp_path / "b") as b:
        publish(a, 0, 10)
        publish(b, 0, 10)
        with served(a.mountpoint, tmp_path / "a") as server:
            places = {"a": server.origin, "b": str(b.mountpoint)}
            with running(stream_of(spark, places, startingOffsets="earliest"), received, checkpoint) as query:
                has_received(received, a=10, b=10)
                stop(server)
                publish(b, 10, 20)
                has_received(received, b=20)
                eventually(lambda: is_named_away(query), "progress names it")
                publish(a, 10, 15)
                with served(a.mountpoint, tmp_path / "b", "--listen", f"127.0.0.1:{server.port}") as again:
                    has_received(received, a=15)
                    stop(again)
        failing = stream_of(spark, places, brokerLossTimeout="1s")
        with (
            running(failing, received, checkpoint) as query,
            pytest.raises(Exception, match=rf"broker a at {places['a']}: away since"),
        ):
            query.awaitTermination(60)
        publish(b, 20, 25)
        going_on = stream_of(spark, places, brokerLossTimeout="1s", failOnBrokerLoss="false")
        with running(going_on, received, checkpoint) as query:
            has_received(received, b=25)
            time.sleep(1.5)  # longer than a broker may be away
            publish(b, 25, 30)
            has_received(received, b=30)
        last = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
        for name in (f"{last}", f".{last}.crc"):
            (checkpoint / "commits" / name).unlink()  # as if the query had died before it committed the batch
        clear([b.mountpoint])
        with (
            running(going_on, received, checkpoint) as query,
            pytest.raises(Exception, match=rf"broker b at {places['b']}: away since"),
        ):
            query.awaitTermination(60)
    assert received.brokers() == {"a": numbered(0, 15), "b": numbered(0, 30)}


def stop(server: Server) -> None:
    server.process.terminate()
    server.process.wait()


def is_named_away(query: Any) -> bool:
    """Whether the progress of a query says that broker `a` is away, and why."""
    progress = query.lastProgress
    seen = {} if progress is None else progress["sources"][0]["latestOffset"]
    return "away since 20" in str(seen) and "Connection refused" in str(seen)


def test_brokers_join_and_leave_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """5.9 A broker that the checkpoint does not have joins by `startingOffsets`, in a batch without its messages. At
    the first start all brokers must answer within a minute. A broker that is no longer among the places is not read;
    if it becomes a place again, it goes on from its position. A checkpoint of a single store is taken for the only
    place, and refused if there are several places."""
    checkpoint = tmp_path / "checkpoint"
    with mounted(tmp_path / "a") as a, mounted(tmp_path / "b") as b:
        publish(a, 0, 10)
        publish(b, 0, 10)
        one, both = {"a": str(a.mountpoint)}, {"a": str(a.mountpoint), "b": str(b.mountpoint)}
        assert read_single(spark, a, checkpoint) == numbered(0, 10)
        publish(a, 10, 15)
        with pytest.raises(Exception, match="the checkpoint is of one store, and does not say which"):
            read_once(spark, both, checkpoint)
        assert read_once(spark, one, checkpoint) == {"a": numbered(10, 15)}
        assert read_once(spark, both, checkpoint) == {"b": numbered(0, 10)}
        publish(a, 15, 20)
        publish(b, 10, 20)
        assert read_once(spark, one, checkpoint) == {"a": numbered(15, 20)}
        assert read_once(spark, both, checkpoint, startingOffsets="latest") == {"b": numbered(10, 20)}
        with pytest.raises(Exception, match=r"broker c at http://127\.0\.0\.1:1: away since"):
            read_once(spark, {**one, "c": "http://127.0.0.1:1"}, tmp_path / "new", brokerLossTimeout="1s")
        with pytest.raises(Exception, match="the checkpoint has positions of a, b"):
            read_single(spark, a, checkpoint)


def test_places_with_one_log_are_one_broker_to_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """5.10 A stream, too, takes places with the same log for one broker, under the name in the checkpoint. When the
    place that is read is away, another place takes over as soon as it has everything that was read."""
    checkpoint = tmp_path / "checkpoint"
    with mounted(tmp_path / "a") as a:
        publish(a, 0, 10)
        with mounted_copy(tmp_path / "copy", a) as copy:
            places = {"copy": str(copy.mountpoint), "a": str(a.mountpoint)}
            publish(a, 10, 20)
            assert read_once(spark, places, checkpoint) == {"a": numbered(0, 20)}, "the fullest"
            publish(a, 20, 30)
            with without(a):
                with pytest.raises(Exception, match=r"broker a at .* it lacks messages that were read elsewhere"):
                    read_once(spark, places, checkpoint, brokerLossTimeout="1s")
                bring_up_to_date(copy, a)
                assert read_once(spark, places, checkpoint) == {"a": numbered(20, 30)}, "the copy stood in"
            publish(a, 30, 40)
            assert read_once(spark, places, checkpoint) == {"a": numbered(30, 40)}

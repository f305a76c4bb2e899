"""Spark's plain file sources over the mounted tree: text, json, csv on streams, binaryFile on queues."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.mount.harness import PATIENCE_S, Mounted, bodies, mounted, publish, sh

LINES = 3_000


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    with mounted(tmp_path_factory.mktemp("plain")) as mount:
        orders = mount.topic("orders")
        for queue in range(2):
            lines = (f'{{"id": {number}, "queue": {queue}}}\n' for number in range(LINES))
            (orders / str(queue) / "append").write_text("".join(lines))
        (mount.topic("prices") / "0/append").write_text("article,price\napple,7\npear,9\n")
        blobs = mount.topic("blobs")
        publish(blobs / "0/append@frame=write", b"\x00\xff", b"two\nlines", b"")
        publish(blobs / "0/append@format=json", b'{"body": ""}\n', b'{"body": "last"}\n')
        yield mount


@pytest.fixture
def small_splits(spark: SparkSession) -> Iterator[None]:
    """A task for each few kilobytes."""
    names = {"spark.sql.files.maxPartitionBytes": "10000", "spark.sql.files.openCostInBytes": "0"}
    before = {name: spark.conf.get(name) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, str(value))


@pytest.mark.usefixtures("small_splits")
def test_streams_are_read_as_text_by_many_tasks_and_no_line_is_cut(spark: SparkSession, mount: Mounted) -> None:
    frame = spark.read.text(f"{mount.root}/orders/*.log")
    assert frame.rdd.getNumPartitions() > 10
    found = sorted(row.value for row in frame.collect())
    assert found == sorted(sh("cat orders/*.log", mount.root).splitlines())
    assert len(found) == 2 * LINES


@pytest.mark.usefixtures("small_splits")
def test_streams_of_json_lines_are_a_table(spark: SparkSession, mount: Mounted) -> None:
    frame = spark.read.schema("id long, queue long").json(f"{mount.root}/orders/*.log")
    found = frame.groupBy("queue").agg({"id": "sum"}).collect()
    assert {row.queue: row["sum(id)"] for row in found} == dict.fromkeys((0, 1), sum(range(LINES)))


def test_a_stream_of_csv_is_a_table(spark: SparkSession, mount: Mounted) -> None:
    frame = spark.read.csv(f"{mount.root}/prices/0.log", header=True, inferSchema=True)
    assert [tuple(row) for row in frame.collect()] == [("apple", 7), ("pear", 9)]


def test_a_queue_is_its_messages_as_binary_files(spark: SparkSession, mount: Mounted) -> None:
    found = spark.read.format("binaryFile").load(f"{mount.root}/blobs/0").collect()
    by_name = {Path(row.path).name: bytes(row.content) for row in found}
    assert by_name == {f"{number:020}": body for number, body in enumerate(bodies(mount.root / "blobs/0")) if body}
    assert set(by_name.values()) == {b"\x00\xff", b"two\nlines", b"last"}  # Spark skips what has no bytes


def test_globs_and_times_choose_messages(spark: SparkSession, mount: Mounted) -> None:
    files = spark.read.format("binaryFile")
    queue = mount.root / "orders/0"
    assert files.option("pathGlobFilter", "*0012[0-4]").load(str(queue)).count() == 5
    stored = os.stat(queue / "0").st_mtime
    hour = timedelta(hours=1)
    before, after = (
        (datetime.fromtimestamp(stored, UTC) + way * hour).strftime("%Y-%m-%dT%H:%M:%S") for way in (-1, 1)
    )
    files = spark.read.format("binaryFile").option("pathGlobFilter", "*0000[0-9]")
    assert files.option("modifiedAfter", before).load(str(queue)).count() == 10
    assert files.option("modifiedAfter", after).load(str(queue)).count() == 0


def test_checksum_files_that_hadoop_looks_for_are_never_there(mount: Mounted) -> None:
    for name in ("orders/.0.log.crc", f"orders/0/.{0:020}.crc", "@parquet/.x.parquet.crc"):
        assert not (mount.root / name).exists()


def test_a_checksum_file_beside_a_stream_is_asked_for_once(mount: Mounted) -> None:
    absent = mount.root / "orders/.0.log.crc"
    assert not absent.exists()
    mount.daemon.send_signal(signal.SIGSTOP)  # whoever still asks it waits
    try:
        again = subprocess.run(["test", "-e", absent], timeout=PATIENCE_S, check=False)
    finally:
        mount.daemon.send_signal(signal.SIGCONT)
    assert again.returncode == 1

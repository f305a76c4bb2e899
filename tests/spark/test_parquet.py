"""`@parquet` of a real mount, read by Spark and its neighbours: the whole dataset, pruned, and while things end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.status import StatusTracker

from engine import FileSizes, Message, MessageStore, StoreConfig
from fsstore.jobs.mount import QueueRange
from fsstore.parquet.names import segment_name
from fsstore.spark import MESSAGE_SCHEMA, ExpiredFilesError, messages
from tests.mount.harness import REPOSITORY, Mounted, mounted, until

ORDERS = 30_000
ODD_TOPICS = ("__HIVE_DEFAULT_PARTITION__", "%" * 100 + "41")
"""Topic names that readers may take for null, or that need more escapes than a name has room for."""
SIZES = FileSizes(commit_log_bytes=8 << 20, consume_queue_entries=70_000, index_slots=5_000, index_entries=100_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of four topics, one of them named as a number."""
    folder = tmp_path_factory.mktemp("parquet")
    with MessageStore.open(folder / "store", StoreConfig(sizes=SIZES), create=True) as store:
        store.create_topic("orders", 2)
        store.put_lines("orders", b"".join(b"%0200d\n" % number for number in range(ORDERS)), 0, tags="paid")
        store.put_lines("orders", b"".join(b"%d\n" % number for number in range(5_000)), 1)
        store.create_topic("2024", 1)
        store.put(Message("2024", b"\x00\xff", keys=["K-1", "K-2"], tags="t", properties={"city": "Köln"}), 0)
        store.create_topic("%RETRY%g", 1)
        store.put(Message("%RETRY%g", b"again", born_time_ms=1_700_000_000_123, flag=7), 0)
        for topic in ODD_TOPICS:
            store.create_topic(topic, 1)
            store.put(Message(topic, b"odd"), 0)
        store.create_topic("silent", 1)
    return folder


@pytest.fixture(scope="module")
def mount(folder: Path) -> Iterator[Mounted]:
    with mounted(folder, store=folder / "store") as mount:
        yield mount


def rendered_files(mount: Mounted) -> int:
    return int(mount.status()["parquet"]["rendered_files"])


def files_read(frame: DataFrame) -> int:
    """How many files Spark's plan is left with."""
    plan: Any = frame._jdf.queryExecution().executedPlan()
    leaves = plan.collectLeaves()
    scans = [leaf for leaf in map(leaves.apply, range(leaves.size())) if "FileSourceScan" in leaf.getClass().getName()]
    return int(scans[0].selectedPartitions().totalNumberOfFiles())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topics": "app"}, r"topics is a list of names: \['app'\], and not 'app'"),
        ({"since": "2026-11-28"}, "since is a datetime, and not '2026-11-28'"),
        ({"until": 7}, "until is a datetime, and not 7"),
    ],
)
def test_a_text_for_a_list_or_a_time_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        messages(spark, tmp_path, **given)


def test_the_dataset_has_topics_and_queues_as_partitions(spark: SparkSession, mount: Mounted) -> None:
    frame = spark.read.parquet(f"{mount.root}/@parquet")
    found = frame.groupBy("topic", "queue").count().collect()
    assert {(str(row.topic), row.queue, row["count"]) for row in found} == {
        ("orders", 0, ORDERS),
        ("orders", 1, 5_000),
        ("2024", 0, 1),
        ("%RETRY%g", 0, 1),
        *((topic, 0, 1) for topic in ODD_TOPICS),
    }


def test_the_fixed_schema_is_what_the_files_have(spark: SparkSession, mount: Mounted) -> None:
    inferred = spark.read.parquet(f"{mount.root}/@parquet")
    assert {field.name for field in inferred.schema} == {field.name for field in MESSAGE_SCHEMA}
    fixed = messages(spark, mount.root)
    assert fixed.schema == MESSAGE_SCHEMA
    for field in MESSAGE_SCHEMA:
        if field.name != "topic":
            assert inferred.schema[field.name].dataType.simpleString() == field.dataType.simpleString()


def test_a_topic_that_is_a_number_stays_a_string(spark: SparkSession, mount: Mounted) -> None:
    (row,) = messages(spark, mount.root, topics=["2024"]).collect()
    assert (row.topic, row.queue, row.queue_offset) == ("2024", 0, 0)
    assert bytes(row.body) == b"\x00\xff"
    assert row["keys"] == ["K-1", "K-2"]
    assert row.tags == "t"
    assert row.properties == {"KEYS": "K-1 K-2", "TAGS": "t", "city": "Köln"}


def test_a_topic_of_any_name_is_found_by_it(spark: SparkSession, mount: Mounted) -> None:
    every = messages(spark, mount.root)
    rows = every.where(every.topic.isin(*ODD_TOPICS)).select("topic", "body").collect()
    assert sorted((row.topic, bytes(row.body)) for row in rows) == sorted((topic, b"odd") for topic in ODD_TOPICS)
    for frame in (messages(spark, mount.root).where("topic = '%RETRY%g'"), messages(spark, mount.root, ["%RETRY%g"])):
        (row,) = frame.selectExpr("*", "unix_millis(born_time) as born_ms").collect()
        assert (row.topic, bytes(row.body), row.born_ms, row.flag) == ("%RETRY%g", b"again", 1_700_000_000_123, 7)


def test_every_body_comes_back_in_order(spark: SparkSession, mount: Mounted) -> None:
    frame = messages(spark, mount.root, ["orders"]).where("queue = 0").orderBy("queue_offset")
    rows = frame.selectExpr("queue_offset", "cast(body as string) as body").collect()
    assert [row.queue_offset for row in rows] == list(range(ORDERS))
    assert all(int(row.body) == row.queue_offset for row in rows)


def test_sparks_reader_of_single_rows_reads_the_same(spark: SparkSession, mount: Mounted) -> None:
    def read() -> list[Row]:
        rows: list[Row] = messages(spark, mount.root).orderBy("topic", "queue", "queue_offset").collect()
        return rows

    by_columns = read()
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    try:
        assert read() == by_columns
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")
    assert len(by_columns) == ORDERS + 5_002 + len(ODD_TOPICS)


def test_partitions_are_pruned_before_anything_is_read(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    with mounted(tmp_path, store=copy_of(folder / "store", tmp_path)) as mount:
        frame = messages(spark, mount.root).where("topic = 'orders' and queue = 1")
        assert frame.count() == 5_000
        assert files_read(frame) == 1
        assert rendered_files(mount) == 1


def test_times_choose_files_and_messages(spark: SparkSession, mount: Mounted) -> None:
    every = messages(spark, mount.root, ["orders", "2024"])
    middle_ms = every.where("queue = 0 and queue_offset = 15000").selectExpr("unix_millis(store_time)").first()[0]
    middle = datetime.fromtimestamp(middle_ms / 1000, UTC)
    older = messages(spark, mount.root, ["orders", "2024"], until=middle)
    newer = messages(spark, mount.root, ["orders", "2024"], since=middle)
    assert older.count() + newer.count() == every.count()
    assert newer.where("topic = '2024'").count() == 1
    assert older.where(older.store_time >= middle).count() == 0
    assert messages(spark, mount.root, since=datetime(2100, 1, 1, tzinfo=UTC)).count() == 0


def copy_of(store: Path, folder: Path) -> Path:
    subprocess.run(["cp", "-r", "--sparse=always", store, folder / "copy"], check=True)
    return folder / "copy"


def test_row_groups_are_pruned_by_offset_and_time(mount: Mounted) -> None:
    whole = mount.root / "@parquet/topic=orders/queue=0" / segment_name(0, ORDERS).decode()
    fragment = next(iter(ds.dataset([str(whole)], format="parquet").get_fragments()))
    assert fragment.metadata.num_row_groups == 2, "two files of the log"
    kept = fragment.subset(ds.field("queue_offset") < 100)
    assert kept.num_row_groups == 1
    long_ago = ds.scalar(datetime(2001, 1, 1, tzinfo=UTC))
    assert fragment.subset(ds.field("store_time") > long_ago).num_row_groups == 2
    assert fragment.subset(ds.field("store_time") < long_ago).num_row_groups == 0


def test_what_no_query_wants_is_not_rendered(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    with mounted(tmp_path, store=copy_of(folder / "store", tmp_path)) as mount:
        frame = messages(spark, mount.root, ["orders"]).where("queue = 0")
        (row,) = frame.selectExpr(
            "count(tags) as count", "min(store_time) as oldest", "max(queue_offset) as last"
        ).collect()
        assert (row["count"], row["last"]) == (ORDERS, ORDERS - 1)
        rendered = mount.status()["parquet"]
        assert rendered["rendered_chunks"] == 3 * rendered["rendered_files"] == 3 * files_read(frame)
        assert frame.selectExpr("sum(length(body))").first()[0] == 200 * ORDERS
        assert mount.status()["parquet"]["rendered_chunks"] == 4 * rendered["rendered_files"]


def test_spark_reads_only_the_row_groups_and_columns_that_it_needs(spark: SparkSession, mount: Mounted) -> None:
    frame = messages(spark, mount.root, ["orders"]).where("queue = 0 and queue_offset = 29000").select("queue_offset")
    assert [row.queue_offset for row in frame.collect()] == [29_000]
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert re.search(r"PushedFilters: \[.*EqualTo\(queue_offset,29000\)", plan)
    assert "ReadSchema: struct<queue_offset:bigint>" in plan


def test_duckdb_polars_and_pyarrow_read_the_dataset(mount: Mounted) -> None:
    pattern = f"{mount.root}/@parquet/topic=orders/*/*.parquet"
    with duckdb.connect() as connection:
        query = f"select queue, count(*), max(queue_offset) from read_parquet('{pattern}', hive_partitioning = true)"
        assert connection.sql(query + " group by queue order by queue").fetchall() == [
            (0, ORDERS, ORDERS - 1),
            (1, 5_000, 4_999),
        ]
    frame = pl.scan_parquet(pattern).select(pl.len(), pl.col("queue_offset").sum()).collect()
    assert frame.row(0) == (ORDERS + 5_000, sum(range(ORDERS)) + sum(range(5_000)))
    table = ds.dataset(f"{mount.root}/@parquet", partitioning="hive").to_table(columns=["topic", "queue_offset"])
    assert set(table["topic"].to_pylist()) == {"orders", "2024", "%RETRY%g", None, ODD_TOPICS[1]}
    everything = f"{mount.root}/@parquet/*/*/*.parquet"
    with duckdb.connect() as connection:
        query = f"select distinct topic from read_parquet('{everything}', hive_partitioning = true, "
        topics = connection.sql(query + "hive_types_autocast = false)").fetchall()
    assert {topic for (topic,) in topics} == {"orders", "2024", "%RETRY%g", *ODD_TOPICS}


def test_a_range_that_a_job_listed_is_read_while_the_queue_grows(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    with mounted(tmp_path, store=copy_of(folder / "store", tmp_path)) as mount:
        frame = messages(spark, mount.root, ["orders"]).where("queue = 1")
        (mount.root / "orders/1/append").write_bytes(b"one more\n" * 10)
        assert frame.count() == 5_000
        assert messages(spark, mount.root, ["orders"]).where("queue = 1").count() == 5_010


def reader_of(path: Path) -> subprocess.Popen[bytes]:
    """A process that reads a file over and over; it ends with the first error and says which."""
    code = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print("open", flush=True)
try:
    while True:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(fd, 0, 0)
        while os.read(fd, 1 << 20):
            pass
except OSError as error:
    print(error.errno, flush=True)
"""
    reader = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=REPOSITORY
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"open\n"
    return reader


def test_a_daemon_that_is_asked_to_end_during_reads_ends_and_unmounts(folder: Path, tmp_path: Path) -> None:
    options = {"parquet": {"memory_bytes": 1 << 20}}
    with mounted(tmp_path, store=copy_of(folder / "store", tmp_path), options=options) as mount:
        files = sorted((mount.root / "@parquet/topic=orders/queue=0").iterdir())
        readers = [reader_of(path) for path in files[:2] * 2]
        try:
            until("files are being rendered", lambda: rendered_files(mount) > 0)
            assert mount.stop() == 0
            until("every reader has its error", lambda: all(reader.poll() is not None for reader in readers))
        finally:
            for reader in readers:
                reader.kill()
                reader.communicate()


def test_retention_takes_a_file_away_from_its_readers_with_an_error(folder: Path, tmp_path: Path) -> None:
    config = {"retention": {"max_bytes": 9 << 20, "clean_interval_ms": 200, "delete_pause_ms": 0}}
    options = {"parquet": {"memory_bytes": 1 << 20}}
    with mounted(tmp_path, config=config | {"sizes": sizes()}, options=options) as mount:
        queue = mount.topic("orders") / "0" / "append"
        queue.write_bytes(b"%0200d\n" % 1 * 4_000)
        oldest = mount.root / "@parquet/topic=orders/queue=0" / segment_name(0, 4_000).decode()
        reader = reader_of(oldest)
        try:
            until("it is being read", lambda: rendered_files(mount) > 0)
            for _ in range(100):
                queue.write_bytes(b"%01000d\n" % 1 * 4_000)
                if not oldest.exists():
                    break
            until("it has gone", lambda: not oldest.exists())
            until("its reader has an error", lambda: reader.poll() is not None)
        finally:
            reader.kill()
            assert reader.communicate()[0] in (b"5\n", b"116\n")
        assert oldest.name not in os.listdir(oldest.parent)
        assert mount.status()["parquet"]["left_out_messages"] == 0


def sizes() -> dict[str, int]:
    return {name: getattr(SIZES, name) for name in SIZES.__slots__} | {"commit_log_bytes": 1 << 20}


def test_a_file_that_expires_while_spark_plans_is_said(
    spark: SparkSession, mount: Mounted, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(mount.root / "@parquet/topic=orders", tmp_path / "@parquet/topic=orders")
    second = next((tmp_path / "@parquet/topic=orders/queue=1").iterdir())
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    assert messages(spark, tmp_path, ["orders"], since=long_ago).count() == ORDERS + 5_000
    content = second.read_bytes()
    with vanishing(spark, second) as asked, pytest.raises(ExpiredFilesError) as error:
        asked(lambda: messages(spark, tmp_path, ["orders"], since=long_ago))
    assert error.value.parts == [QueueRange("orders", 1, 0, 5_000)]
    second.write_bytes(content)
    with vanishing(spark, second) as asked:
        left = asked(lambda: messages(spark, tmp_path, ["orders"], since=long_ago, onExpired="skip"))
    assert left.count() == ORDERS
    assert "orders/1 [0, 5000)" in caplog.text


@contextmanager
def vanishing(spark: SparkSession, file: Path) -> Iterator[Callable[[Callable[[], DataFrame]], DataFrame]]:
    """Gives what makes a frame while `file` is removed between Spark's look whether it is there, and its listing: that
    is a job, which waits until other tasks have ended."""
    tracker, gate = spark.sparkContext.statusTracker(), file.parents[3] / "gate"
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "0")

    def asked(make: Callable[[], DataFrame]) -> DataFrame:
        others = spark.sparkContext.defaultParallelism
        with ThreadPoolExecutor(2) as threads:
            blocking = threads.submit(
                lambda: spark.sparkContext.parallelize(range(others), others).foreach(wait_for(gate))
            )
            try:
                until("the tasks run", lambda: running_tasks(tracker) == others)
                making = threads.submit(make)
                until("Spark lists", lambda: making.done() or len(tracker.getActiveJobsIds()) == 2)
                file.unlink()
            finally:
                gate.touch()
            blocking.result()
            return making.result()

    try:
        yield asked
    finally:
        spark.conf.unset("spark.sql.sources.parallelPartitionDiscovery.threshold")
        gate.unlink()


def wait_for(gate: Path) -> Callable[[int], None]:
    """A task that ends when `gate` is there."""

    def task(number: int) -> None:
        while not gate.exists():
            time.sleep(0.01)

    return task


def running_tasks(tracker: StatusTracker) -> int:
    """Tasks that run at this moment."""
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)

"""Writing back: rows become messages, with their bytes, keys and tags, in batches and in streams."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from fsstore.jobs.once import Batch
from fsstore.jobs.publishing import BulkAppend, publish_once
from fsstore.spark import messages, write_topic
from tests.mount.harness import Mounted, mounted, sh, until
from tests.spark.streams import PROJECT, source


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    with mounted(tmp_path_factory.mktemp("writing")) as mount:
        yield mount


def test_rows_become_messages_with_keys_and_tags(spark: SparkSession, mount: Mounted) -> None:
    rows = [("zwölf\nlines", ["A 1".replace(" ", "-"), "B"], "paid"), ('"quoted" \\', None, None), (None, [], "")]
    frame = spark.createDataFrame(rows, "text string, labels array<string>, state string")
    assert write_topic(frame, mount.root, "texts", body="text", key="labels", tags="state") == 3
    found = {bytes(row.body).decode(): row for row in messages(spark, mount.root, ["texts"]).collect()}
    assert set(found) == {"zwölf\nlines", '"quoted" \\', ""}
    assert (found["zwölf\nlines"]["keys"], found["zwölf\nlines"].tags) == (["A-1", "B"], "paid")
    assert (found['"quoted" \\']["keys"], found['"quoted" \\'].tags) == ([], "")


def test_bytes_stay_what_they_are(spark: SparkSession, mount: Mounted) -> None:
    every = [bytes(range(256)), b"\n\n", b"\x00", b"plain", os.urandom(3_000), b""]
    frame = spark.createDataFrame([(body, [number]) for number, body in enumerate(every)], "body binary, n array<int>")
    assert write_topic(frame, mount.root, "bytes", key="n") == len(every)
    found = {row["keys"][0]: bytes(row.body) for row in messages(spark, mount.root, ["bytes"]).collect()}
    assert found == {str(number): body for number, body in enumerate(every)}


def test_a_batch_is_published_in_few_writes_and_is_on_disk(spark: SparkSession, mount: Mounted) -> None:
    frame = spark.range(20_000).selectExpr("repeat(cast(id as string), 20) as body").coalesce(1)
    before = mount.status()["stats"]
    assert write_topic(frame, mount.root, "many") == 20_000
    after = mount.status()["stats"]
    assert after["put_messages"] - before["put_messages"] == 20_000
    assert after["durable_end"] == after["physical_end"]
    queues = [queue for queue in range(4) if (mount.root / f"many/{queue}/@first").is_symlink()]
    assert 1 <= len(queues) <= 4


def test_a_stream_publishes_what_it_makes_of_another_topic(spark: SparkSession, mount: Mounted, tmp_path: Path) -> None:
    mount.topic("numbers")

    def publish(batch: DataFrame, _: int) -> None:
        write_topic(batch.selectExpr("concat('even ', cast(body as string)) as body"), mount.root, "evens")

    stream = source(spark, mount.root, subscribe="numbers", startingOffsets="earliest")
    evens = stream.where("cast(cast(body as string) as int) % 2 = 0").writeStream.foreachBatch(publish)
    query = evens.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    (mount.root / "numbers/0/append").write_bytes(b"".join(b"%d\n" % number for number in range(10)))
    assert query.start().awaitTermination(60)
    found = sh("cat evens/*.log", mount.root).splitlines()
    assert sorted(found) == [f"even {number}" for number in range(0, 10, 2)]


def test_what_no_store_can_take_fails_the_job_and_says_so(spark: SparkSession, mount: Mounted) -> None:
    frame = spark.createDataFrame([("a", ["fine"]), ("b", ["has space"])], "body string, key array<string>").coalesce(1)
    with pytest.raises(
        Exception, match=r"message 2 of 2: keys are a list of texts that are not empty and hold no space"
    ):
        write_topic(frame, mount.root, "refused", key="key")
    assert messages(spark, mount.root, ["refused"]).count() == 0


def test_a_write_goes_on_when_the_daemon_has_come_back(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        mount.topic("orders")
        append = BulkAppend(str(mount.root), "orders")
        numbers = [b"%050d" % number for number in range(40_000)]
        for number in numbers:
            append.add(b'{"body": "%s"}' % number)
        until("something has been sent", lambda: mount.status()["stats"]["put_messages"] > 0)
        mount.kill()
        with mounted(tmp_path, store=mount.store) as again:
            with append:
                append.add(b'{"body": "last"}')
            found = sh("cat orders/*.log", again.root).encode().splitlines()
    assert sorted(found) == sorted([*numbers, b"last"])


def in_topic(mount: Mounted, topic: str) -> list[str]:
    return sorted(sh(f"cat {topic}/*.log", mount.root).splitlines())


def test_a_batch_that_died_halfway_is_published_once_when_it_is_repeated(
    spark: SparkSession, mount: Mounted, tmp_path: Path
) -> None:
    is_dead, published = tmp_path / "died", mount.root / "once/keys/spark.job-1.17@all"

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 5 and not is_dead.exists():
                is_dead.touch()
                until("some of it is published", published.is_dir)
                raise RuntimeError("killed")
            yield batch

    frame = spark.range(0, 60_000, 1, 1).selectExpr(
        "id",
        "concat(repeat('x', 100), cast(id % 20000 as string)) as body",
        "array('k', cast(id % 7 as string)) as keys",
    )
    dying = frame.mapInArrow(die_once, frame.schema)
    once: dict[str, Any] = {"key": "keys", "app_id": "job-1", "batch_id": 17, "token": "t"}
    with pytest.raises(Exception, match="killed"):
        write_topic(dying, mount.root, "once", **once)
    assert 0 < len(in_topic(mount, "once")) < 60_000
    assert write_topic(dying.repartition(5), mount.root, "once", **once) == 60_000, "dealt out otherwise"
    bodies = sorted(f"{'x' * 100}{number % 20_000}" for number in range(60_000))
    assert in_topic(mount, "once") == bodies
    assert write_topic(frame.limit(5), mount.root, "once", **once | {"batch_id": 18}) == 5
    assert len(in_topic(mount, "once")) == 60_005


LINES = [b'{"body": "%d", "keys": "k"}' % (number % 30_000) for number in range(60_000)]


def test_tries_of_a_task_publish_its_rows_once_also_at_the_same_time(mount: Mounted) -> None:
    mount.topic("tries")
    batch = Batch.of(str(mount.root), "tries", "job", 1, "token")

    def broken_off() -> Iterator[bytes]:
        yield from LINES[:50_000]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_once(batch, 3, broken_off(), is_repeated=False)
    assert 0 < len(in_topic(mount, "tries")) < 50_000
    code = """
from tests.spark.test_writing import LINES, Batch, publish_once
import sys
publish_once(Batch.of(sys.argv[1], "tries", "job", 1, "token"), 3, LINES, is_repeated=False)
"""
    command = [sys.executable, "-c", code, str(mount.root)]
    tries = [subprocess.Popen(command, cwd=PROJECT) for _ in range(2)]
    assert publish_once(batch, 4, [b'{"body": "of another task"}'], is_repeated=False) == 1
    assert [process.wait(120) for process in tries] == [0, 0]
    assert in_topic(mount, "tries") == sorted([*(str(number % 30_000) for number in range(60_000)), "of another task"])


def test_a_write_whose_answer_was_lost_is_not_repeated(mount: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    mount.topic("answers")

    def lose_the_answer(descriptor: int, data: memoryview) -> int:
        monkeypatch.undo()
        os.write(descriptor, data)
        raise OSError(errno.ENOTCONN, "the daemon has died")

    monkeypatch.setattr("fsstore.jobs.publishing.os.write", lose_the_answer)
    publish_once(Batch.of(str(mount.root), "answers", "job", 1, "token"), 0, LINES[:10], is_repeated=False)
    assert len(in_topic(mount, "answers")) == 10


def test_a_mount_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "@store").mkdir()  # without `control`
    with pytest.raises(OSError, match="Read-only"):
        publish_once(Batch.of(str(tmp_path), "orders", "job", 1, "token"), 0, LINES[:1], is_repeated=False)


def test_marks_of_others_hide_no_row(mount: Mounted) -> None:
    """A forged mark, and one that is copied from a write of the job, stand before rows that others published."""
    batch, others = Batch.of(str(mount.root), "lies", "job", 1, "token"), Batch.of("", "lies", "job", 1, "guessed")
    append = mount.topic("lies") / "0/append@format=json"
    lines = LINES[:10]
    publish_once(batch, 0, lines[:2], is_repeated=False)
    [genuine] = mount.root.glob("lies/keys/spark.job.1@all/*")
    copied = os.getxattr(genuine, "user.mq.property.SPARK_WRITE").decode()
    marks = [copied, "0/999999999/abc", f"0/10/abc/{'0' * 32}"]
    forged = [
        json.dumps({"body": "?", "properties": {"UNIQ_KEY": "spark.job.1", "SPARK_WRITE": mark}}) for mark in marks
    ]
    for line in [*map(str.encode, forged), *others.marked(lines[2:3], 0, "abc")]:
        append.write_bytes(b"".join(part + b"\n" for part in (line, *lines)))
    assert [write.name for write in batch.writes()] == [copied.split("/")[2]]
    before = in_topic(mount, "lies")
    publish_once(batch, 0, lines, is_repeated=True)
    assert in_topic(mount, "lies") == sorted([*before, *map(str, range(2, 10))])


def test_a_streams_batch_is_published_once_by_the_token_of_its_checkpoint(
    spark: SparkSession, mount: Mounted, tmp_path: Path
) -> None:
    mount.topic("events")
    (mount.root / "events/0/append").write_text("a\nb\n")

    def publish(batch: DataFrame, number: int) -> None:
        for _ in range(2):  # as after a failure
            write_topic(batch, mount.root, "copied", app_id="copier", batch_id=number)

    stream = source(spark, mount.root, subscribe="events", startingOffsets="earliest").writeStream.foreachBatch(publish)
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    assert query.start().awaitTermination(60)
    assert in_topic(mount, "copied") == ["a", "b"]
    token = json.loads((tmp_path / "checkpoint/metadata").read_text())["id"]
    assert Batch.of(str(mount.root), "copied", "copier", 0, token).writes()
    assert Batch.of(str(mount.root), "copied", "copier", 0, "another").writes() == []


@pytest.mark.parametrize(
    "once",
    [
        {"app_id": "a b", "batch_id": 1, "token": "t"},
        {"app_id": "job"},
        {"batch_id": 7},
        {"app_id": "job", "batch_id": 7},
    ],
)
def test_batches_that_could_not_be_told_apart_are_refused(spark: SparkSession, once: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="app_id"):
        write_topic(spark.range(1).selectExpr("'b' as body"), "/nowhere", "refused", **once)

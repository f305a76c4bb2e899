"""Writing back: rows become messages, with their bytes, keys and tags, in batches and in streams."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from fsstore.spark import messages, write_topic
from fsstore.spark.writing import BulkAppend
from tests.mount.harness import Mounted, mounted, sh, until
from tests.spark.streams import source


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
        path = mount.topic("orders") / "0" / "append@format=json"
        append = BulkAppend(str(path), str(mount.root))
        numbers = [b"%050d" % number for number in range(40_000)]
        append.lines([b'{"body": "%s"}' % number for number in numbers])
        until("something has been sent", lambda: mount.status()["stats"]["put_messages"] > 0)
        mount.kill()
        with mounted(tmp_path, store=mount.store) as again:
            with append:
                append.lines([b'{"body": "last"}'])
            found = sh("cat orders/0.log", again.root).encode().splitlines()
    assert found == [*numbers, b"last"]

"""A Spark stream of one topic whose batches go to files, until SIGTERM.

    python -m tests.durability.spark_stream MOUNT TOPIC FOLDER

FOLDER/batches/<number>.json is a list of [queue, queue offset, body] for each message, in the order that they came; a
batch that Spark repeats replaces its file. FOLDER/failed says why a query ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from fsstore.spark import FsstoreSource
from tests.mount.harness import REPOSITORY

MOST_MESSAGES = 50_000
"""A batch; the driver holds all of it."""


def main(mount: str, topic: str, folder: Path) -> int:
    """Run the stream."""
    batches = folder / "batches"
    batches.mkdir(parents=True)
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=str(REPOSITORY))
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.local.dir": str(folder / "local"),
    }
    spark = SparkSession.builder.master("local[1]").appName("outlives").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(FsstoreSource)

    def store(batch: DataFrame, number: int) -> None:
        rows: list[Any] = batch.select("queue", "queue_offset", "body").collect()
        found = [[row.queue, row.queue_offset, bytes(row.body).decode()] for row in rows]
        begun = batches / f"{number}.begun"
        begun.write_text(json.dumps(found))
        begun.replace(batches / f"{number}.json")

    query = (
        spark.readStream.format("fsstore")
        .options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=MOST_MESSAGES)
        .load(mount)
        .writeStream.foreachBatch(store)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="500 milliseconds")
        .start()
    )

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        with suppress(Exception):
            query.stop()
        return 0
    except Exception as error:
        (folder / "failed").write_text(str(error))
    return 1


def newest_offset(folder: Path) -> int:
    """Queue offset of the newest message that a stream of one queue brought; -1: it brought none."""
    numbers = [int(file.stem) for file in (folder / "batches").glob("*.json")]
    rows = json.loads((folder / "batches" / f"{max(numbers)}.json").read_text()) if numbers else []
    return rows[-1][1] if rows else -1


def shown(folder: Path) -> list[tuple[int, int, str]]:
    """(queue, queue offset, body) of all messages that a stream brought, in its order."""
    files = sorted((folder / "batches").glob("*.json"), key=lambda file: int(file.stem))
    return [(queue, offset, body) for file in files for queue, offset, body in json.loads(file.read_text())]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))

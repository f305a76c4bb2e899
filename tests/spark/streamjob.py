"""A job that copies a stream over several places to files, a file a batch, until it is killed:
`python -m tests.spark.streamjob PLACES CHECKPOINT FOLDER`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from fsstore.spark import FsstoreSource
from tests.spark.conftest import QUICK_START


def main(places: str, checkpoint: str, folder: str) -> None:
    """Run the stream; it ends with an error, or is killed."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = session.config("spark.driver.extraJavaOptions", QUICK_START).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(FsstoreSource)

    def keep(batch: DataFrame, number: int) -> None:
        rows = [(row.broker, row.queue_offset, row.body.decode()) for row in batch.collect()]
        kept = Path(folder, f"{number:06}.json")
        kept.with_suffix(".new").write_text(json.dumps(rows))
        kept.with_suffix(".new").rename(kept)

    stream = spark.readStream.format("fsstore").option("places", places).option("startingOffsets", "earliest")
    rows = stream.option("maxOffsetsPerTrigger", 400).schema("queue_offset long, body binary, broker string").load()
    writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
    writer.trigger(processingTime="50 milliseconds").start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

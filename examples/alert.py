"""A stream that watches a topic and publishes alerts to another: users with three failed logins within a minute.

python examples/alert.py /mnt/mq logins alerts /var/lib/alert-checkpoint    # --sample: publishes some logins first

Messages of `logins` are JSON like {"user": "ada", "at": "2026-11-22T10:00:00Z", "ok": false}; others are skipped.
After a restart it continues at its checkpoint, and no alert is published twice.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sample import arguments, bodies

from fsstore.spark import FsstoreSource, write_topic

LOGIN = "user string, at timestamp, ok boolean"
FAILURES = 3
SAMPLE = bodies(
    *({"user": "eve", "at": f"2026-11-22T10:00:0{second}Z", "ok": False} for second in range(4)),
    {"user": "ada", "at": "2026-11-22T10:00:07Z", "ok": False},
    {"user": "ada", "at": "2026-11-22T10:00:09Z", "ok": True},
)


def failing(logins: DataFrame) -> DataFrame:
    """A row for each user and minute with too many failures: user, minute, failures."""
    failed = logins.where("not ok").withWatermark("at", "5 minutes")
    counted = failed.groupBy(f.window("at", "1 minute"), "user").agg(f.count("*").alias("failures"))
    return counted.where(f.col("failures") >= FAILURES).select(
        "user", f.col("window.start").alias("minute"), "failures"
    )


def start(spark: SparkSession, mount: str, topic: str, target: str, checkpoint: str, **trigger: Any) -> Any:
    """Start the stream."""
    spark.dataSource.register(FsstoreSource)
    found = (
        spark.readStream.format("fsstore").option("subscribe", topic).option("startingOffsets", "earliest").load(mount)
    )
    logins = found.select(f.from_json(f.col("body").cast("string"), LOGIN).alias("login")).select("login.*")

    def publish(alerts: DataFrame, number: int) -> None:
        found = alerts.select(f.to_json(f.struct("*")).alias("body"), "user")
        write_topic(found, mount, target, key="user", app_id="failed-logins", batch_id=number)

    writer = failing(logins).writeStream.outputMode("update").foreachBatch(publish)
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


def main(mount: str, topic: str, target: str, checkpoint: str) -> None:
    """Watch until interrupted."""
    spark = SparkSession.builder.appName("alert").config("spark.sql.shuffle.partitions", "4").getOrCreate()
    query = start(spark, mount, topic, target, checkpoint, processingTime="1 second")
    with suppress(KeyboardInterrupt):
        query.awaitTermination()


if __name__ == "__main__":
    main(*arguments("MOUNT LOGINS ALERTS CHECKPOINT", [SAMPLE]))

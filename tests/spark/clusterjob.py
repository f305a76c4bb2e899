"""A driver for a cluster: export a mount, then join two of its topics; prints the results as JSON."""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import fsstore.jobs.export as exporting
from fsstore.jobs.export import Export, ExportSelection
from fsstore.spark import FsstoreSource, messages
from fsstore.spark.running import SparkTasks

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(master: str, mount: str, folder: str) -> None:
    """Export in many units, so that something can happen between and within them."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    exporting.FILE_BYTES = 1 << 17
    builder = SparkSession.builder.master(master).appName("cluster test").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.executor.memory", "512m").config("spark.sql.shuffle.partitions", "4")
    builder = builder.config("spark.driver.extraJavaOptions", QUICK_START).config(
        "spark.ui.showConsoleProgress", "false"
    )
    builder = builder.config("spark.executor.extraJavaOptions", QUICK_START)
    spark = builder.config("spark.sql.autoBroadcastJoinThreshold", "-1").getOrCreate()
    units = Export(mount, folder, ExportSelection()).run(SparkTasks(spark))
    spark.dataSource.register(FsstoreSource)
    orders = messages(spark, mount, ["orders"]).select("body", f.explode("keys").alias("key"))
    payments = spark.read.format("fsstore").option("subscribe", "payments").load(mount)
    paid = payments.select(f.explode("keys").alias("key"), "body")
    joined = orders.join(paid, "key").agg(f.count("*").alias("count"), f.countDistinct("key").alias("keys")).first()
    assert joined is not None
    print(json.dumps({"units": len(units), "messages": sum(unit.messages for unit in units), **joined.asDict()}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

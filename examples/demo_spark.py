"""PySpark over a mounted store: messages as files (binaryFile), queues as text, queues as JSON lines.

python examples/demo_spark.py --messages 'mnt/packages/0/0*' --text 'mnt/sources/*.log' --json 'mnt/packages/*.log'
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from glob import glob
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def session() -> SparkSession:
    """A quiet Spark session in this process."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("mounted messages")
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "4")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read_messages(spark: SparkSession, paths: str) -> DataFrame:
    """Message files: their number, the total length of their bodies, and the newest time."""
    files = spark.read.format("binaryFile").load(paths)
    return files.agg(
        f.count("*").alias("messages"), f.sum("length").alias("body_bytes"), f.max("modificationTime").alias("newest")
    )


def count_words(spark: SparkSession, paths: str) -> DataFrame:
    """Lines of queues: the five most frequent first words."""
    lines = spark.read.text(paths)
    first = lines.select(f.regexp_extract("value", r"^\s*(\w{1,20})", 1).alias("first_word")).where("first_word != ''")
    return first.groupBy("first_word").count().orderBy(f.desc("count"), "first_word").limit(5)


def sum_sections(spark: SparkSession, paths: str) -> DataFrame:
    """JSON lines: the five sections of the package archive that take most space."""
    rows = spark.read.json(paths)
    size = f.round(f.sum(f.col("kib").cast("long")) / 1024).cast("long").alias("mib")
    return rows.groupBy("section").agg(f.count("*").alias("packages"), size).orderBy(f.desc("mib")).limit(5)


def show(title: str, read: Callable[[SparkSession, str], DataFrame], spark: SparkSession, paths: str) -> None:
    """Run one job; print its table and its duration."""
    began = time.monotonic()
    rows = read(spark, uri(paths)).collect()
    print(f"{title} {paths}: {time.monotonic() - began:.2f} s")
    for row in rows:
        print("  " + ", ".join(f"{name} {value}" for name, value in row.asDict().items()))


def uri(paths: str) -> str:
    """A glob of local files as URI, because Spark's default file system may be another one."""
    return f"file://{Path(paths).absolute()}"


def main() -> None:
    """Run the jobs that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", help="message files, as binaryFile")
    parser.add_argument("--text", help=".log files, as text")
    parser.add_argument("--json", help=".log files, as JSON lines")
    wanted = parser.parse_args()
    for pattern in filter(None, vars(wanted).values()):
        if not glob(pattern):
            parser.error(f"no file matches {pattern}")
    spark = session()
    try:
        if wanted.messages:
            show("binaryFile", read_messages, spark, wanted.messages)
        if wanted.text:
            show("text", count_words, spark, wanted.text)
        if wanted.json:
            show("json", sum_sections, spark, wanted.json)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()

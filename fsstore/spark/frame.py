"""The messages of a mounted store as a DataFrame, read from its `@parquet/`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fsstore.parquet.names import topic_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGE_SCHEMA = StructType(
    [
        StructField("queue_offset", LongType()),
        StructField("physical_offset", LongType()),
        StructField("body", BinaryType()),
        StructField("keys", ArrayType(StringType())),
        StructField("tags", StringType()),
        StructField("unique_key", StringType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("born_time", TimestampType()),
        StructField("store_time", TimestampType()),
        StructField("born_host", StringType()),
        StructField("store_host", StringType()),
        StructField("flag", IntegerType()),
        StructField("sys_flag", IntegerType()),
        StructField("reconsume_times", IntegerType()),
        StructField("topic", StringType()),
        StructField("queue", IntegerType()),
    ]
)
"""Columns of a message; topic and queue, the partitions, last, as Spark puts them."""


def messages(spark: SparkSession, mount: str | os.PathLike[str], topics: Sequence[str] | None = None) -> DataFrame:
    """All messages of the store mounted at `mount`, or those of `topics`, whose directories alone are then listed.

    The schema is fixed (MESSAGE_SCHEMA): nothing is inferred, so a topic that is named `2024` stays a string. Which
    messages there are is found out now; what is published later is in the next DataFrame.
    """
    root = Path(mount).absolute() / "@parquet"
    folders = [root] if topics is None else [root / os.fsdecode(topic_partition(topic)) for topic in topics]
    reader = spark.read.schema(MESSAGE_SCHEMA).option("basePath", str(root))
    return reader.parquet(*map(str, folders))

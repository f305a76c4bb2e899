"""The messages of a mounted store as a DataFrame, read from its `@parquet/`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.functions import lit
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fsstore.jobs.mount import bounds, files_between
from fsstore.parquet.format import FIELDS, Field, Type
from fsstore.parquet.names import topic_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES: dict[Type, DataType] = {
    Type.INT: IntegerType(),
    Type.LONG: LongType(),
    Type.TIME: TimestampType(),
    Type.BYTES: BinaryType(),
    Type.TEXT: StringType(),
    Type.HOST: StringType(),
    Type.TEXTS: ArrayType(StringType()),
    Type.MAP: MapType(StringType(), StringType()),
}


def schema_of(fields: Sequence[Field]) -> StructType:
    """Spark's schema of messages with these fields. The partitions topic and queue are last, where Spark puts them."""
    columns = [StructField(field.name, _TYPES[field.type]) for field in fields]
    return StructType([*columns, StructField("topic", StringType()), StructField("queue", IntegerType())])


MESSAGE_SCHEMA = schema_of(FIELDS)
"""Columns of a message."""


def messages(
    spark: SparkSession, mount: str | os.PathLike[str], topics: Sequence[str] | None = None, *,
    since: datetime | None = None, until: datetime | None = None,
) -> DataFrame:  # fmt: skip
    """All messages of the store mounted at `mount`, or those of `topics`: then only their directories are listed.
    `since` and `until` select messages stored in [since, until); only the footers of their files are read.

    The schema is fixed (MESSAGE_SCHEMA) and not inferred, so a topic named `2024` stays a string. The messages are
    those at the time of this call; messages that are published later are in the next DataFrame.
    """
    root = Path(mount).absolute() / "@parquet"
    reader = spark.read.schema(MESSAGE_SCHEMA).option("basePath", str(root))
    if since is None and until is None:
        folders = [root] if topics is None else [root / os.fsdecode(topic_partition(topic)) for topic in topics]
        return reader.parquet(*map(str, folders))
    from_ms, until_ms = (None if time is None else int(time.timestamp() * 1000) for time in (since, until))
    selected = sorted(bounds(str(root.parent))) if topics is None else topics
    files = [file for topic in selected for file in files_between(str(root.parent), topic, from_ms, until_ms)]
    found = reader.parquet(*files) if files else spark.createDataFrame([], MESSAGE_SCHEMA)
    if since is not None:
        found = found.where(found.store_time >= lit(since))
    return found if until is None else found.where(found.store_time < lit(until))

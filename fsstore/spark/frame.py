"""The messages of a mounted store as a DataFrame, read from its `@parquet/`."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
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

from fsstore.fleet.datasets import (
    DATASET,
    BrokerError,
    DatasetFile,
    ExpiredFilesError,
    file_at,
    lost,
)
from fsstore.fleet.sources import MountedSource, Source
from fsstore.parquet.format import FIELDS, Field, Type
from fsstore.parquet.names import topic_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ERROR, SKIP = "error", "skip"
"""The ways to treat files that expire before they are read."""
SERVED_OPTIONS = {"parquet.hadoop.vectored.io.enabled": "false"}
"""Spark asks a server three times as often otherwise, once for each piece of a column."""
MOST_LOCATED = 4_000
"""Files of a server of which Spark asks for the hosts, one after another."""
LISTINGS = 5
"""How often files are listed anew, because some expired."""
_NO_LOCATIONS = "spark.sql.sources.ignoreDataLocality"

log = logging.getLogger("fsstore.spark")

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
BROKER_SCHEMA = StructType([*MESSAGE_SCHEMA, StructField("broker", StringType())])
"""Columns of a message of several brokers."""


def messages(
    spark: SparkSession, mount: str | os.PathLike[str], topics: Sequence[str] | None = None, *,
    since: datetime | None = None, until: datetime | None = None, onExpired: str = ERROR,
) -> DataFrame:  # fmt: skip
    """All messages of the store mounted at `mount`, or those of `topics`: then only their directories are listed.
    `since` and `until` select messages stored in [since, until); only the footers of their files are read. Files of
    theirs that expire before Spark has listed them are an ExpiredFilesError, or left out with a warning
    (`onExpired="skip"`). ValueError, TypeError: an argument can't be that.

    The schema is fixed (MESSAGE_SCHEMA) and not inferred, so a topic named `2024` stays a string. The messages are
    those at the time of this call; messages that are published later are in the next DataFrame.
    """
    wanted = Wanted(topics, since, until, onExpired)
    root = Path(mount).absolute() / DATASET
    folders = [root] if topics is None else [root / os.fsdecode(topic_partition(topic)) for topic in topics]
    if since is None and until is None:
        return spark.read.schema(MESSAGE_SCHEMA).option("basePath", str(root)).parquet(*map(str, folders))
    for folder in folders:
        folder.stat()  # FileNotFoundError: there is no such topic
    source = MountedSource(str(mount), str(mount))
    return frame_of(spark, source, wanted, wanted.files(source))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The messages to read: `topics` (None: all), stored in [since, until). `on_expired` is ERROR or SKIP, for files
    that expire meanwhile; ValueError: it is neither. TypeError: a text instead of topics or a time."""

    topics: Sequence[str] | None
    since: datetime | None
    until: datetime | None
    on_expired: str

    def __post_init__(self) -> None:
        if self.on_expired not in (ERROR, SKIP):
            raise ValueError(f"onExpired is {ERROR!r} or {SKIP!r}, and not {self.on_expired!r}")
        if isinstance(self.topics, str):  # it would be a list of one-letter topics
            raise TypeError(f"topics is a list of names: [{self.topics!r}], and not {self.topics!r}")
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None and not isinstance(time, datetime):
                raise TypeError(f"{name} is a datetime, and not {time!r}")

    def files(self, source: Source) -> list[DatasetFile]:
        """The files of a place that may have some of them. BrokerError, MountGoneError."""
        return source.files(self.topics, *self._times_ms())

    def root_of(self, source: Source) -> str | None:
        """The directory that has these files alone; None: there is none."""
        return source.root_of(*self._times_ms())

    def _times_ms(self) -> tuple[int | None, int | None]:
        since = None if self.since is None else math.floor(self.since.timestamp() * 1000)
        return since, None if self.until is None else math.ceil(self.until.timestamp() * 1000)


def frame_of(
    spark: SparkSession, source: Source, wanted: Wanted, asked: Sequence[DatasetFile], locations: bool | None = None
) -> DataFrame:
    """The messages of a place that are wanted, in the files `asked`. `locations`: whether Spark asks for the host of
    each file; None: of up to MOST_LOCATED. ExpiredFilesError, BrokerError, MountGoneError."""
    with _locating(spark, source, len(asked), locations):
        found = _planned(spark, source, wanted, asked)
    planned = filter(None, map(file_at, _input_files(spark, found)))
    if expired := lost((file.part for file in asked), (file.part for file in planned)):
        error = ExpiredFilesError(source.broker, expired)
        if wanted.on_expired == ERROR:
            raise error
        log.warning("%s, and are left out", error)
    if wanted.since is not None:
        found = found.where(found.store_time >= lit(wanted.since))
    return found if wanted.until is None else found.where(found.store_time < lit(wanted.until))


def _input_files(spark: SparkSession, frame: DataFrame) -> list[str]:
    """As `frame.inputFiles()`, in one answer of Java's: PySpark takes one for each name."""
    jvm = spark._jvm
    assert jvm is not None
    named = str(jvm.scala.Predef.genericWrapArray(frame._jdf.inputFiles()).mkString("\n"))
    return named.split("\n") if named else []


def _planned(spark: SparkSession, source: Source, wanted: Wanted, asked: Sequence[DatasetFile]) -> DataFrame:
    """A scan of the topics' directories that have the files, or of the files. Spark refuses what is gone when it begins
    to plan; what goes while it plans is missing in silence."""
    only = wanted.root_of(source)
    root = source.root if only is None else only
    reader = spark.read.schema(MESSAGE_SCHEMA).option("basePath", root)
    reader = reader.options(**(SERVED_OPTIONS if source.is_remote else {}))
    reader = reader.option("ignoreMissingFiles", str(wanted.on_expired == SKIP).lower())
    for listing in range(LISTINGS):
        files = asked if not listing else wanted.files(source)
        paths = sorted({file.path if only is None else file.path.partition("/")[0] for file in files})
        try:
            return reader.parquet(*(f"{root}/{path}" for path in paths)) if paths else _none(spark)
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
    raise BrokerError(source.broker, source.place, "its files expire faster than Spark lists them")


def _none(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], MESSAGE_SCHEMA)


@contextmanager
def _locating(spark: SparkSession, source: Source, files: int, locations: bool | None) -> Iterator[None]:
    """Tell Spark for the block whether to ask for the files' hosts."""
    wanted = locations if locations is not None else files <= MOST_LOCATED
    if not source.is_remote or wanted:
        yield
        return
    log.info("broker %s: the hosts of %d files are not asked for: tasks run anywhere", source.broker, files)
    before = spark.conf.get(_NO_LOCATIONS)
    spark.conf.set(_NO_LOCATIONS, "true")
    try:
        yield
    finally:
        spark.conf.set(_NO_LOCATIONS, before)

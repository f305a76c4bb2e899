"""The data source `fsstore`: a mounted store as a stream, or a batch, whose offsets are queue offsets.

spark.dataSource.register(FsstoreSource)
spark.readStream.format("fsstore").option("subscribe", "orders").load("/mnt/mq")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from fsstore.spark.frame import MESSAGE_SCHEMA
from fsstore.spark.mount import Bounds, Range, bounds, cut
from fsstore.spark.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    SourceOptionError,
    chosen,
    ends,
    limited,
    merged,
    ranges,
    resolve,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_OPTIONS = (
    "path",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
)


class FsstoreSource(DataSource):  # type: ignore[misc]  # pyspark has no types that mypy can follow
    """Options: the mount as path, and Kafka's names: subscribe, subscribePattern, startingOffsets, endingOffsets,
    maxOffsetsPerTrigger, failOnDataLoss. A `schema` of fewer columns reads these alone."""

    @classmethod
    def name(cls) -> str:
        return "fsstore"

    def schema(self) -> StructType:
        return MESSAGE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self.options, schema)


class _Options:
    """The options of one read, understood."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        unknown = given.keys() - {name.lower() for name in _OPTIONS}
        if unknown:
            raise SourceOptionError(f"unknown option {min(unknown)!r}; there are {', '.join(_OPTIONS)}")
        if "path" not in given:
            raise SourceOptionError('which mount? spark.read.format("fsstore").load("/mnt/mq")')
        self.mount = given["path"].removeprefix("file://").rstrip("/")
        self.starting, self.ending = given.get("startingoffsets"), given.get("endingoffsets")
        self.most = _positive("maxOffsetsPerTrigger", given.get("maxoffsetspertrigger"))
        self.fail_on_data_loss = _boolean("failOnDataLoss", given.get("failondataloss", "true"))
        self._subscribe, self._pattern = given.get("subscribe"), given.get("subscribepattern")

    def bounds(self) -> Bounds:
        """What the mount has now of what is asked for."""
        return chosen(bounds(self.mount), self._subscribe, self._pattern)


def _positive(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or not int(text):
        raise SourceOptionError(f"{name} is a number of messages: {text!r}")
    return int(text)


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SourceOptionError(f"{name} is true or false: {text!r}")
    return text.lower() == "true"


class RangePartition(InputPartition):  # type: ignore[misc]
    """A range for one task."""

    def __init__(self, part: Range) -> None:
        super().__init__(tuple(part))


class _Reader:
    """What batch and stream share: a task reads a range."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = _Options(options)
        for field in schema:
            if field.name not in MESSAGE_SCHEMA.names or field.dataType != MESSAGE_SCHEMA[field.name].dataType:
                raise SourceOptionError(
                    f"no column {field.name} {field.dataType.simpleString()}: {MESSAGE_SCHEMA.names}"
                )
        self._schema = schema

    def _plan(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        found = ranges(start, end, self._options.bounds(), fail_on_data_loss=self._options.fail_on_data_loss)
        return [RangePartition(part) for whole in found for part in cut(whole)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range, on an executor."""
        from fsstore.spark.reading import read_range  # pyarrow, where it is needed

        if partition.value is None:  # what Spark makes of a plan without partitions
            return iter(())
        options = self._options
        return read_range(options.mount, Range(*partition.value), self._schema, options.fail_on_data_loss)


class BatchReader(_Reader, DataSourceReader):  # type: ignore[misc]
    """All messages between two offsets, both decided when the plan is made."""

    def partitions(self) -> list[InputPartition]:
        there = self._options.bounds()
        start = resolve("startingOffsets", self._options.starting or EARLIEST, there)
        end = resolve("endingOffsets", self._options.ending or LATEST, there)
        return self._plan(start, end)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Messages as they come. The offset of a stream is where each queue has been read up to."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        if self._options.ending is not None:
            raise SourceOptionError("a stream has no endingOffsets")
        self._target: Offsets | None = None

    def initialOffset(self) -> Offsets:
        return resolve("startingOffsets", self._options.starting or LATEST, self._options.bounds())

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.most) if self._options.most else ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        there = self._options.bounds()
        end = merged(start, ends(there) if self._target is None else self._target)
        return limited(start, end, there, limit.max_rows) if isinstance(limit, ReadMaxRows) else end

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = ends(self._options.bounds())

    def reportLatestOffset(self) -> Offsets:
        return ends(self._options.bounds())

    def partitions(self, start: Offsets, end: Offsets) -> list[Any]:
        return self._plan(start, end)

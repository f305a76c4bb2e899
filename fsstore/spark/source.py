"""The data source `fsstore`: a mounted store as a stream, or a batch, whose offsets are queue offsets.

spark.dataSource.register(FsstoreSource)
spark.readStream.format("fsstore").option("subscribe", "orders").load("/mnt/mq")

Options are named as those of Spark's Kafka source; so are offsets in them: {"orders": {"0": 17, "1": -2}}. -2 stands
for the oldest message of a queue, -1 for what comes next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from fsstore.spark.frame import MESSAGE_SCHEMA
from fsstore.spark.mount import Bounds, Range, bounds, cut, place_of
from fsstore.spark.offsets import (
    EARLIEST,
    LATEST,
    Ends,
    Position,
    Positions,
    Queues,
    SourceOptionError,
    Written,
    ends,
    limited,
    parsed,
    resolve,
    written,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def chosen(bounds: Bounds, subscribe: str | None, pattern: str | None) -> Bounds:
    """The topics that `subscribe` (names, comma-separated) or `subscribePattern` (a regular expression) ask for."""
    if subscribe is not None and pattern is not None:
        raise SourceOptionError("subscribe and subscribePattern exclude each other")
    if subscribe is not None:
        wanted = {name.strip() for name in subscribe.split(",")}
        return {topic: queues for topic, queues in bounds.items() if topic in wanted}
    if pattern is None:
        return bounds
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise SourceOptionError(f"subscribePattern: {error}") from None
    return {topic: queues for topic, queues in bounds.items() if expression.fullmatch(topic)}


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
            raise SourceOptionError('no mount given: spark.read.format("fsstore").load("/mnt/mq")')
        self.mount = given["path"].removeprefix("file://").rstrip("/")
        self.starting, self.ending = given.get("startingoffsets"), given.get("endingoffsets")
        self.most = _positive("maxOffsetsPerTrigger", given.get("maxoffsetspertrigger"))
        self.fail_on_data_loss = _boolean("failOnDataLoss", given.get("failondataloss", "true"))
        self._subscribe, self._pattern = given.get("subscribe"), given.get("subscribepattern")

    def bounds(self) -> Bounds:
        """What the mount has now of what is asked for."""
        return chosen(bounds(self.mount), self._subscribe, self._pattern)

    def queues(self, bounds: Bounds) -> Queues:
        """The queues that have these bounds."""
        return Queues(bounds, partial(place_of, self.mount))


def _positive(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or not int(text):
        raise SourceOptionError(f"{name} must be a number of messages: {text!r}")
    return int(text)


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SourceOptionError(f"{name} must be true or false: {text!r}")
    return text.lower() == "true"


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

    def _plan(self, queues: Queues, start: Positions, end: Positions) -> list[InputPartition]:
        found = queues.plan(start, end, fail_on_data_loss=self._options.fail_on_data_loss)
        return [InputPartition((tuple(part), tuple(stop))) for whole, stop in found for part in cut(whole)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range, on an executor."""
        from fsstore.spark.reading import read_range  # pyarrow, where it is needed

        if partition.value is None:  # what Spark makes of a plan without partitions
            return iter(())
        part, stop = partition.value
        options = self._options
        return read_range(options.mount, Range(*part), Position(*stop), self._schema, options.fail_on_data_loss)


class BatchReader(_Reader, DataSourceReader):  # type: ignore[misc]
    """All messages between two offsets, both decided when the plan is made."""

    def partitions(self) -> list[InputPartition]:
        there = self._options.bounds()
        queues = self._options.queues(there)
        start = resolve("startingOffsets", self._options.starting or EARLIEST, there)
        end = resolve("endingOffsets", self._options.ending or LATEST, there)
        return self._plan(queues, queues.located(start), queues.located(end))


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Messages as they come. The offset of a stream is where each queue has been read up to."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        if self._options.ending is not None:
            raise SourceOptionError("a stream has no endingOffsets")
        self._target: Ends | None = None

    def initialOffset(self) -> Written:
        there = self._options.bounds()
        start = resolve("startingOffsets", self._options.starting or LATEST, there)
        return written(self._options.queues(there).located(start))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.most) if self._options.most else ReadAllAvailable()

    def latestOffset(self, start: Written, limit: ReadLimit) -> Written:
        there = self._options.bounds()
        queues, before = self._options.queues(there), parsed(start)
        end = ends(there) if self._target is None else self._target
        if isinstance(limit, ReadMaxRows):
            end = limited(end, queues.waiting(before, end), limit.max_rows)
        return written(queues.located(end, before))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = ends(self._options.bounds())

    def reportLatestOffset(self) -> Written:
        there = self._options.bounds()
        return written(self._options.queues(there).located(ends(there)))

    def partitions(self, start: Written, end: Written) -> list[Any]:
        return self._plan(self._options.queues(self._options.bounds()), parsed(start), parsed(end))

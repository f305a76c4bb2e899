"""The data source `fsstore`: a mounted store as a stream or a batch, whose offsets are queue offsets.

spark.dataSource.register(FsstoreSource)
spark.readStream.format("fsstore").option("subscribe", "orders").load("/mnt/mq")

Options have the names of Spark's Kafka source, and offsets in them its form: {"orders": {"0": 17, "1": -2}}. -2 is the
oldest message of a queue, -1 the next one.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from fsstore.jobs.mount import Bounds, QueueRange, bounds, cut, offset_at, physical_offset, size_of
from fsstore.spark.frame import MESSAGE_SCHEMA
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
    limited_bytes,
    parse_times,
    parsed,
    resolve,
    resolve_times,
    written,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def chosen(bounds: Bounds, subscribe: str | None, pattern: str | None) -> Bounds:
    """The topics of `subscribe` (names, comma-separated) or `subscribePattern` (a regular expression)."""
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


_UNITS_S = {"": 0.001, "us": 1e-6, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_TIME = re.compile(rf"([0-9]{{1,9}})({'|'.join(_UNITS_S)})")

_OPTIONS = (
    "path",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
)


class FsstoreSource(DataSource):  # type: ignore[misc]  # pyspark has no types that mypy can follow
    """Options: the mount as path, and those of docs/spark.md, 3. A `schema` with fewer columns reads only these."""

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
    """The parsed options of one read."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        unknown = given.keys() - {name.lower() for name in _OPTIONS}
        if unknown:
            raise SourceOptionError(f"unknown option {min(unknown)!r}; there are {', '.join(_OPTIONS)}")
        if "path" not in given:
            raise SourceOptionError('no mount given: spark.read.format("fsstore").load("/mnt/mq")')
        self.mount = given["path"].removeprefix("file://").rstrip("/")
        self.ending = given.get("endingoffsets")
        self.most = _positive("maxOffsetsPerTrigger", given.get("maxoffsetspertrigger"))
        self.most_bytes = _positive("maxBytesPerTrigger", given.get("maxbytespertrigger"), "bytes")
        self.least = _positive("minOffsetsPerTrigger", given.get("minoffsetspertrigger"))
        if self.least and self.most and self.least > self.most:
            raise SourceOptionError("minOffsetsPerTrigger is more than maxOffsetsPerTrigger")
        self.most_delay_s = _seconds("maxTriggerDelay", given.get("maxtriggerdelay", "15m"))
        self.fail_on_data_loss = _boolean("failOnDataLoss", given.get("failondataloss", "true"))
        self._subscribe, self._pattern = given.get("subscribe"), given.get("subscribepattern")
        self._starting = given.get("startingoffsets")
        self._times = _times(given.get("startingtimestamp"), given.get("startingoffsetsbytimestamp"))
        self._latest = _one_of("startingOffsetsByTimestampStrategy", given, "error", "latest") == "latest"

    def bounds(self) -> Bounds:
        """The present bounds of the topics that the options select."""
        return chosen(bounds(self.mount), self._subscribe, self._pattern)

    def start(self, bounds: Bounds, otherwise: str) -> Ends:
        """The offsets at which a new query begins."""
        if self._times is None:
            return resolve("startingOffsets", self._starting or otherwise, bounds)
        return resolve_times(self._times, bounds, partial(offset_at, self.mount), latest=self._latest)

    def queues(self, bounds: Bounds) -> Queues:
        """The queues that have these bounds."""
        return Queues(bounds, partial(physical_offset, self.mount))


def _positive(name: str, text: str | None, of: str = "messages") -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not int(text):
        raise SourceOptionError(f"{name} must be a number of {of}: {text!r}")
    return int(text)


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SourceOptionError(f"{name} must be true or false: {text!r}")
    return text.lower() == "true"


def _one_of(name: str, given: Mapping[str, str], *choices: str) -> str:
    """The value of an option, in lower case; the first choice if it is not given."""
    text = given.get(name.lower(), choices[0]).lower()
    if text not in choices:
        raise SourceOptionError(f"{name} must be {' or '.join(choices)}: {text!r}")
    return text


def _times(of_all: str | None, of_each: str | None) -> Mapping[str, Mapping[int, int]] | int | None:
    """The times at which a query begins. startingTimestamp has precedence, as in Kafka's source."""
    if of_all is None:
        return None if of_each is None else parse_times(of_each)
    if not of_all.isdecimal():
        raise SourceOptionError(f"startingTimestamp must be epoch milliseconds: {of_all!r}")
    return int(of_all)


def _seconds(name: str, text: str) -> float:
    """A time as Spark writes it: 15m, 30s, 500ms; milliseconds without a unit."""
    found = _TIME.fullmatch(text.strip().lower())
    if found is None:
        raise SourceOptionError(f"{name} must be a time like 15m, 30s or 500ms: {text!r}")
    return int(found[1]) * _UNITS_S[found[2]]


class _Reader:
    """Shared by batch and stream: a task reads a range."""

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
        from fsstore.spark.reading import read_range  # here, because it imports pyarrow

        if partition.value is None:  # Spark passes it for a plan without partitions
            return iter(())
        part, stop = partition.value
        options = self._options
        return read_range(options.mount, QueueRange(*part), Position(*stop), self._schema, options.fail_on_data_loss)


class BatchReader(_Reader, DataSourceReader):  # type: ignore[misc]
    """All messages between two offsets, which are fixed when the plan is made."""

    def partitions(self) -> list[InputPartition]:
        there = self._options.bounds()
        queues = self._options.queues(there)
        start = self._options.start(there, EARLIEST)
        end = resolve("endingOffsets", self._options.ending or LATEST, there)
        return self._plan(queues, queues.located(start), queues.located(end))


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Messages as they are published. The offset of a stream has the position of each queue."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        if self._options.ending is not None:
            raise SourceOptionError("a stream has no endingOffsets")
        self._target: Ends | None = None
        self._triggered = -math.inf

    def initialOffset(self) -> Written:
        there = self._options.bounds()
        return written(self._options.queues(there).located(self._options.start(there, LATEST)))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark has no limit of several kinds: any limit but ReadAllAvailable means all limits in the options."""
        options = self._options
        if options.most:
            return ReadMaxRows(options.most)
        if options.most_bytes:
            return ReadMaxBytes(options.most_bytes)
        return ReadMinRows(options.least) if options.least else ReadAllAvailable()

    def latestOffset(self, start: Written, limit: ReadLimit) -> Written:
        there = self._options.bounds()
        queues, before = self._options.queues(there), parsed(start)
        end = ends(there) if self._target is None else self._target
        if not isinstance(limit, ReadAllAvailable):
            waiting = queues.waiting(before, end)
            if self._is_to_wait(sum(part.end - part.begin for part in waiting)):
                return start
            if self._options.most:
                end = limited(end, waiting, self._options.most)
                waiting = queues.waiting(before, end)
            if self._options.most_bytes:
                end = limited_bytes(end, waiting, self._options.most_bytes, partial(size_of, self._options.mount))
        return written(queues.located(end, before))

    def _is_to_wait(self, count: int) -> bool:
        """Whether there are too few messages for a batch. It waits at most maxTriggerDelay after the last one."""
        least, now = self._options.least, time.monotonic()
        is_late = now - self._triggered >= self._options.most_delay_s
        if least and self._target is None and count < least and not is_late:
            return True
        self._triggered = now
        return False

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = ends(self._options.bounds())

    def reportLatestOffset(self) -> Written:
        there = self._options.bounds()
        return written(self._options.queues(there).located(ends(there)))

    def partitions(self, start: Written, end: Written) -> list[Any]:
        return self._plan(self._options.queues(self._options.bounds()), parsed(start), parsed(end))

"""The data source `fsstore`: a mounted store as a stream, or a batch, whose offsets are queue offsets.

spark.dataSource.register(FsstoreSource)
spark.readStream.format("fsstore").option("subscribe", "orders").load("/mnt/mq")

Offsets are written as Spark's Kafka source writes them: {"orders": {"0": 17, "1": -2}}. -2 stands for the oldest
message of a queue, -1 for what comes next.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from fsstore.spark.frame import MESSAGE_SCHEMA
from fsstore.spark.mount import Bounds, DataLossError, Range, bounds, cut

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


Offsets: TypeAlias = dict[str, dict[str, int]]
"""topic -> queue -> queue offset, in what JSON can hold."""

OLDEST, NEXT = -2, -1
EARLIEST, LATEST = "earliest", "latest"


class SourceOptionError(ValueError):
    """An unknown option of the source, or an invalid value."""


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


def resolve(option: str, text: str, bounds: Bounds) -> Offsets:
    """`earliest`, `latest`, or JSON, as offsets of all queues of `bounds`.

    A queue that JSON leaves out is at its oldest message for startingOffsets, and at its end for endingOffsets.
    """
    if text.strip().lower() in (EARLIEST, LATEST):
        asked: Mapping[str, Mapping[str, int]] = {}
        missing = OLDEST if text.strip().lower() == EARLIEST else NEXT
    else:
        asked, missing = _parsed(option, text), OLDEST if option == "startingOffsets" else NEXT
    found: Offsets = {}
    for topic, queues in bounds.items():
        for queue, (oldest, next_offset) in queues.items():
            offset = asked.get(topic, {}).get(str(queue), missing)
            found.setdefault(topic, {})[str(queue)] = {OLDEST: oldest, NEXT: next_offset}.get(offset, offset)
    return found


def _parsed(option: str, text: str) -> dict[str, dict[str, int]]:
    try:
        asked = json.loads(text)
        well_formed = all(
            type(offset) is int and offset >= OLDEST for queues in asked.values() for offset in queues.values()
        )
    except (ValueError, AttributeError):
        well_formed = False
    if not well_formed:
        raise SourceOptionError(
            f'{option} must be "earliest", "latest" or JSON like {{"orders": {{"0": 17, "1": -2}}}}: {text!r}'
        )
    return dict(asked)


def ends(bounds: Bounds) -> Offsets:
    """Where the queues end."""
    return {
        topic: {str(queue): end for queue, (_, end) in sorted(queues.items())}
        for topic, queues in sorted(bounds.items())
    }


def merged(start: Offsets, later: Offsets) -> Offsets:
    """`later`, and what only `start` knows: a topic that has gone stays where it was."""
    return {
        topic: start.get(topic, {}) | later.get(topic, {})
        for topic in [*start, *(topic for topic in later if topic not in start)]
    }


def limited(start: Offsets, end: Offsets, bounds: Bounds, most: int) -> Offsets:
    """At most `most` messages from `start` on: each queue's share is in proportion to what waits in it, but for one."""
    waiting = ranges(start, end, bounds, fail_on_data_loss=False)
    total = sum(part.end - part.begin for part in waiting)
    if total <= most:
        return end
    limits = {topic: dict(queues) for topic, queues in end.items()}
    left = most
    for part in sorted(waiting, key=lambda part: part.begin - part.end):  # the longest first
        size = part.end - part.begin
        share = min(max(size * most // total, 1), left)
        limits[part.topic][str(part.queue)] = part.begin + share
        left -= share
    return limits


def ranges(start: Offsets, end: Offsets, bounds: Bounds, *, fail_on_data_loss: bool) -> list[Range]:
    """What is to be read between two offsets, a range a queue. A queue that `start` does not know begins at 0.

    DataLossError where something of it is gone; without `fail_on_data_loss` that is left out.
    """
    found = []
    for topic, ends in sorted(end.items()):
        for queue, stop in sorted(ends.items(), key=lambda item: int(item[0])):
            begin = start.get(topic, {}).get(queue, 0)
            oldest, next_offset = bounds.get(topic, {}).get(int(queue), (0, 0))
            there = Range(topic, int(queue), max(begin, oldest), min(stop, next_offset))
            if fail_on_data_loss and stop < begin:
                raise DataLossError(topic, int(queue), begin, stop)
            if fail_on_data_loss and stop > begin and (there.begin, there.end) != (begin, stop):
                raise DataLossError(topic, int(queue), begin, oldest if oldest > begin else next_offset)
            if there.begin < there.end:
                found.append(there)
    return found


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

    def _plan(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        found = ranges(start, end, self._options.bounds(), fail_on_data_loss=self._options.fail_on_data_loss)
        return [InputPartition(tuple(part)) for whole in found for part in cut(whole)]

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

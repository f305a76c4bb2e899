"""The data source `fsstore`: stores as a stream or a batch, whose offsets are queue offsets.

spark.dataSource.register(FsstoreSource)
spark.readStream.format("fsstore").option("subscribe", "orders").load("/mnt/mq")
spark.readStream.format("fsstore").option("places", '{"a": "https://broker-a:9870", "b": "/mnt/b"}').load()

Options have the names of Spark's Kafka source, and offsets in them its form: {"orders": {"0": 17, "1": -2}}. -2 is the
oldest message of a queue, -1 the next one.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
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

from fsstore.fleet.hadoop_tokens import own_tokens
from fsstore.fleet.places import Place, PlaceError, group_of, parse_place
from fsstore.fleet.sources import FAILURES, source_of
from fsstore.jobs.mount import Bounds, QueueRange, cut
from fsstore.spark.brokers import Brokers, Present
from fsstore.spark.frame import BROKER_SCHEMA, MESSAGE_SCHEMA
from fsstore.spark.offsets import (
    EARLIEST,
    LATEST,
    NOTHING,
    Ends,
    Position,
    Positions,
    SourceOptionError,
    Stored,
    StreamOffset,
    ends,
    limited,
    limited_bytes,
    parse_times,
    parsed_offset,
    part_of,
    resolve,
    resolve_times,
    shares,
    written_offset,
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
    "places",
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
    "failOnBrokerLoss",
    "brokerLossTimeout",
)


class FsstoreSource(DataSource):  # type: ignore[misc]  # pyspark has no types that mypy can follow
    """Options: a place as path, or several as `places`, and those of docs/spark.md, 3. A `schema` with fewer columns
    reads only these."""

    @classmethod
    def name(cls) -> str:
        return "fsstore"

    def schema(self) -> StructType:
        return BROKER_SCHEMA if any(name.lower() == "places" for name in self.options) else MESSAGE_SCHEMA

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
        self.places = _places(given.get("path"), given.get("places"))
        self.only = None if "places" in given else self.places[0].name
        self.ending = given.get("endingoffsets")
        self.most = _positive("maxOffsetsPerTrigger", given.get("maxoffsetspertrigger"))
        self.most_bytes = _positive("maxBytesPerTrigger", given.get("maxbytespertrigger"), "bytes")
        self.least = _positive("minOffsetsPerTrigger", given.get("minoffsetspertrigger"))
        if self.least and self.most and self.least > self.most:
            raise SourceOptionError("minOffsetsPerTrigger is more than maxOffsetsPerTrigger")
        self.most_delay_s = _seconds("maxTriggerDelay", given.get("maxtriggerdelay", "15m"))
        self.fail_on_data_loss = _boolean("failOnDataLoss", given.get("failondataloss", "true"))
        self.fail_on_broker_loss = _boolean("failOnBrokerLoss", given.get("failonbrokerloss", "true"))
        otherwise = "10m" if self.only is None else "1m"
        self.patience_s = _seconds("brokerLossTimeout", given.get("brokerlosstimeout", otherwise))
        self._subscribe, self._pattern = given.get("subscribe"), given.get("subscribepattern")
        self._starting = given.get("startingoffsets")
        self._times = given.get("startingtimestamp"), given.get("startingoffsetsbytimestamp")
        self._latest = _one_of("startingOffsetsByTimestampStrategy", given, "error", "latest") == "latest"
        for place in self.places:
            self._times_of(place.name)

    @property
    def brokers(self) -> list[str]:
        """Names of the places."""
        return [place.name for place in self.places]

    def present_brokers(self) -> Brokers:
        """The brokers at the places. HadoopTokensError, OSError: tokens can't be read."""
        tokens = own_tokens()
        sources = [source_of(place, tokens) for place in self.places]
        return Brokers(sources, self._select, self.patience_s, self.fail_on_broker_loss)

    def start(self, broker: str, there: Present, otherwise: str) -> Ends:
        """The offsets at which a new query begins with a broker."""
        times = self._times_of(broker)
        if times is None:
            return self.resolve(broker, "startingOffsets", self._starting or otherwise, there.bounds)
        return resolve_times(times, there.bounds, there.sources[0].offset_at, latest=self._latest)

    def resolve(self, broker: str, option: str, text: str, bounds: Bounds) -> Ends:
        """Offsets of a broker's queues by an option."""
        mine = text if self.only is not None else part_of(option, text, broker, self.brokers)
        return resolve(option, mine, bounds)

    def _select(self, bounds: Bounds) -> Bounds:
        return chosen(bounds, self._subscribe, self._pattern)

    def _times_of(self, broker: str) -> Mapping[str, Mapping[int, int]] | int | None:
        """The times at which a query begins with a broker. startingTimestamp has precedence, as in Kafka's source."""
        of_all, of_each = self._times
        if of_all is not None:
            if not of_all.isdecimal():
                raise SourceOptionError(f"startingTimestamp must be epoch milliseconds: {of_all!r}")
            return int(of_all)
        if of_each is None:
            return None
        option = "startingOffsetsByTimestamp"
        return parse_times(of_each if self.only is not None else part_of(option, of_each, broker, self.brokers))


def _places(path: str | None, places: str | None) -> list[Place]:
    """The places to read: one, that is its own name, or those of JSON or of a group."""
    if (path is None) == (places is None):
        raise SourceOptionError(
            'give one place, spark.read.format("fsstore").load("/mnt/mq"), or several in the option places, '
            '{"a": "https://broker-a:9870", "b": "/mnt/b"} or "@prod"'
        )
    if path is not None:
        plain = path.removeprefix("file://").rstrip("/")
        if not plain.startswith(("http://", "https://")):
            return [Place(plain, path=plain)]
        try:
            return [parse_place(plain)]
        except PlaceError as error:
            raise SourceOptionError(str(error)) from None
    assert places is not None
    if places.startswith("@"):
        return group_of(places)
    try:
        named = json.loads(places, object_pairs_hook=list)
        found = [parse_place(text, name) for name, text in named]
    except PlaceError as error:
        raise SourceOptionError(f"places: {error}") from None
    except (ValueError, TypeError, AttributeError):
        raise SourceOptionError(f'places is JSON, a text for each name, or "@GROUP": {places!r}') from None
    names = [place.name for place in found]
    if not names or len(set(names)) < len(names):
        raise SourceOptionError(f"places names each broker once, and one at least: {places!r}")
    return found


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
        known = MESSAGE_SCHEMA if self._options.only is not None else BROKER_SCHEMA
        for field in schema:
            if field.name not in known.names or field.dataType != known[field.name].dataType:
                raise SourceOptionError(f"no column {field.name} {field.dataType.simpleString()}: {known.names}")
        self._schema = schema

    @cached_property
    def _brokers(self) -> Brokers:
        """Made where a read is planned; what goes to executors has none."""
        return self._options.present_brokers()

    def _plan(self, broker: str, there: Present, start: Positions, end: Positions) -> list[InputPartition]:
        found = there.queues.plan(start, end, fail_on_data_loss=self._options.fail_on_data_loss)
        places = tuple(source.place for source in there.sources)
        return [
            InputPartition((broker, places, tuple(part), tuple(stop))) for whole, stop in found for part in cut(whole)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range, on an executor."""
        from fsstore.spark.reading import RangeReader  # here, because it imports pyarrow

        if partition.value is None:  # Spark passes it for a plan without partitions
            return iter(())
        broker, places, part, stop = partition.value
        tokens, options = own_tokens(), self._options
        sources = [source_of(parse_place(place, broker), tokens) for place in places]
        reader = RangeReader(sources, self._schema, options.patience_s, options.fail_on_data_loss)
        return reader.read(QueueRange(*part), Position(*stop))


class BatchReader(_Reader, DataSourceReader):  # type: ignore[misc]
    """All messages between two offsets, which are fixed when the plan is made."""

    def partitions(self) -> list[InputPartition]:
        options, found = self._options, []
        for broker, there in self._brokers.every(NOTHING).items():
            start = options.start(broker, there, EARLIEST)
            end = options.resolve(broker, "endingOffsets", options.ending or LATEST, there.bounds)
            found += self._plan(broker, there, there.queues.located(start), there.queues.located(end))
        return found


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Messages as they are published. The offset of a stream has the position of each queue of each broker."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        if self._options.ending is not None:
            raise SourceOptionError("a stream has no endingOffsets")
        self._target: dict[str, Ends] | None = None
        """By name of the place."""
        self._triggered = -math.inf
        self._seen: dict[str, Ends] = {}

    def initialOffset(self) -> Stored:
        found = self._brokers.every(NOTHING)
        return self._written({broker: self._beginning(broker, there) for broker, there in found.items()})

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark has no limit of several kinds: any limit but ReadAllAvailable means all limits in the options."""
        options = self._options
        if options.most:
            return ReadMaxRows(options.most)
        if options.most_bytes:
            return ReadMaxBytes(options.most_bytes)
        return ReadMinRows(options.least) if options.least else ReadAllAvailable()

    def latestOffset(self, start: Stored, limit: ReadLimit) -> Stored:
        """The next offset. A broker that is away stays where it is; one that the stream has not read yet joins it at
        its beginning, in a batch without a message of it."""
        before = self._parsed(start)
        there = (self._brokers.present if self._target is None else self._brokers.every)(before)
        found = {broker: self._end(one) for broker, one in there.items()}
        self._seen |= found
        after, limits = dict(before.read), {broker: end for broker, end in found.items() if broker in before.read}
        if not isinstance(limit, ReadAllAvailable):
            limits = self._limited(there, before.read, limits)
        for broker, one in there.items():
            try:
                if broker in limits:
                    after[broker] = one.queues.located(limits[broker], before.read[broker])
                elif broker not in before.read:
                    after[broker] = self._beginning(broker, one)
            except FAILURES as error:
                self._brokers.lose(broker, error)
        return self._written(after, before)

    def _beginning(self, broker: str, there: Present) -> Positions:
        """The positions at which the stream begins with a broker, not after the end to which it may be read."""
        reach = self._end(there)
        bounds = {
            topic: {
                queue: (oldest, max(oldest, min(end, reach.get(topic, {}).get(queue, oldest))))
                for queue, (oldest, end) in queues.items()
            }
            for topic, queues in there.bounds.items()
        }
        return there.queues.located(self._options.start(broker, there._replace(bounds=bounds), LATEST))

    def _end(self, there: Present) -> Ends:
        """The ends to which a broker may be read: its own, or those of the time when an available-now trigger began."""
        if self._target is None:
            return ends(there.bounds)
        return self._target.setdefault(there.sources[0].broker, ends(there.bounds))

    def _limited(
        self, there: Mapping[str, Present], before: Mapping[str, Positions], limits: dict[str, Ends]
    ) -> dict[str, Ends]:
        """The ends within the limits of the options. There are none as long as too few messages wait."""
        options, waiting = self._options, self._waiting(there, before, limits)
        sizes = {broker: sum(part.end - part.begin for part in parts) for broker, parts in waiting.items()}
        if self._is_to_wait(sum(sizes.values())):
            return {}
        if options.most:
            most = shares(sizes, options.most)
            limits = {broker: limited(limits[broker], parts, most[broker]) for broker, parts in waiting.items()}
            waiting = self._waiting(there, before, limits)
        limits = {broker: limits[broker] for broker in waiting}
        if options.most_bytes:
            queues = max(sum(map(len, waiting.values())), 1)
            for broker, parts in waiting.items():
                most_bytes = options.most_bytes * len(parts) // queues
                try:
                    limits[broker] = limited_bytes(limits[broker], parts, most_bytes, there[broker].sources[0].size_of)
                except FAILURES as error:
                    self._brokers.lose(broker, error)
                    del limits[broker]
        return limits

    def _waiting(
        self, there: Mapping[str, Present], before: Mapping[str, Positions], limits: Mapping[str, Ends]
    ) -> dict[str, list[QueueRange]]:
        """The messages of each broker that wait."""
        found = {}
        for broker, end in limits.items():
            try:
                found[broker] = there[broker].queues.waiting(before[broker], end)
            except FAILURES as error:
                self._brokers.lose(broker, error)
        return found

    def _is_to_wait(self, count: int) -> bool:
        """Whether there are too few messages for a batch. It waits at most maxTriggerDelay after the last one."""
        least, now = self._options.least, time.monotonic()
        is_late = now - self._triggered >= self._options.most_delay_s
        if least and self._target is None and count < least and not is_late:
            return True
        self._triggered = now
        return False

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {place: ends(there) for place, there in self._brokers.bounds_of_places().items()}

    def reportLatestOffset(self) -> dict[str, Any]:
        """The ends that the last trigger has seen, for the progress of the query; in their place, since when and why
        a broker is away."""
        away, only = self._brokers.away, self._options.only
        if only is not None and only not in away:
            return self._seen.get(only, {})
        return {**self._seen, **away} if only is None else away

    def partitions(self, start: Stored, end: Stored) -> list[Any]:
        before, after = self._parsed(start), self._parsed(end)
        found = []
        for broker, stop in after.read.items():
            begin = before.read.get(broker)
            if begin is not None and begin != stop:
                found += self._plan(broker, self._brokers.one(broker, after), begin, stop)
        return found

    def _parsed(self, offset: Stored) -> StreamOffset:
        return parsed_offset(offset, self._options.only, self._options.brokers)

    def _written(self, read: Mapping[str, Positions], known: StreamOffset = NOTHING) -> Stored:
        """The offset with these positions. A spare has none of its own."""
        now = self._brokers.spares
        spares = {name: of for name, of in {**known.spares, **now}.items() if name in now or name not in read}
        mine = {broker: positions for broker, positions in read.items() if broker not in spares}
        return written_offset(StreamOffset(mine, spares), self._options.only)

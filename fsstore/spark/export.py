"""Export: the messages of a mounted store as a Parquet dataset, partitioned by topic and date, in few large files.

A unit at a time: read through `@parquet/`, written beside the dataset, read again and compared by counts and checksums,
moved into it, marked as finished. What was interrupted is begun anew at the unit that it was at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Observation
from pyspark.sql import functions as f

from fsstore.parquet.names import topic_partition
from fsstore.spark.exportplan import (
    ExportError,
    ExportFolder,
    Unit,
    Wanted,
    left_of,
    messages_in,
    remove_tree,
    sync_path,
    without_expired,
)
from fsstore.spark.jobs import watched
from fsstore.spark.messages import MESSAGE_SCHEMA
from fsstore.spark.mounted import Bounds, Range, bounds, cut, range_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_BYTES = 256 << 20
"""A file of the dataset comes from about so many bytes of `@parquet/`."""
UNIT_FILES = 16
_ATTEMPTS = 3

Progress = Callable[[int, int], None]
"""Takes how many messages are done, and how many there are."""


class Figures(NamedTuple):
    """What is compared between what was read and what was written."""

    messages: int
    crc_sum: int


class _Bar(NamedTuple):
    """A unit's part of the progress."""

    progress: Progress
    done: int
    share: int
    total: int

    def tell(self, fraction: float) -> None:
        self.progress(self.done + int(self.share * fraction), self.total)


def export(
    spark: SparkSession, mount: str | os.PathLike[str], folder: str | os.PathLike[str], wanted: Wanted,
    progress: Progress = lambda done, total: None,
) -> list[Unit]:  # fmt: skip
    """Export into `folder`, or go on with it; returns all units. What is published after the first start isn't in it.

    ExportError where what was written isn't what was read. MountGoneError.
    """
    root, target = str(Path(mount).absolute()), ExportFolder(Path(folder).absolute())
    plan = target.plan(wanted, _found(root, wanted))
    units, total = target.units(), messages_in(plan)
    while left := left_of(plan, units):
        unit_bytes = FILE_BYTES * max(UNIT_FILES, spark.sparkContext.defaultParallelism)
        parts = _next_unit(root, left, unit_bytes)
        bar = _Bar(progress, total - messages_in(left), messages_in(parts), total)
        with watched(spark, bar.tell):
            units.append(_bring(spark, root, target, len(units), parts))
        bar.tell(1)
    return units


def _found(root: str, wanted: Wanted) -> list[Range]:
    there: Bounds = bounds(root)
    missing = set(wanted.topics or ()) - there.keys()
    if missing:
        raise ExportError(f"there is no topic {min(missing)!r}")
    found = [
        Range(topic, queue, _offset_at(root, topic, queue, wanted.from_ms, begin, end),
              end if wanted.until_ms is None else _offset_at(root, topic, queue, wanted.until_ms, begin, end))
        for topic, queues in sorted(there.items()) if wanted.topics is None or topic in wanted.topics
        for queue, (begin, end) in sorted(queues.items())
    ]  # fmt: skip
    return [part for part in found if part.begin < part.end]


def _offset_at(root: str, topic: str, queue: int, when_ms: int | None, begin: int, end: int) -> int:
    """The first queue offset stored at or after a time: what the link `@<time>` leads to."""
    if when_ms is None:
        return begin
    try:
        return int(os.path.basename(os.readlink(Path(root) / topic / str(queue) / f"@{when_ms}")))
    except FileNotFoundError:
        return end


def _next_unit(root: str, left: list[Range], most_bytes: int) -> tuple[Range, ...]:
    """Ranges of one topic, a range a queue, up to about so many bytes."""
    found: dict[int, Range] = {}
    size = 0
    for whole in left:
        if whole.topic != left[0].topic or size >= most_bytes:
            break
        for part in cut(whole):
            found[part.queue] = Range(whole.topic, whole.queue, whole.begin, part.end)
            size += _size_of(root, part)
            if size >= most_bytes:
                break
    return tuple(found.values())


def _size_of(root: str, part: Range) -> int:
    try:
        return os.stat(range_path(root, part)).st_size
    except FileNotFoundError:  # it has expired
        return 0


def _bring(spark: SparkSession, root: str, target: ExportFolder, number: int, parts: tuple[Range, ...]) -> Unit:
    """One unit, again where retention takes messages away from under the job."""
    for attempt in range(_ATTEMPTS):
        there = list(without_expired(list(parts), bounds(root)))
        target.clear(number)
        try:
            return _bring_what_is_there(spark, root, target, number, parts, there)
        except Exception:
            if attempt + 1 == _ATTEMPTS or list(without_expired(there, bounds(root))) == there:
                raise
    raise AssertionError("unreachable")


def _bring_what_is_there(
    spark: SparkSession, root: str, target: ExportFolder, number: int, parts: tuple[Range, ...], there: list[Range]
) -> Unit:
    files: tuple[str, ...] = ()
    figures, left_out = Figures(0, 0), 0
    if there:
        pieces = [piece for part in there for piece in cut(part)]
        figures = _write(spark, root, target, pieces)
        left_out = messages_in(there) - figures.messages
        if left_out and left_out != sum(_left_out(root, piece) for piece in pieces):
            raise ExportError(f"{figures.messages} messages were read of {messages_in(there)}")
        _compare(spark, target.staging, figures)
        files = _move(target, number, there[0].topic)
    expired = messages_in(parts) - messages_in(there)
    unit = Unit(number, parts, figures.messages, left_out, expired, figures.crc_sum, files)
    target.finish(unit)
    return unit


def _write(spark: SparkSession, root: str, target: ExportFolder, pieces: list[Range]) -> Figures:
    """Write ranges of a topic into `staging/date=…/`; what was read of them."""
    first, last = _dates(root, pieces)
    size = sum(_size_of(root, piece) for piece in pieces)
    paths = [range_path(root, piece) for piece in pieces]
    reader = spark.read.schema(MESSAGE_SCHEMA).option("basePath", f"{root}/@parquet")
    frame = reader.parquet(*paths).withColumn("date", _date()).drop("topic").coalesce(max(1, -(-size // FILE_BYTES)))
    observation = Observation()
    figures = frame.observe(
        observation, f.count(f.lit(1)).alias("messages"), f.sum(f.crc32("body")).alias("crc_sum"),
        f.min("date").alias("first"), f.max("date").alias("last"),
    )  # fmt: skip
    if first == last:  # no column decides where a row goes, so nothing has to be sorted
        figures.drop("date").write.parquet(str(target.staging / f"date={first}"))
        seen = observation.get
        if seen["messages"] == 0 or seen["first"] == seen["last"] == first:
            return Figures(seen["messages"], seen["crc_sum"] or 0)
        remove_tree(target.staging)  # the clock was set back meanwhile: the dates are not in the order of the offsets
        return _write_by_date(frame, target)
    figures.write.partitionBy("date").parquet(str(target.staging))
    return Figures(observation.get["messages"], observation.get["crc_sum"] or 0)


def _write_by_date(frame: DataFrame, target: ExportFolder) -> Figures:
    observation = Observation()
    counted = frame.observe(observation, f.count(f.lit(1)).alias("messages"), f.sum(f.crc32("body")).alias("crc_sum"))
    counted.write.partitionBy("date").parquet(str(target.staging))
    return Figures(observation.get["messages"], observation.get["crc_sum"] or 0)


def _date() -> Any:
    """The day of the store time in UTC, whatever the session's time zone."""
    return f.expr("date_from_unix_date(cast(floor(unix_millis(store_time) / 86400000) as int))")


def _dates(root: str, pieces: list[Range]) -> tuple[date, date]:
    """The days of the first and of the last message, by the files' times."""
    try:
        times = [
            os.stat(Path(root) / piece.topic / str(piece.queue) / str(offset)).st_mtime_ns
            for piece in pieces
            for offset in (piece.begin, piece.end - 1)
        ]
    except OSError:  # one of them is damaged
        return date.min, date.max
    first, last = (datetime.fromtimestamp(time // 1_000_000_000, UTC).date() for time in (min(times), max(times)))
    return first, last


def _left_out(root: str, piece: Range) -> int:
    """How many damaged messages the file of a range leaves out."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(range_path(root, piece)).metadata or {}
    return int(metadata.get(b"fsstore.left_out", 0))


def _compare(spark: SparkSession, written: Path, read: Figures) -> None:
    """Read what was written: as many messages, with the same bodies. ExportError."""
    found = (
        spark.read.schema("body binary").parquet(str(written)).agg(f.count(f.lit(1)), f.sum(f.crc32("body"))).first()
    )
    figures = Figures(found[0], found[1] or 0) if found else Figures(0, 0)
    if figures != read:
        raise ExportError(f"the dataset is not what was read: {figures} instead of {read}; start again")


def _move(target: ExportFolder, number: int, topic: str) -> tuple[str, ...]:
    """Into the dataset, and to the disk; the files' names."""
    partition = target.path / os.fsdecode(topic_partition(topic))
    moved = []
    for file in sorted(target.staging.glob("date=*/*.parquet")):
        place = partition / file.parent.name / f"unit-{number:05}-{file.name}"
        place.parent.mkdir(parents=True, exist_ok=True)
        sync_path(file)
        file.rename(place)
        moved.append(str(place.relative_to(target.path)))
    for folder in {target.path / name for file in moved for name in Path(file).parents}:
        sync_path(folder)
    remove_tree(target.staging)
    return tuple(moved)

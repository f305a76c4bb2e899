"""Export: the messages of a mounted store as a Parquet dataset, partitioned by topic and date, in few large files.

A unit at a time: Spark's tasks (`exportpart`) read it through `@parquet/`, write it beside the dataset and read that
again; counts and checksums are compared, its files moved into the dataset, and it is marked as finished. What was
interrupted is begun anew at the unit that it was at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fsstore.parquet.names import topic_partition
from fsstore.spark import export_part as exportpart
from fsstore.spark.export_part import Part, total
from fsstore.spark.export_plan import (
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
from fsstore.spark.mount import Bounds, Range, bounds, cut, range_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES = 256 << 20
"""A file of the dataset comes from about so many bytes of `@parquet/`."""
UNIT_FILES = 16
_ATTEMPTS = 3

Progress = Callable[[int, int], None]
"""Takes how many messages are done, and how many there are."""


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
    brought = _run(spark, root, target, [piece for part in there for piece in cut(part)])
    read, found = (total(getattr(part, name) for part in brought) for name in ("read", "found"))
    left_out = sum(part.left_out for part in brought)
    if read.messages + left_out != messages_in(there):
        raise ExportError(f"{read.messages} messages were read of {messages_in(there)}")
    if found != read:
        raise ExportError(f"the dataset is not what was read: {found} instead of {read}; start again")
    files = _move(target, number, parts[0].topic, [Path(file) for part in brought for file in part.files])
    expired = messages_in(parts) - messages_in(there)
    unit = Unit(number, parts, read.messages, left_out, expired, read.crc_sum, files)
    target.finish(unit)
    return unit


def _run(spark: SparkSession, root: str, target: ExportFolder, pieces: list[Range]) -> list[Part]:
    """Ranges into files below `staging`, by tasks that each have about as much to do."""
    tasks = list(enumerate(_shares(pieces, [_size_of(root, piece) for piece in pieces])))
    if not tasks:
        return []
    job = spark.sparkContext.parallelize(tasks, len(tasks)).map(
        partial(exportpart.bring, root, str(target.staging), FILE_BYTES)
    )
    return list(job.collect())


def _shares(pieces: list[Range], sizes: list[int]) -> list[list[Range]]:
    """Neighbouring ranges, shared out among as many tasks as there are files to be."""
    whole = max(sum(sizes), 1)
    tasks = -(-whole // FILE_BYTES)
    shares: list[list[Range]] = [[] for _ in range(tasks)]
    done = 0
    for piece, size in zip(pieces, sizes, strict=True):
        shares[min((done + size // 2) * tasks // whole, tasks - 1)].append(piece)
        done += size
    return [share for share in shares if share]


def _move(target: ExportFolder, number: int, topic: str, files: list[Path]) -> tuple[str, ...]:
    """Into the dataset, and to the disk; the files' names."""
    partition = target.path / os.fsdecode(topic_partition(topic))
    moved = []
    for file in files:
        place = partition / file.parent.name / f"unit-{number:05}-{file.name}"
        place.parent.mkdir(parents=True, exist_ok=True)
        file.rename(place)
        moved.append(str(place.relative_to(target.path)))
    for folder in {target.path / name for file in moved for name in Path(file).parents}:
        sync_path(folder)
    remove_tree(target.staging)
    return tuple(moved)

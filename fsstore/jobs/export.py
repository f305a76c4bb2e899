"""Export: the messages of a mounted store as a Parquet dataset, partitioned by topic and date, in few large files.

It proceeds in units. Tasks (`bring`), run by threads of this machine or by Spark, read a unit's messages through
`@parquet/`, write them beside the dataset and read them again. Counts and checksums are compared, the files are moved
into the dataset, and the unit is marked as finished. Each start exports all messages that are not in a finished unit.

DIR/_fsstore/plan.json             the queues' ranges at the last start, and the witnesses of their last messages
DIR/_fsstore/unit-00007.json       that unit is in the dataset: its ranges, counts, checksum and files
DIR/_fsstore/lock                  locked while an export writes
DIR/topic=…/date=…/unit-00007-…    its messages

Readers of datasets skip names that begin with an underscore. A task is a function of paths, so it runs on any host.
Arrow's columns are copied from file to file; no row objects are made.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsstore.jobs.mount import (
    Bounds,
    QueueRange,
    bounds,
    cut,
    offset_at,
    range_path,
    size_of,
    store_name,
    within,
    witness,
)
from fsstore.parquet.format import SCHEMA
from fsstore.parquet.names import topic_partition


class ExportError(RuntimeError):
    """An export can't proceed, or its result is wrong; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoTopicError(ExportError):
    """A selected topic does not exist."""


class BusyExportError(ExportError):
    """Another export writes to the same directory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"another export writes to {folder}: start again when it has ended")


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """Messages to export: topics (None: all), times in epoch milliseconds, [from_ms, until_ms), and the text of an
    expression of `--where` (None: all)."""

    topics: tuple[str, ...] | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    where: str | None = None


Chosen = Callable[[pa.Table, int], "np.ndarray[Any, Any]"]
"""Takes messages, and the number of their queue; says which of them are exported: bool (n,)."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Result of an exported unit. `crc_sum` is the sum of the bodies' CRC-32; `expired` messages expired before."""

    number: int
    ranges: tuple[QueueRange, ...]
    messages: int
    left_out: int
    expired: int
    crc_sum: int
    files: tuple[str, ...]


class ExportFolder:
    """A dataset on disk with its plan and its finished units."""

    format = "parquet"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = path / "_fsstore"
        self.staging = self._state / "staging"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other export writes the dataset during the block: one would remove the files of the other's unit.

        BusyExportError; ExportError: the folder has other files.
        """
        if self.path.exists() and any(self.path.iterdir()) and not self._state.exists():
            raise ExportError(f"{self.path} is not empty and holds no export: name another directory")
        self._state.mkdir(parents=True, exist_ok=True)
        with (self._state / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyExportError(self.path) from None
            yield

    def plan(self, wanted: ExportSelection, store: Store) -> list[QueueRange]:
        """The ranges to export: those of the last start, extended to the present ends of the queues. The plan is
        stored.

        ExportError: the folder has an export with another selection, of another format or store, or a topic that was
        deleted and made again since.
        """
        asked, file = json.loads(json.dumps(asdict(wanted))), self._state / "plan.json"
        before = _plan(json.loads(file.read_text())) if file.exists() else Plan(asked, self.format)
        if before.format != self.format:
            raise ExportError(
                f"{self.path} was started with --format {before.format}: give it again, or name another directory"
            )
        if before.wanted != asked:
            raise ExportError(
                f"{self.path} was started with other topics, times or --where: name them, or another directory"
            )
        parts = _extended(self.path, before, store)
        seen = tuple(store.witness(part.topic, part.queue, part.end - 1) for part in parts)
        write_durably(file, asdict(Plan(asked, self.format, store.name, tuple(parts), seen)))
        return parts

    def units(self) -> list[Unit]:
        """Finished units, the oldest first."""
        found = [_unit(json.loads(file.read_text())) for file in self._state.glob("unit-*.json")]
        return sorted(found, key=lambda unit: unit.number)

    def finish(self, unit: Unit) -> None:
        """Make `unit` part of the dataset, durably."""
        write_durably(self._state / f"unit-{unit.number:05}.json", asdict(unit))

    def clear(self, number: int) -> None:
        """Remove the files of an unfinished unit that an interrupted start left."""
        self.clear_staging()
        for file in self.path.glob(f"topic=*/date=*/unit-{number:05}-*"):
            file.unlink()

    def clear_staging(self) -> None:
        """Remove files of tasks that are not in the dataset."""
        if self.staging.exists():
            shutil.rmtree(self.staging)


Witness = tuple[int, ...]
"""Physical offset and store time of a message; plans of older versions have the physical offset alone."""


class Store(NamedTuple):
    """A mounted store: its name (empty: it has none), its ranges to export, and a function that takes topic, queue and
    queue offset of a message, and returns its witness; None: there is no such message."""

    name: str
    found: list[QueueRange]
    witness: Callable[[str, int, int], Witness | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A stored plan: ranges, and the witness of each one's last message."""

    wanted: dict[str, Any]
    format: str
    store: str = ""
    ranges: tuple[QueueRange, ...] = ()
    witnesses: tuple[Witness | None, ...] = ()


def _plan(stored: dict[str, Any]) -> Plan:
    ranges = tuple(QueueRange(*part) for part in stored["ranges"])
    older = [None if at is None else (at,) for at in stored.get("last_places", [None] * len(ranges))]
    seen = tuple(None if at is None else tuple(at) for at in stored.get("witnesses", older))
    wanted = {"where": None, **stored["wanted"]}
    return Plan(wanted, stored.get("format", "parquet"), stored.get("store", ""), ranges, seen)


def _extended(folder: Path, before: Plan, store: Store) -> list[QueueRange]:
    """The planned ranges up to the present ends of the queues, and ranges of new queues."""
    now = {(part.topic, part.queue): part for part in store.found}
    is_known = not before.ranges
    for part, seen in zip(before.ranges, before.witnesses, strict=True):
        there, at = now.get((part.topic, part.queue), part), store.witness(part.topic, part.queue, part.end - 1)
        if there.end < part.end or not (seen is None or at is None or at[: len(seen)] == seen):
            reason = f"{part.topic}/{part.queue} was deleted and made again since {folder} was written"
            raise ExportError(f"{reason}, or this is another store: name another directory")
        is_known |= at is not None and at == seen
        now[part.topic, part.queue] = part._replace(end=there.end)
    if not is_known and before.store and store.name and before.store != store.name:
        raise ExportError(f"{folder} was exported from another store: name another directory")
    return [now[queue] for queue in sorted(now)]


def left_of(plan: list[QueueRange], units: list[Unit]) -> list[QueueRange]:
    """The ranges of a plan that are not in finished units."""
    done = {(part.topic, part.queue): part.end for unit in units for part in unit.ranges}
    left = (part._replace(begin=max(part.begin, done.get((part.topic, part.queue), 0))) for part in plan)
    return [part for part in left if part.begin < part.end]


def without_expired(parts: list[QueueRange], bounds: Bounds) -> Iterator[QueueRange]:
    """The parts of ranges that have not expired."""
    for part in parts:
        there = within(bounds, part)
        if there.begin < there.end:
            yield there


def messages_in(parts: Sequence[QueueRange]) -> int:
    """Number of queue offsets in ranges."""
    return sum(part.end - part.begin for part in parts)


def write_durably(file: Path, value: Any) -> None:
    """Write a JSON file durably: after a crash it has either the old or the new content."""
    fresh = file.with_suffix(".new")
    with fresh.open("w") as output:
        json.dump(value, output)
        output.flush()
        os.fsync(output.fileno())
    fresh.rename(file)
    sync_path(file.parent)


def sync_path(path: Path) -> None:
    """Sync a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unit(record: dict[str, Any]) -> Unit:
    ranges = tuple(QueueRange(*part) for part in record.pop("ranges"))
    return Unit(ranges=ranges, files=tuple(record.pop("files")), **record)


_MICROSECONDS_A_DAY = 86_400_000_000
_ROW_GROUP_MESSAGES = 1 << 20  # a file's size is limited, so mostly it is one row group


class Totals(NamedTuple):
    """Numbers that are compared between the messages read and written."""

    messages: int
    crc_sum: int


class TaskResult(NamedTuple):
    """Result of a task: its files, the totals of the messages to write, those of the messages found in the files, and
    the numbers of damaged messages that `@parquet/` left out, and of messages that were not chosen."""

    files: tuple[str, ...]
    read: Totals
    found: Totals
    left_out: int
    others: int


def bring(
    root: str, folder: str, most_bytes: int, task: tuple[int, Sequence[QueueRange]], chosen: Chosen | None = None
) -> TaskResult:
    """Write the messages in the ranges of a numbered task, or the chosen ones, durably to `folder`/date=…/, with up to
    about `most_bytes` of messages per file. A repeated task writes other files.

    OSError: a range does not exist.
    """
    number, pieces = task
    attempt, numbers = uuid.uuid4().hex, count()
    files, read, groups = [], [], _RowGroups(root, pieces, chosen)
    for table in _gathered(groups, most_bytes):
        read.append(totals_of(table["body"]))
        for date, messages in _by_date(table):
            file = Path(folder, f"date={date}", f"part-{number:05}-{next(numbers):03}-{attempt}.parquet")
            write_file(file, messages)
            files.append(str(file))
    left_out = 0
    if total(read).messages + groups.others != messages_in(pieces):
        left_out = sum(_left_out(range_path(root, piece)) for piece in pieces)
    return TaskResult(tuple(files), total(read), total(map(_totals_in, files)), left_out, groups.others)


def total(totals: Iterable[Totals]) -> Totals:
    """The sum of totals."""
    parts = list(totals)
    return Totals(sum(part.messages for part in parts), sum(part.crc_sum for part in parts))


def totals_of(bodies: pa.ChunkedArray) -> Totals:
    """The totals of a column of bodies without nulls."""
    return Totals(len(bodies), sum(map(_crc_sum, bodies.chunks)))


def _crc_sum(bodies: pa.Array) -> int:
    _, offsets, data = bodies.buffers()
    if data is None:
        return 0
    bounds = np.frombuffer(offsets, np.int64 if pa.types.is_large_binary(bodies.type) else np.int32)
    begins = bounds[bodies.offset : bodies.offset + len(bodies) + 1].tolist()
    view = memoryview(data)
    return sum(crc32(view[begin:end]) for begin, end in pairwise(begins))


class _RowGroups:
    """The chosen messages of ranges by row groups of `@parquet/`, with a column for the queue. `others` counts those
    that are not chosen."""

    def __init__(self, root: str, pieces: Sequence[QueueRange], chosen: Chosen | None) -> None:
        self._root, self._pieces, self._chosen = root, pieces, chosen
        self.others = 0

    def __iter__(self) -> Iterator[pa.Table]:
        for piece in self._pieces:
            with pq.ParquetFile(range_path(self._root, piece)) as file:
                for index in range(file.num_row_groups):
                    table = file.read_row_group(index, use_threads=False)
                    if self._chosen is not None:
                        taken = table.filter(pa.array(self._chosen(table, piece.queue)))
                        self.others += len(table) - len(taken)
                        table = taken
                    if len(table):
                        yield table.append_column("queue", pa.repeat(pa.scalar(piece.queue, pa.int32()), len(table)))


def _gathered(tables: Iterable[pa.Table], most_bytes: int) -> Iterator[pa.Table]:
    """Tables combined until they have `most_bytes`."""
    gathered: list[pa.Table] = []
    size = 0
    for table in tables:
        gathered.append(table)
        size += table.nbytes
        if size >= most_bytes:
            yield pa.concat_tables(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.concat_tables(gathered)


def _by_date(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """A table split by the days of its store times, in UTC."""
    days = table["store_time"].cast(pa.int64()).to_numpy() // _MICROSECONDS_A_DAY
    found = np.unique(days)
    for day in found:
        rows = table if len(found) == 1 else table.filter(pa.array(days == day))
        yield str(np.datetime64(int(day), "D")), rows


def write_file(file: Path, table: pa.Table) -> None:
    """Write a file of a dataset, durably."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with_dictionary = [*SCHEMA.repeating, "queue"]
    pq.write_table(table, file, row_group_size=_ROW_GROUP_MESSAGES, use_dictionary=with_dictionary, store_schema=False)
    sync_path(file)


def _totals_in(file: str) -> Totals:
    with pq.ParquetFile(file) as written:
        row_groups = range(written.num_row_groups)
        return total(
            totals_of(written.read_row_group(index, ["body"], use_threads=False)["body"]) for index in row_groups
        )


def _left_out(path: str) -> int:
    """Number of damaged messages that a file of `@parquet/` leaves out."""
    return int((pq.read_metadata(path).metadata or {}).get(b"fsstore.left_out", 0))


FILE_BYTES = 256 << 20
"""Bytes of `@parquet/` for a file of the dataset, about."""
UNIT_FILES = 16
_ATTEMPTS = 3

Progress = Callable[[int, int], None]
"""Takes the number of messages that are done, and the total."""
Task = tuple[int, Sequence[QueueRange]]


class Runner(Protocol):
    @property
    def parallelism(self) -> int:
        """Number of tasks that run at once."""

    def run(
        self, work: Callable[[Task], TaskResult], tasks: Sequence[Task], report: Callable[[float], None]
    ) -> list[TaskResult]:
        """The result of `work` for each of `tasks`; `report` is called with the share that is done."""


class Threads:
    """Runs tasks in threads of this machine."""

    parallelism = os.cpu_count() or 1

    def run(
        self, work: Callable[[Task], TaskResult], tasks: Sequence[Task], report: Callable[[float], None]
    ) -> list[TaskResult]:
        parts = []
        executor = ThreadPoolExecutor(self.parallelism)
        try:
            for part in executor.map(work, tasks):
                parts.append(part)
                report(len(parts) / len(tasks))
        finally:
            executor.shutdown(cancel_futures=True)
        return parts


class Export:
    """A planned export; its plan is checked before it runs."""

    def __init__(
        self, mount: str | os.PathLike[str], folder: str | os.PathLike[str], wanted: ExportSelection,
        kind: type[ExportFolder] = ExportFolder, chosen: Chosen | None = None,
    ) -> None:  # fmt: skip
        """`chosen` is what the text of `wanted.where` means. ExportError, MountGoneError."""
        self._root, self._target = str(Path(mount).absolute()), kind(Path(folder).absolute())
        self._chosen = chosen
        store = Store(store_name(self._root), _found(self._root, wanted), partial(witness, self._root))
        with self._target.locked():
            self._plan = self._target.plan(wanted, store)
            self.before = self._target.units()
            """Units that earlier starts have finished."""

    @property
    def is_done(self) -> bool:
        """Whether there are no messages to export."""
        return not left_of(self._plan, self.before)

    def run(self, runner: Runner, progress: Progress = lambda done, total: None) -> list[Unit]:
        """Export all messages that are not in finished units; returns the new units. Messages published meanwhile are
        not in them.

        ExportError: the messages written differ from those read, or another export ran meanwhile. MountGoneError.
        """
        units, total = list(self.before), messages_in(self._plan)
        with self._target.locked():
            if self._target.units() != units:
                raise BusyExportError(self._target.path)
            while left := left_of(self._plan, units):
                parts = _next_unit(self._root, left, FILE_BYTES * max(UNIT_FILES, runner.parallelism))
                report = _share_of(progress, total - messages_in(left), messages_in(parts), total)
                work = partial(bring, self._root, str(self._target.staging), FILE_BYTES, chosen=self._chosen)
                units.append(_bring(runner, report, self._root, self._target, len(units), parts, work))
                report(1)
        return units[len(self.before) :]


def _share_of(progress: Progress, done: int, share: int, total: int) -> Callable[[float], None]:
    """A function that reports progress, from the done share of the next `share` messages, after `done` of them."""
    return lambda fraction: progress(done + int(share * fraction), total)


def _found(root: str, wanted: ExportSelection) -> list[QueueRange]:
    there: Bounds = bounds(root)
    missing = set(wanted.topics or ()) - there.keys()
    if missing:
        raise NoTopicError(f"no topic {min(missing)!r}: there are: {', '.join(sorted(there)) or 'none yet'}")
    found = [
        QueueRange(topic, queue, _offset_at(root, topic, queue, wanted.from_ms, begin, end),
              end if wanted.until_ms is None else _offset_at(root, topic, queue, wanted.until_ms, begin, end))
        for topic, queues in sorted(there.items()) if wanted.topics is None or topic in wanted.topics
        for queue, (begin, end) in sorted(queues.items())
    ]  # fmt: skip
    return [part for part in found if part.begin < part.end]


def _offset_at(root: str, topic: str, queue: int, when_ms: int | None, begin: int, end: int) -> int:
    """The first queue offset stored at or after a time."""
    if when_ms is None:
        return begin
    found = offset_at(root, topic, queue, when_ms)
    return end if found is None else found


def _next_unit(root: str, left: list[QueueRange], most_bytes: int) -> tuple[QueueRange, ...]:
    """Ranges of one topic, one per queue, up to about `most_bytes`."""
    found: dict[int, QueueRange] = {}
    size = 0
    for whole in left:
        if whole.topic != left[0].topic or size >= most_bytes:
            break
        for part in cut(whole):
            found[part.queue] = QueueRange(whole.topic, whole.queue, whole.begin, part.end)
            size += size_of(root, part)
            if size >= most_bytes:
                break
    return tuple(found.values())


def _bring(
    runner: Runner, report: Callable[[float], None], root: str, target: ExportFolder, number: int,
    parts: tuple[QueueRange, ...], work: Callable[[Task], TaskResult],
) -> Unit:  # fmt: skip
    """Export a unit, again if retention removes messages meanwhile."""
    for attempt in range(_ATTEMPTS):
        there = list(without_expired(list(parts), bounds(root)))
        target.clear(number)
        try:
            brought = _run(runner, report, root, work, [piece for part in there for piece in cut(part)])
            return _finish(target, number, parts, there, brought)
        except Exception:
            if attempt + 1 == _ATTEMPTS or list(without_expired(there, bounds(root))) == there:
                raise
    raise AssertionError("unreachable")


def _finish(
    target: ExportFolder, number: int, parts: tuple[QueueRange, ...], there: list[QueueRange], brought: list[TaskResult]
) -> Unit:
    read, found = (total(getattr(part, name) for part in brought) for name in ("read", "found"))
    left_out = sum(part.left_out for part in brought)
    others = sum(part.others for part in brought)
    if read.messages + left_out + others != messages_in(there):
        raise ExportError(f"{read.messages + others} messages were read of {messages_in(there)}")
    if found != read:
        raise ExportError(f"the dataset differs from the messages read: {found} instead of {read}; start again")
    files = _move(target, number, parts[0].topic, [Path(file) for part in brought for file in part.files])
    expired = messages_in(parts) - messages_in(there)
    unit = Unit(number, parts, read.messages, left_out, expired, read.crc_sum, files)
    target.finish(unit)
    return unit


def _run(
    runner: Runner, report: Callable[[float], None], root: str, work: Callable[[Task], TaskResult],
    pieces: list[QueueRange],
) -> list[TaskResult]:  # fmt: skip
    """Write ranges to files below `staging`, by tasks of about the same size."""
    tasks = list(enumerate(_shares(pieces, [size_of(root, piece) for piece in pieces])))
    return runner.run(work, tasks, report) if tasks else []


def _shares(pieces: list[QueueRange], sizes: list[int]) -> list[list[QueueRange]]:
    """Neighbouring ranges, distributed to as many tasks as there will be files."""
    whole = max(sum(sizes), 1)
    tasks = -(-whole // FILE_BYTES)
    shares: list[list[QueueRange]] = [[] for _ in range(tasks)]
    done = 0
    for piece, size in zip(pieces, sizes, strict=True):
        shares[min((done + size // 2) * tasks // whole, tasks - 1)].append(piece)
        done += size
    return [share for share in shares if share]


def _move(target: ExportFolder, number: int, topic: str, files: list[Path]) -> tuple[str, ...]:
    """Move files into the dataset, durably; returns their names there."""
    partition = target.path / os.fsdecode(topic_partition(topic))
    moved = []
    for file in files:
        target_file = partition / file.parent.name / f"unit-{number:05}-{file.name}"
        target_file.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target_file)
        moved.append(str(target_file.relative_to(target.path)))
    for folder in {target.path / name for file in moved for name in Path(file).parents}:
        sync_path(folder)
    target.clear_staging()
    return tuple(moved)

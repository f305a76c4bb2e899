"""Marks: the state on disk according to the last writer, for the next opening (docs/format.md, 13).

    STORE/fsstore/coverage.json   recovery point: physical offset up to which log and derived data are on disk
    STORE/fsstore/clean.json      clean mark: the store was closed, with sizes and times of its files

RocketMQ's checkpoint holds times and may be ahead of the flushed data. The recovery point holds a physical offset and
is written after the flush. After a crash, data before it is trusted and data after it is rebuilt. Any other writer
touches `lock`, which invalidates it. `newest` is the physical offset, size and CRC of the last record before it: if the
bytes there have another CRC, that record is damaged.

With the clean mark, opening reads no record: it only compares each file's size and time. The mark is removed, durably,
before the store is written, and is ignored if any file has changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ReadError, RefusedReadError
from engine.files.disk import Disk, read_own_file, whole_number, write_own_file
from engine.files.layout import StoreLayout
from engine.log.evidence import Covered
from engine.record.kernel.crc import crc32
from engine.record.kernel.files import read_through
from engine.results import DamagedRange, DamageKind, NewestRecord

if TYPE_CHECKING:
    from engine.derived.consume_queue import ConsumeQueue
    from engine.log.commit_log import CommitLog
    from engine.log.unread import Range

VERSION = 1
EARLIEST = -1 << 63
"""Lowest time: times may lie before 1970."""

QueueExtents = Mapping[str, Mapping[int, tuple[int, int]]]
"""First and next queue offset, by topic and queue id."""

Stamp = tuple[int, int]
"""Size in bytes and modification time in ns."""

STAMPED_FOLDERS = ("consumequeue", "index")


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """The log before `physical_end` and its derived data are on disk. All offsets but those of `queues` are physical.

    `log_begin` is the log's first offset then. `newest` is the newest record: offset, size, store time in ms, CRC of
    all its bytes. `queues` has each queue's first offset in its files, and its next one. `index_physical_offset` is
    that of the newest record with a key in the index, `index_files` the names of its files, oldest first. The disk
    refused the log's `unread` ranges: no data is derived from them.
    """

    physical_end: int
    log_begin: int = 0
    newest: tuple[int, int, int, int] | None = None
    lock_mtime_ns: int = 0
    queues: QueueExtents = field(default_factory=dict)
    index_physical_offset: int = -1
    index_files: tuple[str, ...] = ()
    unread: tuple[Range, ...] = ()

    @property
    def newest_record(self) -> NewestRecord | None:
        """`newest` without the CRC."""
        return NewestRecord(*self.newest[:3]) if self.newest else None

    @property
    def store_time_ms(self) -> int:
        """Store time of the newest record in ms; 0 without one."""
        return self.newest[2] if self.newest else 0

    @property
    def covered(self) -> Covered:
        """The evidence in this point."""
        ends = {(topic, one): end for topic, extents in self.queues.items() for one, (_, end) in extents.items()}
        newest = self.newest_record
        return Covered(self.physical_end, ends, newest.end if newest else -1)

    def speaks_of(self, log: CommitLog, lock_mtime_ns: int) -> bool:
        """Whether the point describes `log`, and no other program has written the store since. Damage of the newest
        record does not matter: the point is the evidence that it was written."""
        if lock_mtime_ns != self.lock_mtime_ns or self.physical_end < log.min_offset:
            return False
        if self.newest is None:
            return self.physical_end == log.min_offset
        if self.newest[0] < log.min_offset:
            return self.physical_end == log.min_offset
        return True

    def newest_damage(self, log: CommitLog) -> list[DamagedRange]:
        """The newest record as a damaged range if its CRC differs from the point's, else an empty list."""
        if self.newest is None or self.newest[0] < log.min_offset:
            return []
        start, size, store_time_ms, crc = self.newest
        if record_crc(log, start, size) == crc:
            return []
        reason = _refusal(log, start, size) or "it is not as its writer left it"
        return [DamagedRange(start, start + size, reason, DamageKind.UNREADABLE, store_time_ms)]


def queue_extent(queue: ConsumeQueue) -> tuple[int, int]:
    """Queue offsets of the first entry in a queue's files (after the last missing one), and of its next entry."""
    return queue.first_offset if queue.files.first else queue.max_offset, queue.max_offset


def record_crc(log: CommitLog, physical_offset: int, size: int) -> int | None:
    """CRC-32 of all bytes of a record, None if it is unreadable."""
    try:
        return crc32(log.view(physical_offset, size))
    except ReadError:
        return None


def _refusal(log: CommitLog, physical_offset: int, size: int) -> str | None:
    """The reason why the disk refuses a record; None if it is readable, or no file has it."""
    try:
        read_through(log.view(physical_offset, size))
    except RefusedReadError as error:
        return error.reason
    except ReadError:
        pass
    return None


def read_recovery_point(path: Path) -> RecoveryPoint | None:
    """The recovery point at `path`; None if it is missing or malformed."""
    return parse_recovery_point(read_own_file(path))


def parse_recovery_point(stored: Any) -> RecoveryPoint | None:
    """The recovery point in a JSON object; None if it is malformed."""
    try:
        if stored["version"] != VERSION:
            return None
        return RecoveryPoint(
            physical_end=whole_number(stored["physical_end"]),
            log_begin=whole_number(stored["log_begin"]),
            newest=_newest(stored["newest"]),
            lock_mtime_ns=whole_number(stored["lock_mtime_ns"], EARLIEST),
            queues={
                str(topic): {
                    int(queue): (whole_number(first), whole_number(end)) for queue, (first, end) in queues.items()
                }
                for topic, queues in stored["queues"].items()
            },
            index_physical_offset=whole_number(stored["index_physical_offset"], -1),
            index_files=tuple(str(name) for name in stored["index_files"]),
            unread=tuple((whole_number(start), whole_number(end)) for start, end in stored.get("unread", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _newest(stored: Any) -> tuple[int, int, int, int] | None:
    if stored is None:
        return None
    physical_offset, size, store_time_ms, crc = (whole_number(part, EARLIEST) for part in stored)
    return physical_offset, size, store_time_ms, crc


def recovery_point_object(point: RecoveryPoint) -> dict[str, Any]:
    """The recovery point as a JSON object."""
    return {"version": VERSION, **asdict(point)}


def write_recovery_point(path: Path, point: RecoveryPoint, disk: Disk) -> None:
    """Store the recovery point durably. The data it covers must be on disk already. OSError."""
    write_own_file(path, recovery_point_object(point), disk)


@dataclass(frozen=True, slots=True)
class CleanMark:
    """The recovery point of the close, and each file's stamp by its path below the store, or its absolute path."""

    point: RecoveryPoint
    files: dict[str, Stamp]


def stamp_files(layout: StoreLayout) -> dict[str, Stamp]:
    """Stamps of all files of the log and its derived data."""
    store = layout.root
    stamps: dict[str, Stamp] = {}
    for folder in layout.commit_log.folders:
        _stamp_directory(folder, layout.shown(folder), stamps)
    for name in STAMPED_FOLDERS:
        _stamp_directory(store / name, name, stamps)
    if layout.checkpoint.exists():
        status = layout.checkpoint.stat()
        stamps[layout.checkpoint.name] = (status.st_size, status.st_mtime_ns)
    return stamps


def _stamp_directory(directory: Path, name: str, stamps: dict[str, Stamp]) -> None:
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir():
            _stamp_directory(Path(entry.path), f"{name}/{entry.name}", stamps)
        else:
            status = entry.stat()
            stamps[f"{name}/{entry.name}"] = (status.st_size, status.st_mtime_ns)


def read_clean_mark(layout: StoreLayout) -> CleanMark | None:
    """The store's clean mark if no file has changed since, else None."""
    try:
        mark = _parse_clean_mark(read_own_file(layout.clean_mark))
        return mark if mark is not None and mark.files == stamp_files(layout) else None
    except OSError:
        return None


def _parse_clean_mark(stored: Any) -> CleanMark | None:
    try:
        point = parse_recovery_point(stored["coverage"])
        files = {str(name): (size, mtime_ns) for name, (size, mtime_ns) in stored["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return CleanMark(point, files) if point is not None else None


def write_clean_mark(path: Path, mark: CleanMark, disk: Disk) -> None:
    """Store the clean mark durably, as the last step before the lock is released. OSError."""
    write_own_file(path, {"coverage": recovery_point_object(mark.point), "files": mark.files}, disk)

"""Marks: what the last writer knew to be on disk, for the next opening (docs/format.md, 13).

    STORE/fsstore/coverage.json   recovery point: up to where the log and all that is derived from it are on disk
    STORE/fsstore/clean.json      clean mark: the store was closed, and this is what its files looked like

RocketMQ's checkpoint holds times, and runs ahead of what is flushed. The recovery point holds a physical offset, and is
written after the flush. An unclean start trusts what is before it and rebuilds what is after it. Whoever else writes
the store touches `lock`. `newest` is the physical offset, size and CRC of the last record before it: if the bytes there
have another CRC, that record is damaged.

With the clean mark, opening reads no record: whatever the number of messages, it costs one look at each file's size and
time. It is removed, durably, before anything is written, and counts for nothing when any file is not as it was left.
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
"""Times may lie before 1970."""

QueueExtents = Mapping[str, Mapping[int, tuple[int, int]]]
"""First and next queue offset, by topic and queue id."""

Stamp = tuple[int, int]
"""Size in bytes and modification time in ns."""

STAMPED_FOLDERS = ("consumequeue", "index")


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """What is on disk: the log before `physical_end`, and what is derived from it.

    `log_begin` is where the log began then. `queues` is where each queue's files begin and the next queue offset, by
    topic and queue id; `index_physical_offset` that of the newest record with a
    key in the index; `index_files` the names of its files, oldest first; `newest` (physical offset, size, store time,
    CRC of all its bytes). Of the log in the `unread` ranges nothing is derived: the disk refused it.
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
        """When the newest record was stored; 0 when there is none."""
        return self.newest[2] if self.newest else 0

    @property
    def covered(self) -> Covered:
        """What it claims of log and queues."""
        ends = {(topic, one): end for topic, extents in self.queues.items() for one, (_, end) in extents.items()}
        newest = self.newest_record
        return Covered(self.physical_end, ends, newest.end if newest else -1)

    def speaks_of(self, log: CommitLog, lock_mtime_ns: int) -> bool:
        """Whether nobody else wrote the store since. Damage of the newest record says nothing against the mark: that it
        was written is what the mark is there to tell."""
        if lock_mtime_ns != self.lock_mtime_ns or self.physical_end < log.min_offset:
            return False
        if self.newest is None:
            return self.physical_end == log.min_offset
        if self.newest[0] < log.min_offset:
            return self.physical_end == log.min_offset
        return True

    def newest_damage(self, log: CommitLog) -> list[DamagedRange]:
        """The newest record as a damaged range, when its bytes are not those that the mark was written for."""
        if self.newest is None or self.newest[0] < log.min_offset:
            return []
        start, size, store_time_ms, crc = self.newest
        if record_crc(log, start, size) == crc:
            return []
        reason = _refusal(log, start, size) or "it is not as its writer left it"
        return [DamagedRange(start, start + size, reason, DamageKind.UNREADABLE, store_time_ms)]


def queue_extent(queue: ConsumeQueue) -> tuple[int, int]:
    """Where a queue's files begin (those without a missing one after them), and its next queue offset."""
    return queue.first_offset if queue.files.first else queue.max_offset, queue.max_offset


def record_crc(log: CommitLog, physical_offset: int, size: int) -> int | None:
    """CRC-32 of every byte of a record, None when they can't be read."""
    try:
        return crc32(log.view(physical_offset, size))
    except ReadError:
        return None


def _refusal(log: CommitLog, physical_offset: int, size: int) -> str | None:
    """Why the disk does not give a record; None: it gives it, or no file has it."""
    try:
        read_through(log.view(physical_offset, size))
    except RefusedReadError as error:
        return error.reason
    except ReadError:
        pass
    return None


def read_recovery_point(path: Path) -> RecoveryPoint | None:
    """The mark at `path`; None when there is none, or none that can be understood."""
    return parse_recovery_point(read_own_file(path))


def parse_recovery_point(stored: Any) -> RecoveryPoint | None:
    """The mark from its JSON object; None when it is not one."""
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
    """The mark as a JSON object."""
    return {"version": VERSION, **asdict(point)}


def write_recovery_point(path: Path, point: RecoveryPoint, disk: Disk) -> None:
    """Store the mark, durably. Everything it speaks of must be on disk already. OSError."""
    write_own_file(path, recovery_point_object(point), disk)


@dataclass(frozen=True, slots=True)
class CleanMark:
    """What was covered at the close, and the stamp of every file by its path below the store, or its absolute path."""

    point: RecoveryPoint
    files: dict[str, Stamp]


def stamp_files(layout: StoreLayout) -> dict[str, Stamp]:
    """Stamps of all files of the log and of what is derived from it."""
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
    """The store's mark if every file is as it says; else None."""
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
    """Store the mark, durably: the last thing before the lock is released. OSError."""
    write_own_file(path, {"coverage": recovery_point_object(mark.point), "files": mark.files}, disk)

"""Marks: the state on disk according to the last writer, for the next opening (docs/format.md, 13).

    STORE/fsstore/coverage.json   recovery point: physical offset up to which log and derived data are on disk
    STORE/fsstore/clean.json      clean mark: the store was closed, with sizes and times of its files

RocketMQ's checkpoint holds times and may be ahead of the flushed data. The recovery point holds a physical offset and
is written after the flush. After a crash, data before it is trusted and data after it is rebuilt. Any other writer
touches `lock`, which invalidates it. `newest` is the physical offset, size and CRC of the last record before it: if the
bytes there have another CRC, that record is damaged.

The first line of its file has every queue. Each later flush adds a line with the queues that changed, until these lines
are as long as the first one. A reader takes the lines up to the first that is torn.

With the clean mark, opening reads no record: it only compares each file's size and time. Folders of topics and queues
are not listed: their times tell whether a name came or went. The mark is removed, durably, before the store is written,
and is ignored if any file has changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ObstructedError, ReadError, RefusedReadError
from engine.files.disk import (
    MOST_BYTES,
    Disk,
    append_durably,
    read_own_file,
    whole_number,
    write_own_content,
    write_own_file,
)
from engine.files.layout import StoreLayout
from engine.files.paths import open_folder, read_file
from engine.log.entries import ENTRY
from engine.log.evidence import Covered, Extents
from engine.record.kernel.crc import crc32
from engine.record.kernel.files import read_through
from engine.record.kernel.folders import files_below, queue_stamps
from engine.results import DamagedRange, DamageKind, NewestRecord

if TYPE_CHECKING:
    from engine.log.commit_log import CommitLog
    from engine.log.unread import Range
    from engine.record.kernel.folders import Members

VERSION = 1
EARLIEST = -1 << 63
"""Lowest time: times may lie before 1970."""

LEAST_LINES_BYTES = 64 << 10
"""Bytes of lines that may always follow a whole recovery point."""


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """The log before `physical_end` and its derived data are on disk. All offsets but those of `queues` are physical.

    `log_begin` is the log's first offset then. `newest` is the newest record: offset, size, store time in ms, CRC of
    all its bytes. `queues` has each queue's first offset in its files, and its next one. `index_physical_offset` is
    that of the newest record with a key in the index, `index_files` the names of its files, oldest first. The disk
    refused the log's `unread` ranges: no data is derived from them. Files of queues that are newer than `time_ns`, in
    epoch ns, may have changed since. `multi_dispatch`: records may have secondary slots.

    In a line that adds to a point, `queues` are those that changed, and topics that are `gone` had queues before.
    """

    physical_end: int
    log_begin: int = 0
    newest: tuple[int, int, int, int] | None = None
    lock_mtime_ns: int = 0
    queues: Extents = field(default_factory=dict)
    index_physical_offset: int = -1
    index_files: tuple[str, ...] = ()
    unread: tuple[Range, ...] = ()
    time_ns: int = 0
    multi_dispatch: bool = False
    gone: tuple[str, ...] = ()

    @property
    def newest_record(self) -> NewestRecord | None:
        """`newest` without the CRC."""
        return NewestRecord(*self.newest[:3]) if self.newest else None

    @property
    def store_time_ms(self) -> int:
        """Store time of the newest record in ms; 0 without one."""
        return self.newest[2] if self.newest else 0

    def covered(self, at_rest: Extents) -> Covered:
        """The evidence in this point, without the queues `at_rest`."""
        ends = {
            (topic, one): end
            for topic, extents in self.queues.items()
            for one, (_, end) in extents.items()
            if one not in at_rest.get(topic, ())
        }
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
    try:
        return parse_recovery_points(read_file(path, MOST_BYTES))
    except (OSError, ObstructedError, ValueError):
        return None


def parse_recovery_points(content: bytes) -> RecoveryPoint | None:
    """The newest recovery point in the lines of a file, with every queue; None if the first line is malformed."""
    newest, queues = None, Extents()
    for line in content.splitlines():
        try:
            found = parse_recovery_point(json.loads(line))
        except (ValueError, RecursionError):
            break
        if found is None:
            break
        for topic in found.gone:
            queues.pop(topic, None)
        for topic, extents in found.queues.items():
            queues[topic] = {**queues.get(topic, {}), **extents}
        newest = found
    return replace(newest, queues=queues, gone=()) if newest is not None else None


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
            time_ns=whole_number(stored.get("time_ns", 0)),
            multi_dispatch=bool(stored.get("multi_dispatch", False)),
            gone=tuple(str(topic) for topic in stored.get("gone", ())),
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
    return {"version": VERSION, **{one.name: getattr(point, one.name) for one in fields(point)}}


class RecoveryPointFile:
    """Stores the recovery points of one writer. Thread safety: one caller at a time."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._room_bytes = 0
        """Bytes of lines that may follow what is there."""

    def write_all_next(self) -> None:
        """Store all queues at the next call of `write`."""
        self._room_bytes = 0

    def write(self, point: RecoveryPoint, queues: Callable[[], Extents]) -> None:
        """Store the recovery point durably. The data it covers must be on disk already. Its `queues` are those that
        changed since the last call; `queues()` has all. OSError: the next call stores all."""
        room_bytes = self._room_bytes
        self._room_bytes = 0  # until it is there
        line = _line(point) if room_bytes else b""
        if 0 < len(line) <= room_bytes:
            append_durably(self._path, line, self._disk)
            self._room_bytes = room_bytes - len(line)
        else:
            whole = _line(replace(point, queues=queues(), gone=()))
            write_own_content(self._path, whole, self._disk)
            self._room_bytes = max(len(whole), LEAST_LINES_BYTES)


def _line(point: RecoveryPoint) -> bytes:
    return json.dumps(recovery_point_object(point), separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class CleanMark:
    """The recovery point of the close, the size of a queue's file in bytes, and the digest of all files then."""

    point: RecoveryPoint
    queue_file_bytes: int
    files: str


def clean_mark(layout: StoreLayout, point: RecoveryPoint, queue_file_bytes: int) -> CleanMark:
    """The clean mark for the files as they are now. FileNotFoundError: a file of a queue is missing. OSError."""
    return CleanMark(point, queue_file_bytes, _digest_of_files(layout, point.queues, queue_file_bytes))


def _digest_of_files(layout: StoreLayout, queues: Extents, queue_file_bytes: int) -> str:
    """A digest of the names, sizes and modification times of all files of the log and its derived data. OSError."""
    digest = blake2b(digest_size=16)
    folders = [(folder, layout.shown(folder)) for folder in layout.commit_log.folders]
    folders.append((layout.index, layout.shown(layout.index)))
    for folder, name in folders:
        for stamps in _stamps_below(folder, name) if folder.is_dir() else ():
            digest.update("".join(stamps).encode("utf-8", "surrogateescape"))
    for stamp in _stamps_of_queues(layout.consume_queues, queues, queue_file_bytes):
        digest.update(stamp)
    if layout.checkpoint.exists():
        status = layout.checkpoint.stat()
        digest.update(f"{layout.checkpoint.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _stamps_of_queues(directory: Path, queues: Extents, file_bytes: int) -> Iterator[bytes]:
    """Names of topics, each followed by the stamps of its queues. Only `directory` is listed. OSError."""
    if not directory.is_dir():
        return
    folder = open_folder(directory)
    try:
        for topic in sorted({*os.listdir(folder), *queues}):
            name = os.fsencode(topic)
            yield name
            yield queue_stamps(folder, name, queues.get(topic, {}), ENTRY.itemsize, file_bytes)
    finally:
        os.close(folder)


def _stamps_below(folder: Path, path: str) -> Iterator[list[str]]:
    """A line for each file, in the order of names; a list for each member of the folder. OSError."""
    descriptor = open_folder(folder)
    try:
        for name in sorted(os.listdir(descriptor)):  # one topic at a time: all together would take much memory
            try:
                members = files_below(descriptor, os.fsencode(name))
            except NotADirectoryError:
                found = os.stat(name, dir_fd=descriptor)
                yield [f"{path}/{name} {found.st_size} {found.st_mtime_ns}\n"]
            else:
                yield _stamps(members, f"{path}/{name}")
    finally:
        os.close(descriptor)


def _stamps(members: Members, path: str) -> list[str]:
    lines: list[str] = []
    for name, found in sorted(members.items()):
        if isinstance(found, dict):
            lines += _stamps(found, f"{path}/{name}")
        else:
            lines.append(f"{path}/{name} {found[0]} {found[1]}\n")
    return lines


def read_clean_mark(layout: StoreLayout) -> CleanMark | None:
    """The store's clean mark if no file has changed since, else None."""
    try:
        mark = _parse_clean_mark(read_own_file(layout.clean_mark))
        if mark is None:
            return None
        found = clean_mark(layout, mark.point, mark.queue_file_bytes)
        return mark if found.files == mark.files else None
    except (OSError, ValueError, OverflowError):  # the last two: of names and numbers that no writer stores
        return None


def _parse_clean_mark(stored: Any) -> CleanMark | None:
    try:
        point = parse_recovery_point(stored["coverage"])
        queue_file_bytes = whole_number(stored["queue_file_bytes"], 1)
        files = str(stored["files"])
    except (KeyError, TypeError, ValueError):
        return None
    return CleanMark(point, queue_file_bytes, files) if point is not None else None


def write_clean_mark(path: Path, mark: CleanMark, disk: Disk) -> None:
    """Store the clean mark durably, as the last step before the lock is released. OSError."""
    content = {
        "coverage": recovery_point_object(mark.point),
        "queue_file_bytes": mark.queue_file_bytes,
        "files": mark.files,
    }
    write_own_file(path, content, disk)

"""Known ranges: what a reader has derived from a range of a queue, kept for later openings (docs/format.md, 13).

All messages of a known range were read and found good. It lies in one full file of the log, which is on disk. It stays
known while that file has the size and the modification time that it had before the range was read.

    STORE/fsstore/ranges/<file of the log>                                                       little-endian
    header  magic 8 bytes | file_bytes i64 | mtime_ns i64
    row     begin i64 | end i64 | first_physical i64 | last_physical i64 | queue i32 | topic_bytes u32 |
            content_bytes u32 | crc u32 | topic | content

`crc` is the CRC-32 of the other bytes of the row. A file grows by rows and is never synced; it is used up to the first
row with a wrong CRC. It goes with its file of the log, and may be deleted at any time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import ReadError, StoreError
from engine.files.disk import make_directory
from engine.files.file_scan import NAME_DIGITS, file_name
from engine.files.ignored import IgnoredErrors
from engine.files.paths import open_file, open_or_create, read_file, unlink
from engine.record.kernel.crc import crc32
from engine.results import Problem, ProblemKind

if TYPE_CHECKING:
    from engine.derived.consume_queues import ConsumeQueues
    from engine.files.file_queue import FileQueue
    from engine.files.layout import StoreLayout
    from engine.files.mapped_file import MappedFile
    from engine.results import DamagedRange

MAGIC = b"FSRANGE\x01"
MOST_BYTES = 16 << 20
"""Limit of a file."""
KEPT_BYTES = 32 << 20
"""Contents that are remembered, about."""

_HEADER, _FIELDS, _CRC = Struct("<8s2q"), Struct("<4qi2I"), Struct("<I")
_ROW_BYTES = _FIELDS.size + _CRC.size


class KnownRange(NamedTuple):
    """Queue offsets [begin, end), and the physical offsets of the first and the last record."""

    topic: str
    queue: int
    begin: int
    end: int
    first_physical: int
    last_physical: int


class _Stamp(NamedTuple):
    """Size and modification time of a file of the log. They are others once it has changed."""

    file_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> _Stamp:
        """OSError."""
        found = os.stat(path)
        return cls(found.st_size, found.st_mtime_ns)


class _Row(NamedTuple):
    """A row of a file: the bytes [position, end)."""

    known: KnownRange
    content: bytes
    position: int
    end: int


class _Rows:
    """The rows for a file of the log with that stamp. They end at `end`; 0: they have no file, or one of no use."""

    def __init__(self, stamp: _Stamp) -> None:
        self.stamp = stamp
        self.by_begin: dict[tuple[str, int, int], _Row] = {}
        self.end = 0


class KnownRanges:
    """The known ranges of a store. Thread safety: any thread."""

    def __init__(self, directory: Path, log: FileQueue, ignored: IgnoredErrors, *, writable: bool) -> None:
        """Unless `writable`, nothing is written to `directory`. Failed writes are noted in `ignored`."""
        self._directory = directory
        self._log = log
        self._ignored = ignored
        self._writable = writable
        self._lock = threading.Lock()
        self._files: dict[int, _Rows] = {}
        """By the physical offset at which the file of the log begins."""
        self._begin = -1
        """The log's begin when expired files were last deleted."""

    def find(self, topic: str, queue: int, begin: int, first_physical: int) -> KnownRange | None:
        """The known range that begins at queue offset `begin`, with the record at `first_physical`."""
        with self._lock:
            found = self._of(first_physical)
            row = None if found is None else found[1].by_begin.get((topic, queue, begin))
            return row.known if row is not None and row.known.first_physical == first_physical else None

    def content(self, known: KnownRange) -> bytes | None:
        """The content that was kept for a range; None: the range is not known."""
        with self._lock:
            found = self._of(known.first_physical)
            row = None if found is None else found[1].by_begin.get(known[:3])
            return row.content if row is not None and row.known == known else None

    def keep(self, known: KnownRange, content: bytes) -> None:
        """Keep what follows from a range, if it lies in one full file of the log that is on disk. The caller has asked
        for its `content`, could not use it, and has read all its messages since: each of them is good."""
        with self._lock:
            found = self._of(known.first_physical) if self._writable else None
            if found is None:
                return
            file, rows = found
            end, before = file.start + self._log.file_bytes, rows.by_begin.get(known[:3])
            if known.last_physical >= end or end > self._log.flushed_offset:
                return
            try:
                if _Stamp.of(file.path) != rows.stamp:
                    del self._files[file.start]
                    return
                if before is not None:
                    self._cut(file, rows, before)
                self._append(file, rows, known, content)
            except (OSError, StoreError) as error:
                self._ignored.note("facts about messages are not kept, and are found again", error)

    def forget(self, known: KnownRange) -> None:
        """A message of the range is damaged: it is not known any more."""
        with self._lock:
            found = self._of(known.first_physical)
            row = None if found is None else found[1].by_begin.get(known[:3])
            if found is not None and row is not None:
                self._cut(*found, row)

    def forget_log(self) -> None:
        """Another log may have replaced the one that was shown: look at all files again."""
        with self._lock:
            self._files.clear()

    def delete_expired(self) -> None:
        """Delete the rows for files that are before the log's begin."""
        begin = self._log.min_offset
        with self._lock:
            if begin == self._begin:
                return
            self._begin = begin
            for start in [start for start in self._files if start < begin]:
                del self._files[start]
        if self._writable:
            for start in _starts(self._directory):
                if start < begin:
                    with suppress(OSError, StoreError):
                        unlink(self._path(start))

    def _of(self, physical_offset: int) -> tuple[MappedFile, _Rows] | None:
        """The file of the log at `physical_offset`, and its rows; None: it is not there, or not full."""
        file = self._log.find(physical_offset)
        if file is None or file.start + self._log.file_bytes > self._log.max_offset:
            return None
        rows = self._files.get(file.start)
        if rows is None:
            try:
                rows = self._loaded(file)
            except OSError:
                return None
            if sum(one.end for one in self._files.values()) > KEPT_BYTES:
                self._files.clear()
            self._files[file.start] = rows
        return file, rows

    def _loaded(self, file: MappedFile) -> _Rows:
        """OSError: the file of the log is gone."""
        rows = _Rows(_Stamp.of(file.path))
        for row in _stored(self._path(file.start), rows.stamp):
            rows.by_begin[row.known[:3]] = row
            rows.end = row.end
        return rows

    def _append(self, file: MappedFile, rows: _Rows, known: KnownRange, content: bytes) -> None:
        """Write a row after the valid ones; the rest of the file is cut off. OSError, StoreError."""
        row, position = _encoded(known, content), rows.end or _HEADER.size
        if position + len(row) > MOST_BYTES:
            return
        make_directory(self._directory)
        descriptor = open_or_create(self._path(file.start))
        try:
            os.ftruncate(descriptor, rows.end)
            if not rows.end:
                os.pwrite(descriptor, _HEADER.pack(MAGIC, *rows.stamp), 0)
            os.pwrite(descriptor, row, position)
        finally:
            os.close(descriptor)
        rows.end = position + len(row)
        rows.by_begin[known[:3]] = _Row(known, content, position, rows.end)

    def _cut(self, file: MappedFile, rows: _Rows, first: _Row) -> None:
        """Forget a row and those behind it, which are found out again."""
        for one in [one for one in rows.by_begin.values() if one.position >= first.position]:
            del rows.by_begin[one.known[:3]]
        rows.end = first.position if rows.by_begin else 0
        if self._writable:
            try:
                descriptor = open_file(self._path(file.start), os.O_RDWR)
                try:
                    os.ftruncate(descriptor, rows.end)
                finally:
                    os.close(descriptor)
            except (OSError, StoreError) as error:
                self._ignored.note("a later opening believes what was known of damaged messages", error)

    def _path(self, start: int) -> Path:
        return self._directory / file_name(start)


def range_problems(
    layout: StoreLayout, log: FileQueue, queues: ConsumeQueues, damaged: Sequence[DamagedRange]
) -> Iterator[Problem]:
    """Known ranges with messages that a scan has found damaged."""
    for path, known in known_ranges(layout.ranges, log) if damaged else ():
        queue = queues.get(known.topic, known.queue)
        if queue is None or not queue.min_offset <= known.begin < known.end <= queue.max_offset:
            continue
        try:
            offsets = queue.entries(known.begin, known.end - known.begin)["physical_offset"]
        except ReadError:
            continue
        if any(((offsets >= one.start) & (offsets < one.end)).any() for one in damaged):
            text = f"messages {known.begin} to {known.end - 1} of {known.topic}/{known.queue} are not all good any more"
            yield Problem(ProblemKind.DERIVED, layout.shown(path), -1, text)


def known_ranges(directory: Path, log: FileQueue) -> Iterator[tuple[Path, KnownRange]]:
    """All ranges that an opening would believe, each with the path of its row."""
    for start in sorted(_starts(directory)):
        file = log.find(start)
        if file is not None and file.start == start:
            path = directory / file_name(start)
            with suppress(OSError):
                yield from ((path, row.known) for row in _stored(path, _Stamp.of(file.path)))


def _starts(directory: Path) -> list[int]:
    """The physical offsets at which the log files with rows begin."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return [int(name) for name in names if len(name) == NAME_DIGITS and name.isascii() and name.isdecimal()]


def _stored(path: Path, stamp: _Stamp) -> Iterator[_Row]:
    """The valid leading rows of a file that was written for a file of the log with that stamp."""
    try:
        raw = read_file(path, MOST_BYTES)
    except (OSError, StoreError, ValueError):
        return
    if raw[: _HEADER.size] != _HEADER.pack(MAGIC, *stamp):
        return
    position = _HEADER.size
    while (row := _row_at(raw, position)) is not None:
        yield row
        position = row.end


def _encoded(known: KnownRange, content: bytes) -> bytes:
    topic = os.fsencode(known.topic)
    fields = _FIELDS.pack(*known[2:], known.queue, len(topic), len(content))
    return fields + _CRC.pack(crc32(fields + topic + content)) + topic + content


def _row_at(raw: bytes, position: int) -> _Row | None:
    """The row at a position; None: there is none, or it is not valid."""
    if len(raw) - position < _ROW_BYTES:
        return None
    *numbers, queue, topic_bytes, content_bytes = _FIELDS.unpack_from(raw, position)
    (crc,), begin = _CRC.unpack_from(raw, position + _FIELDS.size), position + _ROW_BYTES
    end = begin + topic_bytes + content_bytes
    if end > len(raw) or crc32(raw[position : position + _FIELDS.size] + raw[begin:end]) != crc:
        return None
    known = KnownRange(os.fsdecode(raw[begin : begin + topic_bytes]), queue, *numbers)
    is_range = 0 <= known.begin < known.end and 0 <= known.first_physical <= known.last_physical
    return _Row(known, raw[begin + topic_bytes : end], position, end) if is_range else None

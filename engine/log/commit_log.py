"""The commit log: every record of the store, one after another (docs/format.md, 2 and 3).

A record (or a batch, whole) goes into the current file when 8 bytes are left after it; else a BLANK record fills the
file and the next one takes it:

    ... record | record | BLANK: remaining i32, magic i32, anything ...

The first 8 bytes of a record or batch, its size and magic, are written last. A process that dies before leaves no
record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from engine.errors import (
    DamagedRecordError,
    ExpiredMessageError,
    IllegalMessageError,
    MessageNotFoundError,
    MessageTooLargeError,
    ReadError,
    RetiredFileError,
    StoreError,
    UnreadableRangeError,
)
from engine.files.file_scan import HEAD_BYTES
from engine.files.mapped_file import MappedFile
from engine.record.header import BLANK_BYTES
from engine.record.kernel.append import LogEnd
from engine.record.log_framing import Framing
from engine.record.record import decode_record, encode_blank
from engine.record.scan import placed_headers
from engine.settings.config import Clock

if TYPE_CHECKING:
    from engine.files.file_queue import FileQueue

assert BLANK_BYTES == HEAD_BYTES


class Encoded(Protocol):
    """An encoded record or batch. Only the fields that `place` fills in under the append lock are open."""

    @property
    def buffer(self) -> bytearray | memoryview:
        """The bytes to store."""

    @property
    def records(self) -> int:
        """Number of records in `buffer`."""

    @property
    def names_magic(self) -> bool:
        """Whether a record's magic may stand in `buffer` outside of the records' own headers."""

    def place(self, queue_offset: int, physical_offset: int, store_time_ms: int, /) -> None:
        """Fill in the fields known under the append lock. The arguments are those of the first record."""


class FileHold:
    """Keeps one commit log file readable until released. A context manager. Thread safety: one thread at a time."""

    def __init__(self, file: MappedFile) -> None:
        """Take over a hold: the caller has called `file.hold()`."""
        self.file = file
        self._held = True

    def view(self, physical_offset: int, length: int) -> memoryview:
        """As `CommitLog.view`, also after the file was retired. RetiredFileError after a forced removal."""
        return self.file.view(physical_offset - self.file.start, length)

    def release(self) -> None:
        """Release the file. A second call does nothing."""
        if self._held:
            self._held = False
            self.file.release()

    def __enter__(self) -> FileHold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, last_shutdown: TracebackType | None
    ) -> None:
        self.release()


class CommitLog(LogEnd):
    """The log: appends under one lock, reads without.

    Thread safety: any thread. `lock` is re-entrant: hold it around `append` to number and dispatch in the same order.
    """

    def __init__(self, files: FileQueue, clock: Clock) -> None:
        """`files` as recovery left them; see `resume`."""
        super().__init__(clock, files.last)
        self.files = files
        self.lock = threading.RLock()
        self.placing: Callable[[int], None] | None = None
        """Called under `lock` with the physical offset of the record or batch that is about to be published."""

    @property
    def framing(self) -> Framing:
        """The layout of the bytes between the log's records."""
        return self.files.framing

    @property
    def min_offset(self) -> int:
        """Physical offset of the oldest file's first byte."""
        return self.files.min_offset

    @property
    def readable_end(self) -> int:
        """Physical offset just past the bytes that readers may see."""
        return self.files.max_offset

    @property
    def wrote_end(self) -> int:
        """Physical offset just past the appended bytes."""
        return self.files.wrote_offset

    @property
    def largest_bytes(self) -> int:
        """Bytes of the longest record or batch that one `append` takes: a file without its BLANK."""
        return self.files.file_bytes - HEAD_BYTES

    def resume(self, end: int, last_store_time_ms: int) -> None:
        """Take recovery's result: the log's physical end, and the store time of its newest record in ms."""
        self.files.set_end(end)
        self._current = self.files.last
        self.last_store_time_ms = last_store_time_ms

    # writing

    def append(self, record: Encoded, queue_offset: int) -> tuple[int, int]:
        """Store one record or batch whole; return its physical offset and its store time in ms, which never decreases.

        StoreFullError, MessageTooLargeError, IllegalMessageError (see `refuse_forged`): nothing was stored.
        """
        with self.lock:
            buffer = record.buffer
            file = self._current
            if file is None or len(buffer) + HEAD_BYTES > file.size - file.wrote:
                file = self._roll(len(buffer))
            now_ms = self._clock()
            if now_ms < self.last_store_time_ms:
                now_ms = self.last_store_time_ms
            physical_offset = file.start + file.wrote
            record.place(queue_offset, physical_offset, now_ms)
            if record.names_magic:
                refuse_forged(record, physical_offset)
            if self.placing is not None:
                self.placing(physical_offset)
            file.append_head_last(buffer)
            self.last_store_time_ms = now_ms  # after publishing: reading it and then flushing flushes the record
            return physical_offset, now_ms

    def append_copied(self, data: bytes, physical_offset: int, store_time_ms: int) -> None:
        """Store bytes of another log at their own physical offset: whole records of one file, and perhaps the blank up
        to its end. The newest record has `store_time_ms`. An empty log begins with the file that holds them.

        ValueError: the log does not go on there; StoreFullError: nothing was stored.
        """
        with self.lock:
            file = self._current
            if file is None or file.full:
                file = self._current = self.files.roll(physical_offset)
            if file.start + file.wrote != physical_offset or len(data) > file.remaining:
                raise ValueError(f"{len(data)} bytes at {physical_offset} do not go on {file.path} at {file.wrote}")
            file.append_head_last(data)
            self.last_store_time_ms = max(store_time_ms, self.last_store_time_ms)

    def append_all(self, parts: Sequence[Encoded], queue_offsets: Sequence[int]) -> list[tuple[int, int]]:
        """Store several batches, all or none, across any number of files; returns and raises as `append` for each.

        All files are made and all parts are checked before the first byte is written, so no step can fail half way.
        The first part's head is written last, so a process that dies leaves none of the parts.
        """
        sizes = [len(part.buffer) for part in parts]
        self._check_size(max(sizes, default=0))
        with self.lock:
            current = self._current or self._roll(0)
            positions = plan(sizes, current.wrote, current.size)
            files = [current, *self.files.reserve(positions[-1][0] if positions else 0)]
            ends = [current.wrote, *[0] * (len(files) - 1)]
            for size, (number, position) in zip(sizes, positions, strict=True):
                ends[number] = position + size
            for file, end in zip(files, ends, strict=True):
                file.writable(file.wrote, _with_blank(file, end))
            now_ms = max(self._clock(), self.last_store_time_ms)
            stored = [(files[number].start + position, now_ms) for number, position in positions]
            for part, queue_offset, (physical_offset, _) in zip(parts, queue_offsets, stored, strict=True):
                part.place(queue_offset, physical_offset, now_ms)
                if part.names_magic:
                    refuse_forged(part, physical_offset)
            try:
                for part, (number, position) in zip(parts, positions, strict=True):
                    files[number].write(position + HEAD_BYTES, memoryview(part.buffer)[HEAD_BYTES:])
                for file, end in zip(files[:-1], ends, strict=False):
                    _write_blank(file, end)
                if self.placing is not None and stored:
                    self.placing(stored[0][0])
                for part, (number, position) in zip(reversed(parts), reversed(positions), strict=True):
                    files[number].write(position, part.buffer[:HEAD_BYTES])
            except BaseException:  # also Ctrl-C, between two parts
                _erase(files, current.wrote, ends)
                raise
            self._publish(files, ends)
            self.last_store_time_ms = now_ms
            return stored

    def require_unforged(self, records: Sequence[Encoded]) -> None:
        """Raise the IllegalMessageError that appending `records` now would raise. Call it under `lock`."""
        if not any(record.names_magic for record in records):
            return
        file, file_bytes = self._current, self.files.file_bytes
        start, wrote = (file.start, file.wrote) if file is not None else (self.wrote_end, 0)
        positions = plan([len(record.buffer) for record in records], wrote, file_bytes)
        for record, (number, position) in zip(records, positions, strict=True):
            if record.names_magic:
                physical_offset = start + number * file_bytes + position
                record.place(0, physical_offset, self.last_store_time_ms)
                refuse_forged(record, physical_offset)

    def _publish(self, files: Sequence[MappedFile], ends: Sequence[int]) -> None:
        """Publish up to `ends`: all files but the last are full, and the last becomes the current one."""
        for file, end in zip(files[:-1], ends, strict=False):
            file.publish_to_end(_with_blank(file, end))
            self._current = self.files.roll(buffered=False)
        files[-1].publish(ends[-1])

    def _roll(self, size: int) -> MappedFile:
        """Make the next file the current one. It is reserved before the old one is filled, so that a full disk changes
        nothing."""
        self._check_size(size)
        self.files.reserve(1)
        file = self._current
        if file is not None and not file.full:
            _write_blank(file, file.wrote)
            file.publish_to_end(_with_blank(file, file.wrote))
        self._current = self.files.roll()
        return self._current

    def _check_size(self, size: int) -> None:
        if size > self.largest_bytes:
            raise MessageTooLargeError("record", size, self.largest_bytes)

    # reading

    def view(self, physical_offset: int, length: int) -> memoryview:
        """Read-only view of [physical_offset, + length), within one file.

        MessageNotFoundError, ExpiredMessageError, DamagedRecordError (its file is missing), TruncatedFileError.
        """
        file = self.files.find(physical_offset)
        if file is None:
            raise self._absent(physical_offset)
        try:
            return file.view(physical_offset - file.start, length)
        except (UnreadableRangeError, RetiredFileError) as error:
            raise self._absent(physical_offset) from error

    def rest(self, physical_offset: int) -> memoryview:
        """Read-only view from `physical_offset` to the end of the readable bytes in its file. Errors as `view`."""
        file = self.files.find(physical_offset)
        if file is None:
            raise self._absent(physical_offset)
        try:
            return file.rest(physical_offset - file.start)
        except (UnreadableRangeError, RetiredFileError) as error:
            raise self._absent(physical_offset) from error

    def stored_ms(self, physical_offset: int) -> int:
        """Store time of the record at a physical offset, -1 when it can't be read."""
        try:
            return decode_record(self.rest(physical_offset), physical_offset, verify=False).store_time_ms
        except ReadError:
            return -1

    def is_whole(self, physical_offset: int) -> bool:
        """Whether a whole record begins there in the log's file as it is now, which may be behind `readable_end`. False
        where it can't be read."""
        file, start = self.files.find(physical_offset), self.framing.frame_start(physical_offset)
        try:
            if file is None or start < file.start:
                return False
            return self.framing.problem(file.whole()[start - file.start :], start) is None
        except StoreError:
            return False

    def require_framed(self, physical_offset: int, record_bytes: int) -> None:
        """DamagedRecordError when the frame header before the record is wrong. Errors as `view`."""
        framing = self.files.framing
        if framing.header_bytes:
            header = self.view(framing.frame_start(physical_offset), framing.header_bytes)
            problem = framing.header_problem(header, physical_offset, record_bytes)
            if problem is not None:
                raise DamagedRecordError(physical_offset, problem)

    def hold(self, physical_offset: int) -> FileHold:
        """Keep the file under `physical_offset` readable. Errors as `view`."""
        file = self.files.find(physical_offset)
        try:
            if file is not None and file.hold():
                return FileHold(file)
        except RetiredFileError as error:
            raise self._absent(physical_offset) from error
        raise self._absent(physical_offset)

    def _absent(self, physical_offset: int) -> StoreError:
        """The error that says why no record can be read at `physical_offset`."""
        min_offset = self.min_offset
        if 0 <= physical_offset < min_offset:
            return ExpiredMessageError("", -1, physical_offset, min_offset)
        if self.files.find(physical_offset) is None and 0 <= physical_offset < self.readable_end:
            return DamagedRecordError(physical_offset, "the file that holds it is missing")
        return MessageNotFoundError(physical_offset=physical_offset)


def refuse_forged(record: Encoded, physical_offset: int) -> None:
    """IllegalMessageError when a body in `record` holds a record header with the physical offset at which it would be
    stored. If the bytes around it were damaged, a recovery could not tell it from a record."""
    buffer = memoryview(record.buffer)
    if len(placed_headers(buffer, 0, len(buffer), physical_offset)) > record.records:
        raise IllegalMessageError("a body holds a record made for the very place in the log where it would be stored")


def plan(sizes: Sequence[int], wrote: int, file_bytes: int) -> list[tuple[int, int]]:
    """(file number, position in the file) for each part, by `sizes` in bytes. 0 is the current file, k the k-th after.

    `wrote` is the current file's write position. A part goes into the first file that also has room for a BLANK.
    """
    positions: list[tuple[int, int]] = []
    number, position = 0, wrote
    for size in sizes:
        if position + size + HEAD_BYTES > file_bytes:
            number, position = number + 1, 0
        positions.append((number, position))
        position += size
    return positions


def _with_blank(file: MappedFile, end: int) -> int:
    """Position after a BLANK at `end`."""
    return min(end + HEAD_BYTES, file.size)


def _write_blank(file: MappedFile, position: int) -> None:
    """Fill the file from `position` on with a BLANK. Less than 8 bytes can't hold one and stay as they are."""
    if file.size - position >= BLANK_BYTES:
        file.write(position, encode_blank(file.size - position))


def _erase(files: Sequence[MappedFile], wrote: int, ends: Sequence[int]) -> None:
    """Zero the unpublished bytes: from `wrote` on in the first file, and all in the others. Otherwise a recovery could
    find whole records of the failed write behind the next record that is stored."""
    for file, start, end in zip(files, [wrote, *[0] * (len(files) - 1)], ends, strict=True):
        stop = _with_blank(file, end)
        file.writable(start, stop)[start:stop] = bytes(stop - start)

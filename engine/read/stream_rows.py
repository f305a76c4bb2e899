"""Stream rows: finds message bodies in the mapped log and copies them with numpy (docs/format.md, 13).

A row is a message; its bytes in the stream are its decompressed body and a newline. Only the few necessary fields of a
record are read.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import ReadError, RefusedReadError
from engine.log.entries import TOPIC_ROW, TopicRows, file_pages, physical_offset_of, runs_by_file
from engine.read.topic_queue import TopicQueue
from engine.record.columns import damaged_rows
from engine.record.compression import COMPRESSED_FLAG, BodySizes, try_decompress
from engine.record.inner_batch import may_be_wrapper
from engine.record.kernel.columns import gather
from engine.record.kernel.decode import StoredMessage
from engine.record.kernel.scan import copy_texts, rows_text, text_sizes
from engine.record.parsed_headers import ParsedHeaders, misplaced, parse_headers
from engine.results import TextAtRest

if TYPE_CHECKING:
    from engine.derived.consume_queue import ConsumeQueue
    from engine.files.file_queue import FileQueue

Array = np.ndarray[Any, Any]
Alone = Callable[["ConsumeQueue", int], "StoredMessage | None"]
"""Reads the single message at a queue offset; None: there is none. ReadError: it can't be read."""

STREAM_SEPARATOR = 10
"""The byte after each message of a `.log`: a newline."""
UNMEASURED = -1
"""Size of a compressed row that is not measured yet."""
REFUSED = -1
"""Stored size of a row that is left out because the disk can't read it; a later try may work."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """Rows whose records are in one file of the log; all arrays have shape (n,).

    Bodies are log[starts:starts + stored_sizes]; `crcs` are theirs, as stored. `sizes` are the bytes in the stream with
    the newline: 0 for a row that is left out, UNMEASURED for a compressed one before `RowSource.measure`. `offsets` are
    the records' physical offsets.
    """

    log: Array
    offsets: Array
    crcs: Array
    sys_flags: Array
    starts: Array
    stored_sizes: Array
    sizes: Array
    is_compressed: Array

    def __len__(self) -> int:
        return len(self.sizes)

    def cut(self, first: int, end: int) -> LogPart:
        """Rows [first, end)."""
        return LogPart(
            self.log,
            self.offsets[first:end],
            self.crcs[first:end],
            self.sys_flags[first:end],
            self.starts[first:end],
            self.stored_sizes[first:end],
            self.sizes[first:end],
            self.is_compressed[first:end],
        )


class RowSource:
    """Finds rows in the log. Thread safety: stateless; any thread."""

    def __init__(self, log: FileQueue, body_limit_bytes: int, alone: Alone, sizes: BodySizes) -> None:
        """`alone` reads a message singly when its record does not match its queue entry."""
        self._log = log
        self._body_limit_bytes = body_limit_bytes
        self._alone = alone
        self._sizes = sizes

    def rows(self, queue: ConsumeQueue | TopicQueue, first: int, count: int, checked_before: int) -> list[LogPart]:
        """Rows of queue offsets [first, first + count), fewer at the queue's end.

        Records at physical offsets below `checked_before` are read whole and checked (CRC, slot); the framing of the
        others is checked. A row that fails gets size 0. Sizes of compressed rows are set by `measure`.
        """
        parts: list[LogPart] = []
        entries, begin = queue.entries(first, count), first
        for log, base, offsets in runs_by_file(self._log, entries):
            unknown = int(np.searchsorted(offsets, checked_before, side="left"))
            records = parse_headers(log, offsets - base, offsets, self._log.framing.is_ledger, whole=unknown > 0)
            part = _part_of(records, offsets)
            suspect = (part.sizes == 0) | may_be_wrapper(part.sys_flags)
            if unknown:
                checked = records.take(slice(unknown))
                if isinstance(queue, TopicQueue):
                    suspect[:unknown] |= queue.misplaced(checked, entries[first - begin :][:unknown])
                else:
                    suspect[:unknown] |= misplaced(checked, queue.topic, queue.queue_id, first)
                suspect[:unknown] |= damaged_rows(checked)
            lost_offset, message, is_refused = -1, None, False
            for row in np.flatnonzero(suspect).tolist():
                if offsets[row] != lost_offset:
                    message, is_refused = self._alone_at(queue, entries, begin, first + row)
                if message is None:
                    lost_offset = offsets[row]  # many lost queue offsets may refer to one damaged record
                _put(part, row, base, message, is_refused)
            parts.append(part)
            first += len(part)
        return parts

    def _alone_at(
        self, queue: ConsumeQueue | TopicQueue, rows: Array, begin: int, number: int
    ) -> tuple[StoredMessage | None, bool]:
        """The message of row `number`, read singly, and whether the disk can't read it. `rows` begin at number
        `begin`."""
        try:
            if isinstance(queue, TopicQueue):
                row = rows[number - begin]
                return self._alone(queue.source_of(row), int(row["queue_offset"])), False
            return self._alone(queue, number), False
        except ReadError as error:
            return None, isinstance(error, RefusedReadError)

    def plain_sizes(
        self, queue: ConsumeQueue | TopicQueue, first: int, count: int, checked_before: int
    ) -> tuple[Array, Array] | None:
        """Physical offsets and stream bytes of queue offsets [first, first + count), both int64 (n,), checked as in
        `rows`. None unless each is a whole plain message. Errors as `rows`."""
        entries = queue.entries(first, count)
        if len(entries) != count:
            return None
        if isinstance(queue, TopicQueue):
            return self.plain_row_sizes(queue.topic, entries, checked_before)
        numbers = np.full(count, queue.queue_id, np.int32), np.arange(first, first + count)
        return self._plain_sizes(queue.topic, entries, *numbers, checked_before)

    def plain_row_sizes(self, topic: str, rows: TopicRows, checked_before: int) -> tuple[Array, Array] | None:
        """As `plain_sizes`, of messages of any queues of a topic."""
        queue_ids, offsets = np.ascontiguousarray(rows["queue_id"]), np.ascontiguousarray(rows["queue_offset"])
        return self._plain_sizes(topic, rows, queue_ids, offsets, checked_before)

    def _plain_sizes(
        self, topic: str, entries: Array, queue_ids: Array, offsets: Array, checked_before: int
    ) -> tuple[Array, Array] | None:
        name, framed = topic.encode(), self._log.framing.is_ledger
        found, begin = list[tuple[Array, Array]](), 0
        for log, base, physical_offsets in runs_by_file(self._log, entries):
            unknown = int(np.searchsorted(physical_offsets, checked_before, side="left"))
            end = begin + len(physical_offsets)
            numbers = queue_ids[begin:end], offsets[begin:end]
            sizes = text_sizes(log, base, physical_offsets, name, *numbers, framed, unknown)
            if sizes is None:
                return None
            found.append((physical_offsets, sizes))
            begin = end
        if begin != len(offsets):
            return None
        if len(found) == 1:
            return found[0]
        physical_offsets, sizes = map(np.concatenate, zip(*found, strict=True))
        return physical_offsets, sizes

    def text_at_rest(self, topic: str, rows: bytes, checked_before: int) -> TextAtRest | None:
        """The text of messages of any queues of a topic (TOPIC_ROW, in the order of the log), checked as by `rows`.
        None unless each is a whole plain message."""
        log, name, is_ledger = self._log, os.fsencode(topic), self._log.framing.is_ledger
        row = size = newest_ms = 0
        while row * TOPIC_ROW.itemsize < len(rows):
            base = physical_offset_of(rows, row) // log.file_bytes * log.file_bytes
            found = rows_text(file_pages(log, base), base, log.file_bytes, rows, row, name, is_ledger, checked_before)
            if found is None:
                return None
            row, more, newest_ms = found
            size += more
        return TextAtRest(physical_offset_of(rows, 0), size, newest_ms)

    def put_plain_text(self, queue: ConsumeQueue | TopicQueue, first: int, count: int, text: Array) -> int | None:
        """Write the stream bytes of queue offsets [first, first + count) to the beginning of `text`; returns their
        number. None unless each is a framed plain message, and `text` is long enough. Errors as `rows`."""
        filled = found = 0
        for log, base, offsets in runs_by_file(self._log, queue.entries(first, count)):
            size = copy_texts(log, base, offsets, self._log.framing.is_ledger, text[filled:])
            if size < 0:
                return None
            filled, found = filled + size, found + len(offsets)
        return filled if found == count else None

    def measure(self, parts: Sequence[LogPart], until_s: float = math.inf) -> int | None:
        """Set the sizes of compressed rows in order; a row that can't be decompressed gets size 0.

        At `until_s` (of time.monotonic) returns the next row, counted over all parts; at least one row is measured
        before. None: all are measured. WouldBlock on a nonblocking thread.
        """
        passed, has_decompressed = 0, False
        for part in parts:
            for row in np.flatnonzero(part.sizes == UNMEASURED).tolist():
                physical_offset, crc = int(part.offsets[row]), int(part.crcs[row])
                size = self._sizes.get(physical_offset, crc)
                if size is None:
                    if has_decompressed and time.monotonic() >= until_s:
                        return passed + int(row)
                    body, has_decompressed = self._decompressed(part, row), True
                    size = len(body) if body is not None else -1
                    self._sizes.remember(physical_offset, crc, size)
                part.sizes[row] = size + 1
            passed += len(part)
        return None

    def _decompressed(self, part: LogPart, row: int) -> memoryview | None:
        return try_decompress(_stored(part, row), int(part.sys_flags[row]), self._body_limit_bytes)

    def put_text(self, part: LogPart, text: Array) -> int:
        """Write the stream bytes of the rows to the beginning of `text` (uint8); returns their number."""
        if part.is_compressed.any():
            return self._put_mixed(part, text)
        starts, sizes, shown = part.starts, part.sizes, part.sizes > 0
        if not shown.all():
            starts, sizes = starts[shown], sizes[shown]
        offsets, _ = gather(part.log, starts, sizes, target=text)
        ends = offsets[1:]
        text[ends - 1] = STREAM_SEPARATOR  # replaces the copied byte after the body
        return int(ends[-1]) if len(ends) else 0

    def _put_mixed(self, part: LogPart, text: Array) -> int:
        end = 0
        for row in np.flatnonzero(part.sizes > 0).tolist():
            body = self._decompressed(part, row) if part.is_compressed[row] else _stored(part, row)
            begin, end = end, end + len(body or b"")
            text[begin:end] = np.frombuffer(body or b"", np.uint8)  # numpy lets other threads run meanwhile
            text[end] = STREAM_SEPARATOR
            end += 1
        return end


def sizes_of(parts: Sequence[LogPart]) -> Array:
    """Stream bytes of each row of `parts`: int64 (n,)."""
    return np.concatenate([np.zeros(0, np.int64), *map(attrgetter("sizes"), parts)])


def first_refused(parts: Sequence[LogPart]) -> int | None:
    """The first row, counted over all parts, that the disk can't read; None: there is none."""
    rows = np.flatnonzero(np.concatenate([np.zeros(0, np.int64), *map(attrgetter("stored_sizes"), parts)]) == REFUSED)
    return int(rows[0]) if len(rows) else None


def leave_out(parts: Sequence[LogPart], row: int) -> None:
    """Set the size of a row, counted over all parts, to 0."""
    for part in parts:
        if 0 <= row < len(part):
            part.sizes[row] = 0
        row -= len(part)


def _stored(part: LogPart, row: int) -> memoryview:
    start = int(part.starts[row])
    return part.log[start : start + int(part.stored_sizes[row])].data


def _put(part: LogPart, row: int, base: int, message: StoredMessage | None, is_refused: bool) -> None:
    """Set a row to `message`, whose body is in the log; None: leave the row out."""
    if message is None:
        part.sizes[row] = 0
        part.stored_sizes[row] = REFUSED if is_refused else 0
        return
    part.starts[row] = message.body_place - base
    part.stored_sizes[row] = max(message.header.stored_body_size, 0)
    part.is_compressed[row] = message.is_compressed
    part.sizes[row] = UNMEASURED if message.is_compressed else part.stored_sizes[row] + 1


def _part_of(records: ParsedHeaders, offsets: Array) -> LogPart:
    """Rows of all records; those that are not `ok` get size 0."""
    good, (starts, stored_sizes) = records.headers["ok"], records.bodies
    sys_flags = records.headers["sys_flag"].astype(np.int64)
    sizes = np.where(good, stored_sizes + 1, 0)
    is_compressed = good & (sys_flags & COMPRESSED_FLAG != 0)
    sizes[is_compressed] = UNMEASURED
    crcs = records.parts["body_crc"]
    return LogPart(records.log, offsets, crcs, sys_flags, starts.copy(), stored_sizes.copy(), sizes, is_compressed)

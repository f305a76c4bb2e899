"""Stream rows: the bodies of a queue's messages, found in the mapped log and copied out with numpy (docs/format.md,
13).

A row is a message; its bytes in the stream are its body, decompressed, and a newline. Of a record, only the few fields
are read that this takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import ReadError, RefusedReadError
from engine.log.entries import runs_by_file
from engine.read.topic_queue import TopicQueue
from engine.record.columns import damaged_rows
from engine.record.compression import COMPRESSED_FLAG, BodySizes, try_decompress
from engine.record.inner_batch import may_be_wrapper
from engine.record.kernel.columns import gather
from engine.record.kernel.decode import StoredMessage
from engine.record.kernel.scan import copy_texts, text_sizes
from engine.record.parsed_headers import ParsedHeaders, misplaced, parse_headers

if TYPE_CHECKING:
    from engine.derived.consume_queue import ConsumeQueue
    from engine.files.file_queue import FileQueue

Array = np.ndarray[Any, Any]
Alone = Callable[["ConsumeQueue", int], "StoredMessage | None"]
"""The message at a queue offset, read alone; None where it is none. ReadError: it can't be read."""

STREAM_SEPARATOR = 10
"""The byte behind each message of a `.log`: a newline."""
UNMEASURED = -1
"""The size of a compressed row that is not known yet."""
REFUSED = -1
"""The stored size of a row that is left out since the disk refuses to read it: a later try may work."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """Rows whose records lie in one file of the log, all arrays of shape (n,).

    Their bodies are log[starts:starts + stored_sizes]. `sizes` are the bytes in the stream, newline included; 0 for a
    row that is left out, UNMEASURED for a compressed one that `RowSource.measure` has not come to. `is_compressed` says
    that the body is not what is stored. `places` are physical offsets, `crcs` those of the bodies as stored.
    """

    log: Array
    places: Array
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
            self.places[first:end],
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
        """`alone` reads what the records themselves do not confirm."""
        self._log = log
        self._body_limit_bytes = body_limit_bytes
        self._alone = alone
        self._sizes = sizes

    def rows(self, queue: ConsumeQueue | TopicQueue, first: int, count: int, checked_before: int) -> list[LogPart]:
        """Rows of queue offsets [first, first + count), fewer when they are not there.

        Records at physical offsets below `checked_before` are read whole and checked (CRC, place); of the others,
        framing is. What fails is left out: size 0. Compressed ones are for `measure`.
        """
        parts: list[LogPart] = []
        entries, begin = queue.entries(first, count), first
        for log, base, places in runs_by_file(self._log, entries):
            unknown = int(np.searchsorted(places, checked_before, side="left"))
            records = parse_headers(log, places - base, places, self._log.framing.is_ledger, whole=unknown > 0)
            part = _part_of(records, places)
            suspect = (part.sizes == 0) | may_be_wrapper(part.sys_flags)
            if unknown:
                checked = records.take(slice(unknown))
                if isinstance(queue, TopicQueue):
                    suspect[:unknown] |= queue.misplaced(checked, entries[first - begin :][:unknown])
                else:
                    suspect[:unknown] |= misplaced(checked, queue.topic, queue.queue_id, first)
                suspect[:unknown] |= damaged_rows(checked)
            lost_place, message, is_refused = -1, None, False
            for row in np.flatnonzero(suspect).tolist():
                if places[row] != lost_place:
                    message, is_refused = self._alone_at(queue, entries, begin, first + row)
                if message is None:
                    lost_place = places[row]  # many lost numbers may lead to one damaged place
                _put(part, row, base, message, is_refused)
            parts.append(part)
            first += len(part)
        return parts

    def _alone_at(
        self, queue: ConsumeQueue | TopicQueue, rows: Array, begin: int, number: int
    ) -> tuple[StoredMessage | None, bool]:
        """The message of that number, read alone, and whether the disk refuses it; `rows` are those of the queue from
        `begin` on."""
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
        """Where the records of queue offsets [first, first + count) are, and their bytes in the stream: int64 (n,),
        checked as `rows` does. None unless all are there, whole and plainly a message each. Errors as `rows`."""
        entries, begin = queue.entries(first, count), 0
        if isinstance(queue, TopicQueue):
            queue_ids, offsets = (np.ascontiguousarray(entries[name]) for name in ("queue_id", "queue_offset"))
        else:
            queue_ids, offsets = np.full(count, queue.queue_id, np.int32), np.arange(first, first + count)
        topic, framed = queue.topic.encode(), self._log.framing.is_ledger
        found: list[tuple[Array, Array]] = []
        for log, base, places in runs_by_file(self._log, entries):
            unknown = int(np.searchsorted(places, checked_before, side="left"))
            end = begin + len(places)
            numbers = queue_ids[begin:end], offsets[begin:end]
            sizes = text_sizes(log, base, places, topic, *numbers, framed, unknown)
            if sizes is None:
                return None
            found.append((places, sizes))
            begin = end
        if sum(len(sizes) for _, sizes in found) != count:
            return None
        places, sizes = map(np.concatenate, zip(*found, strict=True))
        return places, sizes

    def put_plain_text(self, queue: ConsumeQueue | TopicQueue, first: int, count: int, text: Array) -> int | None:
        """Write the stream bytes of queue offsets [first, first + count) to the beginning of `text`; how many they are.
        None unless all are there, framed and plainly a message each, and there is room. Errors as `rows`."""
        filled = found = 0
        for log, base, places in runs_by_file(self._log, queue.entries(first, count)):
            size = copy_texts(log, base, places, self._log.framing.is_ledger, text[filled:])
            if size < 0:
                return None
            filled, found = filled + size, found + len(places)
        return filled if found == count else None

    def measure(self, parts: Sequence[LogPart], until_s: float = math.inf) -> int | None:
        """Set the sizes of compressed rows, in order; one that can't be decompressed is left out.

        The row to go on from, counted over all parts, when `until_s` (of time.monotonic) was over before all were
        measured; one is in any case. WouldBlock on a nonblocking thread.
        """
        passed, has_decompressed = 0, False
        for part in parts:
            for row in np.flatnonzero(part.sizes == UNMEASURED).tolist():
                place, crc = int(part.places[row]), int(part.crcs[row])
                size = self._sizes.get(place, crc)
                if size is None:
                    if has_decompressed and time.monotonic() >= until_s:
                        return passed + int(row)
                    body, has_decompressed = self._decompressed(part, row), True
                    size = len(body) if body is not None else -1
                    self._sizes.remember(place, crc, size)
                part.sizes[row] = size + 1
            passed += len(part)
        return None

    def _decompressed(self, part: LogPart, row: int) -> memoryview | None:
        return try_decompress(_stored(part, row), int(part.sys_flags[row]), self._body_limit_bytes)

    def put_text(self, part: LogPart, text: Array) -> int:
        """Write the stream bytes of the rows to the beginning of `text` (uint8); how many they are."""
        if part.is_compressed.any():
            return self._put_mixed(part, text)
        starts, sizes, shown = part.starts, part.sizes, part.sizes > 0
        if not shown.all():
            starts, sizes = starts[shown], sizes[shown]
        offsets, _ = gather(part.log, starts, sizes, target=text)
        ends = offsets[1:]
        text[ends - 1] = STREAM_SEPARATOR  # over the byte after the body, which came along
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
    """The first row, counted over all parts, that the disk refuses."""
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
    """Show the message in that row, whose body stands in the log; None: nothing."""
    if message is None:
        part.sizes[row] = 0
        part.stored_sizes[row] = REFUSED if is_refused else 0
        return
    part.starts[row] = message.body_place - base
    part.stored_sizes[row] = max(message.header.stored_body_size, 0)
    part.is_compressed[row] = message.is_compressed
    part.sizes[row] = UNMEASURED if message.is_compressed else part.stored_sizes[row] + 1


def _part_of(records: ParsedHeaders, places: Array) -> LogPart:
    """Those records, all of which are shown."""
    good, (starts, stored_sizes) = records.headers["ok"], records.bodies
    sys_flags = records.headers["sys_flag"].astype(np.int64)
    sizes = np.where(good, stored_sizes + 1, 0)
    is_compressed = good & (sys_flags & COMPRESSED_FLAG != 0)
    sizes[is_compressed] = UNMEASURED
    crcs = records.places["body_crc"]
    return LogPart(records.log, places, crcs, sys_flags, starts.copy(), stored_sizes.copy(), sizes, is_compressed)

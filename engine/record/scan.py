"""Scan: finds and checks the records of a commit log file, up to the end of the valid ones (docs/format.md, 8).

Many records are checked at once, without an object for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from engine.record.byte_columns import items_at
from engine.record.columns import damaged_rows, find_properties, topics_of
from engine.record.hashes import index_hash, java_hashes, slices_index_hashes, topic_hashes
from engine.record.header import BLANK_BYTES, MIN_RECORD_BYTES, is_rolled_back
from engine.record.inner_batch import wrapped_keys
from engine.record.kernel import scan as kernel
from engine.record.kernel.columns import words
from engine.record.kernel.decode import StoredMessage
from engine.record.log_framing import PLAIN, EntryNumber, Framing, record_problem
from engine.record.multi_dispatch import MULTI_DISPATCH, Slot
from engine.record.parsed_headers import ParsedHeaders, parse_headers
from engine.record.properties import KEYS, TAGS, UNIQUE_KEY
from engine.record.record import decode_record

Array = np.ndarray[Any, Any]

CHUNK_BYTES = 8 << 20
"""Bytes scanned at once: many enough to make calls cheap, few enough for the processor's cache."""
_SEARCH_BYTES = 1 << 20
_MOST_READ = 8
"""Limit of bytes read by a search, as a multiple of its range: bytes that are no record may claim any size."""
_FOUND_AT_ONCE = 4096


class ScanStop(Enum):
    """Reason why a scan ended."""

    END = "the end that was asked for"
    BLANK = "the blank at the file's end"
    ZEROS = "zeros: nothing was written there"
    DAMAGED = "no record"


class FoundProperties(NamedTuple):
    """The property values for dispatch: each (starts, sizes), as returned by `find_properties`."""

    tags: tuple[Array, Array]
    unique_key: tuple[Array, Array]
    keys: tuple[Array, Array]
    multi_dispatch: tuple[Array, Array]


_ASKED_FOR = (TAGS, UNIQUE_KEY, KEYS, MULTI_DISPATCH.encode())


class ScannedKeys(NamedTuple):
    """Index hashes of keys, with physical offset and store time of their records: arrays (k,), in log order.
    `more_records`: records without keys follow."""

    hashes: Array
    physical_offsets: Array
    store_times_ms: Array
    more_records: bool


@dataclass(frozen=True)  # no slots: cached properties have to be kept somewhere
class ScannedRecords:
    """A run of whole records of one file, in log order.

    `records.log` is the scanned file's memory: drop the scan before the file is closed. `end` is the position just past
    the last frame; `bare_frames` frames have no record. Only the last chunk of a scan has `stop`, the reason for its
    end, and `problem`, which describes DAMAGED. `number` is the entry number of the newest frame, if frames have
    numbers. `slots`: secondary slots of rows by multi-dispatch; `QueueSequence` sets them, not the scan.
    """

    records: ParsedHeaders
    end: int
    stop: ScanStop | None = None
    problem: str | None = None
    bare_frames: int = 0
    number: EntryNumber | None = None
    slots: Mapping[int, Sequence[Slot]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def topics(self) -> list[str]:
        """The distinct topics; they and their rows are read at the first access."""
        return self._topics_by_row[0]

    @cached_property
    def topic_rows(self) -> Array:
        """The index in `topics` of each row's topic: int64 (n,)."""
        return self._topics_by_row[1]

    @cached_property
    def _topics_by_row(self) -> tuple[list[str], Array]:
        return topics_of(self.records)

    @cached_property
    def properties(self) -> FoundProperties:
        """The property values; they are searched at the first access."""
        return FoundProperties(*find_properties(self.records, _ASKED_FOR))

    @cached_property
    def tag_hashes(self) -> Array:
        """Hashes of TAGS: int32 (n,)."""
        return java_hashes(self.records.log, *self.properties.tags)

    @cached_property
    def index_keys(self) -> tuple[Array, Array]:
        """Index entries of these records: (rows, hashes), int64 and int32 (k,), rows ascending, the unique key of a row
        first. They include keys of messages in inner batches."""
        log, properties = self.records.log, self.properties
        rows, starts, sizes = words(log, *properties.keys, *properties.unique_key)
        key_hashes = slices_index_hashes(topic_hashes(self.topics)[self.topic_rows[rows]], log, starts, sizes)
        records = self.records
        wrapped = wrapped_keys(log, records.positions, records.headers["physical_offset"], records.headers["sys_flag"])
        if not wrapped:
            return rows, key_hashes
        rows = np.concatenate([rows, np.array([row for row, _ in wrapped], np.int64)])
        inner = [index_hash(self.topics[int(self.topic_rows[row])], key) for row, key in wrapped]
        order = np.argsort(rows, kind="stable")
        return rows[order], np.concatenate([key_hashes, np.array(inner, key_hashes.dtype)])[order]

    @property
    def keys(self) -> ScannedKeys:
        """The keys that belong in the index: rolled back messages have none. At least one record."""
        headers = self.records.headers
        rows, hashes = self.index_keys
        keeps = ~is_rolled_back(headers["sys_flag"][rows])
        rows = rows[keeps]
        more = not len(rows) or int(rows[-1]) < len(headers) - 1
        return ScannedKeys(hashes[keeps], headers["physical_offset"][rows], headers["store_time_ms"][rows], more)

    def prepare(self) -> None:
        """Compute all cached values now, mostly in kernel loops without the GIL."""
        _ = self.tag_hashes, self.index_keys


def scan_records(
    view: memoryview,
    start: int,
    base_physical_offset: int,
    end: int,
    *,
    framing: Framing = PLAIN,
    before: EntryNumber | None = None,
    verify: bool = True,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[ScannedRecords]:
    """Yields the records of a file (`view`, at physical offset `base_physical_offset`) from the frame at position
    `start` on, in chunks of frames that begin within `chunk_bytes`. No frame goes past `end`.

    The last chunk, which may be empty, has `stop`: END exactly at `end`, BLANK at a blank that ends at the view's end,
    ZEROS at eight zero bytes or fewer left, DAMAGED at anything else. `verify` also checks bodies' CRCs. `before` is
    the entry number of the frame before `start`, None if unknown.
    """
    log = np.frombuffer(view, np.uint8)
    stop = None
    while stop is None:
        frames, chain_end, broken = kernel.follow_chain(
            log, start, min(start + chunk_bytes, end), end, base_physical_offset, framing.is_ledger
        )
        following = framing.follow_each_other(log, frames, before)
        if following < len(frames):
            chain_end, frames, broken = int(frames[following]), frames[:following], True
        positions = framing.records(log, frames)
        records = parse_headers(log[:end], positions, positions + base_physical_offset, framing.is_ledger)
        ok = records.headers["ok"]
        if verify:
            ok = ok & ~damaged_rows(records)
        if not ok.all():
            count = int(np.argmin(ok))
            chain_end, records, broken = framing.frame_start(int(positions[count])), records.take(slice(0, count)), True
            frames = frames[frames < chain_end]
        if broken or chain_end + framing.least_bytes > end:
            stop = stop_at(view, chain_end, end, framing)
        problem = None
        if stop is ScanStop.DAMAGED:
            problem = framing.problem(view[chain_end:end], base_physical_offset + chain_end)
        before = framing.number(log, frames) or before
        yield ScannedRecords(records, chain_end, stop, problem, len(frames) - len(records), before)
        start = chain_end


def stop_at(view: memoryview, position: int, end: int, framing: Framing = PLAIN) -> ScanStop:
    """Reason why no good frame starts at `position`."""
    if position == end:
        return ScanStop.END
    if end - position < BLANK_BYTES:
        return ScanStop.DAMAGED if any(view[position:end]) else ScanStop.ZEROS
    if framing.is_blank(view[position:]):
        return ScanStop.BLANK
    return ScanStop.DAMAGED if any(view[position : position + BLANK_BYTES]) else ScanStop.ZEROS


def record_starts(view: memoryview, start: int, end: int, base_physical_offset: int) -> tuple[Array, Array]:
    """Positions in [start, end) of possible records that end by `end`, and their claimed sizes: int64 (n,), ascending.

    Magic and physical offset are right; they may still be part of a body. Positions are those of records, not frames.
    """
    log = np.frombuffer(view, np.uint8)[:end]
    starts = placed_headers(view, start, end, base_physical_offset)
    sizes = items_at(log, starts, 4).view(">i4").astype(np.int64)
    fits = (sizes >= MIN_RECORD_BYTES) & (starts + sizes <= end)
    return starts[fits], sizes[fits]


def placed_headers(view: memoryview, start: int, end: int, base_physical_offset: int) -> Array:
    """Positions in [start, end) of a file with a record's magic and right physical offset: int64 (n,), ascending. The
    records may end after `end`."""
    log, positions = np.frombuffer(view, np.uint8), np.empty(_FOUND_AT_ONCE, np.int64)
    found, count = [], _FOUND_AT_ONCE
    while count == _FOUND_AT_ONCE:
        count, start = kernel.placed_headers(log, start, end, base_physical_offset, positions)
        found.append(positions[:count].copy())
    return np.concatenate(found)


def find_chained_record(
    view: memoryview,
    start: int,
    end: int,
    base_physical_offset: int,
    ends_well: Callable[[int], bool],
    is_believed: Callable[[StoredMessage], bool],
    framing: Framing = PLAIN,
) -> int | None:
    """The first position in [start, end) of a frame with a whole record that begins an unbroken chain of frames up to a
    position for which `ends_well` is true; None: there is none.

    A record inside a body has no such chain. The bytes read are limited, however many records seem to begin there.
    """
    header_bytes = framing.header_bytes
    starts, sizes = record_starts(view, start + header_bytes, end, base_physical_offset)
    pairs: list[tuple[int, int]] = list(
        zip((starts - header_bytes).tolist(), (sizes + header_bytes).tolist(), strict=True)
    )
    well: set[int] = set()
    known: dict[int, bool] = {}
    for position, size in reversed(pairs):
        after = position + size
        if after in well or known.setdefault(after, ends_well(after)):
            well.add(position)
    read = 0
    for position, size in pairs:
        if position not in well or read > _MOST_READ * (position - start) + _SEARCH_BYTES:
            continue
        read += size
        if framing.problem(view[position : position + size], base_physical_offset + position) is not None:
            continue
        start_of_record = position + header_bytes
        message = decode_record(
            view[start_of_record : position + size], base_physical_offset + start_of_record, verify=False
        )
        if is_believed(message):
            return position
    return None


def holds_record(view: memoryview, start: int, end: int, base_physical_offset: int) -> bool:
    """Whether a whole record begins in [start, end); also True when the search reaches its limit of bytes."""
    read = 0
    starts, sizes = record_starts(view, start, end, base_physical_offset)
    for position, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        read += size
        if read > _MOST_READ * (end - start) + _SEARCH_BYTES:
            return True
        if record_problem(view[position : position + size], base_physical_offset + position) is None:
            return True
    return False

"""Log scan: walks the records of a file of the commit log, checks each, and tells where they end (docs/format.md, 8).

All is checked for many records at once. No object is made for a message.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from engine.chain import MAGICS, follow_chain
from engine.columns import damaged_rows, find_properties, topics_of
from engine.located import LocatedRecords, locate
from engine.place import MULTI_DISPATCH, Place
from engine.properties import KEYS, TAGS, UNIQUE_KEY
from engine.record import BLANK_BYTES, BLANK_MAGIC, MIN_RECORD_BYTES, record_problem

Array = np.ndarray[Any, Any]

CHUNK_BYTES = 4 << 20
"""Enough to make little of the calls; more would not stay in the processor's cache from one look to the next."""
_SEARCH_BYTES = 1 << 20
_START = Struct(">ii")


class ScanStop(Enum):
    """Why a scan went no further."""

    END = "the end that was asked for"
    BLANK = "the filler at the file's end"
    ZEROS = "zeros: nothing was written there"
    DAMAGED = "no record"


class FoundProperties(NamedTuple):
    """The values of the properties that dispatch asks for: each (starts, sizes), as `find_properties` tells them."""

    tags: tuple[Array, Array]
    unique_key: tuple[Array, Array]
    keys: tuple[Array, Array]
    multi_dispatch: tuple[Array, Array]


_ASKED_FOR = (TAGS, UNIQUE_KEY, KEYS, MULTI_DISPATCH.encode())


@dataclass(frozen=True)  # no slots: `properties` has to be kept somewhere
class ScannedRecords:
    """A run of whole records of one file, in log order. The topic of row i is topics[topic_rows[i]] (int64 (n,)).

    `records.log` is the scanned file's memory: drop the scan before the file is closed. `end` is the position just past
    the last record. `stop` is set in the last chunk of a scan only: why it ends at `end`; `problem` says what is wrong
    there when that is DAMAGED. `places` are the further places of rows by multi-dispatch; a scan believes in none, see
    `sequence`.
    """

    records: LocatedRecords
    topics: list[str]
    topic_rows: Array
    end: int
    stop: ScanStop | None = None
    problem: str | None = None
    places: Mapping[int, Sequence[Place]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def properties(self) -> FoundProperties:
        """Looked for once, when they are first asked for."""
        return FoundProperties(*find_properties(self.records, _ASKED_FOR))


def scan_records(
    view: memoryview,
    start: int,
    base_physical_offset: int,
    end: int,
    *,
    verify: bool = True,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[ScannedRecords]:
    """The records of a file (`view`, at `base_physical_offset` of the log) from position `start` on, in chunks:
    those that begin within `chunk_bytes`.

    None goes past `end`. There is always a last chunk, perhaps empty, with `stop` set: END exactly at `end`, BLANK at a
    filler that ends at the view's end, ZEROS at eight zero bytes or fewer left, DAMAGED at anything else.
    `verify` checks bodies' CRCs and lost sectors too.
    """
    log = np.frombuffer(view, np.uint8)
    stop = None
    while stop is None:
        positions, chain_end, broken = follow_chain(
            log, start, min(start + chunk_bytes, end), end, base_physical_offset
        )
        records = locate(log[:end], positions, positions + base_physical_offset)
        ok = records.headers["ok"]
        if verify:
            ok = ok & ~damaged_rows(records)
        if not ok.all():
            count = int(np.argmin(ok))
            chain_end, records, broken = int(positions[count]), records.take(slice(0, count)), True
        if broken or chain_end + MIN_RECORD_BYTES > end:
            stop = _stop_at(view, chain_end, end)
        problem = None
        if stop is ScanStop.DAMAGED:
            problem = record_problem(view[chain_end:end], base_physical_offset + chain_end)
        topics, topic_rows = topics_of(records)
        yield ScannedRecords(records, topics, topic_rows, chain_end, stop, problem)
        start = chain_end


def _stop_at(view: memoryview, position: int, end: int) -> ScanStop:
    """What is at `position`, where no good record starts."""
    if position == end:
        return ScanStop.END
    if end - position < BLANK_BYTES:
        return ScanStop.DAMAGED if any(view[position:end]) else ScanStop.ZEROS
    size, magic = _START.unpack_from(view, position)
    if magic == BLANK_MAGIC and position + size == len(view):
        return ScanStop.BLANK
    return ScanStop.ZEROS if size == magic == 0 else ScanStop.DAMAGED


def find_next_record(view: memoryview, position: int, base_physical_offset: int, end: int) -> int | None:
    """The first position from `position` on where a whole record starts, ends by `end`, and all that can be checked
    holds."""
    chunk_start = position
    while chunk_start + MIN_RECORD_BYTES <= end:
        chunk_end = min(chunk_start + _SEARCH_BYTES, end)
        # A copy: searching a map in place may read one byte past its end. The last bytes are searched again with the
        # next chunk.
        chunk = bytes(view[chunk_start:chunk_end])
        for start in sorted(_starts(chunk)):
            found = chunk_start + start
            if found >= position and record_problem(view[found:end], base_physical_offset + found) is None:
                return found
        if chunk_end == end:
            break
        chunk_start = chunk_end - BLANK_BYTES + 1
    return None


def _starts(chunk: bytes) -> Iterator[int]:
    """Where a record would start for each magic in `chunk`; perhaps before it."""
    for magic in MAGICS:
        at = chunk.find(magic)
        while at >= 0:
            yield at - 4
            at = chunk.find(magic, at + 1)

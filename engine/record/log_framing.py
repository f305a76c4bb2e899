"""Framing: the bytes around the records of a commit log (docs/format.md, 2 and 14).

RocketMQ's own log has only records. DLedger's has entries, each with a header and one record:

    magic i32, size i32, index i64, term i64, position i64, channel i32, chain CRC i32, body CRC i32, body size i32

`size` includes the header. `position` is the entry's own physical offset; the record's is after the header. Entries
with other magics have DLedger's own data and no record. A frame is a record with its header.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from engine.errors import DamagedRecordError
from engine.record.byte_columns import items_at
from engine.record.header import BLANK_BYTES, BLANK_MAGIC, I32, I64, MIN_RECORD_BYTES, big_endian
from engine.record.kernel.decode import decode_record

Array = np.ndarray[Any, Any]

_START = Struct(">ii")


class _EntryHeader:
    """Header before each record of DLedger's log."""

    magic: I32
    size: I32
    index: I64
    term: I64
    position: I64
    channel: I32
    chain_crc: I32
    body_crc: I32
    body_size: I32


_SCALARS, _ENTRY_HEADER = big_endian(_EntryHeader)
_RECORD_ENTRY, _LAST_ENTRY_KIND = 1, 3
_BLANK_ENTRY = -1


class EntryNumber(NamedTuple):
    """Number of an entry of a ledger: entries have no gaps, and terms never fall."""

    entry: int
    term: int


def record_problem(view: memoryview, physical_offset: int) -> str | None:
    """Reason why there is no whole record at the start of `view`, else None: checks sizes, physical offset, body
    CRC."""
    try:
        decode_record(view, physical_offset)
    except DamagedRecordError as damage:
        return damage.reason
    return None


class Framing:
    """Records without headers, as in RocketMQ's own commit log. Stateless."""

    kind = "RocketMQ"
    """Name of the log format in reports."""
    header_bytes = 0
    """Size of the header before each record."""
    is_ledger = False
    least_bytes = MIN_RECORD_BYTES
    """Size of the shortest frame."""

    def frame_start(self, physical_offset: int) -> int:
        """Physical offset of the frame of the record at `physical_offset`."""
        return physical_offset - self.header_bytes

    def problem(self, view: memoryview, frame_offset: int) -> str | None:
        """Reason why no frame with a whole record is at the start of `view`, at physical offset `frame_offset`; else
        None."""
        return record_problem(view, frame_offset)

    def header_problem(self, header: memoryview, physical_offset: int, record_bytes: int) -> str | None:
        """Reason why `header` does not belong to a record of that physical offset and size, else None."""
        return None

    def claimed_size(self, frame: memoryview) -> int | None:
        """Size in bytes of the record in a possibly damaged frame, by its header; None: the header is damaged."""
        return None

    def is_blank(self, frame: memoryview) -> bool:
        """Whether `frame` is the blank that fills a file after its last frame, up to the end of the view."""
        if len(frame) < BLANK_BYTES:
            return False
        size, magic = _START.unpack_from(frame)
        return bool(magic == BLANK_MAGIC and size == len(frame))

    def follow_each_other(self, log: Array, positions: Array, before: EntryNumber | None) -> int:
        """Number of leading good frames at `positions` whose entry numbers continue `before`."""
        return len(positions)

    def number(self, log: Array, positions: Array) -> EntryNumber | None:
        """Entry number of the last good frame at `positions`; None: frames have no numbers."""
        return None

    def goes_on(self, frame: memoryview, before: EntryNumber | None) -> bool:
        """Whether a whole frame may be anywhere after the entry `before`."""
        return True

    def records(self, log: Array, frames: Array) -> Array:
        """Positions of the records of good frames at `frames`."""
        return frames


class LedgerFraming(Framing):
    """Entries, as in DLedger's log. Stateless."""

    kind = "DLedger"
    header_bytes = _SCALARS.size
    is_ledger = True
    least_bytes = _SCALARS.size

    def problem(self, view: memoryview, frame_offset: int) -> str | None:
        if len(view) < self.header_bytes:
            return f"only {len(view)} bytes are left for an entry"
        size = _START.unpack_from(view)[1]
        if not self.header_bytes + MIN_RECORD_BYTES <= size <= len(view):
            return f"an entry of size {size} with {len(view)} bytes left"
        record_offset, record_bytes = frame_offset + self.header_bytes, size - self.header_bytes
        found = self.header_problem(view[: self.header_bytes], record_offset, record_bytes)
        return found or record_problem(view[self.header_bytes : size], record_offset)

    def header_problem(self, header: memoryview, physical_offset: int, record_bytes: int) -> str | None:
        magic, size, _, _, position, _, _, _, body_bytes = _SCALARS.unpack(header)
        if magic != _RECORD_ENTRY:
            return f"its entry has magic {magic}, not {_RECORD_ENTRY}"
        if position != self.frame_start(physical_offset):
            return f"its entry says it is at {position}"
        if not size - self.header_bytes == body_bytes == record_bytes:
            return f"its entry has sizes {size} and {body_bytes}, the record {record_bytes}"
        return None

    def claimed_size(self, frame: memoryview) -> int | None:
        if len(frame) < self.header_bytes:
            return None
        header = _SCALARS.unpack_from(frame)
        size, body_bytes = header[1], header[8]
        return (
            body_bytes if size == body_bytes + self.header_bytes and self.header_bytes <= size <= len(frame) else None
        )

    def is_blank(self, frame: memoryview) -> bool:
        return len(frame) >= BLANK_BYTES and _START.unpack_from(frame) == (_BLANK_ENTRY, len(frame))

    def follow_each_other(self, log: Array, positions: Array, before: EntryNumber | None) -> int:
        """As `Framing.follow_each_other`. A single wrong number between two right ones is accepted."""
        headers = _headers(log, positions)
        indexes, terms = headers["index"].astype(np.int64), headers["term"].astype(np.int64)
        if before is not None:
            indexes, terms = np.append(before.entry, indexes), np.append(before.term, terms)
        follows = (indexes[1:] - indexes[:-1] == 1) & (terms[1:] >= terms[:-1])
        if follows.all():
            return len(positions)
        spans = (indexes[2:] - indexes[:-2] == 2) & (terms[2:] >= terms[:-2])
        follows[:-1] |= spans
        follows[1:] |= spans
        first = 0 if before is not None else 1
        return len(positions) if follows.all() else first + int(follows.argmin())

    def number(self, log: Array, positions: Array) -> EntryNumber | None:
        if not len(positions):
            return None
        header = _headers(log, positions[-1:])[0]
        return EntryNumber(int(header["index"]), int(header["term"]))

    def goes_on(self, frame: memoryview, before: EntryNumber | None) -> bool:
        index, term = _SCALARS.unpack_from(frame)[2:4]
        return before is None or (index > before.entry and term >= before.term)

    def records(self, log: Array, frames: Array) -> Array:
        return np.asarray(frames[_headers(log, frames)["magic"] == _RECORD_ENTRY] + self.header_bytes)


def _headers(log: Array, frames: Array) -> Array:
    return items_at(log, frames, _ENTRY_HEADER.itemsize).view(_ENTRY_HEADER)


PLAIN = Framing()
LEDGER = LedgerFraming()

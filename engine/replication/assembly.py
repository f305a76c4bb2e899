"""Assembly: whole, checked records from the bytes of a master's log, which frames cut anywhere.

    frames     [....|......][..|........][blank, zeros]     bytes of the log, in order
    records    |..........| |..........|                    sizes, places and bodies' checksums are right
    pieces     [.........................................]  whole records of one file; the last piece fills the file

Nothing else leaves this module: a record that is damaged, or none, ends the connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from engine.errors import ProtocolError
from engine.record.header import BLANK_BYTES, BLANK_MAGIC, MAGIC_START, MIN_RECORD_BYTES
from engine.record.scan import ScanStop, scan_records

MAX_RECORD_BYTES = 64 << 20
"""Limit of a record, which is held in memory until it is whole. A broker's default limit of a message is 4 MiB."""

_HEAD = Struct(">ii")
assert _HEAD.size == BLANK_BYTES


@dataclass(frozen=True, slots=True)
class Piece:
    """`data` is the log from `physical_offset` on: whole records of one file, and perhaps the blank up to its end. The
    newest record has `store_time_ms`; 0: there is none."""

    physical_offset: int
    data: bytes
    records: int
    store_time_ms: int


class RecordAssembly:
    """Collects a log's bytes and returns whole records. It holds only added bytes that are not yet whole records."""

    def __init__(self, peer: str, end: int, file_bytes: int) -> None:
        """The log, in files of `file_bytes`, goes on at the physical offset `end`. `peer` names the master in
        errors."""
        self._peer = peer
        self._file_bytes = file_bytes
        self._rest = b""
        self._parts: list[bytes] = []
        self._needed = 0
        """Bytes from `_begin` on without which no further record is whole."""
        self._begin = end
        """Physical offset of the first byte of `_rest`."""
        self.end = end
        """Physical offset after the last byte that was added."""

    def add(self, physical_offset: int, data: bytes) -> None:
        """Take the next bytes of the log. ProtocolError: they do not go on from the last ones."""
        if physical_offset != self.end:
            raise ProtocolError(self._peer, f"it sent bytes from {physical_offset} on after those up to {self.end}")
        self._parts.append(data)
        self.end += len(data)

    def take(self) -> list[Piece]:
        """The whole records so far, in order. ProtocolError: the bytes are no records."""
        if self.end - self._begin < self._needed:
            return []
        self._rest, self._parts, self._needed = b"".join((self._rest, *self._parts)), [], 0
        pieces = []
        while self._rest and (piece := self._next()) is not None:
            pieces.append(piece)
            self._begin += len(piece.data)
            self._rest = self._rest[len(piece.data) :]
        return pieces

    def _next(self) -> Piece | None:
        """The whole records at the begin, up to a file's end; None: there are none."""
        to_file_end = self._file_bytes - self._begin % self._file_bytes
        view = memoryview(self._rest)[:to_file_end]
        position = records = store_time_ms = 0
        problem, stop = None, None
        for found in scan_records(view, 0, self._begin, len(view)):
            position, stop, problem = found.end, found.stop, found.problem
            records += len(found)
            if len(found):
                store_time_ms = int(found.records.headers["store_time_ms"][-1])
        if stop is ScanStop.BLANK and len(view) == to_file_end:
            position = len(view)
        elif position < len(view):
            size = self._size_of(view[position:], self._begin + position, to_file_end - position, problem)
            self._needed = size if position == 0 else 0
        return Piece(self._begin, bytes(view[:position]), records, store_time_ms) if position else None

    def _size_of(self, rest: memoryview, physical_offset: int, to_file_end: int, problem: str | None) -> int:
        """Bytes of the record or blank that `rest` begins, and that may become whole; `to_file_end` bytes of the file
        are left. ProtocolError: it is none."""
        if len(rest) < BLANK_BYTES <= to_file_end:
            return BLANK_BYTES
        size, magic = _HEAD.unpack(rest[:BLANK_BYTES].tobytes().ljust(BLANK_BYTES, b"\0"))
        if magic == BLANK_MAGIC:
            is_possible = size == to_file_end <= MAX_RECORD_BYTES
        else:
            is_record = rest[4:7] == MAGIC_START
            is_possible = is_record and MIN_RECORD_BYTES <= size <= min(MAX_RECORD_BYTES, to_file_end - BLANK_BYTES)
        if not is_possible or len(rest) >= size:
            what = problem or "no record"
            raise ProtocolError(self._peer, f"its log is damaged at physical offset {physical_offset}: {what}")
        return int(size)

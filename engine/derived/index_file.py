"""Index file: a hash table of message keys over a part of the commit log (docs/format.md, 7).

    [header 40][slots 4*S][entries 20*N]        big-endian; S and N are not recorded in the file
    header  begin_time_ms i64 | end_time_ms i64 | begin_physical_offset i64 | end_physical_offset i64
            | used_slots i32 | next_entry i32
    slot    number of the newest entry of its bucket, 0 when it is empty
    entry   key_hash i32 | physical_offset i64 | time_difference_s i32 | previous i32

Entries are numbered from 1 (entry 0 is never used), so a file takes N - 1 of them. `previous` chains a bucket's
entries, newest first; numbers fall along a chain. `next_entry` 0 means 1. The file can be rebuilt from the commit log,
so it has no checksum. One writer, any readers: entries are written first, then the header that counts them, then the
slots that lead to them.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from engine.files.mapped_file import MappedFile
from engine.record.kernel.chain import HashTable
from engine.record.kernel.files import read_through
from engine.record.kernel.keys import KeyMemtable

HEADER = np.dtype(
    [
        ("begin_time_ms", ">i8"),
        ("end_time_ms", ">i8"),
        ("begin_physical_offset", ">i8"),
        ("end_physical_offset", ">i8"),
        ("used_slots", ">i4"),
        ("next_entry", ">i4"),
    ]
)
INDEX_ENTRY = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("time_difference_s", ">i4"), ("previous", ">i4")]
)
SLOT = np.dtype(">i4")
_HEADER = Struct(">qqqqii")
_ENTRY_BYTES = INDEX_ENTRY.itemsize
assert HEADER.itemsize == _HEADER.size == 40
assert _ENTRY_BYTES == 20

MAX_TIME_DIFFERENCE_S = 0x7FFFFFFF
_LAST_MS = (1 << 63) - 1
TAG_TYPE = "T"
"""Since RocketMQ 5.4 a record's last entry is for its tag, hashed as topic#T#tag. fsstore only reads these entries."""

Array = np.ndarray[Any, Any]


def index_file_bytes(slots: int, entries: int) -> int:
    """Size of an index file with S slots and N entries."""
    return HEADER.itemsize + SLOT.itemsize * slots + INDEX_ENTRY.itemsize * entries


class IndexHeader(NamedTuple):
    """The header's fields as stored, but `next_entry` is at least 1."""

    begin_time_ms: int
    end_time_ms: int
    begin_physical_offset: int
    end_physical_offset: int
    used_slots: int
    next_entry: int


class IndexFile(HashTable):
    """One index file of S `slots` and N `entries`. Thread safety: one writer, any readers."""

    def __init__(self, file: MappedFile, slots: int, entries: int) -> None:
        super().__init__(file, slots, entries)
        self._entries_position = HEADER.itemsize + SLOT.itemsize * slots

    @property
    def header(self) -> IndexHeader:
        """The current header. TruncatedFileError, RetiredFileError."""
        begin_ms, end_ms, begin, end, used_slots, next_entry = _HEADER.unpack_from(self.file.whole())
        return IndexHeader(begin_ms, end_ms, begin, end, used_slots, max(next_entry, 1))

    @property
    def room(self) -> int:
        """Number of entries that still fit."""
        return self.entries - self.header.next_entry

    @property
    def last_physical_offset(self) -> int:
        """Physical offset of the newest record with a key in this file (or before it: see `inherit`); -1 for none."""
        header = self.header
        return header.end_physical_offset if header.next_entry > 1 or header.end_physical_offset > 0 else -1

    def inherit(self, previous: IndexHeader) -> None:
        """Set the header's first and last offsets and times to the end of the file before."""
        header = self._header()
        if previous.end_physical_offset > 0:
            header["begin_physical_offset"] = header["end_physical_offset"] = previous.end_physical_offset
        if previous.end_time_ms > 0:
            header["begin_time_ms"] = header["end_time_ms"] = previous.end_time_ms

    def put_many(self, keys: KeyMemtable, count: int) -> None:
        """Add the first `count` of `keys` (0 < count <= room, MOST_CHAINED), with the same bytes as one by one."""
        header = self.header
        first, pages = header.next_entry, self.file.writable()
        added, opened = keys.chained(count, pages, self.slots, first, header.begin_time_ms)
        self.file.write(self._entries_position + _ENTRY_BYTES * first, added)
        begin, begin_ms, end, end_ms = keys.bounds(count)
        if first > 1:
            begin, begin_ms = header.begin_physical_offset, header.begin_time_ms
        used_slots = min(header.used_slots + opened, self.entries)  # any number may be stored
        self._set_header(IndexHeader(begin_ms, end_ms, begin, end, used_slots, first + count))
        keys.lead(count, pages, self.slots, first)

    def records(self) -> Array:
        """View of the entries, oldest first: INDEX_ENTRY (n,)."""
        count = min(self.header.next_entry, self.entries)
        pages = self.file.whole()
        view = np.frombuffer(pages, INDEX_ENTRY, count, self._entries_position)
        return view[1:]

    def require_read(self) -> None:
        """RefusedReadError if the disk refuses a byte of header, slots or entries: refused bytes read as zeros, and
        writes to them are lost."""
        pages = self.file.whole()
        read_through(pages[: self._entries_position])
        read_through(pages[: self._entries_position + _ENTRY_BYTES * min(self.header.next_entry, self.entries)])

    def chain_starts(self) -> Array:
        """View of the slots: i32 (S,)."""
        return np.frombuffer(self.file.whole(), SLOT, self.slots, HEADER.itemsize)

    def truncate(self, physical_end: int, stored_ms: Callable[[int], int]) -> int:
        """Drop entries of records at or after `physical_end`, and all from the first implausible entry on; return the
        number of entries left. All slots are rebuilt: after a power cut some may be older than others.

        `stored_ms` returns the store time in ms of the record at a physical offset, -1 if it is unreadable.
        """
        kept = trusted_prefix(self.records(), physical_end)
        if not kept:
            return 0
        header = self.header
        entries = self._entries()
        entries[kept + 1 : header.next_entry] = 0
        records = entries[1 : kept + 1]
        end = int(records["physical_offset"][-1])
        end_ms = stored_ms(end) if kept + 1 < header.next_entry else header.end_time_ms
        if end_ms <= 0:
            end_ms = header.begin_time_ms + 1000 * int(records["time_difference_s"][-1])
        self._set_header(
            IndexHeader(
                header.begin_time_ms,
                min(max(end_ms, 0), _LAST_MS),
                header.begin_physical_offset,
                end,
                int(np.count_nonzero(records["previous"] == 0)),
                kept + 1,
            )
        )
        slots = self._slots()
        slots[:] = 0
        slots[records["key_hash"].astype(np.int64) % self.slots] = np.arange(1, kept + 1)
        return kept

    def _header(self) -> Array:
        return np.frombuffer(self.file.writable(), HEADER, 1)

    def _set_header(self, header: IndexHeader) -> None:
        _HEADER.pack_into(self.file.writable(), 0, *header)

    def _slots(self) -> Array:
        return np.frombuffer(self.file.writable(), SLOT, self.slots, HEADER.itemsize)

    def _entries(self) -> Array:
        return np.frombuffer(self.file.writable(), INDEX_ENTRY, self.entries, self._entries_position)


# arithmetic: no state, no files


def link(slots: Array, numbers: Array, heads: Array) -> tuple[Array, Array, Array]:
    """The right chains of a file's entries: (previous of each entry, slots in use, their newest entries).

    `slots` (n,) int64 is each entry's bucket, `numbers` (n,) int64 its number, rising; `heads` (S,) are the slots
    before.
    """
    count = len(slots)
    order = slots << 32 | np.arange(count)  # one sort groups the buckets and keeps the order within each
    order.sort()
    rows, sorted_slots = order & 0xFFFFFFFF, order >> 32
    starts = np.ones(count + 1, dtype=bool)
    np.not_equal(sorted_slots[1:], sorted_slots[:-1], out=starts[1:-1])
    opens, closes = starts[:-1], starts[1:]
    sorted_numbers = numbers[rows]
    chained = np.empty(count, np.int64)
    chained[1:] = sorted_numbers[:-1]
    found = heads[sorted_slots[opens]].astype(np.int64)
    chained[opens] = np.where((found < 0) | (found > sorted_numbers[opens]), 0, found)
    previous = np.empty(count, np.int64)
    previous[rows] = chained
    return previous, sorted_slots[closes], sorted_numbers[closes]


def trusted_prefix(records: Array, physical_end: int) -> int:
    """Number of leading entries that can be right: for records before `physical_end`, in log order."""
    if not len(records) or records["physical_offset"][0] >= physical_end:
        return 0
    offsets = records["physical_offset"].astype(np.int64)
    numbers = np.arange(1, len(records) + 1)
    trusted = (offsets >= 0) & (offsets < physical_end) & (records["key_hash"] >= 0)
    trusted &= (records["previous"] >= 0) & (records["previous"] < numbers)
    trusted[1:] &= offsets[1:] >= offsets[:-1]
    return len(records) if trusted.all() else int(trusted.argmin())

"""Records that outlive a server, by kind and key."""

from __future__ import annotations

import errno
import mmap
import threading
from collections.abc import Iterator
from struct import Struct

from fsstore.handover.layout import DATA_BEGIN, RECORD_BYTES, SEGMENT_BYTES, SEGMENT_TABLE, SEGMENTS

NODE, STATE = 1, 2
"""Kinds of records."""
SPARE_BYTES = 1 << 20
"""Dead bytes that may stay uncompacted, in addition to as many as are live."""
LEAST_CHARGED_BYTES = 192
"""Bytes that each record counts in addition to its own size."""
_RECORD = Struct("=8Q")


class Records:
    """Records of 64 bytes and data, by kind and key, appended to segments. The newest record of a key is valid.

    A record that is replaced or dropped is marked dead in its place. A segment without live records is free. When most
    of the used bytes are dead, compaction appends the live records of the emptiest segment again. Each is there twice
    for a moment, because a server may be killed between any two stores to memory.
    """

    def __init__(self, words: memoryview, memory: memoryview) -> None:
        self.of: dict[int, dict[int, int]] = {NODE: {}, STATE: {}}
        """The word at which each record begins, by kind and key."""
        self.lock = threading.Lock()
        """Held while records are moved or dropped whose counters another thread may change."""
        self._words = words
        self._bytes = memory
        self._live: dict[int, int] = {}
        """Live bytes by segment in use. A record that spans several segments counts to the first one."""
        self._is_used = bytearray(SEGMENTS)
        self._segment, self._end, self._limit = -1, 0, 0
        """The segment that is appended to, the end of its records and the end of its room, in bytes."""
        self._sequence = 0
        self._scan()

    @property
    def used_bytes(self) -> int:
        """Bytes of the segments in use."""
        return self._is_used.count(1) * SEGMENT_BYTES

    @property
    def live_bytes(self) -> int:
        return sum(list(self._live.values()))

    def data(self, record: int, size: int) -> bytes:
        """The data of a record that begins at word `record`."""
        begin = record * 8 + RECORD_BYTES
        return bytes(self._bytes[begin : begin + size])

    def add(self, kind: int, key: int, fields: tuple[int, int, int, int, int, int], data: bytes | bytearray) -> None:
        """Append a record that replaces the key's older one. OSError: there is no room, and nothing has changed."""
        size = record_bytes(len(data)) if data else RECORD_BYTES
        if self._end + size > self._limit:
            self._advance(size)
        begin = self._end
        _RECORD.pack_into(self._bytes, begin, size << 8 | kind, key, *fields)
        if data:
            self._bytes[begin + RECORD_BYTES : begin + RECORD_BYTES + len(data)] = data
        self._commit(size)
        index = self.of[kind]
        old = index.get(key)
        index[key] = begin // 8
        if old is not None:
            self._kill(old)

    def drop(self, kind: int, key: int) -> None:
        """Drop the record of a key, if it has one."""
        record = self.of[kind].pop(key, None)
        if record is not None:
            self._kill(record)

    def _kill(self, record: int) -> None:
        """Mark a record dead that no index has any more."""
        words, live = self._words, self._live
        head = words[record]
        words[record] = head & ~0xFF
        segment = (record * 8 - DATA_BEGIN) // SEGMENT_BYTES
        live[segment] -= head >> 8
        if not live[segment] and segment != self._segment:
            self._free(segment)

    # segments

    def _scan(self) -> None:
        table = self._words[SEGMENT_TABLE : SEGMENT_TABLE + 2 * SEGMENTS].tolist()
        ends, sequences = table[::2], table[1::2]
        for segment in sorted(filter(ends.__getitem__, range(SEGMENTS)), key=sequences.__getitem__):
            self._take_segment(segment, -(-ends[segment] // SEGMENT_BYTES))
            self._sequence = sequences[segment]
            for record, head, key in self._records_in(segment):
                index = self.of[head & 0xFF]
                older = index.get(key)
                index[key] = record
                self._live[segment] += head >> 8
                if older is not None:
                    self._kill(older)
            if not self._live[segment]:
                self._free(segment)

    def _records_in(self, segment: int) -> Iterator[tuple[int, int, int]]:
        """Yield (word where it begins, head, key) of each live record."""
        words, record = self._words, _begin_of(segment) // 8
        end = record + words[SEGMENT_TABLE + 2 * segment] // 8
        while record < end:
            head = words[record]
            if head & 0xFF:
                yield record, head, words[record + 1]
            record += head >> 11

    def _commit(self, size: int) -> None:
        """Make the bytes that were written after the segment's end a record."""
        segment = self._segment
        self._end += size
        self._words[SEGMENT_TABLE + 2 * segment] = self._end - DATA_BEGIN - segment * SEGMENT_BYTES
        self._live[segment] += size

    def _advance(self, size: int) -> None:
        """Make room for a record. OSError: there is none."""
        if self.used_bytes > 2 * self.live_bytes + SPARE_BYTES:
            with self.lock:
                self._compact()
        if self._end + size > self._limit:
            self._begin_segment(size)

    def _begin_segment(self, size: int) -> None:
        count = -(-size // SEGMENT_BYTES)
        segment, last = self._is_used.find(bytes(count)), self._segment
        if segment < 0:
            raise OSError(errno.ENOBUFS, "the memory that outlives the daemon is full")
        self._take_segment(segment, count)
        self._sequence += 1
        self._words[SEGMENT_TABLE + 2 * segment + 1] = self._sequence
        self._segment, self._end = segment, _begin_of(segment)
        self._limit = self._end + (SEGMENT_BYTES if count == 1 else size)
        if self._live.get(last) == 0:
            self._free(last)

    def _compact(self) -> None:
        """Append the live records of the segment that has the fewest live bytes."""
        least = min(self._live.keys() - {self._segment}, key=self._live.__getitem__, default=None)
        if least is None or self._live[least] > SEGMENT_BYTES // 4 * 3:
            return
        for record, head, key in list(self._records_in(least)):
            size = head >> 8
            if self._end + size > self._limit:
                self._begin_segment(size)
            begin = self._end
            self._bytes[begin : begin + size] = self._bytes[record * 8 : record * 8 + size]
            self._commit(size)
            self.of[head & 0xFF][key] = begin // 8
            self._kill(record)

    def _take_segment(self, segment: int, count: int) -> None:
        self._live[segment] = 0
        self._is_used[segment : segment + count] = b"\1" * count

    def _free(self, segment: int) -> None:
        """Give the memory of a segment without live records back."""
        entry = SEGMENT_TABLE + 2 * segment
        count = max(-(-self._words[entry] // SEGMENT_BYTES), 1)
        self._words[entry] = 0
        mapped: mmap.mmap = self._bytes.obj  # type: ignore[assignment] # of any object that has a buffer
        mapped.madvise(mmap.MADV_REMOVE, _begin_of(segment), count * SEGMENT_BYTES)
        self._is_used[segment : segment + count] = bytes(count)
        del self._live[segment]


def _begin_of(segment: int) -> int:
    """The byte of the memory at which a segment begins."""
    return DATA_BEGIN + segment * SEGMENT_BYTES


def record_bytes(data_bytes: int) -> int:
    """Size of a record with `data_bytes` of data."""
    return RECORD_BYTES + (data_bytes + RECORD_BYTES - 1) // RECORD_BYTES * RECORD_BYTES


def charged_bytes(data_bytes: int) -> int:
    """Bytes that a record counts to its user, with the daemon's own memory and time for it."""
    return LEAST_CHARGED_BYTES + record_bytes(data_bytes)

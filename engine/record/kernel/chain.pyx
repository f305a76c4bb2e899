"""Chain (docs/format.md, 7): the entries of an index file that share a bucket, newest first.

Numbers are whatever a disk holds: each is compared with how many entries there are before it is followed, and they must
fall along a chain, so it ends.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t

from engine.errors import RetiredFileError, TruncatedFileError
from engine.deadline import check_deadline
from engine.record.kernel.files cimport FilePositions, Mapped, refusal_of
from engine.record.kernel.keys cimport KeyMemtable
from engine.record.kernel.layout cimport bytes_at, get_i32, get_i64, hash_text, index_hash_of, prefetch
from engine.record.kernel.pages cimport Pages

cdef enum:
    NEXT_ENTRY_AT = 36
    HEADER_BYTES = 40
    SLOT_BYTES = 4
    ENTRY_BYTES = 20
    PLACE_AT = 4
    PREVIOUS_AT = 16
    NEWEST_ENTRY = -1
    FIRST_WALKED = 16  # so many entries of a bucket are followed before its first candidates are given;
    MORE_WALKED = 16  # then so many times more,
    MOST_WALKED = 1 << 12  # up to so many, which keeps other threads for 0.1 ms, each time after a look at its size

NEWEST = NEWEST_ENTRY
GIVEN_AT_ONCE = FIRST_WALKED * (1 + MORE_WALKED)


cpdef tuple walk_chain(Pages pages, int64_t slots, int64_t entries, int32_t key_hash, int64_t number, int64_t most):
    """Follow `most` entries of the hash's bucket from that of `number` on, NEWEST or as the call before returned it, in
    an index file of so many slots and entries: (physical offsets of those that have the hash, neighbours that are
    equal once; the number to go on from, 0 at the end). IndexError: `pages` are shorter.
    """
    cdef bytes_at header = pages.at(0, HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * entries)
    cdef bytes_at first = header + HEADER_BYTES + SLOT_BYTES * slots
    cdef bytes_at entry
    cdef list found = []
    cdef int64_t place, newest_place = -1, previous
    if number == NEWEST_ENTRY:
        number = get_i32(header + HEADER_BYTES + SLOT_BYTES * (key_hash % slots))
        # read after the slot: a writer counts an entry before a slot leads to it (RocketMQ: just after)
        if number > get_i32(header + NEXT_ENTRY_AT):
            number = 0
    if number >= entries:
        number = 0
    while number > 0 and most > 0:
        entry = first + ENTRY_BYTES * number
        if get_i32(entry) == key_hash:
            place = get_i64(entry + PLACE_AT)
            if not found or place != newest_place:
                found.append(place)
                newest_place = place
        previous = get_i32(entry + PREVIOUS_AT)
        number = previous if previous < number else 0  # else damaged, or another file's sizes
        most -= 1
    return found, max(number, 0)


cdef class HashTable:
    """An index file and its sizes."""

    cdef readonly FilePositions file
    cdef readonly int64_t slots, entries

    def __init__(self, FilePositions file not None, int64_t slots, int64_t entries):
        self.file = file
        self.slots = slots
        self.entries = entries


@cython.final
@cython.no_gc
@cython.freelist(4)
cdef class Candidates:
    """Iterates over the physical offsets `found`, then those of the entries with a hash in `tables`, oldest first as
    these are: newest first, until one is before `least`; each once if they are to be `distinct`.

    Of a table whose file retention took, ours or that of another process, there are none. TruncatedFileError,
    RefusedReadError;
    WouldBlock on a nonblocking thread, after the first of a long chain: keys with the same hash are easily made.
    """

    cdef list found
    cdef tuple tables
    cdef object first  # the first of distinct ones
    cdef set seen  # with later results
    cdef bint distinct
    cdef int32_t key_hash
    cdef int64_t least, number, most
    cdef Py_ssize_t at, left

    def __init__(self, list found not None, tuple tables not None, int32_t key_hash, int64_t least, bint distinct):
        self.found, self.tables, self.left = found, tables, len(tables)
        self.key_hash, self.least, self.distinct = key_hash, least, distinct

    def __iter__(self):
        return self

    def __next__(self):
        while True:
            while self.at >= len(self.found):
                if self.number == 0 and self.left == 0:
                    raise StopIteration
                self.look()
            place = self.found[self.at]
            self.at += 1
            if <int64_t> place < self.least:
                self.found, self.number, self.left = [], 0, 0
            elif not self.distinct or self.is_new(place):
                return place

    cdef bint is_new(self, place) except -1:
        """Note it; returns whether it is new."""
        if self.first is None:
            self.first = place
            return True
        if self.seen is None:
            self.seen = {self.first}
        if place in self.seen:
            return False
        self.seen.add(place)
        return True

    cdef int look(self) except -1:
        """Find some more."""
        cdef HashTable table
        cdef Mapped mapped
        self.found, self.at = [], 0
        if self.number == 0:
            self.left -= 1
            self.number, self.most = NEWEST_ENTRY, FIRST_WALKED
        elif self.most > FIRST_WALKED * MORE_WALKED:
            check_deadline()
        table = self.tables[self.left]
        try:
            mapped = table.file.any_map()
            prefetch(mapped.pages.data + HEADER_BYTES + SLOT_BYTES * (self.key_hash % table.slots), SLOT_BYTES)
            table.file.require_whole(mapped)
        except RetiredFileError:
            self.number = 0
            return 0
        if mapped.pages.size < table.file.size:
            raise TruncatedFileError(table.file.path, table.file.size, mapped.pages.size)
        self.found, self.number = walk_chain(
            mapped.pages, table.slots, table.entries, self.key_hash, self.number, self.most
        )
        if mapped.map.has_refused():  # anywhere: a chain leads everywhere
            raise refusal_of(mapped.pages.data, mapped.pages.size)
        self.most = min(self.most * MORE_WALKED, MOST_WALKED)
        return 0


cdef class KeyIndex:
    """The memtable of keys, and the index files, oldest first: they lead to records that may have a key."""

    cdef public KeyMemtable memtable
    cdef public tuple _files

    def candidates(self, topic, key, int64_t min_physical_offset=0, *, bint distinct=True):
        """Physical offsets of records that may carry `key`, newest first, none before `min_physical_offset`; each once
        if they are to be `distinct`, for which all have to be remembered."""
        cdef int32_t key_hash = index_hash_of(hash_text(key, hash_text("#", hash_text(topic, 0))))
        cdef list in_memory = self.memtable.find(key_hash)  # before the files, because keys move from memory to files
        return Candidates(in_memory, self._files, key_hash, min_physical_offset, distinct)

"""Keys: the memtable of keys that are not in the index's files yet, and their chains in a file (docs/format.md, 7)."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove

from engine.record.kernel.encode cimport EncodedBatch
from engine.record.kernel.layout cimport get_i32, put_i32, put_i64
from engine.record.kernel.pages cimport Pages

cdef enum:
    HEADER_BYTES = 40  # of an index file
    SLOT_BYTES = 4
    ENTRY_BYTES = 20
    MAX_TIME_DIFFERENCE_S = 0x7FFFFFFF
    CHAINED_AT_ONCE = 1 << 12  # even with the worst hashes this takes a few ms at most

MOST_CHAINED = CHAINED_AT_ONCE
MEMTABLE_KEYS = 1024


@cython.final
cdef class KeyMemtable:
    """Keys of the newest records, in log order: index hash, physical offset, store time in ms of each.

    `last` is the physical offset of the newest record with a key, in here or in a file, -1 for none; `needs_room`
    says that the newest record has none: then a file must be there all the same. From `settles_at` keys on they are to
    go into a file. Thread safety: any thread; one at a time adds.
    """

    def __cinit__(self, int64_t last=-1):
        self.last = last
        self.settles_at = MEMTABLE_KEYS

    def __dealloc__(self):
        free(self.hashes)
        free(self.offsets)
        free(self.times)

    def __len__(self):
        return self.count

    def add(self, EncodedBatch batch not None, int64_t physical_offset, int64_t store_time_ms):
        """Add the keys of records that begin there. Records up to `last` were added before."""
        self.reserve(batch.hash_count - batch.first_hash)
        self.add_all(batch, physical_offset, store_time_ms)

    def extend(self, bytes hashes not None, bytes physical_offsets not None, bytes store_times_ms not None):
        """Add keys: int32, int64 and int64 of each."""
        cdef Py_ssize_t more = PyBytes_GET_SIZE(hashes) // 4
        if not PyBytes_GET_SIZE(physical_offsets) == PyBytes_GET_SIZE(store_times_ms) == 8 * more:
            raise ValueError("not as many of each")
        self.reserve(more)
        memcpy(self.hashes + self.count, PyBytes_AS_STRING(hashes), 4 * more)
        memcpy(self.offsets + self.count, PyBytes_AS_STRING(physical_offsets), 8 * more)
        memcpy(self.times + self.count, PyBytes_AS_STRING(store_times_ms), 8 * more)
        self.count += more
        if more:
            self.last = self.offsets[self.count - 1]

    cpdef list find(self, int32_t key_hash):
        """Physical offsets of the records with a key of that hash, newest first."""
        cdef Py_ssize_t row
        return [self.offsets[row] for row in range(self.count - 1, -1, -1) if self.hashes[row] == key_hash]

    def drop(self, Py_ssize_t count):
        """Drop the first keys: a file has them."""
        count = max(0, min(count, self.count))
        self.count -= count
        memmove(self.hashes, self.hashes + count, 4 * self.count)
        memmove(self.offsets, self.offsets + count, 8 * self.count)
        memmove(self.times, self.times + count, 8 * self.count)

    def truncate(self, int64_t physical_end, int64_t last):
        """Drop keys of records at or after `physical_end`; `last` is the files' newest record."""
        while self.count and self.offsets[self.count - 1] >= physical_end:
            self.count -= 1
        self.last = max(last, self.offsets[self.count - 1] if self.count else -1)

    def chained(self, Py_ssize_t count, pages, int32_t slots, int32_t number, int64_t begin_ms):
        """The entries of the first `count` keys, numbered from `number` on, for the index file `pages`, whose times
        count from `begin_ms`; and how many found their slot empty. The file's first entry counts from the begin that
        the file inherited, and is itself the begin for the others."""
        cdef Pages file = Pages(pages)
        cdef unsigned char *heads = file.at(HEADER_BYTES, <Py_ssize_t> SLOT_BYTES * slots)
        cdef Py_ssize_t row, place
        cdef int bits = 2
        if slots < 1 or not 0 < count <= min(self.count, CHAINED_AT_ONCE):
            raise IndexError(f"{count} of {self.count} keys into {slots} slots")
        cdef bytes raw = bytes(ENTRY_BYTES * count)
        while 1 << bits < 2 * count:
            bits += 1
        cdef int32_t *newest = <int32_t *> calloc(1 << bits, sizeof(int32_t))  # 1 + row of a bucket's newest, hashed
        if newest is NULL:
            raise MemoryError
        cdef unsigned char *at = <unsigned char *> PyBytes_AS_STRING(raw)
        cdef int32_t slot, previous, opened = 0
        cdef int64_t seconds
        for row in range(count):
            slot = self.hashes[row] % slots
            place = (<uint32_t> slot * <uint32_t> 0x9E3779B1) >> (32 - bits)
            while newest[place] and self.hashes[newest[place] - 1] % slots != slot:
                place = place + 1 & (1 << bits) - 1
            if newest[place]:
                previous = number + newest[place] - 1
            else:
                previous = get_i32(heads + SLOT_BYTES * <Py_ssize_t> slot)
                if previous < 0 or previous > number + row:
                    previous = 0
            newest[place] = <int32_t> row + 1
            opened += previous == 0
            seconds = <int64_t> (<uint64_t> self.times[row] - <uint64_t> begin_ms) // 1000
            put_i32(at, self.hashes[row])
            put_i64(at + 4, self.offsets[row])
            put_i32(at + 12, <int32_t> max(0, min(seconds, MAX_TIME_DIFFERENCE_S)) if begin_ms > 0 else 0)
            put_i32(at + 16, previous)
            at += ENTRY_BYTES
            if number == 1 and row == 0:
                begin_ms = self.times[0]
        free(newest)
        return raw, opened

    def lead(self, Py_ssize_t count, pages, int32_t slots, int32_t number):
        """Set the slots of the first `count` keys to their entries, numbered from `number` on."""
        cdef Pages file = Pages(pages, writable=True)
        cdef unsigned char *heads = file.at(HEADER_BYTES, <Py_ssize_t> SLOT_BYTES * slots)
        cdef Py_ssize_t row
        for row in range(min(count, self.count)):
            put_i32(heads + SLOT_BYTES * <Py_ssize_t> (self.hashes[row] % slots), <int32_t> (number + row))

    def bounds(self, Py_ssize_t count):
        """Physical offset and store time of the first of `count` keys, and of the last of them."""
        if not 0 < count <= self.count:
            raise IndexError(f"{count} of {self.count} keys")
        return self.offsets[0], self.times[0], self.offsets[count - 1], self.times[count - 1]

    cdef int reserve(self, Py_ssize_t more) except -1:
        """Have room for `more` keys: adding them cannot fail."""
        cdef Py_ssize_t room = self._room
        if self.count + more > room:
            room = max(64, 2 * room, self.count + more)
            self.hashes = <int32_t *> moved(self.hashes, 4 * room)
            self.offsets = <int64_t *> moved(self.offsets, 8 * room)
            self.times = <int64_t *> moved(self.times, 8 * room)
            self._room = room
        return 0

    cdef void add_all(self, EncodedBatch batch, int64_t physical_offset, int64_t store_time_ms) noexcept:
        """As `add`; there is room for the keys."""
        cdef Py_ssize_t row, key, key_end, first_key = batch.first_hash
        self.needs_room = True
        for row in range(batch.count):
            key_end = batch.rows[row].keys_end
            if physical_offset + batch.rows[row].start - batch.rows[0].start > self.last and key_end > first_key:
                self.last = physical_offset + batch.rows[row].start - batch.rows[0].start
                for key in range(first_key, key_end):
                    self.hashes[self.count] = batch.hashes[key]
                    self.offsets[self.count] = self.last
                    self.times[self.count] = store_time_ms
                    self.count += 1
            self.needs_room = key_end == first_key
            first_key = key_end


cdef void *moved(void *memory, size_t size_bytes) except NULL:
    memory = realloc(memory, size_bytes)
    if memory is NULL:
        raise MemoryError
    return memory

# cython: boundscheck=False, wraparound=False, cdivision=True
"""Columns (docs/format.md, 2): ranges of bytes by the thousand: gathered, searched for properties, split into words,
hashed, and numbered; and how much of all this is in records.

Ranges are starts and sizes (int64 (n,)) of a buffer. Each is compared with the buffer's end when it is used, and read
once: IndexError where one is not inside. An empty one is, wherever it starts. What stands in them may be anything, and
may change meanwhile. Other threads run meanwhile.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

import os

import numpy as np

from engine.record.kernel.guard cimport is_refused
from engine.record.kernel.layout cimport (
    AFTER_HOSTS_BYTES, BORN_HOST_AT, BORN_IPV6_FLAG, BORN_TIME_AT, BYTES_AHEAD, FLAG_AT, INNER_BATCH_FLAGS,
    IPV6_MORE_BYTES, NAME_END, ROWS_AHEAD, STORE_IPV6_FLAG, VALUE_END, bytes_at, find_byte, get_i32, get_i64, java_hash,
    plus, prefetch, put_little_i32,
)
from engine.record.kernel.records cimport Header, Place, find_record, is_whole_at

cdef extern from *:
    """
    static inline uint64_t folded_product(uint64_t one, uint64_t other) {
        unsigned __int128 product = (unsigned __int128) one * other;
        return (uint64_t) product ^ (uint64_t) (product >> 64);
    }
    """
    uint64_t folded_product(uint64_t one, uint64_t other) nogil

cdef enum:
    MOST_NAMES = 8
    SPACE = 32
    SIZE_BYTES = 4
    KNOWN_TEXTS = 64
    MOST_TALLIED = 4096
    HOST_BYTES = 8
    RECORD_NUMBERS = 6
    MOST_AHEAD = 1024

cdef enum:  # names of properties that are columns, in their order
    OF_KEYS, OF_TAG, OF_UNIQUE_KEY, ROLES

NO_LEAD, SIZED = -1, -2
cdef uint64_t SECRET = int.from_bytes(os.urandom(8), "little")  # a publisher can't choose texts with equal hashes


cdef struct Text:
    bytes_at at
    int64_t size


cdef class Ranges:
    """Ranges of a buffer."""

    cdef const unsigned char[::1] data
    cdef const int64_t[:] starts, sizes  # mostly fields of records
    cdef int64_t count

    def __cinit__(self, const unsigned char[::1] data not None, starts not None, sizes not None):
        """ValueError: arrays of another kind, or of different lengths."""
        self.data, self.starts, self.sizes = data, np.asarray(starts), np.asarray(sizes)
        self.count = self.starts.shape[0]
        if self.sizes.shape[0] != self.count:
            raise ValueError("arrays of different lengths")

    cdef inline bint take(self, int64_t row, Text *text) noexcept nogil:
        """Set `text` to a range; whether it is inside."""
        cdef int64_t start = self.starts[row], size = self.sizes[row]
        if row + ROWS_AHEAD < self.count:
            prefetch(&self.data[0] + self.starts[row + ROWS_AHEAD], min(self.sizes[row + ROWS_AHEAD], BYTES_AHEAD))
        if size == 0:
            start = 0
        text.at, text.size = &self.data[0] + start, size
        return 0 <= size <= self.data.shape[0] and 0 <= start <= self.data.shape[0] - size

    cdef int64_t total(self, int64_t item_bytes) except -1:
        """The number of items of that size that the ranges fill. IndexError: a size is invalid."""
        cdef int64_t row, found = 0
        with nogil:
            for row in range(self.count):
                if not 0 <= self.sizes[row] <= self.data.shape[0]:
                    break
                found += self.sizes[row] if item_bytes == 1 else (self.sizes[row] + item_bytes - 1) // item_bytes
            else:
                row = self.count
        self.require(row)
        return found

    cdef int require(self, int64_t done) except -1:
        """IndexError unless all were inside: `done` is where a loop ended."""
        if done < self.count:
            raise IndexError(f"[{self.starts[done]}, + {self.sizes[done]}) of {self.data.shape[0]} bytes")
        return 0


def gather(data, starts, sizes, int lead=NO_LEAD, target=None):
    """Write the ranges one after the other to `target`, or to an array of that size: (offsets where they begin and
    where all end, int64 (n + 1,); the array, uint8).

    Before each stands the byte `lead`, or with SIZED its size, i32 little-endian. IndexError: no room.
    """
    cdef Ranges ranges = Ranges(data, starts, sizes)
    cdef int64_t gap = 0 if lead == NO_LEAD else SIZE_BYTES if lead == SIZED else 1
    if target is None:
        target = np.empty(ranges.total(1) + gap * ranges.count, np.uint8)
    found = np.empty(ranges.count + 1, np.int64)
    cdef unsigned char[::1] packed = target
    cdef int64_t[::1] offsets = found
    cdef int64_t row, at = 0, room = packed.shape[0]
    cdef Text text
    with nogil:
        for row in range(ranges.count):
            offsets[row] = at
            if not ranges.take(row, &text) or text.size > room - gap - at:
                break
            if gap == SIZE_BYTES:
                put_little_i32(&packed[at], <int32_t> text.size)
            elif gap:
                packed[at] = <unsigned char> lead
            memcpy(&packed[at + gap], text.at, text.size)
            at += gap + text.size
        else:
            row = ranges.count
    ranges.require(row)
    offsets[row] = at
    return found, target


cdef inline bint next_item(bytes_at *at, bytes_at end, Text *name, Text *value) noexcept nogil:
    """Set `name` and `value` to the next property that has both, and `at` to its end; False without one."""
    cdef bytes_at begin, name_end, item_end
    while at[0] < end:
        begin, item_end = at[0], find_byte(at[0], end, VALUE_END)
        name_end = find_byte(begin, item_end, NAME_END)
        at[0] = item_end + 1
        if name_end > begin and item_end - name_end > 1:
            name.at, name.size = begin, name_end - begin
            value.at, value.size = name_end + 1, item_end - name_end - 1
            return True
    return False


cdef inline bint is_name(bytes_at at, Text name) noexcept nogil:
    return name.size > 0 and at[0] == name.at[0] and memcmp(at, name.at, name.size) == 0


def find_values(data, starts, sizes, names):
    """Where the values of up to 8 named properties are, in ranges that are records' properties: int64
    (names, 2, n), starts and sizes; 0 and 0 when absent or empty. The last of equals wins."""
    cdef Ranges ranges = Ranges(data, starts, sizes)
    cdef Text[MOST_NAMES] wanted
    cdef list kept = list(map(bytes, names))
    cdef int number, number_of_names = len(kept)
    if number_of_names > MOST_NAMES:
        raise ValueError(f"more than {MOST_NAMES} names")
    for number in range(number_of_names):
        wanted[number].at, wanted[number].size = <bytes> kept[number], len(kept[number])
    places = np.zeros((number_of_names, 2, ranges.count), np.int64)
    cdef int64_t[:, :, ::1] found = places
    cdef int64_t row
    cdef bytes_at at, end, item_end, value, begin = &ranges.data[0]
    cdef Text text
    with nogil:
        for row in range(ranges.count):
            if not ranges.take(row, &text):
                break
            at, end = text.at, text.at + text.size
            while at < end:
                item_end = find_byte(at, end, VALUE_END)
                for number in range(number_of_names):
                    value = at + wanted[number].size + 1
                    if value < item_end and (value - 1)[0] == NAME_END and is_name(at, wanted[number]):
                        found[number, 0, row], found[number, 1, row] = value - begin, item_end - value
                at = item_end + 1
        else:
            row = ranges.count
    ranges.require(row)
    return places


cdef inline uint64_t hash_of(Text text) noexcept nogil:
    cdef uint64_t word, found = SECRET ^ <uint64_t> text.size
    while text.size >= 8:
        memcpy(&word, text.at, 8)
        found = folded_product(found ^ <uint64_t> 0x9E3779B97F4A7C15, word ^ SECRET)
        text.at, text.size = text.at + 8, text.size - 8
    word = 0
    memcpy(&word, text.at, text.size)
    return folded_product(found ^ <uint64_t> 0xC2B2AE3D27D4EB4F, word ^ SECRET)


cdef inline bint are_equal(Text one, Text other) noexcept nogil:
    return one.size == other.size and memcmp(one.at, other.at, one.size) == 0


cdef class Numbering:
    """Numbers distinct texts in the order of their first occurrences. The texts' memory must stay in place."""

    cdef Text *texts  # by number
    cdef int32_t *slots  # a hash table of numbers, -1 where none is, at most half full
    cdef int64_t count, mask
    cdef int32_t last
    cdef int32_t[KNOWN_TEXTS] followers  # of each of the first texts, which came after it the last time

    def __cinit__(self):
        self.mask = KNOWN_TEXTS - 1
        if not self.double():
            raise MemoryError

    def __dealloc__(self):
        free(self.texts)
        free(self.slots)

    cdef inline int32_t number(self, Text text) noexcept nogil:
        """The number of a text; -1: there is no memory for another one."""
        cdef int32_t code = self.followers[self.last]
        cdef int64_t slot
        if code >= self.count or not are_equal(text, self.texts[code]):  # a rare case
            slot = self.slot_of(text)
            if self.slots[slot] < 0:
                if 2 * self.count > self.mask:
                    if not self.double():
                        return -1
                    slot = self.slot_of(text)
                self.texts[self.count] = text
                self.slots[slot] = <int32_t> self.count
                self.count += 1
            code = self.slots[slot]
        if code < KNOWN_TEXTS:
            self.followers[self.last] = code
            self.last = code
        return code

    cdef inline int64_t slot_of(self, Text text) noexcept nogil:
        """Where a text's number is in the table, or is to be."""
        cdef int64_t slot = hash_of(text) & self.mask
        while self.slots[slot] >= 0 and not are_equal(text, self.texts[self.slots[slot]]):
            slot = (slot + 1) & self.mask
        return slot

    cdef bint double(self) noexcept nogil:
        """Make the table twice as long; False: no memory."""
        cdef int64_t size = 2 * (self.mask + 1), code
        cdef Text *texts = <Text *> realloc(self.texts, (size // 2 + 1) * sizeof(Text))
        cdef int32_t *slots = <int32_t *> malloc(size * sizeof(int32_t))
        self.texts = self.texts if texts == NULL else texts
        if texts == NULL or slots == NULL:
            free(slots)
            return False
        free(self.slots)
        memset(slots, 0xFF, size * sizeof(int32_t))
        self.slots, self.mask = slots, size - 1
        for code in range(self.count):
            slots[self.slot_of(texts[code])] = <int32_t> code
        return True


def split_items(data, starts, sizes):
    """The properties in ranges that are records' properties, in stored order: (rows' items, int64 (n + 1,): row i has
    the items [rows[i], rows[i + 1]); the number of each item's name, int32; starts and sizes of the names, int64
    (2, names); the values one after the other, as `gather` returns them)."""
    cdef Ranges ranges = Ranges(data, starts, sizes)
    cdef Numbering names = Numbering()
    cdef int64_t most = ranges.total(4)  # a\1b\2c\1d
    row_starts, codes = np.empty(ranges.count + 1, np.int64), np.empty(most, np.int32)
    offsets, values = np.empty(most + 1, np.int64), np.empty(ranges.total(1), np.uint8)
    cdef int64_t[::1] firsts = row_starts, value_starts = offsets
    cdef int32_t[::1] found = codes
    cdef unsigned char[::1] packed = values
    cdef int64_t row, count = 0, size = 0
    cdef int32_t code = 0
    cdef bytes_at at, end
    cdef Text text, name, value
    with nogil:
        for row in range(ranges.count):
            firsts[row] = count
            if not ranges.take(row, &text):
                break
            at, end = text.at, text.at + text.size
            while count < most and next_item(&at, end, &name, &value):
                code = names.number(name)
                if code < 0 or value.size > packed.shape[0] - size:
                    break
                found[count], value_starts[count] = code, size
                memcpy(&packed[size], value.at, value.size)
                count, size = count + 1, size + value.size
            if code < 0:
                break
        else:
            row = ranges.count
    if code < 0:
        raise MemoryError
    ranges.require(row)
    firsts[row], value_starts[count] = count, size
    places = np.empty((2, names.count), np.int64)
    for code in range(names.count):
        places[:, code] = names.texts[code].at - &ranges.data[0], names.texts[code].size
    return row_starts, codes[:count], places, (offsets[: count + 1], values[:size])


def last_of_equals(const int64_t[::1] row_starts not None, const int32_t[::1] codes not None, int64_t different):
    """Which items no later one of their row has the code of (below `different`): bool. Row i has the items
    [row_starts[i], row_starts[i + 1])."""
    found, rows_seen = np.empty(codes.shape[0], np.bool_), np.full(different, -1, np.int64)
    cdef unsigned char[::1] is_last = found.view(np.uint8)
    cdef int64_t[::1] seen = rows_seen
    cdef int64_t row, item, code, items = codes.shape[0], rows = row_starts.shape[0] - 1
    if rows < 0 or row_starts[0] != 0 or row_starts[rows] != items:
        raise ValueError("rows of other items")
    item = items
    with nogil:
        for row in range(rows - 1, -1, -1):
            while item > row_starts[row] and item > 0:
                item -= 1
                code = codes[item]
                if not 0 <= code < different:
                    with gil:
                        raise IndexError(f"code {code} of {different}")
                is_last[item] = seen[code] != row
                seen[code] = row
    return found


def words(data, starts, sizes, whole_starts, whole_sizes):
    """The words of texts, parted by spaces: (row of the text, start, size), in order, int64 (3, words). Before those of
    a row comes, as one word, what `whole_starts` and `whole_sizes` say, unless it is empty."""
    cdef Ranges ranges = Ranges(data, starts, sizes), wholes = Ranges(data, whole_starts, whole_sizes)
    if wholes.count != ranges.count:
        raise ValueError("arrays of different lengths")
    cdef int64_t row, count = 0, most = ranges.count + ranges.total(2)
    places = np.empty((3, most), np.int64)
    cdef int64_t[:, ::1] found = places
    cdef bytes_at at, end, word_end, begin = &ranges.data[0]
    cdef Text text, whole
    with nogil:
        for row in range(ranges.count):
            if not wholes.take(row, &whole) or not ranges.take(row, &text):
                break
            if whole.size and count < most:
                found[0, count], found[1, count], found[2, count] = row, whole.at - begin, whole.size
                count += 1
            at, end = text.at, text.at + text.size
            while at < end and count < most:
                word_end = find_byte(at, end, SPACE)
                if word_end > at:
                    found[0, count], found[1, count], found[2, count] = row, at - begin, word_end - at
                    count += 1
                at = word_end + 1
        else:
            row = ranges.count
    ranges.require(row)
    return places[:, :count]


def java_hashes(data, starts, sizes, const uint32_t[::1] seeds):
    """Java's hashes of UTF-8 texts (uint32 (n,)), each going on from its seed, if there are any; and the rows of those
    that are no UTF-8, whose hashes are their seeds."""
    cdef Ranges ranges = Ranges(data, starts, sizes)
    if seeds is not None and seeds.shape[0] != ranges.count:
        raise ValueError("arrays of different lengths")
    hashes, odd_rows = np.empty(ranges.count, np.uint32), np.empty(ranges.count, np.int64)
    cdef uint32_t[::1] found = hashes
    cdef int64_t[::1] odd = odd_rows
    cdef int64_t row, count = 0
    cdef Text text
    with nogil:
        for row in range(ranges.count):
            if not ranges.take(row, &text):
                break
            found[row] = 0 if seeds is None else seeds[row]
            if java_hash(text.at, text.size, &found[row]) < 0:
                odd[count] = row
                count += 1
        else:
            row = ranges.count
    ranges.require(row)
    return hashes, odd_rows[:count]


def number(data, starts, sizes, int64_t most):
    """Number the texts that differ, in the order in which they come first: (the number of each, int32 (n,); the rows of
    the first ones, int64); None when more than `most` differ."""
    cdef Ranges ranges = Ranges(data, starts, sizes)
    cdef Numbering numbering = Numbering()
    most = max(min(most, ranges.count), 0)
    codes, first_rows = np.empty(ranges.count, np.int32), np.empty(most, np.int64)
    cdef int64_t row, count = 0
    cdef int32_t code = 0
    cdef int32_t[::1] found = codes
    cdef int64_t[::1] firsts = first_rows
    cdef Text text
    with nogil:
        for row in range(ranges.count):
            if not ranges.take(row, &text):
                break
            code = numbering.number(text)
            if code < 0 or code >= most:
                break
            if code == count:
                firsts[count] = row
                count += 1
            found[row] = code
        else:
            row = ranges.count
    if code < 0:
        raise MemoryError
    if count < numbering.count:
        return None
    ranges.require(row)
    return codes, first_rows[:count]


cdef class Tally(Numbering):
    """Numbers texts, and counts how often each comes."""

    cdef int64_t[MOST_TALLIED] times

    cdef inline int32_t add(self, Text text) noexcept nogil:
        """Count a text: its number; -1: too many differ."""
        cdef uint64_t code = <uint64_t> self.number(text)  # unsigned, so that no compiler thinks of a negative index
        if code >= MOST_TALLIED:
            return -1
        self.times[code] += 1
        return <int32_t> code

    cdef list found(self):
        """(text, how often it came) of each."""
        cdef int64_t code
        return [(self.texts[code].at[: self.texts[code].size], self.times[code]) for code in range(self.count)]


cdef inline bint is_ascii(bytes_at at, bytes_at end) noexcept nogil:
    cdef uint64_t word, found = 0
    while end - at >= 8:
        memcpy(&word, at, 8)
        found |= word
        at += 8
    while at < end:
        found |= at[0]
        at += 1
    return found & <uint64_t> 0x8080808080808080 == 0


cdef inline int64_t count_words(bytes_at at, bytes_at end, int64_t *size) noexcept nogil:
    """The number of words of a text; their bytes are added to `size`."""
    cdef int64_t count = 0
    cdef bytes_at word_end
    while at < end:
        word_end = find_byte(at, end, SPACE)
        if word_end > at:
            count += 1
            size[0] += word_end - at
        at = word_end + 1
    return count


cdef class Outliner:
    """Counts and sums what is in records."""

    cdef Tally names, tags, born_hosts, store_hosts
    cdef Text[ROLES] roles
    cdef int[KNOWN_TEXTS] role_of  # each name; ROLES: none
    cdef bint are_tags_few
    cdef int64_t most_tags, bodies, keys, key_bytes, keyless, tag_bytes, unique_bytes, items, itemless, value_bytes
    cdef int64_t[RECORD_NUMBERS] least, greatest

    def __cinit__(self, list names not None, int64_t most_tags):
        cdef int number
        if len(names) != ROLES:
            raise ValueError(f"not {ROLES} names")
        for number in range(ROLES):
            self.roles[number] = Text(<bytes> names[number], len(names[number]))
        self.names, self.tags, self.born_hosts, self.store_hosts = Tally(), Tally(), Tally(), Tally()
        self.are_tags_few, self.most_tags = True, most_tags
        for number in range(RECORD_NUMBERS):
            self.least[number], self.greatest[number] = INT64_MAX, INT64_MIN

    cdef int role(self, Text name) noexcept nogil:
        cdef int number
        for number in range(ROLES):
            if are_equal(name, self.roles[number]):
                return number
        return ROLES

    cdef inline bint add_properties(self, bytes_at at, bytes_at end) noexcept nogil:
        """Add those of a record; False: too many names differ, or two are equal."""
        cdef uint64_t seen = 0
        cdef int64_t words = 0
        cdef int32_t code
        cdef int role
        cdef Text name, value, tag = Text(at, 0)
        self.itemless += 1
        while next_item(&at, end, &name, &value):
            code = self.names.add(name)
            if not 0 <= code < KNOWN_TEXTS or seen >> code & 1:
                return False
            self.itemless -= seen == 0
            seen |= <uint64_t> 1 << code
            self.items, self.value_bytes = self.items + 1, self.value_bytes + value.size
            if self.names.times[code] == 1:
                self.role_of[code] = self.role(name)
            role = self.role_of[code]
            if role == OF_KEYS:
                words = count_words(value.at, value.at + value.size, &self.key_bytes)
            elif role == OF_TAG:
                tag = value
            elif role == OF_UNIQUE_KEY:
                self.unique_bytes += value.size
        self.keys, self.keyless = self.keys + words, self.keyless + (words == 0)
        self.tag_bytes += tag.size
        self.are_tags_few = self.are_tags_few and self.tags.add(tag) >= 0 and self.tags.count <= self.most_tags
        return True

    cdef inline bint add_fixed(self, bytes_at record, bytes_at body, const Header *header) noexcept nogil:
        """Add the fixed fields of a record; False: too many hosts differ."""
        cdef Text born = Text(record + BORN_HOST_AT, HOST_BYTES), store
        cdef int64_t[RECORD_NUMBERS] numbers
        cdef int number
        born.size += IPV6_MORE_BYTES if header.sys_flag & BORN_IPV6_FLAG else 0
        store.size = HOST_BYTES + (IPV6_MORE_BYTES if header.sys_flag & STORE_IPV6_FLAG else 0)
        store.at = body - AFTER_HOSTS_BYTES - store.size
        numbers[0], numbers[1] = header.physical_offset, get_i64(record + BORN_TIME_AT)
        numbers[2], numbers[3] = header.store_time_ms, get_i32(record + FLAG_AT)
        numbers[4], numbers[5] = header.sys_flag, get_i32(body - AFTER_HOSTS_BYTES)
        for number in range(RECORD_NUMBERS):
            self.least[number] = min(self.least[number], numbers[number])
            self.greatest[number] = max(self.greatest[number], numbers[number])
        return self.born_hosts.add(born) >= 0 and self.store_hosts.add(store) >= 0

    def found(self):
        return (
            [(self.least[number], self.greatest[number]) for number in range(RECORD_NUMBERS)],
            self.bodies, (self.keys, self.key_bytes, self.keyless), self.tag_bytes, self.unique_bytes,
            (self.items, self.value_bytes, self.itemless), self.names.found(),
            self.tags.found() if self.are_tags_few else None, self.born_hosts.found(), self.store_hosts.found(),
        )


def outline(
    const unsigned char[::1] log not None, int64_t base, const int64_t[::1] physical_offsets not None, bytes topic,
    int64_t queue_id, int64_t first, bint is_ledger, names, int64_t most_tags,
):
    """How much is in the records at `physical_offsets` of `log`, which is at `base`; they are of the queue offsets from
    `first` on. `names` are those of the properties with keys, tag and unique key; up to `most_tags` tags are told.

    (least and greatest physical offset, time of birth and of the store, flag, system flag, reconsume times; bytes of
    bodies; (number, bytes, rows without) of keys; bytes of tags; of unique keys; (number, bytes of values, rows
    without) of properties; different names; tags, or None; hosts of birth; of the store). Different texts come with how
    often each does. None unless each record is whole and of its slot, without compression, batches, property texts
    that are not ASCII, two equal names, more than 64 different names, or thousands of hosts.
    """
    cdef list kept = list(map(bytes, names))
    cdef Outliner found = Outliner(kept, most_tags)
    cdef int64_t next_at, size, row, count = physical_offsets.shape[0], at, end = log.shape[0], topic_size = len(topic)
    cdef const char *name = topic
    cdef bytes_at properties
    cdef Header header
    cdef Place place
    with nogil:
        for row in range(count):
            if row + ROWS_AHEAD < count:
                next_at = physical_offsets[row + ROWS_AHEAD]
                size = plus(next_at, -physical_offsets[row + ROWS_AHEAD - 1])  # mostly that of the record before
                prefetch(&log[0] + plus(next_at, -base), min(max(size, BYTES_AHEAD), MOST_AHEAD))
            at = plus(physical_offsets[row], -base)
            if not find_record(
                &log[0], end, at, physical_offsets[row], False, is_ledger, True, &header, &place
            ) or header.body_size < 0 or header.sys_flag & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS:
                break
            properties = &log[place.properties_start]
            if not (
                is_whole_at(&log[0], &header, &place, name, topic_size, queue_id, plus(first, row))
                and is_ascii(properties, properties + place.properties_size)
                and found.add_properties(properties, properties + place.properties_size)
                and found.add_fixed(&log[at], &log[place.body_start], &header)
            ) or is_refused(&log[at], header.store_size):
                break
            found.bodies += place.body_size
        else:
            row = count
    return found.found() if row == count else None

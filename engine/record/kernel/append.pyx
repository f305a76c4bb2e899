"""Append: one record behind the last one of a mapped log, its entry and its keys (docs/format.md, 2, 3, 5).

Here is what happens each time. Whatever is rare is left to the Python around it: rolling to another file, a write
buffer, a long record, one that may be forged, a transaction, a queue without a file, a full memtable.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from engine.record.kernel.encode cimport EncodedBatch
from engine.record.kernel.keys cimport KeyMemtable
from engine.record.kernel.layout cimport QUEUE_OFFSET_AT, SYS_FLAG_AT, put_entry, put_i64
from engine.record.kernel.pages cimport Pages

cdef extern from * nogil:
    """
    #define in_this_order() __atomic_thread_fence(__ATOMIC_RELEASE)
    """
    void in_this_order()

cdef extern from "<time.h>" nogil:
    struct timespec:
        int64_t tv_sec
        int64_t tv_nsec
    int CLOCK_REALTIME
    int clock_gettime(int clock, timespec *now)

cdef enum:
    HEAD_BYTES = 8  # what a record shows itself by is written last; and what stays free behind it
    ENTRY_BYTES = 20
    LONG_BYTES = 64 << 10  # from there on a system call writes it, while other threads run
    UNQUEUED_FLAG = 0x4  # of the system flag: a transaction that is prepared or rolled back


def wall_clock_ms():
    """The time of day in epoch milliseconds."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return now.tv_sec * 1000 + now.tv_nsec // 1_000_000


cdef class FilePositions:
    """Where the data of a mapped file ends, and the memory that its writer writes to. One thread at a time writes."""

    @property
    def _target(self):
        """The whole file for writing, None until that was made ready."""
        return self._memory

    @_target.setter
    def _target(self, memory):
        self._memory = memory
        self.pages = None if memory is None else Pages(memory, writable=True)

    cdef bint takes(self, Py_ssize_t size):
        """Whether so many bytes may be written at `wrote`, and are readable then."""
        return (
            self.pages is not None
            and self._buffer is None
            and 0 <= self.wrote <= min(self.size, self.pages.size) - size
        )


cdef class QueueEnd:
    """Where a consume queue ends: the next queue offset, the newest record's physical offset and its end, and the file
    that the next entry goes to, None until that was made ready."""

    def __init__(self, topic, queue_id):
        self.topic = topic
        self.queue_id = queue_id

    def add_entry(self, int64_t queue_offset, int64_t physical_offset, int32_t size, int64_t tags_code):
        """Append an entry; False, and nothing is done, when something about that is rare."""
        if queue_offset != self._max or not self.takes_entry(physical_offset):
            return False
        self.put_entry(physical_offset, size, tags_code)
        return True

    cdef bint takes_entry(self, int64_t physical_offset):
        cdef FilePositions file = self._appended_to
        return (
            file is not None
            and file.takes(ENTRY_BYTES)
            and file.start + file.wrote == ENTRY_BYTES * self._max
            and physical_offset >= self._physical_end
        )

    cdef void put_entry(self, int64_t physical_offset, int32_t size, int64_t tags_code) noexcept:
        cdef FilePositions file = self._appended_to
        put_entry(file.pages.data + file.wrote, physical_offset, size, tags_code)
        in_this_order()
        file.wrote += ENTRY_BYTES
        file.readable = file.wrote
        self._newest, self._physical_end = physical_offset, physical_offset + size
        self._max += 1


cdef class LogEnd:
    """Where a commit log ends: its newest file, when its newest record was stored, and who is told where the next one
    will be, before it is there."""

    def __init__(self, clock, FilePositions current):
        self._clock = clock
        self._current = current


def append_one(LogEnd log not None, EncodedBatch record not None, QueueEnd queue, KeyMemtable keys not None, type kind):
    """Store a single record with its entry and its keys; where it went: (topic, queue id, queue offset, physical
    offset, size, store time, store host) as a `kind` of tuple. `placing` is told before that is there. None when
    something about it is rare: then nothing was done. Call it under the log's lock."""
    if not is_usual(log, record, queue, keys):
        return None
    cdef int64_t now_ms = log._clock()
    cdef int64_t store_time_ms = max(now_ms, log.last_store_time_ms)
    cdef FilePositions file = log._current
    cdef int64_t physical_offset = file.start + file.wrote
    place = (queue.topic, queue.queue_id, queue._max, physical_offset)
    stored = tuple.__new__(kind, (*place, record.size, store_time_ms, record.store_host))
    keys.reserve(record.hash_count)
    if log.placing is not None:
        log.placing(physical_offset)
    if not is_usual(log, record, queue, keys):  # another thread may have evicted a file meanwhile
        return None
    # from here on nothing can fail, and no other thread runs
    cdef unsigned char *at = file.pages.data + file.wrote
    put_i64(record.data + QUEUE_OFFSET_AT, queue._max)
    record.put_row(0, physical_offset, store_time_ms)
    memcpy(at + HEAD_BYTES, record.data + HEAD_BYTES, record.size - HEAD_BYTES)
    in_this_order()
    memcpy(at, record.data, HEAD_BYTES)
    in_this_order()
    file.wrote += record.size
    file.readable = file.wrote
    log.last_store_time_ms = store_time_ms  # after publishing: who reads it, then flushes, has flushed that record
    queue.put_entry(physical_offset, <int32_t> record.size, record.rows[0].tags_code)
    keys.add_all(record, physical_offset, store_time_ms)
    return stored


cdef bint is_usual(LogEnd log, EncodedBatch record, QueueEnd queue, KeyMemtable keys):
    """Whether nothing about this append is rare."""
    cdef FilePositions file = log._current
    if file is None or not file.takes(record.size + HEAD_BYTES):
        return False
    if record.count != 1 or record.size >= LONG_BYTES:
        return False
    if record.names_magic or record.places or record.data[SYS_FLAG_AT + 3] & UNQUEUED_FLAG:
        return False
    if queue is None or queue.is_stale or queue.pending or not queue.takes_entry(file.start + file.wrote):
        return False
    return keys.count + record.hash_count < keys.settles_at

"""Append: one record behind the last one of a mapped log, its entry and its keys (docs/format.md, 2, 3, 5).

Here is what happens each time. Whatever is rare is left to the Python around it: rolling to another file, a write
buffer, a long record, one that may be forged, a transaction, a queue without a file, a full memtable.
"""

from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset

from msgspec.structs import astuple

from engine.errors import RefusedReadError, UnreadableRangeError
from engine.record.kernel.encode cimport EncodedBatch, Encoder, Row, Rows, has_any, rows_of
from engine.record.kernel.files cimport FilePositions, Mapped, refusal_of
from engine.record.kernel.guard cimport is_refused, touch
from engine.record.kernel.keys cimport KeyMemtable
from engine.record.kernel.layout cimport (
    QUEUE_OFFSET_AT, SYS_FLAG_AT, UNQUEUED_FLAG, bytes_at, get_i32, get_i64, put_entry, put_i64,
)

cdef extern from * nogil:
    """
    #define in_this_order() __atomic_thread_fence(__ATOMIC_RELEASE)
    """
    void in_this_order()

cdef extern from "Python.h":
    object PyType_GenericAlloc(type kind, Py_ssize_t items)

cdef extern from "<time.h>" nogil:
    struct timespec:
        int64_t tv_sec
        int64_t tv_nsec
    int CLOCK_REALTIME
    int clock_gettime(int clock, timespec *now)

cdef enum:
    HEAD_BYTES = 8  # a record's head, which is written last, and the space that stays free after the record
    ENTRY_BYTES = 20
    LONG_BYTES = 64 << 10  # longer records are written by a system call, while other threads run
    NO_BLOCK = -1
    MOST_TEXT_BLOCKS = 1 << 17  # which nobody takes: of 134 million messages

cpdef enum:
    BLOCK_MESSAGES = 1024  # of an offset index (13)


cpdef int64_t wall_clock_ms():
    """The time of day in epoch milliseconds."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return now.tv_sec * 1000 + now.tv_nsec // 1_000_000


_WALL_CLOCK = wall_clock_ms


cdef int64_t time_of(clock) except? -1:
    return wall_clock_ms() if clock is _WALL_CLOCK else clock()


cdef Entry entry_of(tuple entry) except *:
    return Entry(entry[0], entry[1], entry[2])


cdef class QueueEnd:
    """Where a consume queue ends: the next queue offset, the newest record's physical offset and its end, and the file
    that the next entry goes to, None until that was made ready; and which entries may be read.

    `text_blocks` are blocks of its text that were noted whole, by number, for whoever takes them: physical offsets of
    the first and the last record, and bytes of text."""

    def __init__(self, topic, queue_id, FilesByStart files not None):
        self.topic = topic
        self.queue_id = queue_id
        self.files = files
        self.text_blocks = {}
        self._text_next = NO_BLOCK

    @property
    def min_offset(self):
        """Queue offset of the first message at or after the log's start; max_offset when there is none."""
        cdef tuple known = self._min  # min_offset; for which log's begin; max_offset if all expired
        if known is None or known[1] != self._min_physical or (known[2] != -1 and known[2] != self._max):
            return self._find_min_offset()
        return known[0]

    def entry(self, queue_offset):
        """(physical_offset, size, tags_code); None outside [min_offset, max_offset)."""
        return self._raw(queue_offset) if self.min_offset <= queue_offset < self._max else None

    def _raw(self, int64_t queue_offset):
        cdef Entry entry = self.stored(queue_offset)
        return entry.physical_offset, entry.size, entry.tags_code

    cdef bint has(self, int64_t queue_offset) except -1:
        return <int64_t> self.min_offset <= queue_offset < self._max

    cdef bint is_mapped(self, int64_t queue_offset) except -1:
        """Whether the file of that entry is mapped."""
        cdef FilePositions file = self.files.file_of(ENTRY_BYTES * queue_offset)
        return file is not None and file._mapped is not None

    cdef Entry stored(self, int64_t queue_offset) except *:
        """An entry that a file has, expired or not. UnreadableRangeError, TruncatedFileError, RetiredFileError,
        RefusedReadError."""
        cdef FilePositions file = self.files.file_of(ENTRY_BYTES * queue_offset)
        if file is None:
            raise UnreadableRangeError(
                self.files.directory, ENTRY_BYTES * queue_offset, ENTRY_BYTES, self.files.max_offset
            )
        cdef int64_t position = ENTRY_BYTES * queue_offset - file.start
        cdef Mapped mapped
        try:
            mapped = file.map_with(position, ENTRY_BYTES)
        except RefusedReadError as error:
            return entry_of(self.made_again(queue_offset, error))
        cdef bytes_at at = mapped.pages.data + position
        cdef Entry entry = Entry(get_i64(at), get_i32(at + 8), get_i64(at + 12))
        if is_refused(at, ENTRY_BYTES):
            return entry_of(self.made_again(queue_offset, refusal_of(at, ENTRY_BYTES)))
        return entry

    def add_entry(self, int64_t queue_offset, int64_t physical_offset, int32_t size, int64_t tags_code):
        """Append an entry; False, and nothing is done, in rare cases."""
        if queue_offset != self._max or not self.takes_entry(physical_offset):
            return False
        self.put_entry(physical_offset, size, tags_code)
        return True

    cdef bint takes_entry(self, int64_t physical_offset):
        cdef FilePositions file = self._appended_to
        if file is None or not file.takes(ENTRY_BYTES):
            return False
        if file.start + file.wrote != ENTRY_BYTES * self._max or physical_offset < self._physical_end:
            return False
        touch(file.pages.data + file.wrote, ENTRY_BYTES)  # now, while an error can be answered
        return not is_refused(file.pages.data + file.wrote, ENTRY_BYTES)

    cdef void put_entry(self, int64_t physical_offset, int32_t size, int64_t tags_code) noexcept:
        cdef FilePositions file = self._appended_to
        put_entry(file.pages.data + file.wrote, physical_offset, size, tags_code)
        in_this_order()
        file.wrote += ENTRY_BYTES
        file.readable = file.wrote
        self._newest, self._physical_end = physical_offset, physical_offset + size
        self._max += 1

    def note_batch(self, EncodedBatch batch not None, rows, int64_t queue_offset, int64_t physical_offset):
        """Note the text of a slice of rows of a batch that is in the log there, at queue offsets from that on."""
        cdef Rows chosen = rows_of(rows, batch.count)
        cdef Row row
        while chosen.first < chosen.after:
            row = batch.rows[chosen.first]
            self.note_text(queue_offset, physical_offset + row.start - batch.rows[0].start, row.text_bytes)
            queue_offset += 1
            chosen.first += chosen.step

    def note_texts(
        self, int64_t queue_offset, const int64_t[::1] physical_offsets not None, const int64_t[::1] sizes not None
    ):
        """Note the bytes of text, -1 for unknown, of the records there, at queue offsets from that on."""
        cdef Py_ssize_t row
        if sizes.shape[0] != physical_offsets.shape[0]:
            raise ValueError("arrays of different lengths")
        for row in range(sizes.shape[0]):
            self.note_text(queue_offset + row, physical_offsets[row], sizes[row])

    def forget_texts(self):
        """Forget the noted sizes."""
        self.text_blocks.clear()
        self._text_next = NO_BLOCK

    cdef void note_text(self, int64_t queue_offset, int64_t physical_offset, int64_t text_bytes) noexcept:
        """A block counts if all of its messages are noted in their order."""
        if queue_offset % BLOCK_MESSAGES == 0:
            self._text_begin, self._text_bytes = physical_offset, 0
        elif queue_offset != self._text_next:
            return
        if text_bytes < 0:
            self._text_next = NO_BLOCK
            return
        self._text_bytes += text_bytes
        self._text_next = queue_offset + 1
        if self._text_next % BLOCK_MESSAGES == 0 and len(self.text_blocks) < MOST_TEXT_BLOCKS:
            self.text_blocks[queue_offset // BLOCK_MESSAGES] = self._text_begin, physical_offset, self._text_bytes


cdef class LogEnd:
    """Where a commit log ends: its newest file, when its newest record was stored, and who is told where the next one
    will be, before it is there."""

    def __init__(self, clock, FilePositions current):
        self._clock = clock
        self._current = current


cdef class DispatchEnd:
    """What was dispatched last, and `touched`, the queues that got entries since somebody emptied it. Unless `at_once`,
    what is stored is dispatched later."""

    def __init__(self, index, appended, newest, type kind not None):
        """`index` has the memtable of keys; `appended` is called with each queue that has new messages; `kind` is what
        `append_one` makes."""
        self._index, self._appended, self._newest, self._kind = index, appended, newest, kind
        self.at_once = True
        self.touched = set()

    cdef append(self, LogEnd log, EncodedBatch record, QueueEnd queue):
        """Store and dispatch one record. None, and nothing is done, in rare cases."""
        if not self.at_once:
            return None
        stored = append_one(log, record, queue, self._index.memtable, self._kind)
        if stored is not None:
            self.touched.add(queue)
            self._newest = stored
            self._appended(queue.topic, queue.queue_id)
        return stored


cdef class PutEnd:
    """Puts single messages; counts what was put. What is special about one is left to `_put_unusual`, where no queue
    is known, and to `_append`, under the log's lock."""

    def __init__(
        self, Encoder encoder not None, LogEnd log not None, lock, dict by_key not None, DispatchEnd dispatcher not None,
        clock, refusal, tuple special not None, set unwritable not None,
    ):
        """`by_key` are the queues by topic and id, `special` the names of properties that change where or how a message
        is stored; `refusal.error` says why nothing may be written, `unwritable` are the topics that take no messages."""
        self._encoder, self._log, self._by_key, self._dispatcher = encoder, log, by_key, dispatcher
        self._acquire, self._release = lock.acquire, lock.release
        self._clock, self._refusal, self._special = clock, refusal, special
        self._unwritable = unwritable

    def put(self, message, queue_id, QueueEnd queue=None):
        """Store one message. `queue` is the queue of `queue_id`, if it was looked up already."""
        cdef tuple fields = astuple(message)
        if queue is None:
            queue = self._by_key.get((fields[0], queue_id))
        if queue is None or has_any(fields[4], self._special) or (self._unwritable and fields[0] in self._unwritable):
            return self._put_unusual(message, queue_id, queue)
        return self.store(message, self._encoder.encoded(fields, queue_id, time_of(self._clock)), queue_id, queue)

    def is_special(self, properties):
        """Whether any of them is special."""
        return has_any(properties, self._special)

    def put_record(self, message, EncodedBatch record not None, queue_id, QueueEnd queue):
        """Store an encoded message; `queue` None: one is chosen."""
        return self.store(message, record, queue_id, queue)

    cdef store(self, message, EncodedBatch record, queue_id, QueueEnd queue):
        if queue is None or queue.is_stale:
            self._make_topic(message.topic)
        self._acquire()
        try:
            if self._refusal.error is not None:
                self._refusal.require_none()
            stored = self._dispatcher.append(self._log, record, queue)
            if stored is None:
                stored = self._append(message, record, queue, queue_id)
        finally:
            self._release()
        self.messages += 1
        self.bytes += record.size
        return stored


cpdef append_one(LogEnd log, EncodedBatch record, QueueEnd queue, KeyMemtable keys, type kind):
    """Store a single record with its entry and its keys; where it went: (topic, queue id, queue offset, physical
    offset, size, store time, store host) as a `kind` of tuple. `placing` is told before that is there. None when
    something about it is rare: then nothing was done. Call it under the log's lock. RefusedReadError,
    TruncatedFileError: the disk refused the log's page, and nothing was stored."""
    if log is None or record is None or keys is None:
        raise TypeError("no log, record or memtable")
    if not issubclass(kind, tuple):
        raise TypeError(f"{kind} is no tuple")
    if not is_usual(log, record, queue, keys):
        return None
    cdef int64_t now_ms = time_of(log._clock)
    cdef int64_t store_time_ms = max(now_ms, log.last_store_time_ms)
    cdef FilePositions file = log._current
    cdef int64_t physical_offset = file.start + file.wrote
    stored = PyType_GenericAlloc(kind, 7)  # as tuple.__new__ makes it
    set_item(stored, 0, queue.topic)
    set_item(stored, 1, queue.queue_id)
    set_item(stored, 2, queue._max)
    set_item(stored, 3, physical_offset)
    set_item(stored, 4, record.size)
    set_item(stored, 5, store_time_ms)
    set_item(stored, 6, record.store_host)
    keys.reserve(record.hash_count)
    if log.placing is not None:
        log.placing(physical_offset)
    if not is_usual(log, record, queue, keys):  # another thread may have evicted a file meanwhile
        return None
    # from here on no other thread runs, and nothing can fail but the log's pages
    cdef unsigned char *at = file.pages.data + file.wrote
    put_i64(record.data + QUEUE_OFFSET_AT, queue._max)
    record.put_row(0, physical_offset, store_time_ms)
    memcpy(at + HEAD_BYTES, record.data + HEAD_BYTES, record.size - HEAD_BYTES)
    in_this_order()
    memcpy(at, record.data, HEAD_BYTES)
    in_this_order()
    if is_refused(at, record.size):
        memset(at, 0, record.size)  # no byte of it may follow the next record
        raise refusal_of(at, record.size)
    file.wrote += record.size
    file.readable = file.wrote
    log.last_store_time_ms = store_time_ms  # after publishing: a reader that flushes next has flushed this record
    queue.put_entry(physical_offset, <int32_t> record.size, record.rows[0].tags_code)
    queue.note_text(queue._max - 1, physical_offset, record.rows[0].text_bytes)
    keys.add_all(record, physical_offset, store_time_ms)
    return stored


cdef inline int set_item(made, Py_ssize_t at, item) except -1:
    Py_INCREF(item)
    PyTuple_SET_ITEM(made, at, item)
    return 0


cdef bint is_usual(LogEnd log, EncodedBatch record, QueueEnd queue, KeyMemtable keys):
    """Whether nothing about this append is rare."""
    cdef FilePositions file = log._current
    if file is None or not file.takes(record.size + HEAD_BYTES):
        return False
    if record.count != 1 or record.size >= LONG_BYTES:
        return False
    if record.names_magic or record.data[SYS_FLAG_AT + 3] & UNQUEUED_FLAG:
        return False
    if queue is None or queue.is_stale or queue.pending or not queue.takes_entry(file.start + file.wrote):
        return False
    return keys.count + record.hash_count < keys.settles_at

from libc.stdint cimport int32_t, int64_t

from engine.record.kernel.encode cimport EncodedBatch, Encoder
from engine.record.kernel.files cimport FilePositions, FilesByStart


cdef struct Entry:
    int64_t physical_offset
    int32_t size
    int64_t tags_code


cdef class QueueEnd:
    cdef readonly object topic, queue_id
    cdef public bint is_stale
    cdef public int64_t pending, _max, _newest, _physical_end
    cdef public int64_t _min_physical
    cdef public tuple _min
    cdef public FilePositions _appended_to
    cdef readonly FilesByStart files
    cdef readonly dict text_blocks
    cdef int64_t _text_next, _text_begin, _text_bytes

    cdef bint has(self, int64_t queue_offset) except -1
    cdef bint is_mapped(self, int64_t queue_offset) except -1
    cdef Entry stored(self, int64_t queue_offset) except *
    cdef bint takes_entry(self, int64_t physical_offset)
    cdef void put_entry(self, int64_t physical_offset, int32_t size, int64_t tags_code) noexcept
    cdef void note_text(self, int64_t queue_offset, int64_t physical_offset, int64_t text_bytes) noexcept


cdef class DispatchEnd:
    cdef readonly set touched
    cdef object _index, _kind
    cdef public object _newest, _appended
    cdef public bint at_once

    cdef append(self, LogEnd log, EncodedBatch record, QueueEnd queue)


cdef class PutEnd:
    cdef object _clock, _refusal, _acquire, _release, _special
    cdef dict _by_key
    cdef set _unwritable
    cdef Encoder _encoder
    cdef LogEnd _log
    cdef DispatchEnd _dispatcher
    cdef public int64_t messages, bytes

    cdef store(self, message, EncodedBatch record, queue_id, QueueEnd queue)


cdef class LogEnd:
    cdef public int64_t last_store_time_ms
    cdef public FilePositions _current
    cdef public object _clock, placing

from libc.stdint cimport int32_t, int64_t

from engine.record.kernel.pages cimport Pages


cdef class FilePositions:
    cdef public int64_t start, size, wrote, readable
    cdef public object _buffer
    cdef object _memory
    cdef Pages pages

    cdef bint takes(self, Py_ssize_t size)


cdef class QueueEnd:
    cdef readonly object topic, queue_id
    cdef public bint is_stale
    cdef public int64_t pending, _max, _newest, _physical_end
    cdef public FilePositions _appended_to

    cdef bint takes_entry(self, int64_t physical_offset)
    cdef void put_entry(self, int64_t physical_offset, int32_t size, int64_t tags_code) noexcept


cdef class LogEnd:
    cdef public int64_t last_store_time_ms
    cdef public FilePositions _current
    cdef public object _clock, placing

from libc.stdint cimport int32_t, int64_t

from engine.record.kernel.encode cimport EncodedBatch


cdef class KeyMemtable:
    cdef int32_t *hashes
    cdef int64_t *offsets
    cdef int64_t *times
    cdef Py_ssize_t count, _room
    cdef public int64_t last
    cdef public Py_ssize_t settles_at
    cdef public bint needs_room

    cpdef list find(self, int32_t key_hash)
    cdef int reserve(self, Py_ssize_t more) except -1
    cdef void add_all(self, EncodedBatch batch, int64_t physical_offset, int64_t store_time_ms) noexcept

from engine.record.kernel.pages cimport Pages
from libc.stdint cimport int64_t


cdef class FileMap:
    cdef void *memory
    cdef Py_ssize_t size
    cdef readonly int descriptor
    cdef bint is_writable
    cdef int guarded_as
    cdef readonly object path

    cdef void *page_of(self, Py_ssize_t start, Py_ssize_t size, Py_ssize_t *pages_size) except NULL
    cdef bint has_refused(self) noexcept


cdef object refusal_of(const void *at, int64_t size, int64_t physical_offset=?)


cdef class Mapped:
    cdef readonly FileMap map
    cdef readonly object view
    cdef readonly Pages pages

    cdef bint is_whole(self) noexcept


cdef class FilePositions:
    cdef public int64_t start, size, wrote, readable, allocated
    cdef public object _buffer
    cdef public Mapped _mapped
    cdef object _memory
    cdef Pages pages

    cdef bint takes(self, Py_ssize_t size)
    cdef Mapped map_with(self, int64_t position, int64_t length)
    cdef Mapped whole_map(self)
    cdef Mapped any_map(self)
    cdef Mapped require_whole(self, Mapped mapped)


cdef class FilesByStart:
    cdef public int64_t file_bytes
    cdef public tuple _files
    cdef public dict _by_start

    cdef FilePositions file_of(self, int64_t offset)

from libc.stdint cimport int64_t

cdef extern from *:
    """
    static inline void touch(const void *at, int64_t size) {
        const volatile unsigned char *first = at;
        for (int64_t page = 0; page < size; page += 4096) (void) first[page];
        if (size > 0) (void) first[size - 1];
    }
    static inline int is_any(const int64_t *count) { return __atomic_load_n(count, __ATOMIC_ACQUIRE) != 0; }
    """
    bint is_any(const int64_t *count) noexcept nogil
    void touch(const void *at, int64_t size) noexcept nogil  # every page of these bytes

cdef int64_t refused_maps

cdef int watch(object owner, void *memory, Py_ssize_t size, bint writable) except -1
cdef void unwatch(int number) noexcept
cdef int64_t refused_pages(int number) noexcept nogil
cdef const void *first_refused(const void *at, int64_t size) noexcept nogil
cdef object owner_of(const void *at)


cdef inline bint is_refused(const void *at, int64_t size) noexcept nogil:
    """Whether the disk refused some of these bytes of a map. Ask after reading or writing them: refused bytes read as
    zeros, and writes to them are lost."""
    return is_any(&refused_maps) and first_refused(at, size) != NULL

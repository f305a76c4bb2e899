cimport cython


@cython.final
cdef class Pages:
    cdef Py_buffer _buffer
    cdef unsigned char *data
    cdef readonly Py_ssize_t size

    cdef unsigned char *at(self, Py_ssize_t position, Py_ssize_t length) except NULL

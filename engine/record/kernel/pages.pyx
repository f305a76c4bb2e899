"""Pages: mapped memory with one owner. An object that keeps a pointer into a map keeps this object."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer


@cython.final
cdef class Pages:
    """A buffer's memory, which stays where it is for as long as this lives: the map goes with the last of its views.

    The file below may have been cut: who reads looks at its size first, as `MappedFile.view` does.
    """

    def __cinit__(self, buffer not None, *, bint writable=False):
        """`buffer` is contiguous. BufferError: it is not, or is read-only when it is to be `writable`."""
        PyObject_GetBuffer(buffer, &self._buffer, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.data = <unsigned char *> self._buffer.buf
        self.size = self._buffer.len

    def __dealloc__(self):
        PyBuffer_Release(&self._buffer)

    cdef unsigned char *at(self, Py_ssize_t position, Py_ssize_t length) except NULL:
        """Where [position, position + length) is: the one place that checks bounds. IndexError."""
        if position < 0 or length < 0 or position > self.size - length:
            raise IndexError(f"[{position}, + {length}) of {self.size} bytes")
        return self.data + position

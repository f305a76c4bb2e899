"""CRC-32 (docs/format.md, 2), as in zlib and RocketMQ, computed by ISA-L."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from engine.record.kernel.layout cimport crc32_of

cdef enum:
    LONG_BYTES = 1 << 16  # from there on other threads may run meanwhile


def crc32(data not None, unsigned int value=0):
    """CRC-32 of `data`, contiguous bytes; `value` is the CRC of the bytes before them."""
    cdef Py_buffer view
    cdef unsigned int found
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < LONG_BYTES:
            found = crc32_of(value, <const unsigned char *> view.buf, view.len)
        else:
            with nogil:
                found = crc32_of(value, <const unsigned char *> view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return found

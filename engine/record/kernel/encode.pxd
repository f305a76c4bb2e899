from libc.stdint cimport int32_t, int64_t, uint32_t


cdef struct Row:
    int64_t start  # of the record, from the first one's on
    int64_t tags_code
    int32_t size
    int32_t keys_end  # where its keys' hashes end
    int32_t text_bytes  # of its body and a newline, -1: unknown


cdef bint has_any(properties, tuple names) except -1


cdef struct Rows:
    Py_ssize_t first, after, step


cdef Rows rows_of(rows, Py_ssize_t count) except *


cdef class Topic:
    cdef bytes encoded  # its size byte in front
    cdef uint32_t hash  # of topic#


cdef class Encoder:
    cdef bytes _own_host
    cdef object _encode_topic
    cdef dict _topics
    cdef readonly Py_ssize_t max_message_bytes

    cdef EncodedBatch encoded(self, tuple fields, queue_id, int64_t now_ms)
    cdef int _add_line(self, EncodedBatch batch, EncodedBatch sample, const char *line, Py_ssize_t size) except -1
    cdef Topic _topic(self, name)
    cdef int _add(self, EncodedBatch batch, tuple fields, queue_id, int64_t now_ms) except -1
    cdef int _add_record(
        self, EncodedBatch batch, tuple fields, queue_id, int64_t now_ms, const char *body, Py_ssize_t body_size
    ) except -1


cdef class EncodedBatch:
    cdef unsigned char *data
    cdef readonly Py_ssize_t size
    cdef Py_ssize_t _data_room
    cdef Row *rows
    cdef Py_ssize_t count, _rows_room
    cdef int32_t *hashes
    cdef Py_ssize_t first_hash, hash_count, _hashes_room
    cdef Row _first_row  # a single message needs no other memory for them
    cdef int32_t[2] _first_hashes
    cdef EncodedBatch _whole
    cdef readonly bint names_magic
    cdef readonly bytes store_host

    cdef EncodedBatch _part(self, Py_ssize_t first, Py_ssize_t after)
    cdef int reserve(self, Py_ssize_t size) except -1
    cdef int add(self, const void *data, Py_ssize_t size) except -1
    cdef int add_row(self, Py_ssize_t start, int64_t tags_code, int32_t text_bytes) except -1
    cdef int add_hash(self, int32_t key_hash) except -1
    cdef void put_row(self, Py_ssize_t row, int64_t physical_offset, int64_t store_time_ms) noexcept

"""Encode: messages and lines to records in one buffer (docs/format.md, 2).

What is known only under the append lock, queue offsets, physical offsets and the store time, is filled in later
(`EncodedBatch.place`). A single message is a batch of one. A caller's body is copied first, and looked at in the copy:
whoever changes it meanwhile changes neither sizes nor CRC.
"""

from struct import Struct
from struct import error as StructError

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLong
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcpy, memset

from engine.record.kernel.layout cimport (
    BODY_CRC_AT,
    BORN_IPV6_FLAG,
    COMPRESSED_FLAG,
    CRC_MASK,
    HEADER_BYTES,
    INNER_BATCH_FLAGS,
    IPV6_MORE_BYTES,
    MAGIC,
    MAGIC_AT,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_IPV6_FLAG,
    STORE_TIME_AT,
    SYS_FLAG_AT,
    crc32_of,
    hash_text,
    index_hash_of,
    put_entry,
    put_i16,
    put_i32,
    put_i64,
)

from msgspec.structs import astuple

from engine.errors import IllegalMessageError, MessageTooLargeError

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    FLAG_AT = 16  # further fields of layout.pxd's record, used by the encoder only
    BORN_TIME_AT = 40
    BORN_HOST_AT = 48
    HOSTLESS_BYTES = HEADER_BYTES - 8 - 8
    TRANSACTION = 0xC  # of the system flag
    ROLLED_BACK = 0xC
    MAX_I32 = 0x7FFFFFFF
    ENTRY_BYTES = 20
    LONG_BYTES = 1 << 16  # other threads may run while a copy of a longer body is searched
    USUAL_BYTES = 256  # of topic and properties
    KNOWN_TOPICS = 10_000
    HAS_SEPARATOR = 1  # possible defects of a text
    HAS_NUL = 2
    HAS_SPACE = 4
    NOT_UNICODE = 8

cpdef enum:
    MAX_PROPERTIES_BYTES = 32767

_NUMBERS = Struct(">iiiqiq")


cdef void *grown(void *memory, Py_ssize_t *room, Py_ssize_t wanted, size_t item_bytes, const void *first) except NULL:
    """The memory, moved to where there is room for `wanted` items; from `first` it is copied."""
    cdef Py_ssize_t more = max(wanted, 2 * room[0])
    cdef void *found = realloc(NULL if memory is first else memory, more * item_bytes)
    if found is NULL:
        raise MemoryError
    if memory is first and memory is not NULL:
        memcpy(found, memory, room[0] * item_bytes)
    room[0] = more
    return found


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class EncodedBatch:
    """Records of one topic to be appended together, whole but for what only the append lock can say.

    It is a buffer, of all the records. `names_magic`: whether a body may hold a record's magic. `store_host` is that of
    a single message, as stored. Thread safety: one caller at a time.
    """

    def __cinit__(self):
        self.rows, self._rows_room = &self._first_row, 1
        self.hashes, self._hashes_room = self._first_hashes, 2

    def __dealloc__(self):
        if self._whole is None:
            free(self.data)
            if self.rows is not &self._first_row:
                free(self.rows)
            if self.hashes is not self._first_hashes:
                free(self.hashes)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)

    def __len__(self):
        return self.count

    @property
    def buffer(self):
        """The bytes to store."""
        return memoryview(self)

    @property
    def records(self):
        """How many they are."""
        return self.count

    @property
    def tags_code(self):
        """The tags code of the first record, for its consume queue entry."""
        return self.rows[0].tags_code

    @tags_code.setter
    def tags_code(self, int64_t code):
        self.rows[0].tags_code = code

    @property
    def last_size(self):
        """Bytes of the last record."""
        return self.rows[self.count - 1].size if self.count else 0

    def sizes(self):
        """Bytes of each record."""
        return [self.rows[row].size for row in range(self.count)]

    def place(self, queue_offset, int64_t physical_offset, int64_t store_time_ms):
        """Fill in where and when: the buffer begins at `physical_offset`. `queue_offset` is a single record's; None
        when `distribute` said it. May be done again after another try."""
        cdef Py_ssize_t row
        if queue_offset is not None and self.count:
            put_i64(self.data + QUEUE_OFFSET_AT, queue_offset)
        for row in range(self.count):
            self.put_row(row, physical_offset, store_time_ms)

    def distribute(self, shares):
        """Fill in each queue's id and offsets: (queue id, queue offset of the first, slice of rows) for each queue."""
        cdef int32_t queue_id
        cdef int64_t queue_offset
        cdef Rows chosen
        cdef unsigned char *at
        for queue_id, queue_offset, rows in shares:
            chosen = rows_of(rows, self.count)
            while chosen.first < chosen.after:
                at = self.data + self.rows[chosen.first].start - self.rows[0].start
                put_i32(at + QUEUE_ID_AT, queue_id)
                put_i64(at + QUEUE_OFFSET_AT, queue_offset)
                queue_offset += 1
                chosen.first += chosen.step

    def entries(self, rows, int64_t physical_offset):
        """The entries of a consume queue (docs/format.md, 6) that lead to a slice of rows, when the buffer begins
        there."""
        cdef Rows chosen = rows_of(rows, self.count)
        cdef bytes raw = bytes(ENTRY_BYTES * (max(chosen.after - chosen.first + chosen.step - 1, 0) // chosen.step))
        cdef unsigned char *at = <unsigned char *> PyBytes_AS_STRING(raw)
        cdef Row row
        while chosen.first < chosen.after:
            row = self.rows[chosen.first]
            put_entry(at, physical_offset + row.start - self.rows[0].start, row.size, row.tags_code)
            at += ENTRY_BYTES
            chosen.first += chosen.step
        return raw

    def cut(self, Py_ssize_t limit_bytes):
        """The batch in parts of at most `limit_bytes` each, over the same buffer. MessageTooLargeError for a record."""
        cdef Py_ssize_t first = 0, after
        cdef int64_t size = 0
        if self.size <= limit_bytes:
            return [self]
        parts = []
        if max(self.sizes()) > limit_bytes:
            raise MessageTooLargeError("record", max(self.sizes()), limit_bytes)
        for after in range(self.count):
            if size + self.rows[after].size > limit_bytes:
                parts.append(self._part(first, after))
                first, size = after, 0
            size += self.rows[after].size
        return [*parts, self._part(first, self.count)]

    cdef EncodedBatch _part(self, Py_ssize_t first, Py_ssize_t after):
        cdef EncodedBatch part = EncodedBatch()
        part._whole = self if self._whole is None else self._whole
        part.rows, part.count = self.rows + first, after - first
        part.data = self.data + self.rows[first].start - self.rows[0].start
        part.size = self.rows[after - 1].start + self.rows[after - 1].size - self.rows[first].start
        part.first_hash = self.rows[first - 1].keys_end if first else self.first_hash
        part.hash_count, part.hashes = self.rows[after - 1].keys_end, self.hashes
        part.names_magic = self.names_magic
        return part

    cdef int reserve(self, Py_ssize_t size) except -1:
        """Have room for so many bytes more."""
        if size > self._data_room - self.size:
            self.data = <unsigned char *> grown(self.data, &self._data_room, self.size + size, 1, NULL)
        return 0

    cdef int add(self, const void *data, Py_ssize_t size) except -1:
        self.reserve(size)
        memcpy(self.data + self.size, data, size)
        self.size += size
        return 0

    cdef int add_row(self, Py_ssize_t start, int64_t tags_code, int32_t text_bytes) except -1:
        """Note the bytes from `start` on as a record; the hashes of its keys were added before."""
        if self.count == self._rows_room:
            self.rows = <Row *> grown(self.rows, &self._rows_room, self.count + 1, sizeof(Row), &self._first_row)
        cdef int32_t size = <int32_t> (self.size - start)
        self.rows[self.count] = Row(start, tags_code, size, <int32_t> self.hash_count, text_bytes)
        self.count += 1
        return 0

    cdef int add_hash(self, int32_t key_hash) except -1:
        if self.hash_count == self._hashes_room:
            self.hashes = <int32_t *> grown(
                self.hashes, &self._hashes_room, self.hash_count + 1, sizeof(int32_t), self._first_hashes
            )
        self.hashes[self.hash_count] = key_hash
        self.hash_count += 1
        return 0

    cdef void put_row(self, Py_ssize_t row, int64_t physical_offset, int64_t store_time_ms) noexcept:
        cdef Py_ssize_t start = self.rows[row].start - self.rows[0].start
        cdef unsigned char *at = self.data + start
        put_i64(at + PHYSICAL_OFFSET_AT, physical_offset + start)
        put_i64(at + STORE_TIME_AT + (IPV6_MORE_BYTES if at[SYS_FLAG_AT + 3] & BORN_IPV6_FLAG else 0), store_time_ms)


cdef Rows rows_of(rows, Py_ssize_t count) except *:
    """The rows of a slice with a positive step."""
    cdef Rows found
    found.first, found.after, found.step = rows.indices(count)
    if found.step < 1:
        raise ValueError(rows)
    return found


@cython.final
cdef class Topic:
    """A topic as records have it."""


cdef class Encoder:
    """Encodes records for one store. Thread safety: any thread."""

    def __init__(self, bytes own_host not None, Py_ssize_t max_message_bytes, encode_topic):
        """`own_host`, encoded, is written to records of messages that name none. `encode_topic` gives a topic as it is
        stored, its size in front, or raises."""
        self._own_host = own_host
        self._encode_topic = encode_topic
        self._topics = {}
        self.max_message_bytes = max_message_bytes

    def encode(self, message, queue_id, int64_t now_ms):
        """The record of `message`, born at `now_ms` unless it says when. IllegalMessageError, MessageTooLargeError."""
        return self.encoded(astuple(message), queue_id, now_ms)

    cdef EncodedBatch encoded(self, tuple fields, queue_id, int64_t now_ms):
        cdef EncodedBatch batch = EncodedBatch()
        self._add(batch, fields, queue_id, now_ms)
        return batch

    def encode_batch(self, messages, int64_t now_ms, tuple special=()):
        """The records of `messages`, at least one, all of one topic. IllegalMessageError, MessageTooLargeError.

        With names of `special` properties only those before the first message that has one, or a transaction's state.
        """
        cdef EncodedBatch batch = EncodedBatch()
        topic = messages[0].topic
        cdef tuple fields
        try:
            for message in messages:
                fields = astuple(message)
                if special and (has_any(fields[4], special) or fields[6] and fields[6] & TRANSACTION):
                    return batch
                if fields[0] is topic or fields[0] == topic:
                    self._add(batch, fields, 0, now_ms)
        except (IllegalMessageError, MessageTooLargeError):
            require_one_topic(messages)
            raise
        if batch.count != len(messages):
            require_one_topic(messages)
        return batch

    def encode_lines(self, EncodedBatch sample not None, lines, Py_ssize_t start, Py_ssize_t most):
        """Records as `sample`, whose body is empty, of at most `most` lines of a buffer, or sequence of buffers, from
        position `start` on; and the position after them. Each line ends in a newline, which is dropped; empty lines
        are skipped. IllegalMessageError (one has no newline), MessageTooLargeError."""
        cdef EncodedBatch batch = EncodedBatch()
        cdef Py_buffer view
        cdef Py_ssize_t row
        cdef const char *line
        cdef const char *end
        if start < 0:
            raise IndexError(start)
        if not PyObject_CheckBuffer(lines):
            for row in range(start, min(start + most, len(lines))):
                PyObject_GetBuffer(lines[row], &view, PyBUF_SIMPLE)
                try:
                    self._add_line(batch, sample, <const char *> view.buf, view.len)
                finally:
                    PyBuffer_Release(&view)
            return batch, min(start + most, len(lines))
        PyObject_GetBuffer(lines, &view, PyBUF_SIMPLE)
        try:
            line, end = <const char *> view.buf + start, <const char *> view.buf + view.len
            while line < end and most > 0:
                found = <const char *> memchr(line, b"\n", end - line)
                after = end if found is NULL else found + 1
                self._add_line(batch, sample, line, after - line)
                line = after
                most -= 1
            return batch, line - <const char *> view.buf
        finally:
            PyBuffer_Release(&view)

    cdef int _add_line(self, EncodedBatch batch, EncodedBatch sample, const char *line, Py_ssize_t size) except -1:
        cdef Py_ssize_t start = batch.size, header_bytes = HEADER_BYTES, key
        cdef unsigned char families = sample.data[SYS_FLAG_AT + 3]
        if size < 1 or line[size - 1] != b"\n":
            raise IllegalMessageError("a line does not end in a newline")
        if size == 1:
            return 0
        if size - 1 > self.max_message_bytes:
            raise MessageTooLargeError("body", size - 1, self.max_message_bytes)
        header_bytes += IPV6_MORE_BYTES if families & BORN_IPV6_FLAG else 0
        header_bytes += IPV6_MORE_BYTES if families & STORE_IPV6_FLAG else 0
        batch.add(sample.data, header_bytes)
        batch.add(line, size - 1)
        batch.add(sample.data + header_bytes, sample.size - header_bytes)
        seal(batch, start, header_bytes, size - 1)
        for key in range(sample.hash_count):
            batch.add_hash(sample.hashes[key])
        return batch.add_row(start, sample.rows[0].tags_code, -1 if sample.rows[0].text_bytes < 0 else <int32_t> size)

    cdef Topic _topic(self, name):
        cdef Topic topic = self._topics.get(name)
        if topic is None:
            topic = Topic()
            topic.encoded = self._encode_topic(name)
            topic.hash = hash_text("#", hash_text(name, 0))
            if len(self._topics) < KNOWN_TOPICS:
                self._topics[name] = topic
        return topic

    cdef int _add(self, EncodedBatch batch, tuple fields, queue_id, int64_t now_ms) except -1:
        """Add the record of a message with these fields, in `Message`'s order."""
        cdef Py_buffer view
        body = fields[1]
        if type(body) is bytes:
            return self._add_record(batch, fields, queue_id, now_ms, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        if type(body) is memoryview and not body.c_contiguous:
            body = body.tobytes()
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            return self._add_record(batch, fields, queue_id, now_ms, <const char *> view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef int _add_record(
        self, EncodedBatch batch, tuple fields, queue_id, int64_t now_ms, const char *body, Py_ssize_t body_size
    ) except -1:
        cdef Py_ssize_t start = batch.size, header_bytes, properties
        cdef int32_t id_number, flag, sys_flag, reconsume_times
        cdef int64_t born_time_ms, prepared
        cdef unsigned char header[HOSTLESS_BYTES + 20 + 20]
        name, _, keys, tags, further, _, _, born_time, born, store, _, _ = fields
        cdef Topic topic = self._topic(name)
        cdef bytes born_host = self._own_host if born is None else born.encode()
        cdef bytes store_host = self._own_host if store is None else store.encode()
        cdef Py_ssize_t born_bytes = len(born_host), store_bytes = len(store_host)
        if born_bytes not in (8, 20) or store_bytes not in (8, 20):
            raise IllegalMessageError("a host has 8 or 20 bytes")
        header_bytes = HOSTLESS_BYTES + born_bytes + store_bytes
        batch.reserve(header_bytes + min(body_size, self.max_message_bytes) + USUAL_BYTES)
        batch.add(header, header_bytes)
        if body_size <= self.max_message_bytes:  # else its properties are looked at first
            batch.add(body, body_size)
        batch.add(PyBytes_AS_STRING(topic.encoded), len(topic.encoded))
        batch.add(b"\0\0", 2)
        properties = batch.size
        add_properties(batch, keys, tags, further)
        if body_size > self.max_message_bytes:
            raise MessageTooLargeError("body", body_size, self.max_message_bytes)
        put_i16(batch.data + properties - 2, batch.size - properties)
        try:
            id_number = as_i32(queue_id)
            flag = as_i32(fields[5])
            sys_flag = as_i32(fields[6])
            born_time_ms = now_ms if born_time is None else PyLong_AsLongLong(born_time)
            reconsume_times = as_i32(fields[10])
            prepared = PyLong_AsLongLong(fields[11])
        except (OverflowError, TypeError):
            raise_unfit(queue_id, fields[5], fields[6], now_ms if born_time is None else born_time, *fields[10:])
            raise
        cdef unsigned char *at = batch.data + start
        put_i32(at + MAGIC_AT, MAGIC)
        put_i32(at + QUEUE_ID_AT, id_number)
        put_i32(at + FLAG_AT, flag)
        memset(at + QUEUE_OFFSET_AT, 0, 16)
        sys_flag = sys_flag & ~(BORN_IPV6_FLAG | STORE_IPV6_FLAG)
        sys_flag |= (BORN_IPV6_FLAG if born_bytes == 20 else 0) | (STORE_IPV6_FLAG if store_bytes == 20 else 0)
        put_i32(at + SYS_FLAG_AT, sys_flag)
        put_i64(at + BORN_TIME_AT, born_time_ms)
        memcpy(at + BORN_HOST_AT, PyBytes_AS_STRING(born_host), born_bytes)
        at += BORN_HOST_AT + born_bytes
        put_i64(at, 0)
        memcpy(at + 8, PyBytes_AS_STRING(store_host), store_bytes)
        at += 8 + store_bytes
        put_i32(at, reconsume_times)
        put_i64(at + 4, prepared)
        seal(batch, start, header_bytes, body_size)
        if further:
            tags = further.get("TAGS", tags)
        if sys_flag & ROLLED_BACK != ROLLED_BACK:  # the index has no keys of rolled-back messages
            add_hashes(batch, topic.hash, keys, further)
        batch.store_host = store_host
        cdef bint is_text = not sys_flag & COMPRESSED_FLAG and sys_flag & INNER_BATCH_FLAGS != INNER_BATCH_FLAGS
        return batch.add_row(start, <int32_t> hash_text(tags, 0), <int32_t> (body_size + 1) if is_text else -1)


cdef int seal(EncodedBatch batch, Py_ssize_t start, Py_ssize_t header_bytes, Py_ssize_t body_size) except -1:
    """Write the sizes and the CRC of the record that begins at `start` and is the batch's last."""
    cdef unsigned char *at = batch.data + start
    cdef unsigned char *body = at + header_bytes
    cdef uint32_t crc
    cdef bint found
    if batch.size - start > MAX_I32:
        raise_unfit(0, batch.size - start, 0, 0, 0, 0)
    if body_size < LONG_BYTES:
        crc, found = crc32_of(0, body, body_size), has_magic(body, body_size)
    else:
        with nogil:
            crc, found = crc32_of(0, body, body_size), has_magic(body, body_size)
    put_i32(at, <int32_t> (batch.size - start))
    put_i32(at + BODY_CRC_AT, crc & CRC_MASK)
    put_i32(body - 4, <int32_t> body_size)
    batch.names_magic |= found
    return 0


cdef bint has_magic(const unsigned char *body, Py_ssize_t size) noexcept nogil:
    """Whether a record's magic, of either version, is in a body. No text holds one: what follows a space in UTF-8 is
    no continuation byte."""
    cdef const unsigned char *end = body + size - 3
    cdef const unsigned char *found = body
    while found < end:
        found = <const unsigned char *> memchr(found, 0xDA, end - found)  # many times faster than memmem
        if found is NULL:
            return False
        if found[1] == 0xA3 and found[2] == 0x20 and (found[3] == 0xA7 or found[3] == 0xAB):
            return True
        found += 1
    return False


cdef int add_properties(EncodedBatch batch, keys, tags, further) except -1:
    """Add the properties as they are stored, without a last separator: KEYS and TAGS first unless `further` has them,
    then `further` in order."""
    cdef Py_ssize_t start = batch.size
    cdef int faults = 0, found
    cdef bint is_first = True
    if keys and not (further and "KEYS" in further):
        batch.add(b"KEYS", 4)
        if isinstance(keys, str):
            raise_keys()
        for key in keys:
            batch.add(b"\x01" if is_first else b" ", 1)
            found = add_text(batch, key)
            if found & HAS_SPACE or not key:
                raise_keys()
            faults |= found
            is_first = False
    if tags and not (further and "TAGS" in further):
        batch.add(<const char *> b"\x02TAGS\x01" + is_first, 6 - is_first)
        faults |= add_text(batch, tags)
        is_first = False
    if further:
        for name, value in further.items():
            batch.add(b"\x02", not is_first)
            faults |= add_text(batch, name) | (0 if name else HAS_SEPARATOR)
            batch.add(b"\x01", 1)
            faults |= add_text(batch, value)
            is_first = False
    if faults & HAS_SEPARATOR:
        raise IllegalMessageError("a property has no name, or holds the character 1 or 2")
    if faults & HAS_NUL:
        raise IllegalMessageError("a key, the tags or a property holds the character 0")
    if faults & NOT_UNICODE:
        raise IllegalMessageError("a property is not valid Unicode")
    if batch.size - start > MAX_PROPERTIES_BYTES:
        raise MessageTooLargeError("properties", batch.size - start, MAX_PROPERTIES_BYTES)
    return 0


cdef int add_text(EncodedBatch batch, text) except -1:
    """Add a text in UTF-8; returns which special characters it contains."""
    cdef Py_ssize_t size, at
    cdef const char *raw
    cdef int found = 0
    try:
        raw = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:
        return NOT_UNICODE | add_text(batch, text.encode("utf-8", "replace").decode())
    except TypeError:
        raise IllegalMessageError(f"{repr(text)[:40]} is no text ({type(text).__name__})") from None
    for at in range(size):
        if <unsigned char> raw[at] <= 32:
            found |= HAS_NUL if raw[at] == 0 else HAS_SEPARATOR if raw[at] <= 2 else HAS_SPACE if raw[at] == 32 else 0
    batch.add(raw, size)
    return found


cdef bint has_any(properties, tuple names) except -1:
    """Whether any of them has such a name."""
    if properties:
        for name in names:
            if name in properties:
                return True
    return False


cdef int require_one_topic(messages) except -1:
    if any([message.topic != messages[0].topic for message in messages]):
        raise IllegalMessageError("the messages of a batch have different topics")
    return 0


cdef int raise_keys() except -1:
    raise IllegalMessageError("keys are a list of texts that are not empty and hold no space")


cdef int add_hashes(EncodedBatch batch, uint32_t topic_hash, keys, further) except -1:
    """Add the hashes of a message's keys, of its unique key first."""
    if further:
        if "KEYS" in further:
            keys = [key for key in further["KEYS"].split(" ") if key]
        if unique := further.get("UNIQ_KEY"):
            batch.add_hash(index_hash_of(hash_text(unique, topic_hash)))
    for key in keys:
        batch.add_hash(index_hash_of(hash_text(key, topic_hash)))
    return 0


cdef int32_t as_i32(number) except? -1:
    cdef long long value = PyLong_AsLongLong(number)
    if value != <int32_t> value:
        raise OverflowError
    return <int32_t> value


def raise_unfit(*numbers):
    """The IllegalMessageError for a number that does not fit its field."""
    try:
        _NUMBERS.pack(*numbers)
    except StructError as error:
        raise IllegalMessageError(f"a number does not fit its field: {error}") from error


def encode_properties(keys, tags, further):
    """The properties as a record stores them. IllegalMessageError for a separator or a NUL in a name or value, an empty
    name, a key that is empty or holds a space; MessageTooLargeError over 32,767 bytes."""
    cdef EncodedBatch batch = EncodedBatch()
    add_properties(batch, keys, tags, further)
    return bytes(batch)


def java_hash(text):
    """Java's hash of `text`, as an i32."""
    return <int32_t> hash_text(text, 0)


def index_hash(topic, key):
    """The index's hash of a key: absolute hash of topic#key, 0 for -2**31, which has no absolute value in 32 bits."""
    return index_hash_of(hash_text(key, hash_text("#", hash_text(topic, 0))))

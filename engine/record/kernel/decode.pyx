"""Decode (docs/format.md, 2): a record into a message, and what is asked of it.

Bytes are whatever a disk holds, and another process may be writing them: each size is read once, compared in 64 bits
with what there is, and only that number is used from then on. A message keeps the memory that it was made from.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcmp

from engine.errors import DamagedRecordError, ReadError
from engine.deadline import WouldBlock
from engine.record.compression import BODY_LIMIT_BYTES, decompressed_body
from engine.record.header import BLANK_MAGIC, Host, RecordHeader, message_id
from engine.record.kernel.append cimport QueueEnd
from engine.record.kernel.files cimport FilePositions, FilesByStart, Mapped, refusal_of
from engine.record.kernel.guard cimport is_any, is_refused, refused_maps, touch
from engine.record.kernel.layout cimport (
    BODY_CRC_AT, BORN_IPV6_FLAG, COMPRESSED_FLAG, CRC_MASK, ENTRY_BYTES, INNER_BATCH_FLAGS, IPV6_MORE_BYTES,
    LEAST_RECORD_BYTES, MAGIC, MAGIC_AT, MAGIC_V2, NAME_END, PHYSICAL_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, ROWS_AHEAD,
    STORE_IPV6_FLAG, SYS_FLAG_AT, UNQUEUED_FLAG, VALUE_END, bytes_at, crc32_of, find_byte, get_i16, get_i32, get_i64,
    is_framed, plus, prefetch,
)
from engine.record.kernel.pages cimport Pages

cdef extern from "Python.h":
    object PyMemoryView_FromObject(object exporter)
    Py_buffer *PyMemoryView_GET_BUFFER(object view)

cdef enum:
    FLAG_AT = 16
    BORN_TIME_AT = 40
    BORN_HOST_AT = 48
    HOST_BYTES = 8
    LONG_BYTES = 1 << 16  # longer bodies are checked while other threads run
    USUAL_BYTES = 384  # of a small record: they are asked for together

cpdef enum:
    SINGLE_CANDIDATES = 64  # this many are decoded singly before records are searched in groups

cdef enum Problem:
    WHOLE, CUT, NO_MAGIC, ELSEWHERE, WRONG_SIZE, WRONG_PARTS, WRONG_CRC, REFUSED

cdef struct Value:
    bytes_at at
    int64_t size


# records


cdef bint read_fields(StoredMessage message, int64_t room) noexcept:
    """Read the fixed fields; whether `room` bytes hold them."""
    cdef bytes_at at = message._at
    cdef int32_t born_bytes = HOST_BYTES, store_bytes = HOST_BYTES
    if room < SYS_FLAG_AT + 4:
        return False
    message.sys_flag = get_i32(at + SYS_FLAG_AT)
    born_bytes += IPV6_MORE_BYTES if message.sys_flag & BORN_IPV6_FLAG else 0
    store_bytes += IPV6_MORE_BYTES if message.sys_flag & STORE_IPV6_FLAG else 0
    message._store_host = BORN_HOST_AT + born_bytes + 8
    message._after_hosts = message._store_host + store_bytes
    message._body_position = message._after_hosts + 16
    if room < message._body_position:
        return False
    message.store_size = get_i32(at)
    message._magic = get_i32(at + MAGIC_AT)
    message.body_crc = get_i32(at + BODY_CRC_AT)
    message.queue = get_i32(at + QUEUE_ID_AT)
    message.flag = get_i32(at + FLAG_AT)
    message.queue_offset = get_i64(at + QUEUE_OFFSET_AT)
    message.physical_offset = get_i64(at + PHYSICAL_OFFSET_AT)
    message.born_time_ms = get_i64(at + BORN_TIME_AT)
    message.store_time_ms = get_i64(at + message._store_host - 8)
    message.reconsume_times = get_i32(at + message._after_hosts)
    message.prepared_transaction_offset = get_i64(at + message._after_hosts + 4)
    message._stored_body_size = get_i32(at + message._after_hosts + 12)
    message._body_bytes = max(message._stored_body_size, 0)  # a negative size is read as none
    return True


cdef bint find_parts(StoredMessage message) noexcept:
    """Find topic and properties of a record whose stored size is readable; returns whether its sizes add up."""
    cdef bint is_v2 = message._magic == MAGIC_V2
    cdef bytes_at at = message._at
    cdef int64_t size = message.store_size, topic = <int64_t> message._body_position + message._body_bytes + 1 + is_v2
    cdef int64_t topic_size, properties
    if topic > size - 2:
        return False
    topic_size = get_i16(at + topic - 2) if is_v2 else <signed char> at[topic - 1]
    properties = topic + topic_size + 2
    if topic_size < 0 or properties > size or properties + max(get_i16(at + properties - 2), 0) != size:
        return False
    message._topic_position, message._properties_position = <int32_t> topic, <int32_t> properties
    return True


cdef Problem read_record(
    StoredMessage message, Pages pages, int64_t position, int64_t end, int64_t physical_offset, bint verify
) except *:
    """Make `message` the one whose record is at `position` of `pages`, before `end`, and must be at `physical_offset`
    of the log."""
    message._pages = pages
    message._at = pages.data + position
    cdef Problem problem = find_problem(message, end - position, physical_offset, verify)
    return REFUSED if is_any(&refused_maps) and is_refused(message._at, looked_at(message, end - position)) else problem


cdef int64_t looked_at(StoredMessage message, int64_t room) noexcept:
    """The number of bytes that decoding a message read."""
    cdef int64_t fixed = BORN_HOST_AT + 2 * (HOST_BYTES + IPV6_MORE_BYTES) + 8 + 16
    return min(room, message.store_size if message.store_size > fixed else fixed)


cdef inline Problem find_problem(StoredMessage message, int64_t room, int64_t physical_offset, bint verify) except *:
    if not read_fields(message, room):
        return CUT
    if message._magic != MAGIC and message._magic != MAGIC_V2:
        return NO_MAGIC
    if message.physical_offset != physical_offset:
        return ELSEWHERE
    if not LEAST_RECORD_BYTES <= message.store_size <= room:
        return WRONG_SIZE
    if not find_parts(message):
        return WRONG_PARTS
    if verify:
        touch(message._at + message._topic_position, message.store_size - message._topic_position)
    if verify and message._body_bytes > 0 and <int32_t> find_body_crc(message) != message.body_crc:
        return WRONG_CRC
    return WHOLE


cdef uint32_t find_body_crc(StoredMessage message) noexcept:
    """The right value of the record's field."""
    cdef bytes_at body = message._at + message._body_position
    cdef int64_t size = message._body_bytes
    cdef uint32_t found
    if size < LONG_BYTES:
        return crc32_of(0, body, size) & CRC_MASK
    with nogil:
        found = crc32_of(0, body, size) & CRC_MASK
    return found


def read_header(view not None, physical_offset):
    """The fixed fields of the record at the start of `view`, unverified. DamagedRecordError when `view` ends before
    them."""
    cdef StoredMessage message = StoredMessage.__new__(StoredMessage)
    message._pages = Pages.__new__(Pages, view)
    message._at = message._pages.data
    cdef bint is_there = read_fields(message, message._pages.size)
    if is_refused(message._at, looked_at(message, message._pages.size)):
        raise refusal_of(message._at, message._pages.size, physical_offset)
    if not is_there:
        raise DamagedRecordError(physical_offset, reason(CUT, message))
    return message.header


def decode_record(
    view not None, int64_t physical_offset, *, bint verify=True, int64_t body_limit_bytes=BODY_LIMIT_BYTES,
    type kind=StoredMessage,
):
    """The message whose record starts at the start of `view` (which may go on after it) and at `physical_offset` of
    the log.

    Sizes and physical offset are always checked; the body's CRC if `verify`. DamagedRecordError, TruncatedFileError.
    The result is a view of the same memory, of the class `kind`. `body_limit_bytes` bounds what a compressed body may become.
    """
    cdef StoredMessage message = StoredMessage.__new__(kind)
    cdef Pages pages = Pages.__new__(Pages, view)
    cdef Problem problem = read_record(message, pages, 0, pages.size, physical_offset, verify)
    if problem == REFUSED:
        raise refusal_of(message._at, looked_at(message, pages.size), physical_offset)
    if problem != WHOLE:
        raise DamagedRecordError(physical_offset, reason(problem, message))
    message._body_limit_bytes = body_limit_bytes
    return message


cdef str reason(Problem problem, StoredMessage message):
    cdef Py_ssize_t left = message._pages.size
    if problem == CUT:
        return f"only {left} bytes are left for it"
    if problem == NO_MAGIC and message._magic == BLANK_MAGIC:
        return "the log's blank at a file's end, no record"
    if problem == NO_MAGIC and message._magic == 0 and message.store_size == 0:
        return "zeros, no record"
    if problem == NO_MAGIC:
        return f"no record's magic but {<uint32_t> message._magic:08x}"
    if problem == ELSEWHERE:
        return f"it says it is at {message.physical_offset}"
    if problem == WRONG_SIZE:
        return f"size {message.store_size} with {left} bytes left"
    if problem == WRONG_PARTS:
        return f"its parts do not add up to its size of {message.store_size}"
    return f"body CRC {find_body_crc(message):08x}, stored {<uint32_t> message.body_crc:08x}"


def is_wrapper(StoredMessage message not None):
    """Whether a record's flags mark it as a batch with inner messages."""
    return message.sys_flag & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS and message._find(INNER_COUNT, 9).size > 0


cdef inline bint stands(StoredMessage message, bytes name, int64_t queue_id, int64_t queue_offset) noexcept:
    return message.queue_offset == queue_offset and message.queue == queue_id and is_alone_of(message, name)


cdef inline Value topic_of(StoredMessage message) noexcept:
    cdef Value topic
    topic.at = message._at + message._topic_position
    topic.size = message._properties_position - 2 - message._topic_position
    return topic


cdef inline bint is_alone_of(StoredMessage message, bytes name) noexcept:
    """Whether a record has that topic, and can be only one message."""
    return is_equal(topic_of(message), name) and message.sys_flag & INNER_BATCH_FLAGS != INNER_BATCH_FLAGS


cdef bint has_entry(StoredMessage message) noexcept:
    """Whether the header of a ledger's entry stands before the record."""
    cdef bytes_at start = message._at - ENTRY_BYTES
    return message._at - message._pages.data >= ENTRY_BYTES and is_framed(
        start, message.store_size, message.physical_offset
    )


cdef class KeyReader:
    """Reads a store's messages by key. `queries` counts.

    A record is a message when it is whole and its queue leads to it, if any queue may. Where it takes more to say what
    is there, `_shown`(physical offset, in_queue) says it; and of very many candidates, `_likely`(candidates, key) names
    those to look at.
    """

    cdef object _index, _deleted, _is_on_disk
    cdef readonly int64_t body_limit_bytes
    cdef public int64_t queries
    cdef FilesByStart _files
    cdef dict _queues
    cdef bint _is_ledger

    def __init__(
        self, index, deleted, FilesByStart files not None, dict queues not None, is_on_disk, bint is_ledger,
        int64_t body_limit_bytes,
    ):
        """`queues` are the open ones by topic and id; `is_on_disk` says of any whether its file leads to a record; `files`
        are the log's."""
        self._index, self._deleted, self._files, self._queues = index, deleted, files, queues
        self._is_on_disk = is_on_disk
        self._is_ledger, self.body_limit_bytes = is_ledger, body_limit_bytes

    def query(self, topic, key, limit, begin_ms, end_ms):
        """Messages with `key`, newest first."""
        cdef StoredMessage message
        cdef list found = []
        self.queries += 1
        for message in self._with_key(topic, key):
            time_ms = message.store_time_ms
            if begin_ms <= time_ms <= end_ms:
                found.append(message)
                if len(found) >= limit:
                    break
        return found if len(found) <= limit else found[:limit]

    cpdef _with_key(self, str topic, str key, since=0, bint is_short=False, bint in_queue=False):
        """Messages with `key` from a physical offset on, newest first; with `in_queue` those alone that are found under
        their number. WouldBlock where that `is_short` and more than SINGLE_CANDIDATES records may carry it."""
        oldest = max(self._files.min_offset, self._deleted.until(topic), since)
        cdef MessagesWithKey messages = MessagesWithKey.__new__(MessagesWithKey)
        messages.reader, messages.places = self, self._index.candidates(topic, key, oldest)
        messages.topic, messages.encoded_topic = topic, encoded(topic)
        messages.key, messages.encoded_key = key, encoded(key)
        messages.alone, messages.is_short, messages.in_queue = SINGLE_CANDIDATES, is_short, in_queue
        return messages


@cython.final
@cython.no_gc
@cython.freelist(4)
cdef class MessagesWithKey:
    """Iterates over the messages of a topic that carry a key: those of the records at `places`, of which the first
    `alone` are read one by one."""

    cdef KeyReader reader
    cdef object places
    cdef str topic, key
    cdef bytes encoded_topic, encoded_key
    cdef int64_t alone
    cdef bint is_short, in_queue
    cdef list found  # the last result first

    def __iter__(self):
        return self

    def __next__(self):
        cdef StoredMessage message
        while not self.found:
            if self.alone == 0:
                if self.is_short:
                    raise WouldBlock
                self.places = self.reader._likely(self.places, self.key)
            self.alone -= 1
            place = next(self.places, None)
            if place is None:
                raise StopIteration
            message = self.read(place)
            if message is None:
                shown = [one for one in self.reader._shown(place, self.in_queue) if one.topic == self.topic]
                self.found = [message for message in reversed(shown) if carries(message, self.key, self.encoded_key)]
            elif self.in_queue and message.sys_flag & UNQUEUED_FLAG:
                continue
            elif carries(message, self.key, self.encoded_key):
                return message
        return self.found.pop()

    cdef StoredMessage read(self, int64_t physical_offset):
        """The message at that offset; None if it can't be decoded here."""
        cdef StoredMessage message
        try:
            message = whole_record(
                self.reader._files, physical_offset, self.reader._is_ledger, self.reader.body_limit_bytes
            )
            if message is None or not is_alone_of(message, self.encoded_topic):
                return None
            if self.in_queue and not message.sys_flag & UNQUEUED_FLAG and not self.is_led_to(message):
                return None
        except ReadError:
            return None
        return message

    cdef bint is_led_to(self, StoredMessage message) except -1:
        """Whether an entry of its queue leads to a message. No queue is opened for it, and no file of one is mapped: most
        of a hundred thousand are closed, or evicted. ReadError."""
        cdef QueueEnd queue = self.reader._queues.get((self.topic, message.queue))
        if queue is None or not queue.is_mapped(message.queue_offset):
            return self.reader._is_on_disk(self.topic, message.queue, message.queue_offset, message.physical_offset)
        return (
            queue.has(message.queue_offset)
            and queue.stored(message.queue_offset).physical_offset == message.physical_offset
        )


cdef StoredMessage whole_record(
    FilesByStart files, int64_t physical_offset, bint is_ledger, int64_t body_limit_bytes
):
    """The record at a physical offset; None if it can't be decoded here. ReadError."""
    cdef FilePositions file = files.file_of(physical_offset)
    if file is None:
        return None
    cdef int64_t position = physical_offset - file.start, end = file.readable
    cdef StoredMessage message = StoredMessage.__new__(StoredMessage)
    cdef Mapped mapped = file.map_with(position, min(USUAL_BYTES, end - position))
    if (
        read_record(message, mapped.pages, position, min(end, mapped.pages.size), physical_offset, True) != WHOLE
        or is_ledger and not has_entry(message)
    ):
        return None
    message._body_limit_bytes = body_limit_bytes
    return message


def read_alone(
    FilesByStart files not None, int64_t physical_offset, bint is_ledger, int64_t body_limit_bytes,
    str topic not None, int64_t queue_id, int64_t queue_offset,
):
    """The message at a physical offset, if it names that slot as its own and can be only one message; None where more
    must be looked at to say what is there."""
    cdef StoredMessage message
    try:
        message = whole_record(files, physical_offset, is_ledger, body_limit_bytes)
    except ReadError:
        return None
    return message if message is not None and stands(message, encoded(topic), queue_id, queue_offset) else None


def read_run(
    view not None, int64_t file_start, int64_t file_bytes, bint is_ledger, const int64_t[::1] places not None,
    str topic not None, int64_t queue_id, int64_t first, int64_t body_limit_bytes, int64_t most_bytes,
):
    """The messages at queue offsets `first`, `first` + 1 …, whose records begin at `places` of the log: as many as are
    in the file that has the bytes `view`, and about `most_bytes` of it at most; but one at least.

    (messages, None where the record must be read alone: it is damaged, may be a batch, or names another position; how
    many of these there are; the bytes of the records of the others).
    """
    cdef Pages pages = Pages.__new__(Pages, view)
    cdef bytes name = encoded(topic)
    cdef list messages = []
    cdef StoredMessage message
    cdef int64_t row, position, alone = 0, bytes_read = 0
    for row in range(places.shape[0]):
        if row + ROWS_AHEAD < places.shape[0]:
            prefetch(pages.data + plus(places[row + ROWS_AHEAD], -file_start), USUAL_BYTES)
        position = plus(places[row], -file_start)
        if row > 0 and (not 0 <= position < file_bytes or bytes_read >= most_bytes):
            break
        message = StoredMessage.__new__(StoredMessage)
        if (
            0 <= position <= pages.size
            and read_record(message, pages, position, pages.size, places[row], True) == WHOLE
            and stands(message, name, queue_id, first + row)
            and (not is_ledger or has_entry(message))
        ):
            message._body_limit_bytes = body_limit_bytes
            bytes_read += message.store_size
            messages.append(message)
        else:
            alone += 1
            messages.append(None)
    return messages, alone, bytes_read


@cython.freelist(512)
@cython.no_gc
cdef class StoredMessage:
    """A message in the store: a view of its record that decodes each part when it is asked for. Immutable.

    It keeps the mapped page under it alive; `copy_body` gives a copy that outlives the store.
    Thread safety: any thread may read it.

    topic, queue, queue_offset   where it stands: name of the topic, number of the queue, number in the queue
    physical_offset, store_size  where its record begins in the commit log, and how long it is, in bytes
    store_time_ms, born_time_ms  when it was stored, and made by its producer: milliseconds since 1970, UTC
    store_host, born_host        the broker or mount that stored it, and its producer: a Host each
    keys, tags, unique_key       the property KEYS split at spaces, TAGS, UNIQ_KEY; empty: it has none
    msg_id                       upper-case hex of store host and physical offset, RocketMQ's name for it
    flag                         a number of the producer's, without a meaning here
    sys_flag                     bits: compression, transaction, batch, IPv6 hosts (docs/format.md, 2)
    body_crc                     CRC-32 of the stored body, its lower 31 bits
    reconsume_times              how often a consumer group gave it back
    prepared_transaction_offset  physical offset of the prepared message that it commits or rolls back
    """

    cdef Pages _pages
    cdef bytes_at _at
    cdef readonly int32_t store_size
    cdef int32_t _magic
    cdef readonly int32_t body_crc
    cdef readonly int32_t queue
    cdef readonly int32_t flag
    cdef readonly int64_t queue_offset
    cdef readonly int64_t physical_offset
    cdef readonly int32_t sys_flag
    cdef readonly int64_t born_time_ms
    cdef readonly int64_t store_time_ms
    cdef readonly int32_t reconsume_times
    cdef readonly int64_t prepared_transaction_offset
    cdef int32_t _stored_body_size
    cdef int32_t _store_host, _after_hosts, _body_position, _body_bytes
    cdef readonly int32_t _topic_position, _properties_position
    cdef int64_t _body_limit_bytes
    cdef object _body

    def __init__(self, *_):
        raise TypeError("a StoredMessage is made by decoding a record")

    cdef object _view(self, int64_t start, int64_t end):
        cdef int64_t first = self._at - self._pages.data
        found = PyMemoryView_FromObject(<object> self._pages._buffer.obj)
        cdef Py_buffer *part = PyMemoryView_GET_BUFFER(found)
        if part.ndim != 1 or part.itemsize != 1:
            return found[first + start:first + end]
        part.buf = self._pages.at(first + start, end - start)  # as a slice is made, without objects for its ends
        part.len = part.shape[0] = end - start
        return found

    cdef bytes _bytes(self, int64_t start, int64_t end):
        return PyBytes_FromStringAndSize(<const char *> self._at + start, end - start)

    cdef int require_read(self) except -1:
        """RefusedReadError, TruncatedFileError: the disk refused a page of it since it was checked."""
        if is_refused(self._at, self.store_size):
            raise refusal_of(self._at, self.store_size, self.physical_offset)
        return 0

    cdef str _text(self, Value value):
        decoded = text(value)
        self.require_read()
        return decoded

    cdef Value _find(self, bytes_at name, Py_ssize_t name_size) noexcept:
        cdef int64_t size = self.store_size - self._properties_position
        return find_value(self._at + self._properties_position, size, name, name_size)

    @property
    def record(self):
        """The whole record, byte for byte."""
        return self._view(0, self.store_size)

    @property
    def header(self):
        """All fixed fields as stored."""
        return RecordHeader(
            self.store_size, self._magic, self.body_crc, self.queue, self.flag, self.queue_offset,
            self.physical_offset, self.sys_flag, self.born_time_ms,
            self._bytes(BORN_HOST_AT, self._store_host - 8), self.store_time_ms,
            self._bytes(self._store_host, self._after_hosts), self.reconsume_times,
            self.prepared_transaction_offset, self._stored_body_size,
        )

    @property
    def topic(self):
        return self._text(topic_of(self))

    @property
    def place(self):
        """A number unique to each message, ascending in the order of the log: its record's physical offset; in a batch,
        plus its number there."""
        return self.physical_offset

    @property
    def body_place(self):
        """Physical offset of the stored body."""
        return <object> self.physical_offset + self._body_position

    @property
    def physical_end(self):
        """First byte of the log after this record."""
        return <object> self.physical_offset + self.store_size

    @property
    def born_host(self):
        return Host.decode(self._bytes(BORN_HOST_AT, self._store_host - 8))

    @property
    def store_host(self):
        return Host.decode(self._bytes(self._store_host, self._after_hosts))

    @property
    def stored_body(self):
        """The body as stored, perhaps compressed: a view of the mapped page."""
        return self._view(self._body_position, <int64_t> self._body_position + self._body_bytes)

    @property
    def body(self):
        """The body, decompressed if the record's flag says so (then kept). BodyTooLargeError, DamagedRecordError."""
        if not self.sys_flag & COMPRESSED_FLAG:
            return self.stored_body
        if self._body is None:
            self._body = decompressed_body(self, self._body_limit_bytes)
        return self._body

    def copy_body(self):
        """`body` as bytes of its own, checked after they were copied: where the disk refused a page since the message
        was read, or its file was cut, a view shows zeros. Errors as `body`, RefusedReadError, TruncatedFileError."""
        copied = bytes(self.body)
        cdef bint is_whole = self._body_bytes == 0 or <int32_t> find_body_crc(self) == self.body_crc
        self.require_read()
        if not is_whole:
            raise DamagedRecordError(self.physical_offset, reason(WRONG_CRC, self))
        return copied

    @property
    def is_compressed(self):
        """Whether `body` is not as stored."""
        return self.sys_flag & COMPRESSED_FLAG != 0

    @property
    def body_size(self):
        """Bytes of `body`; decompresses a compressed one."""
        return len(self.body) if self.sys_flag & COMPRESSED_FLAG else self._body_bytes

    @property
    def raw_properties(self):
        """The properties as stored: name 0x01 value 0x02 name ..."""
        return self._view(self._properties_position, self.store_size)

    @property
    def properties(self):
        """All properties that have a name and a value, decoded at each call; the last of equal names wins."""
        decoded = decode_properties(self.raw_properties)
        self.require_read()
        return decoded

    def find_property(self, bytes name not None):
        """The value of the property with this encoded name, "" when there is none; decodes nothing else."""
        return self._text(self._find(<bytes_at> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)))

    @property
    def keys(self):
        """The words of KEYS."""
        cdef Value keys = self._find(KEYS, 4), key
        cdef list found = [text(key)] if next_word(&keys, &key) else []
        while next_word(&keys, &key):
            found.append(text(key))
        self.require_read()
        return found

    @property
    def tags(self):
        """TAGS, "" when absent or empty."""
        return self._text(self._find(TAGS, 4))

    @property
    def unique_key(self):
        """UNIQ_KEY, the id that a RocketMQ client gave, "" when there is none."""
        return self._text(self._find(UNIQUE_KEY, 8))

    @property
    def msg_id(self):
        """Upper-case hex of store host and physical offset: 32 characters, 56 for IPv6."""
        return message_id(self._bytes(self._store_host, self._after_hosts), self.physical_offset)

    def __repr__(self):
        place = f"{self.topic}/{self.queue}/{self.queue_offset}"
        return f"StoredMessage({place} at {self.physical_offset}, {self._body_bytes} body bytes)"


# properties


cdef bytes_at KEYS = b"KEYS"
cdef bytes_at TAGS = b"TAGS"
cdef bytes_at UNIQUE_KEY = b"UNIQ_KEY"
cdef bytes_at INNER_COUNT = b"INNER_NUM"


cdef Value find_value(bytes_at at, int64_t size, bytes_at name, int64_t name_size) noexcept nogil:
    """The value of that name in stored properties: the last one that is not empty; empty without one."""
    cdef Value found
    cdef bytes_at end = at + size, item_end, value
    found.at, found.size = at, 0
    while at < end:
        item_end, value = find_byte(at, end, VALUE_END), at + name_size + 1
        if value < item_end and at[name_size] == NAME_END and memcmp(at, name, name_size) == 0:
            found.at, found.size = value, item_end - value
        at = item_end + 1
    return found


cdef bint next_word(Value *words, Value *word) noexcept nogil:
    """Take the next word between spaces; returns whether there was one."""
    cdef int64_t size
    while words.size > 0:
        size = find_byte(words.at, words.at + words.size, c" ") - words.at
        word.at, word.size = words.at, size
        words.at += size + 1
        words.size -= size + 1
        if size > 0:
            return True
    return False


cdef str text(Value value):
    return PyUnicode_DecodeUTF8(<const char *> value.at, value.size, "replace")


cdef inline bint is_equal(Value value, bytes wanted) noexcept:
    return value.size == PyBytes_GET_SIZE(wanted) and memcmp(value.at, PyBytes_AS_STRING(wanted), value.size) == 0


def find_property(raw not None, bytes name not None):
    """The value of `name` in the stored form, None when it is absent or empty; the last one wins."""
    cdef Pages pages = Pages.__new__(Pages, raw)
    cdef Value value = find_value(
        pages.data, pages.size, <bytes_at> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
    )
    return PyBytes_FromStringAndSize(<const char *> value.at, value.size) if value.size > 0 else None


def decode_properties(raw not None):
    """All properties with a name and a value, in stored order; the last of equal names wins. Never fails."""
    cdef Pages pages = Pages.__new__(Pages, raw)
    cdef Value name, value
    cdef bytes_at at = pages.data, end = pages.data + pages.size, item_end
    cdef dict decoded = {}
    while at < end:
        item_end = find_byte(at, end, VALUE_END)
        name.at, name.size = at, find_byte(at, item_end, NAME_END) - at
        value.at, value.size = at + name.size + 1, item_end - at - name.size - 1
        if name.size > 0 and value.size > 0:
            decoded[text(name)] = text(value)
        at = item_end + 1
    return decoded


def carries_key(StoredMessage message not None, str key not None):
    """Whether `key` is one of the message's keys, or its unique key; the index itself knows only hashes."""
    return carries(message, key, encoded(key))


cdef bytes encoded(str name):
    try:
        return name.encode()
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogatepass")


cdef bint carries(StoredMessage message, str key, bytes wanted) except -1:
    cdef Value keys = message._find(KEYS, 4), word
    if not key:
        return False
    if "\ufffd" in key:  # U+FFFD also replaces invalid UTF-8
        return key in message.keys or key == message.unique_key
    while next_word(&keys, &word):
        if is_equal(word, wanted):
            return True
    return is_equal(message._find(UNIQUE_KEY, 8), wanted)

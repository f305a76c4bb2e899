# Big-endian loads and stores, and other functions that several modules of the kernel inline (docs/format.md, 2).
# None of these looks at bounds: the caller has, once for a whole record or range.

from libc.stdint cimport int16_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

ctypedef const unsigned char *bytes_at

cdef extern from *:
    """
    #if !__has_include(<isa-l/crc.h>)
    #error "the kernel needs ISA-L's headers: apt install libisal-dev (isa-l-devel, isa-l-dev elsewhere)"
    #endif
    #include <endian.h>
    #include <string.h>
    #include <isa-l/crc.h>
    static inline uint32_t crc32_of(uint32_t value, const unsigned char *data, uint64_t size) {
    #ifdef __SANITIZE_ADDRESS__ /* which does not watch what a library reads */
        if (size) { volatile unsigned char first = data[0], last = data[size - 1]; (void) first; (void) last; }
    #endif
        value = crc32_gzip_refl(value, data, size);
    #if defined(__x86_64__) && !defined(__AVX__) /* else all SSE after it waits for upper halves that ISA-L leaves set */
        if (__builtin_cpu_supports("avx")) __asm__ volatile ("vzeroupper");
    #endif
        return value;
    }
    static inline void prefetch(const unsigned char *at, int64_t size) {
        for (int64_t line = 0; line < size; line += 64) __builtin_prefetch((const char *) ((uintptr_t) at + line));
    }
    /* For what is mostly found within some words: a call takes longer than that. */
    static inline const unsigned char *find_byte(const unsigned char *at, const unsigned char *end, unsigned char byte) {
        const uint64_t ones = 0x0101010101010101u;
        for (int word = 0; word < 8; word++, at += 8) {
            uint64_t bytes;
            if (end - at < 8) {
                while (at < end && *at != byte) at++;
                return at;
            }
            memcpy(&bytes, at, 8);
            bytes = le64toh(bytes) ^ ones * byte; /* zero where it is */
            bytes = (bytes - ones) & ~bytes & ones << 7; /* the lowest bit is right, those above may not be */
            if (bytes) return at + (__builtin_ctzll(bytes) >> 3);
        }
        const void *found = memchr(at, byte, end - at);
        return found ? found : end;
    }
    """
    uint32_t crc32_of(uint32_t value, const unsigned char *data, uint64_t size) nogil
    void prefetch(const unsigned char *at, int64_t size) nogil  # of any address: it never fails
    bytes_at find_byte(bytes_at at, bytes_at end, unsigned char byte) nogil  # `end` where it is not

cdef extern from "<endian.h>" nogil:
    uint16_t be16toh(uint16_t value)
    uint32_t be32toh(uint32_t value)
    uint64_t be64toh(uint64_t value)
    uint16_t htobe16(uint16_t value)
    uint32_t htobe32(uint32_t value)
    uint64_t htobe64(uint64_t value)
    uint32_t htole32(uint32_t value)


cdef enum:  # how far ahead of a loop memory is asked for
    ROWS_AHEAD = 16
    BYTES_AHEAD = 256  # of each row


cdef enum:  # a record's fixed fields: positions and values
    MAGIC_AT = 4
    BODY_CRC_AT = 8
    QUEUE_ID_AT = 12
    FLAG_AT = 16
    QUEUE_OFFSET_AT = 20
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    BORN_TIME_AT = 40
    BORN_HOST_AT = 48
    STORE_TIME_AT = 56  # of a born host with IPv4
    HEADER_BYTES = 88  # with two such hosts
    AFTER_HOSTS_BYTES = 4 + 8 + 4  # reconsume times, the prepared transaction's offset, the body's size
    IPV6_MORE_BYTES = 12  # each host with IPv6
    LEAST_RECORD_BYTES = 91
    MAGIC = -626843481
    MAGIC_V2 = -626843477
    MAGIC_BYTE = 0xDA  # with which both begin
    COMPRESSED_FLAG = 0x1
    UNQUEUED_FLAG = 0x4  # a transaction that is prepared or rolled back
    BORN_IPV6_FLAG = 0x10
    STORE_IPV6_FLAG = 0x20
    INNER_BATCH_FLAGS = 0xC0  # with both set, a record may hold several messages
    CRC_MASK = 0x7FFFFFFF
    NAME_END = 1  # of a property
    VALUE_END = 2


cdef enum:  # of the header before each record of a ledger (14)
    ENTRY_BYTES = 48
    ENTRY_POSITION_AT = 24
    ENTRY_BODY_SIZE_AT = 44
    RECORD_ENTRY = 1


cdef inline int16_t get_i16(bytes_at at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return <int16_t> be16toh(value)


cdef inline int32_t get_i32(bytes_at at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return <int32_t> be32toh(value)


cdef inline int64_t get_i64(bytes_at at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return <int64_t> be64toh(value)


cdef inline void put_i16(unsigned char *at, int16_t number) noexcept nogil:
    cdef uint16_t value = htobe16(<uint16_t> number)
    memcpy(at, &value, 2)


cdef inline void put_i32(unsigned char *at, int32_t number) noexcept nogil:
    cdef uint32_t value = htobe32(<uint32_t> number)
    memcpy(at, &value, 4)


cdef inline void put_little_i32(unsigned char *at, int32_t number) noexcept nogil:
    cdef uint32_t value = htole32(<uint32_t> number)
    memcpy(at, &value, 4)


cdef inline void put_i64(unsigned char *at, int64_t number) noexcept nogil:
    cdef uint64_t value = htobe64(<uint64_t> number)
    memcpy(at, &value, 8)


cdef inline int64_t plus(int64_t one, int64_t other) noexcept nogil:
    return <int64_t> (<uint64_t> one + <uint64_t> other)  # physical offsets may be anything: no overflow in C


cdef inline bint is_framed(bytes_at header, int64_t size, int64_t physical_offset) noexcept nogil:
    # Whether that is the header before a record of that size, at that physical offset of a ledger.
    return (
        get_i32(header) == RECORD_ENTRY
        and get_i32(header + 4) == size + ENTRY_BYTES
        and get_i64(header + ENTRY_POSITION_AT) == plus(physical_offset, -ENTRY_BYTES)
        and get_i32(header + ENTRY_BODY_SIZE_AT) == size
    )


cdef inline int64_t java_hash(bytes_at text, int64_t size, uint32_t *value) noexcept nogil:
    # Java's String.hashCode of UTF-8, going on from `value`: how many UTF-16 units it has, -1 when it is no UTF-8.
    cdef uint32_t found = value[0], code, least
    cdef int64_t at = 0, units = size
    cdef int more, i
    while at < size:
        code = text[at]
        at += 1
        if code < 0x80:
            found = 31 * found + code
            continue
        if code < 0xC2 or code > 0xF4:
            return -1
        more = 1 if code < 0xE0 else 2 if code < 0xF0 else 3
        least = 0x80 if more == 1 else 0x800 if more == 2 else 0x10000
        if more > size - at:
            return -1
        code &= 0x3F >> more
        for i in range(more):
            if text[at] & 0xC0 != 0x80:
                return -1
            code = code << 6 | (text[at] & 0x3F)
            at += 1
        if code < least or 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
            return -1
        units -= more
        if code >= 0x10000:
            units += 1
            found = 31 * found + (0xD7C0 + (code >> 10))
            code = 0xDC00 | (code & 0x3FF)
        found = 31 * found + code
    value[0] = found
    return units


cdef inline void put_entry(unsigned char *at, int64_t physical_offset, int32_t size, int64_t tags_code) noexcept nogil:
    """An entry of a consume queue (docs/format.md, 6)."""
    put_i64(at, physical_offset)
    put_i32(at + 8, size)
    put_i64(at + 12, tags_code)


cdef extern from "Python.h":
    int PyUnicode_KIND(object text)
    void *PyUnicode_DATA(object text)
    uint32_t PyUnicode_READ(int kind, void *data, Py_ssize_t at)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)


cdef inline uint32_t hash_text(text, uint32_t value) except? 0:
    """Java's hash of a text behind one whose hash is `value`: over UTF-16 units."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no text")
    cdef int kind = PyUnicode_KIND(text)
    cdef void *data = PyUnicode_DATA(text)
    cdef Py_ssize_t at
    cdef uint32_t unit
    for at in range(PyUnicode_GET_LENGTH(text)):
        unit = PyUnicode_READ(kind, data, at)
        if unit > 0xFFFF:
            value = 31 * value + (0xD7C0 + (unit >> 10))
            unit = 0xDC00 + (unit & 0x3FF)
        value = 31 * value + unit
    return value


cdef inline int32_t index_hash_of(uint32_t value) noexcept nogil:
    """The index's hash of topic#key from Java's: its absolute value, 0 where there is none."""
    return <int32_t> ((0 - value if value >> 31 else value) & 0x7FFFFFFF)

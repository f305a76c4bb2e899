# Where the parts of one record are (docs/format.md, 2 and 14): inlined into the modules that look at many.

from libc.stdint cimport int8_t, int32_t, int64_t, uint32_t
from libc.string cimport memcmp

from engine.record.kernel.layout cimport (
    BODY_CRC_AT, BORN_IPV6_FLAG, COMPRESSED_FLAG, CRC_MASK, ENTRY_BYTES, HEADER_BYTES, IPV6_MORE_BYTES,
    LEAST_RECORD_BYTES, MAGIC, MAGIC_AT, MAGIC_V2, PHYSICAL_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, STORE_IPV6_FLAG,
    STORE_TIME_AT, SYS_FLAG_AT, bytes_at, crc32_of, get_i16, get_i32, get_i64, is_framed,
)


cdef struct Header:  # as `parsed_headers.HEADER`
    int64_t queue_offset
    int64_t physical_offset
    int32_t store_size
    int64_t body_size
    int64_t store_time_ms
    int32_t sys_flag
    unsigned char ok

cdef struct Place:  # as `parsed_headers.PLACE`
    int64_t body_start
    int64_t body_size
    int64_t topic_start
    int64_t topic_size
    int64_t properties_start
    int64_t properties_size
    int32_t queue_id
    int32_t body_crc


cdef inline bint is_magic(int32_t word) noexcept nogil:
    return word == MAGIC or word == MAGIC_V2


cdef inline bint has_parts(bytes_at log, int64_t topic, int64_t end, bint is_v2, Place *place) noexcept nogil:
    """Whether topic and properties of a record fill it from `topic` to `end`; then where they are."""
    cdef int64_t topic_size = get_i16(log + topic - 2) if is_v2 else <int8_t> log[topic - 1]
    cdef int64_t properties = topic + topic_size + 2, properties_size
    if topic_size < 0 or properties > end:
        return False
    properties_size = max(get_i16(log + properties - 2), 0)  # a negative size is read as none
    if properties + properties_size != end:
        return False
    place.topic_start, place.topic_size = topic, topic_size
    place.properties_start, place.properties_size = properties, properties_size
    return True


cdef inline bint find_record(
    bytes_at log, int64_t log_size, int64_t at, int64_t physical_offset, bint anywhere, bint is_ledger, bint whole,
    Header *header, Place *place,
) noexcept nogil:
    """Parse the record at `at`; returns whether there is one."""
    cdef int64_t header_bytes = HEADER_BYTES, left = log_size - at, size, body_size, topic
    cdef int32_t magic, sys_flag
    if at < 0 or at > log_size or left < HEADER_BYTES:
        return False
    size, magic, sys_flag = get_i32(log + at), get_i32(log + at + MAGIC_AT), get_i32(log + at + SYS_FLAG_AT)
    cdef int64_t born_more = IPV6_MORE_BYTES if sys_flag & BORN_IPV6_FLAG else 0
    header_bytes += born_more + (IPV6_MORE_BYTES if sys_flag & STORE_IPV6_FLAG else 0)
    if left < header_bytes:
        return False
    body_size = max(get_i32(log + at + header_bytes - 4), 0)  # a negative size is read as none
    header.queue_offset = get_i64(log + at + QUEUE_OFFSET_AT)
    header.physical_offset = get_i64(log + at + PHYSICAL_OFFSET_AT)
    header.store_size = <int32_t> size
    header.body_size = -1 if sys_flag & COMPRESSED_FLAG else body_size
    header.store_time_ms = get_i64(log + at + STORE_TIME_AT + born_more)
    header.sys_flag = sys_flag
    place.queue_id, place.body_crc = get_i32(log + at + QUEUE_ID_AT), get_i32(log + at + BODY_CRC_AT)
    topic = at + header_bytes + body_size + (2 if magic == MAGIC_V2 else 1)
    if not is_magic(magic) or size < LEAST_RECORD_BYTES or size > left or topic + 2 > at + size:
        return False
    if not anywhere and header.physical_offset != physical_offset:
        return False
    if is_ledger and (at < ENTRY_BYTES or not is_framed(log + at - ENTRY_BYTES, size, physical_offset)):
        return False
    if whole and not has_parts(log, topic, at + size, magic == MAGIC_V2, place):
        return False
    place.body_start, place.body_size = at + header_bytes, body_size
    return True


cdef inline bint is_whole_at(
    bytes_at log, const Header *header, const Place *place, const char *topic, int64_t topic_size, int64_t queue_id,
    int64_t queue_offset,
) noexcept nogil:
    """Whether a record that was found with all its parts is of that slot, and its body has its CRC."""
    return (
        header.queue_offset == queue_offset
        and place.queue_id == queue_id
        and place.topic_size == topic_size
        and memcmp(log + place.topic_start, topic, topic_size) == 0
        and (
            place.body_size == 0
            or crc32_of(0, log + place.body_start, place.body_size) & CRC_MASK == <uint32_t> place.body_crc
        )
    )

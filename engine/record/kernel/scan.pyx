# cython: boundscheck=False, wraparound=False
"""Scan (docs/format.md, 2, 8 and 14): records of a file of the log by the thousand: where they follow each other, where
their parts are, and whether their bodies are whole.

Bytes are whatever a disk holds: each position and size is compared with the buffer's end before it is used, in 64 bits,
and read once, since another process may be writing. Other threads run meanwhile.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy, memset

import numpy as np

from engine.record.kernel.guard cimport is_refused, touch
from engine.record.kernel.layout cimport (
    AFTER_HOSTS_BYTES, BORN_HOST_AT, BORN_IPV6_FLAG, BORN_TIME_AT, BYTES_AHEAD, CRC_MASK, ENTRY_BODY_SIZE_AT,
    ENTRY_BYTES, ENTRY_POSITION_AT, FLAG_AT, HEADER_BYTES, INNER_BATCH_FLAGS, IPV6_MORE_BYTES, LEAST_RECORD_BYTES,
    MAGIC_AT, MAGIC_BYTE, PHYSICAL_OFFSET_AT, RECORD_ENTRY, ROWS_AHEAD, STORE_IPV6_FLAG, bytes_at, crc32_of, get_i32,
    get_i64, plus, prefetch,
)
from engine.record.kernel.records cimport Header, Place, find_record, is_magic, is_whole_at

cdef enum:
    LAST_ENTRY_KIND = 3
    READ_AHEAD = 1024
    MOST_HOST_BYTES = 20
    NEWLINE = 10

cdef packed struct TopicRow:  # TOPIC_ROW of log/entries.py
    int64_t physical_offset
    int64_t queue_offset
    int32_t queue_id


cdef int require_range(int64_t start, int64_t end, int64_t size) except -1:
    if start < 0 or end < 0 or end > size:
        raise ValueError(f"[{start}, {end}) of {size} bytes")
    return 0


cdef inline int64_t frame_bytes(bytes_at log, int64_t at, int64_t end, int64_t base, bint is_ledger) noexcept nogil:
    """The size of the apparent frame at `at`, which is below `end`; 0 without one."""
    cdef int64_t left = end - at, size, least = ENTRY_BYTES if is_ledger else LEAST_RECORD_BYTES
    cdef int32_t kind
    if left < least:
        return 0
    size = get_i32(log + at + MAGIC_AT if is_ledger else log + at)  # an entry's magic comes first
    if size < least or size > left:
        return 0
    if not is_ledger:
        return size if is_magic(get_i32(log + at + MAGIC_AT)) else 0
    kind = get_i32(log + at)
    if kind < RECORD_ENTRY or kind > LAST_ENTRY_KIND or get_i64(log + at + ENTRY_POSITION_AT) != plus(base, at):
        return 0
    return size if get_i32(log + at + ENTRY_BODY_SIZE_AT) == size - ENTRY_BYTES else 0


def follow_chain(
    const unsigned char[::1] log not None, int64_t start, int64_t stop, int64_t end, int64_t base, bint is_ledger=False
):
    """The chain of what look like frames from `start` on in `log`, which is at `base` of the log.

    (positions of those that begin before `stop` and end by `end`, int64 (n,); the position after the last; whether what
    is there is none). Checked are the frame's header, and the record's magic and size; no more.
    """
    require_range(start, end, log.shape[0])
    stop = min(stop, end)
    found = np.empty(max(stop - start, 0) // (ENTRY_BYTES if is_ledger else LEAST_RECORD_BYTES) + 1, np.int64)
    cdef int64_t[::1] positions = found
    cdef int64_t at = start, size = 1, count = 0
    with nogil:
        while at < stop:
            size = frame_bytes(&log[0], at, end, base, is_ledger)
            if size == 0:
                break
            positions[count] = at
            count += 1
            at += size
            prefetch(&log[0] + at + READ_AHEAD, min(size, READ_AHEAD))  # the frames there are not known yet
    return found[:count], at, size == 0


cdef inline bint is_readable(bytes_at log, int64_t at, bint whole, const Header *header, const Place *place) noexcept nogil:
    """Whether the disk gave the record at `at`: the pages of its topic and properties, too, if it is `whole`. That of a
    body is asked by whoever reads it, its CRC."""
    if whole:
        touch(log + place.topic_start, at + header.store_size - place.topic_start)
    return not is_refused(log + at, header.store_size)


def parse_headers(
    const unsigned char[::1] log not None, const int64_t[::1] positions not None, const int64_t[::1] physical_offsets,
    bint is_ledger, bint whole, Header[::1] headers not None, Place[::1] places not None,
):
    """Fill in `headers` and `places` of the records at `positions` of `log`, which must be at
    `physical_offsets`, if these are given. Unless `whole`, nothing after the body is looked at."""
    cdef int64_t row, count = positions.shape[0]
    cdef bint anywhere = physical_offsets is None
    if headers.shape[0] != count or places.shape[0] != count or not anywhere and physical_offsets.shape[0] != count:
        raise ValueError("arrays of different lengths")
    with nogil:
        for row in range(count):
            if row + ROWS_AHEAD < count:
                prefetch(&log[0] + positions[row + ROWS_AHEAD], BYTES_AHEAD)
            memset(&headers[row], 0, sizeof(Header))
            memset(&places[row], 0, sizeof(Place))
            headers[row].ok = find_record(
                &log[0], log.shape[0], positions[row], 0 if anywhere else physical_offsets[row], anywhere, is_ledger,
                whole, &headers[row], &places[row],
            ) and is_readable(&log[0], positions[row], whole, &headers[row], &places[row])


def read_sizes(const unsigned char[::1] log not None, const int64_t[::1] positions not None):
    """Store sizes and body sizes (int64 (n,)) of records at `positions` of `log`: both 0 where no record is, -1 for a
    body that is compressed. By their fixed fields alone: all that `parse_headers` finds, and maybe more, but nothing of what
    may be a batch kept as one record."""
    cdef int64_t row, count = positions.shape[0]
    cdef Header header
    cdef Place place
    store_sizes, body_sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    cdef int64_t[::1] stores = store_sizes, bodies = body_sizes
    with nogil:
        for row in range(count):
            if row + ROWS_AHEAD < count:
                prefetch(&log[0] + positions[row + ROWS_AHEAD], HEADER_BYTES)
            if (
                find_record(&log[0], log.shape[0], positions[row], 0, True, False, False, &header, &place)
                and header.sys_flag & INNER_BATCH_FLAGS != INNER_BATCH_FLAGS
                and not is_refused(&log[positions[row]], header.store_size)
            ):
                stores[row], bodies[row] = header.store_size, header.body_size
    return store_sizes, body_sizes


def fixed_fields(
    const unsigned char[::1] log not None, const int64_t[::1] positions not None, const Header[::1] headers not None,
    const Place[::1] places not None,
):
    """Of located records, which must be `ok`: flags, times of birth and reconsume times (int64 (3, n)), and the hosts,
    of birth and of the store, as they are encoded, each at the beginning of 20 bytes (uint8 (n, 2, 20))."""
    cdef int64_t row, count = positions.shape[0], at, body, end = log.shape[0]
    cdef int64_t born_bytes, store_bytes
    if headers.shape[0] != count or places.shape[0] != count:
        raise ValueError("arrays of different lengths")
    numbers, hosts = np.empty((3, count), np.int64), np.zeros((count, 2, MOST_HOST_BYTES), np.uint8)
    cdef int64_t[:, ::1] found = numbers
    cdef unsigned char[:, :, ::1] found_hosts = hosts
    with nogil:
        for row in range(count):
            if row + ROWS_AHEAD < count:
                prefetch(&log[0] + positions[row + ROWS_AHEAD], HEADER_BYTES)
            at, body = positions[row], places[row].body_start
            born_bytes = 8 + (IPV6_MORE_BYTES if headers[row].sys_flag & BORN_IPV6_FLAG else 0)
            store_bytes = 8 + (IPV6_MORE_BYTES if headers[row].sys_flag & STORE_IPV6_FLAG else 0)
            if not 0 <= at <= end - HEADER_BYTES or not at <= body <= end:
                break
            if body - at != HEADER_BYTES - 16 + born_bytes + store_bytes:
                break
            found[0, row], found[1, row] = get_i32(&log[at + FLAG_AT]), get_i64(&log[at + BORN_TIME_AT])
            found[2, row] = get_i32(&log[body - AFTER_HOSTS_BYTES])
            memcpy(&found_hosts[row, 0, 0], &log[at + BORN_HOST_AT], born_bytes)
            memcpy(&found_hosts[row, 1, 0], &log[body - AFTER_HOSTS_BYTES - store_bytes], store_bytes)
        else:
            row = count
    if row < count:
        raise IndexError(f"no record at {positions[row]} of {end} bytes")
    return numbers, hosts


def whole_bodies(const unsigned char[::1] log not None, starts, sizes, crcs):
    """Which of the bodies log[start:start + size] are empty, or match their CRCs (int32 (n,)): bool (n,)."""
    cdef const int64_t[:] start = starts, size = sizes
    cdef const int32_t[:] crc = crcs
    cdef int64_t row, count = start.shape[0], end = log.shape[0]
    if size.shape[0] != count or crc.shape[0] != count:
        raise ValueError("arrays of different lengths")
    found = np.zeros(count, np.bool_)
    cdef unsigned char[::1] is_whole = found.view(np.uint8)
    with nogil:
        for row in range(count):
            if row + ROWS_AHEAD < count:
                prefetch(&log[0] + start[row + ROWS_AHEAD], BYTES_AHEAD)
            if size[row] == 0:
                is_whole[row] = True
            elif 0 < size[row] <= end and 0 <= start[row] <= end - size[row]:
                is_whole[row] = crc32_of(0, &log[start[row]], size[row]) & CRC_MASK == <uint32_t> crc[row]
    return found


def misplaced(
    const unsigned char[::1] log not None, const Header[::1] headers not None, const Place[::1] places not None,
    bytes topic, int64_t queue_id, int64_t first,
):
    """Which `ok` records (bool (n,)) name other slots than queue offsets `first`, `first` + 1 … of that queue."""
    cdef int64_t row, count = headers.shape[0], topic_size = len(topic), start, end = log.shape[0]
    cdef const char *name = topic
    if places.shape[0] != count:
        raise ValueError("arrays of different lengths")
    found = np.zeros(count, np.bool_)
    cdef unsigned char[::1] is_stray = found.view(np.uint8)
    with nogil:
        for row in range(count):
            start = places[row].topic_start
            if row + ROWS_AHEAD < count:
                prefetch(&log[0] + places[row + ROWS_AHEAD].topic_start, 1)
            is_stray[row] = headers[row].ok and (
                headers[row].queue_offset != plus(first, row)
                or places[row].queue_id != queue_id
                or places[row].topic_size != topic_size
                or not 0 <= start <= end - topic_size
                or memcmp(&log[start], name, topic_size) != 0
            )
    return found


def text_sizes(
    const unsigned char[::1] log not None, int64_t base, const int64_t[::1] physical_offsets not None, bytes topic,
    const int32_t[::1] queue_ids not None, const int64_t[::1] queue_offsets not None, bint is_ledger, int64_t unknown,
):
    """Bytes of text (body and newline, int64 (n,)) of the records at `physical_offsets` of `log`, which is at `base`;
    None when one is compressed, may be a batch, or is no record: a whole one, if any is `unknown`. Of the first so many,
    all is checked: CRC, topic, queue and queue offset."""
    cdef int64_t row, count = physical_offsets.shape[0], topic_size = len(topic)
    cdef const char *name = topic
    cdef Header header
    if queue_ids.shape[0] != count or queue_offsets.shape[0] != count:
        raise ValueError("arrays of different lengths")
    found = np.empty(count, np.int64)
    cdef int64_t[::1] sizes = found
    with nogil:
        for row in range(count):
            if row + ROWS_AHEAD < count:
                prefetch(&log[0] + plus(physical_offsets[row + ROWS_AHEAD], -base), BYTES_AHEAD)
            sizes[row] = text_size(
                &log[0], log.shape[0], base, physical_offsets[row], name, topic_size, queue_ids[row], queue_offsets[row],
                is_ledger, unknown > 0, row < unknown, &header,
            )
            if sizes[row] < 0:
                break
        else:
            row = count
    return found if row == count else None


def rows_text(
    const unsigned char[::1] log not None, int64_t base, int64_t file_bytes, bytes rows not None, int64_t first,
    bytes topic not None, bint is_ledger, int64_t checked_before,
):
    """The text of the messages in `rows` (TOPIC_ROW, in the order of the log) from row `first` on, up to the last one in
    the file of `file_bytes` that begins at `base` and has the pages `log`.

    (number of the row after them, their bytes, store time of the last). None as of `text_sizes`. Of records at physical
    offsets below `checked_before` all is checked."""
    cdef int64_t row = first, count = len(rows) // sizeof(TopicRow), found = 0, topic_size = len(topic)
    cdef int64_t size = 0, store_time_ms = 0
    cdef const char *name = topic
    cdef bytes_at data = rows
    cdef TopicRow at
    cdef Header header
    if not 0 <= first < count:
        raise ValueError(f"no row {first} of {count}")
    with nogil:
        while row < count:
            memcpy(&at, data + row * sizeof(TopicRow), sizeof(TopicRow))
            if plus(at.physical_offset, -base) >= file_bytes:
                break
            size = text_size(
                &log[0], log.shape[0], base, at.physical_offset, name, topic_size, at.queue_id, at.queue_offset,
                is_ledger, True, at.physical_offset < checked_before, &header,
            )
            if size < 0:
                break
            row, found, store_time_ms = row + 1, found + size, header.store_time_ms
    return None if size < 0 or row == first else (row, found, store_time_ms)


cdef inline int64_t text_size(
    bytes_at log, int64_t end, int64_t base, int64_t physical_offset, const char *topic, int64_t topic_size,
    int64_t queue_id, int64_t queue_offset, bint is_ledger, bint has_parts, bint whole, Header *header,
) noexcept nogil:
    """Bytes of the text (body and newline) of one record; -1 where `text_sizes` finds None."""
    cdef Place place
    cdef int64_t at = plus(physical_offset, -base)
    if not find_record(
        log, end, at, physical_offset, False, is_ledger, has_parts, header, &place
    ) or header.body_size < 0 or header.sys_flag & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS:
        return -1
    if whole and not is_whole_at(log, header, &place, topic, topic_size, queue_id, queue_offset):
        return -1
    return -1 if is_refused(log + at, header.store_size) else place.body_size + 1


def copy_texts(
    const unsigned char[::1] log not None, int64_t base, const int64_t[::1] physical_offsets not None, bint is_ledger,
    unsigned char[::1] target not None,
):
    """Write the text (body and newline) of the records at `physical_offsets` of `log`, which is at `base`, to `target`:
    how many bytes; -1 when one is compressed, may be a batch, or is no record, or when there is no room."""
    cdef int64_t row, count = physical_offsets.shape[0], end = log.shape[0], filled = 0, room = target.shape[0]
    cdef Header header
    cdef Place place
    with nogil:
        for row in range(count):
            if row + ROWS_AHEAD < count:
                prefetch(&log[0] + plus(physical_offsets[row + ROWS_AHEAD], -base), BYTES_AHEAD)
            if not find_record(
                &log[0], end, plus(physical_offsets[row], -base), physical_offsets[row], False, is_ledger, False,
                &header, &place,
            ) or header.body_size < 0 or header.sys_flag & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS:
                break
            if place.body_size >= room - filled:
                break
            memcpy(&target[filled], &log[place.body_start], place.body_size)
            if is_refused(&log[plus(physical_offsets[row], -base)], header.store_size):
                break
            target[filled + place.body_size] = NEWLINE
            filled += place.body_size + 1
        else:
            row = count
    return filled if row == count else -1


def placed_headers(
    const unsigned char[::1] log not None, int64_t start, int64_t end, int64_t base, int64_t[::1] found not None
):
    """Fill in the first positions in [start, end) of `log`, which is at `base` of the log, where magic and physical
    offset are those of a record there: (how many, where to go on)."""
    require_range(start, end, log.shape[0])
    cdef int64_t at = start, after = end - PHYSICAL_OFFSET_AT - 8 + 1, count = 0
    cdef const void *hit
    with nogil:
        while at < after and count < found.shape[0]:
            hit = memchr(&log[at + MAGIC_AT], MAGIC_BYTE, after - at)
            if hit == NULL:
                at = after
                break
            at = <bytes_at> hit - &log[0] - MAGIC_AT
            if is_magic(get_i32(&log[at + MAGIC_AT])) and get_i64(&log[at + PHYSICAL_OFFSET_AT]) == plus(base, at):
                found[count] = at
                count += 1
            at += 1
    return count, at

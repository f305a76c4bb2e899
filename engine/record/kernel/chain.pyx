"""Chain (docs/format.md, 7): the entries of an index file that share a bucket, newest first.

Numbers are whatever a disk holds: each is compared with how many entries there are before it is followed, and they must
fall along a chain, so it ends.
"""

from libc.stdint cimport int32_t, int64_t

from engine.record.kernel.layout cimport bytes_at, get_i32, get_i64
from engine.record.kernel.pages cimport Pages

cdef enum:
    NEXT_ENTRY_AT = 36
    HEADER_BYTES = 40
    SLOT_BYTES = 4
    ENTRY_BYTES = 20
    PLACE_AT = 4
    PREVIOUS_AT = 16

NEWEST = -1


def walk_chain(view not None, int64_t slots, int64_t entries, int32_t key_hash, int64_t number, int64_t most):
    """Follow `most` entries of the hash's bucket from that of `number` on, NEWEST or as the call before returned it, in
    an index file of so many slots and entries: (physical offsets of those that have the hash, neighbours that are
    equal once; the number to go on from, 0 at the end). IndexError: `view` is shorter.
    """
    cdef Pages pages = Pages.__new__(Pages, view)
    cdef bytes_at header = pages.at(0, HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * entries)
    cdef bytes_at first = header + HEADER_BYTES + SLOT_BYTES * slots
    cdef bytes_at entry
    cdef list found = []
    cdef int64_t place, newest_place = -1, previous
    if number == NEWEST:
        number = get_i32(header + HEADER_BYTES + SLOT_BYTES * (key_hash % slots))
        # read after the slot: a writer counts an entry before a slot leads to it (RocketMQ: just after)
        if number > get_i32(header + NEXT_ENTRY_AT):
            number = 0
    if number >= entries:
        number = 0
    while number > 0 and most > 0:
        entry = first + ENTRY_BYTES * number
        if get_i32(entry) == key_hash:
            place = get_i64(entry + PLACE_AT)
            if not found or place != newest_place:
                found.append(place)
                newest_place = place
        previous = get_i32(entry + PREVIOUS_AT)
        number = previous if previous < number else 0  # else damaged, or another file's sizes
        most -= 1
    return found, max(number, 0)

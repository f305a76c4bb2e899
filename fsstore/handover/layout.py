"""The layout of the shared memory that a mount's next server takes over.

The server's keeper (mountctl/keeper.py) holds the memory and the /dev/fuse descriptor. The memory is not on disk and
ends with the mount. Its words have 8 bytes in the machine's own byte order:

        header    magic, version, restarts, next inode number, requests used, lengths of the INIT request and its reply,
                  last handle, begin of computed inode numbers, planned restarts, 1 if the last server left in order,
                  start time of the first server, time of this server's first answer, handles used; both INIT texts at
                  AGREED_BYTES, and at WORKING_BYTES
                  the requests that its threads work on: WORKERS of unique (0: none); the suspects of the last deaths:
                  WORKERS of unique (0: none), signal, deaths in a row
        store     at STORE_BYTES: one word with the number of the valid text (0 or 1) and its length; two texts, JSON
        requests  REQUESTS of: unique (0: free), state, physical offset, user + 1         requests that change something
        handles   HANDLES of: handle (0: free), inode, flags, bytes lost (0: none), published, user      open handles
        table     SEGMENTS of: bytes used (0: free), sequence                             the segments' order and length
        segments  records: bytes << 8 | kind (0: dead), key, 6 words; then data
                  NODE      inode; look-ups, extra, bytes, is it named, user + 1          the path of an inode number
                  STATE     handle; unique, errno, owner, bytes, flags, published         unpublished bytes of a handle

A server may die between any two stores to memory, so the word that makes other words valid is stored after them. A
record is never changed, except for its counters and its mark as dead: a new record replaces it.

Thread safety: one thread, but for `RequestJournal.placing`, `run`, `free` and `NodeRecords.set_extra`.
"""

from __future__ import annotations

MAGIC = 0x5245564F444E4148
VERSION = 3
MEMORY_BYTES = 1 << 30
"""The size of the mapping; pages that were never written take no memory."""
AGREED_BYTES = 1 << 12
LARGEST_AGREED_BYTES = 1 << 10
WORKING_BYTES, WORKERS = 1 << 13, 64
STORE_BYTES, LARGEST_STORE_BYTES = 3 << 12, 1 << 11
HEADER_BYTES = 1 << 16
REQUESTS, REQUEST_WORDS = 1 << 16, 4
HANDLES, HANDLE_WORDS = 1 << 19, 8
SEGMENT_BYTES = 1 << 17
RECORD_BYTES = 64

MAGIC_WORD, VERSION_WORD, RESTARTS_WORD, NEXT_NUMBER_WORD, REQUESTS_USED_WORD = range(5)
REQUEST_BYTES_WORD, REPLY_BYTES_WORD = range(5, 7)
LAST_HANDLE_WORD, COMPUTED_WORD, PLANNED_WORD, IS_LEFT_WORD, STARTED_WORD, ANSWERED_WORD, HANDLES_USED_WORD = range(
    7, 14
)
WORKING_BEGIN = WORKING_BYTES // 8
SUSPECTS_BEGIN = WORKING_BEGIN + WORKERS
SUSPECTS_END = SUSPECTS_BEGIN + 3 * WORKERS
REQUESTS_BEGIN = HEADER_BYTES // 8
SEGMENT_TABLE = REQUESTS_BEGIN + REQUESTS * REQUEST_WORDS
HANDLES_BEGIN = (1 << 22) // 8
DATA_BEGIN = (HANDLES_BEGIN + HANDLES * HANDLE_WORDS) * 8
SEGMENTS = (MEMORY_BYTES - DATA_BEGIN) // SEGMENT_BYTES


OTHER_VERSION = (
    "the mount was made by another version of fsstore, whose open files this one can't take over:"
    " umount, then mount anew, to have this one serve it"
)


class HandoverError(Exception):
    """The memory has another version, or the kernel negotiates INIT differently now."""

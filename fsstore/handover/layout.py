"""The layout of the shared memory that a mount's next server takes over.

The server's keeper (mountctl/keeper.py) holds the memory and the /dev/fuse descriptor. Nothing here is on disk, and all
of it goes with the mount. In words of 8 bytes of the machine's own order:

    header    magic, version, restarts, next number, requests used, lengths of the INIT request and of its reply, last
              handle, begin of computed numbers, planned restarts, did the last server leave in order, time when the
              first one began, time of this server's first answer, handles used; both requests at AGREED_BYTES, and at
              WORKING_BYTES
              what its threads are working on: WORKERS of unique (0: nothing); what was worked on when the last servers
              died: WORKERS of unique (0: none), signal, deaths in a row
    store     at STORE_BYTES: number of the text that counts (0 or 1) and its length in one word; two texts, JSON
    requests  REQUESTS of: unique (0: free), state, physical offset, user + 1         what is not idempotent
    handles   HANDLES of: handle (0: free), inode, flags, bytes lost (0: none), published, user      what is open
    table     SEGMENTS of: bytes used (0: free), sequence                             where records are
    segments  records: bytes << 8 | kind (0: dead), key, 6 words; then data
              NODE      number; look-ups, extra, bytes, is it named, user + 1         what the kernel knows by a number
              STATE     handle; unique, errno, owner, bytes, flags, published         what a handle holds unpublished

A server may die between any two stores, so a word that makes others count is stored after them. A record is never
changed but for its counters and what says that it is dead: another one takes its place.

Thread safety: one thread, but for `RequestJournal.placing`, `run`, `free` and `NodeRecords.set_extra`.
"""

from __future__ import annotations

MAGIC = 0x5245564F444E4148
VERSION = 3
MEMORY_BYTES = 1 << 30
"""What is never touched takes no memory."""
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
    """What was handed over can't be understood, or the kernel's agreement is another one."""

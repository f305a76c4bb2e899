"""Shared memory that a mount's next server takes over when its server was killed, or left: numbers, handles, requests.

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

import ctypes
import errno
import json
import logging
import mmap
import os
import signal
import socket
import sys
import threading
import time
from array import array
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from struct import Struct
from typing import NamedTuple, Protocol

log = logging.getLogger(__name__)

MAGIC = 0x5245564F444E4148
VERSION = 3
MEMORY_BYTES = 1 << 30
"""What is never touched takes no memory."""
AGREED_BYTES = 1 << 12
LARGEST_AGREED_BYTES = 1 << 10
WORKING_BYTES, WORKERS = 1 << 13, 64
STORE_BYTES, LARGEST_STORE_BYTES = 3 << 12, 1 << 11
LONGEST_STORE_WORD = LARGEST_STORE_BYTES // 6 - 64
"""Characters of a text, each of which JSON may write as six."""
_HEADER_BYTES = 1 << 16
REQUESTS, REQUEST_WORDS = 1 << 16, 4
HANDLES, HANDLE_WORDS = 1 << 19, 8
UNCOUNTED_REQUESTS = 64
"""So many at once count to nobody's share: requests that are answered at once need no look at it."""
SEGMENT_BYTES = 1 << 17
RECORD_BYTES = 64
QUANTUM_BYTES = 1 << 14
"""Shares are taken in pieces of this size."""
LEAST_CHARGED_BYTES = 192
"""What each record counts besides its own size."""
IDLE_USERS = 64
"""So many who hold nothing may keep a piece for the next time."""
SPARE_BYTES = 1 << 20
"""So much may be dead, besides as much as is live."""
KEPT_BYTES = 1 << 16
"""Of a begun line or body: more is lost with the server, and its handle answers EIO from then on."""
LARGEST_TEXT_BYTES = 1 << 20
"""Of an open report: of a longer one, who has read a part reads no more."""

RESENT = 1 << 63
"""Set in `unique` of a request that the kernel sends once more."""

_MAGIC, _VERSION, _RESTARTS, _NEXT_NUMBER, _REQUESTS_USED, _REQUEST_BYTES, _REPLY_BYTES = range(7)
_LAST_HANDLE, _COMPUTED, _PLANNED, _IS_LEFT, _STARTED, _ANSWERED, _HANDLES_USED = range(7, 14)
_WORKING = WORKING_BYTES // 8
_SUSPECTS = _WORKING + WORKERS
_SUSPECTS_END = _SUSPECTS + 3 * WORKERS
_REQUESTS_BEGIN = _HEADER_BYTES // 8
_SEGMENT_TABLE = _REQUESTS_BEGIN + REQUESTS * REQUEST_WORDS
_HANDLES_BEGIN = (1 << 22) // 8
_DATA_BEGIN = (_HANDLES_BEGIN + HANDLES * HANDLE_WORDS) * 8
SEGMENTS = (MEMORY_BYTES - _DATA_BEGIN) // SEGMENT_BYTES
_RECORD = Struct("=8Q")
_NODE, _STATE = 1, 2
_INODE, _FLAGS, _LOST, _PUBLISHED, _USER = range(1, 6)
_BEGUN, _PLACED, _STORED, _DONE = 1, 2, 3, 4


OTHER_VERSION = (
    "the mount was made by another version of fsstore, whose open files this one can't take over:"
    " umount, then mount anew, to have this one serve it"
)


class HandoverError(Exception):
    """What was handed over can't be understood, or the kernel's agreement is another one."""


class HandoverFigures(NamedTuple):
    """Of the memory that outlives the daemon."""

    bytes: int
    """Memory that records take, dead ones too."""
    limit_bytes: int
    """How much there can be."""
    live_bytes: int
    """Of records that count."""
    names: int
    """Numbers that the kernel knows, and that the next server is to know."""
    handles: int
    """Files and directories that are open."""
    handles_lost: int
    """Those that answer EIO should this daemon be killed: what was begun is too long, or found no room."""
    requests: int
    """Requests that publish or change something, and are not answered yet."""


CRASHES = frozenset((signal.SIGBUS, signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGABRT))
"""Signals by which a program ends through a defect."""
CRASHES_TO_REFUSE, KILLS_TO_REFUSE = 2, 3
"""A request that was worked on at so many deaths in a row is refused."""
QUICK_KILL_NS = 1_000_000_000
"""A SIGKILL counts against a request within this time after the server's first answer, or before that answer."""


class Handover:
    """The shared memory of one mount."""

    def __init__(self, descriptor: int) -> None:
        """Take over what is there. HandoverError: it was not made by this version."""
        self.require_ours(descriptor)
        self.descriptor = descriptor
        memory = memoryview(mmap.mmap(descriptor, MEMORY_BYTES))
        self._bytes = memory
        self._words = words = memory.cast("Q")
        self.working = words[_WORKING:_SUSPECTS]
        """Of each thread of the server, which request it works on, by `unique`; 0: none."""
        self.was_left = False
        """Whether it was taken over from a server that left in order."""
        self.records = Records(words, memory)
        self.requests = RequestJournal(words)
        self.ledger = Ledger()
        self.handles = HandleRecords(words, self.records, self.ledger)
        self.nodes = NodeRecords(words, self.records)

    @staticmethod
    def require_ours(descriptor: int) -> None:
        """HandoverError: it was not made by this version. Another server may be using it."""
        begins = MAGIC.to_bytes(8, sys.byteorder) + VERSION.to_bytes(8, sys.byteorder)
        if os.fstat(descriptor).st_size != MEMORY_BYTES or os.pread(descriptor, 16, 0) != begins:
            raise HandoverError(OTHER_VERSION)

    @classmethod
    def create(cls) -> int:
        """The descriptor of new shared memory; it is closed on exec."""
        descriptor = os.memfd_create("fsstore-handover", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, MEMORY_BYTES)
        with mmap.mmap(descriptor, 1 << 16) as memory, memoryview(memory) as view, view.cast("Q") as words:
            words[_VERSION], words[_NEXT_NUMBER] = VERSION, 1
            words[_MAGIC] = MAGIC
        return descriptor

    # for the keeper, while no server runs or another one may

    @classmethod
    def has_answered(cls, descriptor: int) -> bool:
        """Whether the server that serves, or died last, has answered a request. To be asked before `note_death`."""
        return any(os.pread(descriptor, 8, _ANSWERED * 8))

    @classmethod
    def note_death(cls, descriptor: int, signal_number: int) -> None:
        """The server was killed by a signal: count that death against what its threads were working on, and forget
        when it answered first. No other server has taken over yet."""
        with mmap.mmap(descriptor, _HEADER_BYTES) as memory, memoryview(memory) as view, view.cast("Q") as words:
            known = _suspects(words)
            is_blamed = signal_number in CRASHES or (signal_number == signal.SIGKILL and _is_quick(words[_ANSWERED]))
            rows: list[int] = []
            for unique in {one & ~RESENT for one in words[_WORKING:_SUSPECTS] if one and is_blamed}:
                last, count = known.get(unique, (0, 0))
                goes_on = (last == signal.SIGKILL) == (signal_number == signal.SIGKILL)
                rows += [unique, signal_number, count + 1 if goes_on else 1]
            words[_ANSWERED] = 0
            rows += [0] * (_SUSPECTS_END - _SUSPECTS - len(rows))
            words[_WORKING:_SUSPECTS_END] = memoryview(array("Q", [0] * WORKERS + rows))

    # for a server

    def answered(self, now_ns: int) -> None:
        """The server sends its first answer, at a time of CLOCK_MONOTONIC."""
        self._words[_ANSWERED] = now_ns

    def poisoned(self) -> dict[int, str]:
        """Requests, by `unique` without RESENT, to be refused since servers died of them, and how these died."""
        return {
            unique: f"{count} daemons in a row were killed by {signal.Signals(last).name} while they worked on it"
            for unique, (last, count) in _suspects(self._words).items()
            if count >= (KILLS_TO_REFUSE if last == signal.SIGKILL else CRASHES_TO_REFUSE)
        }

    def figures(self) -> HandoverFigures:
        """Of what is in it now."""
        records = self.records
        handles = self.handles
        size = records.used_bytes + self._words[_HANDLES_USED] * HANDLE_WORDS * 8
        live_bytes = records.live_bytes + len(handles) * HANDLE_WORDS * 8
        counts = len(records.of[_NODE]), len(handles), len(handles.lost), len(self.requests.slots)
        return HandoverFigures(size, MEMORY_BYTES, live_bytes, *counts)

    @property
    def restarts(self) -> int:
        """How often a killed server was replaced."""
        return self._words[_RESTARTS]

    @property
    def planned_restarts(self) -> int:
        """How often a server left in order, and another one took over."""
        return self._words[_PLANNED]

    @property
    def store(self) -> StoreNote:
        """What the last server knew of the store."""
        number, size = divmod(self._words[STORE_BYTES // 8], 1 << 32)
        begin = STORE_BYTES + RECORD_BYTES + number * LARGEST_STORE_BYTES
        return StoreNote(*json.loads(bytes(self._bytes[begin : begin + size]))) if size else StoreNote()

    @store.setter
    def store(self, note: StoreNote) -> None:
        """One thread at a time."""
        words = (word[:LONGEST_STORE_WORD] if isinstance(word, str) else word for word in note)
        text = json.dumps(list(words)).encode()
        number = 1 - (self._words[STORE_BYTES // 8] >> 32)
        begin = STORE_BYTES + RECORD_BYTES + number * LARGEST_STORE_BYTES
        self._bytes[begin : begin + len(text)] = text
        self._words[STORE_BYTES // 8] = number << 32 | len(text)

    def leave(self) -> None:
        """The store is closed: whoever takes over need not recover it."""
        self._words[_IS_LEFT] = 1

    def take_over(self) -> None:
        """Count one more restart, of the one kind or the other."""
        words = self._words
        self.was_left = bool(words[_IS_LEFT])
        words[_IS_LEFT] = words[_ANSWERED] = 0
        words[_PLANNED if self.was_left else _RESTARTS] += 1

    def started_ns(self, now_ns: int) -> int:
        """When the first server began; the first one says `now_ns`."""
        self._words[_STARTED] = self._words[_STARTED] or now_ns
        return self._words[_STARTED]

    @property
    def computed_begin(self) -> int:
        """What is added to a physical offset in a computed number."""
        return self._words[_COMPUTED]

    @computed_begin.setter
    def computed_begin(self, begin: int) -> None:
        self._words[_COMPUTED] = begin

    @property
    def agreed(self) -> tuple[bytes, bytes] | None:
        """The kernel's first request and the reply to it, once it was answered."""
        return self.agreed_in(self.descriptor)

    @classmethod
    def agreed_in(cls, descriptor: int) -> tuple[bytes, bytes] | None:
        """As `agreed`, of memory that another server may be using. HandoverError: it was not made by this version."""
        cls.require_ours(descriptor)
        sizes = memoryview(os.pread(descriptor, 16, _REQUEST_BYTES * 8)).cast("Q")
        if not sizes[0]:
            return None
        begin = AGREED_BYTES + LARGEST_AGREED_BYTES
        return os.pread(descriptor, sizes[0], AGREED_BYTES), os.pread(descriptor, sizes[1], begin)

    def agree(self, request: bytes, reply: bytes) -> None:
        """Note the kernel's first request and the reply to it."""
        begin = AGREED_BYTES + LARGEST_AGREED_BYTES
        self._bytes[AGREED_BYTES : AGREED_BYTES + len(request)] = request
        self._bytes[begin : begin + len(reply)] = reply
        self._words[_REPLY_BYTES] = len(reply)
        self._words[_REQUEST_BYTES] = len(request)


def _is_quick(answered_ns: int) -> bool:
    """Whether a server that dies now has served for so short a time that what it worked on may be to blame."""
    return not answered_ns or time.monotonic_ns() - answered_ns <= QUICK_KILL_NS


def _suspects(words: memoryview) -> dict[int, tuple[int, int]]:
    """Signal of the last death, and deaths in a row, by what was worked on at each of them."""
    rows = iter(words[_SUSPECTS:_SUSPECTS_END].tolist())
    return {unique: (last, count) for unique, last, count in zip(rows, rows, rows, strict=True) if unique}


class StoreNote(NamedTuple):
    """What the next server has to know of the store: which one it is, why a flush of it failed, and how often in a row
    it could not be opened for writing, because the disk refused."""

    name: str = ""
    inode: int = 0
    failure: str = ""
    refused: int = 0


class Shares(Protocol):
    """How much memory each user may take: a part of `fsstore.accounts.Accounts`, and of the memory budget."""

    def take(self, user: int, size: int) -> None:
        """OSError: it would be more than the user's share."""

    def give(self, user: int, size: int) -> None:
        """Take some back."""

    def inherit(self, user: int, size: int) -> None:
        """As `take`, for what was there before: never refused."""


class NoShares:
    """Everybody may take all."""

    def take(self, user: int, size: int) -> None:
        pass

    give = inherit = take


class Records:
    """Records of 64 bytes and data, by kind and key. They are appended to segments; the newest of a key counts.

    A record that is replaced or dropped is marked dead where it is, and a segment without live records is free. Where
    most of what is used is dead, the live records of one segment after the other are appended once more, which leaves
    two equal ones for a moment: a server may be killed between any two stores.
    """

    def __init__(self, words: memoryview, memory: memoryview) -> None:
        self.of: dict[int, dict[int, int]] = {_NODE: {}, _STATE: {}}
        """Where the record of each key is, in words, by kind."""
        self.lock = threading.Lock()
        """Held while records move or go that another thread than the one that appends may change."""
        self._words = words
        self._bytes = memory
        self._live: dict[int, int] = {}
        """Live bytes by segment, of those in use. One record may take several: then it is the first one's."""
        self._is_used = bytearray(SEGMENTS)
        self._segment, self._end, self._limit = -1, 0, 0
        """Which is appended to, up to where it is used, and up to where it may be, in bytes."""
        self._sequence = 0
        self._scan()

    @property
    def used_bytes(self) -> int:
        """Memory in use."""
        return self._is_used.count(1) * SEGMENT_BYTES

    @property
    def live_bytes(self) -> int:
        """Bytes of records that count."""
        return sum(list(self._live.values()))

    def data(self, record: int, size: int) -> bytes:
        """The bytes of a record."""
        begin = record * 8 + RECORD_BYTES
        return bytes(self._bytes[begin : begin + size])

    def add(self, kind: int, key: int, fields: tuple[int, int, int, int, int, int], data: bytes | bytearray) -> None:
        """Append a record, which replaces the one of that key. OSError, and nothing has changed: no room."""
        size = _record_bytes(len(data)) if data else RECORD_BYTES
        if self._end + size > self._limit:
            self._advance(size)
        begin = self._end
        _RECORD.pack_into(self._bytes, begin, size << 8 | kind, key, *fields)
        if data:
            self._bytes[begin + RECORD_BYTES : begin + RECORD_BYTES + len(data)] = data
        self._commit(size)
        index = self.of[kind]
        old = index.get(key)
        index[key] = begin // 8
        if old is not None:
            self._kill(old)

    def drop(self, kind: int, key: int) -> None:
        """Drop the record of a key, if there is one."""
        record = self.of[kind].pop(key, None)
        if record is not None:
            self._kill(record)

    def _kill(self, record: int) -> None:
        """A record is dead, and in no index."""
        words, live = self._words, self._live
        head = words[record]
        words[record] = head & ~0xFF
        segment = (record * 8 - _DATA_BEGIN) // SEGMENT_BYTES
        live[segment] -= head >> 8
        if not live[segment] and segment != self._segment:
            self._free(segment)

    # segments

    def _scan(self) -> None:
        table = self._words[_SEGMENT_TABLE : _SEGMENT_TABLE + 2 * SEGMENTS].tolist()
        ends, sequences = table[::2], table[1::2]
        for segment in sorted(filter(ends.__getitem__, range(SEGMENTS)), key=sequences.__getitem__):
            self._take_segment(segment, -(-ends[segment] // SEGMENT_BYTES))
            self._sequence = sequences[segment]
            for record, head, key in self._records_in(segment):
                index = self.of[head & 0xFF]
                older = index.get(key)
                index[key] = record
                self._live[segment] += head >> 8
                if older is not None:
                    self._kill(older)
            if not self._live[segment]:
                self._free(segment)

    def _records_in(self, segment: int) -> Iterator[tuple[int, int, int]]:
        """Where each live one is, its head and its key."""
        words, record = self._words, _begin_of(segment) // 8
        end = record + words[_SEGMENT_TABLE + 2 * segment] // 8
        while record < end:
            head = words[record]
            if head & 0xFF:
                yield record, head, words[record + 1]
            record += head >> 11

    def _commit(self, size: int) -> None:
        """What was written after the end of the segment is a record."""
        segment = self._segment
        self._end += size
        self._words[_SEGMENT_TABLE + 2 * segment] = self._end - _DATA_BEGIN - segment * SEGMENT_BYTES
        self._live[segment] += size

    def _advance(self, size: int) -> None:
        """Have room for a record. OSError: there is none."""
        if self.used_bytes > 2 * self.live_bytes + SPARE_BYTES:
            with self.lock:
                self._compact()
        if self._end + size > self._limit:
            self._begin_segment(size)

    def _begin_segment(self, size: int) -> None:
        count = -(-size // SEGMENT_BYTES)
        segment, last = self._is_used.find(bytes(count)), self._segment
        if segment < 0:
            raise OSError(errno.ENOBUFS, "the memory that outlives the daemon is full")
        self._take_segment(segment, count)
        self._sequence += 1
        self._words[_SEGMENT_TABLE + 2 * segment + 1] = self._sequence
        self._segment, self._end = segment, _begin_of(segment)
        self._limit = self._end + (SEGMENT_BYTES if count == 1 else size)
        if self._live.get(last) == 0:
            self._free(last)

    def _compact(self) -> None:
        """Append what is live of the segment that has least of it once more."""
        least = min(self._live.keys() - {self._segment}, key=self._live.__getitem__, default=None)
        if least is None or self._live[least] > SEGMENT_BYTES // 4 * 3:
            return
        for record, head, key in list(self._records_in(least)):
            size = head >> 8
            if self._end + size > self._limit:
                self._begin_segment(size)
            begin = self._end
            self._bytes[begin : begin + size] = self._bytes[record * 8 : record * 8 + size]
            self._commit(size)
            self.of[head & 0xFF][key] = begin // 8
            self._kill(record)

    def _take_segment(self, segment: int, count: int) -> None:
        self._live[segment] = 0
        self._is_used[segment : segment + count] = b"\1" * count

    def _free(self, segment: int) -> None:
        """No record of it is live."""
        entry = _SEGMENT_TABLE + 2 * segment
        count = max(-(-self._words[entry] // SEGMENT_BYTES), 1)
        self._words[entry] = 0
        mapped: mmap.mmap = self._bytes.obj  # type: ignore[assignment] # of any object that has a buffer
        mapped.madvise(mmap.MADV_REMOVE, _begin_of(segment), count * SEGMENT_BYTES)
        self._is_used[segment : segment + count] = bytes(count)
        del self._live[segment]


class Ledger:
    """Bytes of records by user. Shares are taken and given back in pieces, so that most records take no look at them,
    and an idle user keeps a piece for a while."""

    def __init__(self) -> None:
        self.shares: Shares = NoShares()
        self._held: dict[int, int] = {}
        self._granted: dict[int, int] = {}

    def charge(self, user: int, more: int) -> None:
        """Count bytes to a user; fewer than 0: back. OSError: more than the share, and nothing has changed."""
        held = self._held.get(user, 0) + more
        spare = self._granted.get(user, 0) - held
        if not 0 <= spare <= 2 * QUANTUM_BYTES:
            self._adjust(user, spare)
        self._held[user] = held

    def _adjust(self, user: int, spare: int) -> None:
        """Take or give back as many pieces as leave one of them spare at most."""
        pieces = spare // QUANTUM_BYTES - (spare > 0)
        if spare < 0:
            self._give_idle()
            self.shares.take(user, -pieces * QUANTUM_BYTES)
        else:
            self.shares.give(user, pieces * QUANTUM_BYTES)
        self._granted[user] = self._granted.get(user, 0) - pieces * QUANTUM_BYTES

    def _give_idle(self) -> None:
        """Take back what users keep who hold nothing, if there are many of them."""
        if len(self._held) > IDLE_USERS:
            for user in [user for user, held in self._held.items() if not held]:
                self.shares.give(user, self._granted.pop(user))
                del self._held[user]

    def inherit(self, user: int, size: int) -> None:
        """Count what was there before."""
        self._held[user] = self._granted[user] = self._held.get(user, 0) + size

    def share_out(self, shares: Shares) -> None:
        """From now on nobody gets more than a share."""
        self.shares = shares
        for user, size in self._granted.items():
            shares.inherit(user, size)


def _begin_of(segment: int) -> int:
    """Where a segment begins, in bytes."""
    return _DATA_BEGIN + segment * SEGMENT_BYTES


def _record_bytes(data_bytes: int) -> int:
    """Of a record with so many bytes of data."""
    return RECORD_BYTES + (data_bytes + RECORD_BYTES - 1) // RECORD_BYTES * RECORD_BYTES


def _charged_bytes(data_bytes: int) -> int:
    """What a record counts to its user: the daemon's own memory for it is as large, and takes time to go through."""
    return LEAST_CHARGED_BYTES + _record_bytes(data_bytes)


HANDLE_BYTES = _charged_bytes(0)
"""What an open file counts."""


# numbers


class NodeText(NamedTuple):
    """What a number stands for, as text that a later version understands."""

    kind: str
    topic: str | None
    queue: int | None
    detail: Hashable


@lru_cache(maxsize=1024)
def _encoded(text: NodeText) -> bytes:
    return json.dumps(text).encode()


class NodeRecords:
    """What the kernel's numbers stand for, and how often it was told each."""

    def __init__(self, words: memoryview, records: Records) -> None:
        self._words = words
        self._records = records
        self._record_of = records.of[_NODE]

    @property
    def next_number(self) -> int:
        """One that was never given."""
        return self._words[_NEXT_NUMBER]

    @next_number.setter
    def next_number(self, number: int) -> None:
        self._words[_NEXT_NUMBER] = number

    def all(self) -> Iterator[tuple[int, NodeText, bool, int, int | None]]:
        """Number, text, whether it is known by it, look-ups and user of each."""
        for inode, record in self._record_of.items():
            lookups, _, size, is_named, user = self._words[record + 2 : record + 7]
            kind, topic, queue, detail = json.loads(self._records.data(record, size))
            text = NodeText(kind, topic, queue, tuple(detail) if isinstance(detail, list) else detail)
            yield inode, text, bool(is_named), lookups, user - 1 if user else None

    def add(self, inode: int, text: NodeText, *, is_named: bool, lookups: int = 0, user: int | None = None) -> None:
        """Note a number, and the user in whose share of names it is. OSError: no room."""
        data = _encoded(text)
        self.next_number = max(self.next_number, inode + 1)
        self._records.add(_NODE, inode, (lookups, 0, len(data), is_named, 0 if user is None else user + 1, 0), data)

    def count(self, inode: int, lookups: int) -> None:
        """The kernel was told the number so often."""
        record = self._record_of.get(inode)
        if record is not None:
            self._words[record + 2] = lookups

    def extra(self, inode: int) -> int:
        """What was noted beside a number; 0 at first."""
        record = self._record_of.get(inode)
        return self._words[record + 3] if record is not None else 0

    def set_extra(self, inode: int, value: int) -> None:
        """Note something beside a number. Thread safety: any thread."""
        with self._records.lock:
            record = self._record_of.get(inode)
            if record is not None:
                self._words[record + 3] = value

    def drop(self, inode: int) -> None:
        """The number stands for nothing any more."""
        if inode in self._record_of:
            with self._records.lock:
                self._records.drop(_NODE, inode)


# handles


class HandleState(NamedTuple):
    """What a writer's handle holds that is not published, or the text of a report."""

    data: bytes | bytearray
    """The begun line or body; empty where it is too long to be kept, or there was no room for it."""
    size: int
    """Of all of it."""
    owner: int = 0
    """Who wrote it."""
    refusal: int = 0
    """The errno that the handle answers until it is closed."""
    is_refused: bool = False
    """Whether its writer was told that it is not published."""
    published_bytes: int = 0
    """What was published before, where that counts."""
    cut_by: int = 0
    """The errno of a write that was refused behind it, and did not come again."""

    @property
    def is_lost(self) -> bool:
        """Whether it was not kept."""
        return len(self.data) < self.size


class HandleEntry(NamedTuple):
    """An open handle."""

    inode: int
    flags: int
    is_directory: bool
    user: int
    """Who opened it."""


_IS_DIRECTORY = 1 << 62


class HandleRecords:
    """What is open, with what it holds. Each handle has a word of its own that says whether that is lost."""

    def __init__(self, words: memoryview, records: Records, ledger: Ledger) -> None:
        self._words = words
        self._records = records
        self._ledger = ledger
        self._state_of = records.of[_STATE]
        self._entry_of: dict[int, int] = {}
        self._free: list[int] = []
        for number in range(words[_HANDLES_USED]):
            entry = _HANDLES_BEGIN + number * HANDLE_WORDS
            if words[entry]:
                self._entry_of[words[entry]] = entry
            else:
                self._free.append(entry)
        self.lost = {handle for handle, entry in self._entry_of.items() if words[entry + _LOST]}
        """Those that the next server would refuse, since what they hold was too long, or found no room."""
        for handle in self._state_of.keys() - self._entry_of.keys():
            records.drop(_STATE, handle)
        for handle, entry in self._entry_of.items():
            ledger.inherit(words[entry + _USER], HANDLE_BYTES + self._charged_of_state(handle))

    @property
    def last(self) -> int:
        """The one that was given last; 0: none."""
        return self._words[_LAST_HANDLE]

    def __len__(self) -> int:
        return len(self._entry_of)

    def all(self) -> Iterator[tuple[int, HandleEntry]]:
        """Each that is open."""
        for handle in list(self._entry_of):
            yield handle, self.find(handle)

    def find(self, handle: int) -> HandleEntry:
        """What a handle was opened on. KeyError."""
        entry = self._entry_of[handle]
        inode, flags, _, _, user = self._words[entry + 1 : entry + 6]
        return HandleEntry(inode, flags & ~_IS_DIRECTORY, bool(flags & _IS_DIRECTORY), user)

    def add(self, handle: int, inode: int, flags: int, user: int, *, is_directory: bool = False) -> None:
        """A handle is about to be answered. OSError: there is no room for it, or not for that user."""
        self._ledger.charge(user, HANDLE_BYTES)
        words = self._words
        entry = self._free.pop() if self._free else self._one_more(user)
        words[_LAST_HANDLE] = handle
        words[entry + _INODE] = inode
        words[entry + _FLAGS] = flags | _IS_DIRECTORY if is_directory else flags
        words[entry + _LOST] = 0
        words[entry + _USER] = user
        words[entry] = handle
        self._entry_of[handle] = entry

    def _one_more(self, user: int) -> int:
        """An entry that was never used."""
        used = self._words[_HANDLES_USED]
        if used == HANDLES:
            self._ledger.charge(user, -HANDLE_BYTES)
            raise OSError(errno.ENFILE, "too many files are open")
        self._words[_HANDLES_USED] = used + 1
        return _HANDLES_BEGIN + used * HANDLE_WORDS

    def drop(self, handle: int) -> None:
        """A handle is closed."""
        entry = self._entry_of.pop(handle, None)
        if entry is None:
            return
        user, size = self._words[entry + _USER], HANDLE_BYTES
        self._words[entry] = 0
        self._free.append(entry)
        if handle in self._state_of:
            size += self._charged_of_state(handle)
            self._records.drop(_STATE, handle)
        self._ledger.charge(user, -size)
        if self.lost:
            self.lost.discard(handle)

    # what writers hold

    def _charged_of_state(self, handle: int) -> int:
        record = self._state_of.get(handle)
        return 0 if record is None else _charged_bytes(self._words[record + 5])

    def has_state(self, handle: int) -> bool:
        """Whether something is noted for a handle."""
        return handle in self._state_of or handle in self.lost

    def save(self, handle: int, state: HandleState | None, unique: int, number: int) -> None:
        """Note what a handle holds (None: nothing) after the request `unique`, which was answered with errno `number`.

        An errno that leaves no trace is not noted: the same request would get the same. What is too long, and what
        finds no room, is noted as lost in the handle's own word, which needs none.
        """
        if handle not in self._entry_of or (state is None and not self.has_state(handle)):
            return
        if state is None and number:
            state = HandleState(b"", 0)
        if state is None:
            self._drop_state(handle)
            self._set_lost(handle, 0)
        elif state.is_lost or not self._keep(handle, state, unique, number, is_charged=True):
            self._words[self._entry_of[handle] + _PUBLISHED] = state.published_bytes
            self._set_lost(handle, max(state.size, 1))
            self._drop_state(handle)

    def _set_lost(self, handle: int, size: int) -> None:
        """Say in a handle's own entry how much it holds that is not noted; 0: nothing."""
        self._words[self._entry_of[handle] + _LOST] = size
        if size:
            self.lost.add(handle)
        else:
            self.lost.discard(handle)

    def _drop_state(self, handle: int) -> None:
        if handle in self._state_of:
            self._ledger.charge(self._words[self._entry_of[handle] + _USER], -self._charged_of_state(handle))
            self._records.drop(_STATE, handle)

    def _keep(self, handle: int, state: HandleState, unique: int, number: int, *, is_charged: bool) -> bool:
        """Note what a handle holds; False: there is no room."""
        data, user = state.data, self._words[self._entry_of[handle] + _USER]
        more = _charged_bytes(len(data)) - self._charged_of_state(handle) if is_charged else 0
        flags = state.is_refused | state.refusal << 8 | state.cut_by << 24
        fields = unique, number, state.owner, len(data), flags, state.published_bytes
        try:
            self._ledger.charge(user, more)
        except OSError:
            return False
        try:
            self._records.add(_STATE, handle, fields, data)
        except OSError:
            self._ledger.charge(user, -more)
            return False
        self._set_lost(handle, 0)
        return True

    def save_whole(self, handle: int, state: HandleState) -> None:
        """What a handle holds, where that was too long to be noted before, or beyond a share: the server leaves."""
        if handle in self.lost and not state.is_lost:
            self._keep(handle, state, 0, 0, is_charged=False)

    def state(self, handle: int) -> HandleState | None:
        """What was noted last."""
        if handle in self.lost:
            entry = self._entry_of[handle]
            return HandleState(b"", self._words[entry + _LOST], published_bytes=self._words[entry + _PUBLISHED])
        record = self._state_of.get(handle)
        if record is None:
            return None
        _, _, owner, size, flags, published = self._words[record + 2 : record + 8]
        data, refusal, cut_by = self._records.data(record, size), flags >> 8 & 0xFFFF, flags >> 24
        return HandleState(data, size, owner, refusal, bool(flags & 1), published, cut_by)

    def outcome(self, handle: int, unique: int) -> int | None:
        """The errno (0: it succeeded) of the request that left this state, if that was `unique`."""
        record = self._state_of.get(handle)
        if record is None or self._words[record + 2] != unique:
            return None
        return self._words[record + 3]


# requests


class _Slot(threading.local):
    """Whose put a thread is at."""

    number = 0


class RequestJournal:
    """Requests in hand that may not be done twice.

    begun ──► placed (the physical offset where its messages go) ──► done ──► free, when it was answered
                └ the server died: stored, if the log that was recovered goes on behind that offset; else begun
    """

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._current = _Slot()
        self.slots: dict[int, int] = {}
        """Of each request, by `unique` without RESENT."""
        self._free: list[int] = []
        self._shares: Shares = NoShares()
        for number in range(words[_REQUESTS_USED]):
            slot = _REQUESTS_BEGIN + number * REQUEST_WORDS
            if words[slot]:
                self.slots[words[slot]] = slot
            else:
                self._free.append(slot)
        self.unclaimed = set(self.slots)
        """Those of the last server's that were not sent again yet."""
        self._inherited = frozenset(self.slots)

    def share_out(self, shares: Shares) -> None:
        """From now on nobody has more than a share of the requests beyond UNCOUNTED_REQUESTS."""
        self._shares = shares
        for slot in self.slots.values():
            if self._words[slot + 3]:
                shares.inherit(self._words[slot + 3] - 1, 1)

    def settle(self, log_end: int) -> None:
        """The log was recovered, and nothing is put yet: find out which puts are in it."""
        words = self._words
        for slot in self.slots.values():
            if words[slot + 1] == _PLACED:
                words[slot + 1] = _STORED if words[slot + 2] < log_end else _BEGUN

    def begin(self, unique: int, user: int | None = None) -> int:
        """The slot of a request of a user, which may have one already. OSError: there is no room for it, or not for
        that user; with None, what can't be refused, nobody's share counts."""
        key = unique & ~RESENT
        slot = self.slots.get(key)
        if slot is not None:
            return slot
        words = self._words
        slot = self._free.pop() if self._free else self._one_more()
        if len(self.slots) < UNCOUNTED_REQUESTS:
            user = None
        elif user is not None:
            try:
                self._shares.take(user, 1)
            except OSError:
                self._free.append(slot)
                raise
        words[slot + 1] = _BEGUN
        words[slot + 3] = 0 if user is None else user + 1
        words[slot] = key
        self.slots[key] = slot
        return slot

    def _one_more(self) -> int:
        """A slot that was never used."""
        used = self._words[_REQUESTS_USED]
        if used == REQUESTS:
            raise OSError(errno.ENOBUFS, "too many requests wait for their answers")
        self._words[_REQUESTS_USED] = used + 1
        return _REQUESTS_BEGIN + used * REQUEST_WORDS

    def arrived(self, unique: int) -> None:
        """A request was read, which may be answered later than others. What the last server did not answer is sent
        again before anything else: with the first request that is not, what is left of it was answered."""
        if unique & RESENT:
            self.unclaimed.discard(unique & ~RESENT)
        else:
            for answered in self.unclaimed:
                self.free(answered)
            self.unclaimed.clear()

    def was_begun(self, unique: int) -> bool:
        """Whether a server that was killed had begun it."""
        return unique & ~RESENT in self._inherited

    def is_stored(self, slot: int) -> bool:
        """Whether its messages are in the log, and nothing else is known."""
        return slot != 0 and self._words[slot + 1] == _STORED

    def done_until(self, slot: int) -> int | None:
        """The physical offset that a request which is done waits for (0: none); None: it is not done."""
        return self._words[slot + 2] if slot and self._words[slot + 1] == _DONE else None

    def done(self, unique: int, physical_end: int) -> None:
        """All that a request asks for is done, and noted; it may wait for the disk."""
        slot = self.slots.get(unique & ~RESENT)
        if slot is not None:
            words = self._words
            if words[slot + 1] != _PLACED:  # else a kill here would leave the one's offset with the other's state
                words[slot + 2] = physical_end
                words[slot + 1] = _DONE
            else:
                words[slot + 1] = _STORED
                words[slot + 2] = physical_end
                words[slot + 1] = _DONE

    def enter(self, slot: int) -> None:
        """What this thread puts from now on is that request's; 0: nobody's."""
        self._current.number = slot

    def run(self, slot: int, work: Callable[[], object]) -> None:
        """Do a request's work in another thread."""
        self._current.number = slot
        try:
            work()
        finally:
            self._current.number = 0

    def placing(self, physical_offset: int) -> None:
        """The log is about to publish what this thread puts, there."""
        slot = self._current.number
        if slot:
            self._words[slot + 2] = physical_offset
            self._words[slot + 1] = _PLACED

    def free(self, unique: int) -> None:
        """A request was answered."""
        slot = self.slots.pop(unique & ~RESENT, None)
        if slot is not None:
            user = self._words[slot + 3]
            self._words[slot] = 0
            self._free.append(slot)
            if user:
                self._shares.give(user - 1, 1)


# the process that outlives the server

RELEASE_SECONDS = 5.0
"""How long a keeper may take to let /dev/fuse go."""
LARGEST_WORD_BYTES = 1024
"""Of a word with a reason."""


class Word(Enum):
    """What a keeper and its servers say to each other, over a pair of sockets."""

    KEEP = b"keep"
    """The server: hold this descriptor, so that the mount outlives me."""
    RELEASE = b"release"
    """The server: hold it no longer."""
    RELEASED = b"released"
    LEAVE = b"leave"
    """The keeper: close the store and end; the next server is prepared."""
    PREPARED = b"prepared"
    """The next server: all is loaded, and its options make sense."""
    GO = b"go"
    """The keeper: the last server has ended, take over."""
    TAKEN = b"taken"
    """The next server: I have got /dev/fuse, and take over."""
    REFUSED = b"refused"
    """The next server, with a space and the reason: I can't take over, and end."""
    SERVING = b"serving"
    """The server: the mount answers."""


class Keeper:
    """A server's link to its keeper. `inherited` is the /dev/fuse descriptor of a mount that is to be served on."""

    def __init__(self, memory: Handover, link: socket.socket, inherited: int | None = None) -> None:
        self.memory = memory
        self.inherited = inherited
        self.pid = os.getppid()
        self.is_left = False
        """Whether this server leaves the mount to the next one."""
        self._link = link

    def fileno(self) -> int:
        """Readable when the keeper says something."""
        return self._link.fileno()

    def hear(self) -> Word | None:
        """What it says; None: nothing more, for it is gone (or has taken too long, where there is a deadline)."""
        with suppress(OSError, ValueError):
            return Word(self._link.recv(16))
        return None

    def tell(self, word: Word) -> None:
        """Tell it, if it is there."""
        with suppress(OSError):
            self._link.send(word.value)

    def keep(self, descriptor: int) -> None:
        """Have the keeper hold the descriptor, too: from now on the mount outlives this process."""
        with suppress(OSError):
            socket.send_fds(self._link, [Word.KEEP.value], [descriptor])

    def release(self) -> None:
        """Have it hold the descriptor no longer: the mount ends with ours. Returns when that is so, or when the keeper
        takes longer than RELEASE_SECONDS: it is stopped, and lets go when it goes on."""
        self.tell(Word.RELEASE)
        deadline = time.monotonic() + RELEASE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            self._link.settimeout(left)
            if self.hear() in (Word.RELEASED, None):  # else it has asked us to leave
                break


def pin(buffer: bytearray) -> None:
    """Have all pages of a buffer in memory from now on. When a process is killed while the kernel copies into or out of
    a page that is not there yet, that request ends with EIO."""
    pages = range(0, len(buffer), mmap.PAGESIZE)
    buffer[:: mmap.PAGESIZE] = bytes(len(pages))
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(len(buffer))):
        log.debug("the request buffer can't be locked into memory: %s", os.strerror(ctypes.get_errno()))

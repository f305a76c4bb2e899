"""Shared memory that a mount's next server takes over when its server was killed, or left: numbers, handles, requests.

The server's keeper (mountctl/daemon.py) holds the memory and the /dev/fuse descriptor. Nothing here is on disk, and all
of it goes with the mount. In words of 8 bytes of the machine's own order:

    header    magic, version, restarts, next number, handles used, end of the heap, lengths of the INIT request and of
              its reply, last handle, begin of computed numbers, planned restarts, did the last server leave in order,
              time when the first one began, time of this server's first answer; both requests at AGREED_BYTES, and at
              WORKING_BYTES what its threads are working on: WORKERS of unique (0: nothing); what was worked on when the
              last servers died: WORKERS of unique (0: none), signal, deaths in a row
    requests  REQUESTS of: unique (0: free), state, physical offset                   what is not idempotent
    handles   HANDLES of: handle (0: free), inode, flags, state (a record, or 0)      what is open
    heap      records in cells of 64 bytes: length in cells, kind (0: free), 6 words, bytes
              NODE      number, look-ups, extra, bytes, is it named, -                what the kernel knows by a number
              STATE     unique, errno, owner, bytes, flags, published                 what a handle holds unpublished

A server may die between any two stores, so a word that makes others count is stored after them, and a record is never
changed but for its counters: another one takes its place.

Thread safety: one thread, but for `RequestJournal.placing`, `run`, `free` and `NodeRecords.set_extra`.
"""

from __future__ import annotations

import ctypes
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
from typing import NamedTuple

log = logging.getLogger(__name__)

MAGIC = 0x5245564F444E4148
VERSION = 2
MEMORY_BYTES = 1 << 30
"""What is never touched takes no memory."""
AGREED_BYTES = 1 << 12
LARGEST_AGREED_BYTES = 1 << 10
WORKING_BYTES, WORKERS = 1 << 13, 64
_HEADER_BYTES = 1 << 16
REQUESTS, REQUEST_WORDS = 4096, 4
HANDLES, HANDLE_WORDS = 1 << 20, 4
CELL_BYTES = 64
KEPT_BYTES = 1 << 16
"""Of a begun line or body: more is lost with the server, and its handle answers EIO from then on."""
LARGEST_DATA_BYTES = (1 << 20) - 1
"""Of what a handle holds: the text of a report may be so long. Only a server that leaves notes more."""
LARGE_BYTES = 1 << 17
"""Of a record: it takes no memory when it is free."""

RESENT = 1 << 63
"""Set in `unique` of a request that the kernel sends once more."""

_MAGIC, _VERSION, _RESTARTS, _NEXT_NUMBER, _HANDLES_USED = range(5)
_HEAP_END, _REQUEST_BYTES, _REPLY_BYTES, _LAST_HANDLE, _COMPUTED, _PLANNED, _IS_LEFT, _STARTED, _ANSWERED = range(5, 14)
_WORKING = WORKING_BYTES // 8
_SUSPECTS = _WORKING + WORKERS
_SUSPECTS_END = _SUSPECTS + 3 * WORKERS
_REQUESTS_BEGIN = _HEADER_BYTES // 8
_HANDLES_BEGIN = _REQUESTS_BEGIN + REQUESTS * REQUEST_WORDS
_HEAP_BEGIN = _HANDLES_BEGIN + HANDLES * HANDLE_WORDS
_CELL_WORDS = CELL_BYTES // 8
_NODE, _STATE = 1, 2
_BEGUN, _PLACED, _STORED, _DONE = 1, 2, 3, 4


class HandoverError(Exception):
    """What was handed over can't be understood, or the kernel's agreement is another one."""


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
        heap = Heap(words, memory)
        self.requests = RequestJournal(words)
        self.handles = HandleRecords(words, heap)
        self.nodes = NodeRecords(words, heap)
        heap.free_all(set(heap.records(_STATE)) - self.handles.states())

    @staticmethod
    def require_ours(descriptor: int) -> None:
        """HandoverError: it was not made by this version. Another server may be using it."""
        if os.fstat(descriptor).st_size != MEMORY_BYTES:
            raise HandoverError("the shared memory has another size than this version's")
        if os.pread(descriptor, 16, 0) != MAGIC.to_bytes(8, sys.byteorder) + VERSION.to_bytes(8, sys.byteorder):
            raise HandoverError("the shared memory was made by another version")

    @classmethod
    def create(cls) -> int:
        """The descriptor of new shared memory; it is closed on exec."""
        descriptor = os.memfd_create("fsstore-handover", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, MEMORY_BYTES)
        with mmap.mmap(descriptor, 1 << 16) as memory, memoryview(memory) as view, view.cast("Q") as words:
            words[_VERSION], words[_NEXT_NUMBER], words[_HEAP_END] = VERSION, 1, _HEAP_BEGIN
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

    @property
    def restarts(self) -> int:
        """How often a killed server was replaced."""
        return self._words[_RESTARTS]

    @property
    def planned_restarts(self) -> int:
        """How often a server left in order, and another one took over."""
        return self._words[_PLANNED]

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


class Heap:
    """Records of whole cells. One that is freed is used again for one of its own size."""

    def __init__(self, words: memoryview, memory: memoryview) -> None:
        self.words = words
        self.bytes = memory
        self._free: dict[int, list[int]] = {}
        self._is_full = False
        for record in self.records(0):
            self._free.setdefault(words[record], []).append(record)

    def records(self, kind: int) -> Iterator[int]:
        """Where each of a kind begins."""
        words, record = self.words, _HEAP_BEGIN
        while record < words[_HEAP_END]:
            if words[record + 1] == kind:
                yield record
            record += words[record] * _CELL_WORDS

    def add(self, kind: int, fields: tuple[int, ...], data: bytes | bytearray) -> int:
        """A new record; 0 when there is no room."""
        words = self.words
        cells = (CELL_BYTES + len(data) + CELL_BYTES - 1) // CELL_BYTES
        if cells * CELL_BYTES >= LARGE_BYTES:  # few sizes, so that those that are free are used again
            step = 1 << cells.bit_length() - 4
            cells = -(-cells // step) * step
        free = self._free.get(cells)
        record = free.pop() if free else self._carve(cells)
        if record:
            for number, field in enumerate(fields, record + 2):
                words[number] = field
            begin = (record + _CELL_WORDS) * 8
            self.bytes[begin : begin + len(data)] = data
            words[record + 1] = kind
        return record

    def _carve(self, cells: int) -> int:
        words = self.words
        record = words[_HEAP_END]
        end = record + cells * _CELL_WORDS
        if end > len(words):
            if not self._is_full:
                log.error("no room to note what is open and known: not all of it would survive the daemon's death")
            self._is_full = True
            return 0
        words[record] = cells
        words[record + 1] = 0
        words[_HEAP_END] = end
        return record

    def data(self, record: int, size: int) -> bytes:
        """The bytes of a record."""
        begin = (record + _CELL_WORDS) * 8
        return bytes(self.bytes[begin : begin + size])

    def free(self, record: int) -> None:
        """Drop a record."""
        self.words[record + 1] = 0
        size = self.words[record] * CELL_BYTES
        if size >= LARGE_BYTES:
            begin, end = -(-(record * 8 + CELL_BYTES) // mmap.PAGESIZE), (record * 8 + size) // mmap.PAGESIZE
            mapped: mmap.mmap = self.bytes.obj  # type: ignore[assignment] # of any object that has a buffer
            mapped.madvise(mmap.MADV_REMOVE, begin * mmap.PAGESIZE, (end - begin) * mmap.PAGESIZE)
        self._free.setdefault(self.words[record], []).append(record)

    def free_all(self, records: set[int]) -> None:
        """Drop records that nothing leads to."""
        for record in records:
            self.free(record)


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

    def __init__(self, words: memoryview, heap: Heap) -> None:
        self._words = words
        self._heap = heap
        self._record_of = {words[record + 2]: record for record in heap.records(_NODE)}

    @property
    def next_number(self) -> int:
        """One that was never given."""
        return self._words[_NEXT_NUMBER]

    def all(self) -> Iterator[tuple[int, NodeText, bool, int]]:
        """Number, text, whether it is known by it, and look-ups of each."""
        for inode, record in self._record_of.items():
            words = self._words
            kind, topic, queue, detail = json.loads(self._heap.data(record, words[record + 5]))
            text = NodeText(kind, topic, queue, tuple(detail) if isinstance(detail, list) else detail)
            yield inode, text, bool(words[record + 6]), words[record + 3]

    def add(self, inode: int, text: NodeText, *, is_named: bool) -> None:
        """Note a number that is given out for the first time."""
        data = _encoded(text)
        if inode >= self._words[_NEXT_NUMBER]:
            self._words[_NEXT_NUMBER] = inode + 1
        record = self._heap.add(_NODE, (inode, 0, 0, len(data), is_named), data)
        if record:
            self._record_of[inode] = record

    def count(self, inode: int, lookups: int) -> None:
        """The kernel was told the number so often."""
        record = self._record_of.get(inode)
        if record is not None:
            self._words[record + 3] = lookups

    def extra(self, inode: int) -> int:
        """What was noted beside a number; 0 at first."""
        record = self._record_of.get(inode)
        return self._words[record + 4] if record is not None else 0

    def set_extra(self, inode: int, value: int) -> None:
        """Note something beside a number."""
        record = self._record_of.get(inode)
        if record is not None:
            self._words[record + 4] = value

    def drop(self, inode: int) -> None:
        """The number stands for nothing any more."""
        record = self._record_of.pop(inode, None)
        if record is not None:
            self._heap.free(record)


# handles


class HandleState(NamedTuple):
    """What a writer's handle holds that is not published, or the text of a report."""

    data: bytes | bytearray
    """The begun line or body; empty where it is too long to be kept."""
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

    @property
    def is_lost(self) -> bool:
        """Whether it was too long to be kept."""
        return len(self.data) < self.size


class HandleEntry(NamedTuple):
    """An open handle."""

    inode: int
    flags: int
    is_directory: bool


_IS_DIRECTORY = 1 << 62


def _sizes(state: HandleState) -> int:
    """Of all, and of what is noted, in a word: LARGEST_DATA_BYTES or more are all that there is."""
    return state.size << 20 | min(len(state.data), LARGEST_DATA_BYTES)


class HandleRecords:
    """What is open."""

    def __init__(self, words: memoryview, heap: Heap) -> None:
        self._words = words
        self._heap = heap
        self._entry_of: dict[int, int] = {}
        self._free: list[int] = []
        for number in range(words[_HANDLES_USED]):
            entry = _HANDLES_BEGIN + number * HANDLE_WORDS
            handle = words[entry]
            if handle:
                self._entry_of[handle] = entry
            else:
                self._free.append(entry)

    @property
    def last(self) -> int:
        """The one that was given last; 0: none."""
        return self._words[_LAST_HANDLE]

    def all(self) -> Iterator[tuple[int, HandleEntry]]:
        """Each that is open."""
        for handle in list(self._entry_of):
            yield handle, self.find(handle)

    def find(self, handle: int) -> HandleEntry:
        """What a handle was opened on. KeyError."""
        entry = self._entry_of[handle]
        words = self._words
        flags = words[entry + 2]
        return HandleEntry(words[entry + 1], flags & ~_IS_DIRECTORY, bool(flags & _IS_DIRECTORY))

    def add(self, handle: int, inode: int, flags: int, *, is_directory: bool = False) -> None:
        """A handle is about to be answered."""
        words = self._words
        words[_LAST_HANDLE] = handle
        if self._free:
            entry = self._free.pop()
        else:
            used = words[_HANDLES_USED]
            if used == HANDLES:
                return
            entry = _HANDLES_BEGIN + used * HANDLE_WORDS
            words[_HANDLES_USED] = used + 1
        words[entry + 1] = inode
        words[entry + 2] = flags | _IS_DIRECTORY if is_directory else flags
        words[entry + 3] = 0
        words[entry] = handle
        self._entry_of[handle] = entry

    def drop(self, handle: int) -> None:
        """A handle is closed."""
        entry = self._entry_of.pop(handle, None)
        if entry is not None:
            self._words[entry] = 0
            self._free.append(entry)
            if state := self._words[entry + 3]:
                self._heap.free(state)

    # what writers hold

    def states(self) -> set[int]:
        """Records that handles lead to."""
        return {self._words[entry + 3] for entry in self._entry_of.values()}

    def has_state(self, handle: int) -> bool:
        """Whether something is noted for a handle."""
        entry = self._entry_of.get(handle)
        return entry is not None and bool(self._words[entry + 3])

    def save(self, handle: int, state: HandleState | None, unique: int, number: int) -> None:
        """Note what a handle holds (None: nothing) after the request `unique`, which was answered with errno `number`.

        An errno that leaves no trace is not noted: the same request would get the same.
        """
        entry = self._entry_of.get(handle)
        if entry is None:
            return
        words, heap = self._words, self._heap
        old = words[entry + 3]
        if state is None:
            if not old:
                return
            state = HandleState(b"", 0) if number else None
        elif state.is_lost and old and words[old + 6] & 2:
            words[old + 7] = state.published_bytes  # lost is lost, however much longer it gets
            words[old + 5] = state.size << 20
            return
        new = 0
        if state is not None:
            flags = state.is_refused | state.is_lost << 1 | state.refusal << 8
            sizes = _sizes(state)
            data = state.data
            new = heap.add(_STATE, (unique, number, state.owner, sizes, flags, state.published_bytes), data)
        words[entry + 3] = new
        if old:
            heap.free(old)

    def save_whole(self, handle: int, state: HandleState) -> None:
        """What a handle holds, where that was too long to be noted before: the server leaves."""
        noted = self.state(handle)
        if noted is None or not noted.is_lost or state.is_lost or noted.size != state.size:
            return
        words, entry = self._words, self._entry_of[handle]
        old = words[entry + 3]
        unique, number, owner, _, flags, published = words[old + 2 : old + 8]
        new = self._heap.add(_STATE, (unique, number, owner, _sizes(state), flags & ~2, published), state.data)
        if new:
            words[entry + 3] = new
            self._heap.free(old)

    def state(self, handle: int) -> HandleState | None:
        """What was noted last."""
        entry = self._entry_of.get(handle)
        record = self._words[entry + 3] if entry is not None else 0
        if not record:
            return None
        _, _, owner, sizes, flags, published = self._words[record + 2 : record + 8]
        size, length = sizes >> 20, sizes & LARGEST_DATA_BYTES
        data = self._heap.data(record, size if length == LARGEST_DATA_BYTES else length)
        return HandleState(data, size, owner, flags >> 8, bool(flags & 1), published)

    def outcome(self, handle: int, unique: int) -> int | None:
        """The errno (0: it succeeded) of the request that left this state, if that was `unique`."""
        entry = self._entry_of.get(handle)
        record = self._words[entry + 3] if entry is not None else 0
        if not record or self._words[record + 2] != unique:
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
        for number in reversed(range(REQUESTS)):
            slot = _REQUESTS_BEGIN + number * REQUEST_WORDS
            if words[slot]:
                self.slots[words[slot]] = slot
            else:
                self._free.append(slot)
        self._unclaimed = set(self.slots)
        self._inherited = frozenset(self.slots)

    def settle(self, log_end: int) -> None:
        """The log was recovered, and nothing is put yet: find out which puts are in it."""
        words = self._words
        for slot in self.slots.values():
            if words[slot + 1] == _PLACED:
                words[slot + 1] = _STORED if words[slot + 2] < log_end else _BEGUN

    def begin(self, unique: int) -> int:
        """The slot of a request, which may have one already; 0 when there is no room.

        What the last server had in hand is sent again before anything else: with the first request that is not, what is
        left of it was answered.
        """
        key = unique & ~RESENT
        slot = self.slots.get(key)
        if slot is not None:
            self._unclaimed.discard(key)
            return slot
        if self._unclaimed and not unique & RESENT:
            for answered in self._unclaimed:
                self.free(answered)
            self._unclaimed.clear()
        if not self._free:
            return 0
        slot = self._free.pop()
        self._words[slot + 1] = _BEGUN
        self._words[slot] = key
        self.slots[key] = slot
        return slot

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
            self._words[slot] = 0
            self._free.append(slot)


# the process that outlives the server


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
        """What it says; None: nothing more, for it is gone."""
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
        """Have it hold the descriptor no longer: the mount ends with ours. Returns when that is so."""
        self.tell(Word.RELEASE)
        while self.hear() not in (Word.RELEASED, None):
            pass  # it may have asked us to leave


def pin(buffer: bytearray) -> None:
    """Have all pages of a buffer in memory from now on. When a process is killed while the kernel copies into or out of
    a page that is not there yet, that request ends with EIO."""
    pages = range(0, len(buffer), mmap.PAGESIZE)
    buffer[:: mmap.PAGESIZE] = bytes(len(pages))
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(len(buffer))):
        log.debug("the request buffer can't be locked into memory: %s", os.strerror(ctypes.get_errno()))


def touch(data: memoryview) -> None:
    """Have all pages of `data` mapped, for the same reason."""
    if data:
        bytes(data[:: mmap.PAGESIZE])
        data[-1]

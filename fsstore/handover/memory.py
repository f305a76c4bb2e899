"""The shared memory of one mount, whole."""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import time
from array import array
from typing import NamedTuple

from fsstore.handover.handles import HandleRecords
from fsstore.handover.layout import (
    AGREED_BYTES,
    ANSWERED_WORD,
    COMPUTED_WORD,
    HANDLE_WORDS,
    HANDLES_USED_WORD,
    HEADER_BYTES,
    IS_LEFT_WORD,
    LARGEST_AGREED_BYTES,
    LARGEST_STORE_BYTES,
    MAGIC,
    MAGIC_WORD,
    MEMORY_BYTES,
    NEXT_NUMBER_WORD,
    OTHER_VERSION,
    PLANNED_WORD,
    RECORD_BYTES,
    REPLY_BYTES_WORD,
    REQUEST_BYTES_WORD,
    RESTARTS_WORD,
    STARTED_WORD,
    STORE_BYTES,
    SUSPECTS_BEGIN,
    SUSPECTS_END,
    VERSION,
    VERSION_WORD,
    WORKERS,
    WORKING_BEGIN,
    HandoverError,
)
from fsstore.handover.nodes import NodeRecords
from fsstore.handover.records import NODE, Records
from fsstore.handover.requests import RESENT, RequestJournal
from fsstore.handover.shares import Ledger

CRASHES = frozenset((signal.SIGBUS, signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGABRT))
"""Signals by which a program ends through a defect."""
CRASHES_TO_REFUSE, KILLS_TO_REFUSE = 2, 3
"""A request that was worked on at so many deaths in a row is refused."""
QUICK_KILL_NS = 1_000_000_000
"""A SIGKILL counts against a request within this time after the server's first answer, or before that answer."""
LONGEST_STORE_WORD = LARGEST_STORE_BYTES // 6 - 64
"""Characters of a text, each of which JSON may write as six."""


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


class StoreNote(NamedTuple):
    """What the next server has to know of the store: which one it is, why a flush of it failed, and how often in a row
    it could not be opened for writing, because the disk refused."""

    name: str = ""
    inode: int = 0
    failure: str = ""
    refused: int = 0


class Handover:
    """The shared memory of one mount."""

    def __init__(self, descriptor: int) -> None:
        """Take over what is there. HandoverError: it was not made by this version."""
        self.require_ours(descriptor)
        self.descriptor = descriptor
        memory = memoryview(mmap.mmap(descriptor, MEMORY_BYTES))
        self._bytes = memory
        self._words = words = memory.cast("Q")
        self.working = words[WORKING_BEGIN:SUSPECTS_BEGIN]
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
            words[VERSION_WORD], words[NEXT_NUMBER_WORD] = VERSION, 1
            words[MAGIC_WORD] = MAGIC
        return descriptor

    # for the keeper, while no server runs or another one may

    @classmethod
    def has_answered(cls, descriptor: int) -> bool:
        """Whether the server that serves, or died last, has answered a request. To be asked before `note_death`."""
        return any(os.pread(descriptor, 8, ANSWERED_WORD * 8))

    @classmethod
    def note_death(cls, descriptor: int, signal_number: int) -> None:
        """The server was killed by a signal: count that death against what its threads were working on, and forget
        when it answered first. No other server has taken over yet."""
        with mmap.mmap(descriptor, HEADER_BYTES) as memory, memoryview(memory) as view, view.cast("Q") as words:
            known = _suspects(words)
            is_blamed = signal_number in CRASHES or (
                signal_number == signal.SIGKILL and _is_quick(words[ANSWERED_WORD])
            )
            rows: list[int] = []
            for unique in {one & ~RESENT for one in words[WORKING_BEGIN:SUSPECTS_BEGIN] if one and is_blamed}:
                last, count = known.get(unique, (0, 0))
                goes_on = (last == signal.SIGKILL) == (signal_number == signal.SIGKILL)
                rows += [unique, signal_number, count + 1 if goes_on else 1]
            words[ANSWERED_WORD] = 0
            rows += [0] * (SUSPECTS_END - SUSPECTS_BEGIN - len(rows))
            words[WORKING_BEGIN:SUSPECTS_END] = memoryview(array("Q", [0] * WORKERS + rows))

    # for a server

    def answered(self, now_ns: int) -> None:
        """The server sends its first answer, at a time of CLOCK_MONOTONIC."""
        self._words[ANSWERED_WORD] = now_ns

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
        size = records.used_bytes + self._words[HANDLES_USED_WORD] * HANDLE_WORDS * 8
        live_bytes = records.live_bytes + len(handles) * HANDLE_WORDS * 8
        counts = len(records.of[NODE]), len(handles), len(handles.lost), len(self.requests.slots)
        return HandoverFigures(size, MEMORY_BYTES, live_bytes, *counts)

    @property
    def restarts(self) -> int:
        """How often a killed server was replaced."""
        return self._words[RESTARTS_WORD]

    @property
    def planned_restarts(self) -> int:
        """How often a server left in order, and another one took over."""
        return self._words[PLANNED_WORD]

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
        self._words[IS_LEFT_WORD] = 1

    def take_over(self) -> None:
        """Count one more restart, of the one kind or the other."""
        words = self._words
        self.was_left = bool(words[IS_LEFT_WORD])
        words[IS_LEFT_WORD] = words[ANSWERED_WORD] = 0
        words[PLANNED_WORD if self.was_left else RESTARTS_WORD] += 1

    def started_ns(self, now_ns: int) -> int:
        """When the first server began; the first one says `now_ns`."""
        self._words[STARTED_WORD] = self._words[STARTED_WORD] or now_ns
        return self._words[STARTED_WORD]

    @property
    def computed_begin(self) -> int:
        """What is added to a physical offset in a computed number."""
        return self._words[COMPUTED_WORD]

    @computed_begin.setter
    def computed_begin(self, begin: int) -> None:
        self._words[COMPUTED_WORD] = begin

    @property
    def agreed(self) -> tuple[bytes, bytes] | None:
        """The kernel's first request and the reply to it, once it was answered."""
        return self.agreed_in(self.descriptor)

    @classmethod
    def agreed_in(cls, descriptor: int) -> tuple[bytes, bytes] | None:
        """As `agreed`, of memory that another server may be using. HandoverError: it was not made by this version."""
        cls.require_ours(descriptor)
        sizes = memoryview(os.pread(descriptor, 16, REQUEST_BYTES_WORD * 8)).cast("Q")
        if not sizes[0]:
            return None
        begin = AGREED_BYTES + LARGEST_AGREED_BYTES
        return os.pread(descriptor, sizes[0], AGREED_BYTES), os.pread(descriptor, sizes[1], begin)

    def agree(self, request: bytes, reply: bytes) -> None:
        """Note the kernel's first request and the reply to it."""
        begin = AGREED_BYTES + LARGEST_AGREED_BYTES
        self._bytes[AGREED_BYTES : AGREED_BYTES + len(request)] = request
        self._bytes[begin : begin + len(reply)] = reply
        self._words[REPLY_BYTES_WORD] = len(reply)
        self._words[REQUEST_BYTES_WORD] = len(request)


def _is_quick(answered_ns: int) -> bool:
    """Whether a server that dies now has served for so short a time that what it worked on may be to blame."""
    return not answered_ns or time.monotonic_ns() - answered_ns <= QUICK_KILL_NS


def _suspects(words: memoryview) -> dict[int, tuple[int, int]]:
    """Signal of the last death, and deaths in a row, by what was worked on at each of them."""
    rows = iter(words[SUSPECTS_BEGIN:SUSPECTS_END].tolist())
    return {unique: (last, count) for unique, last, count in zip(rows, rows, rows, strict=True) if unique}

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
from fsstore.handover.records import Records
from fsstore.handover.requests import RESENT, RequestJournal
from fsstore.handover.shares import Ledger

CRASHES = frozenset((signal.SIGBUS, signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGABRT))
"""Signals that a program's own defect raises."""
CRASHES_TO_REFUSE, KILLS_TO_REFUSE = 2, 3
"""A request that was worked on at this number of deaths in a row is refused."""
QUICK_KILL_NS = 1_000_000_000
"""A SIGKILL counts against a request within this time after the server's first answer, or before that answer."""
LONGEST_STORE_WORD = LARGEST_STORE_BYTES // 6 - 64
"""Characters of a text in a StoreNote; JSON may write each as six bytes."""


class StoreNote(NamedTuple):
    """Facts about the store for the next server: its name and inode, the reason why a flush failed, and the number of
    times in a row that the disk refused to open it for writing."""

    name: str = ""
    inode: int = 0
    failure: str = ""
    refused: int = 0


class Handover:
    """The shared memory of one mount, mapped by one server."""

    def __init__(self, descriptor: int) -> None:
        """Take the memory over. HandoverError: another version made it."""
        self.require_ours(descriptor)
        self.descriptor = descriptor
        memory = memoryview(mmap.mmap(descriptor, MEMORY_BYTES))
        self._bytes = memory
        self._words = words = memory.cast("Q")
        self.working = words[WORKING_BEGIN:SUSPECTS_BEGIN]
        """The request that each thread of the server works on, by `unique`; 0: none."""
        self.was_left = False
        """Whether the last server left in order."""
        self.records = Records(words, memory)
        self.requests = RequestJournal(words)
        self.ledger = Ledger()
        self.handles = HandleRecords(words, self.records, self.ledger)
        self.nodes = NodeRecords(words, self.records)

    @staticmethod
    def require_ours(descriptor: int) -> None:
        """HandoverError: another version made it. May be called while another server uses the memory."""
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
        """Whether the server that serves, or died last, has answered a request. Call it before `note_death`."""
        return any(os.pread(descriptor, 8, ANSWERED_WORD * 8))

    @classmethod
    def note_death(cls, descriptor: int, signal_number: int) -> None:
        """Count a server's death by a signal against the requests that its threads worked on, and clear the time of its
        first answer. Call it before another server takes over."""
        with mmap.mmap(descriptor, HEADER_BYTES) as memory, memoryview(memory) as view, view.cast("Q") as words:
            known = _suspects(words)
            is_blamed = signal_number in CRASHES or (
                signal_number == signal.SIGKILL and _is_quick(words[ANSWERED_WORD])
            )
            rows: list[int] = []
            for unique in {busy & ~RESENT for busy in words[WORKING_BEGIN:SUSPECTS_BEGIN] if busy and is_blamed}:
                last, count = known.get(unique, (0, 0))
                goes_on = (last == signal.SIGKILL) == (signal_number == signal.SIGKILL)
                rows += [unique, signal_number, count + 1 if goes_on else 1]
            words[ANSWERED_WORD] = 0
            rows += [0] * (SUSPECTS_END - SUSPECTS_BEGIN - len(rows))
            words[WORKING_BEGIN:SUSPECTS_END] = memoryview(array("Q", [0] * WORKERS + rows))

    # for a server

    def answered(self, now_ns: int) -> None:
        """Note the CLOCK_MONOTONIC time of the server's first answer."""
        self._words[ANSWERED_WORD] = now_ns

    def poisoned(self) -> dict[int, str]:
        """By `unique` without RESENT: requests to be refused because servers died of them, and the reason."""
        return {
            unique: f"{count} daemons in a row were killed by {signal.Signals(last).name} while they worked on it"
            for unique, (last, count) in _suspects(self._words).items()
            if count >= (KILLS_TO_REFUSE if last == signal.SIGKILL else CRASHES_TO_REFUSE)
        }

    @property
    def used_bytes(self) -> int:
        """Bytes of live and dead records, and of the table of handles."""
        return self.records.used_bytes + self._words[HANDLES_USED_WORD] * HANDLE_WORDS * 8

    @property
    def live_bytes(self) -> int:
        """Bytes of live records."""
        return self.records.live_bytes + len(self.handles) * HANDLE_WORDS * 8

    @property
    def restarts(self) -> int:
        """Number of killed servers that were replaced."""
        return self._words[RESTARTS_WORD]

    @property
    def planned_restarts(self) -> int:
        """Number of servers that left in order and were replaced."""
        return self._words[PLANNED_WORD]

    @property
    def store(self) -> StoreNote:
        """The last server's note about the store."""
        number, size = divmod(self._words[STORE_BYTES // 8], 1 << 32)
        begin = STORE_BYTES + RECORD_BYTES + number * LARGEST_STORE_BYTES
        return StoreNote(*json.loads(bytes(self._bytes[begin : begin + size]))) if size else StoreNote()

    @store.setter
    def store(self, note: StoreNote) -> None:
        """Thread safety: one thread at a time."""
        words = (word[:LONGEST_STORE_WORD] if isinstance(word, str) else word for word in note)
        text = json.dumps(list(words)).encode()
        number = 1 - (self._words[STORE_BYTES // 8] >> 32)
        begin = STORE_BYTES + RECORD_BYTES + number * LARGEST_STORE_BYTES
        self._bytes[begin : begin + len(text)] = text
        self._words[STORE_BYTES // 8] = number << 32 | len(text)

    def leave(self) -> None:
        """Note that the store is closed, so that the next server need not recover it."""
        self._words[IS_LEFT_WORD] = 1

    def take_over(self) -> None:
        """Count one more restart, planned or not."""
        words = self._words
        self.was_left = bool(words[IS_LEFT_WORD])
        words[IS_LEFT_WORD] = words[ANSWERED_WORD] = 0
        words[PLANNED_WORD if self.was_left else RESTARTS_WORD] += 1

    def started_ns(self, now_ns: int) -> int:
        """Start time of the first server; the first call sets it to `now_ns`."""
        self._words[STARTED_WORD] = self._words[STARTED_WORD] or now_ns
        return self._words[STARTED_WORD]

    @property
    def computed_begin(self) -> int:
        """The computed inode number of physical offset 0."""
        return self._words[COMPUTED_WORD]

    @computed_begin.setter
    def computed_begin(self, begin: int) -> None:
        self._words[COMPUTED_WORD] = begin

    @property
    def agreed(self) -> tuple[bytes, bytes] | None:
        """The kernel's INIT request and its reply; None before it was answered."""
        return self.agreed_in(self.descriptor)

    @classmethod
    def agreed_in(cls, descriptor: int) -> tuple[bytes, bytes] | None:
        """As `agreed`, of memory that another server may be using. HandoverError: another version made it."""
        cls.require_ours(descriptor)
        sizes = memoryview(os.pread(descriptor, 16, REQUEST_BYTES_WORD * 8)).cast("Q")
        if not sizes[0]:
            return None
        begin = AGREED_BYTES + LARGEST_AGREED_BYTES
        return os.pread(descriptor, sizes[0], AGREED_BYTES), os.pread(descriptor, sizes[1], begin)

    def agree(self, request: bytes, reply: bytes) -> None:
        """Note the kernel's INIT request and its reply."""
        begin = AGREED_BYTES + LARGEST_AGREED_BYTES
        self._bytes[AGREED_BYTES : AGREED_BYTES + len(request)] = request
        self._bytes[begin : begin + len(reply)] = reply
        self._words[REPLY_BYTES_WORD] = len(reply)
        self._words[REQUEST_BYTES_WORD] = len(request)


def _is_quick(answered_ns: int) -> bool:
    """Whether a server dies so soon after its first answer that its requests may be to blame."""
    return not answered_ns or time.monotonic_ns() - answered_ns <= QUICK_KILL_NS


def _suspects(words: memoryview) -> dict[int, tuple[int, int]]:
    """By `unique`: signal of the last death, and deaths in a row."""
    rows = iter(words[SUSPECTS_BEGIN:SUSPECTS_END].tolist())
    return {unique: (last, count) for unique, last, count in zip(rows, rows, rows, strict=True) if unique}

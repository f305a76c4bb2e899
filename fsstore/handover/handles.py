"""Open handles and their unpublished bytes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import NamedTuple

from fsstore.handover.layout import HANDLE_WORDS, HANDLES, HANDLES_BEGIN, HANDLES_USED_WORD, LAST_HANDLE_WORD
from fsstore.handover.records import STATE, Records, charged_bytes
from fsstore.handover.shares import Ledger

KEPT_BYTES = 1 << 16
"""Bytes kept of an unfinished line or body. A longer one is lost if the server dies, and its handle answers EIO."""
LARGEST_TEXT_BYTES = 1 << 20
"""Bytes kept of an open report. The reader of a longer one can't read on after a take-over."""
HANDLE_BYTES = charged_bytes(0)
"""Bytes that an open file counts to its user."""
_INODE, _FLAGS, _LOST, _PUBLISHED, _USER = range(1, 6)
_IS_DIRECTORY = 1 << 62


class HandleState(NamedTuple):
    """Unpublished bytes of a writer's handle, or the text of an open report."""

    data: bytes | bytearray
    """The unfinished line or body; empty if it is too long to be kept, or there was no room for it."""
    size: int
    """Bytes of the whole of it, kept or not."""
    owner: int = 0
    """The lock owner of its writer; 0: unknown."""
    refusal: int = 0
    """The errno that the handle answers until it is closed."""
    is_refused: bool = False
    """Whether its writer got the error that says that it is not published."""
    published_bytes: int = 0
    """Bytes published before, where later writes depend on them."""
    cut_by: int = 0
    """The errno of a refused write behind these bytes that was not repeated."""

    @property
    def is_lost(self) -> bool:
        """Whether some of the bytes were not kept."""
        return len(self.data) < self.size


class HandleEntry(NamedTuple):
    """An open handle, as it was opened."""

    inode: int
    flags: int
    is_directory: bool
    user: int
    """The uid that opened it."""


class HandleRecords:
    """Open handles and their states. A word of each handle says how many of its bytes are lost."""

    def __init__(self, words: memoryview, records: Records, ledger: Ledger) -> None:
        self._words = words
        self._records = records
        self._ledger = ledger
        self._state_of = records.of[STATE]
        self._entry_of: dict[int, int] = {}
        self._free: list[int] = []
        for number in range(words[HANDLES_USED_WORD]):
            entry = HANDLES_BEGIN + number * HANDLE_WORDS
            if words[entry]:
                self._entry_of[words[entry]] = entry
            else:
                self._free.append(entry)
        self.lost = {handle for handle, entry in self._entry_of.items() if words[entry + _LOST]}
        """Handles whose bytes were not kept, so that the next server would refuse them."""
        for handle in self._state_of.keys() - self._entry_of.keys():
            records.drop(STATE, handle)
        for handle, entry in self._entry_of.items():
            ledger.inherit(words[entry + _USER], HANDLE_BYTES + self._charged_of_state(handle))

    @property
    def last(self) -> int:
        """The last handle that was given; 0: none."""
        return self._words[LAST_HANDLE_WORD]

    def __len__(self) -> int:
        return len(self._entry_of)

    def all(self) -> Iterator[tuple[int, HandleEntry]]:
        """Yield each open handle and its entry."""
        for handle in list(self._entry_of):
            yield handle, self.find(handle)

    def find(self, handle: int) -> HandleEntry:
        """The entry of an open handle. KeyError."""
        entry = self._entry_of[handle]
        inode, flags, _, _, user = self._words[entry + 1 : entry + 6]
        return HandleEntry(inode, flags & ~_IS_DIRECTORY, bool(flags & _IS_DIRECTORY), user)

    def add(self, handle: int, inode: int, flags: int, user: int, *, is_directory: bool = False) -> None:
        """Note a handle before it is answered. OSError: there is no room, or the user's share is used up."""
        self._ledger.charge(user, HANDLE_BYTES)
        words = self._words
        entry = self._free.pop() if self._free else self._one_more(user)
        words[LAST_HANDLE_WORD] = handle
        words[entry + _INODE] = inode
        words[entry + _FLAGS] = flags | _IS_DIRECTORY if is_directory else flags
        words[entry + _LOST] = 0
        words[entry + _USER] = user
        words[entry] = handle
        self._entry_of[handle] = entry

    def _one_more(self, user: int) -> int:
        """An entry that was never used. OSError: there is none."""
        used = self._words[HANDLES_USED_WORD]
        if used == HANDLES:
            self._ledger.charge(user, -HANDLE_BYTES)
            raise OSError(errno.ENFILE, "too many files are open")
        self._words[HANDLES_USED_WORD] = used + 1
        return HANDLES_BEGIN + used * HANDLE_WORDS

    def drop(self, handle: int) -> None:
        entry = self._entry_of.pop(handle, None)
        if entry is None:
            return
        user, size = self._words[entry + _USER], HANDLE_BYTES
        self._words[entry] = 0
        self._free.append(entry)
        if handle in self._state_of:
            size += self._charged_of_state(handle)
            self._records.drop(STATE, handle)
        self._ledger.charge(user, -size)
        if self.lost:
            self.lost.discard(handle)

    # unpublished bytes

    def _charged_of_state(self, handle: int) -> int:
        record = self._state_of.get(handle)
        return 0 if record is None else charged_bytes(self._words[record + 5])

    def has_state(self, handle: int) -> bool:
        return handle in self._state_of or handle in self.lost

    def save(self, handle: int, state: HandleState | None, unique: int, number: int) -> None:
        """Note the state of a handle (None: no unpublished bytes) after request `unique` got errno `number` as its
        answer.

        An errno that changes nothing is not noted, since the same request would get it again. Bytes that are too long,
        or find no room, are noted as lost in the handle's own word, which needs no room."""
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
        """Note in the handle's entry how many of its bytes are lost; 0: none."""
        self._words[self._entry_of[handle] + _LOST] = size
        if size:
            self.lost.add(handle)
        else:
            self.lost.discard(handle)

    def _drop_state(self, handle: int) -> None:
        if handle in self._state_of:
            self._ledger.charge(self._words[self._entry_of[handle] + _USER], -self._charged_of_state(handle))
            self._records.drop(STATE, handle)

    def _keep(self, handle: int, state: HandleState, unique: int, number: int, *, is_charged: bool) -> bool:
        """Note the state of a handle; False: there is no room."""
        data, user = state.data, self._words[self._entry_of[handle] + _USER]
        more = charged_bytes(len(data)) - self._charged_of_state(handle) if is_charged else 0
        flags = state.is_refused | state.refusal << 8 | state.cut_by << 24
        fields = unique, number, state.owner, len(data), flags, state.published_bytes
        try:
            self._ledger.charge(user, more)
        except OSError:
            return False
        try:
            self._records.add(STATE, handle, fields, data)
        except OSError:
            self._ledger.charge(user, -more)
            return False
        self._set_lost(handle, 0)
        return True

    def save_whole(self, handle: int, state: HandleState) -> None:
        """Note the state of a handle that was lost before. The server leaves: its user's share no longer counts."""
        if handle in self.lost and not state.is_lost:
            self._keep(handle, state, 0, 0, is_charged=False)

    def state(self, handle: int) -> HandleState | None:
        """The state that was noted last."""
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
        """The errno (0: success) of the request `unique`, if that request left this state; else None."""
        record = self._state_of.get(handle)
        if record is None or self._words[record + 2] != unique:
            return None
        return self._words[record + 3]

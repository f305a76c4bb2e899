"""Open handles, and what their writers hold that is not published."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import NamedTuple

from fsstore.handover.layout import HANDLE_WORDS, HANDLES, HANDLES_BEGIN, HANDLES_USED_WORD, LAST_HANDLE_WORD
from fsstore.handover.records import STATE, Records, charged_bytes
from fsstore.handover.shares import Ledger

KEPT_BYTES = 1 << 16
"""Of a begun line or body: more is lost with the server, and its handle answers EIO from then on."""
LARGEST_TEXT_BYTES = 1 << 20
"""Of an open report: of a longer one, who has read a part reads no more."""
HANDLE_BYTES = charged_bytes(0)
"""What an open file counts."""
_INODE, _FLAGS, _LOST, _PUBLISHED, _USER = range(1, 6)
_IS_DIRECTORY = 1 << 62


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


class HandleRecords:
    """What is open, with what it holds. Each handle has a word of its own that says whether that is lost."""

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
        """Those that the next server would refuse, since what they hold was too long, or found no room."""
        for handle in self._state_of.keys() - self._entry_of.keys():
            records.drop(STATE, handle)
        for handle, entry in self._entry_of.items():
            ledger.inherit(words[entry + _USER], HANDLE_BYTES + self._charged_of_state(handle))

    @property
    def last(self) -> int:
        """The one that was given last; 0: none."""
        return self._words[LAST_HANDLE_WORD]

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
        words[LAST_HANDLE_WORD] = handle
        words[entry + _INODE] = inode
        words[entry + _FLAGS] = flags | _IS_DIRECTORY if is_directory else flags
        words[entry + _LOST] = 0
        words[entry + _USER] = user
        words[entry] = handle
        self._entry_of[handle] = entry

    def _one_more(self, user: int) -> int:
        """An entry that was never used."""
        used = self._words[HANDLES_USED_WORD]
        if used == HANDLES:
            self._ledger.charge(user, -HANDLE_BYTES)
            raise OSError(errno.ENFILE, "too many files are open")
        self._words[HANDLES_USED_WORD] = used + 1
        return HANDLES_BEGIN + used * HANDLE_WORDS

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
            self._records.drop(STATE, handle)
        self._ledger.charge(user, -size)
        if self.lost:
            self.lost.discard(handle)

    # what writers hold

    def _charged_of_state(self, handle: int) -> int:
        record = self._state_of.get(handle)
        return 0 if record is None else charged_bytes(self._words[record + 5])

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
            self._records.drop(STATE, handle)

    def _keep(self, handle: int, state: HandleState, unique: int, number: int, *, is_charged: bool) -> bool:
        """Note what a handle holds; False: there is no room."""
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

"""Open handles: the file or listing of each handle that the kernel has, and what the next server needs of it.

A handle of the last server is opened again when a request uses it. The state of a handle is noted in the shared memory
before a request through it is answered.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from engine import StoreError
from fsstore.handover.handles import HandleEntry
from fsstore.handover.memory import Handover
from fsstore.interface import FilesystemError, Opened, OpenedDirectory
from fsstore.tree.append import AppendFile
from fsstore.tree.drop import DropFile
from fsstore.tree.inodes import COMPUTED, MESSAGE
from fsstore.tree.listing import Listing
from fsstore.tree.messages import MessageFiles
from fsstore.tree.nodes import Context, OpenFile

H = TypeVar("H")


class _Handles(dict[int, H]):
    """Open files or listings by handle. A handle of the last server is opened again at its first use."""

    def __init__(self, reopen: Callable[[int], H]) -> None:
        super().__init__()
        self._reopen = reopen

    def __missing__(self, handle: int) -> H:
        return self._reopen(handle)


class OpenHandles:
    """Thread safety: none; the core's thread only."""

    def __init__(self, context: Context, messages: MessageFiles) -> None:
        self._context = context
        self._inodes = context.inodes
        self._messages = messages
        self.files: dict[int, OpenFile] = _Handles(self._reopen)
        self.listings: dict[int, Listing] = _Handles(self._reopen_directory)
        self._handed_over: Handover | None = None
        self.inherited: dict[int, HandleEntry] = {}
        """Handles of the last server that no request has used yet."""
        self._open_names: dict[int, int] = {}
        """Inode of each handle whose name a user made up."""
        self._next_handle = 1

    def take_over(self, handed_over: Handover) -> None:
        """Have the handles of the last server, if there was one, and note those that are opened from now on."""
        self._handed_over = handed_over
        self.inherited = dict(handed_over.handles.all())
        self._next_handle = handed_over.handles.last + 1
        for handle, entry in self.inherited.items():
            self._note_open(handle, entry.inode)

    def hand_over(self) -> None:
        """Note all unpublished bytes for the next server, which takes over all open files."""
        assert self._handed_over is not None
        for handle, file in self.files.items():
            if (state := file.unpublished(whole=True)) is not None:
                self._handed_over.handles.save_whole(handle, state)

    def abandon(self) -> int:
        """Close all handles. Returns the number of those with unpublished bytes, which are dropped."""
        unfinished = sum(file.is_unfinished for file in self.files.values())
        for file in self.files.values():
            file.abandon()
        self.files.clear()
        self.listings.clear()
        return unfinished

    def add(self, inode: int, file: OpenFile, how: Opened, flags: int) -> Opened:
        """Give an open file a handle. OSError: there is no room to note that it is open, and it is closed."""
        handle = self._next_handle
        opened = Opened(handle, how.direct_io, how.keep_cache, file.body)
        if self._handed_over is not None:
            try:
                self._inodes.opened(inode)
                self._handed_over.handles.add(handle, inode, flags, self._context.accounts.caller)
            except OSError:
                file.abandon()
                raise
        self.files[handle] = file
        if inode < COMPUTED:
            self._note_open(handle, inode)
            self.keep(handle, 0, 0)
        self._next_handle = handle + 1
        return opened

    def _note_open(self, handle: int, inode: int) -> None:
        if self._inodes.made_up.opened(inode):
            self._open_names[handle] = inode

    def release(self, handle: int) -> None:
        """Close a handle. Bytes that flush refused are dropped; bytes that wait for the close are published."""
        file = self.files[handle] if self._handed_over is None else self.files.get(handle) or self.writer(handle)
        if file is not None:
            file.release()
            self.files.pop(handle, None)
        self.drop(handle)

    def add_directory(self, inode: int, listing: Listing, opened: OpenedDirectory) -> OpenedDirectory:
        """Give an open listing a handle. OSError: there is no room to note that it is open, and it is closed."""
        handle = self._next_handle
        if self._handed_over is not None:
            try:
                self._handed_over.handles.add(handle, inode, 0, self._context.accounts.caller, is_directory=True)
            except OSError:
                listing.release()
                raise
        self.listings[handle] = listing
        self._note_open(handle, inode)
        self._next_handle = handle + 1
        return opened._replace(handle=handle)

    def release_directory(self, handle: int) -> None:
        listing = self.listings.pop(handle, None)  # None: the last server opened it, and no request has used it since
        if listing is not None:
            listing.release()
        self.drop(handle)

    def drop(self, handle: int) -> None:
        """Forget a handle that is closed, or whose release killed servers: its unpublished bytes stay as they are."""
        self.inherited.pop(handle, None)
        if self._handed_over is not None:
            self._handed_over.handles.drop(handle)
        if handle in self._open_names:
            self._inodes.made_up.closed(self._open_names.pop(handle))

    def inherited_files(self) -> Iterator[tuple[int, int]]:
        """Handle and inode of each inherited file whose content the kernel caches."""
        for handle, entry in self.inherited.items():
            if entry.inode >= MESSAGE:
                yield handle, entry.inode

    def holds_bytes(self, handle: int) -> bool:
        file = self.files.get(handle)
        if file is not None:
            return file.is_unfinished
        return self._handed_over is not None and self._handed_over.handles.has_state(handle)

    def is_synced(self, handle: int) -> bool:
        """Whether each write through a handle waits for the disk."""
        return getattr(self.files[handle], "is_synced", False)

    def outcome(self, handle: int, unique: int) -> int | None:
        """The errno (0: success) of request `unique`, if the last server noted it with the handle's state."""
        return self._handed_over.handles.outcome(handle, unique) if self._handed_over is not None else None

    def keep(self, handle: int, unique: int, number: int) -> None:
        """Note a handle's state before a request is answered with errno `number` (0: success)."""
        if self._handed_over is not None and (file := self.files.get(handle)) is not None:
            self._handed_over.handles.save(handle, file.unpublished(), unique, number)

    def is_of(self, inode: int, *kinds: type | None) -> bool:
        """Whether the last server gave the inode to a node of one of the kinds; None: the node exists again."""
        key = self._inodes.inherited(inode)
        return (None if key is None else key.kind) in kinds

    def _reopen(self, handle: int) -> OpenFile:
        """Open a handle of the last server again. EBADF: it had no such handle."""
        entry = self.inherited.get(handle)
        if entry is None or entry.is_directory or self._handed_over is None:
            raise FilesystemError(errno.EBADF)
        flags = entry.flags & ~os.O_TRUNC
        file: OpenFile
        if entry.inode >= MESSAGE:
            file = self._messages.open(entry.inode)
        else:
            with self._reopening(entry.user):
                file, _ = self._context.node(entry.inode).open(flags)
                file.resume(self._handed_over.handles.state(handle))
        del self.inherited[handle]
        self.files[handle] = file
        if entry.inode < COMPUTED:  # an `append` is forgotten with its last handle, so it needs to have all of them
            for other in [other for other, inherited in self.inherited.items() if inherited.inode == entry.inode]:
                self.files[other]
        return file

    @contextmanager
    def _reopening(self, user: int) -> Iterator[None]:
        """While open files of a user are opened again: they count to this user, and are never refused."""
        self._context.survival.is_reopening = True
        try:
            with self._context.accounts.acting_for(user):
                yield
        finally:
            self._context.survival.is_reopening = False

    def writer(self, handle: int) -> OpenFile | None:
        """The file of a handle that was not used since the take-over, if its close has an effect; else None."""
        entry = self.inherited.get(handle)
        if entry is None or entry.inode >= COMPUTED:
            return None
        if not self.is_of(entry.inode, None, AppendFile, DropFile):  # other nodes need not be made again for a close
            return None
        with suppress(FilesystemError, StoreError):
            if isinstance(self._inodes.nodes[entry.inode], AppendFile | DropFile):
                return self.files[handle]
        return None

    def _reopen_directory(self, handle: int) -> Listing:
        entry = self.inherited.get(handle)
        if entry is None or not entry.is_directory:
            raise FilesystemError(errno.EBADF)
        with self._reopening(entry.user):
            listing, _ = self._context.node(entry.inode).opendir()
        listing.resume()
        del self.inherited[handle]
        self.listings[handle] = listing
        return listing

"""Handlers for the frequent FUSE opcodes: call the core, pack the reply.

Decisions here: which bodies go into the kernel's cache with `open`, how a writer waits for the disk, how a listing
fits the kernel's buffer. The core decides errors and cache times.

All of it runs on the request loop's thread and never waits. The thread that syncs the log answers the writers that
wait for the disk.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial, update_wrapper
from typing import Any, NoReturn

import numpy as np

from engine import MessageStore, OpenMode, StoreClosedError, StoreError, WouldBlock
from fsstore.core import Filesystem
from fsstore.fuse import dirents
from fsstore.fuse import protocol as wire
from fsstore.fuse.errors import errno_for, errno_of
from fsstore.fuse.notify import OpenBodies
from fsstore.fuse.protocol import (
    ARGUMENTS,
    FORGOTTEN,
    FORGOTTEN_BEGIN,
    HANDLE,
    LOOKUPS,
    RANGE,
    REQUEST,
    WRITTEN_BYTES,
    Opcode,
)
from fsstore.fuse.request_log import MOST_PATH_CHARACTERS, below
from fsstore.fuse.session import Channel, Handler
from fsstore.handover.requests import RESENT, RequestJournal
from fsstore.interface import AT_END, FilesystemError, ListedNames, MessageColumns, MessageNames, SlowWork, WorkKind
from fsstore.tree.drop import WAIT_S, SetattrRequest
from fsstore.tree.inodes import COMPUTED
from fsstore.tree.listing import DESCRIBING_S, MOST_DESCRIBED
from fsstore.tree.nodes import Creation
from fsstore.tree.refusals import escaped

FEWEST_ROWS = 64
"""Messages to ask of a listing at least, because the core reads ahead as many as it was asked for."""


_PUBLISHING = (Opcode.WRITE, Opcode.FLUSH, Opcode.FSYNC)


class RequestHandlers:
    """Handlers over one core, by opcode. One that raises SlowWork, FilesystemError or StoreError has not answered.
    Thread safety: one thread.

    `published` is called after each request that may have published, before the writer is answered: it notifies the
    kernel of sizes that have grown. `waiting` is called for a request that waits for the disk; the function that it
    may return is called with the errno of the answer.
    """

    def __init__(self, core: Filesystem, store: MessageStore, channel: Channel) -> None:
        self.published: Callable[[], None] = lambda: None
        self.waiting: Callable[[int], Callable[[int], None] | None] = lambda unique: None
        self.by_opcode: dict[int, Handler] = {
            Opcode.LOOKUP: self.lookup,
            Opcode.FORGET: self.forget,
            Opcode.BATCH_FORGET: self.forget_many,
            Opcode.GETATTR: self.getattr,
            Opcode.SETATTR: self.setattr,
            Opcode.READLINK: self.readlink,
            Opcode.MKDIR: self.mkdir,
            Opcode.CREATE: self.create,
            Opcode.UNLINK: self.unlink,
            Opcode.RMDIR: self.rmdir,
            Opcode.RENAME: self.rename,
            Opcode.RENAME2: self.rename2,
            Opcode.OPEN: self.open,
            Opcode.READ: self.read,
            Opcode.WRITE: self.write,
            Opcode.FLUSH: self.flush,
            Opcode.FSYNC: self.fsync,
            Opcode.RELEASE: self.release,
            Opcode.GETXATTR: self.getxattr,
            Opcode.LISTXATTR: self.listxattr,
            Opcode.OPENDIR: self.opendir,
            Opcode.READDIR: self.readdir,
            Opcode.READDIRPLUS: self.readdirplus,
            Opcode.RELEASEDIR: self.releasedir,
            Opcode.FSYNCDIR: self.fsyncdir,
            Opcode.INTERRUPT: self.interrupt,
            Opcode.IOCTL: self.unsupported,
        }
        if core.is_no_open:
            self.by_opcode |= {Opcode.OPEN: self.unsupported, Opcode.READ: self.read_unopened}
        self._core = core
        self._store = store
        self._channel = channel
        self._send = channel.send
        self._bodies = OpenBodies(channel.push)
        self._flush_is_needed = store.mode is OpenMode.WRITE

    # names and attributes

    def lookup(self, unique: int, inode: int, request: memoryview) -> None:
        self._send(wire.entry(unique, self._core.lookup(inode, bytes(request[ARGUMENTS:-1]))))

    def getattr(self, unique: int, inode: int, _: memoryview) -> None:
        self._send(wire.attributes_of(unique, self._core.getattr(inode)))

    def setattr(self, unique: int, inode: int, request: memoryview) -> None:
        valid, handle, size, atime, mtime, atime_ns, mtime_ns, mode, uid, gid = wire.SETATTR.unpack_from(
            request, ARGUMENTS
        )
        now_ns = time.time_ns()

        def time_of(seconds: int, ns: int, is_set: int, is_now: int) -> int | None:
            if valid & is_now:
                return now_ns
            return seconds * wire.NS_PER_S + ns if valid & is_set else None

        wanted = SetattrRequest(
            mode if valid & wire.SET_MODE else None,
            uid if valid & wire.SET_UID else None,
            gid if valid & wire.SET_GID else None,
            time_of(atime, atime_ns, wire.SET_ATIME, wire.SET_ATIME_NOW),
            time_of(mtime, mtime_ns, wire.SET_MTIME, wire.SET_MTIME_NOW),
        )
        sized, by_handle = valid & wire.SET_SIZE, valid & wire.SET_BY_HANDLE
        attributes = self._core.setattr(inode, size if sized else None, handle if by_handle else None, wanted)
        self.published()
        self._send(wire.attributes_of(unique, attributes))

    def readlink(self, unique: int, inode: int, _: memoryview) -> None:
        target = self._core.readlink(inode)
        self._send(wire.header(unique, len(target)) + target)

    def getxattr(self, unique: int, inode: int, request: memoryview) -> None:
        (room,) = wire.XATTR.unpack_from(request, ARGUMENTS)
        value = self._core.getxattr(inode, bytes(request[ARGUMENTS + wire.XATTR.size : -1]))
        self._send(wire.xattr(unique, value, room))

    def listxattr(self, unique: int, inode: int, request: memoryview) -> None:
        (room,) = wire.XATTR.unpack_from(request, ARGUMENTS)
        names = b"".join(name + b"\0" for name in self._core.listxattr(inode))
        self._send(wire.xattr(unique, names, room))

    def mkdir(self, unique: int, inode: int, request: memoryview) -> None:
        self._send(wire.entry(unique, self._core.mkdir(inode, bytes(request[wire.MADE_NAME : -1]))))

    def create(self, unique: int, inode: int, request: memoryview) -> None:
        flags, mode = wire.CREATE.unpack_from(request, ARGUMENTS)
        uid, gid, _ = wire.CALLER.unpack_from(request, wire.CALLER_BEGIN)
        name = bytes(request[ARGUMENTS + wire.CREATE.size : -1])
        self._send(wire.created(unique, *self._core.create(inode, name, Creation(flags, mode, uid, gid))))

    def unlink(self, unique: int, inode: int, request: memoryview) -> None:
        self._core.unlink(inode, bytes(request[ARGUMENTS:-1]))
        self._send(wire.done(unique))

    def rmdir(self, _: int, __: int, request: memoryview) -> NoReturn:
        self._core.rmdir(bytes(request[ARGUMENTS:-1]))

    def rename(self, unique: int, inode: int, request: memoryview) -> None:
        (directory,) = wire.RENAME.unpack_from(request, ARGUMENTS)
        self._rename(unique, inode, directory, request[ARGUMENTS + wire.RENAME.size : -1], 0)

    def rename2(self, unique: int, inode: int, request: memoryview) -> None:
        directory, flags = wire.RENAME2.unpack_from(request, ARGUMENTS)
        self._rename(unique, inode, directory, request[ARGUMENTS + wire.RENAME2.size : -1], flags)

    def _rename(self, unique: int, inode: int, directory: int, names: memoryview, flags: int) -> None:
        name, new_name = bytes(names).split(b"\0")
        self._finish(unique, self._core.rename(inode, name, directory, new_name, flags), wire.done(unique))

    def forget(self, _: int, inode: int, request: memoryview) -> None:
        """No reply."""
        self._forget(inode, LOOKUPS.unpack_from(request, ARGUMENTS)[0])

    def forget_many(self, _: int, __: int, request: memoryview) -> None:
        """No reply."""
        for inode, count in FORGOTTEN.iter_unpack(request[FORGOTTEN_BEGIN:]):
            self._forget(inode, count)

    def _forget(self, inode: int, count: int) -> None:
        self._bodies.forget(inode)
        self._core.forget(inode, count)

    # files

    def open(self, unique: int, inode: int, request: memoryview) -> None:
        (flags,) = wire.FLAGS.unpack_from(request, ARGUMENTS)
        file = self._core.open(inode, flags)
        if file.keep_cache:
            self._bodies.opened(inode, file.handle, file.body)
        self._send(wire.opened(unique, file, nothing_to_flush=flags & os.O_ACCMODE == os.O_RDONLY))

    def read_unopened(self, unique: int, inode: int, request: memoryview) -> None:
        _, position, size = RANGE.unpack_from(request, ARGUMENTS)
        data = self._core.read_unopened(inode, position, size)
        self._channel.send_with(wire.header(unique, len(data)), data)

    def read(self, unique: int, _: int, request: memoryview) -> None:
        data = self._core.read(*RANGE.unpack_from(request, ARGUMENTS))
        self._channel.send_with(wire.header(unique, len(data)), data)

    def write(self, unique: int, _: int, request: memoryview) -> None:
        handle, position, size, _, owner, flags = wire.WRITE.unpack_from(request, ARGUMENTS)
        if flags & os.O_APPEND and not self._core.handles.files[handle].takes_positions:
            position = AT_END
        physical_end = self._core.write(handle, position, bytes(request[WRITTEN_BYTES:]), owner)
        self._finish(unique, physical_end, wire.taken(unique, size))

    def flush(self, unique: int, _: int, request: memoryview) -> None:
        if not self._flush_is_needed:
            self._send(wire.failed(unique, errno.ENOSYS))  # the kernel then sends no more FLUSH
            return
        handle, owner = wire.FLUSH.unpack_from(request, ARGUMENTS)
        self._finish(unique, self._core.flush(handle, owner), wire.done(unique))

    def fsync(self, unique: int, _: int, request: memoryview) -> None:
        (handle,) = HANDLE.unpack_from(request, ARGUMENTS)
        self._finish(unique, self._core.fsync(handle), wire.done(unique))

    def _finish(self, unique: int, physical_end: int, reply: bytes) -> None:
        """Answer a writer; if it waits for the disk, after the log's sync, which all waiting writers share. If the
        store closes before, the kernel asks the next server again."""
        self.published()
        if not physical_end:
            self._send(reply)
            return

        log_answer = self.waiting(unique)

        def on_disk(failure: StoreError | None) -> None:
            if isinstance(failure, StoreClosedError):
                return
            number = 0 if failure is None else errno_for(failure, "writing")
            self._channel.send_late(wire.failed(unique, number) if number else reply)
            if log_answer is not None:
                log_answer(number)

        self._store.request_durable(physical_end, on_disk)

    def release(self, unique: int, _: int, request: memoryview) -> None:
        (handle,) = HANDLE.unpack_from(request, ARGUMENTS)
        self._core.handles.release(handle)
        self._bodies.released(handle)
        self.published()
        self._send(wire.done(unique))

    def refused(self, error: Exception, number: int, request: memoryview) -> None:
        """Note why something was not published, or not changed, if the failed request was to do that."""
        _, opcode, unique, inode = REQUEST.unpack_from(request)
        if opcode == Opcode.WRITE:
            self._core.write_refused(HANDLE.unpack_from(request, ARGUMENTS)[0], unique & ~RESENT, number)
        pid = wire.CALLER.unpack_from(request, wire.CALLER_BEGIN)[2]
        if opcode in _PUBLISHING:
            self._core.note_refused(HANDLE.unpack_from(request, ARGUMENTS)[0], pid, number, error)
        elif opcode == Opcode.OPEN:
            if wire.FLAGS.unpack_from(request, ARGUMENTS)[0] & os.O_ACCMODE != os.O_RDONLY:
                self._core.note_refused_open(inode, pid, number, error)
        elif opcode == Opcode.LOOKUP:
            name = bytes(request[ARGUMENTS:-1])
            if name.startswith(b"append@"):
                self._core.note_refused_name(inode, name, pid, number, error)
        elif opcode == Opcode.SETATTR:
            valid, handle, *_ = wire.SETATTR.unpack_from(request, ARGUMENTS)
            if valid & wire.SET_BY_HANDLE:
                self._core.note_refused(handle, pid, number, error)
        elif opcode == Opcode.CREATE:
            name = bytes(request[ARGUMENTS + wire.CREATE.size : -1])
            if not name.startswith(b"append@"):  # its look-up was refused before
                self._core.note_refused_name(inode, name, pid, number, error)
        elif opcode in (Opcode.RENAME, Opcode.RENAME2):
            begin = ARGUMENTS + (wire.RENAME if opcode == Opcode.RENAME else wire.RENAME2).size
            self._core.note_refused_name(inode, bytes(request[begin:]).split(b"\0")[1], pid, number, error)
        elif opcode in (Opcode.UNLINK, Opcode.RMDIR):
            self._core.note_refused_removal(inode, bytes(request[ARGUMENTS:-1]), pid, number, error)
        elif opcode == Opcode.MKDIR and number != errno.EEXIST:
            self._core.note_refused_name(inode, bytes(request[wire.MADE_NAME : -1]), pid, number, error)

    def instead_of(self, poisoned: Mapping[int, str]) -> dict[int, Handler]:
        """Handlers for requests that killed servers, by `unique` without RESENT, from the reason of each."""
        return {}

    def unsupported(self, unique: int, _: int, __: memoryview) -> None:
        """ENOSYS. OPEN: the kernel opens without requests from then on, keeps cached pages and sends no RELEASE. IOCTL,
        by which Python asks of each file that it opens whether it is a terminal: the kernel answers ENOTTY."""
        self._send(wire.failed(unique, errno.ENOSYS))

    # directories

    def opendir(self, unique: int, inode: int, _: memoryview) -> None:
        self._send(wire.opened_directory(unique, self._core.opendir(inode)))

    def readdir(self, unique: int, _: int, request: memoryview) -> None:
        """Names alone, for a reader that looks none up."""
        self._list(unique, request, with_attributes=False)

    def readdirplus(self, unique: int, _: int, request: memoryview) -> None:
        """Names with their attributes, as look-ups would return them."""
        self._list(unique, request, with_attributes=True)

    def _list(self, unique: int, request: memoryview, *, with_attributes: bool) -> None:
        handle, position, room = RANGE.unpack_from(request, ARGUMENTS)
        row_bytes = (dirents.ENTRIES if with_attributes else dirents.NAMES).itemsize
        parts: list[bytes] = []
        until_s = time.monotonic() + DESCRIBING_S
        while room >= row_bytes:
            limit = max(room // row_bytes, FEWEST_ROWS)
            try:
                batch = self._core.readdir(handle, position, limit, with_attributes=with_attributes)
            except SlowWork:
                if not parts:
                    raise
                break  # the next request waits for it
            if not isinstance(batch, list):
                part, count = packed_columns(batch, room)
                if count:
                    position = int(batch.next_positions[count - 1])
                if count < len(batch.names):
                    room = 0
            else:
                part, count = (dirents.entries_of if with_attributes else dirents.names_of)(batch, room)
                for entry in batch[:count]:
                    position = entry.next_position
                    if with_attributes:
                        self._core.listed(entry.attributes.inode)
                if count < len(batch) or count >= MOST_DESCRIBED or time.monotonic() >= until_s:
                    room = 0  # the next entry did not fit, or other requests have waited long enough
            if not count:
                break
            parts.append(part)
            room -= len(part)
        listed = b"".join(parts)
        self._send(wire.header(unique, len(listed)) + listed)

    def releasedir(self, unique: int, _: int, request: memoryview) -> None:
        self._core.handles.release_directory(HANDLE.unpack_from(request, ARGUMENTS)[0])
        self._send(wire.done(unique))

    def fsyncdir(self, unique: int, _: int, request: memoryview) -> None:
        (handle,) = HANDLE.unpack_from(request, ARGUMENTS)
        self._finish(unique, self._core.fsyncdir(handle), wire.done(unique))

    def interrupt(self, _: int, __: int, ___: memoryview) -> None:
        """A signal interrupts a waiting process. Requests wait for the disk only: a sync can't be taken back."""


class JournaledHandlers(RequestHandlers):
    """Handlers of a mount that outlives this process: requests that are not idempotent are done once, by one of two
    servers.

    The kernel sends requests again that the last server left unanswered. Such a request was done, or its messages are
    in the log and nothing else is known (then everything is done again except the put), or it was not done.
    """

    def __init__(self, core: Filesystem, store: MessageStore, channel: Channel, journal: RequestJournal) -> None:
        super().__init__(core, store, channel)
        self._journal = journal
        self._handle = 0
        """The handle of the present request; 0: the request needs no journal."""
        self._wrap(self._once, Opcode.WRITE)
        self._wrap(self._once_if_needed, Opcode.FLUSH, Opcode.FSYNC, Opcode.RELEASE)
        self._wrap(self._named_once, Opcode.MKDIR, Opcode.CREATE, Opcode.UNLINK, Opcode.RENAME, Opcode.RENAME2)
        for handle, inode in core.handles.inherited_files():
            self._bodies.opened(inode, handle, None)

    def _wrap(self, once: Callable[[Handler, int, int, memoryview], None], *opcodes: Opcode) -> None:
        for opcode in opcodes:
            handler = self.by_opcode[opcode]
            self.by_opcode[opcode] = update_wrapper(partial(once, handler), handler)

    def _named_once(self, handler: Handler, unique: int, inode: int, request: memoryview) -> None:
        """Do a request that makes, removes or renames a name, which may have happened already."""
        self._journal.begin(unique, self._core.accounts.caller)
        with self._core.already_begun() if self._journal.was_begun(unique) else nullcontext():
            handler(unique, inode, request)

    def _once_if_needed(self, handler: Handler, unique: int, inode: int, request: memoryview) -> None:
        if unique & RESENT or self._core.handles.holds_bytes(HANDLE.unpack_from(request, ARGUMENTS)[0]):
            self._once(handler, unique, inode, request)
        else:
            handler(unique, inode, request)

    def _once(self, handler: Handler, unique: int, inode: int, request: memoryview) -> None:
        """Do a request that begins with a handle, unless the last server did it."""
        journal = self._journal
        slot = self._begin(unique, request)
        (handle,) = HANDLE.unpack_from(request, ARGUMENTS)
        if unique & RESENT:
            if self._was_done(unique, slot, handle, request):
                return
            if journal.is_stored(slot) or journal.was_begun(unique):
                core = self._core
                with core.already_stored(handle) if journal.is_stored(slot) else core.already_begun():
                    self._do(handler, unique, inode, request, slot, handle)
                return
        self._do(handler, unique, inode, request, slot, handle)

    def _begin(self, unique: int, request: memoryview) -> int:
        """The slot of a request. RELEASE belongs to no user and can't be refused, so it waits for a slot."""
        if REQUEST.unpack_from(request)[1] != Opcode.RELEASE:
            return self._journal.begin(unique, self._core.accounts.caller)
        try:
            return self._journal.begin(unique)
        except OSError:
            raise SlowWork(lambda: time.sleep(WAIT_S), WorkKind.WAITING) from None

    def _do(self, handler: Handler, unique: int, inode: int, request: memoryview, slot: int, handle: int) -> None:
        journal = self._journal
        journal.enter(slot)
        self._handle = handle
        try:
            handler(unique, inode, request)
        except SlowWork as slow:
            slow.work = partial(journal.run, slot, slow.work)
            raise
        except WouldBlock:  # before anything was done
            raise
        except Exception as error:
            self._core.handles.keep(handle, unique & ~RESENT, errno_of(error) or errno.EIO)
            raise
        finally:
            self._handle = 0
            journal.enter(0)

    def instead_of(self, poisoned: Mapping[int, str]) -> dict[int, Handler]:
        refuse = self.refuse_poisoned
        return {unique: update_wrapper(partial(refuse, why), refuse) for unique, why in poisoned.items()}

    def refuse_poisoned(self, why: str, unique: int, inode: int, request: memoryview) -> None:
        """EIO for a request that killed servers. If its messages are in the log, it is answered as stored."""
        _, opcode, _, _ = REQUEST.unpack_from(request)
        if self._journal.is_stored(self._journal.slots.get(unique & ~RESENT, 0)):
            self.by_opcode[opcode](unique, inode, request)
            return
        if opcode in (Opcode.RELEASE, Opcode.RELEASEDIR):
            self._core.handles.drop(HANDLE.unpack_from(request, ARGUMENTS)[0])
        uid, _, pid = wire.CALLER.unpack_from(request, wire.CALLER_BEGIN)
        path = f"inode:{inode}" if inode >= COMPUTED else self._core.path_of(inode)  # reading it may kill again
        operation = f"{wire.operation_name(opcode)} of {escaped(below(path, opcode, request), MOST_PATH_CHARACTERS)}"
        raise FilesystemError(errno.EIO, f"{operation} by user {uid}, process {pid}, is refused: {why}")

    def _was_done(self, unique: int, slot: int, handle: int, request: memoryview) -> bool:
        """Whether the last server did a request; then it is answered here."""
        opcode = REQUEST.unpack_from(request)[1]
        if opcode == Opcode.RELEASE:
            return False
        until, outcome = self._journal.done_until(slot), None
        if until is None:
            outcome = self._core.handles.outcome(handle, unique & ~RESENT)
            if outcome is None:
                return False
            until = self._store.physical_end if opcode == Opcode.FSYNC or self._core.handles.is_synced(handle) else 0
        if outcome:
            raise FilesystemError(outcome)
        is_write = opcode == Opcode.WRITE
        reply = wire.taken(unique, wire.WRITE.unpack_from(request, ARGUMENTS)[2]) if is_write else wire.done(unique)
        super()._finish(unique, min(until, self._store.physical_end), reply)
        return True

    def _finish(self, unique: int, physical_end: int, reply: bytes) -> None:
        if self._handle:
            self._core.handles.keep(self._handle, unique & ~RESENT, 0)
            self._journal.done(unique, physical_end)
        super()._finish(unique, physical_end, reply)


def packed_columns(batch: MessageColumns | MessageNames | ListedNames, room: int) -> tuple[bytes, int]:
    """As many names of a batch as fit into `room` bytes, packed, and their number."""
    if isinstance(batch, ListedNames):
        return dirents.listed_names(batch, room)
    most = room // (dirents.NAMES if isinstance(batch, MessageNames) else dirents.ENTRIES).itemsize
    rows = message_rows(batch, most)
    return rows.tobytes(), len(rows)


def message_rows(batch: MessageColumns | MessageNames, most: int) -> np.ndarray[Any, Any]:
    """The first `most` messages of a batch as rows of a listing."""
    columns = batch if len(batch.names) <= most else batch.rows(0, most)
    return dirents.message_names(columns) if isinstance(columns, MessageNames) else dirents.message_entries(columns)

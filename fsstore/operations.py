"""The handlers that pyfuse3 calls: each asks the core, and fills in the kernel's answer.

What is the adapter's own: which bodies go into the kernel's cache with `open`, how a writer waits for the disk, how a
listing fits the kernel's buffer. Which error a refusal is, and what may be cached how long, is the core's to say.

Everything here runs on trio's thread. A handler that awaits nothing answers before any other request is looked at; only
write, flush, fsync and fsyncdir wait (for the disk), and handlers whose answer takes slow work (in a thread).
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable
from typing import NoReturn

import pyfuse3
import trio
from pyfuse3 import EntryAttributes

from engine import MessageStore, OpenMode
from fsstore.answers import answered, answered_when_durable, fill, refusal
from fsstore.core import Filesystem
from fsstore.interface import DirectoryEntry, MessageColumns, WriteOutcome
from fsstore.sessionloop import SessionLoop

LISTING_ENTRIES = 187
"""Entries asked for at once: one more than fit a 32 KiB readdir buffer when names have 20 digits."""

PUSHED_INODES = 65_521
"""Places in the memory of pushed inodes: a prime, because records begin at like distances."""


class StoreOperations:
    """pyfuse3's handlers over one core. Thread safety: none; trio's thread only.

    `loop` is set before the first request. `published` is called after each request that may have published, to tell
    the kernel which sizes have grown before the writer hears of its success.
    """

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, core: Filesystem, store: MessageStore) -> None:
        self.loop = SessionLoop()
        self.mounted = trio.Event()
        self.published: Callable[[], None] = lambda: None
        self._core = core
        self._store = store
        self._flush_is_needed = store.mode is OpenMode.WRITE
        self._entry = EntryAttributes()  # one of each for all answers: pyfuse3 copies it before another request comes
        self._opened = pyfuse3.FileInfo()
        self._cached = OpenBodies()

    def init(self) -> None:
        """The kernel's first request has come."""
        self.mounted.set()

    def stacktrace(self) -> None:
        """pyfuse3's debugging hook: not offered."""

    # names and attributes

    @answered
    def lookup(self, parent: int, name: bytes, _: object) -> EntryAttributes:
        return fill(self._entry, self._core.lookup(parent, name))

    @answered
    def getattr(self, inode: int, _: object) -> EntryAttributes:
        return fill(self._entry, self._core.getattr(inode))

    @answered
    def setattr(self, inode: int, _attr: object, _fields: object, _handle: int | None, _: object) -> EntryAttributes:
        return fill(self._entry, self._core.setattr(inode))

    @answered
    def readlink(self, inode: int, _: object) -> bytes:
        return self._core.readlink(inode)

    async def forget(self, forgotten: list[tuple[int, int]]) -> None:
        """The kernel no longer knows these inodes, so many look-ups of each. It hears no answer, not even an error."""
        try:
            for inode, count in forgotten:
                self._cached.forget(inode)
                self._core.forget(inode, count)
        except Exception as error:
            refusal(error, "forget")

    @answered
    def statfs(self, _: object) -> pyfuse3.StatvfsData:
        space = self._core.statfs()
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = space.block_size
        answer.f_blocks, answer.f_bfree, answer.f_bavail = space.blocks, space.blocks_free, space.blocks_available
        answer.f_files, answer.f_ffree, answer.f_favail = space.files, space.files_free, space.files_free
        answer.f_namemax = space.name_max
        return answer

    # files

    @answered
    def open(self, inode: int, flags: int, _: object) -> pyfuse3.FileInfo:
        opened = self._core.open(inode, flags)
        if opened.keep_cache:
            self._cached.opened(inode, opened.handle, opened.body)
        answer = self._opened
        answer.fh, answer.direct_io, answer.keep_cache = opened.handle, opened.direct_io, opened.keep_cache
        return answer

    @answered
    def read(self, handle: int, position: int, size: int) -> bytes | memoryview:
        return self._core.read(handle, position, size)

    @answered_when_durable
    def write(self, handle: int, position: int, data: bytes) -> WriteOutcome:
        return self._core.write(handle, position, data)

    @answered_when_durable
    def flush(self, handle: int) -> WriteOutcome:
        if not self._flush_is_needed:
            raise pyfuse3.FUSEError(errno.ENOSYS)  # the kernel then asks no more: a close costs one request less
        return self._core.flush(handle)

    @answered_when_durable
    def fsync(self, handle: int, _datasync: bool) -> WriteOutcome:
        return self._core.fsync(handle)

    @answered
    def release(self, handle: int) -> None:
        self._cached.released(handle)
        self._core.release(handle)

    async def wait_durable(self, physical_end: int) -> None:
        """Wait until the log is on disk up to there: no thread a writer, and all who wait share one flush."""
        await self.loop.completed(lambda done: self._store.request_durable(physical_end, done))

    # directories

    @answered
    def opendir(self, inode: int, _: object) -> int:
        return self._core.opendir(inode)

    @answered
    def readdir(self, handle: int, position: int, token: pyfuse3.ReaddirToken) -> None:
        while batch := self._core.readdir(handle, position, LISTING_ENTRIES):
            if isinstance(batch, MessageColumns):
                if not len(batch.names) or not self._reply_messages(token, batch):
                    return
                position = int(batch.next_positions[-1])
            else:
                if not self._reply_entries(token, batch):
                    return
                position = batch[-1].next_position

    def _reply_entries(self, token: pyfuse3.ReaddirToken, batch: list[DirectoryEntry]) -> bool:
        """Whether all of `batch` fitted the kernel's buffer."""
        for name, attributes, next_position in batch:
            if not pyfuse3.readdir_reply(token, name, fill(self._entry, attributes), next_position):
                return False
            self._core.listed(attributes.inode)
        return True

    def _reply_messages(self, token: pyfuse3.ReaddirToken, batch: MessageColumns) -> bool:
        """As `_reply_entries`, for a run of messages: filled in is what differs from the message before."""
        reply = pyfuse3.readdir_reply
        shared = batch.template
        entry = fill(self._entry, shared)
        shown_size, shown_mtime_ns, was_readable = shared.size, shared.mtime_ns, True
        for name, inode, size, mtime_ns, readable, next_position in zip(
            batch.names.tolist(),
            batch.inodes.tolist(),
            batch.sizes.tolist(),
            batch.mtimes_ns.tolist(),
            batch.readable.tolist(),
            batch.next_positions.tolist(),
            strict=True,
        ):
            entry.st_ino = inode
            if size != shown_size:
                entry.st_size = shown_size = size
                entry.st_blocks = (size + 511) >> 9
            if mtime_ns != shown_mtime_ns:
                entry.st_mtime_ns = entry.st_ctime_ns = entry.st_atime_ns = shown_mtime_ns = mtime_ns
            if readable is not was_readable:
                entry.entry_timeout = shared.entry_timeout if readable else 0
                entry.attr_timeout = shared.attr_timeout if readable else 0
                was_readable = readable
            if not reply(token, name, entry, next_position):
                return False
        return True

    @answered
    def releasedir(self, handle: int) -> None:
        self._core.releasedir(handle)

    @answered_when_durable
    def fsyncdir(self, handle: int, _datasync: bool) -> WriteOutcome:
        return self._core.fsyncdir(handle)

    @answered
    def mkdir(self, parent: int, name: bytes, _mode: int, _: object) -> EntryAttributes:
        return fill(self._entry, self._core.mkdir(parent, name))

    # what is refused: each by its own handler, because a missing one reads "Function not implemented"

    @answered
    def create(self, parent: int, name: bytes, _mode: int, _flags: int, _: object) -> NoReturn:
        self._core.create(parent, name)

    @answered
    def mknod(self, parent: int, name: bytes, _mode: int, _device: int, _: object) -> NoReturn:
        self._core.create(parent, name)

    @answered
    def unlink(self, _parent: int, _name: bytes, _: object) -> NoReturn:
        self._core.refuse()

    @answered
    def rmdir(self, _parent: int, _name: bytes, _: object) -> NoReturn:
        self._core.refuse()

    @answered
    def symlink(self, _parent: int, _name: bytes, _target: bytes, _: object) -> NoReturn:
        self._core.refuse()

    @answered
    def rename(self, _old: int, _name: bytes, _new: int, _new_name: bytes, _flags: int, _: object) -> NoReturn:
        self._core.refuse()

    @answered
    def link(self, _inode: int, _parent: int, _name: bytes, _: object) -> NoReturn:
        self._core.refuse()

    @answered
    def access(self, _inode: int, _mode: int, _: object) -> bool:
        return True  # the kernel checks the modes itself (default_permissions) and does not ask

    @answered
    def poll(self, _inode: int, _handle: int, _poll_handle: object, _: object) -> NoReturn:
        raise pyfuse3.FUSEError(errno.ENOSYS)  # the kernel then answers by itself, as for any regular file

    # extended attributes

    @answered
    def getxattr(self, inode: int, name: bytes, _: object) -> bytes:
        return self._core.getxattr(inode, name)

    @answered
    def listxattr(self, inode: int, _: object) -> list[bytes]:
        return self._core.listxattr(inode)

    @answered
    def setxattr(self, inode: int, _name: bytes, _value: bytes, _: object) -> NoReturn:
        self._core.setxattr(inode)

    @answered
    def removexattr(self, inode: int, _name: bytes, _: object) -> NoReturn:
        self._core.setxattr(inode)


class OpenBodies:
    """Puts small bodies into the kernel's cache at `open`, so that reading them costs no request.

    Only when no other handle is open on the inode: otherwise the kernel may hold that page locked for a read that waits
    for us, while we would wait for the page. So opens and releases are counted.
    """

    def __init__(self) -> None:
        self._inode_of: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._pushed = array("Q", bytes(8 * PUSHED_INODES))
        """At `inode % PUSHED_INODES` the newest one of those that share the place: a body may be pushed twice."""

    def opened(self, inode: int, handle: int, body: bytes | None) -> None:
        """A handle on an unchanging inode is about to be answered; `body` is the whole of it when it is small."""
        others = self._open.get(inode, 0)
        if body and not others and self._pushed[inode % PUSHED_INODES] != inode:
            self._push(inode, body)
        self._inode_of[handle] = inode
        self._open[inode] = others + 1

    def _push(self, inode: int, body: bytes) -> None:
        try:
            pyfuse3.notify_store(inode, 0, body)
        except OSError:
            return  # the kernel forgot the inode, or is short of memory: it will ask
        self._pushed[inode % PUSHED_INODES] = inode

    def released(self, handle: int) -> None:
        """A handle is closed."""
        inode = self._inode_of.pop(handle, None)
        if inode is None:
            return
        left = self._open[inode] - 1
        if left:
            self._open[inode] = left
        else:
            del self._open[inode]

    def forget(self, inode: int) -> None:
        """The kernel dropped the inode, its cached body with it."""
        if self._pushed[inode % PUSHED_INODES] == inode:
            self._pushed[inode % PUSHED_INODES] = 0

"""MappedFile: one mapped file of fixed size (docs/format.md, 3). Its positions are not stored in the file.

    0 ..... flushed ..... readable ..... wrote ..... allocated ..... size
      on disk      visible       buffered     free             no disk space yet

Disk space is allocated in growing steps, each before its first byte is written. So a file takes little more than its
data, and a full disk is an error of a call, never a SIGBUS; also in a file that another program left sparse.

Reader protocol: writers write bytes first, and then move the position that publishes them. `wrote` is ahead of
`readable` only while a private write buffer is attached; `commit` copies its bytes to the file.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from engine.errors import (
    REFUSED_FILE,
    ObstructedError,
    ReadError,
    RefusedReadError,
    RetiredFileError,
    StoreFullError,
    TruncatedFileError,
)
from engine.files.disk import Disk, allocate, create_whole, lengthen, space_for
from engine.files.file_scan import HEAD_BYTES
from engine.files.open_files import OpenFiles
from engine.files.paths import is_refused_read, open_file, unlink
from engine.files.read_ahead import READ_AHEAD
from engine.record.kernel.files import FileMap, FilePositions, Mapped, read_through, refused_end, require_read

PAGE_BYTES = 4096
ZERO_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(ZERO_CHUNK_BYTES)
WARM_CHUNK_BYTES = 1 << 20
REWRITTEN_BYTES = 256 << 10
LARGE_BYTES = 64 << 10
"""Write size from which a system call is cheaper than a page fault for each 4 KiB; it also releases the GIL."""
MOST_STEP_BYTES = 4 << 20
"""Limit for the disk space that is allocated ahead of what is written. Smaller files double theirs."""
READ_STEP_BYTES = 64 << 10
"""A file that gets disk space in steps of this size or more is read ahead of the writer, until it is mapped anew."""


class Access(Enum):
    """READ: another process may write the file; what we write stays in this process's memory. WRITE: we write it."""

    READ = "read"
    WRITE = "write"


class WriteDescriptor:
    """Descriptor of a file that is written through its map, for syncs and for long writes. It is opened on demand and
    closed when the file is evicted.

    Thread safety: one caller at a time, except that the file's writer may call `write` concurrently.
    """

    __slots__ = ("_disk", "_failure", "_number", "_path", "_writing")

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._number = -1
        self._failure: OSError | None = None
        self._writing = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether there is a descriptor."""
        return self._number >= 0

    def take(self, number: int) -> None:
        """Own the descriptor with which the file was made."""
        self._number = number

    def open(self) -> int:
        """The descriptor. OSError, also when the path is not a regular file any more."""
        if self._number < 0:
            try:
                self._number = open_file(self._path, os.O_RDWR)
            except ObstructedError as error:
                raise OSError(errno.ESTALE, f"no file any more, but {error.found}", str(self._path)) from error
        return self._number

    def write(self, data: bytes | bytearray | memoryview, position: int) -> bool:
        """Write `data`; readers of maps see it at once. False, and nothing is done, if it is not open. OSError."""
        with self._writing:  # no `close` in between
            if self._number < 0:
                return False
            rest = memoryview(data)
            while rest:
                done = os.pwrite(self._number, rest, position)
                rest, position = rest[done:], position + done
            return True

    def require_no_failure(self) -> None:
        """OSError: a sync failed before."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def sync(self) -> None:
        """Return when all written bytes are on disk. OSError: every later call raises it again, because the kernel
        reports a failed page write only once."""
        self.require_no_failure()
        number = self.open()
        try:
            self._disk.sync(number, self._path)
        except OSError as error:
            self._failure = error
            raise

    def write_again(self, start: int, end: int) -> None:
        """Make the next sync write bytes [start, end), also after an earlier failure. OSError."""
        number = self.open()
        for position in range(start, end, REWRITTEN_BYTES):
            self._write_again(number, position, min(REWRITTEN_BYTES, end - position))
        self._failure = None

    def _write_again(self, number: int, position: int, size: int) -> None:
        try:
            self._disk.write_again(number, self._path, position, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            for page in range(position, position + size, PAGE_BYTES):
                with suppress(OSError):  # a page that can't be read is not in memory either
                    self._disk.write_again(number, self._path, page, min(PAGE_BYTES, position + size - page))

    def close(self) -> None:
        """Close the descriptor until the next use."""
        with self._writing:
            if self._number >= 0:
                os.close(self._number)
                self._number = -1


def next_data(descriptor: int, position: int, size: int) -> int:
    """First position >= `position` that may be non-zero, or `size`. Holes are skipped without reading them. OSError."""
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:  # ENXIO: only holes follow; others: the filesystem can't tell
        return size if error.errno == errno.ENXIO else position


def next_hole(descriptor: int, position: int, size: int) -> int:
    """First position >= `position` of a hole (never-written space), or `size`. OSError."""
    try:
        return os.lseek(descriptor, position, os.SEEK_HOLE)
    except OSError as error:
        return position if error.errno == errno.ENXIO else size


class MappedFile(FilePositions):
    """A mapped file; it is mapped at the first access. After construction all bytes count as written.

    Thread safety: one writer; any readers; `sync`, `hold`, `release`, `retire` from any thread. A view stays valid
    while it is referenced, even after `close`: the map is freed with its last view.
    """

    __slots__ = (
        "_allocated_from",
        "_blank_from",
        "_closed",
        "_commit_lock",
        "_descriptor",
        "_disk",
        "_holders",
        "_in_memory",
        "_inode",
        "_lock",
        "_open_files",
        "_reads_ahead",
        "_retired",
        "_sync_lock",
        "access",
        "flushed",
        "path",
    )

    def __init__(self, path: Path, size: int, access: Access, *, start: int = 0, disk: Disk | None = None) -> None:
        """`start` is the offset of byte 0 within a file queue."""
        self.path = path
        self.start = start
        self.size = size
        self.access = access
        self.wrote = self.readable = self.flushed = size
        self.allocated = self._allocated_from = 0  # bytes in between have disk space
        self._reads_ahead = True
        self._disk = disk or Disk()
        self._inode = 0  # of the file that was mapped last
        self._target = self._buffer = None  # memory for the writer, None: not prepared; the private write buffer
        self._blank_from = size  # bytes from here on are blank: never copied from the buffer
        self._descriptor = WriteDescriptor(path, self._disk)  # open only while bytes are to be written or synced
        self._in_memory = False  # READ: whether the only copy of some bytes may be in memory
        self._holders = 0
        self._retired = False
        self._closed = False
        self._open_files: OpenFiles | None = None
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._commit_lock = threading.Lock()

    @classmethod
    def create(
        cls,
        path: Path,
        size: int,
        access: Access,
        *,
        start: int = 0,
        disk: Disk | None = None,
        sync: bool = False,
        in_steps: bool = False,
    ) -> MappedFile:
        """Make a file of zeros with disk space for all of it, or, `in_steps`, for its first step; nothing is written.
        `sync` makes its size durable; its name is not.

        StoreFullError, OSError: no file is left. READ uses only memory.
        """
        file = cls(path, size, access, start=start, disk=disk)
        file.set_end(0)
        if access is Access.READ:
            file._keep_memory(b"")
            file.writable()
        else:
            with space_for(path, PAGE_BYTES):
                file._descriptor.take(create_whole(path, partial(file._make, sync, 1 if in_steps else size)))
        return file

    def _make(self, sync: bool, needed: int, descriptor: int) -> None:
        """Give a new, empty file its length, and disk space for at least `needed` bytes, and map it."""
        lengthen(descriptor, self.path, self.size)
        self._allocate(descriptor, 0, needed)
        if sync:
            self._disk.sync(descriptor, self.path)
        made = FileMap(descriptor, self.size, writable=True, private=False, path=self.path)
        self._keep_map(made)
        self._target = memoryview(made)

    @property
    def end(self) -> int:
        """Offset just past the readable bytes: start + readable."""
        return self.start + self.readable

    @property
    def full(self) -> bool:
        """Whether every byte was written."""
        return self.wrote >= self.size

    @property
    def remaining(self) -> int:
        """Bytes that can still be written."""
        return self.size - self.wrote

    @property
    def closed(self) -> bool:
        """Whether the file can't be read any more."""
        return self._closed

    # reading

    def pages(self) -> memoryview:
        """Read-only view of all readable bytes, [0, readable), as `rest`."""
        return self.rest(0)

    def array(self, dtype: DTypeLike, position: int = 0, count: int = -1) -> np.ndarray[Any, Any]:
        """Readable bytes from `position` on as a read-only array of shape (count,); -1: all whole items.
        RefusedReadError: the disk can't read them."""
        unit = np.dtype(dtype)
        length = (max(self.readable - position, 0) // unit.itemsize if count < 0 else count) * unit.itemsize
        view = self.view(position, length)
        read_through(view)
        return np.frombuffer(view, dtype=unit)

    def read_soon(self, position: int, length: int) -> None:
        """Make the kernel start reading these bytes from disk, because a reader needs them soon."""
        for found, start, size in self._unread(position, length):
            found.read_soon(start, size)

    def read_large(self, position: int, length: int) -> None:
        """Queue a read of these bytes into large pages on the read-ahead thread; dropped when its queue is full. Only
        for bytes that are not written any more: one changed byte writes a whole large page to disk."""
        for found, start, size in self._unread(position, length):
            READ_AHEAD.ask(partial(found.read_large, start, size))

    def _unread(self, position: int, length: int) -> Iterator[tuple[FileMap, int, int]]:
        """Yields (map, position, size) of the existing bytes, if they are not in memory."""
        with suppress(ReadError):  # the reader itself gets the error
            found = self._map().map
            size = min(length, len(memoryview(found)) - position)
            if size > 0 and not found.is_read(position, size):
                yield found, position, size

    def _map(self) -> Mapped:
        with self._lock:
            self._leave_refused()
            is_new = self._mapped is None
            if is_new:
                self._open_map()
            assert self._mapped is not None
            mapped = self._mapped
        if is_new and self._open_files is not None:
            self._open_files.add(self)
        return mapped

    def _leave_refused(self) -> None:
        """Drop a map with a page that the disk could not read, to try again, unless it has the only copy."""
        if self._mapped is not None and self._mapped.map.is_refused() and not self._in_memory:
            self._mapped = None
            self._target = self._buffer

    def _open_map(self) -> None:
        if self._closed:
            raise RetiredFileError(self.path)
        descriptor = self._open(os.O_RDWR if self.access is Access.WRITE else os.O_RDONLY)
        try:
            found = os.fstat(descriptor)
            self._inode, length = found.st_ino, min(self.size, found.st_size)
            if length == 0:
                raise TruncatedFileError(self.path, self.size, 0)
            writable = self.access is Access.WRITE
            self._keep_map(FileMap(descriptor, length, writable=writable, private=False, path=self.path))
        finally:
            os.close(descriptor)  # the map keeps a duplicate of its own

    def _open(self, flags: int) -> int:
        """A descriptor. RetiredFileError: the file is missing; RefusedReadError: the disk can't open it. OSError."""
        try:
            return open_file(self.path, flags)
        except FileNotFoundError as error:
            raise RetiredFileError(self.path) from error
        except OSError as error:
            if not is_refused_read(error):
                raise
            raise RefusedReadError(-1, REFUSED_FILE, self.path, 0) from error

    def _copy_if_little(self, used: int) -> bool:
        """Keep a copy of the first `used` bytes in memory. False, and nothing is done, if these are many, the file is
        short, or the disk refuses a byte."""
        pages = self.whole()
        if used > LARGE_BYTES or len(pages) < self.size or refused_end(pages[:used]):
            return False
        self._keep_memory(pages[:used])
        return True

    def _leave_the_file(self) -> None:
        """READ: keep what is written from now on in this process's memory. Few bytes, or a short file, are copied at
        once, other pages when they are written."""
        mapped = self._map()
        if mapped.pages.size < self.size:
            self._keep_memory(self.whole())
        elif not self._copy_if_little(self.wrote):
            own = FileMap(mapped.map.descriptor, self.size, writable=True, private=True, path=self.path)
            self._keep_in_memory(own)

    def _keep_memory(self, held: bytes | memoryview) -> None:
        """Use anonymous memory, which needs no descriptor, from now on; it begins with the bytes `held`."""
        memory = FileMap(-1, self.size, writable=True, private=True)
        memory.advise(mmap.MADV_NOHUGEPAGE)  # most of it stays untouched
        memoryview(memory)[: len(held)] = held
        self._keep_in_memory(memory)

    def _keep_in_memory(self, memory: FileMap) -> None:
        with self._lock:
            self._keep_map(memory)
            self._in_memory = True
        if self._open_files is not None:
            self._open_files.discard(self)

    def _keep_map(self, file_map: FileMap) -> None:
        if not self._reads_ahead:
            file_map.advise(mmap.MADV_RANDOM)
        self._mapped = Mapped(file_map)

    # writing

    def writable(self, start: int = 0, end: int | None = None) -> memoryview:
        """The whole file, for writing in place to bytes [start, end), which have disk space then; moves no position.
        StoreFullError."""
        target = self._target  # read once: `evict` may reset it at any moment
        end = self.size if end is None else end
        has_space = self._allocated_from <= start and end <= self.allocated
        if target is None or not has_space or (self._mapped is not None and self._mapped.map.is_refused()):
            return self._prepare_target(start, end)
        return target

    def ready(self, length: int) -> None:
        """Load the next `length` bytes for writing, so that the write can't fail. StoreFullError, RefusedReadError."""
        end = min(self.wrote + length, self.size)
        free = self.writable(self.wrote, end)[self.wrote : end]
        if 0 < len(free) < LARGE_BYTES:  # else a system call writes them, without page faults
            free[::PAGE_BYTES] = bytes(-(-len(free) // PAGE_BYTES))  # reading first would be a second fault a page
            free[-1] = 0
        read_through(free)

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Write at `wrote`, then publish; returns the position of `data`, which must fit. StoreFullError."""
        position = self.wrote
        self.write(position, data)
        self.publish(position + len(data))
        return position

    def append_head_last(self, data: bytes | bytearray | memoryview) -> int:
        """As `append`, but the first 8 bytes, which distinguish a record from zeros, are written last.

        OSError, RefusedReadError: the bytes are zeroed again, so that no record of a failed batch can be found later.
        """
        position = self.wrote
        end = position + len(data)
        target = self.writable(position, end)
        try:
            if end - position <= PAGE_BYTES:
                target[position + HEAD_BYTES : end] = data[HEAD_BYTES:]
            else:
                self.write(position + HEAD_BYTES, memoryview(data)[HEAD_BYTES:])
            target[position : position + HEAD_BYTES] = data[:HEAD_BYTES]
            require_read(target, position, end - position)
        except BaseException:  # also Ctrl-C, between two lines
            target[position:end] = bytes(end - position)
            raise
        self.wrote = end
        if self._buffer is None:
            self.readable = end
        return position

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write `data` at `position` without publishing it. StoreFullError, OSError, RefusedReadError."""
        target = self.writable(position, position + len(data))
        if len(data) < LARGE_BYTES or self._buffer is not None or not self._descriptor.write(data, position):
            target[position : position + len(data)] = data
            require_read(target, position, len(data))  # bytes on a page that the disk could not read are not kept

    def publish(self, end: int) -> None:
        """Make bytes before `end` readable (with a write buffer: at the next commit)."""
        self.wrote = end
        if self._buffer is None:
            self.readable = end

    def publish_to_end(self, end: int) -> None:
        """Publish bytes before `end`; the rest of the file counts as written with arbitrary content."""
        self._blank_from = end
        self.publish(self.size)

    def _prepare_target(self, start: int, end: int) -> memoryview:
        """As `writable`. A file that another program cut gets its length first."""
        if self.access is Access.WRITE:
            if self._target is None:
                with self._sync_lock:
                    self._descriptor.open()
            mapped = self._map()
            if mapped.pages.size < self.size:
                lengthen(mapped.map.descriptor, self.path, self.size)
                self._mapped = None
            had = self.allocated
            self._allocate(mapped.map.descriptor, start, end)
            if not self._reads_ahead and self.allocated - had >= READ_STEP_BYTES:
                self._map().map.advise(mmap.MADV_NORMAL)  # else each page is read alone when it is written
        else:
            if not self._in_memory:
                self._leave_the_file()
            self.allocated = self.size
        target = self._target = self._buffer if self._buffer is not None else memoryview(self._map().map)
        return target

    def _allocate(self, descriptor: int, start: int, end: int) -> None:
        """Allocate disk space for bytes [start, end), which may have it, and a step behind them if there is room.
        StoreFullError."""
        follows = self._allocated_from <= start <= self.allocated
        first = self.allocated if follows else start - start % PAGE_BYTES
        if end <= max(first, start):
            return
        step_end = first + min(max(first, PAGE_BYTES), MOST_STEP_BYTES)
        least, until = (min(-(-one // PAGE_BYTES) * PAGE_BYTES, self.size) for one in (end, max(end, step_end)))
        try:
            allocate(descriptor, self.path, first, until - first, self._disk)
        except StoreFullError:
            if least == until:
                raise
            until = least  # a disk that has no room for a step may have some for the data
            allocate(descriptor, self.path, first, until - first, self._disk)
        if follows or first <= self.wrote <= until:  # `wrote` is never before them
            self._allocated_from, self.allocated = self._allocated_from if follows else first, until

    def warm(self) -> None:
        """Write to every page of an unused file, so that its first writer has no page faults."""
        pages = np.frombuffer(self.writable(), dtype=np.uint8)
        for position in range(0, self.size, WARM_CHUNK_BYTES):  # in steps: each holds the GIL for a moment only
            pages[position : position + WARM_CHUNK_BYTES : PAGE_BYTES] = 0

    # the private write buffer

    def attach_buffer(self, buffer: memoryview) -> None:
        """Write to `buffer` (as long as the file) from now on; only `commit` makes bytes readable."""
        self._buffer = self._target = buffer

    def commit(self, least_pages: int = 0) -> memoryview | None:
        """Copy the buffered bytes to the file and publish them, if they touch `least_pages` (0: any byte).

        Returns the buffer once the file is full, else None. OSError leaves the positions unchanged.
        """
        with self._commit_lock:
            buffer, end = self._buffer, self.wrote
            if buffer is None or self._closed or not self.due(self.readable, end, least_pages):
                return None
            if not self._descriptor.write(buffer[self.readable : min(end, self._blank_from)], self.readable):
                raise OSError(errno.EBADF, "closed before its write buffer was committed", str(self.path))
            self.readable = end
            if end < self.size:
                return None
            self._buffer = self._target = None
            return buffer

    def detach_buffer(self) -> memoryview | None:
        """Remove and return the buffer without a commit, because the file is deleted."""
        with self._commit_lock:
            buffer, self._buffer = self._buffer, None
            self._target = None
            return buffer

    def due(self, done: int, ready: int, least_pages: int) -> bool:
        """Whether bytes [done, ready) are enough for a commit or flush: they end the file, or touch `least_pages`."""
        if least_pages <= 0 or ready == self.size:
            return ready > done
        return ready // PAGE_BYTES - done // PAGE_BYTES >= least_pages

    # durability

    def set_end(self, position: int) -> None:
        """Set all positions to `position`, as recovery found it. The bytes stay."""
        self._blank_from = self.size
        if position < self._allocated_from:
            self.allocated = self._allocated_from = 0
        self.wrote = self.readable = self.flushed = position

    def truncate(self, position: int) -> None:
        """Set all positions to `position`, zero the bytes after it, and sync. READ: positions only. StoreFullError,
        OSError."""
        written = position if self._target is None else self.wrote
        self.set_end(position)
        if self.access is Access.READ:
            return
        self._zero_from(position, written)
        self.sync()

    def _zero_from(self, position: int, written: int) -> None:
        """Zero non-zero bytes from `position` on; our own writes end at `written`. A short file gets its full length.

        Other files are prepared for writing only if they have non-zero bytes: a full disk may refuse even that.
        """
        found = np.frombuffer(self.whole(), np.uint8)
        if len(found) < self.size:
            self.writable(position, position)
        for start, end in [(position, written), *self.data_ranges(max(position, written))]:
            for chunk in range(start, min(end, len(found)), ZERO_CHUNK_BYTES):
                until = min(chunk + ZERO_CHUNK_BYTES, end)
                if found[chunk:until].any():
                    self.writable(chunk, until)[chunk:until] = _ZEROS[: until - chunk]

    def data_ranges(self, position: int = 0) -> Iterator[tuple[int, int]]:
        """Yields positions [start, end), from `position` on, that may be non-zero: the file without its holes.
        ReadError, OSError."""
        if self._in_memory:
            if position < self.readable:
                yield position, self.readable
            return
        found = self._map().map
        while (start := next_data(found.descriptor, position, self.size)) < self.size:
            position = min(next_hole(found.descriptor, start, self.size), self.size)
            yield start, position

    def cached_ranges(self, position: int = 0) -> Iterator[tuple[int, int]]:
        """Yields positions [start, end), from `position` on, of pages in the kernel's cache: only these may differ from
        the disk. ReadError, OSError."""
        found = self._map().map
        size = len(memoryview(found))
        if position < size:
            first = position - position % PAGE_BYTES
            held = np.frombuffer(found.cached(first, size - first), np.uint8) & 1
            edges = np.flatnonzero(np.diff(held, prepend=0, append=0)) * PAGE_BYTES + first
            for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
                yield max(start, position), min(end, size)

    def write_again(self, start: int, end: int) -> None:
        """WRITE: make the next sync write bytes [start, end), also after a failed one: the kernel may hold unwritten
        pages for clean. OSError."""
        with self._sync_lock:
            self._descriptor.write_again(start, end)

    def sync(self) -> None:
        """Sync the bytes that are readable now, then move `flushed`. OSError leaves `flushed` unchanged; every later
        call raises an error of the disk again."""
        if self.access is not Access.WRITE:
            self.flushed = self.readable
            return
        with self._sync_lock:
            if not self._retired and not self._closed:
                self._bring_to_disk()

    def note_synced(self, position: int) -> None:
        """Move `flushed` to `position`: a sync of the filesystem has brought the bytes before it to disk. OSError: an
        earlier sync of this file failed."""
        with self._sync_lock:
            self._descriptor.require_no_failure()
            self.flushed = max(self.flushed, min(position, self.readable))
            if self.flushed == self.size:
                self._descriptor.close()

    def _bring_to_disk(self) -> None:
        """`sync`, with `_sync_lock` held."""
        target = self.readable
        self._descriptor.sync()
        self.flushed = target
        if target == self.size or self._mapped is None:
            self._descriptor.close()

    # life

    def read_no_further(self) -> None:
        """Have the kernel read no more than the accessed pages, from now on."""
        self._reads_ahead = False
        if self._mapped is not None:
            self._mapped.map.advise(mmap.MADV_RANDOM)

    def count_in(self, open_files: OpenFiles | None) -> None:
        """Count the file in `open_files` whenever it is mapped."""
        self._open_files = open_files
        if open_files is not None and self._mapped is not None:
            open_files.add(self)

    def evict(self) -> bool:
        """Sync the file, then release map and descriptor until the next access.

        False, and nothing is done, while the file is held or in use, or when the sync fails (the next `sync` raises the
        error). Never waits for another thread.
        """
        with ExitStack() as taken:
            for lock in (self._sync_lock, self._lock):
                if not lock.acquire(blocking=False):
                    return False
                taken.callback(lock.release)
            if not self._closed and not self._is_idle_on_disk():
                return False
            self._descriptor.close()
            self._mapped = self._target = None
            return True

    def _is_idle_on_disk(self) -> bool:
        if self._holders or self._buffer is not None or self._in_memory:
            return False
        try:
            if self.access is Access.WRITE and self.flushed < self.readable:
                self._bring_to_disk()
        except OSError:
            return False
        return True

    def hold(self) -> bool:
        """Keep the file readable until `release`, even if it is retired; False when it is retired already.

        TruncatedFileError, RetiredFileError. A file that the disk can't read is held, too: its readers get the error.
        """
        with suppress(RefusedReadError):
            self._map()  # a removed file can't be mapped later
        with self._lock:
            if self._retired or self._closed:
                return False
            self._holders += 1
            return True

    def release(self) -> None:
        """End one `hold`."""
        with self._lock:
            self._holders -= 1
            last = self._retired and self._holders == 0
        if last:
            self.close()

    def retire(self) -> None:
        """Remove the file's name; its bytes stay readable for holders. OSError: it can't be removed."""
        with self._sync_lock:  # a sync must not open the name during its removal
            if self.access is Access.WRITE:
                unlink(self.path)
            with self._lock:
                self._retired = True
                held = self._holders > 0
        if not held:
            self.close()

    def is_replaced(self) -> bool:
        """Whether the path has another file now than the one that was mapped last."""
        try:
            return self._inode not in (0, os.stat(self.path).st_ino)
        except FileNotFoundError:
            return True

    def unmap(self) -> None:
        """Release the map; the next access maps again. Does nothing while the file is held, buffered or in memory."""
        with self._lock:
            if not self._in_memory and not self._holders and self._buffer is None:
                self._mapped = self._target = None

    def close(self) -> None:
        """Release map and descriptor without waiting for holders; later views raise RetiredFileError."""
        with self._lock:
            self._closed = True
            if self._mapped is None and not self._descriptor.is_open:  # evicted; a sync closes what it opens then
                return
            self._mapped = self._target = None
        with self._commit_lock, self._sync_lock:
            self._descriptor.close()
        if self._open_files is not None:
            self._open_files.discard(self)


class FixedFile(MappedFile):
    """A file that its writer only reads. Writing to it in memory would lose the messages."""

    __slots__ = ()

    def writable(self, start: int = 0, end: int | None = None) -> memoryview:
        """PermissionError."""
        raise PermissionError(f"{self.path} is only read")


def unread_end(file: MappedFile, start: int = 0, stop: int | None = None) -> int:
    """Position after the last byte in [start, stop) that the disk can't read; `start` when it can read all. `stop`
    None: the end of the readable bytes. Holes are not read. ReadError, OSError."""
    try:
        view, ranges = file.pages()[:stop], list(file.data_ranges(start))
    except RefusedReadError:  # the whole file
        return file.readable if stop is None else min(stop, file.readable)
    for first, after in reversed(ranges):
        end = refused_end(view[first:after])
        if end:
            return first + end
    return start


def used_end(file: MappedFile, start: int = 0) -> int:
    """Position after the last non-zero readable byte, from `start` on; `start` when all are zero. Holes are not read.
    ReadError, OSError."""
    view = file.pages()
    for first, after in reversed(list(file.data_ranges(start))):
        end = _nonzero_end(view[: min(after, len(view))], first)
        if end > first:
            return end
    return start


def _nonzero_end(view: memoryview, start: int) -> int:
    data, step = np.frombuffer(view, np.uint8), WARM_CHUNK_BYTES
    for first in range(max(len(data) - 1, 0) // step * step, start // step * step - 1, -step):
        found = np.flatnonzero(data[max(first, start) : first + step] != 0)
        if len(found):
            return max(first, start) + int(found[-1]) + 1
    return start

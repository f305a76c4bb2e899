"""The files of a mount, as far as they are served. All calls block, and may take as long as the mount takes.

Messages, texts, keys and `@parquet/` are served; of `@store/`, reports for all. Files that publish, wait to be
published, command, or are meant for one user are not: see `is_served`.

A path is opened below the mount's root, and no link leads out of it. Each open looks whether the mount is there, since
an unmounted directory is an empty one, and its files would seem to be deleted.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import FileIO
from typing import NamedTuple

from fsstore.mount_table import MOUNT_TABLE
from fsstore.tree.names import APPEND, parse_queue

REPORTS = (b"status.json", b"config.json", b"metrics")
"""Files of `@store/` that are served."""

_GONE = frozenset((errno.ENOTCONN, errno.ENODEV, errno.ECONNABORTED))
_ABSENT = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENAMETOOLONG))
_DENIED = frozenset((errno.EACCES, errno.EPERM))
_ROOT = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_AT_FDCWD = -100
_OPENAT2, _HOW = 437, struct.Struct("=QQQ")  # linux/openat2.h
_BENEATH, _NO_MAGIC_LINKS, _CACHED = 0x08, 0x02, 0x20
_AT_EMPTY_PATH, _AT_DONT_SYNC, _BASIC_STATS = 0x1000, 0x4000, 0x7FF  # linux/stat.h
_STATX = struct.Struct("=16xIIIH2xQQ64xqI4x8xII112x")
_TRIES, _RETRY_S = 1_000, 0.001
_libc = ctypes.CDLL(None, use_errno=True)
_ADDRESS, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_libc.mmap.argtypes, _libc.mmap.restype = (_ADDRESS, _SIZE, _INT, _INT, _INT, ctypes.c_int64), _ADDRESS
_libc.mincore.argtypes, _libc.munmap.argtypes = (_ADDRESS, _SIZE, ctypes.c_char_p), (_ADDRESS, _SIZE)
_NO_MAPPING = _ADDRESS(-1).value

Parts = tuple[bytes, ...]
"""Names of a path, from the mount's root down."""


class ServedMount(NamedTuple):
    """A mount that may be read: its device number, and whether it lets other users in."""

    device: int
    allows_others: bool


class RefusedError(Exception):
    """A request that is not answered as it was asked. `status` is HTTP's; `reason` is for the client, and the log."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class PathError(RefusedError):
    """The path of a request does not exist, or is not served."""


class MountGoneError(RefusedError):
    """The store is not mounted at `path` at this moment."""

    def __init__(self, path: str) -> None:
        super().__init__(503, f"the mount at {path} is gone")


class KeptFile:
    """An open file of which the loop may read what the kernel has in memory. Its mapping only tells which pages these
    are: an access to it would end this process where the mount can't read the page."""

    def __init__(self, file: FileIO, size: int) -> None:
        """A file of `size` bytes; `file` stays the caller's. OSError."""
        self._size = size
        self.used_s = time.monotonic()
        self._descriptor = os.dup(file.fileno())
        self._mapping: int = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, self._descriptor, 0)
        if self._mapping == _NO_MAPPING:
            os.close(self._descriptor)
            raise _last_error()

    def has(self, begin: int, end: int) -> bool:
        """Whether the kernel has the bytes [begin, end) in memory. It says so to the file's owner alone, and to
        others "yes"."""
        first = begin - begin % mmap.PAGESIZE
        pages = ctypes.create_string_buffer(-(-(end - first) // mmap.PAGESIZE) or 1)
        failed = _libc.mincore(self._mapping + first, end - first, pages)
        return not failed and all(page & 1 for page in pages.raw)

    def opened(self) -> FileIO:
        """The file."""
        self.used_s = time.monotonic()
        return FileIO(os.dup(self._descriptor), "r")

    def close(self) -> None:
        """Close it."""
        _libc.munmap(self._mapping, self._size)
        os.close(self._descriptor)


class Entry(NamedTuple):
    """A file: its name in its directory, its status, and its target if it is a link."""

    name: bytes
    status: os.stat_result
    target: bytes = b""


def parse_path(path: bytes) -> Parts:
    """The names of a decoded path. PathError: it names nothing that is served."""
    parts = tuple(filter(None, path.split(b"/")))
    if b"\0" in path or b"." in parts or b".." in parts:
        raise PathError(403, "a path has no '.', '..' or NUL")
    if not is_served(parts):
        raise PathError(405, "this file is not served: only messages and reports are")
    return parts


def is_served(parts: Parts) -> bool:
    """Whether a path is served, if it exists. Of `@store/`, unknown names are not."""
    if not parts or parts[0] == b"@parquet":
        return True
    if parts[0] == b"@store":
        return len(parts) == 1 or (len(parts) == 2 and parts[1] in REPORTS)
    below = parts[2:] if len(parts) > 2 and parse_queue(parts[1]) is not None else parts[1:]
    return not below or not (below[0] in (b"drop", APPEND) or below[0].startswith(APPEND + b"@"))


class ServedTree:
    """The tree of one mount. Thread safety: any thread."""

    def __init__(self, mountpoint: str, find: Callable[[], ServedMount | None]) -> None:
        """`find` looks into the table of mounts; None: the store is not mounted there."""
        self.mountpoint = mountpoint
        self._root_path = os.fsencode(mountpoint)
        self._find = find
        self._mount: ServedMount | None = None
        self._lock = threading.Lock()
        self._table = MOUNT_TABLE.open("rb", buffering=0)
        self._changes = select.poll()
        self._changes.register(self._table, select.POLLERR | select.POLLPRI)

    def mount(self) -> ServedMount:
        """The mount as it is now. MountGoneError."""
        with self._lock:
            if self._changes.poll(0) or self._mount is None:  # another mount may have the device number of the last
                self._mount = self._find()
            if self._mount is None:
                raise MountGoneError(self.mountpoint)
            return self._mount

    def require_answer(self) -> None:
        """Ask the mount for a sign of life. MountGoneError."""
        root, device = self._root()
        try:
            self._require(root, device)
            os.statvfs(root)
        except OSError as error:
            raise self._error(error) from None
        finally:
            os.close(root)

    def open(self, parts: Parts) -> FileIO:
        """Open a file for reading; it is closed with the object. MountGoneError, PathError, OSError."""
        descriptor = self._open(parts, os.O_RDONLY)
        try:
            return FileIO(descriptor, "r")
        except OSError:
            os.close(descriptor)
            raise PathError(404, "this is a directory") from None

    def entry(self, parts: Parts) -> Entry:
        """A file's status; a link is followed. Errors as `open`."""
        descriptor, status = self._opened(parts, os.O_PATH)
        os.close(descriptor)
        return Entry(parts[-1] if parts else b"", status)

    def known_entry(self, parts: Parts) -> Entry | None:
        """The status of a file that never changes, if the kernel knows its name and status: the mount, which may take
        long, is not asked. None: it has to be. MountGoneError."""
        device = self.mount().device
        path = b"/".join((self._root_path, *parts))
        try:
            # what leads out of the mount has another device number
            descriptor = _openat2(_AT_FDCWD, path, os.O_PATH | os.O_NOFOLLOW, _NO_MAGIC_LINKS | _CACHED)
            try:
                status = _known_status(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            return None
        return Entry(parts[-1], status) if status.st_dev == device else None

    def entries(self, parts: Parts, wanted: Callable[[bytes], bool] = lambda _name: True) -> Iterator[Entry]:
        """The served files of a directory whose names are wanted, in its order, while it is read. Links are not
        followed; files that vanish meanwhile are left out. Errors as `open`."""
        directory = self._open(parts, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in filter(wanted, _served_names(directory, parts)):
                try:
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    link = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(status.st_mode) else b""
                except OSError as error:
                    if error.errno not in _ABSENT:
                        raise self._error(error) from None
                else:
                    yield Entry(name, status, link)
        finally:
            os.close(directory)

    def names(self, parts: Parts) -> Iterator[bytes]:
        """Served names of a directory, in its order. Errors as `open`."""
        directory = self._open(parts, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield from _served_names(directory, parts)
        finally:
            os.close(directory)

    def _open(self, parts: Parts, flags: int) -> int:
        return self._opened(parts, flags)[0]

    def _opened(self, parts: Parts, flags: int) -> tuple[int, os.stat_result]:
        """A descriptor of a path, and its status, by which it is known to be of the mount."""
        root, device = self._root()
        try:
            descriptor = _open_beneath(root, b"/".join(parts) or b".", flags)
        except OSError as error:
            self._require(root, device)
            raise self._error(error) from None
        finally:
            os.close(root)
        try:
            status = self._require(descriptor, device)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, status

    def _root(self) -> tuple[int, int]:
        """The directory at which the store should be mounted, and the device number of its mount, as it is after the
        directory was opened. MountGoneError."""
        try:
            root = os.open(self.mountpoint, _ROOT)
        except OSError:
            raise MountGoneError(self.mountpoint) from None
        try:
            return root, self.mount().device
        except BaseException:
            os.close(root)
            raise

    def _require(self, descriptor: int, device: int) -> os.stat_result:
        """The status of a file of the mount. MountGoneError: it is of another one."""
        try:
            status = os.fstat(descriptor)
        except OSError as error:
            raise self._error(error) from None
        if status.st_dev != device:
            raise MountGoneError(self.mountpoint)
        return status

    def _error(self, error: OSError) -> Exception:
        """The error for a client that follows from an error of the mount."""
        if error.errno in _GONE:
            return MountGoneError(self.mountpoint)
        if error.errno in _ABSENT:
            return PathError(404, "there is no such file")
        if error.errno in (errno.EXDEV, errno.ELOOP):
            return PathError(403, "a link leads out of the mount")
        return PathError(403, "the server may not read this") if error.errno in _DENIED else error


def _open_beneath(root: int, path: bytes, flags: int) -> int:
    """openat2(2): no part of the path, and no link on it, leads out of `root`. OSError."""
    for _ in range(_TRIES):
        with suppress(BlockingIOError):
            return _openat2(root, path, flags, _BENEATH | _NO_MAGIC_LINKS)
        time.sleep(_RETRY_S)  # something was mounted or renamed on this machine while `..` was followed
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _openat2(directory: int, path: bytes, flags: int, resolve: int) -> int:
    how = _HOW.pack(flags | os.O_CLOEXEC, 0, resolve)
    descriptor: int = _libc.syscall(_OPENAT2, directory, path, how, len(how))
    if descriptor < 0:
        raise _last_error()
    return descriptor


def _known_status(descriptor: int) -> os.stat_result:
    """The kernel's cached status of an open file, by statx(2). OSError."""
    found = ctypes.create_string_buffer(_STATX.size)
    if _libc.statx(descriptor, b"", _AT_EMPTY_PATH | _AT_DONT_SYNC, _BASIC_STATS, found):
        raise _last_error()
    links, user, group, mode, inode, size, seconds, nanoseconds, major, minor = _STATX.unpack(found)
    fields = mode, inode, os.makedev(major, minor), links, user, group, size, 0, seconds, 0
    return os.stat_result(fields, {"st_mtime_ns": seconds * 1_000_000_000 + nanoseconds})


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _served_names(directory: int, parts: Parts) -> Iterator[bytes]:
    with os.scandir(directory) as found:
        for entry in found:
            name = os.fsencode(entry.name)
            if is_served((*parts, name)):
                yield name

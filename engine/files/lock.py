"""The store's lock: one writer at a time (docs/format.md, 1).

It is a POSIX record lock on byte 0 of the file `lock`, as RocketMQ takes it, so each excludes the other. The kernel
drops such a lock when the process closes *any* descriptor of that file. So only this module opens the file, and it
records the locks of the process. A fork does not inherit the lock: lock after daemonizing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from engine.errors import StoreLockedError
from engine.files.disk import Disk
from engine.files.layout import StoreLayout
from engine.files.paths import open_file, open_or_create

FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, len, pid
assert FLOCK.size == 32
CONTENT = b"lock"

FileId = tuple[int, int]


class StoreLock:
    """The lock on the file `path`, held from construction to `release`. A context manager.

    Thread safety: any thread.
    """

    # Locks of this process: file -> process id (a fork's child holds none). Process-wide, as the lock itself.
    _held: ClassVar[dict[FileId, int]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path) -> None:
        """Take the lock without waiting. StoreLockedError (has the holder's pid), ObstructedError, OSError."""
        self.path = path
        with self._guard:
            holder = self._own_holder(path)
            if holder is not None:
                raise StoreLockedError(path.parent, holder)
            self._descriptor = open_or_create(path)
            try:
                self._take()
                self._file_id = file_id(os.fstat(self._descriptor))
                if not self._has_content():  # its mtime shows when another program did
                    os.pwrite(self._descriptor, CONTENT, 0)
                self._held[self._file_id] = os.getpid()
            except BaseException:
                os.close(self._descriptor)
                raise

    def _take(self) -> None:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise StoreLockedError(self.path.parent, _holder_of(self._descriptor)) from error

    def _has_content(self) -> bool:
        with suppress(OSError):  # the disk can't read it: it is written again
            return os.pread(self._descriptor, len(CONTENT), 0) == CONTENT
        return False

    def sync(self, disk: Disk) -> None:
        """Bring the file's time to disk: the clean mark refers to it. OSError."""
        disk.sync(self._descriptor, self.path)

    @classmethod
    def holder(cls, path: Path) -> int | None:
        """Process id of the current holder, this process included; None: not locked. ObstructedError, OSError."""
        with cls._guard:
            own = cls._own_holder(path)
            if own is not None:
                return own
            try:
                descriptor = open_file(path)
            except (FileNotFoundError, IsADirectoryError):
                return None
            try:
                return _holder_of(descriptor)
            finally:
                os.close(descriptor)  # safe: this process holds no lock on it

    @classmethod
    def _own_holder(cls, path: Path) -> int | None:
        try:
            holder = cls._held.get(file_id(path.stat()))
        except FileNotFoundError:
            return None
        return holder if holder == os.getpid() else None

    def release(self) -> None:
        """Release the lock; calling it twice is harmless. The file stays, as with RocketMQ."""
        with self._guard:
            if self._held.pop(self._file_id, None) is not None:
                os.close(self._descriptor)

    def __enter__(self) -> StoreLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def writer_of(store: Path) -> int | None:
    """Process id of the store's writer (0: in another pid namespace); None: it is not open for writing. OSError."""
    return StoreLock.holder(StoreLayout(store).lock)


def file_id(found: os.stat_result) -> FileId:
    """Identity of a file, independent of its path: device and inode numbers."""
    return found.st_dev, found.st_ino


def _holder_of(descriptor: int) -> int | None:
    """Process id of another process that locks byte 0, or None; 0: in another pid namespace."""
    asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else pid

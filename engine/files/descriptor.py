"""The descriptor of a file that is written through its map: for syncing it, and for writes too long for page faults."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from engine.errors import ObstructedError
from engine.files.disk import Disk
from engine.files.paths import open_file


class WriteDescriptor:
    """Opened when it is needed, closed when its file is let go.

    Thread safety: one caller at a time of all but `write`, which may come meanwhile, from the file's one writer.
    """

    __slots__ = ("_disk", "_failure", "_number", "_path", "_writing")

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._number = -1
        self._failure: OSError | None = None
        self._writing = threading.Lock()

    def take(self, number: int) -> None:
        """Own a descriptor that was opened when the file was made."""
        self._number = number

    def open(self) -> int:
        """The descriptor. OSError, also when another thing has taken the file's place."""
        if self._number < 0:
            try:
                self._number = open_file(self._path, os.O_RDWR)
            except ObstructedError as error:
                raise OSError(errno.ESTALE, f"no file any more, but {error.found}", str(self._path)) from error
        return self._number

    def write(self, data: bytes | bytearray | memoryview, position: int) -> bool:
        """Write all of `data`, which readers of maps see at once; False, and nothing is done, if it is not open.
        OSError."""
        with self._writing:  # nobody closes it meanwhile
            if self._number < 0:
                return False
            rest = memoryview(data)
            while rest:
                done = os.pwrite(self._number, rest, position)
                rest, position = rest[done:], position + done
            return True

    def sync(self) -> None:
        """Return when all that was written is on disk. OSError; what the disk refused once is refused for ever, because
        the kernel tells only once of a page that it could not write."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        number = self.open()
        try:
            self._disk.sync(number, self._path)
        except OSError as error:
            self._failure = error
            raise

    def close(self) -> None:
        """Give it back until it is needed again."""
        with self._writing:
            if self._number >= 0:
                os.close(self._number)
                self._number = -1


def next_data(descriptor: int, position: int, size: int) -> int:
    """First position from there on that may be non-zero, `size` for none: never-written space is skipped without
    reading it. OSError."""
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:  # ENXIO: only holes behind; others: the filesystem can't tell
        return size if error.errno == errno.ENXIO else position


def next_hole(descriptor: int, position: int, size: int) -> int:
    """First position from there on where never-written space begins, `size` for none. OSError."""
    try:
        return os.lseek(descriptor, position, os.SEEK_HOLE)
    except OSError as error:
        return position if error.errno == errno.ENXIO else size

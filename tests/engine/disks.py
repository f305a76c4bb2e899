"""Disks that refuse, for tests of the consequences."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from engine.files.disk import Disk


class FullDisk(Disk):
    """Has space for `allocations` more files, or steps of files."""

    def __init__(self, allocations: int) -> None:
        self.allocations = allocations

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        """Take the space of one, or ENOSPC."""
        if self.allocations < 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        self.allocations -= 1
        super().allocate(descriptor, path, start, size_bytes)


class NotingDisk(Disk):
    """Notes a file's content, as it was synced last, each time its name is synced."""

    def __init__(self, path: Path) -> None:
        self.durable: list[bytes] = []
        """The content of the file after a power cut: the last one noted."""
        self._path = path
        self._synced: dict[tuple[int, int], bytes] = {}

    def sync(self, descriptor: int, path: Path) -> None:
        super().sync(descriptor, path)
        found = os.fstat(descriptor)
        self._synced[found.st_dev, found.st_ino] = os.pread(descriptor, found.st_size, 0)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        if path == self._path.parent and self._path.exists():
            found = self._path.stat()
            if (found.st_dev, found.st_ino) in self._synced:
                self.durable.append(self._synced[found.st_dev, found.st_ino])

"""Disks that refuse: for tests of what happens then."""

from __future__ import annotations

import errno
from pathlib import Path

from engine.files.disk import Disk


class FullDisk(Disk):
    """Has space for `files` more files."""

    def __init__(self, files: int) -> None:
        self.files = files

    def allocate(self, descriptor: int, path: Path, size_bytes: int) -> None:
        """Take the space of one file, or ENOSPC."""
        if self.files < 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        self.files -= 1
        super().allocate(descriptor, path, size_bytes)

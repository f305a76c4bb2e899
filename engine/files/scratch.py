"""Scratch directories: files of one process, which nobody else reads and which go when it ends.

    PARENT/<prefix><random>/lock      locked as long as the process lives

What a killed one left behind is removed by the next that starts there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from engine.files.disk import make_directory

_LOCK = "lock"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ScratchDirectory:
    """A new directory of our own below a parent, which is made if it is missing. Thread safety: none."""

    def __init__(self, parent: Path, prefix: str) -> None:
        """OSError."""
        parent = Path(os.path.realpath(parent))
        make_directory(parent)
        remove_abandoned(parent, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self.descriptor = os.open(self.path, _FOLDER)
        """The directory, opened: what somebody puts in its place is not written to."""
        made = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._lock = os.open(_LOCK, made, 0o600, dir_fd=self.descriptor)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if os.geteuid() == 0:  # in a store of another user's, who can then remove what a killed daemon left
            owner = parent.stat()
            for descriptor in (self._lock, self.descriptor):
                os.fchown(descriptor, owner.st_uid, owner.st_gid)

    def close(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        os.close(self.descriptor)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove directories of ours, or of the owner of `parent`, whose process is gone; nothing else of that name."""
    owners = {os.geteuid(), parent.stat().st_uid}
    for directory in parent.glob(prefix + "*"):
        with suppress(OSError):  # a link, a file, or being made this moment
            opened = os.open(directory, _FOLDER)
            try:
                if os.fstat(opened).st_uid in owners:
                    _remove_if_unlocked(directory, opened)
            finally:
                os.close(opened)


def _remove_if_unlocked(directory: Path, opened: int) -> None:
    lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=opened)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            return
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)

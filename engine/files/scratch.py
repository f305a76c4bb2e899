"""Scratch directories: files of one process, which nobody else reads and which go when it ends.

    PARENT/<prefix><random>/      locked (flock) as long as the process lives

What a killed one left behind is removed by the next that starts there. A directory may be removed between its making
and its locking: whoever made it sees that it has no name any more, and makes another one.
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
"""In directories of earlier versions: this file is locked, and not the directory."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ScratchDirectory:
    """A new directory of our own below a parent, which is made if it is missing. Thread safety: none."""

    def __init__(self, parent: Path, prefix: str) -> None:
        """OSError."""
        parent = Path(os.path.realpath(parent))
        make_directory(parent)
        remove_abandoned(parent, prefix)
        made = None
        while made is None:
            made = _make_locked(parent, prefix)
        self.path, self._descriptor = made
        if os.geteuid() == 0:  # in a store of another user's, who can then remove what a killed daemon left
            owner = parent.stat()
            os.fchown(self._descriptor, owner.st_uid, owner.st_gid)

    def close(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def _make_locked(parent: Path, prefix: str) -> tuple[Path, int] | None:
    """A new directory and its descriptor, locked; None when another process has just taken it for abandoned."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    descriptor = -1
    try:
        descriptor = os.open(path, _FOLDER)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # who has it removes the directory, and lets it go
    except FileNotFoundError:
        return None
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        os.rmdir(path)
        raise
    if not _is_at(path, descriptor):
        os.close(descriptor)
        return None
    return path, descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


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
    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=opened)
    except FileNotFoundError:
        shutil.rmtree(directory, ignore_errors=True)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISREG(os.fstat(lock).st_mode):
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)

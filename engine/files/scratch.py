"""Scratch directories: private files of one process, removed when it ends.

    PARENT/<prefix><random>/      locked (flock) while the process runs

The next process that uses the parent removes directories of killed processes. It may remove a new directory before that
is locked; the process that made it notices the removal and makes another one.
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
"""Earlier versions locked this file instead of the directory."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ScratchDirectory:
    """A new private directory below a parent, which is made if it is missing. Thread safety: none."""

    def __init__(self, parent: Path, prefix: str) -> None:
        """OSError."""
        parent = Path(os.path.realpath(parent))
        make_directory(parent)
        remove_abandoned(parent, prefix)
        made = None
        while made is None:
            made = _make_locked(parent, prefix)
        self.path, self._descriptor = made
        if os.geteuid() == 0:  # the store's owner can then remove the directory after a kill of the daemon
            owner = parent.stat()
            os.fchown(self._descriptor, owner.st_uid, owner.st_gid)

    def close(self) -> None:
        """Remove the directory with its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def _make_locked(parent: Path, prefix: str) -> tuple[Path, int] | None:
    """A new locked directory and its descriptor; None: another process has just removed it as abandoned."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    descriptor = -1
    try:
        descriptor = os.open(path, _FOLDER)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # a process that holds it is removing the directory, and soon unlocks
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
    """Remove directories of ended processes that belong to us or to the owner of `parent`; other members stay."""
    owners = {os.geteuid(), parent.stat().st_uid}
    for directory in parent.glob(prefix + "*"):
        with suppress(OSError):  # a link, a file, or a directory that is being made
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

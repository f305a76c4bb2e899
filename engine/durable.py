"""What makes bytes and names survive a power cut: allocating, syncing, replacing a file in one step.

A file's bytes are durable after `Disk.sync`; its name only after its directory was synced too. `Disk` is injected, so that
tests give a full or failing disk, or record what was synced when.
"""

import errno
import os
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


class Disk:
    """The calls that a disk can refuse. Thread safety: stateless. Each raises OSError."""

    def allocate(self, descriptor: int, path: Path, size_bytes: int) -> None:
        """Give the open file `size_bytes` of real space, zeros where nothing was written."""
        os.posix_fallocate(descriptor, 0, size_bytes)

    def sync(self, descriptor: int, path: Path) -> None:
        """Return when the open file's bytes and size are on disk. Leaves other threads running (no GIL)."""
        os.fdatasync(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Return when the names in a directory are on disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_full_disk(error: OSError) -> bool:
    """Whether the disk or the quota is used up, so that trying again later may work."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def make_directory(path: Path, disk: Disk) -> None:
    """Make a directory and its missing parents, durably."""
    missing = [part for part in (path, *path.parents) if not part.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        disk.sync_directory(made.parent)


def replace_file(path: Path, content: bytes, disk: Disk) -> None:
    """Make `path` hold `content`, durably: whoever opens it, even after a power cut, finds the old or the new one whole."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        write_durably(temporary, content, disk)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    disk.sync_directory(path.parent)


def write_durably(path: Path, content: bytes, disk: Disk) -> None:
    """Write and sync a file; its name becomes durable with its directory."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        disk.sync(descriptor, path)
    finally:
        os.close(descriptor)


def remove_file(path: Path, disk: Disk) -> None:
    """Remove a file, durably; one that is missing is fine."""
    path.unlink(missing_ok=True)
    disk.sync_directory(path.parent)

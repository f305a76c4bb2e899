"""What makes bytes and names survive a power cut: allocating, syncing, replacing a file in one step.

A file's bytes are durable after `Disk.sync`; its name only after its directory was synced too. `Disk` is injected, so
that tests give a full or failing disk, or record what was synced when.
"""

import errno
import os
from pathlib import Path

from engine.errors import FlushFailedError, NoDescriptorError, ObstructedError, StoreFullError

TEMPORARY_SUFFIX = ".tmp"
FILE_MODE = 0o644

NO_UNNAMED_FILES = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV, errno.EPERM})
"""What filesystems without O_TMPFILE, or without /proc, answer."""


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


def lacks_descriptor(error: BaseException) -> bool:
    """Whether process or system had no descriptor left: a file was not opened, and nothing was tried with it."""
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return isinstance(error, NoDescriptorError)


def flush_error(path: Path, error: OSError) -> FlushFailedError | NoDescriptorError:
    """What a flush of `path` raises for `error`: the disk refused, which is final, or it could not be asked yet."""
    if lacks_descriptor(error):
        return NoDescriptorError(path)
    return FlushFailedError(path, error.strerror or str(error))


def allocate(descriptor: int, path: Path, size_bytes: int, disk: Disk) -> None:
    """`Disk.allocate`, with a full disk as StoreFullError."""
    try:
        disk.allocate(descriptor, path, size_bytes)
    except OSError as error:
        if is_full_disk(error):
            raise StoreFullError(path, size_bytes) from error
        raise


def create_allocated(path: Path, size_bytes: int, disk: Disk, *, sync: bool) -> int:
    """Make a file of zeros, really allocated; its descriptor, open for reading and writing.

    The name appears when the file is whole (where the filesystem knows unnamed files), so a process that dies meanwhile
    leaves no half file; neither does a full disk: StoreFullError. `sync` makes the size durable before the name is
    there. An empty file that exists already is taken over. FileExistsError when it is not empty; ObstructedError when
    it is a folder.
    """
    if path.is_dir():
        raise ObstructedError(path, "file")
    if not path.exists():
        try:
            return _create_unnamed(path, size_bytes, disk, sync)
        except OSError as error:
            if error.errno not in NO_UNNAMED_FILES:
                raise
    return _create_in_place(path, size_bytes, disk, sync)


def _create_unnamed(path: Path, size_bytes: int, disk: Disk, sync: bool) -> int:
    descriptor = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)
    try:
        allocate(descriptor, path, size_bytes, disk)
        if sync:
            disk.sync(descriptor, path)
        # src_dir_fd makes Python call linkat(AT_SYMLINK_FOLLOW), which is what names an unnamed file
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _create_in_place(path: Path, size_bytes: int, disk: Disk, sync: bool) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        if os.fstat(descriptor).st_size:
            raise FileExistsError(errno.EEXIST, "a file of the store is there already", str(path))
        try:
            allocate(descriptor, path, size_bytes, disk)
            if sync:
                disk.sync(descriptor, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_directory(path: Path) -> list[Path]:
    """Make a directory and its missing parents; the directories to sync for that to be durable."""
    missing = [part for part in (path, *path.parents) if not part.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return [made.parent for made in reversed(missing)]


def replace_file(path: Path, content: bytes, disk: Disk) -> None:
    """Make `path` hold `content`, durably: who opens it, even after a power cut, finds the old or the new one whole."""
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
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
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

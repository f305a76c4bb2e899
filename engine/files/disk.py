"""Disk: allocates, syncs and atomically replaces files, so that bytes and names survive a power cut.

A file's bytes are durable after `Disk.sync`; its name only after its directory was synced too. `Disk` is injected, so
that tests can simulate a full or failing disk, or record the syncs.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

from engine.errors import FlushFailedError, NoDescriptorError, ObstructedError, RefusedReadError, StoreFullError
from engine.files.paths import (
    create_file,
    create_unnamed,
    link,
    make_folder,
    open_file,
    open_folder,
    read_file,
    rename,
    unlink,
)
from engine.record.header import MAX_OFFSET
from engine.record.kernel.folders import begin_writing, sync_filesystem

Buffer = bytes | memoryview

TEMPORARY_SUFFIX = ".tmp"

MOST_BYTES = 256 << 20
"""Limit for reading our own files: a mark has about a hundred bytes for each file of a store."""

NO_UNNAMED_FILES = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV, errno.EPERM})
"""Error numbers of filesystems without O_TMPFILE, or without /proc."""


def _is_linux(least: tuple[int, int]) -> bool:
    """Whether the kernel is of a version from `least` on."""
    major, minor, *_ = re.findall(r"\d+", os.uname().release)
    return (int(major), int(minor)) >= least


REPORTS_FAILURES = _is_linux((5, 8))
"""Whether syncfs reports failed writes."""


class Disk:
    """The calls that a disk can refuse. Each raises OSError with the path. Thread safety: stateless."""

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        """Allocate disk space for bytes [start, start + size_bytes) of the open file; unwritten bytes are zeros."""
        with _naming(path):
            os.posix_fallocate(descriptor, start, size_bytes)

    def sync(self, descriptor: int, path: Path) -> None:
        """Return when the open file's bytes and size are on disk. Releases the GIL."""
        with _naming(path):
            os.fdatasync(descriptor)

    def sync_filesystem(self, descriptor: int, path: Path) -> bool:
        """Return True when all bytes and names written to the filesystem of the open folder are on disk. False: the
        filesystem or kernel can't promise that. OSError: a write failed since the folder was opened, perhaps another
        program's. Releases the GIL."""
        with _naming(path):
            return REPORTS_FAILURES and sync_filesystem(descriptor)

    def write_again(self, descriptor: int, path: Path, position: int, size: int) -> None:
        """Make the next sync write bytes [position, position + size) as readers see them, even where the kernel holds
        them for clean. The disk begins at once, so that the sync waits for less."""
        with _naming(path):
            os.pwrite(descriptor, os.pread(descriptor, size, position), position)
        begin_writing(descriptor, position, size)

    def sync_directory(self, path: Path) -> None:
        """Return when the names in a directory are on disk."""
        descriptor = open_folder(path)
        try:
            with _naming(path):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Set the path of an OSError raised in the block."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def is_full_disk(error: OSError) -> bool:
    """Whether the disk or the quota is full, so that a later try may work."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_space(path: Path) -> tuple[int, int]:
    """(available without root, total) bytes of the disk that holds `path`; zeros on an error."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def is_refused_by_disk(error: BaseException) -> bool:
    """Whether the disk is full, read-only or broken, or can't read data that a write needs first."""
    if isinstance(error, OSError):
        return is_full_disk(error) or error.errno in (errno.EROFS, errno.EIO)
    return isinstance(error, StoreFullError | FlushFailedError | RefusedReadError)


def lacks_descriptor(error: BaseException) -> bool:
    """Whether the process or system had no free descriptor: the file was not opened, so nothing was written."""
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return isinstance(error, NoDescriptorError)


def flush_error(path: Path, error: OSError) -> FlushFailedError | NoDescriptorError:
    """The error to raise when a flush of `path` failed; only FlushFailedError is final."""
    if lacks_descriptor(error):
        return NoDescriptorError(path)
    return FlushFailedError(path, error.strerror or str(error))


def opening_error(path: Path, error: OSError) -> FlushFailedError | NoDescriptorError:
    """The error to raise when `path` can't be made, opened or mapped for writing; only FlushFailedError is final."""
    if error.errno == errno.ENOMEM:
        return NoDescriptorError(path, "memory")
    return flush_error(path, error)


def allocate(descriptor: int, path: Path, start: int, size_bytes: int, disk: Disk) -> None:
    """`Disk.allocate`; StoreFullError: the disk is full."""
    with space_for(path, size_bytes):
        disk.allocate(descriptor, path, start, size_bytes)


@contextmanager
def space_for(path: Path, needed_bytes: int) -> Iterator[None]:
    """Raise StoreFullError for an OSError of a full disk in the block, which makes `path`."""
    try:
        yield
    except OSError as error:
        if is_full_disk(error):
            raise StoreFullError(path, needed_bytes) from error
        raise


def lengthen(descriptor: int, path: Path, size_bytes: int) -> None:
    """Give the open file this length, without disk space for the bytes that it lacks. OSError."""
    with _naming(path):
        os.ftruncate(descriptor, size_bytes)


def create_whole(path: Path, prepare: Callable[[int], None]) -> int:
    """Make a file that `prepare` gives its length and space; returns its descriptor, open for reading and writing.

    `prepare` is called with the descriptor before the file gets its name (where the filesystem supports unnamed files),
    so neither a crash nor a full disk leaves half a file. If it raises, no file is left. An existing empty file is
    used. FileExistsError: the path has a file with data; ObstructedError: the path is a folder.
    """
    if not os.path.lexists(path):
        try:
            return create_unnamed(path, prepare)
        except OSError as error:
            if error.errno not in NO_UNNAMED_FILES:
                raise
    elif path.is_dir():
        raise ObstructedError(path, "file")
    return _create_in_place(path, prepare)


def _create_in_place(path: Path, prepare: Callable[[int], None]) -> int:
    try:
        descriptor = create_file(path)
    except FileExistsError:
        descriptor = open_file(path, os.O_RDWR)
    try:
        if os.fstat(descriptor).st_size:
            raise FileExistsError(errno.EEXIST, "a file of the store is there already", str(path))
        try:
            prepare(descriptor)
        except BaseException:
            unlink(path)
            raise
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_directory(path: Path, *, keep_owner: bool = True, mode: int = 0o777) -> list[Path]:
    """Make a directory with `mode` minus the umask, and its missing parents; returns the directories to sync.

    `keep_owner`: directories made by root get the owner of their parent. FileExistsError: the path is a file. OSError.
    """
    missing, part = [], path
    while not os.path.exists(part):  # of a path object it takes twice the time
        missing.append(part)
        part = part.parent
    for part in reversed(missing):
        try:
            make_folder(part, keep_owner=keep_owner, mode=mode if part == path else 0o777)
        except FileExistsError:
            if not part.is_dir():
                raise
    if not missing and not path.is_dir():
        raise FileExistsError(errno.EEXIST, "a file is there, not a folder", str(path))
    return [made.parent for made in reversed(missing)]


def replace_file(path: Path, content: bytes | Sequence[Buffer], disk: Disk, previous: Path | None = None) -> None:
    """Durably replace the content of `path`: a reader gets the whole old or new content, even after a power cut. With
    `previous`, the old file is moved there just before. `content` may be in pieces."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        unlink(temporary)  # left by a process that was killed
        write_durably(temporary, content, disk)
        if previous is not None:
            rename(path, previous)
        rename(temporary, path)
    except OSError:
        unlink(temporary)
        raise
    disk.sync_directory(path.parent)


def extend_file(path: Path, previous: Path, position: int, content: bytes, disk: Disk) -> None:
    """As `replace_file`, where the file at `previous` has the new content up to byte `position`, and is no longer than
    it: only `content`, the rest, is written there. Then the two exchange their names.

    OSError: `path` has the old or the new content; the rest of `previous` may be lost. Also for a `previous` with
    several names, because another program keeps its content, and where a file can't have several.
    """
    if os.stat(previous).st_nlink > 1:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), str(previous))
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    link(path, temporary)  # so that the path has a whole file at any moment
    try:
        append_durably(previous, content, disk, position)
        rename(previous, path)
        rename(temporary, previous)
    except OSError:
        unlink(temporary)
        raise
    disk.sync_directory(path.parent)


def write_durably(path: Path, content: bytes | Sequence[Buffer], disk: Disk) -> None:
    """Make, write and sync a file; its name becomes durable with its directory. FileExistsError, OSError."""
    descriptor = create_file(path)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.writelines([content] if isinstance(content, bytes) else content)
        disk.sync(descriptor, path)
    finally:
        os.close(descriptor)


def remove_file(path: Path, disk: Disk) -> None:
    """Durably remove a file; a missing file is no error."""
    unlink(path)
    disk.sync_directory(path.parent)


# small JSON files of ours below STORE/fsstore


def write_own_file(path: Path, content: Any, disk: Disk) -> None:
    """Store `content` as JSON; makes the directory when it is missing. OSError."""
    write_own_content(path, json.dumps(content, separators=(",", ":")).encode(), disk)


def replace_own_file(path: Path, content: Any) -> None:
    """As `write_own_file`, without a sync: after a power cut the old content may be there, or none. OSError."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    unlink(temporary)
    descriptor = create_file(temporary)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(json.dumps(content, separators=(",", ":")).encode())
    finally:
        os.close(descriptor)
    rename(temporary, path)


def write_own_content(path: Path, content: bytes, disk: Disk) -> None:
    """As `write_own_file`, for bytes."""
    for changed in make_directory(path.parent):
        disk.sync_directory(changed)
    replace_file(path, content, disk)


def append_durably(path: Path, addition: bytes, disk: Disk, position: int | None = None) -> None:
    """Write and sync `addition` behind the first `position` bytes of an existing file, None: behind all. OSError: part
    of it may be there."""
    descriptor = open_file(path, os.O_RDWR)
    try:
        with open(descriptor, "r+b", closefd=False) as file:
            file.seek(*(position, os.SEEK_SET) if position is not None else (0, os.SEEK_END))
            file.write(addition)
        disk.sync(descriptor, path)
    finally:
        os.close(descriptor)


def read_own_file(path: Path) -> Any:
    """The parsed JSON file at `path`; None when it is missing, unreadable or not valid."""
    try:
        return json.loads(read_file(path, MOST_BYTES))
    except (OSError, ObstructedError, ValueError, RecursionError):
        return None


def is_whole_number(stored: Any) -> TypeGuard[int]:
    """Whether a parsed JSON value is an integer; true and false are not."""
    return isinstance(stored, int) and not isinstance(stored, bool)


def whole_number(stored: Any, least: int = 0) -> int:
    """Check an integer from our own file: it must be from `least` to MAX_OFFSET. ValueError."""
    if not is_whole_number(stored) or not least <= stored <= MAX_OFFSET:
        raise ValueError("no number that we write")
    return stored

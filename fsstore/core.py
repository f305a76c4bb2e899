"""The filesystem core: paths, inodes and handles mapped to engine calls. It knows no FUSE type and no event loop.

Thread safety: none; an adapter calls it from one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NoReturn

from engine import MessageStore
from fsstore.interface import (
    Attributes,
    CachedName,
    DirectoryEntry,
    FilesystemOptions,
    FilesystemSpace,
    MessageColumns,
    Opened,
    WriteOutcome,
)


class Filesystem:
    """The mounted tree over `store`. Every method may raise FilesystemError or an engine StoreError (`errno_of`)."""

    def __init__(
        self,
        store: MessageStore,
        options: FilesystemOptions,
        *,
        status: Callable[[], Mapping[str, object]] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`status` adds fields of the mount (mount point, pid…) to `@store/status.json`."""
        raise NotImplementedError

    @property
    def read_only(self) -> bool:
        """Whether nothing can be published: a read-only or following mount, or a store that lost its disk."""
        raise NotImplementedError

    # names and attributes

    def lookup(self, parent_inode: int, name: bytes) -> Attributes:
        """Attributes of `name`; counted as one lookup, to be forgotten. An inode 0 is a cacheable ENOENT."""
        raise NotImplementedError

    def getattr(self, inode: int) -> Attributes:
        raise NotImplementedError

    def setattr(self, inode: int) -> Attributes:
        """Attributes of an `append`, whatever was to be set; EPERM or EROFS for everything else."""
        raise NotImplementedError

    def readlink(self, inode: int) -> bytes:
        raise NotImplementedError

    def listed(self, inode: int) -> None:
        """Count a DirectoryEntry that the kernel took as one lookup."""
        raise NotImplementedError

    def forget(self, inode: int, count: int) -> None:
        """Take back `count` lookups of an inode."""
        raise NotImplementedError

    # files

    def open(self, inode: int, flags: int) -> Opened:
        raise NotImplementedError

    def read(self, handle: int, position: int, size: int) -> bytes | memoryview:
        raise NotImplementedError

    def write(self, handle: int, position: int, data: bytes) -> WriteOutcome:
        """Publish what one write request completes: all of it is taken, or none and it raises."""
        raise NotImplementedError

    def flush(self, handle: int) -> WriteOutcome:
        """What close(2) reports: publishes an unterminated line or a `frame=file` message."""
        raise NotImplementedError

    def fsync(self, handle: int) -> WriteOutcome:
        """As flush, and then everything published so far is to be durable."""
        raise NotImplementedError

    def release(self, handle: int) -> None:
        raise NotImplementedError

    # directories

    def opendir(self, inode: int) -> int:
        """Handle of a listing for readdir and releasedir."""
        raise NotImplementedError

    def readdir(self, handle: int, position: int, limit: int) -> MessageColumns | list[DirectoryEntry]:
        """Up to `limit` entries after `position` (0: the beginning); an empty list at the end."""
        raise NotImplementedError

    def releasedir(self, handle: int) -> None:
        raise NotImplementedError

    def fsyncdir(self, handle: int) -> WriteOutcome:
        raise NotImplementedError

    def mkdir(self, parent_inode: int, name: bytes) -> Attributes:
        """Make a topic, or grow one; counted as one lookup."""
        raise NotImplementedError

    def create(self, parent_inode: int, name: bytes) -> NoReturn:
        """No file is ever made: ENOENT for a malformed `append@…`, else EPERM or EROFS."""
        raise NotImplementedError

    def refuse(self) -> NoReturn:
        """Answer to unlink, rmdir, rename, link, symlink, mknod: EPERM, EROFS on a read-only mount."""
        raise NotImplementedError

    # extended attributes

    def listxattr(self, inode: int) -> list[bytes]:
        raise NotImplementedError

    def getxattr(self, inode: int, name: bytes) -> bytes:
        """ENODATA where a `user.` attribute is missing, ENOTSUP outside `user.`."""
        raise NotImplementedError

    def setxattr(self, inode: int) -> NoReturn:
        """Answer to setxattr and removexattr: ENOTSUP for `append`, EPERM or EROFS for everything else."""
        raise NotImplementedError

    def statfs(self) -> FilesystemSpace:
        raise NotImplementedError

    # what a kernel has to forget, when the store says that something happened

    def grown(self, topic: str, queue: int) -> list[int]:
        """Inodes whose attributes were answered and have changed since; each once until it is answered again."""
        raise NotImplementedError

    def expired(self, topic: str, queue: int, old_min: int, new_min: int) -> Iterator[CachedName]:
        """Names that retention removed, the queue's `.log` (its first message changed) first."""
        raise NotImplementedError

    def topics_changed(self) -> Iterable[CachedName]:
        """Names of topics and queues that went since the last call."""
        raise NotImplementedError

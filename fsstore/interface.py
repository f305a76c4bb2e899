"""What the filesystem core and a FUSE adapter say to each other: plain records, no FUSE type among them.

An adapter calls `fsstore.core.Filesystem` with inodes, names and handles and gets these records back. Every refusal
is a `FilesystemError`, which carries its errno, or an engine `StoreError`, for which `fsstore.fuse.errors.errno_of`
has one; `SlowWork` is no refusal, it asks for a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from fsstore.options import ParquetOptions

ROOT_INODE = 1

# Up to this size a write(2) is always one FUSE request, however its buffer is aligned: 256 pages, less the one that an
# unaligned buffer may cost. A longer request may be the first part of a write(2) that the kernel has split.
WHOLE_WRITE_BYTES = 255 * 4096

# What stat calls a block. C's stdio buffers as much: a legacy program's lines are to come soon, not a megabyte later.
BLOCK_BYTES = 4096

# Bodies up to this size travel with `open`, copied out of the mapped page; longer ones stay mapped and are held.
SMALL_BODY_BYTES = 4096


# The position of a write through a descriptor with O_APPEND: after whatever was written before.
AT_END = -1

# The owner of descriptors that did what is not known to be anybody's.
NOBODY = 0

SLICE_S = 0.1
"""How long slow work that can be done piece by piece goes on before it makes room for others' work."""


class Pieces:
    """Bytes that are read, in several pieces: for who would have to copy them to have them in one."""

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


Data = bytes | memoryview | Pieces
"""What a file holds, as it is read."""


class FilesystemError(OSError):
    """An operation that the mounted tree refuses; `errno` says how."""

    def __init__(self, errno: int, reason: str = "") -> None:
        super().__init__(errno, reason or os.strerror(errno))


class WorkKind(Enum):
    """What slow work is: each kind has threads of its own, so that it holds up no other."""

    ANY = "any"
    KEYS = "keys"
    """Look-ups of keys whose hash many messages have: one at a time, or they would keep the interpreter."""
    DECOMPRESSING = "decompressing"
    """One at a time: it takes memory."""
    PUBLISHING = "publishing"
    """What takes long to publish; one at a time: it takes memory."""
    PUBLISHING_LITTLE = "publishing little"
    """What is published quickly, but for the log's lock, which PUBLISHING may have."""
    WAITING = "waiting"
    """What waits for the disk or for another thread, and does nothing else."""


class SlowWork(Exception):
    """Not answered yet: run `work` in a thread (it touches the engine only), then call the same method again. What was
    done for a request is held by `work` alone, so hold that until the method has returned.

    While something is published, no other request for that inode is taken: they come one after the other.
    """

    def __init__(self, work: Callable[[], object], kind: WorkKind = WorkKind.ANY) -> None:
        super().__init__("an answer that takes a thread")
        self.work = work
        self.kind = kind

    @property
    def waits(self) -> bool:
        """Whether most of the work is to wait, so that a daemon that dies meanwhile does not die of it."""
        return self.kind in (WorkKind.WAITING, WorkKind.PUBLISHING_LITTLE)

    @property
    def is_in_turn(self) -> bool:
        """Whether requests for the same inode wait for this one."""
        return self.kind in (WorkKind.PUBLISHING, WorkKind.PUBLISHING_LITTLE)


@dataclass(frozen=True, slots=True)
class FilesystemOptions:
    """How the tree looks to the people who use it."""

    uid: int = field(default_factory=os.getuid)
    """Owner of everything in the tree: the mounting user."""
    gid: int = field(default_factory=os.getgid)
    """Group of everything in the tree."""
    append_mode: int = 0o644
    """Permission bits of `append`: whoever may write it may publish. Write bits go on a read-only mount."""
    directory_mode: int = 0o755
    """Permission bits of directories: whoever may write the root or a topic may `mkdir` in it."""
    parquet: ParquetOptions = field(default_factory=ParquetOptions)
    """How much of `@parquet` is kept when it was rendered."""


class Attributes(NamedTuple):
    """What stat shows, and how long a kernel may believe it. `inode` 0 means: no such name, and that may be cached."""

    inode: int
    mode: int
    """File type and permission bits."""
    size: int
    """Bytes of a body, a stream, a link's target; 0 where it means nothing."""
    mtime_ns: int
    """Also the ctime and atime: a message's store timestamp."""
    nlink: int
    uid: int
    gid: int
    entry_timeout: int
    """Seconds the name may be cached."""
    attr_timeout: int
    """Seconds the attributes may be cached."""
    shown_inode: int = 0
    """What stat says instead of `inode`, where it is not 0."""

    @property
    def st_ino(self) -> int:
        """The number that stat says."""
        return self.shown_inode or self.inode


class Opened(NamedTuple):
    """An open file. Give `handle` back to read, write, flush, fsync and release."""

    handle: int
    direct_io: bool
    """Requests must reach us as they are made: `append`, and reports that are made at open."""
    keep_cache: bool
    """What the kernel has cached of this inode is still right: it never changes."""
    body: bytes | None
    """The whole of a small message, so that it can be put in the kernel's cache without a read request."""


NOTHING_TO_WAIT_FOR = 0
"""What write, flush and fsync return, when the writer may be answered at once. Else it is a physical offset: to be
answered when everything before it is on disk (`store.request_durable`)."""


class OpenedDirectory(NamedTuple):
    """An open directory. Give `handle` back to readdir and releasedir."""

    handle: int
    uses_cache: bool
    """Names listed by this handle may go into the kernel's cache, and come from there."""
    keep_cache: bool
    """What the kernel has cached of this directory stays."""


class DirectoryEntry(NamedTuple):
    """One name of a listing. After a kernel took it, tell the core with `Filesystem.listed(attributes.inode)`."""

    name: bytes
    attributes: Attributes
    next_position: int
    """Where a listing goes on after this entry."""


class MessageColumns(NamedTuple):
    """A run of message files in a listing, as columns: no object a message. They need no `Filesystem.listed`."""

    names: np.ndarray[Any, Any]
    """S20, shape (n,): queue offsets of 20 digits."""
    inodes: np.ndarray[Any, Any]
    """int64, shape (n,)."""
    sizes: np.ndarray[Any, Any]
    """int64, shape (n,): body lengths in bytes."""
    mtimes_ns: np.ndarray[Any, Any]
    """int64, shape (n,): store timestamps."""
    readable: np.ndarray[Any, Any]
    """bool, shape (n,): False where the record is damaged; its attributes must not be cached (timeouts 0)."""
    next_positions: np.ndarray[Any, Any]
    """int64, shape (n,): where a listing goes on after each."""
    template: Attributes
    """What they share: mode, nlink, owner, timeouts."""

    def rows(self, start: int, end: int) -> MessageColumns:
        """Rows [start, end), as views."""
        rows = slice(start, end)
        return MessageColumns(
            self.names[rows],
            self.inodes[rows],
            self.sizes[rows],
            self.mtimes_ns[rows],
            self.readable[rows],
            self.next_positions[rows],
            self.template,
        )


class MessageNames(NamedTuple):
    """A run of message files in a listing of names alone, as columns: the log was not looked at."""

    names: np.ndarray[Any, Any]
    """S20, shape (n,)."""
    inodes: np.ndarray[Any, Any]
    """int64, shape (n,)."""
    next_positions: np.ndarray[Any, Any]
    """int64, shape (n,)."""
    template: Attributes
    """What they share: mode, nlink, owner, timeouts."""

    def rows(self, start: int, end: int) -> MessageNames:
        """Rows [start, end), as views."""
        rows = slice(start, end)
        return MessageNames(self.names[rows], self.inodes[rows], self.next_positions[rows], self.template)


class FilesystemSpace(NamedTuple):
    """Answer to statfs: the disk's space, and messages as files."""

    block_size: int
    blocks: int
    blocks_free: int
    blocks_available: int
    files: int
    """Messages, and what the disk could still hold of files: so that `df -i` shows the messages as used."""
    files_free: int
    name_max: int

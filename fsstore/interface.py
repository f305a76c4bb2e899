"""Records that pass between the filesystem core and a FUSE adapter. None has a FUSE type.

An adapter calls `fsstore.core.Filesystem` with inodes, names and handles and gets these records back. Every refusal
is a `FilesystemError`, which carries its errno, or an engine `StoreError`, which `fsstore.fuse.errors.errno_of` maps
to one. `SlowWork` is no refusal: it asks the adapter for a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from fsstore.options import ParquetOptions

Array = np.ndarray[Any, Any]

ROOT_INODE = 1

NS_PER_MS = 1_000_000

# Up to this size a write(2) is always one FUSE request, however its buffer is aligned: 256 pages, less the one that an
# unaligned buffer may cost. A longer request may be the first part of a write(2) that the kernel has split.
WHOLE_WRITE_BYTES = 255 * 4096

# The block size of stat. C's stdio buffers as much, so a larger one would delay the lines of legacy programs.
BLOCK_BYTES = 4096

# Bodies up to this size are copied out of the mapped page and returned by `open`; longer ones stay mapped.
SMALL_BODY_BYTES = 4096

# The position of a write through a descriptor with O_APPEND: the file's end.
AT_END = -1

# The lock owner of a request if the kernel gave none.
NO_OWNER = 0

SLICE_S = 0.1
"""Seconds after which slow work that can be done in pieces lets other work run."""


class Pieces:
    """Bytes of a read in several pieces, for readers that would have to copy them into one."""

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


Data = bytes | memoryview | Pieces
"""Content of a file, as a read returns it."""


class FilesystemError(OSError):
    """An operation that the mounted tree refuses; `errno` says how."""

    def __init__(self, errno: int, reason: str = "") -> None:
        super().__init__(errno, reason or os.strerror(errno))


class WorkKind(Enum):
    """Kinds of slow work. Each has threads of its own, so that it delays no other kind."""

    ANY = "any"
    KEYS = "keys"
    """Look-ups of keys whose hash many messages share. One at a time: more would keep the interpreter busy."""
    DECOMPRESSING = "decompressing"
    """One at a time, because it takes memory."""
    PUBLISHING = "publishing"
    """Publishing that takes long. One at a time, because it takes memory."""
    PUBLISHING_LITTLE = "publishing little"
    """Publishing that is quick, except that it may wait for the log's lock, which PUBLISHING may hold."""
    WAITING = "waiting"
    """Work that only waits for the disk or for another thread."""


class SlowWork(Exception):
    """Not answered yet: run `work` in a thread (it touches the engine only), then call the same method again. Only
    `work` holds the result of the request, so keep it until the method has returned.

    While work of a publishing kind runs, the adapter takes no other request for that inode.
    """

    def __init__(self, work: Callable[[], object], kind: WorkKind = WorkKind.ANY) -> None:
        super().__init__("an answer that takes a thread")
        self.work = work
        self.kind = kind

    @property
    def waits(self) -> bool:
        """Whether most of the work is waiting, so that it is not to blame if the daemon dies meanwhile."""
        return self.kind in (WorkKind.WAITING, WorkKind.PUBLISHING_LITTLE)

    @property
    def is_in_turn(self) -> bool:
        """Whether requests for the same inode wait for this one."""
        return self.kind in (WorkKind.PUBLISHING, WorkKind.PUBLISHING_LITTLE)


@dataclass(frozen=True, slots=True)
class FilesystemOptions:
    """Look and limits of the mounted tree."""

    uid: int = field(default_factory=os.getuid)
    """Owner of everything in the tree: the mounting user."""
    gid: int = field(default_factory=os.getgid)
    """Group of everything in the tree."""
    append_mode: int = 0o644
    """Permission bits of `append`: write permission lets a user publish. A read-only mount has no write bits."""
    directory_mode: int = 0o755
    """Permission bits of directories: write permission on the root or a topic lets a user `mkdir` in it."""
    parquet: ParquetOptions = field(default_factory=ParquetOptions)
    """Memory for rendered columns of `@parquet`."""


class Attributes(NamedTuple):
    """Answer to stat, with the kernel's cache times. `inode` 0: the name does not exist, which may be cached, too."""

    inode: int
    mode: int
    """File type and permission bits."""
    size: int
    """Bytes of a body, a stream or a link's target; 0 for any other file."""
    mtime_ns: int
    """Also the ctime and atime: a message's store timestamp."""
    nlink: int
    uid: int
    gid: int
    entry_timeout: int
    """Seconds for which the kernel may cache the name."""
    attr_timeout: int
    """Seconds for which the kernel may cache the attributes."""
    shown_inode: int = 0
    """The inode number that stat shows instead of `inode`; 0: no other."""

    @property
    def st_ino(self) -> int:
        """The inode number that stat shows."""
        return self.shown_inode or self.inode


class Opened(NamedTuple):
    """An open file. Pass `handle` to read, write, flush, fsync and release."""

    handle: int
    direct_io: bool
    """Whether the kernel must pass on each request as it is made: `append`, and reports that are made at open."""
    keep_cache: bool
    """Whether the kernel's cached pages of this inode stay valid: its content never changes."""
    body: bytes | None
    """`OpenFile.body`"""


CACHED, UNCACHED = Opened(0, False, True, None), Opened(0, True, False, None)
"""Results of opening a file whose pages the kernel may keep, or may not."""

NOTHING_TO_WAIT_FOR = 0
"""Result of write, flush and fsync if the writer may be answered at once. Any other result is a physical offset: answer
when the log is on disk up to it (`store.request_durable`)."""


class OpenedDirectory(NamedTuple):
    """An open directory. Pass `handle` to readdir and releasedir."""

    handle: int
    uses_cache: bool
    """Whether the kernel may cache names that this handle lists, and list names from its cache."""
    keep_cache: bool
    """Whether the kernel's cached names of this directory stay valid."""


class DirectoryEntry(NamedTuple):
    """One name of a listing. When the kernel has taken it, call `Filesystem.listed(attributes.inode)`."""

    name: bytes
    attributes: Attributes
    next_position: int
    """Position from which a listing continues after this entry."""


class MessageColumns(NamedTuple):
    """A run of message files in a listing, as columns: no object per message, and no `Filesystem.listed`."""

    names: Array
    """S20, shape (n,): queue offsets of 20 digits."""
    inodes: Array
    """int64, shape (n,)."""
    sizes: Array
    """int64, shape (n,): body lengths in bytes."""
    mtimes_ns: Array
    """int64, shape (n,): store timestamps."""
    readable: Array
    """bool, shape (n,): False if the record is damaged; its attributes must not be cached (timeouts 0)."""
    next_positions: Array
    """int64, shape (n,): position from which a listing continues after each."""
    template: Attributes
    """Shared attributes: mode, nlink, owner, timeouts."""

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
    """A run of message files in a listing of names alone, as columns. The log was not read for it."""

    names: Array
    """S20, shape (n,)."""
    inodes: Array
    """int64, shape (n,)."""
    next_positions: Array
    """int64, shape (n,)."""
    template: Attributes
    """Shared attributes: mode, nlink, owner, timeouts."""

    def rows(self, start: int, end: int) -> MessageNames:
        """Rows [start, end), as views."""
        rows = slice(start, end)
        return MessageNames(self.names[rows], self.inodes[rows], self.next_positions[rows], self.template)


class ListedNames(NamedTuple):
    """A run of names in a listing of names alone, as columns: no Attributes per name."""

    names: Sequence[bytes]
    inodes: Array
    """int64, shape (n,): the numbers that stat shows."""
    modes: Array
    """int64, shape (n,): file types."""
    next_positions: Array
    """int64, shape (n,): position from which a listing continues after each."""

    def rows(self, start: int, end: int) -> ListedNames:
        """Rows [start, end)."""
        rows = slice(start, end)
        return ListedNames(self.names[rows], self.inodes[rows], self.modes[rows], self.next_positions[rows])

    def where(self, wanted: Sequence[bool]) -> ListedNames:
        """The rows that are wanted."""
        rows = np.flatnonzero(wanted)
        names = list(compress(self.names, wanted))
        return ListedNames(names, self.inodes[rows], self.modes[rows], self.next_positions[rows])


class FilesystemSpace(NamedTuple):
    """Answer to statfs: the disk's space, and messages as files."""

    block_size: int
    blocks: int
    blocks_free: int
    blocks_available: int
    files: int
    """Messages plus the disk's free inodes, so that `df -i` shows the messages as used."""
    files_free: int
    name_max: int

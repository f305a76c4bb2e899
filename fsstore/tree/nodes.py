"""Base classes of files and directories, and the state that they share. Subclasses override some operations.

The base classes list the refusals: each operation has an answer here.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from engine import MessageStore, OpenMode
from fsstore.accounts import Accounts
from fsstore.callers import Callers
from fsstore.handover.handles import LARGEST_TEXT_BYTES, HandleState
from fsstore.interface import (
    NO_OWNER,
    NOTHING_TO_WAIT_FOR,
    Attributes,
    Data,
    FilesystemError,
    Opened,
    OpenedDirectory,
)
from fsstore.tree.attributes import AttributeFactory
from fsstore.tree.inodes import COMPUTED, ComputedInodes, InodeTable
from fsstore.tree.listing import Listing, NamesListing
from fsstore.tree.memory_budget import Holding, MemoryBudget, Purpose
from fsstore.tree.names import never_exists
from fsstore.tree.refusals import Refusals

NOT_CACHED = OpenedDirectory(0, uses_cache=False, keep_cache=False)


class Creation(NamedTuple):
    """Flags, mode and owner of a file to be made and opened."""

    flags: int
    mode: int
    uid: int
    gid: int


class OpenFile:
    """An open file. This one is empty and refuses writes."""

    __slots__ = ()

    takes_positions: ClassVar[bool] = False
    """Whether O_APPEND writes need an explicit position, so that a write that is sent again is idempotent."""
    body: bytes | None = None
    """The whole of a small message, which the adapter may store in the kernel's cache without a read request."""

    @property
    def published_to(self) -> str:
        """The path of a file that takes messages or commands; empty for any other."""
        return ""

    @property
    def refused_lines(self) -> str:
        """The lines written through this handle that the last refusal is about."""
        return ""

    def read(self, position: int, size: int) -> Data:
        return b""

    def write(self, position: int, data: bytes, owner: int = NO_OWNER) -> int:
        """Take all bytes of a write request, or raise; the physical offset to wait for, or NOTHING_TO_WAIT_FOR.

        `position` is in bytes of the file, or AT_END; `owner` identifies the table of descriptors of the writing
        process."""
        raise FilesystemError(errno.EBADF)

    def write_refused(self, number: int) -> None:
        """Note that a write was refused with errno `number`, perhaps before it came here."""

    def truncate(self, size: int) -> None:
        """Give the file `size` bytes, if it has a size."""

    def flush(self, owner: int = NO_OWNER) -> int:
        """Publish unpublished bytes after a close by `owner`, or for fsync (NO_OWNER); errors and result as `write`."""
        return NOTHING_TO_WAIT_FOR

    def resume(self, state: HandleState | None) -> None:
        """Restore the state of a handle that the last server had opened."""

    def unpublished(self, *, whole: bool = False) -> HandleState | None:
        """The state that the next server needs if this one is killed; `whole`: however long it is."""
        return None

    def was_published(self) -> None:
        """Note that the unpublished bytes of the last server are in the log."""

    @property
    def is_unfinished(self) -> bool:
        """Whether it has unpublished bytes."""
        return False

    def release(self) -> None:
        """After the last close, publish bytes that no `flush` published (errors are only logged); free the
        resources."""

    def abandon(self) -> None:
        """At the end of the mount, free the handle's resources and publish nothing."""
        self.release()


class TextFile(OpenFile):
    """An open file with the text of the time when it was opened."""

    __slots__ = ("_is_other", "_memory", "_text")

    def __init__(self, text: bytes, memory: MemoryBudget) -> None:
        """ENOBUFS: the open reports take too much memory."""
        self._memory = Holding(memory, Purpose.REPORTS)
        self._memory.resize(len(text))
        self._text = text
        self._is_other = False

    def unpublished(self, *, whole: bool = False) -> HandleState | None:
        is_kept = whole or len(self._text) <= LARGEST_TEXT_BYTES
        return HandleState(self._text if is_kept else b"", len(self._text))

    def resume(self, state: HandleState | None) -> None:
        self._is_other = state is None or state.is_lost
        if state is not None and not state.is_lost:
            self._text = bytes(state.data)

    def release(self) -> None:
        self._memory.resize(0)

    def read(self, position: int, size: int) -> bytes:
        if self._is_other:  # the text was made anew after a reader had read a part of the old one
            if position:
                raise FilesystemError(errno.EIO)
            self._is_other = False
        return self._text[position : position + size]


class Node:
    """A file or directory that the kernel knows by `inode`."""

    inode: int = 0

    @property
    def path(self) -> str:
        """The path below the mount point; empty if it has none to show."""
        return ""

    def attributes(self) -> Attributes:
        raise NotImplementedError

    def lookup(self, name: bytes) -> Attributes:
        """Attributes of a name in this directory; ENOENT."""
        raise FilesystemError(errno.ENOTDIR)

    def create(self, name: bytes) -> FilesystemError:
        """The error for making a file of this name."""
        return FilesystemError(errno.ENOTDIR)

    def make(self, name: bytes, how: Creation) -> tuple[Node, OpenFile, Opened]:
        """Make and open a file: its node, the open file, and the answer to open."""
        raise self.create(name)

    def mkdir(self, name: bytes) -> None:
        """Make a topic or a queue."""
        raise FilesystemError(errno.EPERM)

    def made(self, name: bytes) -> Attributes:
        """Attributes of the directory that `mkdir` made."""
        return self.lookup(name)

    def opendir(self) -> tuple[Listing, OpenedDirectory]:
        """The listing and the answer to opendir, without its handle."""
        raise FilesystemError(errno.ENOTDIR)

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        """The open file and the answer to open, without its handle."""
        raise FilesystemError(errno.EISDIR)

    def target(self) -> bytes:
        raise FilesystemError(errno.EINVAL)

    @property
    def ignores_setattr(self) -> bool:
        """Whether setting sizes, modes and times succeeds without effect."""
        return False

    def forgotten(self) -> None:
        """Free its resources: its number is no longer valid."""


class Survival:
    """Flags that are set while requests are replayed."""

    __slots__ = ("is_reopening", "stored_until", "was_begun")

    def __init__(self) -> None:
        self.stored_until = 0
        """Not 0: the messages of the present request are in the log already, before this physical offset."""
        self.was_begun = False
        """Whether the names that the present request makes may exist already."""
        self.is_reopening = False
        """Whether files of the last server are being opened again: these are not refused."""


class LongPuts:
    """Whether a long put is being done in this mount. It may hold the log's lock, for which the request loop never
    waits. Thread safety: one thread at a time in `under_way`; any thread may read."""

    def __init__(self) -> None:
        self.is_under_way = False

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Meanwhile `is_under_way` is true."""
        self.is_under_way = True
        try:
            yield
        finally:
            self.is_under_way = False


@dataclass(frozen=True, slots=True)
class Context:
    """State shared by the nodes of one mount."""

    store: MessageStore
    attribute_factory: AttributeFactory
    inodes: InodeTable[Node]
    computed: ComputedInodes
    clock_ns: Callable[[], int]
    background: Executor
    """One thread for work ahead of requests, which touches only the engine."""
    memory: MemoryBudget
    """The budget for memory that clients make the daemon hold."""
    long_puts: LongPuts
    survival: Survival
    refusals: Refusals
    accounts: Accounts
    """The share of each user in the resources of the mount."""
    callers: Callers

    @property
    def is_no_open(self) -> bool:
        """Whether the kernel opens and closes files without requests, because nothing grows. OPEN is answered ENOSYS,
        so the kernel reads by inode and keeps the attributes of the look-up."""
        return self.store.mode is OpenMode.READ_ONLY

    @property
    def read_only(self) -> bool:
        """Whether nothing can be published."""
        return self.store.read_only_reason is not None

    def refusal(self, reason: str = "") -> FilesystemError:
        """The error for changing the tree by anything but publishing."""
        return FilesystemError(errno.EROFS) if self.read_only else FilesystemError(errno.EPERM, reason)

    def node(self, inode: int) -> Node:
        """The node of an inode. EPERM or EROFS for a message or a link to one: they have no nodes."""
        if inode >= COMPUTED:
            raise self.refusal()
        return self.inodes.nodes[inode]

    def must_be_writable(self) -> None:
        """EROFS if nothing can be published."""
        if reason := self.store.read_only_reason:
            raise FilesystemError(errno.EROFS, f"the store is read-only: {reason}")

    def absence(self, name: bytes) -> Attributes:
        """The answer for a name that does not exist: ENOENT, which the kernel may cache if the name never can."""
        if never_exists(name):
            return self.attribute_factory.cacheable_absence()
        raise not_found()


def not_found() -> FilesystemError:
    """ENOENT, for the caller to raise."""
    return FilesystemError(errno.ENOENT)


class Directory(Node):
    """A directory whose names are listed from a snapshot. Each is described when the listing reaches it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def attributes(self) -> Attributes:
        return self._context.attribute_factory.directory(self.inode)

    def names(self) -> Sequence[bytes]:
        """The names to list, in order. WouldBlock on a nonblocking thread: any thread may call it then."""
        raise NotImplementedError

    def describe(self, name: bytes) -> Attributes:
        """Attributes of a name in a listing; as `lookup`, unless a look-up has an effect."""
        return self.lookup(name)

    def create(self, name: bytes) -> FilesystemError:
        return self._context.refusal("no file is made here: drop it in TOPIC/drop, or write lines to TOPIC/append")

    def mkdir(self, name: bytes) -> None:
        raise self._context.refusal("no folder is made here: one in the root is a topic, one in a topic is a queue")

    def opendir(self) -> tuple[Listing, OpenedDirectory]:
        return NamesListing(self, self._context.memory), NOT_CACHED

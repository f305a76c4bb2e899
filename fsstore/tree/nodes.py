"""What every file and directory of the tree answers, and what they share. Subclasses override what they can do.

The base classes are the page of refusals: each operation has an answer here.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from engine import MessageStore, OpenMode
from fsstore.accounts import Accounts
from fsstore.handover.handles import LARGEST_TEXT_BYTES, HandleState
from fsstore.interface import (
    NOBODY,
    NOTHING_TO_WAIT_FOR,
    Attributes,
    Data,
    FilesystemError,
    Opened,
    OpenedDirectory,
)
from fsstore.tree.attributes import AttributeFactory
from fsstore.tree.deferred import DoneInThread
from fsstore.tree.inodes import ComputedInodes, InodeTable
from fsstore.tree.listing import Listing, NamesListing
from fsstore.tree.memory_budget import Holding, MemoryBudget, Purpose
from fsstore.tree.names import never_exists
from fsstore.tree.refusals import Refusals

NOT_CACHED = OpenedDirectory(0, uses_cache=False, keep_cache=False)


class Creation(NamedTuple):
    """How a file is to be made and opened."""

    flags: int
    mode: int
    uid: int
    gid: int


class OpenFile:
    """An open file: empty, and not to be written."""

    __slots__ = ()

    @property
    def published_to(self) -> str:
        """The path of a file that takes messages or commands; empty for any other."""
        return ""

    @property
    def refused_lines(self) -> str:
        """Which of the lines written through this handle the last refusal is about."""
        return ""

    def read(self, position: int, size: int) -> Data:
        return b""

    def write(self, position: int, data: bytes, owner: int = NOBODY) -> int:
        """Take all of one write request, or raise; the physical offset to wait for, or NOTHING_TO_WAIT_FOR.

        `position` is where in the file it begins, or AT_END; `owner` says which process's table of descriptors it came
        through.
        """
        raise FilesystemError(errno.EBADF)

    def write_refused(self, number: int) -> None:
        """A write was refused with that errno, perhaps before it came here."""

    def truncate(self, size: int) -> None:
        """Give the file `size` bytes, where that means anything."""

    def flush(self, owner: int = NOBODY) -> int:
        """A descriptor of `owner` was closed, or (NOBODY) fsync asks: publish what is not published yet; report what
        went wrong; as `write`."""
        return NOTHING_TO_WAIT_FOR

    def resume(self, state: HandleState | None) -> None:
        """It was opened by another server, which was killed and held this."""

    def unpublished(self, *, whole: bool = False) -> HandleState | None:
        """What the next server needs to know of it, should this one be killed; `whole`, however long it is."""
        return None

    def was_published(self) -> None:
        """What another server held of it is known to be in the log."""

    @property
    def is_unfinished(self) -> bool:
        """Whether bytes were taken that are not published yet."""
        return False

    def release(self) -> None:
        """The last descriptor was closed: publish what no `flush` was to, with nobody to report a failure to; then
        free what the handle holds."""

    def abandon(self) -> None:
        """The mount ends: free what the handle holds, and publish nothing."""
        self.release()


class TextFile(OpenFile):
    """An open file with the text that it had when it was opened."""

    __slots__ = ("_is_other", "_memory", "_text")

    def __init__(self, text: bytes, memory: MemoryBudget) -> None:
        """ENOBUFS: too many are open."""
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
        if self._is_other:  # made anew after another server had begun to show it
            if position:
                raise FilesystemError(errno.EIO)
            self._is_other = False
        return self._text[position : position + size]


class Node:
    """A file or directory that the kernel knows by `inode`."""

    inode: int = 0

    @property
    def path(self) -> str:
        """Below the mount point; empty where it has none to show."""
        return ""

    def attributes(self) -> Attributes:
        raise NotImplementedError

    def lookup(self, name: bytes) -> Attributes:
        """Attributes of a name in this directory; ENOENT."""
        raise FilesystemError(errno.ENOTDIR)

    def create(self, name: bytes) -> FilesystemError:
        """Why no file of this name is made here."""
        return FilesystemError(errno.ENOTDIR)

    def make(self, name: bytes, how: Creation) -> tuple[Node, OpenFile, Opened]:
        """Make and open a file: its node, the open file, and how it is to be opened."""
        raise self.create(name)

    def mkdir(self, name: bytes) -> None:
        """Make a topic or a queue."""
        raise FilesystemError(errno.EPERM)

    def made(self, name: bytes) -> Attributes:
        """Attributes of what `mkdir` of a name made."""
        return self.lookup(name)

    def opendir(self) -> tuple[Listing, OpenedDirectory]:
        """The open directory, and how it is to be opened; its handle is filled in later."""
        raise FilesystemError(errno.ENOTDIR)

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        """The open file, and how it is to be opened; its handle is filled in later."""
        raise FilesystemError(errno.EISDIR)

    def target(self) -> bytes:
        """Where a symbolic link points."""
        raise FilesystemError(errno.EINVAL)

    @property
    def ignores_setattr(self) -> bool:
        """Whether sizes, modes and times may be set, to no effect."""
        return False

    def forgotten(self) -> None:
        """Nobody asks for its number any more: free what it holds."""


class Survival:
    """What is special where a mount outlives its server."""

    __slots__ = ("is_reopening", "planned_restarts", "restarts", "stored_until", "was_begun")

    def __init__(self) -> None:
        self.restarts = 0
        """How often a server that was killed was replaced."""
        self.planned_restarts = 0
        """How often one was, because somebody asked for it."""
        self.stored_until = 0
        """Not 0: what is to be put is in the log already, before this physical offset."""
        self.was_begun = False
        """What is to be made may be there already."""
        self.is_reopening = False
        """What another server had opened is being opened: nobody is refused it."""


class LongPuts:
    """Whether a put that takes long is under way in this mount: it may have the log's lock, for which the request loop
    never waits. Thread safety: one thread at a time is `under_way`; any thread may ask."""

    def __init__(self) -> None:
        self.is_under_way = False

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Meanwhile."""
        self.is_under_way = True
        try:
            yield
        finally:
            self.is_under_way = False


@dataclass(frozen=True, slots=True)
class Context:
    """What the nodes of one mount share."""

    store: MessageStore
    attribute_factory: AttributeFactory
    inodes: InodeTable[Node]
    computed: ComputedInodes
    clock_ns: Callable[[], int]
    background: Executor
    """One thread, for what somebody will ask for soon. It touches only the engine."""
    changes: DoneInThread[None]
    """Topics that are made and deleted."""
    memory: MemoryBudget
    """For what clients make the daemon hold."""
    long_puts: LongPuts
    survival: Survival
    refusals: Refusals
    accounts: Accounts
    """What each user may take of what all share."""

    @property
    def opens_unasked(self) -> bool:
        """Whether the kernel opens and closes files without asking: where nothing grows. It is told that there is no
        such request, so it reads by inode, and believes that a file stays as a look-up found it."""
        return self.store.mode is OpenMode.READ_ONLY

    @property
    def read_only(self) -> bool:
        """Whether nothing can be published: opened so, following, or stopped after a failed flush."""
        return self.store.mode is not OpenMode.WRITE or self.store.read_only_reason is not None

    def refusal(self, reason: str = "") -> FilesystemError:
        """Why nothing but publishing changes the tree."""
        return FilesystemError(errno.EROFS) if self.read_only else FilesystemError(errno.EPERM, reason)

    def must_be_writable(self) -> None:
        """EROFS where nothing can be published."""
        if self.read_only:
            why = self.store.read_only_reason or f"the store is mounted to {self.store.mode.name.lower()}"
            raise FilesystemError(errno.EROFS, f"the store is read-only: {why}")

    def absence(self, name: bytes) -> Attributes:
        """The answer for a name that is not there: ENOENT, to be cached where it can never be."""
        if never_exists(name):
            return self.attribute_factory.cacheable_absence()
        raise not_found()


def not_found() -> FilesystemError:
    """ENOENT, for a caller to raise."""
    return FilesystemError(errno.ENOENT)


class Directory(Node):
    """A directory whose names are listed from a snapshot, each described when the listing comes to it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def attributes(self) -> Attributes:
        return self._context.attribute_factory.directory(self.inode)

    @property
    def lists_slowly(self) -> bool:
        """Whether `names` may take longer than a request should: it is then called in a thread."""
        return False

    def names(self) -> Sequence[bytes]:
        """Names to list, in order."""
        raise NotImplementedError

    def describe(self, name: bytes) -> Attributes:
        """Attributes of a name for a listing; as `lookup`, unless looking up has an effect."""
        return self.lookup(name)

    def create(self, name: bytes) -> FilesystemError:
        return self._context.refusal("no file is made here: drop it in TOPIC/drop, or write lines to TOPIC/append")

    def mkdir(self, name: bytes) -> None:
        raise self._context.refusal()

    def opendir(self) -> tuple[Listing, OpenedDirectory]:
        return NamesListing(self, self._context.memory), NOT_CACHED

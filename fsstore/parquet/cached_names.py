"""Directories whose names the kernel may cache: listing one again that has not changed costs no request but its open.

What `opendir` answers, by the names as they are now:

    others than the kernel was given    CACHE_DIR                it drops those, and keeps what this handle lists
    the same                            CACHE_DIR | KEEP_CACHE   it lists them by itself
    others, but a handle on the older   KEEP_CACHE               each reading asks us; what is cached stays as it is
    ones is still open

The kernel has one cache a directory, and puts an entry into it where the position of whoever reads meets the end of
what is there, whichever handle that is. So all handles that may use it at one time show one snapshot, however often
they rewind.

Never let anything into the kernel's cache that we cannot invalidate later. All that it drops is pages, and the cache
of an empty directory has none. And if a listing stopped halfway before the names changed, what the kernel then has can
be neither completed nor started again: until it forgets the directory, each listing asks us, as all do elsewhere.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence, Set

from fsstore.interface import DirectoryEntry, FilesystemError, OpenedDirectory
from fsstore.tree.listing import Described, Listing, NamesListing, describe_some
from fsstore.tree.memory_budget import MemoryBudget

_BESIDE = OpenedDirectory(0, uses_cache=False, keep_cache=True)


class Snapshot(Listing):
    """The names of a directory at one moment, and the inodes that they were listed with: the listing of all handles
    that show it."""

    def __init__(
        self, directory: Described, version: object, names: Sequence[bytes], released: Callable[[], None]
    ) -> None:
        """`released` is called for each handle that is closed."""
        self._directory = directory
        self._names = names
        self._released = released
        self.version = version
        self.inodes: set[int] = set()
        self.has_gaps = False
        """Whether names were left out, perhaps because they were not to be had for a moment."""

    @property
    def is_listed(self) -> bool:
        """Whether somebody has listed all of it."""
        return len(self.inodes) >= len(self._names)

    def read(self, position: int, limit: int, *, with_attributes: bool = True) -> list[DirectoryEntry]:
        """Up to `limit` entries after `position`. ENOENT where none of the names is left: readdir(3) takes that for the
        end, and the kernel does not cache it."""
        entries, passed = describe_some(self._directory, self._names, position, limit)
        self.has_gaps |= len(entries) < passed
        if not entries and position == 0:
            raise FilesystemError(errno.ENOENT)
        self.inodes.update(entry.attributes.inode for entry in entries)
        return entries

    def release(self) -> None:
        self._released()


class CachedNames:
    """The names of one directory in the kernel's cache: of one snapshot, or none. Thread safety: none."""

    def __init__(self, directory: Described, memory: MemoryBudget, are_valid: Callable[[Set[int]], bool]) -> None:
        """`are_valid` says whether all of these inodes still stand for something: the kernel has forgotten none."""
        self._directory = directory
        self._memory = memory
        self._are_valid = are_valid
        self._snapshot: Snapshot | None = None
        self._handles = 0
        """Open ones that may read the kernel's cache or add to it: all on `_snapshot`."""

    def open(self, version: object, names: Callable[[], Sequence[bytes]]) -> tuple[Listing, OpenedDirectory]:
        """A handle on the names as they are. `version` is the same object as long as they are the same; `names` makes
        them."""
        snapshot = self._snapshot
        if snapshot is not None and snapshot.version is version and self._is_right(snapshot):
            return self._on(snapshot, keep_cache=True)
        if self._handles:
            return self.open_beside()
        found = names()
        self._snapshot = snapshot = Snapshot(self._directory, version, found, self._released) if found else None
        return self._on(snapshot, keep_cache=False) if snapshot is not None else self.open_beside()

    def open_beside(self) -> tuple[Listing, OpenedDirectory]:
        """A handle that neither uses the cache nor disturbs those who do."""
        return NamesListing(self._directory, self._memory), _BESIDE

    def _is_right(self, snapshot: Snapshot) -> bool:
        """Whether what the kernel has cached of a snapshot that is not outdated may be used.

        Not before the one whose open drops what was there has listed something, so has surely dropped it. And not when
        the kernel has forgotten files: a listing tells it about all of them again, else it would ask for each.
        """
        if snapshot.has_gaps or not self._are_valid(snapshot.inodes):
            return False
        return snapshot.is_listed or not self._handles

    def _on(self, snapshot: Snapshot, *, keep_cache: bool) -> tuple[Listing, OpenedDirectory]:
        self._handles += 1
        return snapshot, OpenedDirectory(0, uses_cache=True, keep_cache=keep_cache)

    def _released(self) -> None:
        self._handles -= 1

"""Directories whose names the kernel may cache: listing an unchanged one again costs no request but its open.

The answer to `opendir` depends on the present names:

    other than those in the cache       CACHE_DIR                the kernel drops them, and caches this listing
    the same                            CACHE_DIR | KEEP_CACHE   the kernel lists them itself
    other, but a handle on the older    KEEP_CACHE               each read is a request; the cache stays as it is
    ones is still open

The kernel has one cache per directory. It adds an entry when the position of a reader is at the end of the cache, for
any handle. So all handles that may use the cache at the same time show one snapshot, however often they rewind.

Never let the kernel cache names that we cannot invalidate later: it drops only pages, and the cache of an empty
directory has none. If a listing stopped halfway before the names changed, the kernel's part of it can be neither
completed nor started again. Until the kernel forgets the directory, each listing then sends requests, as elsewhere.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence, Set

from fsstore.interface import DirectoryEntry, FilesystemError, OpenedDirectory
from fsstore.tree.listing import Described, Listing, NamesListing, describe_some
from fsstore.tree.memory_budget import MemoryBudget

_BESIDE = OpenedDirectory(0, uses_cache=False, keep_cache=True)


class Snapshot(Listing):
    """The names of a directory at one moment, and the inodes in their listing. All handles on them share it."""

    def __init__(
        self, directory: Described, version: object, names: Sequence[bytes], released: Callable[[], None]
    ) -> None:
        """`released` is called when a handle is closed."""
        self._directory = directory
        self._names = names
        self._released = released
        self.version = version
        self.inodes: set[int] = set()
        self.has_gaps = False
        """Whether names were left out, perhaps because their files could not be read for a moment."""

    @property
    def is_listed(self) -> bool:
        """Whether all of it was listed by a reader."""
        return len(self.inodes) >= len(self._names)

    def read(self, position: int, limit: int, *, with_attributes: bool = True) -> list[DirectoryEntry]:
        """Up to `limit` entries after `position`. ENOENT if none of the names exists any more: readdir(3) takes this
        for the end, and the kernel does not cache it."""
        entries, passed = describe_some(self._directory.describe, self._names, position, limit)
        self.has_gaps |= len(entries) < passed
        if not entries and position == 0:
            raise FilesystemError(errno.ENOENT)
        self.inodes.update(entry.attributes.inode for entry in entries)
        return entries

    def release(self) -> None:
        self._released()


class CachedNames:
    """The names of one directory in the kernel's cache: one snapshot, or none. Thread safety: none."""

    def __init__(self, directory: Described, memory: MemoryBudget, are_valid: Callable[[Set[int]], bool]) -> None:
        """`are_valid` tells whether all of these inodes are valid: the kernel has forgotten none."""
        self._directory = directory
        self._memory = memory
        self._are_valid = are_valid
        self._snapshot: Snapshot | None = None
        self._handles = 0
        """Open handles on `_snapshot`, which may read the kernel's cache or add to it."""

    def open(self, version: object, names: Callable[[], Sequence[bytes]]) -> tuple[Listing, OpenedDirectory]:
        """Open a handle on the present `names`. `version` is the same object while the names are the same."""
        snapshot = self._snapshot
        if snapshot is not None and snapshot.version is version and self._is_right(snapshot):
            return self._on(snapshot, keep_cache=True)
        if self._handles:
            return self.open_beside()
        found = names()
        self._snapshot = snapshot = Snapshot(self._directory, version, found, self._released) if found else None
        return self._on(snapshot, keep_cache=False) if snapshot is not None else self.open_beside()

    def open_beside(self) -> tuple[Listing, OpenedDirectory]:
        """Open a handle that neither uses nor changes the kernel's cache."""
        return NamesListing(self._directory, self._memory), _BESIDE

    def _is_right(self, snapshot: Snapshot) -> bool:
        """Whether the kernel may list from its cache of a snapshot that is still valid.

        Wait until the handle that was opened without KEEP_CACHE has listed an entry: only then has the kernel dropped
        the old names. And list again if the kernel has forgotten files: it would look up each of them.
        """
        if snapshot.has_gaps or not self._are_valid(snapshot.inodes):
            return False
        return snapshot.is_listed or not self._handles

    def _on(self, snapshot: Snapshot, *, keep_cache: bool) -> tuple[Listing, OpenedDirectory]:
        self._handles += 1
        return snapshot, OpenedDirectory(0, uses_cache=True, keep_cache=keep_cache)

    def _released(self) -> None:
        self._handles -= 1

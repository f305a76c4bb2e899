"""The kernel's cache of one directory's names, as fs/fuse/readdir.c keeps it, with pages of three names.

What is not there: locks, and the kernel's own races within one call. A call of `Reader.getdents` is one system call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fsstore.interface import DirectoryEntry, FilesystemError, OpenedDirectory
from fsstore.tree.listing import Listing

PAGE_NAMES = 3


@dataclass(frozen=True, slots=True)
class Cached:
    """A name in a page: what is shown of it, and the position after it."""

    name: bytes
    inode: int
    next_position: int


@dataclass
class KernelCache:
    """`fi->rdc` and the pages of the directory's inode."""

    pages: dict[int, list[Cached]] = field(default_factory=dict)
    is_complete: bool = False
    size: int = 0
    position: int = 0
    version: int = 0

    def drop_pages(self) -> None:
        """What an opendir without KEEP_CACHE does, and what short memory may do: no more than this."""
        self.pages.clear()

    def reset(self) -> None:
        """When a page turns out to be missing, or the directory's time is another."""
        self.is_complete, self.size, self.position = False, 0, 0
        self.version += 1

    def add(self, entry: DirectoryEntry, position: int) -> None:
        """Put an entry in, if it belongs at the end of what is there."""
        if self.is_complete or position != self.position:
            return
        page, row = divmod(self.size, PAGE_NAMES)
        if row == 0:
            self.pages[page] = []
        if page not in self.pages:
            return
        self.pages[page].append(Cached(entry.name, entry.attributes.inode, entry.next_position))
        self.size += 1
        self.position = entry.next_position

    def end(self, position: int) -> None:
        """A reader saw the end of the directory."""
        if position == self.position:
            self.is_complete = True


class Reader:
    """An open directory. It is open for the daemon from the start, for the kernel after `arrive`."""

    def __init__(
        self, cache: KernelCache, listing: Listing, opened: OpenedDirectory, told: Callable[[int], None]
    ) -> None:
        self._cache = cache
        self.listing = listing
        self._opened = opened
        self._told = told
        self.has_arrived = False
        self.position = 0
        self._cached_position = 0
        self._cached_row = 0
        self._version = -1

    def arrive(self) -> None:
        """The end of opendir(2)."""
        if not self.has_arrived and not self._opened.keep_cache:
            self._cache.drop_pages()
        self.has_arrived = True

    def rewind(self) -> None:
        """rewinddir(3)."""
        self.position = 0

    def getdents(self, count: int) -> list[tuple[bytes, int]]:
        """Up to `count` names and inodes; none at the end."""
        found = self._from_cache(count) if self._opened.uses_cache else None
        return self._from_daemon(count) if found is None else found

    def _from_cache(self, count: int) -> list[tuple[bytes, int]] | None:
        cache = self._cache
        if self._cached_position != self.position:
            self._cached_position = self._cached_row = 0
        if not cache.is_complete:
            return None
        if self._version != cache.version:
            self._cached_position = self._cached_row = 0
            self._version = cache.version
        found: list[tuple[bytes, int]] = []
        while self._cached_row < cache.size and len(found) < count:
            page, row = divmod(self._cached_row, PAGE_NAMES)
            if page not in cache.pages:
                cache.reset()
                return found or None
            entry = cache.pages[page][row]
            if self._cached_position == self.position:
                found.append((entry.name, entry.inode))
                self.position = entry.next_position
            self._cached_position = entry.next_position
            self._cached_row += 1
        return found if found or self._cached_position == self.position else None

    def _from_daemon(self, count: int) -> list[tuple[bytes, int]]:
        try:
            batch = self.listing.read(self.position, count, with_attributes=True)
        except FilesystemError:
            return []  # as readdir(3) makes of ENOENT
        assert isinstance(batch, list)
        if not batch and self._opened.uses_cache:
            self._cache.end(self.position)
        for entry in batch:
            if self._opened.uses_cache:
                self._cache.add(entry, self.position)
            self._told(entry.attributes.inode)
            self.position = entry.next_position
        return [(entry.name, entry.attributes.inode) for entry in batch]

"""A recorder of the disk's state, and the images that a power cut could leave (docs/durability.md, "Power loss").

The recorder is the store's `Disk`: it gets every sync of a file or directory, and reads all files before and after.
From a recorded moment it builds images of a disk whose power failed then:

    a file's 4 KiB page     as it was synced last, as it was at any look since, or torn: each 512 bytes on their own
    a file's length, time   as synced last, or as at any look since
    a name in a directory   as synced with the directory last, or as at any look since (so: not there, there, old, new)

Each page, length and name is drawn independently: only syncs order them.

A sync can be made to fail. Then some of its pages stay old on disk, but the kernel treats them as written: no later
sync writes them, until they are written to again.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.files.disk import Disk

PAGE_BYTES = 4096
SECTOR_BYTES = 512
LOCK_NAME = "lock"
LOCK_CONTENT = b"lock"

Listing = Mapping[str, int]
"""Names in a directory, each with the number of its node."""

Draw = Callable[[int], int]
"""Chooses one of so many states, oldest first: 0 is what was synced, the last what is in memory."""


@dataclass(frozen=True, slots=True)
class Version:
    """A file at one look."""

    content: bytes
    mtime_ns: int


NEVER_SYNCED = Version(b"", 0)


@dataclass(frozen=True, slots=True)
class Moment:
    """All that may be on disk at one moment: the states of each directory and each file, the synced one first.

    `facts` is what the owner of the recorder promised by then. `lost` has what is on disk of pages that the kernel
    takes for written, by file and number of the page.
    """

    what: str
    root: int
    directories: Mapping[int, tuple[Listing, ...]]
    files: Mapping[int, tuple[Version, ...]]
    facts: Any
    lost: Mapping[int, Mapping[int, bytes]] = field(default_factory=dict)


class Recorder(Disk):
    """A disk that waits for nothing and remembers everything. Thread safety: any thread.

    What is below `root` when it is made counts as synced.
    """

    def __init__(self, root: Path, facts: Callable[[], Any] = lambda: None) -> None:
        """`facts` is asked at each moment, before anything is looked at."""
        self._root = root
        self._facts = facts
        self._lock = threading.RLock()
        self._descriptors: dict[int, int] = {}  # open for as long as we live, so that no inode number is used twice
        self._directories: dict[int, tuple[Listing, ...]] = {}
        self._files: dict[int, tuple[Version, ...]] = {}
        self._lost: dict[int, dict[int, bytes]] = {}
        self._unreported: set[int] = set()
        """Files whose failed write no sync of the file itself has reported yet."""
        self._refusing: random.Random | None = None
        self._root_node = self._node(root.stat().st_ino, lambda: os.open(root, os.O_RDONLY))
        self.moments: list[Moment] = []
        self.syncs = 0
        self.refused = 0
        self._look()
        self._directories = {node: states[-1:] for node, states in self._directories.items()}
        self._files = {node: states[-1:] for node, states in self._files.items()}

    def close(self) -> None:
        """Let go of all files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    # calls of the store's to the disk

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        """As `Disk.allocate`."""
        super().allocate(descriptor, path, start, size_bytes)
        self.note(f"allocated {path.name}")

    def sync(self, descriptor: int, path: Path) -> None:
        """The file's present content is on disk after this; bytes written during the call may be on disk, or not."""
        with self._lock:
            self.note(f"before the sync of {path.name}")
            node = self._node(os.fstat(descriptor).st_ino, lambda: os.dup(descriptor))
            if node in self._unreported:
                self._unreported.discard(node)
                raise OSError(errno.EIO, "the disk refused it", str(path))
            if self._refusing is not None and (dirty := self._dirty_pages(node)):
                self._refuse(node, dirty, self._refusing)
                self.note(f"after a sync of {path.name} that failed")
                raise OSError(errno.EIO, "the disk refused it", str(path))
            self._files[node] = (self._version(node),)
            self.syncs += 1
            self.note(f"after the sync of {path.name}")

    def sync_filesystem(self, descriptor: int, path: Path) -> bool:
        """All files and names are on disk after this; until then each may be, or not."""
        with self._lock:
            self.note("before a sync of the filesystem")
            refused = self._refuse_one()
            self._files = {node: (self._version(node),) for node in self._files}
            self._directories = {node: states[-1:] for node, states in self._directories.items()}
            self.syncs += 1
            self.note("after a sync of the filesystem")
            if refused:
                raise OSError(errno.EIO, "the disk refused it", str(path))
            return True

    def _refuse_one(self) -> bool:
        """Refuse pages of a file, if a sync is to fail; both the filesystem and the file report it."""
        for node in self._files if self._refusing is not None else ():
            if self._refusing is not None and (dirty := self._dirty_pages(node)):
                self._refuse(node, dirty, self._refusing)
                self._unreported.add(node)
                return True
        return False

    def refuse_next_sync(self, chance: random.Random) -> None:
        """Have the next sync fail that has to write a page; `chance` draws which of them are not written."""
        with self._lock:
            self._refusing = chance

    def _dirty_pages(self, node: int) -> list[int]:
        """Pages of a file that a sync has to write."""
        synced, now, lost = self._files[node][0].content, self._version(node).content, self._lost.get(node, {})
        pages = range(-(-len(now) // PAGE_BYTES))
        return [page for page in pages if page not in lost and _page_at(synced, page) != _page_at(now, page)]

    def _refuse(self, node: int, dirty: Sequence[int], chance: random.Random) -> None:
        synced = self._files[node][0].content
        left = [page for page in dirty if chance.random() < 0.5] or dirty[:1]
        self._lost.setdefault(node, {}).update((page, _page_at(synced, page)) for page in left)
        self._files[node] = (self._version(node),)
        self._refusing = None
        self.refused += 1

    def write_again(self, descriptor: int, path: Path, position: int, size: int) -> None:
        """As `Disk.write_again`: the next sync brings these pages to disk."""
        with self._lock:
            super().write_again(descriptor, path, position, size)
            node = os.fstat(descriptor).st_ino
            pages = range(position // PAGE_BYTES, -(-(position + size) // PAGE_BYTES))
            self._found_dirty(node, [page for page in self._lost.get(node, ()) if page in pages])

    def _found_dirty(self, node: int, pages: Sequence[int]) -> None:
        """Pages that no sync would have written are written with the next one; until then they are old or new."""
        for page in pages:
            old = self._lost[node].pop(page)
            states = tuple(Version(_with_page(one.content, page, old), one.mtime_ns) for one in self._files[node])
            self._files[node] = (*states, self._version(node))

    def sync_directory(self, path: Path) -> None:
        """The names in the directory are on disk."""
        with self._lock:
            self.note(f"before the sync of directory {path.name}")
            with suppress(FileNotFoundError):
                node = path.stat().st_ino
                if node in self._directories:
                    self._directories[node] = self._directories[node][-1:]
            self.syncs += 1
            self.note(f"after the sync of directory {path.name}")

    def note(self, what: str) -> None:
        """Look at everything and remember this moment."""
        with self._lock:
            facts = self._facts()
            self._look()
            directories, files = dict(self._directories), dict(self._files)
            lost = {node: dict(pages) for node, pages in self._lost.items() if pages}
            self.moments.append(Moment(what, self._root_node, directories, files, facts, lost))

    # looking

    def _look(self) -> None:
        waiting = [(self._root, self._root_node)]
        while waiting:
            path, node = waiting.pop()
            listing: dict[str, int] = {}
            for entry in _entries(path):
                with suppress(FileNotFoundError):  # other threads go on meanwhile
                    if entry.is_dir():
                        child = self._node_at(entry)
                        waiting.append((Path(entry.path), child))
                    else:
                        child = self._look_at_file(entry)
                    listing[entry.name] = child
            states = self._directories.setdefault(node, ({},))
            if states[-1] != listing:
                self._directories[node] = (*states, listing)

    def _look_at_file(self, entry: os.DirEntry[str]) -> int:
        node = entry.inode()
        if entry.name == LOCK_NAME:  # to open and close it would drop the store's lock
            version = Version(LOCK_CONTENT, entry.stat().st_mtime_ns)
        else:
            self._node_at(entry)
            version = self._version(node)
        states = self._files.setdefault(node, (NEVER_SYNCED,))
        lost = self._lost.get(node, ())
        changed = [page for page in lost if _page_at(version.content, page) != _page_at(states[-1].content, page)]
        self._found_dirty(node, changed)
        states = self._files[node]
        if states[-1].content != version.content or states[-1].mtime_ns != version.mtime_ns:
            self._files[node] = (*states, version)
        return node

    def _node_at(self, entry: os.DirEntry[str]) -> int:
        return self._node(entry.inode(), lambda: os.open(entry.path, os.O_RDONLY))

    def _node(self, number: int, open_it: Callable[[], int]) -> int:
        if number not in self._descriptors:
            self._descriptors[number] = open_it()
        return number

    def _version(self, node: int) -> Version:
        descriptor = self._descriptors[node]
        status = os.fstat(descriptor)
        return Version(os.pread(descriptor, status.st_size, 0), status.st_mtime_ns)


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            yield from list(found)
    except FileNotFoundError:
        return


# images


def build_image(moment: Moment, chance: random.Random, target: Path) -> None:
    """Write to `target` (which must not exist) one of the disks that a power cut at `moment` could leave."""
    _build_directory(moment, moment.root, temper(chance), chance, target)


def temper(chance: random.Random) -> Draw:
    """How this disk's cache was: all written, nothing, the newer or the older of each, or anything at all."""
    kind = chance.randrange(6)
    if kind == 0:
        return lambda count: 0
    if kind == 1:
        return lambda count: count - 1
    if kind < 5:
        written = (0.1, 0.5, 0.9)[kind - 2]
        return lambda count: count - 1 if chance.random() < written else 0
    return chance.randrange


def _build_directory(moment: Moment, node: int, draw: Draw, chance: random.Random, target: Path) -> None:
    target.mkdir()
    states = moment.directories.get(node, ({},))
    for name in sorted({name for listing in states for name in listing}):
        child = states[draw(len(states))].get(name)
        if child is None:
            continue
        if child in moment.files:
            _build_file(moment.files[child], moment.lost.get(child, {}), draw, chance, target / name)
        else:
            _build_directory(moment, child, draw, chance, target / name)


def _build_file(
    states: Sequence[Version], lost: Mapping[int, bytes], draw: Draw, chance: random.Random, target: Path
) -> None:
    length = len(states[draw(len(states))].content)
    torn = chance.random() < 0.3
    if len(states) == 1:
        content = states[0].content
    else:
        content = b"".join(_page(states, page, torn, draw, chance) for page in range(0, length, PAGE_BYTES))[:length]
    for page, old in lost.items():
        content = _with_page(content, page, old)[:length]
    target.write_bytes(content)
    mtime_ns = states[draw(len(states))].mtime_ns
    os.utime(target, ns=(mtime_ns, mtime_ns))


def _page(states: Sequence[Version], start: int, torn: bool, draw: Draw, chance: random.Random) -> bytes:
    """One page: of one state, or, torn, each of its sectors of any state."""
    if torn and chance.random() < 0.5:
        sectors = range(start, start + PAGE_BYTES, SECTOR_BYTES)
        return b"".join(
            _piece(states[chance.randrange(len(states))].content, sector, SECTOR_BYTES) for sector in sectors
        )
    return _piece(states[draw(len(states))].content, start, PAGE_BYTES)


def _piece(content: bytes, start: int, length: int) -> bytes:
    return content[start : start + length].ljust(length, b"\0")


def _page_at(content: bytes, page: int) -> bytes:
    return _piece(content, page * PAGE_BYTES, PAGE_BYTES)


def _with_page(content: bytes, page: int, new: bytes) -> bytes:
    """The content with another page, no longer than it was."""
    start = page * PAGE_BYTES
    return (content[:start] + new + content[start + PAGE_BYTES :])[: len(content)]

"""A recorder of what is on disk, and the images that a power cut could leave (docs/durability.md, "Power loss").

The recorder is the store's `Disk`: it hears of every sync of a file or directory, and looks at all files around each.
From a recorded moment it builds images of a disk whose power went just then:

    a file's 4 KiB page     as it was synced last, as it was at any look since, or torn: each 512 bytes on their own
    a file's length, time   as synced last, or as at any look since
    a name in a directory   as synced with the directory last, or as at any look since (so: not there, there, old, new)

Each page, length and name is drawn on its own: no order between them is taken for granted but what a sync gives.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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

    `facts` is what the owner of the recorder promised by then.
    """

    what: str
    root: int
    directories: Mapping[int, tuple[Listing, ...]]
    files: Mapping[int, tuple[Version, ...]]
    facts: Any


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
        self._root_node = self._node(root.stat().st_ino, lambda: os.open(root, os.O_RDONLY))
        self.moments: list[Moment] = []
        self.syncs = 0
        self._look()
        self._directories = {node: states[-1:] for node, states in self._directories.items()}
        self._files = {node: states[-1:] for node, states in self._files.items()}

    def close(self) -> None:
        """Let go of all files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    # what the store asks of a disk

    def allocate(self, descriptor: int, path: Path, size_bytes: int) -> None:
        """As `Disk.allocate`."""
        super().allocate(descriptor, path, size_bytes)
        self.note(f"allocated {path.name}")

    def sync(self, descriptor: int, path: Path) -> None:
        """The file is on disk as it is now, when this returns: what is written meanwhile may be, or not."""
        with self._lock:
            self.note(f"before the sync of {path.name}")
            node = self._node(os.fstat(descriptor).st_ino, lambda: os.dup(descriptor))
            self._files[node] = (self._version(node),)
            self.syncs += 1
            self.note(f"after the sync of {path.name}")

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
            self.moments.append(Moment(what, self._root_node, directories, files, facts))

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
            _build_file(moment.files[child], draw, chance, target / name)
        else:
            _build_directory(moment, child, draw, chance, target / name)


def _build_file(states: Sequence[Version], draw: Draw, chance: random.Random, target: Path) -> None:
    length = len(states[draw(len(states))].content)
    torn = chance.random() < 0.3
    if len(states) == 1:
        content = states[0].content
    else:
        content = b"".join(_page(states, page, torn, draw, chance) for page in range(0, length, PAGE_BYTES))[:length]
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

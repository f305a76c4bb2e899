"""Rendered bytes that are kept: in memory, then on disk, the least recently used out.

Only what memory has no room for a second time goes to disk. Most is read once, the kernel then has it, and a job that
reads everything would pay for writing it; who has a chunk rendered again will want it again.

What is on disk belongs to one process: each has a directory of its own, locked as long as it lives. What a killed one
left behind is removed by the next that starts there.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import shutil
import stat
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from engine import make_directory

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_PREFIX = "fsstore-parquet-"
_LOCK = "lock"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REMEMBERED = 65_536
"""Keys of chunks that memory had no room for once."""

ENTRY_BYTES = 2 << 10
"""Memory that a kept chunk takes beside its bytes, more or less: its objects and key, and what was room behind it."""


class Recent(Generic[K, V]):
    """Values with a size, as many as fit, the least recently used out. Thread safety: none."""

    def __init__(self, most_bytes: int, evicted: Callable[[K, V], None]) -> None:
        """`evicted` gets what has to go. What alone is too long goes at once."""
        self._most_bytes = most_bytes
        self._evicted = evicted
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.kept_bytes = 0

    def kept(self) -> list[tuple[K, V]]:
        """All keys and values, the least recently used first."""
        return [(key, value) for key, (value, _) in self._values.items()]

    def get(self, key: K) -> V | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        self.take(key)
        self._values[key] = (value, size)
        self.kept_bytes += size
        while self.kept_bytes > self._most_bytes:
            oldest, (gone, gone_bytes) = self._values.popitem(last=False)
            self.kept_bytes -= gone_bytes
            self._evicted(oldest, gone)

    def take(self, key: K) -> V | None:
        """Remove a value and return it."""
        found = self._values.pop(key, None)
        if found is None:
            return None
        self.kept_bytes -= found[1]
        return found[0]


class DiskChunks:
    """Chunks in files of a directory of our own. Made with the first chunk. Thread safety: none."""

    def __init__(self, parent: Path, most_bytes: int) -> None:
        self._parent = parent
        self._directory: Path | None = None
        self._opened = -1  # the directory: what somebody puts in its place is not written to
        self._lock: int | None = None
        self._numbers = itertools.count()
        self._files: Recent[Hashable, str] = Recent(most_bytes, lambda _, name: self._remove(name))
        self._most_bytes = most_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes on disk."""
        return self._files.kept_bytes

    def put(self, key: Hashable, chunk: memoryview) -> None:
        """Keep a chunk, when there is room at all. OSError."""
        if len(chunk) > self._most_bytes:
            return
        if self._directory is None:
            self._directory = self._make_directory()
        name = str(next(self._numbers))
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._opened)
        try:
            with open(made, "wb") as file:
                file.write(chunk)
        except OSError:
            self._remove(name)
            raise
        self._files.put(key, name, len(chunk))

    def take(self, key: Hashable) -> memoryview | None:
        """A chunk, which is then no longer here. OSError."""
        name = self._files.take(key)
        if name is None:
            return None
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._opened), "rb") as file:
            chunk = memoryview(file.read())
        self._remove(name)
        return chunk

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._opened)

    def _make_directory(self) -> Path:
        parent = Path(os.path.realpath(self._parent))
        make_directory(parent)
        remove_abandoned(parent)
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._opened = os.open(directory, _FOLDER)
        self._lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._opened)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if os.geteuid() == 0:  # in a store of another user's, who can then remove what a killed daemon left
            owner = parent.stat()
            for descriptor in (self._lock, self._opened):
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        return directory

    def close(self) -> None:
        """Remove everything."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            os.close(self._opened)
        self._directory = self._lock = None


def remove_abandoned(parent: Path) -> None:
    """Remove directories of ours, or of the owner of `parent`, whose process is gone; nothing else of that name."""
    owners = {os.geteuid(), parent.stat().st_uid}
    for directory in parent.glob(_PREFIX + "*"):
        with suppress(OSError):  # a link, a file, or being made this moment
            opened = os.open(directory, _FOLDER)
            try:
                if os.fstat(opened).st_uid in owners:
                    _remove_if_unlocked(directory, opened)
            finally:
                os.close(opened)


def _remove_if_unlocked(directory: Path, opened: int) -> None:
    lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=opened)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            return
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)


class ChunkCache:
    """Chunks in memory, and what memory has no room for a second time on disk.

    Thread safety: any thread. Two locks, one for memory and one for the disk, never held together: whoever looks into
    memory does not wait for a disk.
    """

    def __init__(self, memory_bytes: int, disk: DiskChunks | None) -> None:
        self._memory_lock = threading.Lock()
        self._disk_lock = threading.Lock()
        self._disk = disk
        self._spilling: list[tuple[Hashable, memoryview]] = []
        self._evicted_once: Recent[Hashable, bool] = Recent(_REMEMBERED, lambda _key, _value: None)
        self._memory: Recent[Hashable, memoryview] = Recent(memory_bytes, self._evicted)

    @property
    def memory_bytes(self) -> int:
        """Bytes kept in memory."""
        return self._memory.kept_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes kept on disk."""
        disk = self._disk
        return disk.kept_bytes if disk is not None else 0

    def peek(self, key: Hashable) -> memoryview | None:
        """A chunk that is in memory."""
        with self._memory_lock:
            return self._memory.get(key)

    def find(self, key: Hashable) -> memoryview | None:
        """A chunk that is in memory or on disk; from there it comes back into memory."""
        chunk = self.peek(key)
        if chunk is None and (chunk := self._take_from_disk(key)) is not None:
            self.put(key, chunk)
        return chunk

    def put(self, key: Hashable, chunk: memoryview) -> None:
        """Keep a chunk."""
        for gone, bytes_of_it in self._put(key, chunk):
            self._spill(gone, bytes_of_it)

    def put_in_memory(self, key: Hashable, chunk: memoryview) -> None:
        """Keep a chunk without waiting for a disk: what it takes the room of does not go there."""
        self._put(key, chunk)

    def _put(self, key: Hashable, chunk: memoryview) -> list[tuple[Hashable, memoryview]]:
        """Keep a chunk in memory; what goes for it, and should go to disk."""
        with self._memory_lock:
            self._memory.put(key, chunk, len(chunk) + ENTRY_BYTES)
            spilling, self._spilling = self._spilling, []
        return spilling

    def _evicted(self, key: Hashable, chunk: memoryview) -> None:
        if self._evicted_once.get(key):
            self._spilling.append((key, chunk))
        else:
            self._evicted_once.put(key, True, 1)

    def close(self) -> None:
        """Let go of everything."""
        with self._memory_lock:
            self._memory = Recent(0, lambda _key, _chunk: None)
        self._give_up_disk()

    def _take_from_disk(self, key: Hashable) -> memoryview | None:
        with self._disk_lock, suppress(OSError):  # as if it had gone: it can be rendered again
            return self._disk.take(key) if self._disk is not None else None
        return None

    def _spill(self, key: Hashable, chunk: memoryview) -> None:
        try:
            with self._disk_lock:
                if self._disk is not None:
                    self._disk.put(key, chunk)
        except OSError as error:
            log.warning("rendered Parquet is kept in memory only from now on: %s", error)
            self._give_up_disk()

    def _give_up_disk(self) -> None:
        with self._disk_lock:
            if self._disk is not None:
                self._disk.close()
            self._disk = None

"""Rendered bytes that are kept: in memory, then on disk, the least recently used out.

Only what was decompressed goes to disk, and only when memory has no room for it a second time. All else is rendered
from the mapped log in less time than it is read back. Most is read once, the kernel then has it, and a job that reads
everything would pay for writing it; who has a chunk rendered again will want it again.

What is on disk belongs to one process, in a scratch directory of its own.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from engine import ScratchDirectory

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

SCRATCH_PREFIX = "fsstore-parquet-"
_REMEMBERED = 65_536
"""Keys of chunks that memory had no room for once."""

ENTRY_BYTES = 2 << 10
"""Memory that a kept chunk takes beside its bytes, more or less: its objects and key, and what was room after it."""


class Recent(Generic[K, V]):
    """Values with a size, as many as fit, the least recently used out. Thread safety: none."""

    def __init__(self, most_bytes: int, evicted: Callable[[K, V], None] = lambda key, value: None) -> None:
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

    def __init__(self, parent: Path | None, most_bytes: int) -> None:
        """`parent` None: nothing is kept."""
        self._parent = parent
        self._scratch: ScratchDirectory | None = None
        self._numbers = itertools.count()
        self._files: Recent[Hashable, str] = Recent(most_bytes, lambda _, name: self._remove(name))
        self._most_bytes = most_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes on disk."""
        return self._files.kept_bytes

    def put(self, key: Hashable, chunk: memoryview) -> None:
        """Keep a chunk, when there is room at all. OSError."""
        if self._parent is None or len(chunk) > self._most_bytes:
            return
        if self._scratch is None:
            self._scratch = ScratchDirectory(self._parent, SCRATCH_PREFIX)
        name = str(next(self._numbers))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        made = os.open(name, flags, 0o600, dir_fd=self._scratch.descriptor)
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
        if name is None or self._scratch is None:
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=self._scratch.descriptor), "rb") as file:
            chunk = memoryview(file.read())
        self._remove(name)
        return chunk

    def _remove(self, name: str) -> None:
        if self._scratch is not None:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._scratch.descriptor)

    def close(self) -> None:
        """Remove everything."""
        if self._scratch is not None:
            self._scratch.close()
        self._scratch = None


class _Kept(NamedTuple):
    chunk: memoryview
    for_disk: bool


class ChunkCache:
    """Chunks in memory, and those `for_disk` that memory has no room for a second time on disk.

    Thread safety: any thread. Two locks, one for memory and one for the disk, never held together: whoever looks into
    memory does not wait for a disk.
    """

    def __init__(self, memory_bytes: int, disk: DiskChunks | None) -> None:
        self._memory_lock = threading.Lock()
        self._disk_lock = threading.Lock()
        self._disk = disk or _no_disk()
        self._spilling: list[tuple[Hashable, memoryview]] = []
        self._evicted_once: Recent[Hashable, bool] = Recent(_REMEMBERED)
        self._memory: Recent[Hashable, _Kept] = Recent(memory_bytes, self._evicted)

    @property
    def memory_bytes(self) -> int:
        """Bytes kept in memory."""
        return self._memory.kept_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes kept on disk."""
        return self._disk.kept_bytes

    def peek(self, key: Hashable) -> memoryview | None:
        """A chunk that is in memory."""
        with self._memory_lock:
            kept = self._memory.get(key)
        return kept.chunk if kept is not None else None

    def find(self, key: Hashable) -> memoryview | None:
        """A chunk that is in memory or on disk; from there it comes back into memory."""
        chunk = self.peek(key)
        if chunk is None and (chunk := self._take_from_disk(key)) is not None:
            self.put(key, chunk, for_disk=True)
        return chunk

    def put(self, key: Hashable, chunk: memoryview, *, for_disk: bool) -> None:
        """Keep a chunk; `for_disk` says that to read it from there is quicker than to render it."""
        for gone, bytes_of_it in self._put(key, _Kept(chunk, for_disk)):
            self._spill(gone, bytes_of_it)

    def put_in_memory(self, key: Hashable, chunk: memoryview) -> None:
        """Keep a chunk without waiting for a disk: what it takes the room of does not go there."""
        self._put(key, _Kept(chunk, for_disk=False))

    def _put(self, key: Hashable, kept: _Kept) -> list[tuple[Hashable, memoryview]]:
        """Keep a chunk in memory; what goes for it, and should go to disk."""
        with self._memory_lock:
            self._memory.put(key, kept, len(kept.chunk) + ENTRY_BYTES)
            spilling, self._spilling = self._spilling, []
        return spilling

    def _evicted(self, key: Hashable, kept: _Kept) -> None:
        if not kept.for_disk:
            return
        if self._evicted_once.get(key):
            self._spilling.append((key, kept.chunk))
        else:
            self._evicted_once.put(key, True, 1)

    def close(self) -> None:
        """Free everything."""
        with self._memory_lock:
            self._memory = Recent(0)
        self._give_up_disk()

    def _take_from_disk(self, key: Hashable) -> memoryview | None:
        with self._disk_lock, suppress(OSError):  # as if it had gone: it can be rendered again
            return self._disk.take(key)
        return None

    def _spill(self, key: Hashable, chunk: memoryview) -> None:
        try:
            with self._disk_lock:
                self._disk.put(key, chunk)
        except OSError as error:
            log.warning("rendered Parquet is kept in memory only from now on: %s", error)
            self._give_up_disk()

    def _give_up_disk(self) -> None:
        with self._disk_lock:
            self._disk.close()
            self._disk = _no_disk()


def _no_disk() -> DiskChunks:
    return DiskChunks(None, 0)

"""Open files: how many a store keeps mapped at once, whatever the number of its queues.

A map holds a descriptor, and so does a file that is written to; a process has few of them (1,024 where nobody says
otherwise). So files are counted when they are mapped; beyond a limit, those that were mapped longest ago are evicted.
Whoever needs one again maps it again. Evicting a file that was written lately costs a sync: a publisher that cycles
through more queues than that needs more descriptors to be fast.
"""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from typing import Protocol

SHARE_OF_DESCRIPTORS = 3 / 8
"""Files a descriptor: each may hold two, and a quarter is left for everything else."""
MOST_FILES = 16_384
"""Far below the number of maps that Linux lets a process have (65,530)."""
TRIES = 4


class Evictable(Protocol):
    """What can be evicted: a mapped file."""

    def evict(self) -> bool:
        """Give map and descriptors back, if nobody is at work on the file; whether that was so. Never waits."""


class OpenFiles:
    """The mapped files of a store, the one that was mapped longest ago first. Thread safety: any thread."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit` files are kept; None: as many as suit the process's limit of descriptors."""
        self._limit = limit or files_allowed()
        self._lock = threading.Lock()
        self._files: OrderedDict[Evictable, None] = OrderedDict()

    def add(self, file: Evictable) -> None:
        """`file` was mapped: evict others while there are too many. Those in use stay."""
        with self._lock:
            self._files[file] = None
            self._files.move_to_end(file)
        for _ in range(TRIES):
            oldest = self._take_surplus()
            if oldest is None:
                return
            if not oldest.evict():
                with self._lock:
                    self._files[oldest] = None

    def _take_surplus(self) -> Evictable | None:
        with self._lock:
            return self._files.popitem(last=False)[0] if len(self._files) > self._limit else None

    def discard(self, file: Evictable) -> None:
        """`file` is not mapped any more."""
        with self._lock:
            self._files.pop(file, None)


def files_allowed() -> int:
    """How many files to keep mapped, by the process's soft limit of descriptors now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else max(min(int(soft * SHARE_OF_DESCRIPTORS), MOST_FILES), 1)

"""Open files: limits the number of mapped files of a store, independent of the number of its queues.

A map holds a descriptor, and so does a file that is written to. A process has few descriptors (by default 1,024). So
mapped files are counted; beyond a limit, those mapped longest ago are evicted, and mapped again at the next access.
Evicting a recently written file costs a sync: a publisher that cycles through more queues needs more descriptors.
"""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from typing import Protocol

SHARE_OF_DESCRIPTORS = 3 / 8
"""Mapped files per descriptor: a file may hold two, and a quarter is left for other uses."""
MOST_FILES = 16_384
"""Far below Linux's limit of maps a process (65,530)."""
TRIES = 4


class Evictable(Protocol):
    """A mapped file that can be evicted."""

    def evict(self) -> bool:
        """Release map and descriptors; False, and nothing is done, while the file is in use. Never waits."""


class OpenFiles:
    """The mapped files of a store in the order of their mapping. Thread safety: any thread."""

    def __init__(self, limit: int | None = None) -> None:
        """Keep up to `limit` files mapped; None: `files_allowed()`."""
        self.limit = limit or files_allowed()
        """Number of files that are kept mapped."""
        self._lock = threading.Lock()
        self._files: OrderedDict[Evictable, None] = OrderedDict()

    def add(self, file: Evictable) -> None:
        """Add a file that was mapped; evict others over the limit, except those in use."""
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
            return self._files.popitem(last=False)[0] if len(self._files) > self.limit else None

    def discard(self, file: Evictable) -> None:
        """Remove a file that is not mapped any more."""
        with self._lock:
            self._files.pop(file, None)


def files_allowed() -> int:
    """Number of files to keep mapped, from the process's current soft limit of descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else max(min(int(soft * SHARE_OF_DESCRIPTORS), MOST_FILES), 1)

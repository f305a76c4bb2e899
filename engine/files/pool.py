"""The transient store pool: write buffers for the commit log (docs/format.md, 3).

append -> buffer            nobody sees the bytes, and they are lost when the process dies
commit -> file, readable    every 200 ms; then they are dispatched
flush  -> disk
"""

import mmap
import threading


class BufferPool:
    """`count` buffers of `size_bytes`, last returned first given. Thread safety: any thread."""

    def __init__(self, count: int, size_bytes: int) -> None:
        self._free = [memoryview(mmap.mmap(-1, size_bytes)) for _ in range(count)]
        self._lock = threading.Lock()

    def take(self) -> memoryview | None:
        """A buffer to write to, whatever it holds; None when all are in use: then the file is written directly."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, buffer: memoryview) -> None:
        """Return a buffer that `take` gave."""
        with self._lock:
            self._free.append(buffer)

    @property
    def free(self) -> int:
        """Buffers that nobody uses."""
        return len(self._free)

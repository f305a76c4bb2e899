"""`@store/accesslog`: a line for each request, written only while the file is open.

    2026-11-24T01:02:03.456Z 0 0 4711 write orders/0/append - 12 OK 0.000021
    time uid gid pid operation path position size result seconds

Each open file has lines of its own, up to BUFFER_BYTES of them. Lines that a slow reader leaves no room for are dropped
and counted in a line that begins with `#`. A read returns the lines that wait. The adapter
(`fsstore/fuse/request_log.py`) writes the lines, and lets a reader wait for more.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from fsstore.interface import UNCACHED, Attributes, Opened
from fsstore.tree.memory_budget import Holding, Purpose
from fsstore.tree.nodes import Context, Node, OpenFile

BUFFER_BYTES = 1 << 20
"""Bytes of lines that wait for a reader."""


class AccessLog:
    """The readers of the log. Thread safety: `add` from any thread, all else on the core's."""

    def __init__(self) -> None:
        self._readers: tuple[AccessLogHandle, ...] = ()
        self.on_change: Callable[[], None] = lambda: None
        """Called when `is_read` may have changed."""

    @property
    def is_read(self) -> bool:
        """Whether the file is open."""
        return bool(self._readers)

    def add(self, line: bytes) -> None:
        for reader in self._readers:
            reader.add(line)

    def opened(self, reader: AccessLogHandle) -> None:
        self._readers = (*self._readers, reader)
        self.on_change()

    def released(self, reader: AccessLogHandle) -> None:
        self._readers = tuple(other for other in self._readers if other is not reader)
        self.on_change()


class AccessLogFile(Node):
    """The log's file, which only its owner may read."""

    def __init__(self, context: Context, log: AccessLog) -> None:
        self._context = context
        self._log = log

    def attributes(self) -> Attributes:
        return self._context.attribute_factory.access_log(self.inode)

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise self._context.refusal()
        memory = Holding(self._context.memory, Purpose.REPORTS)
        memory.resize(BUFFER_BYTES)
        return AccessLogHandle(self._log, memory), UNCACHED


class AccessLogHandle(OpenFile):
    """A reader of the log. Thread safety: `add` from any thread."""

    __slots__ = ("_dropped", "_lines", "_lock", "_log", "_memory", "_size")

    def __init__(self, log: AccessLog, memory: Holding) -> None:
        self._log = log
        self._memory = memory
        self._lock = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        log.opened(self)

    def add(self, line: bytes) -> None:
        """Add a line if there is room."""
        with self._lock:
            if self._size + len(line) > BUFFER_BYTES:
                self._dropped += 1
                return
            self._tell_dropped()
            self._append(line)

    def read(self, position: int, size: int) -> bytes:
        """Lines since the last read, at any position; empty: there are none."""
        taken: list[bytes] = []
        with self._lock:
            if not self._lines:
                self._tell_dropped()
            while self._lines and size:
                line = self._lines.popleft()
                if len(line) > size:
                    self._lines.appendleft(line[size:])
                    line = line[:size]
                taken.append(line)
                size -= len(line)
                self._size -= len(line)
        return b"".join(taken)

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._append(b"# %d lines were dropped: their reader is too slow\n" % self._dropped)
            self._dropped = 0

    def _append(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)

    def release(self) -> None:
        self._log.released(self)
        self._memory.resize(0)

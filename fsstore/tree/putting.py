"""Puts that take long are done in a thread: how long one takes is told by its bytes and lines, before it is begun.

What is estimated is the time of the request loop's thread: some 5 ms at most for what is put at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext

import numpy as np

from engine import Stored, StoreError, uncollected
from fsstore.interface import Kind, SlowWork
from fsstore.tree.memory import Holding, MemoryBudget, Purpose

LONG_BYTES = 5 << 18
LONG_LINES = 12_000
"""1 MiB of lines of 100 bytes, as a program with a buffer writes them, is no more."""
LONG_JSON_BYTES = 1 << 16
LONG_JSON_LINES = 256
_NEWLINE = ord("\n")


def takes_long(size: int, request: bytes, *, is_json: bool) -> bool:
    """Whether `size` bytes take long to publish, which end in `request`."""
    if size > (LONG_JSON_BYTES if is_json else LONG_BYTES):
        return True
    most_lines = LONG_JSON_LINES if is_json else LONG_LINES
    return len(request) > most_lines and _lines_in(request) > most_lines


def _lines_in(text: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == _NEWLINE))  # `count` takes up to five times as long


class LongPuts:
    """Whether one is under way in this mount: it may have the log's lock, for which the request loop never waits.
    Thread safety: one thread at a time is `under_way`; any thread may ask."""

    def __init__(self) -> None:
        self.is_under_way = False

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Meanwhile."""
        self.is_under_way = True
        try:
            with uncollected():
                yield
        finally:
            self.is_under_way = False


class Put:
    """A handle's put: done at once, or in a thread while no other request for that handle is taken."""

    __slots__ = ("_done", "_long_puts", "_memory")

    def __init__(self, long_puts: LongPuts, memory: MemoryBudget) -> None:
        self._long_puts = long_puts
        self._memory = Holding(memory, Purpose.PUBLISHING)
        self._done: Future[int] | None = None

    def do(
        self, put: Callable[[Stored | None], int], request_bytes: int, stored: Stored | None, *, is_long: bool
    ) -> int:
        """What `put` returns or raises; it gets `stored` where it is done at once. SlowWork: the same request asks
        again, and nothing changes meanwhile. ENOBUFS: there is no memory to have a request of that size wait."""
        if self._done is not None:
            done, self._done = self._done, None
            self._memory.resize(0)
            try:
                return done.result()
            finally:
                del done  # else it and its error would hold each other, and all that was put
        if not is_long and not self._long_puts.is_under_way:
            return put(stored)
        self._memory.resize(2 * request_bytes)  # the loop has a copy, too
        raise SlowWork(lambda: self._do(put, is_long), Kind.PUBLISHING if is_long else Kind.PUBLISHING_LITTLE)

    def _do(self, put: Callable[[Stored | None], int], is_long: bool) -> None:
        self._done = Future()
        try:
            with self._long_puts.under_way() if is_long else nullcontext():
                self._done.set_result(put(None))
        except StoreError as error:
            error.__cause__ = error.__context__ = None
            self._done.set_exception(error.with_traceback(None))  # all that was put is freed here, not on the loop
        except Exception as error:
            self._done.set_exception(error)

    def release(self) -> None:
        """The handle is closed."""
        self._memory.resize(0)

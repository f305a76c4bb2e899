"""Deadlines: a thread limits its time, and slow work raises WouldBlock instead of being done later.

A nonblocking thread has no time at all. A thread with a deadline does one piece of slow work in any case, and more
until the deadline. Each piece keeps its results, so the next call continues from there.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType


def _call_again() -> None:
    raise RuntimeError("this call takes long: another thread has to make it")


class WouldBlock(Exception):
    """Not done: it takes long, and this thread must not block. No StoreError: nothing is wrong."""

    def __init__(self, work: Callable[[], object] = _call_again) -> None:
        super().__init__("it takes long")
        self.work = work
        """Does what takes long, in another thread: then this one makes its call again. Without work another thread has
        to make the call."""


class _State(threading.local):
    deadline: Deadline | None = None


_state = _State()


class Deadline:
    """`with nonblocking():` or `with within(seconds):`, of this thread."""

    __slots__ = ("_outer", "_until_s")

    def __init__(self, until_s: float | None) -> None:
        """`until_s` is of time.monotonic; None: there is no time for anything that takes long."""
        self._until_s = until_s
        self._outer: Deadline | None = None

    def __enter__(self) -> None:
        self._outer, _state.deadline = _state.deadline, self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _state.deadline = self._outer

    def check(self) -> None:
        """As `check_deadline`."""
        if self._until_s is None or self._until_s < 0:
            raise WouldBlock
        if time.monotonic() >= self._until_s:
            self._until_s = -1.0  # this one is still done


def nonblocking() -> Deadline:
    """Meanwhile this thread does nothing that takes long: WouldBlock."""
    return Deadline(None)


def within(seconds: float) -> Deadline:
    """Meanwhile this thread does one thing that takes long, and more until `seconds` are over: WouldBlock then."""
    return Deadline(time.monotonic() + seconds)


def check_deadline() -> None:
    """To be called before each thing that takes long. WouldBlock where this thread has no time for it."""
    if _state.deadline is not None:
        _state.deadline.check()


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the search for garbage in cycles: where a hundred thousand objects are made that stay, it would go
    through them again and again, and keep all threads meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

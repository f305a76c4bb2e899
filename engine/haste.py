"""Haste: a thread that must not be kept waiting says so, and what would take long raises instead of being done.

A thread that has a slice of time says that: it does one thing that takes long, then others until its time is over. What
it found out is remembered by whoever did it, so asking again goes on from there.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


class TakesLongError(Exception):
    """Not done: it takes long, and this thread is in haste. No StoreError: nothing is wrong."""


class _State(threading.local):
    haste: Haste | None = None


_state = _State()


class Haste:
    """`with in_haste():` on this thread, what takes long raises TakesLongError: decompressing, or to wait for it."""

    __slots__ = ("_before", "_until_s")

    def __init__(self, until_s: float | None) -> None:
        """Until `until_s` (of time.monotonic), and for one thing in any case, there is time; None: for nothing."""
        self._until_s = until_s
        self._before: Haste | None = None

    def __enter__(self) -> None:
        self._before, _state.haste = _state.haste, self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _state.haste = self._before

    def require_time(self) -> None:
        """As the function."""
        if self._until_s is None or self._until_s < 0:
            raise TakesLongError
        if time.monotonic() >= self._until_s:
            self._until_s = -1.0  # this one is still done


def in_haste(seconds: float | None = None) -> Haste:
    """See `Haste`; with `seconds`, there is time for something that takes long, and for more until they are over."""
    return Haste(None if seconds is None else time.monotonic() + seconds)


def require_time() -> None:
    """TakesLongError on a thread in haste."""
    if _state.haste is not None:
        _state.haste.require_time()


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

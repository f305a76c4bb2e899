"""Haste: a thread that must not be kept waiting says so, and what would take long raises instead of being done."""

from __future__ import annotations

import threading
from types import TracebackType


class TakesLongError(Exception):
    """Not done: it takes long, and this thread is in haste. No StoreError: nothing is wrong."""


class _State(threading.local):
    depth = 0


_state = _State()


class Haste:
    """`with in_haste():` on this thread, what takes long raises TakesLongError: decompressing, or to wait for it."""

    __slots__ = ()

    def __enter__(self) -> None:
        _state.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _state.depth -= 1


_HASTE = Haste()


def in_haste() -> Haste:
    """See `Haste`."""
    return _HASTE


def require_time() -> None:
    """TakesLongError on a thread in haste."""
    if _state.depth:
        raise TakesLongError

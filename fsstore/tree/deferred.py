"""Deferred calls: what need not block is done at once, the rest in a thread; then the same request calls again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakSet

from engine import WouldBlock, nonblocking
from fsstore.interface import Kind, SlowWork

T = TypeVar("T")


def deferred(call: Callable[[], T], work: Callable[[], object] | None = None, kind: Kind = Kind.ANY) -> T:
    """What `call` returned, if it need not block. SlowWork otherwise, with `work`, or `call` itself where what it finds
    is kept; then the same request calls again."""
    try:
        with nonblocking():
            return call()
    except WouldBlock:
        raise SlowWork(work or call, kind) from None


class DoneInThread(Generic[T]):
    """What takes long, done in a thread once for each request that asks for it: known by what it is about."""

    def __init__(self, kind: Kind = Kind.ANY) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._done: WeakSet[_Done[T]] = WeakSet()

    def do(self, what: Hashable, work: Callable[[], T]) -> T:
        """What `work` returned, done for this request. SlowWork at the first try."""
        with self._lock:
            done = next((one for one in self._done if one.what == what), None)
            if done is not None:
                self._done.remove(done)
                return done.result
        begun = _Done[T](what)  # goes with the request, should that be answered in another way

        def note() -> None:
            begun.result = work()
            with self._lock:
                self._done.add(begun)

        raise SlowWork(note, self._kind)


class _Done(Generic[T]):
    """Work that was done for a request."""

    result: T

    def __init__(self, what: Hashable) -> None:
        self.what = what

"""Deferred calls: what need not block is done at once, the rest in a thread; then the same request calls again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakSet

from engine import WouldBlock, nonblocking
from fsstore.interface import SlowWork, WorkKind

T = TypeVar("T")


def deferred(call: Callable[[], T], work: Callable[[], object] | None = None, kind: WorkKind = WorkKind.ANY) -> T:
    """Return the result of `call`, if it does not block. Otherwise raise SlowWork: a thread runs `work`, and the same
    request calls again. Without `work` the thread runs `call`, which has to keep its result for that."""
    try:
        with nonblocking():
            return call()
    except WouldBlock:
        raise SlowWork(work or call, kind) from None


class DoneInThread(Generic[T]):
    """Runs slow work in a thread, once for each request. A request finds its result again by a key."""

    def __init__(self, kind: WorkKind = WorkKind.ANY) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._done: WeakSet[_Done[T]] = WeakSet()

    def do(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the result of `work`, found by `key`, that a thread did for this request. First raise SlowWork."""
        with self._lock:
            done = next((done for done in self._done if done.key == key), None)
            if done is not None:
                self._done.remove(done)
                return done.result
        begun = _Done[T](key)  # freed with the request if that is never repeated

        def note() -> None:
            begun.result = work()
            with self._lock:
                self._done.add(begun)

        raise SlowWork(note, self._kind)


class _Done(Generic[T]):
    """Work that was done for a request."""

    result: T

    def __init__(self, key: Hashable) -> None:
        self.key = key

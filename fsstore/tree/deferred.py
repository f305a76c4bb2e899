"""Deferred calls: a call that need not block is done at once, any other in a thread; then the same request calls again.

The result of the thread is the request's alone: it is dropped with the request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from engine import StoreError, WouldBlock, nonblocking
from fsstore.interface import SlowWork, WorkKind

T = TypeVar("T")

_done: WeakKeyDictionary[Future[Any], Hashable] = WeakKeyDictionary()
"""Results of threads with their keys, until their requests call again."""
_lock = threading.Lock()


def deferred(call: Callable[[], T], key: Hashable, kind: WorkKind = WorkKind.ANY) -> T:
    """The result of a call to the engine without effects: made now, if that need not block; else as `in_thread`."""
    try:
        with nonblocking():
            return call()
    except WouldBlock:
        pass
    return in_thread(call, key, kind)


def in_thread(call: Callable[[], T], key: Hashable, kind: WorkKind = WorkKind.ANY) -> T:
    """The result, or the error, of a call that a thread has made for this request. SlowWork at first: the same request
    finds the result by `key`, which has to name the call."""
    with _lock:
        done = next((done for done, its_key in _done.items() if its_key == key), None)
        if done is None:
            raise SlowWork(_noting(call, key), kind)
        del _done[done]
    try:
        result: T = done.result()
    finally:
        del done  # else it and its error would hold each other
    return result


def _noting(call: Callable[[], T], key: Hashable) -> Callable[[], None]:
    """Work that makes the call and notes its result."""
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except StoreError as error:
            error.__cause__ = error.__context__ = None
            done.set_exception(error.with_traceback(None))  # frees here what the call had, not on the loop's thread
        except Exception as error:
            done.set_exception(error)
        with _lock:
            _done[done] = key

    return work

"""Work that is done in a thread for a request: that request gets it, and no other one ever does."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest

from engine import IllegalTopicError, check_deadline
from fsstore.interface import SlowWork, WorkKind
from fsstore.tree.deferred import deferred, in_thread


class Result:
    """A result that takes long."""


def asked(key: str, call: Callable[[], object] = Result) -> SlowWork:
    with pytest.raises(SlowWork) as raised:
        in_thread(call, key)
    slow = raised.value.with_traceback(None)
    del raised  # it holds this frame
    return slow


def test_who_asks_again_gets_what_was_done_for_it_once() -> None:
    first, second, other = asked("one"), asked("one"), asked("other")
    for slow in (first, second, other):
        slow.work()
    results = {id(in_thread(Result, key)) for key in ("one", "other", "one")}
    assert len(results) == 3
    asked("one")


def test_what_was_done_for_a_request_goes_with_it() -> None:
    """It may be answered in another way by then, as when its message was looked up for somebody else meanwhile."""
    results = []

    def call() -> Result:
        result = Result()
        results.append(weakref.ref(result))
        return result

    slow = asked("key", call)
    slow.work()
    assert results[0]() is not None
    del slow
    assert results[0]() is None
    asked("key")


def test_the_error_of_a_call_is_raised_for_its_request_once() -> None:
    def call() -> None:
        raise IllegalTopicError("a b", "blank")

    slow = asked("key", call)
    slow.work()
    with pytest.raises(IllegalTopicError, match="blank"):
        in_thread(call, "key")
    asked("key")


def test_a_call_is_made_at_once_unless_it_would_block() -> None:
    assert deferred(lambda: 1, "key") == 1

    def long() -> int:
        check_deadline()
        return 2

    with pytest.raises(SlowWork) as raised:
        deferred(long, "key", WorkKind.KEYS)
    assert raised.value.kind is WorkKind.KEYS
    raised.value.work()
    assert deferred(long, "key") == 2

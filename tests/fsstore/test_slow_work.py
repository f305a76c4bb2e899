"""Work that is done in a thread for a request: that request gets it, and no other one ever does."""

from __future__ import annotations

import weakref

import pytest

from fsstore.interface import SlowWork
from fsstore.tree.deferred import DoneInThread


class Result:
    """What takes long to make."""


def asked(made: DoneInThread[Result], what: str) -> SlowWork:
    with pytest.raises(SlowWork) as raised:
        made.do(what, Result)
    return raised.value.with_traceback(None)


def test_who_asks_again_gets_what_was_done_for_it_once() -> None:
    made = DoneInThread[Result]()
    first, second, other = asked(made, "one"), asked(made, "one"), asked(made, "other")
    for slow in (first, second, other):
        slow.work()
    results = {id(made.do(what, Result)) for what in ("one", "other", "one")}
    assert len(results) == 3
    asked(made, "one")


def test_what_was_done_for_a_request_goes_with_it() -> None:
    """It may be answered in another way by then, as when its message was looked up for somebody else meanwhile."""
    made = DoneInThread[Result]()
    results = []

    def work() -> Result:
        result = Result()
        results.append(weakref.ref(result))
        return result

    with pytest.raises(SlowWork) as raised:
        made.do("key", work)
    slow = raised.value.with_traceback(None)
    del raised
    slow.work()
    assert results[0]() is not None
    del slow
    assert results[0]() is None
    asked(made, "key")

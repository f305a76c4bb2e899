"""What takes long to publish is published in a thread, as it would be at once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from engine import IllegalMessageError, MessageStore, MessageTooLargeError, Queue, StoreFullError
from fsstore.interface import AT_END, NOTHING_TO_WAIT_FOR, SlowWork, WorkKind
from fsstore.tree import publishing
from fsstore.tree.limited_log import RateLimitedLog
from fsstore.tree.memory_budget import Purpose
from tests.engine.storetools import bodies
from tests.fsstore.conftest import Mount, disk_of, patiently, refused_with


@pytest.fixture(autouse=True)
def topic(store: MessageStore) -> None:
    store.create_topic("orders")


SHORT_LINES = b"a\n" * 20_000
LONG_JSON = b'{"body": "' + b"\\n" * 100_000 + b'"}\n'
LONG = {
    "append": SHORT_LINES,
    "append@format=json": b'{"body": "a"}\n' * 300,
    "append@format=json,tags=x": LONG_JSON,
    "append@frame=write,format=json": LONG_JSON,
}


def opened(mount: Mount, name: str = "append") -> int:
    return mount.open(f"orders/0/{name}", os.O_WRONLY | os.O_APPEND).handle


def slow(request: Callable[[], object]) -> SlowWork:
    with pytest.raises(SlowWork) as raised:
        request()
    return raised.value


@pytest.mark.parametrize("name", LONG)
def test_a_request_that_takes_long_is_published_in_a_thread_and_then_answered(
    mount: Mount, store: MessageStore, name: str
) -> None:
    request, handle = LONG[name], opened(mount, name)

    def write() -> int:
        return mount.fs.write(handle, AT_END, request)

    work = slow(write)
    assert (work.kind, work.is_in_turn) == (WorkKind.PUBLISHING, True)
    assert mount.fs.memory.used[Purpose.PUBLISHING] == 2 * len(request)
    assert bodies(store, "orders", 0) == []
    work.work()
    assert write() == NOTHING_TO_WAIT_FOR
    assert mount.fs.memory.used[Purpose.PUBLISHING] == 0
    assert len(bodies(store, "orders", 0)) == request.count(b"\n")
    assert slow(write).kind is WorkKind.PUBLISHING  # the next request is another one


@pytest.mark.parametrize(
    ("name", "bad", "error"),
    [
        ("append@format=json", LONG_JSON + b"{}\n", IllegalMessageError),
        ("append@format=json", b'{"body": "' + b"x" * (5 << 20) + b'"}\n', MessageTooLargeError),
        ("append@frame=write,format=json", b"[]" + b" " * 100_000, IllegalMessageError),
    ],
)
def test_what_is_refused_in_a_thread_is_refused_as_at_once(
    mount: Mount, store: MessageStore, name: str, bad: bytes, error: type[Exception]
) -> None:
    handle = opened(mount, name)
    with pytest.raises(error):
        patiently(mount.fs.write, handle, AT_END, bad)
    assert bodies(store, "orders", 0) == []
    if error is MessageTooLargeError:
        assert refused_with(lambda: mount.fs.write(handle, AT_END, b"x")) == errno.EFBIG
    else:
        mount.fs.write(handle, AT_END, b'{"body": "next"}\n')
        assert bodies(store, "orders", 0) == [b"next"]


def test_a_long_request_that_fails_takes_nothing_and_can_be_sent_again(mount: Mount, store: MessageStore) -> None:
    handle = opened(mount)
    mount.fs.write(handle, AT_END, b"begun ")
    disk_of(store).is_full = True
    with pytest.raises(StoreFullError):
        patiently(mount.fs.write, handle, AT_END, SHORT_LINES + b"rest")
    assert mount.fs.memory.used[Purpose.MESSAGES_BEGUN] == len(b"begun ")
    disk_of(store).is_full = False
    patiently(mount.fs.write, handle, AT_END, SHORT_LINES + b"rest")
    mount.fs.flush(handle)
    assert bodies(store, "orders", 0) == [b"begun a", *[b"a"] * 19_999, b"rest"]


@pytest.mark.parametrize("name", ["append@format=json", "append@format=json,frame=file"])
@pytest.mark.parametrize("end", ["flush", "release"])
def test_a_long_rest_is_published_in_a_thread_at_the_end(
    mount: Mount, store: MessageStore, name: str, end: str
) -> None:
    handle = opened(mount, name)
    mount.fs.write(handle, AT_END, LONG_JSON[:-1], 1)
    ending = (lambda: mount.fs.flush(handle, 1)) if end == "flush" else (lambda: mount.fs.handles.release(handle))
    slow(ending).work()
    ending()
    assert bodies(store, "orders", 0) == [b"\n" * 100_000]
    assert mount.fs.memory.used[Purpose.MESSAGES_BEGUN] == 0


def test_nothing_that_was_published_is_refused_for_want_of_memory_afterwards(mount: Mount, store: MessageStore) -> None:
    mount.fs.memory.limit_bytes = 1 << 20
    handle, hog = opened(mount), opened(mount)
    request = SHORT_LINES + b"y" * 200_000
    work = slow(lambda: mount.fs.write(handle, AT_END, request))
    work.work()
    assert refused_with(lambda: mount.fs.write(hog, AT_END, b"x" * 400_000)) == errno.ENOBUFS
    mount.fs.write(handle, AT_END, request)
    mount.fs.flush(handle)
    assert len(bodies(store, "orders", 0)) == 20_001


def test_who_publishes_is_not_refused_for_what_others_have_begun_but_for_what_they_publish(mount: Mount) -> None:
    mount.fs.memory.limit_bytes = 8 * len(SHORT_LINES)
    handles = [opened(mount) for _ in range(5)]
    mount.fs.write(handles[0], AT_END, b"x" * 4 * len(SHORT_LINES))
    slow(lambda: mount.fs.write(handles[1], AT_END, SHORT_LINES))
    assert refused_with(lambda: mount.fs.write(handles[2], AT_END, SHORT_LINES)) == errno.ENOBUFS
    mount.fs.handles.release(handles[1])
    slow(lambda: mount.fs.write(handles[2], AT_END, SHORT_LINES))


def test_nobody_waits_on_the_loop_for_the_log_while_a_long_put_may_have_it(
    mount: Mount, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, other = opened(mount), opened(mount)
    work = slow(lambda: mount.fs.write(handle, AT_END, SHORT_LINES))

    def meanwhile() -> object:
        little = slow(lambda: mount.fs.write(other, AT_END, b"short\n"))
        assert (little.kind, little.is_in_turn) == (WorkKind.PUBLISHING_LITTLE, True)
        little.work()
        return mount.fs.write(other, AT_END, b"short\n")

    put_lines = Queue.put_lines
    monkeypatch.setattr(Queue, "put_lines", lambda *lines, **labels: meanwhile() or put_lines(*lines, **labels))
    work.work()
    mount.fs.write(handle, AT_END, SHORT_LINES)
    mount.fs.write(other, AT_END, b"at once\n")
    assert bodies(store, "orders", 0) == [b"short", *[b"a"] * 20_000, b"at once"]


@pytest.mark.parametrize(
    ("request_text", "words"),
    [
        (b'{"body": "a"}\n{"body": "b", "colour": 1}\n', "line 2 of 2: unknown field 'colour'"),
        (b'{"body": "a"}\n\n{"body": 1}\n', "line 3 of 3: body is not a string"),
        (b'{"body": "a"}\n{"body": "b", "keys": ["a b"]}\n', "message 2 of 2: keys are"),
        (b'{"body": "b"\n', "append of orders/0: illegal message: not JSON: Expecting ',' delimiter"),
    ],
)
def test_why_lines_are_refused_is_in_the_log(
    mount: Mount,
    request_text: bytes,
    words: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "LIMITED_LOG", RateLimitedLog())
    assert (
        refused_with(lambda: mount.fs.write(opened(mount, "append@format=json"), AT_END, request_text)) == errno.EINVAL
    )
    assert words in caplog.text

"""`<queue>.log`: one growing text, whose inode stands for the first message."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Message, MessageStore
from fsstore.interface import FilesystemError, SlowWork, WorkKind
from tests.fsstore.conftest import FIRST_STORE_TIME_MS, Mount, clock_of, expire, forget_sums, one_a_file, refused_with
from tests.fsstore.test_framing import fresh


@given(st.lists(st.binary(max_size=6), max_size=12), st.integers(1, 9))
def test_the_stream_is_each_body_and_a_newline_in_any_request_size(
    shared: MessageStore, bodies: list[bytes], request_bytes: int
) -> None:
    mount = fresh(shared)
    for body in bodies:
        shared.put(Message("orders", body), 0)
    text = b"".join(body + b"\n" for body in bodies)
    assert mount.cat("orders/0.log", request_bytes) == text
    assert mount.stat("orders/0.log").size == len(text)


def test_the_time_of_an_open_text_of_a_topic_goes_with_its_size(mount: Mount, store: MessageStore) -> None:
    """A size with an older time is two changes for `tail -f` of several files: it prints an empty header."""
    store.put(Message("orders", b"one"), 0)
    shown = mount.stat("orders.log")
    handle = mount.open("orders.log").handle
    assert bytes(mount.fs.read(handle, 0, 100)) == b"one\n"
    for number in (1, 2):
        clock_of(store).now_ms += 1000
        store.put(Message("orders", b"two"), number)
        told = mount.fs.getattr(shown.inode)
        time_ms = FIRST_STORE_TIME_MS + number * 1000
        assert (told.size, told.mtime_ns) == (4 + number * 4, time_ms * 1_000_000)


def test_the_stream_grows_and_keeps_its_inode(mount: Mount, store: MessageStore) -> None:
    store.put(Message("orders", b"one"), 0)
    before = mount.stat("orders/0.log")
    handle = mount.open("orders/0.log").handle
    clock_of(store).now_ms += 1000
    store.put(Message("orders", b"two"), 0)
    after = mount.stat("orders/0.log")
    assert (after.inode, after.size) == (before.inode, 8)
    assert after.mtime_ns == (FIRST_STORE_TIME_MS + 1000) * 1_000_000
    assert bytes(mount.fs.read(handle, 4, 100)) == b"two\n"


def test_growth_is_told_once_for_each_time_attributes_were_answered(mount: Mount, store: MessageStore) -> None:
    store.put(Message("orders", b"one"), 0)
    assert mount.fs.streams.grown("orders", 0) == []
    inode = mount.stat("orders/0.log").inode
    assert mount.fs.streams.grown("orders", 1) == []
    assert mount.fs.streams.grown("orders", 0) == [inode]
    assert mount.fs.streams.grown("orders", 0) == []
    mount.fs.getattr(inode)
    assert mount.fs.streams.grown("orders", 0) == [inode]


@one_a_file
def test_after_retention_a_new_lookup_begins_at_the_new_first_message(mount: Mount, store: MessageStore) -> None:
    for body in (b"old", b"kept"):
        store.put(Message("orders", body), 0)
    old = mount.stat("orders/0.log")
    handle = mount.fs.open(old.inode, os.O_RDONLY).handle
    expire(store, "orders", 0, 1)
    new = mount.stat("orders/0.log")
    assert new.inode != old.inode
    assert mount.cat("orders/0.log") == b"kept\n"
    assert bytes(mount.fs.read(handle, 4, 100)) == b"kept\n"
    with pytest.raises(FilesystemError) as refused:
        mount.fs.read(handle, 0, 100)
    assert refused.value.errno == errno.EIO


@pytest.mark.parametrize("path", ["orders/9.log", "orders/00.log", "orders/.log", "orders/x.log"])
def test_a_stream_of_no_queue_is_not_found(mount: Mount, store: MessageStore, path: str) -> None:
    store.create_topic("orders")
    assert refused_with(lambda: mount.stat(path)) == errno.ENOENT


def test_a_long_sum_asks_for_a_thread_and_is_answered_afterwards(
    mount: Mount, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(Message("orders", b"one"), 0)
    topic, handle = mount.stat("orders").inode, mount.open("orders/0.log").handle
    uses: list[Callable[[], int]] = [
        lambda: mount.fs.lookup(topic, b"0.log").size,
        lambda: len(mount.fs.read(handle, 0, 100)),
    ]
    for use in uses:
        forget_sums(store, monkeypatch)
        with pytest.raises(SlowWork) as asked:
            use()
        assert asked.value.kind is WorkKind.ANY, "which no other queue's messages keep waiting"
        asked.value.work()
        assert use() == 4


def test_a_stream_is_never_opened_for_writing(mount: Mount, store: MessageStore) -> None:
    store.create_topic("orders")
    assert refused_with(lambda: mount.open("orders/0.log", os.O_WRONLY)) == errno.EPERM

"""What the kernel must ask again about."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from engine import Message, MessageStore
from fsstore.interface import ROOT_INODE, FilesystemError
from tests.fsstore.conftest import Mount, expire, one_a_file, patiently


@one_a_file
def test_the_inodes_of_expired_messages_are_told(mount: Mount, store: MessageStore) -> None:
    for _ in range(20):
        store.put(Message("orders", b""), 0)
    inodes = [mount.stat(f"orders/0/{offset}").inode for offset in range(20)]
    assert list(mount.fs.expired(expire(store, "orders", 0, 12))) == inodes[:12]


@one_a_file
def test_where_not_all_that_expired_is_known_the_queues_directory_is_stale(mount: Mount, store: MessageStore) -> None:
    for _ in range(20):
        store.put(Message("orders", b""), 0)
    directory, known = mount.stat("orders/0").inode, mount.stat("orders/0/11").inode
    expired = expire(store, "orders", 0, 12)
    told = mount.fs.expired(replace(expired, physical_offsets=expired.physical_offsets[10:]))
    assert {directory, known} <= set(told)
    with pytest.raises(FilesystemError) as refused:
        mount.fs.getattr(directory)
    assert refused.value.errno == errno.ESTALE
    assert mount.stat("orders/0").inode != directory


def test_a_queue_that_was_made_anew_is_told_with_all_that_was_in_it(mount: Mount, store: MessageStore) -> None:
    paths = ("orders/0", "orders/0.log", "@parquet/topic=orders/queue=0")
    for queue in (0, 1):
        store.put(Message("orders", b"old"), queue)
    others = [mount.stat(path.replace("0", "1")).inode for path in paths]
    before = {path: mount.stat(path).inode for path in paths}
    assert sorted(mount.fs.queue_gone("orders", 0)) == sorted(before.values())
    for path, inode in before.items():
        assert mount.stat(path).inode != inode
    assert [mount.stat(path.replace("0", "1")).inode for path in paths] == others


@one_a_file
def test_nothing_is_told_of_a_queue_that_the_kernel_does_not_know(mount: Mount, store: MessageStore) -> None:
    store.put(Message("orders", b""), 0)
    mount.stat("orders")
    assert list(mount.fs.expired(expire(store, "orders", 0, 1))) == []


@one_a_file
def test_a_stream_is_looked_up_each_time_for_its_first_message_may_have_gone(mount: Mount, store: MessageStore) -> None:
    for _ in range(3):
        store.put(Message("orders", b""), 0)
    before = mount.stat("orders/0.log")
    assert before.entry_timeout == 0
    expire(store, "orders", 0, 1)
    assert mount.stat("orders/0.log").inode != before.inode


def test_a_topic_that_went_is_told_once_is_stale_and_its_inodes_are_not_used_again(
    mount: Mount, store: MessageStore
) -> None:
    store.put(Message("orders", b"old"), 0)
    before = {path: mount.stat(path).inode for path in ("orders", "orders/0", "orders/0.log", "orders/keys")}
    store.delete_topic("orders")
    assert sorted(mount.fs.topics_changed()) == sorted(before.values())
    assert mount.fs.topics_changed() == []
    for inode in before.values():
        for use in (mount.fs.getattr, lambda inode: mount.fs.lookup(inode, b"0")):
            with pytest.raises(FilesystemError) as refused:
                use(inode)
            assert refused.value.errno == errno.ESTALE
    store.put(Message("orders", b"new"), 0)
    for path, inode in before.items():
        assert mount.stat(path).inode != inode


def test_topics_that_came_are_not_named_and_no_other_is_asked(
    mount: Mount, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        for call in ("topics", "queues_by_topic"):
            patched.setattr(store, call, None)
        for make in (
            lambda: store.create_topic("orders"),
            lambda: store.create_topics({"bills": 1, "letters": 2}),
            lambda: store.grow_topic("orders", 7),
            lambda: store.put(Message("made", b"by a message")),
            lambda: patiently(mount.fs.mkdir, ROOT_INODE, b"by-mkdir"),
            lambda: patiently(mount.fs.mkdir, mount.stat("by-mkdir").inode, b"7"),
        ):
            make()
            assert mount.fs.topics_changed() == []
        for path in ("orders/6", "bills/append", "letters.log", "made/0.log", "by-mkdir/7"):
            assert mount.stat(path)


def test_a_forgotten_directory_is_found_again(mount: Mount, store: MessageStore) -> None:
    store.create_topic("orders")
    inode = mount.stat("orders").inode
    mount.stat("orders")
    mount.fs.forget(inode, 1)
    assert mount.fs.getattr(inode).inode == inode
    mount.fs.forget(inode, 1)
    assert mount.stat("orders").inode != inode


def test_a_listed_name_counts_as_one_lookup(mount: Mount, store: MessageStore) -> None:
    store.create_topic("orders")
    handle = mount.fs.opendir(ROOT_INODE).handle
    batch = mount.fs.readdir(handle, 0, 10)
    assert isinstance(batch, list)
    inode = batch[1].attributes.inode
    mount.fs.listed(inode)
    mount.fs.listed(inode)
    mount.fs.forget(inode, 1)
    assert mount.fs.getattr(inode)


def test_the_root_is_never_forgotten(mount: Mount) -> None:
    mount.fs.forget(ROOT_INODE, 1_000)
    assert mount.fs.getattr(ROOT_INODE).inode == ROOT_INODE

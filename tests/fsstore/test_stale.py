"""Names that the kernel must forget."""

from __future__ import annotations

from engine import Message
from fsstore.interface import ROOT_INODE, CachedName
from fsstore.names import offset_name
from tests.fsstore.conftest import Mount
from tests.fsstore.fakestore import FakeStore


def test_expired_messages_are_named_with_their_stream(mount: Mount, store: FakeStore) -> None:
    for _ in range(5000):
        store.put(Message("orders", b""), 0)
    topic, queue = mount.stat("orders").inode, mount.stat("orders/0").inode
    names = list(mount.fs.expired("orders", 0, 10, 4500))
    assert names[0] == CachedName(topic, b"0.log")
    assert names[1:] == [CachedName(queue, offset_name(offset)) for offset in range(10, 4500)]


def test_nothing_is_named_below_directories_that_the_kernel_does_not_know(mount: Mount, store: FakeStore) -> None:
    store.put(Message("orders", b""), 0)
    assert list(mount.fs.expired("orders", 0, 0, 1)) == []
    topic = mount.stat("orders").inode
    assert list(mount.fs.expired("orders", 0, 0, 1)) == [CachedName(topic, b"0.log")]


def test_a_topic_that_went_is_named_once_and_its_inodes_are_not_used_again(mount: Mount, store: FakeStore) -> None:
    store.put(Message("orders", b"old"), 0)
    before = {path: mount.stat(path).inode for path in ("orders", "orders/0", "orders/0.log", "orders/keys")}
    store.delete_topic("orders")
    assert mount.fs.topics_changed() == [CachedName(ROOT_INODE, b"orders")]
    assert mount.fs.topics_changed() == []
    store.put(Message("orders", b"new"), 0)
    for path, inode in before.items():
        assert mount.stat(path).inode != inode


def test_topics_that_came_are_not_named(mount: Mount, store: FakeStore) -> None:
    store.create_topic("orders")
    assert mount.fs.topics_changed() == []
    assert mount.stat("orders")


def test_a_forgotten_directory_is_found_again(mount: Mount, store: FakeStore) -> None:
    store.create_topic("orders")
    inode = mount.stat("orders").inode
    mount.stat("orders")
    mount.fs.forget(inode, 1)
    assert mount.fs.getattr(inode).inode == inode
    mount.fs.forget(inode, 1)
    assert mount.stat("orders").inode != inode


def test_a_listed_name_counts_as_one_lookup(mount: Mount, store: FakeStore) -> None:
    store.create_topic("orders")
    handle = mount.fs.opendir(ROOT_INODE)
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

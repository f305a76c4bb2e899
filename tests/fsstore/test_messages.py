"""Message files: found by offset, stat, open, read, attributes, retention."""

from __future__ import annotations

import errno
import os
import stat
import time

import pytest

from engine import DamagedRecordError, ExpiredMessageError, Message, MessageNotFoundError, MessageStore
from fsstore.fuse.errors import errno_of
from fsstore.interface import SMALL_BODY_BYTES, FilesystemError
from fsstore.tree.inodes import MESSAGE
from fsstore.tree.messages import OBJECT_BYTES, SmallBodies, SmallBody
from tests.fsstore.conftest import FIRST_STORE_TIME_MS, Mount, clock_of, damage, expire, one_a_file, refused_with


@pytest.fixture(autouse=True)
def three_messages(store: MessageStore) -> None:
    for body in (b"zero", b"one\nand more", b""):
        store.put(Message("orders", body), 0)
        clock_of(store).now_ms += 1000


@pytest.mark.parametrize("spelling", ["1", "01", "00000000000000000001", "0" * 200 + "1"])
def test_any_decimal_spelling_finds_the_message(mount: Mount, spelling: str) -> None:
    assert mount.cat(f"orders/0/{spelling}") == b"one\nand more"


def test_a_message_is_an_immutable_file_of_its_store_time(mount: Mount) -> None:
    attributes = mount.stat("orders/0/00000000000000000001")
    assert attributes.mode == stat.S_IFREG | 0o444
    assert attributes.size == len(b"one\nand more")
    assert attributes.mtime_ns == (FIRST_STORE_TIME_MS + 1000) * 1_000_000
    assert (attributes.uid, attributes.gid, attributes.nlink) == (1234, 5678, 1)
    assert attributes.entry_timeout == attributes.attr_timeout >= 3600
    assert mount.fs.getattr(attributes.inode) == attributes


def test_the_inode_derives_from_the_physical_offset(mount: Mount, store: MessageStore) -> None:
    assert mount.stat("orders/0/1").inode == MESSAGE | store.get("orders", 0, 1).physical_offset


def test_every_spelling_of_a_name_shows_the_same(mount: Mount) -> None:
    assert mount.stat("orders/0/1") == mount.stat("orders/0/00000000000000000001")


@pytest.mark.parametrize("name", ["3", "99999999999999999999", "9" * 250, "-1", "1.0", "x", "0x1", "¹"])
def test_an_offset_without_a_message_is_not_found_and_not_cached(mount: Mount, name: str) -> None:
    with pytest.raises((FilesystemError, MessageNotFoundError)) as raised:
        mount.stat(f"orders/0/{name}")
    assert errno_of(raised.value) == errno.ENOENT


def test_looking_up_and_opening_a_message_reads_its_record_once(mount: Mount, store: MessageStore) -> None:
    queue = mount.stat("orders/0").inode
    before = store.stats().read_messages
    inode = mount.fs.lookup(queue, b"0").inode
    handle = mount.fs.open(inode, os.O_RDONLY).handle
    mount.fs.read(handle, 0, 4096)
    mount.fs.handles.release(handle)
    assert store.stats().read_messages - before == 1


def test_a_small_body_comes_with_open_and_may_be_cached(mount: Mount) -> None:
    opened = mount.open("orders/0/1")
    assert opened.body == b"one\nand more"
    assert opened.keep_cache
    assert not opened.direct_io
    assert bytes(mount.fs.read(opened.handle, 4, 3)) == b"and"
    assert bytes(mount.fs.read(opened.handle, 4000, 3)) == b""


def test_a_large_body_is_read_from_the_page_which_is_held_until_release(mount: Mount, store: MessageStore) -> None:
    body = os.urandom(SMALL_BODY_BYTES + 1)
    with store.hold(store.put(Message("orders", body), 0).physical_offset) as our_own:
        file = our_own.file
    opened = mount.open("orders/0/3")
    assert opened.body is None
    assert file._holders == 1
    assert bytes(mount.fs.read(opened.handle, 4000, 100_000)) == body[4000:]
    assert isinstance(mount.fs.read(opened.handle, 0, 10), memoryview)
    mount.fs.handles.release(opened.handle)
    assert file._holders == 0


def test_a_damaged_record_is_an_io_error(mount: Mount, store: MessageStore) -> None:
    inode = mount.stat("orders/0/1").inode
    mount.stat("orders/0/0")
    damage(store, store.get("orders", 0, 1).physical_offset)
    for use in (lambda: mount.stat("orders/0/1"), lambda: mount.fs.open(inode, 0), lambda: mount.fs.getattr(inode)):
        with pytest.raises(DamagedRecordError) as raised:
            use()
        assert errno_of(raised.value) == errno.EIO


@one_a_file
def test_an_expired_name_is_not_found_and_its_inode_is_stale(mount: Mount, store: MessageStore) -> None:
    inode = mount.stat("orders/0/00000000000000000001").inode
    mount.fs.expired(expire(store, "orders", 0, 2))
    with pytest.raises(ExpiredMessageError) as raised:
        mount.stat("orders/0/1")
    assert errno_of(raised.value) == errno.ENOENT
    for use in (mount.fs.getattr, lambda inode: mount.fs.open(inode, os.O_RDONLY)):
        with pytest.raises(FilesystemError) as refused:
            use(inode)
        assert refused.value.errno == errno.ESTALE


@one_a_file
def test_an_open_message_stays_readable_after_it_expired(mount: Mount, store: MessageStore) -> None:
    handle = mount.open("orders/0/1").handle
    expire(store, "orders", 0, 2)
    assert bytes(mount.fs.read(handle, 0, 100)) == b"one\nand more"


def test_messages_need_no_inode_table(mount: Mount) -> None:
    inode = mount.stat("orders/0/1").inode
    mount.fs.forget(inode, 1)
    mount.fs.forget(inode, 1_000)
    assert mount.fs.getattr(inode).size == len(b"one\nand more")


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND | os.O_TRUNC])
def test_a_message_is_never_opened_for_writing(mount: Mount, flags: int) -> None:
    with pytest.raises(FilesystemError) as refused:
        mount.open("orders/0/1", flags)
    assert refused.value.errno == errno.EPERM


@one_a_file
def test_an_open_message_keeps_its_attributes_after_it_expired(mount: Mount, store: MessageStore) -> None:
    before = mount.stat("orders/0/1")
    handle = mount.fs.open(before.inode, os.O_RDONLY).handle
    assert before.inode in mount.fs.expired(expire(store, "orders", 0, 2))
    after = mount.fs.getattr(before.inode)
    assert (after.inode, after.size, after.mtime_ns) == (before.inode, before.size, before.mtime_ns)
    assert after.attr_timeout <= 1  # the kernel asks again once it is closed
    mount.fs.handles.release(handle)
    with pytest.raises(FilesystemError):
        mount.fs.getattr(before.inode)


def test_an_opened_body_is_read_once_until_something_goes(mount: Mount, store: MessageStore) -> None:
    inode = mount.stat("orders/0/0").inode
    mount.stat("orders/0/1")
    assert mount.fs.open(inode, os.O_RDONLY).body == b"zero"
    damage(store, inode & ~MESSAGE)
    again = mount.fs.open(inode, os.O_RDONLY)
    assert (again.body, mount.fs.read(again.handle, 1, 2)) == (b"zero", b"er")
    mount.fs.queue_gone("orders", 1)
    assert refused_with(lambda: mount.fs.open(inode, os.O_RDONLY)) == errno.EIO


def test_bodies_are_kept_within_their_limit() -> None:
    bodies = SmallBodies(3 * (OBJECT_BYTES + 100))
    for inode in range(10):
        bodies.add(SmallBody(b"x" * 100, inode, 0))
    assert [inode for inode in range(10) if bodies.get(inode)] == [7, 8, 9]
    bodies.add(SmallBody(b"x" * 300, 10, 0))
    assert [inode for inode in range(11) if bodies.get(inode)] == [9, 10]
    bodies.clear()
    assert [inode for inode in range(11) if bodies.get(inode)] == []
    bodies.add(SmallBody(b"x" * 100, 1, 0))
    assert bodies.get(1) is not None


def test_a_body_that_takes_the_place_of_another_costs_no_more_than_one_that_has_room() -> None:
    """However many there are: a dict looks for its first item among all those that were removed."""

    def seconds_a_round(bodies: SmallBodies, begin: int) -> float:
        began = time.thread_time()
        for inode in range(begin, begin + 20_000):
            bodies.add(SmallBody(b"", inode, 0))
        return time.thread_time() - began

    bodies = SmallBodies(40_000 * OBJECT_BYTES)
    with_room = [seconds_a_round(bodies, begin) for begin in (0, 20_000)]
    replacing = [seconds_a_round(bodies, begin) for begin in range(40_000, 120_000, 20_000)]
    assert min(replacing) < 5 * max(with_room)

"""`<queue>.log` when idle: which file a look-up gives, and what is shown before the kernel is notified of more."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext

import pytest

from engine import Message, MessageStore, OpenMode
from fsstore.interface import Attributes, SlowWork
from fsstore.tree.streams import IDLE_S, IdleStream
from tests.fsstore.conftest import Mount, clock_of, damage, expire, forget_sums, one_a_file, open_small, refused_with

LOG = "orders/0.log"


def publish(store: MessageStore, *bodies: bytes) -> None:
    for body in bodies:
        store.put(Message("orders", body), 0)


def rest(mount: Mount, store: MessageStore) -> None:
    """Let time pass until the newest message is old enough."""
    newest = store.get("orders", 0, store.bounds("orders", 0).max_offset - 1)
    mount.now_ms = newest.store_time_ms + IDLE_S * 1_000


@pytest.fixture
def at_rest(mount: Mount, store: MessageStore) -> Attributes:
    """The attributes of a stream of one message, idle."""
    publish(store, b"one")
    rest(mount, store)
    return mount.stat(LOG)


def behind(mount: Mount) -> IdleStream:
    """The one stream that its kernel is to be told more of."""
    (stream,) = mount.fs.streams.take_outdated()
    return stream


def catch_up(mount: Mount) -> None:
    """Tell the kernel, as growth.py does."""
    stream = behind(mount)
    stream.tell(stream.size, lambda size: True)
    mount.fs.streams.updated(stream)


def test_a_stream_is_cached_from_the_moment_that_its_newest_message_is_old(mount: Mount, store: MessageStore) -> None:
    publish(store, b"one")
    rest(mount, store)
    mount.now_ms -= 1
    growing = mount.stat(LOG)
    assert (mount.open(LOG).direct_io, mount.open(LOG).keep_cache) == (True, False)
    mount.now_ms += 1
    resting = mount.stat(LOG)
    assert (mount.open(LOG).direct_io, mount.open(LOG).keep_cache) == (False, True)
    assert resting.inode != growing.inode
    assert resting._replace(inode=0) == growing._replace(inode=0)
    assert mount.cat(LOG) == b"one\n"


def test_stat_and_listings_show_one_number_for_both(mount: Mount, store: MessageStore) -> None:
    publish(store, b"one")
    growing, listed = mount.stat(LOG), mount.entries("orders")[b"0.log"]
    assert listed == (growing.inode, 4)
    rest(mount, store)
    resting, listed = mount.stat(LOG), mount.entries("orders")[b"0.log"]
    assert listed == (resting.inode, 4)
    numbers = {growing.st_ino, resting.st_ino, mount.fs.getattr(growing.inode).st_ino}
    assert numbers == {mount.fs.getattr(resting.inode).st_ino}
    assert numbers.isdisjoint({mount.stat("orders/1.log").st_ino, growing.inode, resting.inode})


@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.FOLLOW])
def test_a_look_up_shows_the_exact_size_at_once(store: MessageStore, mode: OpenMode) -> None:
    publish(store, b"one")
    with nullcontext(store) if mode is OpenMode.WRITE else open_small(store.path, mode) as shown:
        mount = Mount(shown)
        rest(mount, store)
        resting = mount.stat(LOG)
        publish(store, b"two")
        shown.refresh()
        assert (mount.stat(LOG).inode != resting.inode, mount.stat(LOG).size) == (True, 8)
        rest(mount, store)  # and does so when the stream rests again, of which the kernel was told nothing yet
        assert (mount.stat(LOG).inode != resting.inode, mount.stat(LOG).size) == (True, 8)
        catch_up(mount)
        assert (mount.stat(LOG).inode, mount.stat(LOG).size) == (resting.inode, 8)


def test_who_opened_it_at_rest_sees_what_came_when_the_kernel_was_told(
    mount: Mount, store: MessageStore, at_rest: Attributes
) -> None:
    handle = mount.fs.open(at_rest.inode, os.O_RDONLY).handle
    clock_of(store).now_ms += 1000
    publish(store, b"two")
    assert mount.fs.streams.grown("orders", 0) == []
    assert mount.fs.getattr(at_rest.inode) == at_rest, "the time goes with the size, or tail -f would see a change"
    assert bytes(mount.fs.read(handle, 0, 100)) == b"one\ntwo\n"  # a page that is read now has to hold all there is
    catch_up(mount)
    told = mount.fs.getattr(at_rest.inode)
    assert (told.size, told.mtime_ns) == (8, store.get("orders", 0, 1).store_time_ms * 1_000_000)


def test_growth_is_told_once_for_each_time_attributes_were_answered(
    mount: Mount, store: MessageStore, at_rest: Attributes
) -> None:
    publish(store, b"two")
    mount.fs.streams.grown("orders", 0)
    catch_up(mount)
    publish(store, b"three")
    mount.fs.streams.grown("orders", 0)
    assert mount.fs.streams.take_outdated() == []
    assert mount.fs.getattr(at_rest.inode).size == 8
    assert behind(mount).known_bytes == 8


def test_a_stream_that_is_being_told_of_is_not_taken_twice(
    mount: Mount, store: MessageStore, at_rest: Attributes
) -> None:
    publish(store, b"two")
    mount.fs.streams.grown("orders", 0)
    stream = behind(mount)
    mount.fs.getattr(at_rest.inode)
    rest(mount, store)
    mount.stat(LOG)
    assert mount.fs.streams.take_outdated() == []
    mount.fs.streams.updated(stream)
    mount.fs.getattr(at_rest.inode)
    assert mount.fs.streams.take_outdated() == [stream]


def test_no_size_is_answered_while_the_kernel_is_told_one(
    mount: Mount, store: MessageStore, at_rest: Attributes
) -> None:
    publish(store, b"two")
    mount.fs.streams.grown("orders", 0)
    rest(mount, store)
    looks = []

    def look(size: int) -> bool:
        with pytest.raises(SlowWork) as asked:
            mount.fs.getattr(at_rest.inode)
        asked.value.work()
        looks.append((size, mount.stat(LOG).inode == at_rest.inode))
        return True

    behind(mount).tell(8, look)
    assert looks == [(8, False)]
    assert mount.fs.getattr(at_rest.inode).size == 8


def test_what_the_kernel_did_not_take_was_not_told(mount: Mount, store: MessageStore, at_rest: Attributes) -> None:
    publish(store, b"two")
    mount.fs.streams.grown("orders", 0)
    behind(mount).tell(8, lambda size: False)
    assert mount.fs.getattr(at_rest.inode).size == 4


def test_a_file_that_the_kernel_does_not_know_needs_no_telling(
    mount: Mount, store: MessageStore, at_rest: Attributes
) -> None:
    mount.fs.forget(at_rest.inode, 1)
    publish(store, b"two")
    mount.entries("orders")  # listed, and not taken: the kernel is given a name alone
    rest(mount, store)
    assert mount.entries("orders")[b"0.log"][1] == 8
    publish(store, b"three")
    rest(mount, store)
    assert mount.open(LOG).keep_cache
    assert mount.stat(LOG).size == 14


def test_a_read_only_store_rests_always(store: MessageStore) -> None:
    publish(store, b"one")
    store.close()
    with open_small(store.path, OpenMode.READ_ONLY) as shown:
        assert Mount(shown).open(LOG).keep_cache


@pytest.mark.parametrize("bodies", [(), (b"one",)])
def test_without_a_newest_message_that_can_be_read_nothing_rests(
    mount: Mount, store: MessageStore, bodies: tuple[bytes, ...]
) -> None:
    store.create_topic("orders")
    publish(store, *bodies)
    if bodies:
        damage(store, 0)
    mount.now_ms *= 2
    assert mount.open(LOG).direct_io


@pytest.mark.parametrize("is_known", [True, False])
def test_a_stream_that_takes_long_to_sum_is_summed_first(
    mount: Mount, store: MessageStore, at_rest: Attributes, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_known:
        mount.fs.forget(at_rest.inode, 1)
    store.put(Message("orders", b"of another queue"), 1)  # what was answered before is looked at again
    forget_sums(store, monkeypatch)
    assert mount.entries("orders")[b"0.log"][1] == 0
    with pytest.raises(SlowWork) as asked:
        mount.fs.lookup(mount.stat("orders").inode, b"0.log")
    asked.value.work()
    assert (mount.stat(LOG).inode == at_rest.inode) == is_known
    assert mount.open(LOG).keep_cache


@one_a_file
def test_after_retention_a_new_look_up_begins_at_the_new_first_message(
    mount: Mount, store: MessageStore, at_rest: Attributes
) -> None:
    publish(store, b"kept")
    handle = mount.fs.open(at_rest.inode, os.O_RDONLY).handle
    expire(store, "orders", 0, 1)
    rest(mount, store)
    begun = mount.stat(LOG)
    assert begun.st_ino != at_rest.st_ino
    assert mount.cat(LOG) == b"kept\n"
    assert bytes(mount.fs.read(handle, 4, 100)) == b"kept\n"
    assert refused_with(lambda: mount.fs.read(handle, 0, 100)) == errno.EIO


def test_a_stream_at_rest_goes_with_its_topic(mount: Mount, store: MessageStore, at_rest: Attributes) -> None:
    store.delete_topic("orders")
    assert at_rest.inode in mount.fs.topics_changed()
    assert refused_with(lambda: mount.fs.getattr(at_rest.inode)) == errno.ESTALE

"""Listings: complete, in order, resumable, stable while messages come."""

from __future__ import annotations

import errno
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Message, MessageStore, Queue
from fsstore.interface import MessageColumns, MessageNames, SlowWork
from fsstore.tree.inodes import MESSAGE
from fsstore.tree.listing import MOST_DESCRIBED
from fsstore.tree.names import offset_name
from tests.fsstore.conftest import (
    REPORTS,
    Mount,
    damage,
    expire,
    forget_sums,
    one_a_file,
    refused_with,
    shared_one_a_file,
)
from tests.fsstore.test_framing import fresh


def test_each_directory_lists_what_is_in_it(mount: Mount, store: MessageStore) -> None:
    store.create_topic("orders", 2)
    store.create_topic("z", 1)
    store.put(Message("orders", b"x", keys=["K"]), 1)
    assert mount.ls("/") == ["@store", "@parquet", "orders", "orders.log", "z", "z.log"]
    assert mount.ls("orders") == ["append", "drop", "0", "0.log", "1", "1.log", "keys"]
    assert mount.ls("orders/0") == ["append"]
    assert mount.ls("orders/1") == ["append", "0" * 20]
    assert mount.ls("@store") == [*REPORTS, "groups", "control"]


def test_queues_are_listed_in_numeric_order(mount: Mount, store: MessageStore) -> None:
    store.create_topic("orders", 11)
    assert [name for name in mount.ls("orders") if name.isdigit()] == [str(queue) for queue in range(11)]


@shared_one_a_file
@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 9))
def test_a_queue_lists_each_message_once_with_what_stat_says(
    shared: MessageStore, count: int, expired: int, limit: int
) -> None:
    mount = fresh(shared)
    for number in range(count):
        shared.put(Message("orders", b"x" * number), 0)
    expired = min(expired, count)
    expire(shared, "orders", 0, expired)
    listed = mount.entries("orders/0", limit)
    del listed[b"append"]
    assert list(listed) == [offset_name(offset) for offset in range(expired, count)]
    for name, (inode, size) in listed.items():
        attributes = mount.stat(b"orders/0/" + name)
        assert (attributes.inode, attributes.size) == (inode, size)


def test_names_alone_are_those_of_a_described_listing(mount: Mount, store: MessageStore) -> None:
    for _ in range(40):
        store.put(Message("orders", b"x"), 0)
    described = {name: inode for name, (inode, _) in mount.entries("orders/0").items() if name != b"append"}
    handle = mount.fs.opendir(mount.stat("orders/0").inode).handle
    position, found = 1, dict[bytes, int]()
    mount.fs.readdir(handle, 0, 1, with_attributes=False)
    for limit, with_attributes in itertools.cycle([(3, False), (4, False), (2, True), (30, False)]):
        batch = mount.fs.readdir(handle, position, limit, with_attributes=with_attributes)
        if not batch:
            break
        assert isinstance(batch, MessageColumns if with_attributes else MessageNames)
        assert len(batch.names) <= limit
        found |= dict(zip(batch.names.tolist(), batch.inodes.tolist(), strict=True))
        position = int(batch.next_positions[-1])
        assert position == int(batch.names[-1]) + 2
    assert found == described


@one_a_file
def test_names_keep_their_inodes_when_retention_comes_in_between(mount: Mount, store: MessageStore) -> None:
    offsets = [store.put(Message("orders", b"x"), 0).physical_offset for _ in range(10)]
    handle = mount.fs.opendir(mount.stat("orders/0").inode).handle
    mount.fs.readdir(handle, 0, 1, with_attributes=False)
    bounds = store.bounds("orders", 0)
    expire(store, "orders", 0, 4)
    with pytest.MonkeyPatch.context() as patch:  # the listing saw the old bounds, the entries are read afterwards
        patch.setattr(Queue, "bounds", lambda _: bounds)
        batch = mount.fs.readdir(handle, 1, 10, with_attributes=False)
    assert isinstance(batch, MessageNames)
    kept = zip(batch.names.tolist()[4:], batch.inodes.tolist()[4:], strict=True)
    assert dict(kept) == {offset_name(number): MESSAGE | offsets[number] for number in range(4, 10)}


def test_a_listing_ends_where_the_queue_ended_when_it_began(mount: Mount, store: MessageStore) -> None:
    for _ in range(3):
        store.put(Message("orders", b"x"), 0)
    handle = mount.fs.opendir(mount.stat("orders/0").inode).handle
    position, names = 0, 0
    while batch := mount.fs.readdir(handle, position, 1):
        store.put(Message("orders", b"while it lists"), 0)
        position = batch[-1].next_position if isinstance(batch, list) else int(batch.next_positions[-1])
        names += 1
    assert names == 1 + 3
    assert mount.fs.readdir(handle, 0, 100)
    rewound = mount.fs.readdir(handle, 1, 100)
    assert isinstance(rewound, MessageColumns)
    assert len(rewound.names) == store.bounds("orders", 0).max_offset


@one_a_file
def test_a_listing_goes_on_after_any_position_though_messages_expired(mount: Mount, store: MessageStore) -> None:
    for _ in range(6):
        store.put(Message("orders", b"x"), 0)
    handle = mount.fs.opendir(mount.stat("orders/0").inode).handle
    mount.fs.readdir(handle, 0, 1)
    expire(store, "orders", 0, 4)
    batch = mount.fs.readdir(handle, 3, 100)
    assert isinstance(batch, MessageColumns)
    assert batch.names.tolist() == [offset_name(4), offset_name(5)]
    assert mount.fs.readdir(handle, int(batch.next_positions[-1]), 100) == []


def test_a_damaged_message_is_listed_as_not_readable(mount: Mount, store: MessageStore) -> None:
    put = store.put(Message("orders", b"x"), 0)
    damage(store, put.physical_offset)
    handle = mount.fs.opendir(mount.stat("orders/0").inode).handle
    mount.fs.readdir(handle, 0, 1)
    batch = mount.fs.readdir(handle, 1, 100)
    assert isinstance(batch, MessageColumns)
    assert batch.readable.tolist() == [False]
    assert batch.sizes.tolist() == [0]
    assert batch.inodes.tolist() == [MESSAGE | put.physical_offset]


def test_the_size_of_a_compressed_body_is_measured_for_the_listing(mount: Mount, store: MessageStore) -> None:
    put = store.put(Message("orders", zlib.compress(b"decompressed"), sys_flag=1), 0)
    assert mount.entries("orders/0")[offset_name(0)] == (MESSAGE | put.physical_offset, len(b"decompressed"))


def test_a_topic_that_goes_while_the_root_is_listed_is_left_out(mount: Mount, store: MessageStore) -> None:
    for topic in ("a", "b", "c"):
        store.create_topic(topic)
    handle = mount.fs.opendir(1).handle
    first = mount.fs.readdir(handle, 0, 4)
    assert isinstance(first, list)
    store.delete_topic("b")
    rest = mount.fs.readdir(handle, first[-1].next_position, 9)
    assert isinstance(rest, list)
    assert [entry.name for entry in rest] == [b"c", b"c.log"]


def test_a_listed_append_is_described_without_making_an_inode_each_time(mount: Mount, store: MessageStore) -> None:
    store.create_topic("orders")
    assert mount.entries("orders")[b"append"] == mount.entries("orders")[b"append"]


def test_a_topic_lists_a_stream_of_unknown_size_without_summing_it(
    mount: Mount, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(Message("orders", b"x"), 0)
    forget_sums(store, monkeypatch)
    handle, position, entry = mount.fs.opendir(mount.stat("orders").inode).handle, 0, None
    while entry is None:  # a request lists no more when its time is over
        batch = mount.fs.readdir(handle, position, 100)
        assert isinstance(batch, list)
        position = batch[-1].next_position
        entry = next((entry for entry in batch if entry.name == b"0.log"), None)
    assert (entry.attributes.size, entry.attributes.attr_timeout) == (0, 0)
    assert store.stream("orders", 0).unsummed == 1


@pytest.mark.parametrize("path", ["orders/0/append", "orders/0.log"])
def test_a_file_has_no_listing(mount: Mount, store: MessageStore, path: str) -> None:
    store.create_topic("orders")
    assert refused_with(lambda: mount.fs.opendir(mount.stat(path).inode)) == errno.ENOTDIR


def test_keys_are_collected_in_a_thread_anew_for_each_listing(mount: Mount, store: MessageStore) -> None:
    store.put(Message("orders", b"", keys=["A"]), 0)
    handle = mount.fs.opendir(mount.stat("orders/keys").inode).handle
    for expected in ([b"A"], [b"A", b"B"]):
        with pytest.raises(SlowWork) as asked:
            mount.fs.readdir(handle, 0, 10)
        asked.value.work()
        batch = mount.fs.readdir(handle, 0, 10)
        assert isinstance(batch, list)
        assert [entry.name for entry in batch] == expected
        store.put(Message("orders", b"", keys=["B"]), 0)


@one_a_file
def test_what_was_read_ahead_and_expired_is_not_listed(mount: Mount, store: MessageStore) -> None:
    for _ in range(50):
        store.put(Message("orders", b"x"), 0)
    handle = mount.fs.opendir(mount.stat("orders/0").inode).handle
    position = 0
    for limit in (1, 4, 4):  # the third call finds rows that the second read ahead
        batch = mount.fs.readdir(handle, position, limit)
        position = batch[-1].next_position if isinstance(batch, list) else int(batch.next_positions[-1])
    expire(store, "orders", 0, 11)
    batch = mount.fs.readdir(handle, position, 4)
    assert isinstance(batch, MessageColumns)
    assert batch.names[0] == offset_name(11)


def test_one_request_looks_up_so_many_names_however_large_it_is(mount: Mount, store: MessageStore) -> None:
    store.create_topic("wide", 400)
    handle = mount.fs.opendir(mount.stat("wide").inode).handle
    found, position = [], 0
    while batch := mount.fs.readdir(handle, position, 1_000_000):
        assert isinstance(batch, list)
        assert len(batch) <= MOST_DESCRIBED
        found += [name for name, _, _ in batch]
        position = batch[-1].next_position
    assert len(found) == len(set(found)) > 800

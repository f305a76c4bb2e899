"""Computed names: @first, @last, @<time>, keys/ and what is below it."""

from __future__ import annotations

import errno
import stat
from datetime import datetime

import pytest

from engine import Message, MessageNotFoundError, MessageStore, TopicNotFoundError
from fsstore.fuse.errors import errno_of
from fsstore.interface import FilesystemError, SlowWork
from fsstore.tree.names import offset_name
from tests.fsstore.conftest import FIRST_STORE_TIME_MS, Mount, clock_of, expire, one_a_file, refused_with


@pytest.fixture(autouse=True)
def messages(store: MessageStore) -> None:
    """Four messages a second apart, alternately in queues 0 and 1."""
    clock = clock_of(store)
    for number, keys in enumerate((["A"], ["A", "a@b.com"], ["A/x"], ["B"])):
        store.put(Message("orders", b"%d" % number, keys=keys, properties={"UNIQ_KEY": f"U{number}"}), number % 2)
        clock.now_ms += 1000


def assert_not_found(mount: Mount, path: str) -> None:
    with pytest.raises((FilesystemError, MessageNotFoundError, TopicNotFoundError)) as raised:
        mount.stat(path)
    assert errno_of(raised.value) == errno.ENOENT


@one_a_file
def test_first_and_last_name_the_ends_of_the_queue(mount: Mount, store: MessageStore) -> None:
    assert mount.readlink("orders/0/@first") == offset_name(0).decode()
    assert mount.readlink("orders/0/@last") == offset_name(1).decode()
    expire(store, "orders", 0, 1)
    assert mount.readlink("orders/0/@first") == offset_name(1).decode()


@pytest.mark.parametrize("name", ["@first", "@last", "@0"])
def test_an_empty_queue_has_no_first_and_no_last(mount: Mount, name: str) -> None:
    assert_not_found(mount, f"orders/2/{name}")


@pytest.mark.parametrize(("after_ms", "queue_offset"), [(-5000, 0), (0, 0), (1, 1), (2000, 1)])
def test_a_time_names_the_first_message_stored_at_or_after_it(mount: Mount, after_ms: int, queue_offset: int) -> None:
    when_ms = FIRST_STORE_TIME_MS + after_ms
    expected = offset_name(queue_offset).decode()
    assert mount.readlink(f"orders/0/@{when_ms}") == expected
    assert mount.readlink(f"orders/0/@{datetime.fromtimestamp(when_ms / 1000).isoformat()}") == expected


@pytest.mark.parametrize("name", [f"@{FIRST_STORE_TIME_MS + 2001}", "@2999-01-01", "@soon", "@", "@lastly"])
def test_a_time_after_the_last_message_and_what_is_no_time_are_not_found(mount: Mount, name: str) -> None:
    assert_not_found(mount, f"orders/0/{name}")


def test_computed_links_are_symlinks_that_are_never_cached(mount: Mount) -> None:
    for path in ("orders/0/@last", "orders/keys/A", "orders/keys/A@all/0-0"):
        attributes = mount.stat(path)
        assert stat.S_ISLNK(attributes.mode)
        assert (attributes.entry_timeout, attributes.attr_timeout) == (0, 0)
        assert attributes.size == len(mount.readlink(path))
        assert mount.fs.getattr(attributes.inode) == attributes


def test_a_link_to_the_same_message_keeps_its_inode(mount: Mount, store: MessageStore) -> None:
    inode = mount.stat("orders/0/@last").inode
    assert mount.stat("orders/0/@last").inode == inode
    store.put(Message("orders", b"newer"), 0)
    assert mount.stat("orders/0/@last").inode != inode


def test_computed_names_are_not_listed(mount: Mount) -> None:
    assert mount.ls("orders/0") == ["append", offset_name(0).decode(), offset_name(1).decode()]


@pytest.mark.parametrize("name", ["A", "U1", "%41"])
def test_a_key_links_to_the_newest_message_that_carries_it(mount: Mount, name: str) -> None:
    assert mount.readlink(f"orders/keys/{name}") == "../1/" + offset_name(0).decode()


@pytest.mark.parametrize("name", ["a@b.com", "a%40b.com"])
def test_raw_and_encoded_characters_find_the_same_key(mount: Mount, name: str) -> None:
    assert mount.readlink(f"orders/keys/{name}") == "../1/" + offset_name(0).decode()


def test_a_key_with_a_slash_is_found_encoded(mount: Mount) -> None:
    assert mount.readlink("orders/keys/A%2Fx") == "../0/" + offset_name(1).decode()


@pytest.mark.parametrize("name", ["C", "", "@all", "C@all", "A@all/0-1", "A@all/1-7", "A@all/9-0", "A@all/x", "a@b"])
def test_a_key_that_no_message_carries_is_not_found(mount: Mount, name: str) -> None:
    if name:
        assert_not_found(mount, f"orders/keys/{name}")


def test_all_matches_of_a_key_are_listed_by_queue_and_offset(mount: Mount) -> None:
    names = mount.ls("orders/keys/A@all")
    assert names == ["0-" + offset_name(0).decode(), "1-" + offset_name(0).decode()]
    assert [mount.readlink(f"orders/keys/A@all/{name}") for name in names] == [
        "../../0/" + offset_name(0).decode(),
        "../../1/" + offset_name(0).decode(),
    ]


def test_the_matches_of_a_unique_key_are_found_too(mount: Mount) -> None:
    assert mount.ls("orders/keys/U1@all") == ["1-" + offset_name(0).decode()]


def test_keys_are_listed_encoded_with_the_inodes_that_lookup_gives(mount: Mount) -> None:
    listed = mount.entries("orders/keys")
    assert list(listed) == [b"A", b"A%2Fx", b"B", b"a%40b.com"]
    for name, (inode, _) in listed.items():
        assert mount.stat(b"orders/keys/" + name).inode == inode


def test_a_key_whose_name_is_too_long_is_not_listed_but_others_are(mount: Mount, store: MessageStore) -> None:
    store.put(Message("orders", b"x", keys=["k" * 256]), 0)
    assert mount.ls("orders/keys") == ["A", "A%2Fx", "B", "a%40b.com"]


def test_a_key_ending_in_all_is_reached_encoded(mount: Mount, store: MessageStore) -> None:
    store.put(Message("orders", b"x", keys=["K@all"]), 3)
    assert "K%40all" in mount.ls("orders/keys")
    assert mount.readlink("orders/keys/K%40all") == "../3/" + offset_name(0).decode()
    assert mount.ls("orders/keys/K%40all@all") == ["3-" + offset_name(0).decode()]


def test_a_key_whose_hash_many_others_have_is_looked_up_in_a_thread(mount: Mount, store: MessageStore) -> None:
    for _ in range(3_000):
        store.put(Message("orders", b"", keys=["Aa"]), 0)  # Java's hash of it is that of BB
    store.put(Message("orders", b"first", keys=["single"]), 0)
    keys = mount.stat("orders/keys").inode
    assert mount.fs.lookup(keys, b"single").size
    assert mount.fs.lookup(keys, b"Aa").size
    with pytest.raises(SlowWork) as slow:
        mount.fs.lookup(keys, b"BB")
    store.put(Message("orders", b"meanwhile"), 0)
    slow.value.work()
    assert refused_with(lambda: mount.fs.lookup(keys, b"BB")) == errno.ENOENT

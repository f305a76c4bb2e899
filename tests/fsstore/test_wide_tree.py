"""The tree of a store with many topics: a request does as much work as in a store with few."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from engine import Expired, Message, MessageStore, OpenMode, Retention
from fsstore.fuse.dirents import listed_names
from fsstore.interface import ROOT_INODE, Attributes, FilesystemError, ListedNames
from fsstore.tree import listing
from tests.fsstore.conftest import ONE_A_FILE, Mount, expire, open_small, refused_with
from tests.steps import require_flat, steps

FEW, MANY = 10, 60
MOST_STEPS = 100
"""Bytecode instructions for a name; a node and its attributes take several hundred."""
PATHS = ("{}", "{}.log", "{}/append", "{}/0", "{}/0.log", "{}/keys/K", "@parquet/topic={}/queue=0")


def visit(mount: Mount, topic: str) -> None:
    for path in PATHS:
        assert mount.stat(path.format(topic))


def let_expire(mount: Mount, topic: str) -> None:
    assert list(mount.fs.expired(Expired(topic, 0, 0, 1, np.zeros(1, np.int64))))


WORKS: dict[str, Callable[[Mount, str], object]] = {
    "a look": visit,
    "messages expire": let_expire,
    "a queue is gone": lambda mount, topic: mount.fs.queue_gone(topic, 0),
    "a line": lambda mount, topic: mount.publish(f"{topic}/append", b"line\n"),
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_it_takes_as_much_work_among_many_topics(folder: Path, work: Callable[[Mount, str], object]) -> None:
    def steps_among(topics: int) -> int:
        with open_small(folder / str(topics)) as store:
            mount = Mount(store)
            for number in range(topics):
                store.put(Message(f"topic-{number}", b"body", keys=("K",)), 0)
                visit(mount, f"topic-{number}")
            work(mount, "topic-0")  # what is done once is done now
            return steps(lambda: work(mount, "topic-1"))

    require_flat(steps_among(FEW), steps_among(MANY))


def test_a_topic_that_was_made_is_found_without_a_list_of_all(mount: Mount, store: MessageStore) -> None:
    listings = {name: patch.object(store, name, side_effect=AssertionError) for name in ("topics", "queues")}
    for number in range(3):
        store.put(Message(f"topic-{number}", b"body", keys=("K",)), 0)
        with listings["topics"], listings["queues"]:
            visit(mount, f"topic-{number}")
            mount.publish(f"topic-{number}/append", b"line\n")


def test_a_listing_of_names_makes_no_nodes_and_shows_the_inodes_of_stat(folder: Path) -> None:
    topics = [f"topic-{number}" for number in range(FEW)] + ["topic-0.log"]  # so topic-0 has no stream
    for topic in topics:
        (folder / "consumequeue" / topic / "0").mkdir(parents=True)
    with open_small(folder) as store:
        mount = Mount(store)
        known = set(mount.fs._inodes.nodes)
        shown = {name: found for name, found, _ in names_alone(mount)}
        assert set(mount.fs._inodes.nodes) == known
        assert list(shown) == [name.encode() for name in mount.ls("")]
        assert len(shown) == 2 + 2 * FEW + 1
        for name, found in shown.items():
            attributes = mount.stat(name)
            assert found == (attributes.st_ino, stat.S_IFMT(attributes.mode))


def names_alone(mount: Mount) -> Iterator[tuple[bytes, tuple[int, int], int]]:
    """A listing of the root: name, inode and type, position after it."""
    handle, position = mount.fs.opendir(ROOT_INODE).handle, 0
    while batch := mount.fs.readdir(handle, position, 7, with_attributes=False):
        assert isinstance(batch, ListedNames)
        types = map(stat.S_IFMT, batch.modes.tolist())
        shown = zip(batch.inodes.tolist(), types, strict=True)
        for name, found, position in zip(batch.names, shown, batch.next_positions.tolist(), strict=True):
            yield name, found, position


def test_the_names_of_a_store_without_topics(mount: Mount) -> None:
    assert [name for name, _, _ in names_alone(mount)] == [b"@store", b"@parquet"]


def test_a_topic_that_goes_during_a_listing_of_names_is_not_listed(mount: Mount, store: MessageStore) -> None:
    for number in range(FEW):
        store.create_topic(f"topic-{number}", 1)
    listing = names_alone(mount)
    first = [next(listing)[0] for _ in range(7)]
    store.delete_topic("topic-0")
    store.delete_topic("topic-4")
    store.create_topic("topic-33", 1)
    positions = [position for _, _, position in listing]
    assert first[2:4] == [b"topic-0", b"topic-0.log"]
    assert positions == [8, 9, 10, *range(13, 3 + 2 * FEW)]


def test_a_listing_of_names_alone_takes_few_steps_a_name(mount: Mount, store: MessageStore) -> None:
    store.create_topics({f"topic-{number}": 1 for number in range(MANY)})
    assert steps(lambda: packed_names(mount)) < MOST_STEPS * 2 * MANY


def packed_names(mount: Mount) -> int:
    """As the kernel is answered."""
    handle, position, count = mount.fs.opendir(ROOT_INODE).handle, 0, 0
    while batch := mount.fs.readdir(handle, position, 1_000, with_attributes=False):
        assert isinstance(batch, ListedNames)
        position, count = int(batch.next_positions[-1]), count + listed_names(batch, 1 << 17)[1]
    return count


LOGS = {f"topic-{number}.log": 2 * number * len(b"body\n") for number in range(1, FEW)}


@pytest.fixture
def at_rest(folder: Path) -> Iterator[Mount]:
    """A mount of a store that was opened again. Topic n has n messages in each of two queues."""
    with open_small(folder / "store") as store:
        for number in range(1, FEW):
            for queue in (0, 1) * number:
                store.put(Message(f"topic-{number}", b"body"), queue)
    with open_small(folder / "store") as store:
        yield Mount(store)


def opened_queues(mount: Mount) -> list[str]:
    return [f"{queue.topic}/{queue.queue_id}" for queue in mount.fs._store._parts.queues.opened()]


@pytest.mark.parametrize("is_idle", [False, True], ids=["growing", "idle"])
def test_attributes_of_the_root_are_shown_without_opening_a_queue(at_rest: Mount, is_idle: bool) -> None:
    at_rest.now_ms += 3_600_000 * is_idle
    names = at_rest.ls("")
    shown = {name: at_rest.stat(name) for name in names}
    again = {name: at_rest.stat(name) for name in names}
    assert (shown, opened_queues(at_rest)) == (again, [])
    assert {name: shown[name].size for name in LOGS} == LOGS
    for name in LOGS:
        assert len(at_rest.cat(name)) == shown[name].size
        assert at_rest.stat(name) == shown[name]
        assert at_rest.fs.getattr(shown[name].inode) == shown[name]


@pytest.mark.parametrize("is_idle", [False, True], ids=["growing", "idle"])
def test_a_message_to_a_topic_that_was_at_rest_is_seen_at_once(at_rest: Mount, is_idle: bool) -> None:
    at_rest.now_ms += 3_600_000 * is_idle
    for name, size in LOGS.items():
        assert at_rest.stat(name).size == size
        at_rest.publish(f"{name.removesuffix('.log')}/append", b"more\n")
        assert at_rest.stat(name).size == size + len(b"more\n") == len(at_rest.cat(name))


def test_a_second_look_at_an_idle_stream_measures_nothing(at_rest: Mount) -> None:
    at_rest.now_ms += 3_600_000
    before = {name: at_rest.stat(name) for name in LOGS}
    with (
        patch.object(MessageStore, "text_at_rest", side_effect=AssertionError),
        patch.object(MessageStore, "topic_stream", side_effect=AssertionError),
    ):
        assert {name: at_rest.stat(name) for name in LOGS} == before


def test_a_topic_that_goes_while_its_stream_was_not_read_stops_no_notice(at_rest: Mount) -> None:
    at_rest.now_ms += 3_600_000
    inode = at_rest.stat("topic-3.log").inode
    at_rest.publish("topic-3/append", b"more\n")
    at_rest.fs.streams.grown("topic-3", 0)
    (outdated,) = at_rest.fs.streams.take_outdated()
    at_rest.fs._store.delete_topic("topic-3")
    assert (outdated.inode, outdated.size) == (inode, LOGS["topic-3.log"])


def test_a_stream_whose_first_messages_went_before_it_was_read_is_stale(folder: Path) -> None:
    with open_small(folder, sizes=ONE_A_FILE) as store:
        for body in (b"first", b"second", b"third"):
            store.put(Message("orders", body), 0)
    with open_small(folder, sizes=ONE_A_FILE) as store:
        mount = Mount(store)
        known = mount.stat("orders.log")
        store._require_write_side().cleaner.retention = Retention(max_bytes=1, delete_pause_ms=0)
        assert store.clean()
        with pytest.raises(FilesystemError) as refused:
            mount.fs.open(known.inode, os.O_RDONLY)
        assert refused.value.errno == errno.ESTALE
        assert mount.stat("orders.log").size == len(mount.cat("orders.log")) < known.size


def listed(mount: Mount, path: str = "") -> dict[str, Attributes]:
    """What `ls -l` of a directory gets."""
    handle, position, shown = mount.fs.opendir(mount.stat(path).inode).handle, 0, dict[str, Attributes]()
    while batch := mount.fs.readdir(handle, position, 7):
        assert isinstance(batch, list)
        for entry in batch:
            mount.fs.listed(entry.attributes.inode)
            shown[os.fsdecode(entry.name)] = entry.attributes
        position = batch[-1].next_position
    return shown


@pytest.mark.parametrize("is_idle", [False, True], ids=["growing", "idle"])
def test_a_listing_of_topics_at_rest_leaves_nothing_to_look_up(at_rest: Mount, is_idle: bool) -> None:
    at_rest.now_ms += 3_600_000 * is_idle
    with patch.object(MessageStore, "text_at_rest", autospec=True, side_effect=MessageStore.text_at_rest) as measured:
        first, again = listed(at_rest), listed(at_rest)
    assert (first, opened_queues(at_rest), measured.call_count) == (again, [], len(LOGS))
    assert {name: first[name].size for name in LOGS} == LOGS
    for name in LOGS:
        found = first[name]
        assert min(found.inode, found.entry_timeout, found.attr_timeout) > 0
        assert at_rest.fs.getattr(found.inode)._replace(entry_timeout=found.entry_timeout) == found
        assert found.st_ino == at_rest.stat(name).st_ino


@pytest.mark.parametrize("is_idle", [False, True], ids=["growing", "idle"])
def test_a_topic_at_rest_is_listed_without_opening_a_queue(at_rest: Mount, is_idle: bool) -> None:
    at_rest.now_ms += 3_600_000 * is_idle
    shown = listed(at_rest, "topic-3")
    assert opened_queues(at_rest) == []
    looked_up_in_any_case = {"append", "0.log", "1.log", "2.log", "3.log"}
    assert {name for name, found in shown.items() if not found.inode} == looked_up_in_any_case
    for name, found in shown.items():
        looked_up = at_rest.stat(f"topic-3/{name}")
        assert (found.st_ino, found.mode >> 12) == (looked_up.st_ino, looked_up.mode >> 12)
        if stat.S_ISDIR(found.mode):
            assert found == looked_up
    assert len(at_rest.cat("topic-3/0.log")) == 3 * len(b"body\n")
    assert (at_rest.stat("topic-3/0"), at_rest.stat("topic-3/1")) == (shown["0"], shown["1"])


@pytest.mark.parametrize("is_idle", [False, True], ids=["growing", "idle"])
def test_a_listed_stream_is_looked_up_before_it_is_opened(at_rest: Mount, is_idle: bool) -> None:
    at_rest.now_ms += 3_600_000 * is_idle
    inode = listed(at_rest)["topic-3.log"].inode
    assert refused_with(lambda: at_rest.fs.open(inode, os.O_RDONLY)) == errno.ESTALE
    assert (at_rest.stat("topic-3.log").inode == inode) is not is_idle
    assert at_rest.cat("topic-3.log") == b"body\n" * 6
    assert listed(at_rest)["topic-3.log"].inode == 0  # another file must not take the name of cached pages


def test_a_message_to_a_listed_stream_drops_its_size(at_rest: Mount) -> None:
    inode = listed(at_rest)["topic-3.log"].inode
    at_rest.publish("topic-3/append", b"more\n")
    assert at_rest.fs.streams.grown("topic-3", 0) == [inode]
    assert at_rest.fs.getattr(inode).size == LOGS["topic-3.log"] + len(b"more\n")


def test_retention_drops_what_is_known_of_a_listed_stream(folder: Path) -> None:
    with open_small(folder, sizes=ONE_A_FILE) as store:
        for body in (b"first", b"second", b"third"):
            store.put(Message("orders", body), 0)
    with open_small(folder, sizes=ONE_A_FILE) as store:
        mount = Mount(store)
        inode = listed(mount)["orders.log"].inode
        expired = expire(store, "orders", 0, 1)
        assert inode in list(mount.fs.expired(expired))
        assert refused_with(lambda: mount.fs.getattr(inode)) == errno.ESTALE


def test_a_listing_on_a_read_only_mount_shows_streams_that_can_be_read(at_rest: Mount) -> None:
    at_rest.fs._store.close()
    with open_small(at_rest.fs._store.path, OpenMode.READ_ONLY) as store:
        mount = Mount(store)
        found = listed(mount)
        assert {name: found[name].size for name in LOGS} == LOGS
        assert bytes(mount.fs.read_unopened(found["topic-3.log"].inode, 0, 100)) == b"body\n" * 6
        assert mount.stat("topic-3.log").inode == found["topic-3.log"].inode
        assert listed(mount) == found


def test_a_request_lists_one_name_at_least_and_no_more_when_its_time_is_over(at_rest: Mount) -> None:
    whole = listed(at_rest)
    with patch.object(listing, "DESCRIBING_S", 0):
        handle = at_rest.fs.opendir(ROOT_INODE).handle
        requests = [at_rest.fs.readdir(handle, position, 100) for position in range(len(whole))]
        assert [len(batch) for batch in requests] == [1] * len(whole)
        assert listed(at_rest) == whole

"""What clients make the daemon hold is bounded by one budget, whoever asks and however many they are."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress

import pytest

from engine import Message, MessageStore
from fsstore.interface import FilesystemError
from fsstore.tree.computed_links import SLOT_BYTES
from fsstore.tree.memory_budget import SMALL_BYTES, Holding, MemoryBudget, Purpose
from tests.engine.storetools import bodies
from tests.fsstore.conftest import Mount, patiently, refused_with


def test_what_is_held_is_refused_over_its_share_and_changes_nothing() -> None:
    budget = MemoryBudget(8 << 20)
    holdings = [Holding(budget, Purpose.MESSAGES_BEGUN) for _ in range(5)]
    for holding in holdings[:4]:
        holding.resize(1 << 20)
    with pytest.raises(FilesystemError) as refused:
        holdings[4].resize(1 << 20)
    assert refused.value.errno == errno.ENOBUFS
    assert (holdings[4].size, budget.used[Purpose.MESSAGES_BEGUN], budget.refused) == (0, 4 << 20, 1)
    holdings[0].resize(0)
    holdings[4].resize(1 << 20)


def test_who_holds_little_is_refused_last() -> None:
    budget = MemoryBudget(8 << 20)
    Holding(budget, Purpose.MESSAGES_BEGUN).resize(4 << 20)
    small = [Holding(budget, Purpose.MESSAGES_BEGUN) for _ in range(33)]
    for holding in small[:32]:
        holding.resize(SMALL_BYTES)
    with pytest.raises(FilesystemError):
        small[32].resize(SMALL_BYTES)
    assert budget.used[Purpose.MESSAGES_BEGUN] == 6 << 20


def test_what_is_kept_goes_the_least_recently_used_first_of_whatever_kind() -> None:
    budget = MemoryBudget(100)
    gone: list[str] = []

    def keep(name: str, purpose: Purpose, size: int) -> None:
        budget.keep(name, purpose, size, lambda: gone.append(name))

    keep("body", Purpose.BODIES, 40)
    keep("stream", Purpose.STREAMS, 40)
    keep("body", Purpose.BODIES, 40)
    keep("columns", Purpose.PARQUET, 40)
    assert gone == ["stream"]
    budget.hold(Purpose.LISTINGS, 0, 50)
    assert gone == ["stream", "body"]
    keep("columns", Purpose.PARQUET, 0)
    keep("long", Purpose.BODIES, 1000)
    assert gone == ["stream", "body"], "the newest stays: somebody is about to read it"
    keep("short", Purpose.BODIES, 1)
    assert gone == ["stream", "body", "long"]
    assert budget.used == dict.fromkeys((one.value for one in Purpose), 0) | {"listings": 50, "decompressed_bodies": 1}


@pytest.fixture
def small(mount: Mount) -> Mount:
    """A mount with a small budget."""
    mount.fs.memory.limit_bytes = 8 << 20
    return mount


@pytest.mark.parametrize("name", ["append", "append@frame=file", "append@format=json"])
def test_messages_without_an_end_are_refused_and_nothing_is_lost(small: Mount, store: MessageStore, name: str) -> None:
    store.create_topic("orders")
    piece = b'{"body": "' + b"x" * 1_000_000 if "json" in name else b"x" * 1_000_000
    handles = [small.open(f"orders/0/{name}", os.O_WRONLY | os.O_APPEND).handle for _ in range(100)]
    taken = []
    for handle in handles:
        with suppress(FilesystemError):
            small.fs.write(handle, -1, piece)
            taken.append(handle)
    assert small.fs.memory.refused == 96
    assert len(taken) == 4
    assert small.fs.memory.used[Purpose.MESSAGES_BEGUN] == 4 * len(piece)
    refused = next(handle for handle in handles if handle not in taken)
    end = b'"}\n' if "json" in name else b"\n"
    for handle in taken:
        patiently(small.fs.write, handle, -1, end)
        small.fs.flush(handle)
        small.fs.handles.release(handle)
    assert small.fs.memory.used[Purpose.MESSAGES_BEGUN] == 0
    small.fs.write(refused, -1, piece)
    patiently(small.fs.write, refused, -1, end)
    small.fs.flush(refused)
    assert [len(body) for body in bodies(store, "orders", 0)] == [len(bodies(store, "orders", 0)[0])] * 5


def test_whole_lines_are_published_when_no_memory_is_left(small: Mount, store: MessageStore) -> None:
    store.create_topic("orders")
    hog = small.open("orders/0/append", os.O_WRONLY | os.O_APPEND).handle
    small.fs.write(hog, -1, b"x" * (4 << 20))
    small.publish("orders/0/append", b"one\n", b"two\nthree\n")
    assert bodies(store, "orders", 0) == [b"one", b"two", b"three"]


def test_a_refused_request_publishes_nothing_of_itself(small: Mount, store: MessageStore) -> None:
    store.create_topic("orders")
    hog = small.open("orders/0/append", os.O_WRONLY | os.O_APPEND).handle
    small.fs.write(hog, -1, b"x" * (4 << 20))
    handle = small.open("orders/0/append", os.O_WRONLY | os.O_APPEND).handle
    assert refused_with(lambda: small.fs.write(handle, -1, b"whole\n" + b"y" * 100_000)) == errno.ENOBUFS
    assert bodies(store, "orders", 0) == []
    patiently(small.fs.handles.release, hog)
    small.fs.write(handle, -1, b"whole\n" + b"y" * 100_000)
    small.fs.flush(handle)
    assert bodies(store, "orders", 0)[1:] == [b"whole", b"y" * 100_000]


def test_texts_of_reports_that_are_known_or_open_are_counted(mount: Mount) -> None:
    inode = mount.stat("@store/config.json").inode
    text_bytes = mount.fs.getattr(inode).size
    assert mount.fs.memory.used[Purpose.REPORTS] == text_bytes
    handles = [mount.fs.open(inode, os.O_RDONLY).handle for _ in range(3)]
    assert mount.fs.memory.used[Purpose.REPORTS] == 4 * text_bytes
    mount.fs.memory.limit_bytes = 0
    assert refused_with(lambda: mount.fs.open(inode, os.O_RDONLY)) == errno.ENOBUFS
    assert refused_with(lambda: mount.stat("@store/status.json")) == errno.ENOBUFS
    for handle in handles:
        mount.fs.handles.release(handle)
    mount.fs.forget(inode, 1)
    assert mount.fs.memory.used[Purpose.REPORTS] == 0


def test_a_key_of_many_messages_is_listed_as_numbers(mount: Mount, store: MessageStore) -> None:
    for number in range(20_000):
        keys = ["K"] if number % 2 else ["other", "K"] if number % 4 else ["other"]
        store.put(Message("orders", b"", keys=keys), number % 4)
    handle = mount.fs.opendir(mount.stat("orders/keys/K@all").inode).handle
    names: list[bytes] = []
    while batch := patiently(mount.fs.readdir, handle, len(names), 700):
        assert isinstance(batch, list)
        names += [entry.name for entry in batch]
    wanted = [b"%d-%020d" % (queue, offset) for queue in (1, 2, 3) for offset in range(5_000)]
    assert names == wanted
    assert mount.fs.memory.used[Purpose.LISTINGS] == SLOT_BYTES * len(wanted)
    mount.fs.handles.release_directory(handle)
    assert mount.fs.memory.used[Purpose.LISTINGS] == 0


def test_a_key_of_too_many_messages_is_refused(mount: Mount, store: MessageStore) -> None:
    for _ in range(1000):
        store.put(Message("orders", b"", keys=["K"]), 0)
    handle = mount.fs.opendir(mount.stat("orders/keys/K@all").inode).handle
    mount.fs.memory.limit_bytes = 1000 * SLOT_BYTES
    assert refused_with(lambda: patiently(mount.fs.readdir, handle, 0, 100)) == errno.ENOBUFS
    mount.fs.memory.limit_bytes = 1 << 20
    assert len(mount.ls("orders/keys/K@all")) == 1000


def test_streams_give_their_buffers_up_to_each_other(mount: Mount, store: MessageStore) -> None:
    text = b"".join(b"%07d %s\n" % (number, b"x" * 1000) for number in range(6_000))
    store.put_lines("orders", text, 0)
    handles = [mount.open("orders/0.log").handle for _ in range(8)]
    mount.fs.memory.limit_bytes = 16 << 20
    for position in range(0, len(text), 1 << 20):
        for handle in handles:
            assert bytes(patiently(mount.fs.read, handle, position, 1 << 17)) == text[position : position + (1 << 17)]
            assert mount.fs.memory.used[Purpose.STREAMS] <= 16 << 20
    for handle in handles:
        mount.fs.handles.release(handle)
    assert mount.fs.memory.used[Purpose.STREAMS] == 0


def test_budget_and_use_are_in_status_and_metrics(mount: Mount, store: MessageStore) -> None:
    store.create_topic("orders")
    handle = mount.open("orders/append", os.O_WRONLY | os.O_APPEND).handle
    mount.fs.write(handle, -1, b"no end")
    memory = json.loads(mount.cat("@store/status.json"))["memory"]
    assert memory["bytes"]["messages_begun"] == 6
    assert memory["budget_bytes"] == 512 << 20
    metrics = mount.cat("@store/metrics").decode()
    assert 'fsstore_memory_bytes{purpose="messages_begun"} 6\n' in metrics
    assert "fsstore_memory_budget_bytes 536870912\n" in metrics
    assert "fsstore_memory_refused_total 0\n" in metrics
    assert "fsstore_complaints_total" in metrics

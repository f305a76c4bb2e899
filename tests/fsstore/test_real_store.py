"""The tree over a store as it is opened by default: its sizes, its threads, a disk that syncs."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from engine import MessageStore, OpenMode, ReadOnlyStoreError, StoreConfig
from fsstore.interface import AT_END, ROOT_INODE, SlowWork
from fsstore.tree.names import offset_name
from tests.fsstore.conftest import REPORTS, Mount, patiently, refused_with


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "store", create=True) as store:
        yield store
        assert list(store.check()) == []


@pytest.fixture
def mount(store: MessageStore) -> Mount:
    mount = Mount(store)
    patiently(mount.fs.mkdir, ROOT_INODE, b"orders")
    return mount


def test_after_write_every_name_that_leads_to_the_message_finds_it(mount: Mount) -> None:
    for number in range(50):
        mount.publish(f"orders/1/append@keys=K{number},tags=paid", b"body %d\n" % number)
        name = offset_name(number).decode()
        assert mount.cat(f"orders/1/{number}") == b"body %d" % number
        assert mount.readlink("orders/1/@last") == name
        assert mount.readlink(f"orders/keys/K{number}") == f"../1/{name}"
        assert mount.ls(f"orders/keys/K{number}@all") == [f"1-{name}"]
        assert mount.cat("orders/1.log").endswith(b"\nbody %d\n" % number if number else b"body 0\n")
        assert len(mount.ls("orders/1")) == number + 2
    assert len(mount.ls("orders/keys")) == 50
    first = mount.stat("orders/1/0")
    assert mount.readlink(f"orders/1/@{first.mtime_ns // 1_000_000}") == offset_name(0).decode()


def test_a_request_of_many_lines_is_dealt_over_the_queues_in_turn(mount: Mount) -> None:
    lines = [b"line %d" % number for number in range(1000)]
    text = b"\n".join(lines)
    mount.publish("orders/append", text[:5000], text[5000:])
    counts = [len(mount.ls(f"orders/{queue}")) - 1 for queue in range(4)]
    assert counts == [250] * 4
    shown = [mount.cat(f"orders/{queue}.log").splitlines() for queue in range(4)]
    assert sorted(line for queue in shown for line in queue) == sorted(lines)
    for queue in shown:
        assert queue == sorted(queue, key=lines.index)


def test_large_and_binary_bodies_come_back_byte_for_byte(mount: Mount, store: MessageStore) -> None:
    bodies = [os.urandom(size) for size in (1, 4096, 4097, 1 << 20, store.config.max_message_bytes)]
    for number, body in enumerate(bodies):
        handle = mount.open("orders/0/append@frame=file", os.O_WRONLY).handle
        for start in range(0, len(body), 1 << 20):
            mount.fs.write(handle, start, body[start : start + (1 << 20)])
        patiently(mount.fs.flush, handle)
        mount.fs.handles.release(handle)
        assert mount.stat(f"orders/0/{number}").size == len(body)
        assert mount.cat(f"orders/0/{number}") == body
    assert mount.cat("orders/0.log") == b"".join(body + b"\n" for body in bodies)


def test_an_empty_body_is_a_message_of_json_alone(mount: Mount) -> None:
    record = {"body": "", "keys": ["K"], "tags": "t", "properties": {"city": "Köln"}}
    mount.publish("orders/0/append@format=json", json.dumps(record).encode() + b"\n")
    inode = mount.stat("orders/0/0").inode
    assert mount.cat("orders/0/0") == b""
    assert mount.fs.getxattr(inode, b"user.mq.property.city") == "Köln".encode()
    assert mount.fs.getxattr(inode, b"user.mq.tags") == b"t"


def test_fsync_is_answered_when_everything_is_durable(mount: Mount, store: MessageStore) -> None:
    handle = mount.open("orders/0/append", os.O_WRONLY).handle
    mount.fs.write(handle, AT_END, b"a line\nand a rest")
    physical_end = mount.fs.fsync(handle)
    assert physical_end == store.physical_end
    store.wait_durable(physical_end)
    assert store.durable_end >= physical_end


def test_reports_of_a_real_store_are_json_and_metrics(mount: Mount, store: MessageStore) -> None:
    mount.publish("orders/append", b"a\nb\n")
    status = json.loads(mount.cat("@store/status.json"))
    assert status["stats"]["messages"] == 2
    config = json.loads(mount.cat("@store/config.json"))["store"]
    assert (config["mode"], config["identity"]) == ("write", asdict(store.identity))
    assert b"fsstore_messages 2\n" in mount.cat("@store/metrics")
    space = patiently(mount.fs.statfs)
    assert space.files - space.files_free == 2


def test_a_topic_deleted_by_control_is_gone_and_can_be_made_again(mount: Mount) -> None:
    mount.publish("orders/0/append", b"old\n")
    inode = mount.stat("orders/0.log").inode
    topic = mount.stat("orders").inode
    mount.publish("@store/control", b'{"delete_topic": "orders"}\n')
    assert topic in mount.fs.topics_changed()
    assert mount.ls("/") == ["@store", "@parquet"]
    patiently(mount.fs.mkdir, ROOT_INODE, b"orders")
    mount.publish("orders/0/append", b"new\n")
    assert mount.cat("orders/0.log") == b"new\n"
    assert mount.stat("orders/0.log").inode != inode


@pytest.mark.parametrize("mode", [OpenMode.READ_ONLY, OpenMode.FOLLOW])
def test_a_store_that_is_only_read_shows_everything_and_takes_nothing(tmp_path: Path, mode: OpenMode) -> None:
    with MessageStore.open(tmp_path / "store", create=True) as store:
        store.create_topic("orders")
        Mount(store).publish("orders/0/append@keys=K", b"body\n")
    with MessageStore.open(tmp_path / "store", StoreConfig(mode=mode)) as store:
        mount = Mount(store)
        assert mount.cat("orders/0/0") == b"body"
        assert mount.cat("orders/0.log") == b"body\n"
        assert mount.readlink("orders/keys/K") == "../0/" + offset_name(0).decode()
        assert refused_with(lambda: mount.open("orders/0/append", os.O_WRONLY)) is not None
        assert mount.ls("@store") == [*REPORTS, "groups"]
        with pytest.raises(ReadOnlyStoreError):
            store.create_topic("more")
        mount.fs.close()


def test_a_stream_of_many_short_messages_is_copied_in_a_thread(mount: Mount, store: MessageStore) -> None:
    store.put_lines("orders", b"a\n" * 40_000 + b"x" * 300_000 + b"\n", 1)
    handle = mount.open("orders/1.log").handle
    with pytest.raises(SlowWork) as raised:
        mount.fs.read(handle, 0, 1 << 17)
    raised.value.work()
    assert mount.fs.read(handle, 0, 1 << 17) == b"a\n" * 40_000 + b"x" * ((1 << 17) - 80_000)
    assert len(mount.fs.read(handle, 1 << 17, 1 << 17)) == 1 << 17  # few messages are copied at once


@pytest.mark.parametrize("report", ["status.json", "metrics"])
def test_reports_are_there_while_topics_come_and_go(mount: Mount, store: MessageStore, report: str) -> None:
    enough, changes = threading.Event(), 0

    def come_and_go() -> None:
        nonlocal changes
        while not enough.is_set():
            store.create_topic("brief")
            store.delete_topic("brief")
            changes += 1

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        while changes < 30 and other.is_alive():
            assert "orders" in mount.cat(f"@store/{report}").decode()
    finally:
        enough.set()
        other.join()
    assert changes >= 30

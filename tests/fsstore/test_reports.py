"""`@store/`: status, configuration, metrics, consumer groups, control."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest

from engine import Message, MessageStore, RecoveryReport, RefusedReadError, StoreStats, rows_of
from engine.derived.consume_queue import ConsumeQueue
from engine.derived.consume_queues import ConsumeQueues
from fsstore.core import Filesystem
from fsstore.interface import FilesystemError, SlowWork
from fsstore.tree.nodes import Creation
from fsstore.tree.status import status_of
from fsstore.tree.store_reports import LOOK_NS
from tests.fsstore.conftest import OPTIONS, Mount, patiently, refused_with, set_offsets

OFFSETS = {"orders@%RETRY%billing": {"0": 1, "1": 7, "10": 0, "9": 4}, "gone@%RETRY%billing": {"0": 3}}


@pytest.fixture(autouse=True)
def store_with_a_group(store: MessageStore) -> None:
    for body in (b"a", b"b", b"c"):
        store.put(Message("orders", body), 0)
    set_offsets(store, OFFSETS)


def test_status_tells_mode_bounds_and_lag(mount: Mount, store: MessageStore) -> None:
    status = json.loads(mount.cat("@store/status.json"))
    assert status["pid"] == os.getpid()
    assert status["store"] == str(store.path)
    assert (status["mode"], status["read_only_reason"]) == ("write", None)
    assert status["stats"]["messages"] == 3
    assert status["topics"]["orders"]["queues"]["0"] == {"min_offset": 0, "max_offset": 3}
    assert status["groups"]["%RETRY%billing"]["orders"]["0"] == {"offset": 1, "lag": 2, "expired": 0}
    assert status["groups"]["%RETRY%billing"]["orders"]["1"] == {"offset": 7, "lag": 0, "expired": 0}
    assert status["groups"]["%RETRY%billing"]["gone"]["0"] == {"offset": 3, "lag": 0, "expired": 0}
    told = json.loads(json.dumps(status_of(store)))
    for one in (status, told):
        del one["stats"]["disk_free_bytes"]  # others write there, too
    assert status | told == status


def test_a_queue_of_which_the_disk_refuses_the_end_is_said_and_costs_no_other(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(Message("orders", b"other"), 1)
    find, refused = ConsumeQueues._found, RefusedReadError(-1, "the disk refuses a page of it", Path("queue"), 0)

    def found(self: ConsumeQueues, key: tuple[str, int]) -> ConsumeQueue:
        if key == ("orders", 7):
            raise refused
        return find(self, key)

    monkeypatch.setattr(ConsumeQueues, "_found", found)
    (store.path / "consumequeue" / "orders" / "7").mkdir()
    (store.path / "consumequeue" / "orders" / "7" / "0").touch()
    store._parts.queues.load()
    status = status_of(store)
    assert status["refused_queues"] == ["orders/7: queue can't be read at byte 0: the disk refuses a page of it"]
    topics = json.loads(json.dumps(status["topics"]))
    assert topics["orders"]["queues"]["1"] == {"min_offset": 0, "max_offset": 1}
    assert "7" not in topics["orders"]["queues"]


def test_a_report_has_a_line_for_a_topic(mount: Mount, store: MessageStore) -> None:
    lines = mount.cat("@store/status.json").splitlines()
    of_topic = next(line for line in lines if line.strip().startswith(b'"orders"'))
    assert json.loads(b"{" + of_topic.strip().removesuffix(b",") + b"}")["orders"]["queues"]["0"]["max_offset"] == 3


def test_the_mount_adds_its_own_fields_to_status(store: MessageStore) -> None:
    mount = Mount(store)
    mount.fs = Filesystem(store, OPTIONS, status=lambda: {"mount_point": "/mnt"})
    assert json.loads(mount.cat("@store/status.json"))["mount_point"] == "/mnt"


def test_configuration_tells_sizes_and_modes(mount: Mount, store: MessageStore) -> None:
    config = json.loads(mount.cat("@store/config.json"))
    assert config["store"]["sizes"]["commit_log_bytes"] == store.sizes.commit_log_bytes
    assert config["store"]["max_message_bytes"] == 4 << 20
    assert config["store"]["mode"] == "write"
    assert config["store"]["store_host"] == "127.0.0.1:10911"
    assert config["store"]["flush"]["interval_ms"] == store.config.flush.interval_ms
    assert config["mount"]["append_mode"] == "0644"


def test_each_figure_of_the_store_is_a_metric(mount: Mount) -> None:
    rows = dict(rows_of(StoreStats))
    assert rows.keys() >= {field.name for field in fields(StoreStats) if field.type in ("int", "bool")}
    shown = mount.cat("@store/metrics").decode().splitlines()
    for name, row in [*rows.items(), *rows_of(RecoveryReport)]:
        metric = f"fsstore_{row.metric or name}{'_total' * (row.kind == 'counter')}"
        assert {f"# HELP {metric} {row.help}.", f"# TYPE {metric} {row.kind}"} <= {*shown}


def test_metrics_tell_figures_bounds_and_lag(mount: Mount, store: MessageStore) -> None:
    samples = mount.cat("@store/metrics").decode().splitlines()
    assert "fsstore_messages 3" in samples
    assert 'fsstore_queue_max_offset{topic="orders",queue="0"} 3' in samples
    assert 'fsstore_group_lag{group="%RETRY%billing",topic="orders",queue="0"} 2' in samples


def note_a_refusal(mount: Mount) -> None:
    error = FilesystemError(errno.ENOENT)
    mount.fs.note_refused_name(mount.stat("orders").inode, b"append@x", 1, errno.ENOENT, error)


@pytest.mark.parametrize("name", ["status.json", "config.json", "metrics", "refusals"])
def test_a_report_stays_as_it_was_looked_up(mount: Mount, store: MessageStore, name: str) -> None:
    attributes = mount.stat(f"@store/{name}")
    assert attributes.mode == stat.S_IFREG | (0o400 if name == "refusals" else 0o444)
    assert (attributes.entry_timeout, attributes.attr_timeout) == (0, 0)
    opened = mount.fs.open(attributes.inode, os.O_RDONLY)
    assert opened.direct_io
    note_a_refusal(mount)
    store.put(Message("orders", b"later"), 0)
    later = mount.stat(f"@store/{name}")
    text = bytes(mount.fs.read(opened.handle, 0, 1 << 20))
    assert len(text) == mount.fs.getattr(attributes.inode).size == attributes.size
    assert mount.fs.getattr(attributes.inode) == attributes
    assert later.st_ino == attributes.st_ino
    assert (later.inode == attributes.inode) == (mount.cat(f"@store/{name}") == text)


def test_who_opens_what_he_looked_up_finds_the_same_unless_something_came(store: MessageStore) -> None:
    mount = Mount(store)
    now_ns = time.time_ns()
    mount.fs = Filesystem(store, OPTIONS, clock_ns=lambda: now_ns)

    def looked_up() -> int:
        mount.fs.requests.counts[7] += 1
        return mount.stat("@store/metrics").inode

    first = looked_up()
    assert looked_up() == first
    mount.fs.open(first, os.O_RDONLY)
    second = looked_up()
    assert second != first
    now_ns += LOOK_NS - 1
    assert looked_up() == second
    store.put(Message("orders", b"one more"), 0)
    third = looked_up()
    assert third != second
    now_ns += LOOK_NS
    assert looked_up() != third


def test_the_time_of_a_report_is_that_of_its_last_change(store: MessageStore) -> None:
    mount = Mount(store)
    now_ns = time.time_ns()
    mount.fs = Filesystem(store, OPTIONS, clock_ns=lambda: now_ns)
    first = mount.stat("@store/refusals")
    for _ in range(2):
        now_ns += LOOK_NS
        assert mount.stat("@store/refusals") == first
    note_a_refusal(mount)
    assert mount.stat("@store/refusals").mtime_ns == now_ns


def test_consumer_offsets_are_numbers_under_group_topic_queue(mount: Mount, store: MessageStore) -> None:
    assert mount.ls("@store/groups") == ["%RETRY%billing"]
    assert mount.ls("@store/groups/%RETRY%billing") == ["gone", "orders"]
    assert mount.ls("@store/groups/%RETRY%billing/orders") == ["0", "1", "9", "10"]
    assert mount.cat("@store/groups/%RETRY%billing/orders/0") == b"1\n"
    set_offsets(store, {"orders@%RETRY%billing": {"0": 12}})
    assert mount.cat("@store/groups/%RETRY%billing/orders/0") == b"12\n"
    assert mount.stat("@store/groups/%RETRY%billing/orders/0").mode == stat.S_IFREG | 0o600


@pytest.mark.parametrize("path", ["g", "%RETRY%billing/t", "%RETRY%billing/orders/2", "%RETRY%billing/orders/x"])
def test_a_group_that_consumed_nothing_there_is_not_found(mount: Mount, path: str) -> None:
    assert refused_with(lambda: mount.stat(f"@store/groups/{path}")) == errno.ENOENT


def test_a_group_that_is_gone_is_not_found_by_inode_either(mount: Mount, store: MessageStore) -> None:
    inode = mount.stat("@store/groups/%RETRY%billing/orders/0").inode
    set_offsets(store, {})
    assert refused_with(lambda: patiently(mount.fs.getattr, inode)) == errno.ENOENT


def test_the_newest_groups_without_an_offset_are_known(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsstore.tree.groups.MOST_MADE", 3)
    groups = mount.stat("@store/groups").inode
    for number in range(5):
        patiently(mount.fs.mkdir, groups, b"group-%d" % number)
    assert mount.ls("@store/groups") == ["%RETRY%billing", "group-2", "group-3", "group-4"]
    mount.fs.mkdir(mount.stat("@store/groups/group-4").inode, b"orders")
    assert mount.ls("@store/groups") == ["%RETRY%billing", "group-3", "group-4"]


def test_a_group_with_an_offset_is_known_by_that(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsstore.tree.groups.MOST_MADE", 3)
    groups = mount.stat("@store/groups").inode
    patiently(mount.fs.mkdir, groups, b"kept")
    patiently(mount.fs.mkdir, mount.stat("@store/groups/kept").inode, b"orders")
    how = Creation(os.O_WRONLY | os.O_CREAT, 0o600, 0, 0)
    _, opened = patiently(mount.fs.create, mount.stat("@store/groups/kept/orders").inode, b"0", how)
    patiently(mount.fs.write, opened.handle, 0, b"1")
    for number in range(5):
        patiently(mount.fs.mkdir, groups, b"group-%d" % number)
    assert mount.cat("@store/groups/kept/orders/0") == b"1\n"


def test_only_the_owner_makes_groups_whatever_the_mode_of_directories(store: MessageStore) -> None:
    mount = Mount(store, replace(OPTIONS, directory_mode=0o777))
    modes = [mount.stat(path).mode & 0o777 for path in ("orders", "@store/groups", "@store/groups/%RETRY%billing")]
    assert modes == [0o777, 0o755, 0o755]


def test_control_deletes_a_topic(mount: Mount, store: MessageStore) -> None:
    assert mount.stat("@store/control").mode == stat.S_IFREG | 0o600
    assert mount.cat("@store/control") == b""
    mount.publish("@store/control", b'{"delete_topic": "orders"}\n')
    assert store.topics() == []


def test_a_command_waits_for_the_disk_in_a_thread_and_is_done_once(mount: Mount, store: MessageStore) -> None:
    handle = mount.open("@store/control", os.O_WRONLY).handle
    for command, topics in ((b'{"delete_topic": "orders"}', []), (b'{"create_topics": {"orders": 2}}', ["orders"])) * 2:
        before = store.topics()
        with pytest.raises(SlowWork) as slow:
            mount.fs.write(handle, 0, command)
        assert store.topics() == before != topics
        slow.value.work()
        assert store.topics() == topics
        mount.fs.write(handle, 0, command)  # a second time it would be refused
        assert store.topics() == topics


@pytest.mark.parametrize(
    ("command", "done"),
    [
        (b'{"delete_topic": "orders"}', []),
        (b'{"create_topics": {"letters": 2, "bills": 1}}', ["bills", "letters", "orders"]),
    ],
)
def test_a_command_that_a_killed_server_had_begun_is_done_once(
    mount: Mount, store: MessageStore, command: bytes, done: list[str]
) -> None:
    for _ in range(2):
        with mount.fs.already_begun():
            mount.publish("@store/control", command)
        assert store.topics() == done


def test_control_makes_topics_with_as_many_queues_as_asked(mount: Mount, store: MessageStore) -> None:
    mount.publish("@store/control", b'{"create_topics": {"letters": 2, "bills": 1}}\n')
    assert (store.queues("letters"), store.queues("bills")) == ([0, 1], [0])


def test_control_makes_thousands_of_topics_with_one_command(mount: Mount, store: MessageStore) -> None:
    topics = {f"topic-{number}": 4 for number in range(3_000)}
    mount.publish("@store/control", json.dumps({"create_topics": topics}).encode())
    assert set(store.topics()) == {"orders", *topics}
    counter = json.loads((store.path / "config/topics.json").read_bytes())["dataVersion"]["counter"]
    assert counter == 2


@pytest.mark.parametrize(
    ("command", "number"),
    [
        (b'{"delete_topic": "none"}', errno.ENOENT),
        (b'{"delete_topic": 1}', errno.EINVAL),
        (b'{"delete_topic": "orders", "really": true}', errno.EINVAL),
        (b'{"drop": "orders"}', errno.EINVAL),
        (b'{"create_topics": {"letters": 2, "orders": 2}}', errno.EEXIST),
        (b'{"create_topics": {"letters": 2, "orders": 2, "a b": 2}}', errno.EINVAL),
        (b'{"create_topics": {"letters": 2, "a b": 2}}', errno.EINVAL),
        (b'{"create_topics": {"letters": 2000}}', errno.EINVAL),
        (b'{"create_topics": {"letters": "2"}}', errno.EINVAL),
        (b'{"create_topics": {"letters": true}}', errno.EINVAL),
        (b'{"create_topics": ["letters"]}', errno.EINVAL),
        (b'{"create_topics": {"letters": 2}, "queues": 2}', errno.EINVAL),
        (b'{"create_topic": "letters", "queues": 2}', errno.EINVAL),
        (b'{"flush": 1}', errno.EINVAL),
        (b"[]", errno.EINVAL),
        (b"rm -rf", errno.EINVAL),
        (b"[" * 100_000, errno.EINVAL),
    ],
)
def test_control_refuses_what_is_no_command(mount: Mount, store: MessageStore, command: bytes, number: int) -> None:
    assert refused_with(lambda: mount.publish("@store/control", command)) == number
    assert store.topics() == ["orders"]


def test_statfs_counts_messages_as_files(mount: Mount, store: MessageStore) -> None:
    space = patiently(mount.fs.statfs)
    assert space.files - space.files_free == 3
    assert space.blocks * space.block_size == os.statvfs(store.path).f_blocks * os.statvfs(store.path).f_frsize
    assert space.name_max == 255


def test_reports_stay_when_the_kernel_forgets_them(mount: Mount) -> None:
    for _ in range(2):
        directory, status = mount.stat("@store").inode, mount.stat("@store/status.json").inode
        mount.fs.forget(status, 1)
        mount.fs.forget(directory, 2)
    assert mount.cat("@store/status.json")


def test_what_asks_every_queue_is_slow_work_for_each_request(mount: Mount, store: MessageStore) -> None:
    directory = mount.stat("@store").inode
    looks: list[Callable[[], object]] = [
        partial(mount.fs.lookup, directory, name) for name in (b"status.json", b"metrics")
    ]
    for request in (*looks, mount.fs.statfs):
        for number in range(2):
            store.put(Message("orders", b"%d" % number), 0)
            with pytest.raises(SlowWork) as asked:
                request()
            asked.value.work()
            request()


def test_listing_reports_asks_no_queue(mount: Mount) -> None:
    handle = mount.fs.opendir(mount.stat("@store").inode).handle
    listed = mount.fs.readdir(handle, 0, 100)
    assert isinstance(listed, list)
    shown = {entry.name.decode(): entry.attributes for entry in listed}
    assert [*shown] == ["status.json", "config.json", "metrics", "refusals", "groups", "control"]
    for name in ("status.json", "refusals"):
        assert shown[name].inode == 0  # a kernel looks it up
        assert shown[name].st_ino == mount.stat(f"@store/{name}").st_ino

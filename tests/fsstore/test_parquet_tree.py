"""`@parquet` in the tree: what is listed and found, what is never rendered, and what becomes of files that expire."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Expired, Message, MessageStore, OpenMode, Retention, StoreConfig
from fsstore.interface import Attributes, FilesystemOptions, SlowWork
from fsstore.parquet import dataset
from fsstore.parquet.names import segment_name
from fsstore.parquet.options import ParquetOptions
from tests.fsstore.conftest import OPTIONS, Mount, refused_with
from tests.fsstore.parquetfiles import expected_rows, layout_of, rendered, rows, small_files

QUEUE = "@parquet/topic=orders/queue=0"


class ParquetMount(Mount):
    """A mount whose slow work is done at once, and counted."""

    slow = 0

    def _again(self, ask: Any) -> Any:
        while True:
            try:
                return ask()
            except SlowWork as work:
                self.slow += 1
                work.work()

    def stat(self, path: str | bytes) -> Attributes:
        attributes = self.fs.getattr(1)
        for name in [name for name in os.fsencode(path).split(b"/") if name]:
            attributes = self._again(partial(self.fs.lookup, attributes.inode, name))
        return attributes

    def read(self, handle: int, position: int, size: int) -> bytes:
        return bytes(self._again(lambda: self.fs.read(handle, position, size)))

    def cat(self, path: str | bytes, request_bytes: int = 1 << 17) -> bytes:
        handle = self.open(path).handle
        text = b""
        while piece := self.read(handle, len(text), request_bytes):
            text += piece
        self.fs.release(handle)
        return text

    def parquet(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(super().cat("@store/status.json"))["parquet"]
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "store", small_files(retention=Retention(max_bytes=1))) as store:
        store.create_topic("orders", 2)
        store.put_lines("orders", b"".join(b"%0100d\n" % number for number in range(12_000)), 0)
        yield store


@pytest.fixture
def mount(store: MessageStore) -> Iterator[ParquetMount]:
    mount = ParquetMount(store)
    yield mount
    assert mount.fs.close() == 0


def mount_with(store: MessageStore, **options: Any) -> ParquetMount:
    return ParquetMount(store, FilesystemOptions(uid=1, gid=1, parquet=ParquetOptions(**options)))


def test_topics_queues_and_segments_are_listed(mount: ParquetMount, store: MessageStore) -> None:
    store.create_topic("%RETRY%g", 1)
    assert mount.ls("@parquet") == ["topic=%25RETRY%25g", "topic=orders"]
    assert mount.ls("@parquet/topic=orders") == ["queue=0", "queue=1"]
    assert mount.ls("@parquet/topic=orders/queue=1") == []
    names = mount.ls(QUEUE)
    assert names[0].startswith("0" * 20 + "-")
    assert [name.endswith(".tail.parquet") for name in names] == [False] * (len(names) - 1) + [True]
    assert names[-1][21:41] == f"{12_000:020}"


def test_what_is_listed_is_what_a_look_up_finds(mount: ParquetMount) -> None:
    listed = mount.entries(QUEUE)
    assert len(listed) > 2
    for name, (inode, size) in listed.items():
        found = mount.stat(f"{QUEUE}/{name.decode()}")
        assert (found.inode, found.size) == (inode, size)


def test_what_is_listed_again_is_what_a_look_up_finds(mount: ParquetMount, store: MessageStore) -> None:
    before = mount.entries(QUEUE)
    assert mount.entries(QUEUE) == before
    forgotten = next(iter(before))
    mount.fs.forget(before[forgotten][0], 1 << 30)
    store.put_lines("orders", b"one more\n" * 100, 0)
    again = mount.entries(QUEUE)
    assert {name for name in again if again[name] == before.get(name)} == set(list(before)[1:-1])  # not the tail
    for name, (inode, size) in again.items():
        found = mount.stat(f"{QUEUE}/{name.decode()}")
        assert (found.inode, found.size) == (inode, size)


def test_a_topic_made_anew_lists_its_own_files_before_the_kernel_is_told(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "again", small_files()) as store:
        mount = ParquetMount(store)
        file_bytes = store.sizes.commit_log_bytes
        listed = []
        for _ in range(2):
            store.put_lines("filler", b"x" * (file_bytes - store.physical_end % file_bytes - 2_000) + b"\n", 0)
            store.create_topic("orders", 1)
            for number in range(100):  # from the last bytes of a file into the next one
                store.put_lines("orders", b"%03d\n" % number, 0)
            listed.append(mount.entries(QUEUE))
            assert {name: mount.stat(f"{QUEUE}/{name.decode()}").inode for name in listed[-1]} == {
                name: inode for name, (inode, _) in listed[-1].items()
            }
            store.delete_topic("orders")
        assert listed[0].keys() == listed[1].keys()
        assert not set(listed[0].values()) & set(listed[1].values())
        mount.fs.close()


def test_listing_and_stat_render_nothing(mount: ParquetMount) -> None:
    for name in mount.ls(QUEUE):
        mount.stat(f"{QUEUE}/{name}")
    assert mount.parquet()["rendered_row_groups"] == 0


def test_a_file_has_the_size_that_stat_showed_and_the_time_of_its_last_message(
    mount: ParquetMount, store: MessageStore
) -> None:
    found = []
    for name in mount.ls(QUEUE):
        attributes = mount.stat(f"{QUEUE}/{name}")
        text = mount.cat(f"{QUEUE}/{name}")
        assert len(text) == attributes.size
        found += rows(text)
        assert attributes.mtime_ns // 1_000_000 == found[-1]["store_time"]
    assert found == expected_rows(store, "orders")


@pytest.mark.parametrize("request_bytes", [4096, 99_991, 1 << 30])
def test_any_bytes_can_be_read_by_themselves(mount: ParquetMount, store: MessageStore, request_bytes: int) -> None:
    name = mount.ls(QUEUE)[0]
    text = rendered(store, layout_of(store, "orders", end=int(name[21:41])))[0]
    handle = mount.open(f"{QUEUE}/{name}").handle
    for position in range(len(text) - 1, -1, -request_bytes):
        assert mount.read(handle, position, request_bytes) == text[position : position + request_bytes]
    assert mount.read(handle, len(text), 1) == b""
    assert mount.cat(f"{QUEUE}/{name}", request_bytes) == text


@pytest.mark.parametrize(
    "options", [{"memory_bytes": 0, "disk_bytes": 0}, {"memory_bytes": 1 << 20, "disk_bytes": 1 << 20}]
)
def test_a_cache_too_small_for_a_file_costs_only_time(store: MessageStore, options: dict[str, int]) -> None:
    mount = mount_with(store, **options)
    for name in mount.ls(QUEUE):
        begin, end = int(name[:20]), int(name[21:41])
        assert mount.cat(f"{QUEUE}/{name}") == rendered(store, layout_of(store, "orders", 0, begin, end))[0]
    status = mount.parquet()
    assert status["memory_bytes"] <= options["memory_bytes"]
    assert status["disk_bytes"] <= options["disk_bytes"]
    assert mount.fs.close() == 0
    cache = store.path / "fsstore" / "parquet"
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_file_is_rendered_once(mount: ParquetMount) -> None:
    name = mount.ls(QUEUE)[0]
    assert mount.cat(f"{QUEUE}/{name}") == mount.cat(f"{QUEUE}/{name}")
    assert mount.parquet()["rendered_files"] == 1


def test_a_listed_tail_reads_exactly_that_tail_however_the_queue_grows(
    mount: ParquetMount, store: MessageStore
) -> None:
    tail = mount.ls(QUEUE)[-1]
    size = mount.stat(f"{QUEUE}/{tail}").size
    store.put_lines("orders", b"more\n" * 20_000, 0)
    assert tail not in mount.ls(QUEUE)
    assert mount.stat(f"{QUEUE}/{tail}").size == size
    assert rows(mount.cat(f"{QUEUE}/{tail}"))[-1]["queue_offset"] == 11_999


def test_any_range_that_is_there_can_be_looked_up(mount: ParquetMount) -> None:
    for begin, end in ((0, 1), (17, 11_111), (11_999, 12_000)):
        for is_tail in (False, True):
            name = segment_name(begin, end, is_tail=is_tail).decode()
            assert [row["queue_offset"] for row in rows(mount.cat(f"{QUEUE}/{name}"))] == list(range(begin, end))


@pytest.mark.parametrize(
    "name",
    [
        segment_name(0, 12_001).decode(),
        segment_name(12_000, 12_001).decode(),
        segment_name(5, 5).decode(),
        "0-5.parquet",
        "00000000000000000000",
    ],
)
def test_other_names_are_not_there(mount: ParquetMount, name: str) -> None:
    assert refused_with(lambda: mount.stat(f"{QUEUE}/{name}")) == errno.ENOENT


def test_what_hadoop_asks_for_beside_every_file_may_be_cached_as_absent(mount: ParquetMount) -> None:
    for path in ("@parquet/.x.crc", f"{QUEUE}/.{segment_name(0, 5).decode()}.crc"):
        attributes = mount.stat(path)
        assert (attributes.inode, attributes.entry_timeout > 60) == (0, True)


def test_nothing_of_it_can_be_changed(mount: ParquetMount) -> None:
    file = mount.stat(f"{QUEUE}/{mount.ls(QUEUE)[0]}")
    assert file.mode & 0o222 == 0
    for inode in (file.inode, mount.stat(QUEUE).inode, mount.stat("@parquet").inode):
        assert refused_with(partial(mount.fs.setattr, inode)) == errno.EPERM
    assert refused_with(lambda: mount.fs.open(file.inode, os.O_WRONLY)) == errno.EPERM
    assert refused_with(lambda: mount.fs.mkdir(mount.stat("@parquet").inode, b"topic=x")) == errno.EPERM


def test_a_large_file_is_measured_in_a_thread(mount: ParquetMount, store: MessageStore) -> None:
    store.put_lines("orders", b"short\n" * 30_000, 1)
    path = f"@parquet/topic=orders/queue=1/{segment_name(0, 30_000).decode()}"
    mount.stat("@parquet/topic=orders/queue=1")
    before = mount.slow
    mount.stat(path)
    assert mount.slow == before + 1
    mount.stat(path)
    assert mount.slow == before + 1


def test_expired_files_are_gone_and_the_kernel_is_told(mount: ParquetMount, store: MessageStore) -> None:
    names = mount.ls(QUEUE)
    inodes = {name: mount.stat(f"{QUEUE}/{name}").inode for name in names}
    open_before, read_before = mount.open(f"{QUEUE}/{names[0]}").handle, mount.open(f"{QUEUE}/{names[1]}").handle
    some = mount.read(read_before, 0, 1000)
    old_min = store.bounds("orders", 0).min_offset
    assert store.clean()
    new_min = store.bounds("orders", 0).min_offset
    left = [name for name in names if int(name[:20]) >= new_min]
    assert mount.ls(QUEUE) == left
    told = set(mount.fs.expired(Expired("orders", 0, old_min, new_min, np.empty(0, np.int64))))
    for name in names:
        assert (inodes[name] in told) == (name not in left)
    assert refused_with(lambda: mount.stat(f"{QUEUE}/{names[0]}")) == errno.ENOENT
    assert refused_with(lambda: mount.fs.open(inodes[names[0]], os.O_RDONLY)) == errno.ESTALE
    assert refused_with(lambda: mount.read(open_before, 0, 1000)) == errno.EIO
    assert mount.read(read_before, 0, 1000) == some


def test_a_topic_that_is_deleted_takes_its_files_along(mount: ParquetMount, store: MessageStore) -> None:
    name = mount.ls(QUEUE)[0]
    inode = mount.stat(f"{QUEUE}/{name}").inode
    partition = mount.stat("@parquet/topic=orders").inode
    mount.cat(f"{QUEUE}/{name}")
    store.delete_topic("orders")
    assert {partition, inode} <= set(mount.fs.topics_changed())
    assert mount.ls("@parquet") == []
    store.create_topic("orders", 1)
    store.put_lines("orders", b"".join(b"another %d\n" % number for number in range(12_000)), 0)
    again = mount.ls(QUEUE)[0]
    assert mount.stat(f"{QUEUE}/{again}").inode != inode
    assert rows(mount.cat(f"{QUEUE}/{again}"))[0]["body"] == b"another 0"


def test_an_open_file_never_shows_another_topic_of_that_name(mount: ParquetMount, store: MessageStore) -> None:
    handle = mount.open(f"{QUEUE}/{segment_name(0, 100).decode()}").handle
    store.delete_topic("orders")
    store.create_topic("orders", 1)
    store.put_lines("orders", b"%0100d\n" % 1 * 100, 0)
    assert refused_with(lambda: mount.read(handle, 0, 1000)) == errno.EIO


def test_left_out_messages_are_counted_in_status(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", small_files()) as store:
        store.create_topic("orders", 1)
        for number in range(5):
            store.put(Message("orders", b"the body of %d" % number), 0)
    log = next((tmp_path / "store" / "commitlog").iterdir())
    log.write_bytes(log.read_bytes().replace(b"the body of 3", b"The body of 3"))
    with MessageStore.open(tmp_path / "store", StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        mount = ParquetMount(store)
        assert mount.parquet()["left_out_messages"] == 0
        for name in mount.ls(QUEUE):
            mount.cat(f"{QUEUE}/{name}")
        assert mount.parquet()["left_out_messages"] == 1


def test_a_read_only_mount_writes_nothing_below_the_store(store: MessageStore, tmp_path: Path) -> None:
    store.close()
    before = {path: path.stat().st_mtime_ns for path in store.path.rglob("*")}
    with MessageStore.open(store.path, StoreConfig(mode=OpenMode.READ_ONLY)) as reader:
        mount = mount_with(reader, memory_bytes=1000)
        names = mount.ls(QUEUE)
        plain = [mount.cat(f"{QUEUE}/{name}") for name in names]
        assert mount.parquet()["disk_bytes"] == 0
        cached = mount_with(reader, memory_bytes=1000, directory=tmp_path / "cache")
        for _ in range(2):
            assert [cached.cat(f"{QUEUE}/{name}") for name in names] == plain
        assert cached.parquet()["disk_bytes"] > 0
        assert cached.fs.close() == mount.fs.close() == 0
    assert list((tmp_path / "cache").iterdir()) == []
    assert {path: path.stat().st_mtime_ns for path in store.path.rglob("*")} == before


def test_without_pyarrow_it_is_not_there_and_status_says_so(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "find_spec", lambda name: None if name == "pyarrow" else find_spec(name))
    mount = ParquetMount(store, OPTIONS)
    assert "@parquet" not in mount.ls("/")
    assert refused_with(lambda: mount.stat("@parquet")) == errno.ENOENT
    assert mount.parquet() == {"available": False, "reason": "pyarrow is not installed"}
    assert mount.fs.close() == 0

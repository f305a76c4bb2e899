"""`@parquet` in the tree: what is listed and found, what is never rendered, and what becomes of files that expire."""

from __future__ import annotations

import errno
import json
import os
import tracemalloc
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Expired, Message, MessageStore, OpenMode, Retention, StoreConfig
from fsstore.interface import Attributes, FilesystemOptions, SlowWork
from fsstore.options import ParquetOptions
from fsstore.parquet import dataset
from fsstore.parquet import layout as layouts
from fsstore.parquet.file_map import FileMap
from fsstore.parquet.format import SCHEMA
from fsstore.parquet.names import segment_name
from tests.fsstore.conftest import Mount, patiently, refused_with
from tests.fsstore.parquetfiles import expected_rows, layout_of, mapped, rendered, rows, small_files

QUEUE = "@parquet/topic=orders/queue=0"
IN_FILE = [column.name for column in SCHEMA.in_file]


class ParquetMount(Mount):
    """A mount whose slow work is done at once, and counted."""

    slow = 0

    def _again(self, ask: Any) -> Any:
        done = []  # held until it is answered
        while True:
            try:
                return ask()
            except SlowWork as work:
                self.slow += 1
                work.work()
                done.append(work)

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
        self.fs.handles.release(handle)
        return text

    def parquet(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(super().cat("@store/status.json"))["parquet"]
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(
        tmp_path / "store", small_files(retention=Retention(max_bytes=1, clean_interval_ms=3_600_000)), create=True
    ) as store:
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
    with MessageStore.open(tmp_path / "again", small_files(), create=True) as store:
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
    assert (mount.parquet()["rendered_files"], mount.parquet()["rendered_chunks"]) == (0, 0)


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


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_a_cache_too_small_for_a_file_costs_only_time(store: MessageStore, memory_bytes: int) -> None:
    mount = mount_with(store, memory_bytes=memory_bytes)
    for name in mount.ls(QUEUE):
        begin, end = int(name[:20]), int(name[21:41])
        assert mount.cat(f"{QUEUE}/{name}") == rendered(store, layout_of(store, "orders", 0, begin, end))[0]
    assert mount.parquet()["memory_bytes"] <= memory_bytes
    assert mount.fs.close() == 0


def test_a_file_is_rendered_once_but_for_bodies_which_are_in_the_log(mount: ParquetMount) -> None:
    name = mount.ls(QUEUE)[0]
    assert mount.cat(f"{QUEUE}/{name}") == mount.cat(f"{QUEUE}/{name}")
    assert (mount.parquet()["rendered_files"], mount.parquet()["rendered_chunks"]) == (1, len(IN_FILE) + 1)


def test_only_the_columns_that_are_read_are_rendered(mount: ParquetMount, store: MessageStore) -> None:
    name = mount.ls(QUEUE)[0]
    layout = layout_of(store, "orders", end=int(name[21:41]))
    found, [columns] = mapped(store, layout)
    handle = mount.open(f"{QUEUE}/{name}").handle
    assert mount.read(handle, layout.size - len(found.footer), 1 << 20) == found.footer
    assert mount.parquet()["rendered_chunks"] == 0
    for column in ("body", "tags", "body"):
        chunk = columns.chunks[column].encode()
        assert mount.read(handle, int(found.starts[IN_FILE.index(column)]), len(chunk)) == chunk
    assert mount.parquet()["rendered_chunks"] == 2


def test_short_files_count_by_what_they_take_of_memory(mount: ParquetMount) -> None:
    names = [segment_name(number, number + 1) for number in range(100)]
    handles = [mount.open(os.fsencode(QUEUE) + b"/" + name).handle for name in names]
    mount.read(handles[0], 0, 1 << 20)
    tracemalloc.start()
    try:
        for handle in handles[1:]:
            mount.read(handle, 0, 1 << 20)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 2 < mount.parquet()["memory_bytes"] < taken * 2


def test_what_was_rendered_for_a_read_is_there_for_it_whatever_is_read_meanwhile(store: MessageStore) -> None:
    mount = mount_with(store, memory_bytes=0)
    name = mount.ls(QUEUE)[0]
    text, found = rendered(store, layout_of(store, "orders", end=int(name[21:41])))
    handle = mount.open(f"{QUEUE}/{name}").handle
    mount.read(handle, 0, 1)
    body = int(found.starts[IN_FILE.index("body")])
    with pytest.raises(SlowWork) as slow:
        mount.fs.read(handle, body, 100)
    slow.value.work()
    assert mount.read(handle, 0, 4) == b"PAR1"
    assert bytes(mount.fs.read(handle, body, 100)) == text[body : body + 100]


def opened_first(mount: ParquetMount, store: MessageStore) -> tuple[str, int, FileMap]:
    """The oldest file: its name, a handle, and where everything stands in it."""
    name = mount.ls(QUEUE)[0]
    found, _ = mapped(store, layout_of(store, "orders", end=int(name[21:41])))
    return name, mount.open(f"{QUEUE}/{name}").handle, found


def test_a_long_chunk_is_rendered_once_for_a_reader_whatever_is_kept(store: MessageStore) -> None:
    mount = mount_with(store, memory_bytes=0)
    _, handle, found = opened_first(mount, store)
    body = int(found.starts[IN_FILE.index("body")])
    for position in range(body, body + 800_000, 100_000):
        mount.read(handle, position, 100_000)
    assert mount.parquet()["rendered_chunks"] == 1


def test_messages_damaged_after_the_footer_was_read_are_an_error_and_no_wrong_rows(store: MessageStore) -> None:
    mount = mount_with(store, memory_bytes=0)
    name, handle, found = opened_first(mount, store)
    mount.read(handle, 0, 1)
    log = min((store.path / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(log.read_bytes().index(b"%0100d" % 7))
        file.write(b"X")
    start = int(found.starts[IN_FILE.index("body")])
    assert refused_with(lambda: mount.read(handle, start, 100)) == errno.EIO
    assert refused_with(lambda: mount.read(handle, start, 100)) == errno.EIO, "the kernel may still have the footer"
    assert [row["queue_offset"] for row in rows(mount.cat(f"{QUEUE}/{name}"))][:8] == [0, 1, 2, 3, 4, 5, 6, 8]


def test_columns_of_numbers_wait_for_no_thread_once_the_messages_have_been_read(
    mount: ParquetMount, store: MessageStore
) -> None:
    name = mount.ls(QUEUE)[0]
    found, [columns] = mapped(store, layout_of(store, "orders", end=int(name[21:41])))
    handle = mount.open(f"{QUEUE}/{name}").handle
    mount.read(handle, 0, 1)
    slow = mount.slow
    for column in ("queue_offset", "store_time", "tags"):
        mount.read(handle, int(found.starts[IN_FILE.index(column)]), columns.chunks[column].size)
    assert mount.slow == slow
    mount.read(handle, int(found.starts[IN_FILE.index("body")]), columns.chunks["body"].size)
    assert mount.slow == slow + 1


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
    assert refused_with(lambda: patiently(mount.fs.mkdir, mount.stat("@parquet").inode, b"topic=x")) == errno.EPERM


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


def test_an_open_file_of_a_topic_that_is_gone_is_an_error_and_not_absent(
    mount: ParquetMount, store: MessageStore
) -> None:
    handle = mount.open(f"{QUEUE}/{mount.ls(QUEUE)[0]}").handle
    store.delete_topic("orders")
    assert refused_with(lambda: mount.read(handle, 0, 100)) == errno.EIO


def test_left_out_messages_are_counted_in_status(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
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


def test_only_so_many_files_are_remembered_as_shown(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_KEPT_SHOWN", 2)
    log = min((store.path / "commitlog").iterdir())
    with log.open("r+b") as file:
        for number in range(3):
            file.seek(log.read_bytes().index(b"%0100d" % number))
            file.write(b"X")
    mount = mount_with(store)
    for number in range(3):
        mount.cat(os.fsencode(QUEUE) + b"/" + segment_name(number, number + 1))
    assert mount.parquet()["left_out_messages"] == 2


def test_a_file_is_mapped_with_few_of_its_row_groups_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "ROW_GROUP_BYTES", 1 << 20)
    with MessageStore.open(tmp_path / "compressed", create=True) as store:
        store.create_topic("orders", 1)
        store.put_batch([Message("orders", zlib.compress(bytes(1 << 20)), sys_flag=1)] * 40, 0)
        mount = mount_with(store, memory_bytes=0)
        handle = mount.open(f"{QUEUE}/{mount.ls(QUEUE)[0]}").handle
        tracemalloc.start()
        try:
            mount.read(handle, 0, 4)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 10 << 20


def test_nothing_is_written_of_what_is_rendered_but_maps_of_whole_segments(store: MessageStore) -> None:
    store.put_batch([Message("orders", zlib.compress(bytes(5000)), sys_flag=1)] * 100, 0)
    store.flush()
    before = sorted(store.path.rglob("*"))
    ranges = store.path / "fsstore" / "ranges"
    mount = mount_with(store, memory_bytes=1000)
    for _ in range(3):
        for name in mount.ls(QUEUE):
            mount.cat(f"{QUEUE}/{name}")
    kept = sorted(ranges.iterdir())
    assert sorted({*store.path.rglob("*")} - {ranges, *kept}) == before
    assert all(file.stat().st_size < 4096 for file in kept)
    assert mount.fs.close() == 0

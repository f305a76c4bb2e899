"""Disk space of queues: allocated in steps, before a message needs it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine import FileSizes, Message, MessageStore, StoreFullError, check_store
from engine.files.disk import Disk
from engine.files.mapped_file import PAGE_BYTES
from tests.engine.storetools import SMALL, HastyDisk, bodies, opened, require_clean

SIZES = FileSizes(commit_log_bytes=1 << 20, consume_queue_entries=4096, index_slots=17, index_entries=48)
WIDE = replace(SMALL, sizes=SIZES, preallocate=False)
PAGE_ENTRIES = PAGE_BYTES // 20


class NotingDisk(Disk):
    """Notes its calls. Refuses to allocate more to files of queues that are there, while it `is_full`."""

    def __init__(self) -> None:
        self.is_full = False
        self.calls: list[tuple[str, str, int]] = []

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        self.calls.append(("allocate", path.parent.parent.name, size_bytes))
        if self.is_full and start and "consumequeue" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().allocate(descriptor, path, start, size_bytes)

    def sync(self, descriptor: int, path: Path) -> None:
        self.calls.append(("sync", path.name, 0))

    def sync_directory(self, path: Path) -> None:
        self.calls.append(("sync directory", path.name, 0))


def allocated(store: Path, queue: str) -> int:
    """Bytes of disk that a queue's files take."""
    return sum(file.stat().st_blocks * 512 for file in (store / "consumequeue" / queue).iterdir())


@pytest.mark.parametrize(("messages", "most"), [(1, PAGE_BYTES), (100, PAGE_BYTES), (10_000, 2 * 10_000 * 20)])
def test_a_queue_takes_about_the_space_of_its_entries(tmp_path: Path, messages: int, most: int) -> None:
    sizes = replace(SIZES, consume_queue_entries=65_536)
    with opened(tmp_path / "store", replace(WIDE, sizes=sizes)) as store:
        for done in range(0, messages, 500):
            store.put_lines("T", b"line\n" * min(messages - done, 500), 0)
        space = allocated(tmp_path / "store", "T/0")
        assert 20 * messages <= space <= most
    with opened(tmp_path / "store") as store:
        store.put(Message("T", b"one more"), 0)
        assert len(bodies(store, "T", 0)) == messages + 1
    (file,) = (tmp_path / "store" / "consumequeue" / "T" / "0").iterdir()
    assert file.stat().st_size == 65_536 * 20
    assert allocated(tmp_path / "store", "T/0") == space


def test_the_first_message_of_a_queue_takes_a_page_and_waits_for_no_disk(tmp_path: Path) -> None:
    disk = NotingDisk()
    with opened(tmp_path / "store", WIDE, disk=disk) as store:
        store.create_topic("T", 8)
        store.put(Message("T", b"first"), 0)
        disk.calls.clear()
        for queue in range(1, 8):
            store.put(Message("T", b"first"), queue)
        assert disk.calls == [("allocate", "T", PAGE_BYTES)] * 7


def put(store: MessageStore, body: bytes, count: int) -> None:
    for _ in range(count):
        store.put(Message("T", body), 0)


def put_batch(store: MessageStore, body: bytes, count: int) -> None:
    store.put_batch([Message("T", body)] * count, 0)


def put_lines(store: MessageStore, body: bytes, count: int) -> None:
    store.put_lines("T", (body + b"\n") * count, 0)


def put_transactions(store: MessageStore, body: bytes, count: int) -> None:
    """A batch in which each message is a record of its own for the writer."""
    store.put_batch([Message("T", body, sys_flag=8, properties={"__CRC32#": "0"})] * count, 0)


WAYS = [put, put_batch, put_lines, put_transactions]


@pytest.mark.parametrize("buffers", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_the_disk_refuses_refuses_the_put_whole(
    tmp_path: Path, way: Callable[[MessageStore, bytes, int], None], buffers: int
) -> None:
    disk = NotingDisk()
    with opened(tmp_path / "store", WIDE, disk=disk, transient_pool_buffers=buffers) as store:
        store.put(Message("T", b"other"), 1)
        way(store, b"first", PAGE_ENTRIES)
        disk.is_full = True
        before = store.physical_end
        for count in (1, 3 * PAGE_ENTRIES):
            with pytest.raises(StoreFullError):
                way(store, b"refused", count)
        store.put(Message("T", b"goes on"), 1)
        store.put(Message("U", b"goes on"), 0)
        disk.is_full = False
        way(store, b"taken", 3 * PAGE_ENTRIES)
        store.flush()
        assert bodies(store, "T", 0) == [b"first"] * PAGE_ENTRIES + [b"taken"] * 3 * PAGE_ENTRIES
        assert bodies(store, "T", 1) == [b"other", b"goes on"]
        assert b"refused" not in (tmp_path / "store" / "commitlog" / f"{0:020d}").read_bytes()[before:]


@pytest.mark.parametrize("buffers", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_what_the_log_takes_has_space_in_its_queue(
    tmp_path: Path, way: Callable[[MessageStore, bytes, int], None], buffers: int
) -> None:
    """Over the end of a step, and over files."""
    disk = NotingDisk()
    with opened(tmp_path / "store", WIDE, disk=disk, transient_pool_buffers=buffers) as store:
        for count in (1, PAGE_ENTRIES, 900, 4096, 2 * 4096 + 50):
            disk.is_full = False
            with store._parts.log.lock:  # entries that wait are appended by another thread
                store._parts.queues.get_or_create("T", 0).reserve(count)
            disk.is_full = True
            way(store, b"x", count)
        store.flush()
        assert store.bounds("T", 0).max_offset == 1 + PAGE_ENTRIES + 900 + 3 * 4096 + 50


class NearlyFullDisk(Disk):
    """Has `room_bytes` left."""

    room_bytes = 1 << 30

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        if size_bytes > self.room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        self.room_bytes -= size_bytes
        super().allocate(descriptor, path, start, size_bytes)


def test_a_disk_without_room_for_a_step_takes_messages_until_it_is_full(tmp_path: Path) -> None:
    disk = NearlyFullDisk()
    with opened(tmp_path / "store", WIDE, disk=disk) as store:
        put_lines(store, b"first", 4 * PAGE_ENTRIES)  # the next step would have at least four pages
        disk.room_bytes = 2 * PAGE_BYTES
        with pytest.raises(StoreFullError):
            put(store, b"next", 16 * PAGE_ENTRIES)
        taken = store.bounds("T", 0).max_offset
        assert disk.room_bytes == 0
        assert (taken + 1) * 20 > allocated(tmp_path / "store", "T/0")
        assert len(bodies(store, "T", 0)) == taken


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 8 MiB, on which a page without space is a SIGBUS for who writes to it."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.fail("a small filesystem can be mounted by root only: run the tests as root")
    point = tmp_path / "small"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "small", str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def test_first_messages_of_many_queues_that_a_full_disk_has_no_space_for(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with MessageStore.open(small_disk / "store", replace(WIDE, disk=HastyDisk()), create=True) as store:
        for number in range(4):
            store.create_topic(f"T{number}", 250)
        store.put(Message("T0", b"log and topic"), 0)
        with ballast.open("wb") as file:
            found = os.statvfs(small_disk)
            os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - (400 << 10))
        refused, taken = [], []
        queues = [(f"T{number}", queue) for number in range(4) for queue in range(250)]
        for topic, queue in queues:
            try:
                store.put(Message(topic, b"first"), queue)
                taken.append((topic, queue))
            except StoreFullError:
                refused.append((topic, queue))
        assert len(taken) > 50
        assert len(refused) > 500
        assert all(not store.bounds(*key).max_offset for key in refused)
        ballast.unlink()
        for topic, queue in refused:
            store.put(Message(topic, b"first"), queue)
        found_bodies = [bodies(store, *key) for key in queues]
    assert found_bodies == [[b"log and topic", b"first"]] + [[b"first"]] * 999
    require_clean(check_store(small_disk / "store"))

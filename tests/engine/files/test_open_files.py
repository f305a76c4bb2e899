"""Files are evicted beyond a limit, and want of a descriptor is no failure of the disk."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import FileSizes, FlushFailedError, FlushPolicy, Message, MessageStore, NoDescriptorError, OpenMode
from engine.files.disk import Disk
from engine.files.mapped_file import LARGE_BYTES, Access, MappedFile
from engine.files.open_files import MOST_FILES, OpenFiles, files_allowed
from tests.engine.storetools import QUIET, SMALL, bodies, opened, require_clean

SIZE = 2 * LARGE_BYTES


class CountedFile:
    """Can be evicted, or not."""

    def __init__(self, idle: bool = True) -> None:
        self.idle = idle
        self.gone = 0

    def evict(self) -> bool:
        self.gone += self.idle
        return self.idle


class MoodyDisk(Disk):
    """Refuses to sync with `error`, or to open a directory with `want`, while there is one."""

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.want: OSError | None = None

    def sync(self, descriptor: int, path: Path) -> None:
        if self.error is not None:
            raise self.error

    def sync_directory(self, path: Path) -> None:
        if self.want is not None:
            raise self.want


def descriptors(path: Path) -> int:
    """How many descriptors of files below `path` this process has."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith(str(path))
        except FileNotFoundError:
            continue  # that of the listing
    return found


# the list


def test_a_closed_file_counts_no_more(tmp_path: Path) -> None:
    open_files, idle = OpenFiles(2), CountedFile()
    open_files.add(idle)
    file = MappedFile.create(tmp_path / "0", SIZE, Access.WRITE)
    file.count_in(open_files)
    file.close()
    open_files.add(CountedFile())
    assert not idle.gone


def test_the_file_that_was_mapped_longest_ago_is_evicted() -> None:
    open_files = OpenFiles(2)
    files = [CountedFile() for _ in range(5)]
    for file in files:
        open_files.add(file)
    assert [file.gone for file in files] == [1, 1, 1, 0, 0]


def test_a_file_that_is_mapped_again_is_the_newest() -> None:
    open_files = OpenFiles(2)
    first, second, third = CountedFile(), CountedFile(), CountedFile()
    for file in (first, second, first, third):
        open_files.add(file)
    assert (first.gone, second.gone, third.gone) == (0, 1, 0)


def test_files_in_use_stay_and_others_go_for_them() -> None:
    open_files = OpenFiles(2)
    busy, idle = CountedFile(idle=False), CountedFile()
    for file in (busy, idle, CountedFile()):
        open_files.add(file)
    assert idle.gone == 1
    busy.idle = True
    for _ in range(3):
        open_files.add(CountedFile())
    assert busy.gone == 1


@pytest.mark.parametrize(("soft", "allowed"), [(1024, 384), (3, 1), (1 << 20, MOST_FILES), (-1, MOST_FILES)])
def test_the_limit_follows_the_process(monkeypatch: pytest.MonkeyPatch, soft: int, allowed: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, soft))
    assert files_allowed() == allowed


# one file


def test_an_evicted_file_is_on_disk_and_mapped_again_when_needed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = MappedFile.create(path, SIZE, Access.WRITE)
    file.append(b"123")
    assert descriptors(tmp_path) == 2
    assert file.evict()
    assert (file.flushed, descriptors(tmp_path)) == (3, 0)
    assert bytes(file.view(0, 3)) == b"123"
    file.append(b"x" * LARGE_BYTES)
    file.append_head_last(b"y" * 10_000)
    assert path.read_bytes() == (b"123" + b"x" * LARGE_BYTES + b"y" * 10_000).ljust(SIZE, b"\0")
    file.sync()
    file.close()


def test_views_of_a_file_outlive_its_letting_go(tmp_path: Path) -> None:
    file = MappedFile.create(tmp_path / "file", SIZE, Access.WRITE)
    file.append(b"123")
    array = file.array(np.uint8)
    target = file.writable()
    assert file.evict()
    target[0:1] = b"9"
    assert array[0] == ord("9")
    assert bytes(file.view(0, 1)) == b"9"
    file.close()


def test_a_file_that_somebody_holds_or_that_is_only_in_memory_is_not_evicted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    held = MappedFile(path, SIZE, Access.WRITE)
    assert held.hold()
    overlaid = MappedFile(path, SIZE, Access.READ)
    overlaid.writable()[0:1] = b"x"
    buffered = MappedFile.create(tmp_path / "other", SIZE, Access.WRITE)
    buffered.attach_buffer(memoryview(bytearray(SIZE)))
    unfiled = MappedFile.create(tmp_path / "none", SIZE, Access.READ)
    files = (held, overlaid, buffered, unfiled)
    assert not any(file.evict() for file in files)
    assert bytes(overlaid.view(0, 1)) == b"x"
    held.release()
    assert held.evict()
    for file in files:
        file.close()


def test_a_file_whose_sync_fails_is_not_evicted_and_the_next_sync_says_so(tmp_path: Path) -> None:
    disk = MoodyDisk()
    file = MappedFile.create(tmp_path / "file", SIZE, Access.WRITE, disk=disk)
    file.append(b"123")
    disk.error = OSError(errno.EIO, "no")
    assert not file.evict()
    disk.error = None
    with pytest.raises(OSError, match="no"):
        file.sync()
    assert file.flushed == 0
    file.close()


# a store


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that keep three files mapped."""
    monkeypatch.setattr("engine.files.open_files.files_allowed", lambda: 3)


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.READ_ONLY, OpenMode.FOLLOW])
def test_a_store_of_many_queues_keeps_few_descriptors(tmp_path: Path, mode: OpenMode) -> None:
    path = tmp_path / "store"
    expected = {queue: [b"%d-%d" % (queue, turn) for turn in range(40)] for queue in range(20)}
    with opened(path) as store:
        store.create_topic("T", 20)
        for turn in range(40):
            for queue in range(20):
                store.put(Message("T", b"%d-%d" % (queue, turn), ["key"]), queue)
        assert descriptors(path / "consumequeue") <= 2 * 4
        assert descriptors(path / "commitlog") <= 2 * 4 + 2  # and the one made ahead
    with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
        store.refresh()
        assert store.stats().messages == 800
        assert {queue: bodies(store, "T", queue) for queue in range(20)} == expected
        assert len(store.query("T", "key", 800)) == 800
        assert descriptors(path / "consumequeue") <= 2 * 4
        assert descriptors(path / "commitlog") <= 2 * 4 + 2


@pytest.mark.usefixtures("few_files")
def test_what_was_evicted_before_its_names_were_on_disk_is_flushed_with_them(tmp_path: Path) -> None:
    class Names(Disk):
        synced: set[Path]

        def sync_directory(self, path: Path) -> None:
            self.synced.add(path)

    disk = Names()
    disk.synced = set()
    with MessageStore.open(tmp_path / "store", replace(SMALL, disk=disk), create=True) as store:
        for queue in range(10):
            store.create_topic(f"T{queue}", 1)
            store.put(Message(f"T{queue}", b"x"), 0)
        disk.synced.clear()
        store.flush()
        assert disk.synced >= {store.path / "consumequeue" / f"T{queue}" / "0" for queue in range(10)}


# want of descriptors

EAGER = FlushPolicy(interval_ms=20, consume_queue_interval_ms=20)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_want_of_a_descriptor_in_a_flush_is_not_final(tmp_path: Path, number: int) -> None:
    disk = MoodyDisk()
    with MessageStore.open(
        tmp_path / "store", replace(SMALL, flush=EAGER, disk=disk, preallocate=False), create=True
    ) as store:
        first = store.put(Message("T", b"first", ["key"]), 0)
        answers: list[object] = []
        disk.want = OSError(number, os.strerror(number))
        store.request_durable(first.physical_end, answers.append)
        store.put_lines("T", b"line\n" * 200, 0)
        assert (answers, store.durable_end, store.read_only_reason) == ([], 0, None)
        disk.want = None
        store.wait_durable(store.physical_end)
        store.flush()
        assert answers == [None]
        assert store.flush_failure is None
        store.put(Message("T", b"last"), 0)
    with opened(tmp_path / "store") as store:
        assert store.recovery.clean
        assert bodies(store, "T", 0) == [b"first", *[b"line"] * 200, b"last"]


def test_a_flush_that_somebody_asked_for_says_what_is_missing(tmp_path: Path) -> None:
    disk = MoodyDisk()
    with MessageStore.open(tmp_path / "store", replace(SMALL, disk=disk), create=True) as store:
        put = store.put(Message("T", b"x", ["key"]), 0)
        store.wait_durable(put.physical_end)
        disk.want = OSError(errno.EMFILE, "Too many open files")
        with pytest.raises(NoDescriptorError, match="ulimit"):
            store.flush()
        disk.want = None
        store.flush()
        assert store.read_only_reason is None


def test_a_close_without_descriptors_is_no_clean_one_and_loses_nothing(tmp_path: Path) -> None:
    disk = MoodyDisk()
    store = MessageStore.open(tmp_path / "store", replace(SMALL, disk=disk, preallocate=False), create=True)
    store.put(Message("T", b"kept"), 0)
    disk.want = OSError(errno.EMFILE, "Too many open files")
    with pytest.raises(FlushFailedError, match="descriptor"):
        store.close()
    with opened(tmp_path / "store") as store:
        assert not store.recovery.clean
        assert bodies(store, "T", 0) == [b"kept"]


MANY_QUEUES = """
import resource, sys
from engine import FileSizes, Message, MessageStore, StoreConfig
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
with MessageStore.open(sys.argv[1], StoreConfig(sizes=FileSizes(1 << 16, 16, 17, 8000)), create=True) as store:
    store.create_topic("T", 100)
    for turn in range(5):
        for queue in range(100):
            store.put(Message("T", b"%d" % turn, ["key"]), queue)
    store.flush()
    assert store.stats().messages == 500
    assert store.flush_failure is None
"""


def test_a_hundred_queues_are_written_with_96_descriptors(tmp_path: Path) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-c", MANY_QUEUES, str(path)]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")
    with opened(path, replace(SMALL, sizes=FileSizes(1 << 16, 16, 17, 8000), flush=QUIET)) as store:
        assert store.recovery.clean
        assert all(bodies(store, "T", queue) == [b"%d" % turn for turn in range(5)] for queue in (0, 7, 99))
        require_clean(store.check())


BACKED_UP = """
import resource, sys
from engine import FileSizes, Message, MessageStore, OpenMode, Retention, StoreConfig, back_up
store, copy, copy_of_expired = sys.argv[1:]
config = StoreConfig(sizes=FileSizes(1 << 14, 16, 17, 8000), retention=Retention(max_bytes=1 << 15, delete_pause_ms=0))
with MessageStore.open(store, config, create=True) as opened:
    opened.create_topic("T", 150)
    for queue in range(150):
        opened.put(Message("T", b"x"), queue)
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
assert back_up(store, copy).messages == 150
with MessageStore.open(store, config) as opened:
    for _ in range(100):
        opened.put(Message("T", b"y" * 1000), 0)
    opened.clean()
    assert opened.bounds("T", 149).min_offset == 1
back_up(store, copy_of_expired)
with MessageStore.open(copy_of_expired, StoreConfig(mode=OpenMode.READ_ONLY)) as opened:
    assert {opened.bounds("T", queue).max_offset for queue in range(1, 150)} == {1}
"""


def test_a_store_of_more_queues_than_descriptors_is_backed_up(tmp_path: Path) -> None:
    places = [str(tmp_path / name) for name in ("store", "copy", "copy of expired")]
    command = [sys.executable, "-c", BACKED_UP, *places]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")

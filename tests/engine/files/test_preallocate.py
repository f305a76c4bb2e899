"""Making files ahead, and a full disk meanwhile."""

import errno
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.errors import StoreClosedError, StoreFullError
from engine.files.disk import Disk
from engine.files.file_queue import FileSource
from engine.files.file_scan import file_name
from engine.files.mapped_file import Access
from engine.files.preallocate import Preallocator
from tests.engine.storetools import nothing_left_open

SIZE = 64 << 10


class SmallDisk(Disk):
    """Refuses files from `full_from` on; writes down which directories were synced after which file."""

    def __init__(self) -> None:
        self.full_from = 1 << 62
        self.journal: list[str] = []
        self.tried = threading.Condition()
        self.gate = threading.Event()
        self.gate.set()

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        assert self.gate.wait(60)
        with self.tried:
            self.journal.append(f"allocate {int(path.name)}")
            self.tried.notify_all()
        if int(path.name) >= self.full_from:
            raise OSError(errno.ENOSPC, "full")
        super().allocate(descriptor, path, start, size_bytes)

    def sync(self, descriptor: int, path: Path) -> None:
        self.journal.append(f"sync {int(path.name)}")

    def sync_directory(self, path: Path) -> None:
        self.journal.append("sync names")


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def names(directory: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(directory))


def test_the_file_after_the_one_taken_is_made_without_being_asked_for(tmp_path: Path) -> None:
    source = Preallocator(tmp_path, SIZE, Disk())
    file = source.take(0)
    assert (file.start, file.wrote, file.size) == (0, 0, SIZE)
    eventually(lambda: names(tmp_path) == [0, SIZE])
    assert source.take(SIZE).start == SIZE
    eventually(lambda: names(tmp_path) == [0, SIZE, 2 * SIZE])
    source.close()


def test_a_file_is_handed_out_when_its_size_and_name_are_durable(tmp_path: Path) -> None:
    disk = SmallDisk()
    source = Preallocator(tmp_path, SIZE, disk)
    source.take(0)
    assert disk.journal[:3] == ["allocate 0", "sync 0", "sync names"]
    source.close()


def test_close_deletes_files_that_were_not_taken(tmp_path: Path) -> None:
    source = Preallocator(tmp_path, SIZE, Disk())
    source.take(0).close()
    eventually(lambda: names(tmp_path) == [0, SIZE])
    source.restore(source.take(SIZE))
    source.close()
    assert names(tmp_path) == [0]


def test_taking_after_close_is_refused(tmp_path: Path) -> None:
    source = Preallocator(tmp_path, SIZE, Disk())
    source.close()
    with pytest.raises(StoreClosedError):
        source.take(0)


def test_a_full_disk_is_raised_to_the_taker_and_tried_again_at_the_next_demand(tmp_path: Path) -> None:
    disk = SmallDisk()
    disk.full_from = SIZE
    source = Preallocator(tmp_path, SIZE, disk)
    source.take(0)
    eventually(lambda: f"allocate {SIZE}" in disk.journal)
    for _ in range(2):
        with pytest.raises(StoreFullError) as caught:
            source.take(SIZE)
        assert caught.value.needed_bytes == SIZE
    assert names(tmp_path) == [0]
    disk.full_from = 1 << 62
    assert source.take(SIZE).start == SIZE
    source.close()


def test_an_unforeseen_error_is_raised_too(tmp_path: Path) -> None:
    source = Preallocator(tmp_path / "missing", SIZE, Disk())
    with pytest.raises(FileNotFoundError):
        source.take(0)
    source.close()


def test_what_the_thread_fails_with_is_raised_to_the_taker_and_the_next_demand_is_served(tmp_path: Path) -> None:
    class Forgetful(Disk):
        memory_left = False

        def sync_directory(self, path: Path) -> None:
            if not self.memory_left:
                raise MemoryError("no more")

    disk = Forgetful()
    source = Preallocator(tmp_path, SIZE, disk)
    with pytest.raises(MemoryError):
        source.take(0)
    assert os.listdir(tmp_path) == []
    disk.memory_left = True
    assert source.take(0).start == 0
    source.close()


def test_no_thread_runs_before_a_file_is_wanted(tmp_path: Path) -> None:
    with nothing_left_open():
        Preallocator(tmp_path, SIZE, Disk())
    source = Preallocator(tmp_path, SIZE, Disk())
    source.close()
    with pytest.raises(StoreClosedError):
        source.take(0)


def test_without_a_thread_to_be_had_the_taker_is_told_and_the_next_one_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    source = Preallocator(tmp_path, SIZE, Disk())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="no thread can be started") as caught:
            source.take(0)
    assert caught.value.errno == errno.EAGAIN
    assert source.take(0).start == 0
    source.close()


def test_only_the_taker_waits_while_a_file_is_being_made(tmp_path: Path) -> None:
    disk = SmallDisk()
    source = Preallocator(tmp_path, SIZE, disk)
    source.take(0)
    eventually(lambda: names(tmp_path) == [0, SIZE])
    disk.gate.clear()
    assert source.take(SIZE).start == SIZE, "the file made ahead needs no disk"
    disk.gate.set()
    assert source.take(2 * SIZE).start == 2 * SIZE
    source.close()


def test_warm_files_are_zeros_and_synced(tmp_path: Path) -> None:
    source = Preallocator(tmp_path, SIZE, Disk(), warm=True)
    file = source.take(0)
    assert bytes(file.whole()) == bytes(SIZE)
    source.close()


def test_a_direct_source_restores_by_deleting(tmp_path: Path) -> None:
    source = FileSource(tmp_path, SIZE, Access.WRITE, Disk())
    source.restore(source.take(SIZE))
    assert os.listdir(tmp_path) == []
    assert file_name(SIZE) == "00000000000000065536"


@pytest.fixture
def small_mount(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem with room for three files and a bit."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.fail("a small filesystem can be mounted by root only: run the tests as root")
    point = tmp_path / "small"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={3 * SIZE + 8192}", "small", str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def test_a_really_full_disk_leaves_no_half_file_and_space_that_comes_back_is_used(small_mount: Path) -> None:
    source = Preallocator(small_mount, SIZE, Disk())
    taken = [source.take(number * SIZE) for number in range(3)]
    with pytest.raises(StoreFullError):
        source.take(3 * SIZE)
    assert names(small_mount) == [0, SIZE, 2 * SIZE]
    taken[0].retire()
    assert source.take(3 * SIZE).append(b"goes on") == 0
    source.close()
    for file in taken:
        file.close()

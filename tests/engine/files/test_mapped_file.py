"""MappedFile: positions, views, holds, truncation, the private buffer."""

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.errors import RetiredFileError, StoreFullError, TruncatedFileError, UnreadableRangeError
from engine.files.disk import Disk
from engine.files.mapped_file import LARGE_BYTES, MOST_STEP_BYTES, PAGE_BYTES, Access, MappedFile

SIZE = 4 * 4096


class RecordingDisk(Disk):
    """Counts syncs; fails them, or allocations, when told to."""

    def __init__(self) -> None:
        self.synced: list[Path] = []
        self.allocated: list[Path] = []
        self.ranges: list[tuple[int, int]] = []
        self.sync_error: OSError | None = None
        self.allocate_error: OSError | None = None

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        if self.allocate_error:
            os.pwrite(descriptor, b"" if start else b"part of it", 0)
            raise self.allocate_error
        self.allocated.append(path)
        self.ranges.append((start, start + size_bytes))
        super().allocate(descriptor, path, start, size_bytes)

    def sync(self, descriptor: int, path: Path) -> None:
        if self.sync_error:
            raise self.sync_error
        self.synced.append(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000"


def test_a_created_file_is_allocated_and_empty(path: Path) -> None:
    file = MappedFile.create(path, SIZE, Access.WRITE, start=SIZE)
    assert (file.wrote, file.readable, file.flushed, file.remaining, file.end) == (0, 0, 0, SIZE, SIZE)
    assert path.stat().st_size == SIZE
    assert path.stat().st_blocks * 512 >= SIZE
    file.close()


def test_a_loaded_file_counts_as_written_until_set_end(path: Path) -> None:
    path.write_bytes(bytes(SIZE))
    file = MappedFile(path, SIZE, Access.READ)
    assert file.full
    file.set_end(100)
    assert (file.wrote, file.readable, file.flushed) == (100, 100, 100)
    file.close()


def test_append_writes_then_publishes(path: Path) -> None:
    file = MappedFile.create(path, SIZE, Access.WRITE)
    assert file.append(b"first") == 0
    assert file.append_head_last(b"head-and-body") == 5
    assert bytes(file.pages()) == b"firsthead-and-body"
    assert path.read_bytes()[:18] == b"firsthead-and-body"
    file.close()


@pytest.mark.parametrize("size", [9, 300, 4096, 10_000, 65_544, 200_000])
@pytest.mark.parametrize("access", [Access.WRITE, Access.READ])
@pytest.mark.parametrize("buffered", [False, True])
def test_append_stores_any_length(path: Path, size: int, access: Access, buffered: bool) -> None:
    file = MappedFile.create(path, 500_000, access)
    if buffered and access is Access.WRITE:
        file.attach_buffer(memoryview(bytearray(file.size)))
    record = os.urandom(size)
    assert file.append(record) == 0
    assert file.append_head_last(memoryview(record)) == size
    file.commit()
    assert bytes(file.pages()) == record * 2
    file.close()


def test_views_end_where_readable_bytes_end(path: Path) -> None:
    file = MappedFile.create(path, SIZE, Access.WRITE)
    file.append(b"0123456789")
    assert bytes(file.view(8, 2)) == b"89"
    for position, length in ((9, 2), (-1, 2), (0, -1), (SIZE, 1)):
        with pytest.raises(UnreadableRangeError):
            file.view(position, length)
    file.close()


def test_views_cannot_be_written_through(path: Path) -> None:
    file = MappedFile.create(path, SIZE, Access.WRITE)
    file.append(b"0123456789")
    assert file.view(0, 4).readonly
    assert not file.array(np.uint8).flags.writeable
    file.close()


def test_array_reads_whole_units_from_a_position(path: Path) -> None:
    file = MappedFile.create(path, SIZE, Access.WRITE)
    file.append(np.arange(5, dtype=">i8").tobytes() + b"rest")
    assert file.array(">i8").tolist() == [0, 1, 2, 3, 4]
    assert file.array(">i8", 16, 2).tolist() == [2, 3]
    file.close()


def test_a_view_outlives_its_file(path: Path) -> None:
    file = MappedFile.create(path, SIZE, Access.WRITE)
    file.append(b"still there")
    view, array = file.view(0, 11), file.array(np.uint8)
    file.retire()
    assert not path.exists()
    assert bytes(view) == array.tobytes() == b"still there"
    with pytest.raises(RetiredFileError):
        file.view(0, 1)


def test_syncing_a_retired_file_is_nothing_and_no_error(path: Path) -> None:
    path.write_bytes(bytes(SIZE))
    file = MappedFile(path, SIZE, Access.WRITE)
    assert file.hold()
    file.retire()
    file.sync()
    file.release()
    file.sync()


def test_a_hold_keeps_a_retired_file_readable_until_released(path: Path) -> None:
    file = MappedFile.create(path, SIZE, Access.WRITE)
    file.append(b"held")
    assert file.hold()
    assert file.hold()
    file.retire()
    assert not path.exists()
    assert bytes(file.view(0, 4)) == b"held"
    assert not file.hold(), "nobody new may take a retired file"
    file.release()
    assert bytes(file.view(0, 4)) == b"held"
    file.release()
    assert file.closed
    with pytest.raises(RetiredFileError):
        file.view(0, 4)


def test_a_held_file_survives_unmap_before_it_is_retired(path: Path) -> None:
    path.write_bytes(b"x" * SIZE)
    file = MappedFile(path, SIZE, Access.WRITE)
    assert file.hold()
    file.unmap()
    file.retire()
    assert bytes(file.view(0, 1)) == b"x"
    file.release()


def test_unmap_gives_the_descriptor_back_and_maps_again_when_needed(path: Path) -> None:
    path.write_bytes(b"y" * SIZE)
    file = MappedFile(path, SIZE, Access.READ)
    before = len(os.listdir("/proc/self/fd"))
    assert bytes(file.view(0, 1)) == b"y"
    assert len(os.listdir("/proc/self/fd")) == before + 1
    file.unmap()
    assert len(os.listdir("/proc/self/fd")) == before
    assert bytes(file.view(1, 1)) == b"y"
    file.close()


def test_a_file_cut_while_mapped_is_an_error_before_its_pages_are_touched(path: Path) -> None:
    file = MappedFile.create(path, SIZE, Access.WRITE)
    file.append(bytes(SIZE))
    os.truncate(path, 4096)
    looks: list[Callable[[], memoryview]] = [
        lambda: file.view(8192, 1),
        lambda: file.view(0, 1),
        file.pages,
        file.whole,
    ]
    for look in looks:
        with pytest.raises(TruncatedFileError) as caught:
            look()
        assert caught.value.found_bytes == 4096
    file.close()


def test_a_file_found_short_is_readable_as_far_as_it_goes(path: Path) -> None:
    path.write_bytes(b"z" * 5000)
    file = MappedFile(path, SIZE, Access.READ)
    assert bytes(file.view(4990, 10)) == b"z" * 10
    assert len(file.whole()) == 5000
    with pytest.raises(TruncatedFileError):
        file.view(4990, 11)
    file.close()


def test_an_empty_file_is_an_error_not_a_fault(path: Path) -> None:
    path.touch()
    with pytest.raises(TruncatedFileError):
        MappedFile(path, SIZE, Access.READ).view(0, 1)


def test_a_file_that_vanished_counts_as_retired(path: Path) -> None:
    with pytest.raises(RetiredFileError):
        MappedFile(path, SIZE, Access.READ).view(0, 1)


@pytest.mark.parametrize("found", [5000, SIZE], ids=["short", "sparse"])
def test_a_foreign_file_gets_its_space_before_our_first_write(path: Path, found: int) -> None:
    path.write_bytes(b"a" * 100)
    os.truncate(path, found)
    disk = RecordingDisk()
    file = MappedFile(path, SIZE, Access.WRITE, disk=disk)
    file.set_end(100)
    assert bytes(file.view(0, 100)) == b"a" * 100
    assert disk.allocated == []
    file.append(b"b" * 6000)
    assert disk.allocated == [path]
    assert 6100 <= path.stat().st_blocks * 512 < SIZE
    assert path.read_bytes() == b"a" * 100 + b"b" * 6000 + bytes(SIZE - 6100)
    file.close()


def test_a_file_in_steps_has_its_length_and_takes_a_page(path: Path) -> None:
    file = MappedFile.create(path, 10 << 20, Access.WRITE, in_steps=True)
    assert path.stat().st_size == 10 << 20
    assert path.stat().st_blocks * 512 == PAGE_BYTES
    file.close()


def test_steps_grow_to_a_limit_and_come_before_what_is_written(path: Path) -> None:
    size, disk = 3 * MOST_STEP_BYTES + 1000, RecordingDisk()
    file = MappedFile.create(path, size, Access.WRITE, disk=disk, in_steps=True)
    while not file.full:
        file.append(bytes(min(1000, file.remaining)))
        assert file.wrote <= disk.ranges[-1][1]
    assert [end for _, end in disk.ranges[:-1]] == [start for start, _ in disk.ranges[1:]]
    assert [end - start for start, end in disk.ranges[:4]] == [PAGE_BYTES, PAGE_BYTES, 2 * PAGE_BYTES, 4 * PAGE_BYTES]
    assert max(end - start for start, end in disk.ranges) == MOST_STEP_BYTES
    assert disk.ranges[-1][1] == size
    assert path.stat().st_blocks * 512 >= size
    file.close()


def test_making_bytes_ready_and_writing_them_costs_one_page_fault_a_page(path: Path) -> None:
    file = MappedFile.create(path, 4 << 20, Access.WRITE, in_steps=True)
    file.read_no_further()
    written, pages = bytes(3 * PAGE_BYTES), 0
    file.append(bytes(1 << 20))
    before = page_faults()
    while file.remaining > len(written):
        file.ready(len(written))
        file.append(written)
        pages += 3
    assert page_faults() - before <= 1.25 * pages
    file.close()


def page_faults() -> int:
    """Number of page faults of this thread so far."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_minflt + usage.ru_majflt


def test_a_file_that_grows_is_read_ahead_of_its_writer(path: Path) -> None:
    file = MappedFile.create(path, 4 << 20, Access.WRITE, in_steps=True)
    file.read_no_further()
    file.append(bytes(1 << 20))
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    for _ in range(256):
        file.ready(PAGE_BYTES)
        file.append(bytes(PAGE_BYTES))
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before <= 64
    file.close()


WRITES: dict[str, Callable[[MappedFile, int], object]] = {
    "append": lambda file, length: file.append(b"w" * length),
    "append_head_last": lambda file, length: file.append_head_last(b"w" * length),
    "ready": lambda file, length: file.ready(length),
}


@pytest.mark.parametrize("length", [1, PAGE_BYTES, LARGE_BYTES + 1])
@pytest.mark.parametrize("how", WRITES)
def test_a_step_that_the_disk_refuses_changes_nothing(path: Path, length: int, how: str) -> None:
    disk = RecordingDisk()
    file = MappedFile.create(path, 1 << 20, Access.WRITE, disk=disk, in_steps=True)
    file.append(b"k" * PAGE_BYTES)
    disk.allocate_error = OSError(errno.ENOSPC, "full")
    for _ in range(2):
        with pytest.raises(StoreFullError):
            WRITES[how](file, length)
    assert (file.wrote, file.readable) == (PAGE_BYTES, PAGE_BYTES)
    assert path.read_bytes()[PAGE_BYTES:].strip(b"\0") == b""
    disk.allocate_error = None
    file.append(b"w" * length)
    assert bytes(file.pages()) == b"k" * PAGE_BYTES + b"w" * length
    file.close()


def test_a_file_that_was_evicted_has_its_space(path: Path) -> None:
    disk = RecordingDisk()
    file = MappedFile.create(path, SIZE, Access.WRITE, disk=disk, in_steps=True)
    file.append(b"first")
    assert file.evict()
    disk.allocate_error = OSError(errno.ENOSPC, "full")
    file.append(b"second")
    assert bytes(file.pages()) == b"firstsecond"
    file.close()


def sparse(path: Path, size: int, written: int) -> None:
    """A file of a broker: real as far as it is written."""
    path.write_bytes(b"b" * written)
    os.truncate(path, size)


def test_what_another_program_left_sparse_stays_sparse_behind_the_step(path: Path) -> None:
    size = 16 << 20
    sparse(path, size, 3 << 20)
    before, disk = path.stat().st_blocks, RecordingDisk()
    file = MappedFile(path, size, Access.WRITE, disk=disk)
    file.set_end(3 << 20)
    assert bytes(file.view(0, 3)) == b"bbb"
    file.truncate(3 << 20)
    assert path.stat().st_blocks == before, "only read"
    file.append(b"ours")
    assert disk.ranges == [(3 << 20, 6 << 20)]
    assert path.stat().st_blocks * 512 < 7 << 20
    file.close()


def test_space_before_the_first_step_is_not_believed(path: Path) -> None:
    """A program that died may have left a hole anywhere."""
    sparse(path, SIZE, 0)
    disk = RecordingDisk()
    file = MappedFile(path, SIZE, Access.WRITE, disk=disk)
    file.set_end(2 * PAGE_BYTES)
    file.append(b"ours")
    file.truncate(100)
    file.append(b"again")
    assert [start for start, _ in disk.ranges] == [2 * PAGE_BYTES, 0]
    file.close()


def test_space_elsewhere_is_none_for_what_is_appended(path: Path) -> None:
    sparse(path, SIZE, 0)
    disk = RecordingDisk()
    file = MappedFile(path, SIZE, Access.WRITE, disk=disk)
    file.set_end(10)
    file.writable(2 * PAGE_BYTES, 3 * PAGE_BYTES)
    assert file.allocated <= file.wrote, "the kernel appends before this"
    file.append(b"ours")
    assert [start for start, _ in disk.ranges] == [2 * PAGE_BYTES, 0]
    file.writable()
    assert disk.ranges[-1][1] == SIZE
    file.close()


def test_truncate_keeps_what_is_before_and_zeroes_what_is_after(path: Path) -> None:
    disk = RecordingDisk()
    path.write_bytes(b"k" * 5000 + b"s" * 3000 + bytes(SIZE - 8000 - 7) + b"stale!!")
    file = MappedFile(path, SIZE, Access.WRITE, disk=disk)
    file.truncate(5000)
    assert path.read_bytes() == b"k" * 5000 + bytes(SIZE - 5000)
    assert disk.synced == [path]
    assert (file.wrote, file.readable, file.flushed) == (5000, 5000, 5000)
    file.close()


def test_truncate_gives_a_file_found_short_its_length(path: Path) -> None:
    path.write_bytes(b"k" * 5000)
    file = MappedFile(path, SIZE, Access.WRITE)
    file.truncate(5000)
    assert path.read_bytes() == b"k" * 5000 + bytes(SIZE - 5000)
    file.close()


def test_truncate_finds_stale_bytes_after_holes(path: Path) -> None:
    size = 8 << 20
    with path.open("wb") as file_object:
        file_object.write(b"k" * 10)
        file_object.seek(5 << 20)
        file_object.write(b"stale")
        file_object.truncate(size)
    file = MappedFile(path, size, Access.WRITE)
    file.truncate(10)
    assert path.read_bytes() == b"k" * 10 + bytes(size - 10)
    file.close()


@pytest.mark.parametrize("size", [SIZE, LARGE_BYTES + 2 * SIZE])
@pytest.mark.parametrize("missing", [0, 100])
def test_what_is_written_to_a_file_mapped_for_reading_stays_in_memory(path: Path, size: int, missing: int) -> None:
    path.write_bytes(b"r" * (size - missing))
    file = MappedFile(path, size, Access.READ)
    kept = size - SIZE + 10
    file.truncate(kept)
    file.append(b"mine")
    file.sync()
    assert not file.evict()
    file.unmap()
    assert bytes(file.pages()) == b"r" * kept + b"mine"
    file.append(bytes(file.remaining))
    assert file.full
    file.retire()
    assert path.read_bytes() == b"r" * (size - missing)


def test_a_file_that_is_made_for_reading_needs_no_file(path: Path) -> None:
    file = MappedFile.create(path, SIZE, Access.READ)
    file.append(b"mine")
    file.unmap()
    assert bytes(file.view(0, 4)) == b"mine"
    assert bytes(file.whole()[:5]) == b"mine\0"
    assert not path.exists()
    file.close()


def test_a_failed_sync_leaves_flushed_alone_and_fails_for_ever(path: Path) -> None:
    disk = RecordingDisk()
    file = MappedFile.create(path, SIZE, Access.WRITE, disk=disk)
    file.append(b"123")
    disk.sync_error = OSError(errno.EIO, "no")
    with pytest.raises(OSError, match="no"):
        file.sync()
    disk.sync_error = None
    with pytest.raises(OSError, match="no"):
        file.sync()
    assert file.flushed == 0
    file.close()


def test_a_full_synced_file_keeps_no_descriptor_of_its_own(path: Path) -> None:
    file = MappedFile.create(path, SIZE, Access.WRITE)
    file.append(bytes(SIZE))
    before = len(os.listdir("/proc/self/fd"))
    file.sync()
    assert len(os.listdir("/proc/self/fd")) == before - 1
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("empty_file_there", [False, True])
def test_a_full_disk_leaves_no_half_file(path: Path, number: int, empty_file_there: bool) -> None:
    if empty_file_there:
        path.touch()
    disk = RecordingDisk()
    disk.allocate_error = OSError(number, "full")
    with pytest.raises(StoreFullError) as caught:
        MappedFile.create(path, SIZE, Access.WRITE, disk=disk)
    assert (caught.value.path, caught.value.needed_bytes) == (path, SIZE)
    assert not path.exists()
    disk.allocate_error = None
    MappedFile.create(path, SIZE, Access.WRITE, disk=disk).close()


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_file_that_cannot_be_mapped_is_not_left_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, unnamed: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    def refuse_unnamed(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "only names here")

    if not unnamed:
        monkeypatch.setattr("engine.files.disk.create_unnamed", refuse_unnamed)
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr("engine.files.mapped_file.FileMap", refuse)
        with pytest.raises(OSError, match="no memory"):
            MappedFile.create(path, SIZE, Access.WRITE)
    assert not path.exists()
    assert len(os.listdir("/proc/self/fd")) == before
    file = MappedFile.create(path, SIZE, Access.WRITE)
    assert file.append(b"goes on") == 0
    file.close()


def test_a_file_with_nothing_to_zero_is_cut_where_a_full_disk_refuses_all_space(path: Path) -> None:
    MappedFile.create(path, SIZE, Access.WRITE).close()
    disk = RecordingDisk()
    disk.allocate_error = OSError(errno.ENOSPC, "full")
    file = MappedFile(path, SIZE, Access.WRITE, disk=disk)
    file.truncate(0)
    assert file.flushed == 0
    with pytest.raises(StoreFullError):
        file.append(b"more")
    disk.allocate_error = None
    file.append(b"more")
    file.close()


def test_a_file_with_bytes_in_it_is_never_taken_over(path: Path) -> None:
    path.write_bytes(b"somebody's")
    with pytest.raises(FileExistsError):
        MappedFile.create(path, SIZE, Access.WRITE)
    assert path.read_bytes() == b"somebody's"


def test_buffered_bytes_are_readable_only_when_committed(path: Path) -> None:
    file = MappedFile.create(path, SIZE, Access.WRITE)
    file.attach_buffer(memoryview(bytearray(b"?" * SIZE)))
    file.append(b"buffered")
    assert (file.wrote, file.readable) == (8, 0)
    assert path.read_bytes()[:8] == bytes(8)
    with pytest.raises(UnreadableRangeError):
        file.view(0, 8)
    assert file.commit(least_pages=1) is None
    assert file.readable == 0
    assert file.commit() is None
    assert bytes(file.view(0, 8)) == b"buffered"
    file.close()


def test_a_filled_file_returns_its_buffer_and_none_of_the_buffers_old_bytes(path: Path) -> None:
    buffer = memoryview(bytearray(b"?" * SIZE))
    file = MappedFile.create(path, SIZE, Access.WRITE)
    file.attach_buffer(buffer)
    file.append(b"record")
    file.publish_to_end(6)
    assert file.commit(least_pages=4) is buffer
    assert file.readable == SIZE
    assert path.read_bytes() == b"record" + bytes(SIZE - 6)
    file.close()


def test_warming_changes_no_byte_and_no_position(path: Path) -> None:
    file = MappedFile.create(path, SIZE, Access.WRITE)
    file.warm()
    assert file.wrote == 0
    assert path.read_bytes() == bytes(SIZE)
    file.close()

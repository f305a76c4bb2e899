"""FileQueue: loading, finding, growing, truncating, flushing, deleting, following."""

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import FlushFailedError, NoDescriptorError, RetiredFileError, StoreFullError, UnreadableRangeError
from engine.files.disk import Disk
from engine.files.file_queue import FileQueue
from engine.files.layout import LogPaths
from engine.files.mapped_file import Access, MappedFile

SIZE = 4096


class Journal(Disk):
    """Notes syncs in their order; refuses them when it is switched on."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.error: OSError | None = None
        self.files_left = 1_000_000

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        if self.files_left == 0:
            raise OSError(errno.ENOSPC, "full")
        self.files_left -= 1
        super().allocate(descriptor, path, start, size_bytes)

    def sync(self, descriptor: int, path: Path) -> None:
        if self.error:
            raise self.error
        self.synced.append(path.name)

    def sync_directory(self, path: Path) -> None:
        if self.error:
            raise self.error
        self.synced.append(path.name + "/")


def name(start: int) -> str:
    return f"{start:020d}"


def opened(directory: Path, access: Access = Access.WRITE, disk: Disk | None = None) -> FileQueue:
    return FileQueue(directory, SIZE, access, disk=disk)


def filled(directory: Path, files: int, last_bytes: int = SIZE) -> None:
    """Files whose every byte is their number + 1; the last one has `last_bytes` of them."""
    directory.mkdir()
    for number in range(files):
        length = SIZE if number < files - 1 else last_bytes
        (directory / name(number * SIZE)).write_bytes(bytes([number + 1]) * length + bytes(SIZE - length))


def test_a_missing_directory_is_an_empty_queue(tmp_path: Path) -> None:
    queue = opened(tmp_path / "none", Access.READ)
    assert (queue.files, queue.min_offset, queue.max_offset, queue.first, queue.last) == ((), 0, 0, None, None)
    assert not (tmp_path / "none").exists()


def test_loading_maps_nothing(tmp_path: Path) -> None:
    filled(tmp_path / "q", 50)
    gc.collect()  # what other tests left open is closed now, not meanwhile
    before = len(os.listdir("/proc/self/fd"))
    queue = opened(tmp_path / "q")
    assert len(queue.files) == 50
    assert len(os.listdir("/proc/self/fd")) == before
    queue.close()


def test_loading_names_what_is_odd_and_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "q"
    filled(directory, 3)
    (directory / name(SIZE)).write_bytes(b"\2" * 100)
    (directory / name(2 * SIZE)).write_bytes(b"\3" * (SIZE + 1))
    (directory / name(3 * SIZE)).touch()
    (directory / name(SIZE + 1)).write_bytes(bytes(SIZE))
    (directory / "notes.txt").write_text("hello")
    (directory / "sub").mkdir()
    before = {entry.name: entry.stat().st_size for entry in directory.iterdir()}
    queue = opened(directory)
    found = {problem.path.name: problem.kind for problem in queue.problems}
    assert found == {
        name(SIZE): "short",
        name(2 * SIZE): "long",
        name(3 * SIZE): "empty",
        name(SIZE + 1): "foreign",
        "notes.txt": "foreign",
        "sub": "foreign",
    }
    assert [file.start for file in queue.files] == [0, SIZE, 2 * SIZE]
    assert bytes(queue.view(SIZE, 100)) == b"\2" * 100, "what a short file has stays readable"
    assert bytes(queue.view(2 * SIZE, SIZE)) == b"\3" * SIZE
    queue.close()
    assert {entry.name: entry.stat().st_size for entry in directory.iterdir()} == before


def test_an_empty_file_in_the_way_is_taken_over_by_writing(tmp_path: Path) -> None:
    filled(tmp_path / "q", 1)
    (tmp_path / "q" / name(SIZE)).touch()
    queue = opened(tmp_path / "q")
    assert queue.append(b"next") == SIZE
    assert bytes(queue.view(SIZE, 4)) == b"next"
    queue.close()


def test_append_rolls_when_the_last_file_is_full(tmp_path: Path) -> None:
    queue = opened(tmp_path / "q")
    for number in range(5):
        assert queue.append(bytes([number]) * (SIZE // 2)) == number * SIZE // 2
    assert [file.start for file in queue.files] == [0, SIZE, 2 * SIZE]
    assert (queue.min_offset, queue.max_offset, queue.wrote_offset) == (0, 5 * SIZE // 2, 5 * SIZE // 2)
    assert bytes(queue.view(2 * SIZE, 10)) == bytes([4]) * 10
    queue.close()


def test_append_refuses_what_straddles_a_file(tmp_path: Path) -> None:
    queue = opened(tmp_path / "q")
    queue.append(bytes(SIZE - 1))
    with pytest.raises(ValueError, match="straddle"):
        queue.append(b"12")
    queue.close()


@pytest.mark.parametrize("access", [Access.WRITE, Access.READ])
def test_files_without_a_byte_are_dropped_when_they_are_ours(tmp_path: Path, access: Access) -> None:
    filled(tmp_path / "q", 1)
    for start in (SIZE, 2 * SIZE):
        (tmp_path / "q" / name(start)).touch()
    (tmp_path / "q" / "notes.txt").touch()
    queue = opened(tmp_path / "q", access)
    queue.drop_empty()
    left = sorted(path.name for path in (tmp_path / "q").iterdir())
    queue.close()
    assert left == [name(0), *([] if access is Access.WRITE else [name(SIZE), name(2 * SIZE)]), "notes.txt"]


def test_an_empty_queue_can_begin_anywhere(tmp_path: Path) -> None:
    queue = opened(tmp_path / "q")
    assert queue.roll(7 * SIZE + 40).start == 7 * SIZE
    assert (queue.min_offset, queue.max_offset) == (7 * SIZE, 7 * SIZE)
    queue.close()


def test_find_and_missing_ranges_know_of_holes(tmp_path: Path) -> None:
    filled(tmp_path / "q", 6)
    for number in (1, 3, 4):
        (tmp_path / "q" / name(number * SIZE)).unlink()
    queue = opened(tmp_path / "q", Access.READ)
    assert queue.missing_ranges() == [(SIZE, 2 * SIZE), (3 * SIZE, 5 * SIZE)]
    found = [file.start // SIZE if (file := queue.find(number * SIZE + 17)) else None for number in range(7)]
    assert found == [0, None, 2, None, None, 5, None]
    with pytest.raises(UnreadableRangeError):
        queue.view(SIZE, 1)
    queue.close()


@given(files=st.integers(0, 5), last_bytes=st.integers(1, SIZE), end=st.integers(0, 6 * SIZE))
def test_truncate_keeps_bytes_before_and_brings_none_back(
    tmp_path_factory: pytest.TempPathFactory, files: int, last_bytes: int, end: int
) -> None:
    directory = tmp_path_factory.mktemp("truncate") / "q"
    filled(directory, files, last_bytes)
    before = b"".join((directory / name(number * SIZE)).read_bytes() for number in range(files))
    queue = opened(directory, disk=Journal())
    queue.truncate(end)
    assert queue.max_offset == min(end, files * SIZE)
    queue.close()
    again = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
    assert again == before[:end].ljust(len(again), b"\0")
    assert len(again) in (files * SIZE, (end // SIZE + 1) * SIZE)


def test_truncate_makes_files_durable_that_a_killed_process_left_unsynced(tmp_path: Path) -> None:
    filled(tmp_path / "q", 4)
    disk = Journal()
    queue = opened(tmp_path / "q", disk=disk)
    queue.truncate(2 * SIZE + 100, durable_from=SIZE + 5)
    assert disk.synced == [name(SIZE), name(2 * SIZE), "q/"]
    assert queue.flushed_offset == 2 * SIZE + 100
    queue.close()


def test_flush_syncs_bytes_then_names_and_only_then_counts(tmp_path: Path) -> None:
    disk = Journal()
    queue = opened(tmp_path / "q", disk=disk)
    for _ in range(3):
        queue.append(bytes(SIZE))
    queue.append(b"tail")
    assert queue.flushed_offset == 0
    assert queue.flush() == 3 * SIZE + 4
    parent = tmp_path.name + "/"
    assert disk.synced == [name(0), name(SIZE), name(2 * SIZE), name(3 * SIZE), parent, "q/"]
    disk.synced.clear()
    assert queue.flush() == 3 * SIZE + 4
    assert disk.synced == []
    queue.close()


def test_names_that_no_descriptor_was_there_for_are_synced_by_the_next_flush(tmp_path: Path) -> None:
    class NoDescriptors(Journal):
        number = errno.EMFILE

        def sync_directory(self, path: Path) -> None:
            if self.number:
                raise OSError(self.number, "Too many open files")
            super().sync_directory(path)

    disk = NoDescriptors()
    queue = opened(tmp_path / "q", disk=disk)
    queue.append(b"x")
    with pytest.raises(NoDescriptorError):
        queue.flush()
    assert queue.flushed_offset == 0
    disk.number = 0
    assert queue.flush() == 1
    assert disk.synced[-2:] == [tmp_path.name + "/", "q/"]
    queue.close()


def test_flush_waits_for_enough_pages_unless_a_file_is_full(tmp_path: Path) -> None:
    queue = FileQueue(tmp_path / "q", 16 * SIZE, Access.WRITE)
    queue.append(bytes(3 * SIZE))
    assert queue.flush(least_pages=4) == 0
    queue.append(bytes(SIZE))
    assert queue.flush(least_pages=4) == 4 * SIZE
    queue.append(bytes(10))
    assert queue.flush(least_pages=1) == 4 * SIZE
    assert queue.flush() == 4 * SIZE + 10
    queue.append(bytes(12 * SIZE - 10))
    assert queue.flush(least_pages=100) == 16 * SIZE
    queue.close()


@pytest.mark.parametrize("synced_before", [0, 1])
def test_a_failed_sync_counts_nothing_as_flushed(tmp_path: Path, synced_before: int) -> None:
    class FailsLater(Journal):
        def sync(self, descriptor: int, path: Path) -> None:
            if len(self.synced) >= synced_before:
                raise OSError(errno.EIO, "Input/output error")
            super().sync(descriptor, path)

    queue = opened(tmp_path / "q", disk=FailsLater())
    queue.append(bytes(SIZE))
    queue.append(bytes(5))
    with pytest.raises(FlushFailedError) as caught:
        queue.flush()
    assert caught.value.reason == "Input/output error"
    assert queue.flushed_offset == 0
    queue.close()


def test_a_name_that_could_not_be_synced_is_a_failed_flush(tmp_path: Path) -> None:
    class NoNames(Journal):
        def sync_directory(self, path: Path) -> None:
            raise OSError(errno.EIO, "Input/output error")

    queue = opened(tmp_path / "q", disk=NoNames())
    queue.append(b"x")
    with pytest.raises(FlushFailedError):
        queue.flush()
    assert queue.flushed_offset == 0
    queue.close()


def test_the_oldest_file_is_deleted_and_never_the_last(tmp_path: Path) -> None:
    filled(tmp_path / "q", 3)
    queue = opened(tmp_path / "q")
    first = queue.first
    assert queue.retire_first(now_ms=0) is first
    assert queue.min_offset == SIZE
    assert queue.find(0) is None
    assert queue.retire_first(now_ms=0) is not None
    assert queue.retire_first(now_ms=0) is None
    assert os.listdir(tmp_path / "q") == [name(2 * SIZE)]
    queue.close()


def test_sweep_bounds_how_long_a_reader_keeps_a_deleted_file(tmp_path: Path) -> None:
    filled(tmp_path / "q", 3)
    queue = opened(tmp_path / "q")
    held, other = queue.files[:2]
    assert held.hold()
    assert other.hold()
    queue.retire_first(now_ms=1_000)
    queue.retire_first(now_ms=1_500)
    assert queue.sweep(now_ms=120_999, forced_interval_ms=120_000) == 2
    assert bytes(held.view(0, 1)) == b"\1"
    assert queue.sweep(now_ms=121_000, forced_interval_ms=120_000) == 1
    with pytest.raises(RetiredFileError):
        held.view(0, 1)
    held.release()
    assert bytes(other.view(0, 1)) == b"\2"
    other.release()
    assert queue.sweep(now_ms=121_000, forced_interval_ms=120_000) == 0
    queue.close()


def test_delete_all_leaves_no_directory_but_what_is_not_ours(tmp_path: Path) -> None:
    filled(tmp_path / "q", 3)
    opened(tmp_path / "q").delete_all()
    assert not (tmp_path / "q").exists()
    filled(tmp_path / "q", 3)
    (tmp_path / "q" / "notes.txt").touch()
    opened(tmp_path / "q").delete_all()
    assert os.listdir(tmp_path / "q") == ["notes.txt"]


def test_reserve_is_all_or_nothing_on_a_full_disk(tmp_path: Path) -> None:
    disk = Journal()
    queue = opened(tmp_path / "q", disk=disk)
    queue.append(b"x")
    disk.files_left = 2
    with pytest.raises(StoreFullError):
        queue.reserve(3)
    assert os.listdir(tmp_path / "q") == [name(0)]
    disk.files_left = 2
    assert [file.start for file in queue.reserve(2)] == [SIZE, 2 * SIZE]
    assert [queue.roll().start, queue.roll().start] == [SIZE, 2 * SIZE]
    queue.close()


def test_close_deletes_reserved_files_that_were_not_used(tmp_path: Path) -> None:
    queue = opened(tmp_path / "q")
    queue.append(b"x")
    queue.reserve(1)
    queue.close()
    assert os.listdir(tmp_path / "q") == [name(0)]


def test_a_queue_that_is_only_read_changes_no_file(tmp_path: Path) -> None:
    filled(tmp_path / "q", 3, last_bytes=100)
    before = {path.name: path.read_bytes() for path in (tmp_path / "q").iterdir()}
    empty = opened(tmp_path / "none", Access.READ)
    empty.append(b"mine")
    assert empty.flush() == 4
    assert not (tmp_path / "none").exists()
    queue = opened(tmp_path / "q", Access.READ)
    queue.truncate(SIZE + 10)
    for _ in range(2):
        queue.append(bytes(queue.last.remaining) if queue.last else b"")
        queue.append(b"mine")
    queue.flush()
    queue.retire_first(0)
    queue.delete_all()
    queue.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "q").iterdir()} == before


def test_files_of_a_folder_that_is_only_read_take_no_byte(tmp_path: Path) -> None:
    filled(tmp_path / "read", 1)
    queue = FileQueue(LogPaths((tmp_path / "written",), (tmp_path / "read",)), SIZE, Access.WRITE)
    queue.set_end(10)
    with pytest.raises(PermissionError):
        queue.append(b"mine")
    assert queue.max_offset == 10
    queue.close()


def test_refresh_sees_files_that_came_and_went(tmp_path: Path) -> None:
    filled(tmp_path / "q", 2)
    reader = opened(tmp_path / "q", Access.READ)
    kept = reader.view(0, 4)
    assert not reader.refresh()
    (tmp_path / "q" / name(0)).unlink()
    (tmp_path / "q" / name(2 * SIZE)).write_bytes(b"\3" * SIZE)
    assert reader.refresh()
    assert [file.start for file in reader.files] == [SIZE, 2 * SIZE]
    assert reader.max_offset == 2 * SIZE, "a new file is empty until somebody looked at it"
    reader.set_end(2 * SIZE + 5)
    assert bytes(reader.view(2 * SIZE, 5)) == b"\3" * 5
    assert kept == b"\1" * 4
    assert not reader.refresh()
    reader.close()


def test_refresh_maps_a_file_again_that_was_short(tmp_path: Path) -> None:
    filled(tmp_path / "q", 1)
    path = tmp_path / "q" / name(0)
    os.truncate(path, 10)
    reader = opened(tmp_path / "q", Access.READ)
    assert bytes(reader.view(0, 10)) == b"\1" * 10
    path.write_bytes(b"\1" * SIZE)
    assert reader.refresh()
    reader.set_end(SIZE)
    assert bytes(reader.view(4000, 10)) == b"\1" * 10
    reader.close()


APPEND = """
import sys
from pathlib import Path
from engine.files.file_queue import FileQueue
from engine.files.layout import LogPaths
from engine.files.mapped_file import Access
queue = FileQueue(Path(sys.argv[1]), 4096, Access.WRITE)
for line in sys.stdin:
    print(queue.append(line.encode().ljust(2048, b".")), flush=True)
"""


def test_following_sees_another_processs_appends(tmp_path: Path) -> None:
    reader = opened(tmp_path / "q", Access.READ)
    command = [sys.executable, "-c", APPEND, str(tmp_path / "q")]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for number in range(5):
            writer.stdin.write(f"message {number}\n")
            writer.stdin.flush()
            offset = int(writer.stdout.readline())
            assert reader.refresh() == (number % 2 == 0), "each second append needs a new file"
            reader.set_end(offset + 2048)
            assert bytes(reader.view(offset, 9)) == f"message {number}".encode()
        writer.stdin.close()
    reader.close()


def test_following_sees_another_queues_appends_in_the_same_pages(tmp_path: Path) -> None:
    writer = opened(tmp_path / "q")
    writer.append(b"one")
    reader = opened(tmp_path / "q", Access.READ)
    reader.set_end(3)
    writer.append(b"two")
    writer.append(bytes(SIZE - 6))
    writer.append(b"three")
    assert bytes(reader.files[0].whole()[3:6]) == b"two"
    assert reader.refresh()
    assert bytes(reader.files[1].whole()[:5]) == b"three"
    reader.set_end(SIZE + 5)
    assert bytes(reader.view(SIZE, 5)) == b"three"
    for queue in (reader, writer):
        queue.close()


def test_a_reader_finds_a_file_that_is_being_deleted_whole_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = FileQueue(tmp_path / "queue", 16, Access.WRITE)
    queue.append(b"0" * 16)
    queue.append(b"1" * 16)

    def looked_at(file: MappedFile) -> None:
        assert (queue.find(0), queue.min_offset) == (None, 16)
        retire(file)

    def refused(file: MappedFile) -> None:
        raise PermissionError(file.path)

    retire = MappedFile.retire
    monkeypatch.setattr(MappedFile, "retire", refused)
    with pytest.raises(PermissionError):
        queue.retire_first(0)
    assert (bytes(queue.view(0, 16)), len(queue.files)) == (b"0" * 16, 2)
    monkeypatch.setattr(MappedFile, "retire", looked_at)
    assert queue.retire_first(0) is not None
    assert queue.find(0) is None
    queue.close()

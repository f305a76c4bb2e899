"""The commit log: rolling, order of bytes, batches over several files, reading, holding, the write buffer."""

import errno
import os
import struct
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import (
    DamagedRecordError,
    ExpiredMessageError,
    FlushFailedError,
    MessageNotFoundError,
    MessageTooLargeError,
    RetiredFileError,
    StoreFullError,
)
from engine.files.disk import Disk
from engine.files.file_queue import BufferPool, FileQueue, FileSource
from engine.files.mapped_file import Access, MappedFile
from engine.log.commit_log import CommitLog, plan
from engine.settings.config import FlushPolicy
from engine.write.flush import Committer

SIZE = 4096
FIELDS = struct.Struct(">qqq")


class Record:
    """Bytes whose first 24 say where and when they were placed."""

    records = 1
    names_magic = False

    def __init__(self, size: int, letter: bytes = b"r") -> None:
        self.buffer = bytearray(letter * size)

    def place(self, queue_offset: int, physical_offset: int, store_time_ms: int, /) -> None:
        head = FIELDS.pack(queue_offset + 1, physical_offset, store_time_ms)[: len(self.buffer)]
        self.buffer[: len(head)] = head


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


class FewFiles(Disk):
    def __init__(self, files: int) -> None:
        self.files_left = files

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        if self.files_left == 0:
            raise OSError(errno.ENOSPC, "full")
        self.files_left -= 1
        super().allocate(descriptor, path, start, size_bytes)


def opened(directory: Path, *, disk: Disk | None = None, pool: BufferPool | None = None) -> CommitLog:
    folder, disk = directory / "commitlog", disk or Disk()
    source = FileSource(folder, SIZE, Access.WRITE, disk, in_steps=True, pool=pool)
    return CommitLog(FileQueue(folder, SIZE, Access.WRITE, disk=disk, source=source), Clock())


def on_disk(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((directory / "commitlog").iterdir())]


def blank(size: int) -> bytes:
    return struct.pack(">iI", size, 0xCBD43194)


def test_a_record_is_told_where_and_when_and_found_there(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.append(Record(100), 7) == (0, 1_000)
    assert log.append(Record(50), 8) == (100, 1_000)
    assert FIELDS.unpack(log.view(100, 24)) == (9, 100, 1_000)
    assert (log.min_offset, log.readable_end, log.wrote_end) == (0, 150, 150)
    log.files.close()


@pytest.mark.parametrize("left", [0, 1, 7, 8, 9])
def test_a_record_goes_into_a_file_only_with_room_for_a_blank_behind_it(tmp_path: Path, left: int) -> None:
    log = opened(tmp_path)
    log.append(Record(1_000), 0)
    physical_offset, _ = log.append(Record(SIZE - 1_000 - left, b"x"), 1)
    if left >= 8:
        assert physical_offset == 1_000
        assert log.append(Record(30), 2)[0] == SIZE
        assert on_disk(tmp_path)[0][SIZE - left :] == blank(left) + bytes(left - 8)
    else:
        assert physical_offset == SIZE
        assert on_disk(tmp_path)[0][1_000:] == blank(SIZE - 1_000) + bytes(SIZE - 1_008)
    assert log.files.missing_ranges() == []
    log.files.close()


def test_a_record_that_fits_no_file_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(Record(100), 0)
    for size in (SIZE - 7, SIZE, 10 * SIZE):
        with pytest.raises(MessageTooLargeError):
            log.append(Record(size), 1)
        with pytest.raises(MessageTooLargeError):
            log.append_all([Record(10), Record(size)], [1, 2])
    assert log.wrote_end == 100
    assert log.append(Record(SIZE - 8), 1)[0] == SIZE
    log.files.close()


def test_a_full_disk_changes_nothing_and_writing_goes_on_when_there_is_space(tmp_path: Path) -> None:
    disk = FewFiles(1)
    log = opened(tmp_path, disk=disk)
    log.append(Record(3_000), 0)
    before = on_disk(tmp_path)
    for _ in range(3):
        with pytest.raises(StoreFullError):
            log.append(Record(2_000), 1)
    assert on_disk(tmp_path) == before
    assert log.append(Record(500), 1)[0] == 3_000, "what fits in the old file still does"
    disk.files_left = 1
    assert log.append(Record(2_000), 2)[0] == SIZE
    log.files.close()


def test_store_times_never_run_backwards(tmp_path: Path) -> None:
    clock = Clock()
    log = CommitLog(FileQueue(tmp_path, SIZE, Access.WRITE), clock)
    log.resume(0, last_store_time_ms=5_000)
    times = []
    for now_ms in (4_000, 6_000, 5_500, 7_000):
        clock.now_ms = now_ms
        times.append(log.append(Record(30), 0)[1])
    assert times == [5_000, 6_000, 6_000, 7_000]
    log.files.close()


def test_a_record_is_not_there_before_its_first_eight_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
    log.append(Record(100), 0)
    file = log.files.last
    assert file is not None
    target = file.writable()
    written: list[tuple[int, int]] = []

    class Spy:
        def __setitem__(self, place: slice, data: bytes) -> None:
            written.append((place.start, place.stop))
            target[place] = data

    monkeypatch.setattr(MappedFile, "_prepare_target", lambda *_: Spy())
    monkeypatch.setattr("engine.files.mapped_file.require_read", lambda *_: None)  # a spy has no pages
    file._target = None
    log.append(Record(60), 1)
    assert written == [(108, 160), (100, 108)]
    log.files.close()


@given(
    sizes=st.lists(st.integers(8, SIZE - 8), min_size=1, max_size=12),
    wrote=st.integers(0, SIZE),
)
def test_parts_are_planned_as_single_appends_would_place_them(sizes: list[int], wrote: int) -> None:
    number, position = 0, wrote
    for size, place in zip(sizes, plan(sizes, wrote, SIZE), strict=True):
        if size + 8 > SIZE - position:
            number, position = number + 1, 0
        assert place == (number, position)
        position += size


@given(before=st.just(0) | st.integers(24, SIZE - 8), sizes=st.lists(st.integers(24, SIZE - 8), min_size=1, max_size=6))
def test_parts_over_several_files_are_stored_as_single_appends_would(
    tmp_path_factory: pytest.TempPathFactory, before: int, sizes: list[int]
) -> None:
    whole, single = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("single")
    logs = [opened(whole), opened(single)]
    for log in logs:
        if before:
            log.append(Record(before), 0)
    stored = logs[0].append_all([Record(size) for size in sizes], list(range(len(sizes))))
    assert stored == [logs[1].append(Record(size), number) for number, size in enumerate(sizes)]
    assert on_disk(whole) == on_disk(single)
    assert logs[0].wrote_end == logs[1].wrote_end
    assert logs[0].append(Record(24), 0) == logs[1].append(Record(24), 0)
    for log in logs:
        log.files.close()


def test_parts_over_several_files_are_all_refused_by_a_full_disk(tmp_path: Path) -> None:
    disk = FewFiles(3)
    log = opened(tmp_path, disk=disk)
    log.append(Record(3_000), 0)
    before = on_disk(tmp_path)
    with pytest.raises(StoreFullError):
        log.append_all([Record(2_000), Record(3_000), Record(3_000)], [1, 2, 3])
    assert on_disk(tmp_path) == before
    assert log.wrote_end == 3_000
    disk.files_left = 3
    stored = log.append_all([Record(2_000), Record(3_000), Record(3_000)], [1, 2, 3])
    assert [physical_offset for physical_offset, _ in stored] == [SIZE, 2 * SIZE, 3 * SIZE]
    log.files.close()


def test_a_sparse_log_gets_space_for_all_parts_before_the_first_byte(tmp_path: Path) -> None:
    """A broker's log file, of which each part would be in another step."""
    (tmp_path / f"{0:020d}").write_bytes(b"x" * 8_192)
    os.truncate(tmp_path / f"{0:020d}", 1 << 20)
    disk = FewFiles(0)
    log = CommitLog(FileQueue(tmp_path, 1 << 20, Access.WRITE, disk=disk), Clock())
    log.resume(8_192, 0)
    parts = [Record(5_000), Record(100_000), Record(300_000)]
    for _ in range(2):
        with pytest.raises(StoreFullError):
            log.append(Record(5_000), 1)
        with pytest.raises(StoreFullError):
            log.append_all(parts, [1, 2, 3])
        assert log.wrote_end == 8_192
        assert not any(contents(tmp_path)[0][8_192:])
    disk.files_left = 1
    assert [offset for offset, _ in log.append_all(parts, [1, 2, 3])] == [8_192, 13_192, 113_192]
    assert (tmp_path / f"{0:020d}").stat().st_blocks * 512 < 500_000
    log.files.close()


@pytest.mark.parametrize("fails_at", range(1, 9))
def test_parts_that_the_disk_refuses_half_way_leave_no_byte_behind_the_end(
    fails_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    log.append(Record(100), 0)
    parts, numbers = [Record(2_000), Record(1_500), Record(3_000)], [1, 2, 3]
    write, calls = MappedFile.write, 0

    def failing(file: MappedFile, position: int, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            write(file, position, data[: len(data) // 2])
            raise OSError(errno.EIO, "refused")
        write(file, position, data)

    monkeypatch.setattr(MappedFile, "write", failing)
    if fails_at < 8:  # three bodies, a filler, three heads
        with pytest.raises(OSError, match="refused"):
            log.append_all(parts, numbers)
        assert log.wrote_end == 100
        assert not any(any(content[100 if not start else 0 :]) for start, content in enumerate(contents(tmp_path)))
    assert log.append_all(parts, numbers)[0][0] == 100
    log.files.close()


def contents(directory: Path) -> list[bytes]:
    """Of each file of the log, in order."""
    return [path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()]


def test_of_parts_over_several_files_the_first_ones_head_is_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    log.append(Record(100), 0)
    written: list[tuple[int, int, int]] = []
    write = MappedFile.write

    def spy(file: MappedFile, position: int, data: bytes) -> None:
        written.append((file.start, position, len(data)))
        write(file, position, data)

    monkeypatch.setattr(MappedFile, "write", spy)
    log.append_all([Record(2_000), Record(3_000)], [1, 2])
    assert written[-1] == (0, 100, 8)
    assert (0, 2_100, 8) in written, "the BLANK between them"
    assert min(written) == (0, 100, 8)
    log.files.close()


def test_appends_from_many_threads_do_not_overlap(tmp_path: Path) -> None:
    log = opened(tmp_path)
    places: list[tuple[int, int]] = []

    def publish(letter: bytes) -> None:
        for number in range(100):
            size = 24 + number
            places.append((log.append(Record(size, letter), number)[0], size))

    threads = [threading.Thread(target=publish, args=(bytes([65 + number]),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ends = sorted(places)
    assert len(ends) == 400
    assert all(start + size <= following for (start, size), (following, _) in pairwise(ends))
    for start, size in ends:
        assert FIELDS.unpack(log.view(start, 24))[1] == start
        assert len(set(log.view(start + 24, size - 24))) <= 1
    log.files.close()


def test_reading_says_why_there_is_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for _ in range(4):
        log.append(Record(3_000), 0)
    log.files.retire_first(0)
    with pytest.raises(ExpiredMessageError) as expired:
        log.view(100, 10)
    assert (expired.value.offset, expired.value.min_offset) == (100, SIZE)
    for physical_offset, length in ((3 * SIZE + 3_000, 1), (3 * SIZE + 2_999, 2), (9 * SIZE, 1)):
        with pytest.raises(MessageNotFoundError):
            log.view(physical_offset, length)
    assert len(log.rest(3 * SIZE + 1_000)) == 2_000
    log.files.close()
    (tmp_path / "commitlog" / f"{2 * SIZE:020d}").unlink()
    log = opened(tmp_path)
    with pytest.raises(DamagedRecordError):
        log.view(2 * SIZE, 10)
    log.files.close()


def test_a_hold_reads_on_after_its_file_was_deleted(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for _ in range(2):
        log.append(Record(3_000), 0)
    with log.hold(10) as hold:
        log.files.retire_first(now_ms=0)
        with pytest.raises(ExpiredMessageError):
            log.view(0, 24)
        with pytest.raises(ExpiredMessageError):
            log.hold(0)
        assert FIELDS.unpack(hold.view(0, 24)) == (1, 0, 1_000)
        log.files.sweep(now_ms=120_000, forced_interval_ms=120_000)
        with pytest.raises(RetiredFileError):
            hold.view(0, 24)
    hold.release()
    log.files.close()


def test_resume_goes_on_where_recovery_ended(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for _ in range(3):
        log.append(Record(1_000), 0)
    log.files.close()
    log = opened(tmp_path)
    log.files.truncate(2_000)
    log.resume(2_000, 1_000)
    assert log.append(Record(500, b"n"), 2)[0] == 2_000
    assert on_disk(tmp_path)[0][2_500:] == bytes(SIZE - 2_500)
    log.files.close()


def pooled(tmp_path: Path, buffers: int = 2) -> tuple[CommitLog, BufferPool]:
    pool = BufferPool(buffers, SIZE)
    return opened(tmp_path, pool=pool), pool


def test_with_a_pool_readers_see_committed_bytes_only(tmp_path: Path) -> None:
    log, _ = pooled(tmp_path)
    log.append(Record(100), 0)
    assert (log.wrote_end, log.readable_end) == (100, 0)
    assert on_disk(tmp_path) == [bytes(SIZE)]
    with pytest.raises(MessageNotFoundError):
        log.view(0, 100)
    assert log.files.commit(least_pages=1) == 0
    assert log.files.commit() == 100
    assert FIELDS.unpack(log.view(0, 24)) == (1, 0, 1_000)
    log.append(Record(50), 1)
    assert log.readable_end == 100
    log.files.close()


def test_with_a_pool_files_fill_in_order_and_buffers_go_round(tmp_path: Path) -> None:
    log, pool = pooled(tmp_path, buffers=1)
    for number in range(6):
        log.append(Record(3_000, bytes([97 + number])), number)
        assert log.readable_end == number * SIZE, "the file before was committed when this one began"
        assert pool.take() is None
    log.append_all([Record(500), Record(3_000), Record(3_000)], [6, 7, 8])
    log.files.commit()
    assert log.readable_end == log.wrote_end == 7 * SIZE + 3_000
    for number, content in enumerate(on_disk(tmp_path)[:5]):
        assert content[24:3_000] == bytes([97 + number]) * 2_976
        assert content[3_000:] == blank(SIZE - 3_000) + bytes(SIZE - 3_008)
    log.files.close()


def test_without_a_free_buffer_the_file_is_written_directly(tmp_path: Path) -> None:
    pool = BufferPool(1, SIZE)
    other = pool.take()
    log = opened(tmp_path, pool=pool)
    log.append(Record(100), 0)
    assert log.readable_end == 100
    assert other is not None
    log.files.close()


def test_the_committer_tells_when_bytes_became_readable(tmp_path: Path) -> None:
    log, _ = pooled(tmp_path)
    readable: list[int] = []
    told = threading.Event()

    def committed() -> None:
        readable.append(log.readable_end)
        told.set()

    committer = Committer(log, FlushPolicy(commit_interval_ms=1), committed=committed, failed=lambda _: None)
    committer.start()
    log.append(Record(100), 0)
    assert told.wait(60)
    assert readable[-1] == 100
    log.append(Record(100), 1)
    committer.close()
    assert readable[-1] == 200
    log.files.close()


def test_the_committer_tells_of_bytes_that_rolling_committed(tmp_path: Path) -> None:
    log, _ = pooled(tmp_path, buffers=1)
    told: list[int] = []
    committer = Committer(log, FlushPolicy(), committed=lambda: told.append(log.readable_end), failed=lambda _: None)
    log.append(Record(3_000), 0)
    log.files.reserve(1)
    log.files.roll()
    assert log.readable_end == 3_000
    committer.commit()
    committer.commit()
    assert told == [3_000]
    log.files.close()


def test_a_failed_commit_is_final_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = pooled(tmp_path)
    failures: list[FlushFailedError] = []
    committer = Committer(log, FlushPolicy(), committed=lambda: None, failed=failures.append)
    log.append(Record(100), 0)

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(FlushFailedError):
            committer.commit()
    with pytest.raises(FlushFailedError):
        committer.commit()
    assert len(failures) == 1
    assert log.readable_end == 0
    log.files.close()

"""What a process that died left in memory is written to disk again before anything counts as durable: it may be nowhere
else, and the kernel may take it for written."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message, MessageStore
from engine.files.disk import Disk
from tests.engine.storetools import SMALL, bodies, killed, opened

PAGE = os.sysconf("SC_PAGESIZE")
LOG_BYTES = SMALL.sizes.commit_log_bytes if SMALL.sizes is not None else 0


class PageDisk(Disk):
    """Notes which pages of which log file were to be written again, and which were, by a sync. `refusals` syncs of log
    files fail."""

    def __init__(self, refusals: int = 0) -> None:
        self.dirty: Counter[tuple[int, int]] = Counter()
        self.written: set[tuple[int, int]] = set()
        self.refusals = refusals

    def write_again(self, descriptor: int, path: Path, position: int, size: int) -> None:
        super().write_again(descriptor, path, position, size)
        pages = range(position // PAGE, -(-(position + size) // PAGE))
        self.dirty.update((int(path.name), page) for page in pages)

    def sync(self, descriptor: int, path: Path) -> None:
        if path.parent.name != "commitlog":
            return
        pages = {key for key in self.dirty if key[0] == int(path.name)}
        for key in pages:
            del self.dirty[key]
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EIO, "refused", str(path))
        self.written |= pages

    def sync_directory(self, path: Path) -> None:
        """Nothing."""


def fill(path: Path, left: Path) -> tuple[int, int, list[bytes]]:
    """Some hundred messages, the first half of them flushed, then a kill: the end of what was flushed, the log's end,
    and all bodies."""
    with killed(path, left) as store:
        for number in range(100):
            store.put(Message("T", b"body-%d" % number * 20), 0)
        store.flush()
        flushed = store.physical_end
        for number in range(100, 200):
            store.put(Message("T", b"body-%d" % number * 20), 0)
        return flushed, store.physical_end, bodies(store, "T", 0)


def pages_of(start: int, end: int) -> set[tuple[int, int]]:
    """The pages of the log from one physical offset to another, by file and number."""
    return {(at - at % LOG_BYTES, at % LOG_BYTES // PAGE) for at in range(start - start % PAGE, end, PAGE)}


def test_after_a_kill_all_behind_the_recovery_point_is_written_again_and_synced(tmp_path: Path) -> None:
    flushed, end, sent = fill(tmp_path / "store", tmp_path / "left")
    disk = PageDisk()
    with MessageStore.open(tmp_path / "left", replace(SMALL, disk=disk)) as store:
        assert disk.written >= pages_of(flushed, end)
        assert not disk.dirty
        assert min(disk.written) >= min(pages_of(flushed, end)), "what was on disk is not written again"
        assert bodies(store, "T", 0) == sent


def test_without_any_mark_all_that_is_in_memory_is(tmp_path: Path) -> None:
    _, end, sent = fill(tmp_path / "store", tmp_path / "left")
    shutil.rmtree(tmp_path / "left" / "fsstore")
    (tmp_path / "left" / "checkpoint").unlink()
    disk = PageDisk()
    with MessageStore.open(tmp_path / "left", replace(SMALL, disk=disk)) as store:
        assert disk.written >= pages_of(0, end)
        assert bodies(store, "T", 0) == sent


def test_zeros_behind_the_end_are_written_again(tmp_path: Path) -> None:
    """An earlier opening may have made them, and the disk may have kept what was there before."""

    class ByteDisk(PageDisk):
        reached = 0

        def write_again(self, descriptor: int, path: Path, position: int, size: int) -> None:
            super().write_again(descriptor, path, position, size)
            self.reached = max(self.reached, int(path.name) + position + size)

    _, end, sent = fill(tmp_path / "store", tmp_path / "left")
    disk = ByteDisk()
    with MessageStore.open(tmp_path / "left", replace(SMALL, disk=disk)) as store:
        assert disk.reached == end - end % LOG_BYTES + LOG_BYTES
        assert bodies(store, "T", 0) == sent


def test_it_is_written_while_the_rest_is_scanned(tmp_path: Path) -> None:
    fill(tmp_path / "store", tmp_path / "left")
    shutil.rmtree(tmp_path / "left" / "fsstore")
    (tmp_path / "left" / "checkpoint").unlink()
    disk = PageDisk()
    begun: list[int] = []
    config = replace(SMALL, disk=disk, progress=lambda _: begun.append(len(disk.dirty)))
    MessageStore.open(tmp_path / "left", config).close()
    assert begun[0] == 0
    assert begun == sorted(begun)
    assert begun[-1] > 0, "nothing waits for the end of the scan"


def test_after_a_clean_end_nothing_is(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put(Message("T", b"body"), 0)
    for mark in ("clean.json", "nothing else"):
        (tmp_path / "fsstore" / mark).unlink(missing_ok=True)
        disk = PageDisk()
        MessageStore.open(tmp_path, replace(SMALL, disk=disk)).close()
        assert not disk.written


def test_what_the_kernel_has_not_in_memory_is_not(tmp_path: Path) -> None:
    flushed, end, sent = fill(tmp_path / "store", tmp_path / "left")
    for file in (tmp_path / "left" / "commitlog").iterdir():
        with file.open("rb") as opened_file:
            os.fsync(opened_file.fileno())
            os.posix_fadvise(opened_file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    disk = PageDisk()
    with MessageStore.open(tmp_path / "left", replace(SMALL, disk=disk)) as store:
        assert bodies(store, "T", 0) == sent
    written = {file for file, _ in disk.written & pages_of(flushed, end)}
    assert len(written) <= 1, "only of the file that was looked at to find the marks"


def test_after_a_sync_that_fails_once_all_is_written_again_once_more(tmp_path: Path) -> None:
    flushed, end, sent = fill(tmp_path / "store", tmp_path / "left")
    disk = PageDisk(refusals=1)
    with MessageStore.open(tmp_path / "left", replace(SMALL, disk=disk)) as store:
        assert disk.written >= pages_of(flushed, end)
        assert bodies(store, "T", 0) == sent


def test_a_disk_that_goes_on_refusing_is_not_believed_and_the_next_opening_begins_anew(tmp_path: Path) -> None:
    flushed, end, sent = fill(tmp_path / "store", tmp_path / "left")
    disk = PageDisk(refusals=2)
    with pytest.raises(OSError, match="refused"):
        MessageStore.open(tmp_path / "left", replace(SMALL, disk=disk))
    assert not disk.written >= pages_of(flushed, end)
    with MessageStore.open(tmp_path / "left", replace(SMALL, disk=disk)) as store:
        assert disk.written >= pages_of(flushed, end)
        assert bodies(store, "T", 0) == sent


@pytest.mark.parametrize("page", [0, 1])
def test_a_page_that_cannot_be_read_stops_no_other_from_being_written(tmp_path: Path, page: int) -> None:
    class Unreadable(PageDisk):
        def write_again(self, descriptor: int, path: Path, position: int, size: int) -> None:
            if position // PAGE <= page < -(-(position + size) // PAGE) and int(path.name) == LOG_BYTES * 2:
                raise OSError(errno.EIO, "a bad sector", str(path))
            super().write_again(descriptor, path, position, size)

    _, end, sent = fill(tmp_path / "store", tmp_path / "left")
    shutil.rmtree(tmp_path / "left" / "fsstore")
    (tmp_path / "left" / "checkpoint").unlink()
    disk = Unreadable()
    with MessageStore.open(tmp_path / "left", replace(SMALL, disk=disk)) as store:
        assert pages_of(0, end) - disk.written == {(LOG_BYTES * 2, page)}
        assert bodies(store, "T", 0) == sent

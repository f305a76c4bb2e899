"""The failing file system follows its rules, on which other tests rely."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability.faultfs import CHANGES, FaultyDisk, Rule, faulty_disk
from tests.mount.harness import refused_with

PAGE = mmap.PAGESIZE
CONTENT = b"".join(bytes([65 + page]) * PAGE for page in range(8))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    backing = tmp_path / "backing"
    (backing / "log").mkdir(parents=True)
    (backing / "log" / "file").write_bytes(CONTENT)
    with faulty_disk(backing, tmp_path / "disk") as found:
        yield found


def read(path: Path, page: int, count: int = 1) -> bytes:
    """These pages, read by a descriptor of their own."""
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), count * PAGE, page * PAGE)


def test_without_rules_it_is_the_folder(disk: FaultyDisk) -> None:
    file = disk.root / "log" / "file"
    assert file.read_bytes() == CONTENT
    (disk.root / "new").mkdir()
    (disk.root / "new" / "a").write_bytes(b"text")
    with (disk.root / "new" / "a").open("ab") as appended:
        appended.write(b" and more")
    (disk.root / "new" / "a").rename(disk.root / "b")
    os.link(disk.root / "b", disk.root / "c")
    (disk.root / "b").unlink()
    (disk.root / "new").rmdir()
    os.setxattr(disk.root / "c", "user.note", b"kept")
    with (disk.root / "c").open("r+b") as held:
        os.posix_fallocate(held.fileno(), 0, 3 * PAGE)
        os.fdatasync(held.fileno())
        (disk.root / "c").unlink()
        assert held.read(13) == b"text and more"
    assert sorted(os.listdir(disk.root)) == sorted(os.listdir(disk.backing)) == ["log"]
    assert disk.struck == 0


def test_a_page_that_is_refused_costs_no_other(disk: FaultyDisk) -> None:
    file = disk.root / "log" / "file"
    assert file.read_bytes() == CONTENT  # in the page cache
    disk.inject(Rule("read", "*/file", first=2 * PAGE, end=3 * PAGE))
    assert refused_with(read, file, 2) == errno.EIO
    assert read(file, 0, 2) == CONTENT[: 2 * PAGE]
    assert read(file, 3, 5) == CONTENT[3 * PAGE :]
    disk.heal()
    assert file.read_bytes() == CONTENT


def test_a_page_stays_refused_where_its_file_is_moved_and_is_none_of_a_file_in_its_place(disk: FaultyDisk) -> None:
    file = disk.root / "log" / "file"
    disk.inject(Rule("read", "*/file", first=2 * PAGE, end=3 * PAGE))
    file.rename(disk.root / "moved")
    file.write_bytes(CONTENT)
    disk.drop("*")
    assert refused_with(read, disk.root / "moved", 2) == errno.EIO
    assert file.read_bytes() == CONTENT


def test_a_mapped_page_that_is_refused_is_a_bus_error(disk: FaultyDisk) -> None:
    look = "import mmap, sys; f = open(sys.argv[1]); mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[int(sys.argv[2])]"
    with (disk.root / "log" / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as page:
        assert page[5 * PAGE] == CONTENT[5 * PAGE]
        disk.inject(Rule("read", "/log/*", first=5 * PAGE, end=5 * PAGE + 1))
        ends = [
            subprocess.run([sys.executable, "-c", look, file.name, str(at * PAGE)], check=False).returncode
            for at in (4, 5, 6)
        ]
        assert ends == [0, -signal.SIGBUS, 0]
        disk.heal()
        assert page[5 * PAGE] == CONTENT[5 * PAGE]


def test_calls_are_spared_then_struck_so_many_times(disk: FaultyDisk) -> None:
    disk.inject(Rule("create", "*/made-*", errno.ENOSPC, after=1, times=2))
    made = [disk.root / "log" / f"made-{number}" for number in range(4)]
    made[0].touch()
    assert [refused_with(path.touch) for path in made[1:3]] == [errno.ENOSPC] * 2
    made[3].touch()
    assert disk.struck == 2


def test_each_change_can_be_refused(disk: FaultyDisk) -> None:
    file, other = disk.root / "log" / "file", disk.root / "log" / "other"
    with file.open("r+b", buffering=0) as held:
        disk.inject(*(Rule(call, "*", errno.EROFS) for call in CHANGES))
        assert refused_with(held.write, b"new") == errno.EROFS
        assert refused_with(os.fsync, held.fileno()) == errno.EROFS
        assert refused_with(held.truncate, 5) == errno.EROFS
        assert refused_with(os.posix_fallocate, held.fileno(), 0, 10 * PAGE) == errno.EROFS
    for change in (other.touch, other.mkdir, file.unlink, lambda: file.rename(other), lambda: file.open("ab")):
        assert refused_with(change) == errno.EROFS
    assert file.read_bytes() == CONTENT


def test_pages_whose_write_back_failed_stay_as_clean(disk: FaultyDisk) -> None:
    file = disk.root / "log" / "file"
    with file.open("r+b") as held, mmap.mmap(held.fileno(), 0) as pages:
        pages[PAGE] = 1
        disk.inject(Rule("write", "*/file", times=1))
        assert refused_with(os.fsync, held.fileno()) == errno.EIO
        os.fsync(held.fileno())
    assert read(file, 1)[0] == 1, "the page cache has the new page, for the next process, too"
    assert (disk.backing / "log" / "file").read_bytes() == CONTENT, "and the disk the old one"
    disk.drop()
    assert file.read_bytes() == CONTENT


def test_reads_are_cut_and_delayed(disk: FaultyDisk) -> None:
    file = disk.root / "log" / "file"
    disk.inject(Rule("read", "*/file", 0, first=PAGE, end=2 * PAGE, length=100, times=1))
    assert read(file, 1) == CONTENT[PAGE : PAGE + 100]
    disk.heal()
    disk.inject(Rule("read", "*/file", 0, first=7 * PAGE, delay_s=0.2))
    began = time.monotonic()
    read(file, 7)
    assert 0.2 <= time.monotonic() - began < 5


def test_processes_that_use_it_do_not_keep_it(tmp_path: Path) -> None:
    (tmp_path / "backing").mkdir()
    (tmp_path / "backing" / "file").write_bytes(CONTENT)
    with faulty_disk(tmp_path / "backing", tmp_path / "disk") as disk:
        held = (disk.root / "file").open("rb", buffering=0)
    with held:
        assert refused_with(held.read) == errno.ENOTCONN
    assert os.listdir(tmp_path / "disk") == []

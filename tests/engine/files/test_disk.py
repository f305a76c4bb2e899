"""Durable names and contents."""

import errno
import os
from pathlib import Path

import pytest

from engine.files.disk import Disk, create_whole, lengthen, make_directory, remove_file, replace_file
from engine.files.mapped_file import Access, MappedFile


class Journal(Disk):
    """Notes syncs in their order."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, bool]] = []
        self.no_unnamed_files = False

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        self.lines.append(("allocate", path.name, path.exists()))
        super().allocate(descriptor, path, start, size_bytes)

    def sync(self, descriptor: int, path: Path) -> None:
        self.lines.append(("sync", path.name, path.exists()))

    def sync_directory(self, path: Path) -> None:
        self.lines.append(("sync directory", path.name, path.exists()))


def test_replace_file_syncs_content_before_the_name_and_the_name_after(tmp_path: Path) -> None:
    disk, path = Journal(), tmp_path / "dir" / "a.json"
    path.parent.mkdir()
    replace_file(path, b"new", disk)
    assert disk.lines == [("sync", "a.json.tmp", True), ("sync directory", "dir", True)]
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["a.json"]


def test_a_replacement_that_fails_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    class Failing(Disk):
        def sync(self, descriptor: int, path: Path) -> None:
            raise OSError(errno.EIO, "bad disk")

    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="bad disk"):
        replace_file(path, b"new", Failing())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_created_files_name_appears_when_the_file_is_whole_and_synced(tmp_path: Path) -> None:
    disk, path = Journal(), tmp_path / "file"
    MappedFile.create(path, 10_000, Access.WRITE, disk=disk, sync=True).close()
    assert disk.lines == [("allocate", "file", False), ("sync", "file", False)]
    assert path.read_bytes() == bytes(10_000)


def test_creation_works_where_unnamed_files_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "no /proc here")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "file"
    os.close(create_whole(path, lambda descriptor: lengthen(descriptor, path, 10_000)))
    assert path.read_bytes() == bytes(10_000)


def test_make_directory_names_what_must_be_synced(tmp_path: Path) -> None:
    assert make_directory(tmp_path / "a" / "b") == [tmp_path, tmp_path / "a"]
    assert make_directory(tmp_path / "a" / "b") == []


def test_make_directory_looks_no_further_up_than_the_first_folder_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    stat = os.stat

    def noting(path: Path, **options: bool) -> os.stat_result:
        looked.append(str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", noting)
    make_directory(tmp_path / "a" / "b")
    assert str(tmp_path) in looked
    assert str(tmp_path.parent) not in looked


def test_remove_file_is_content_with_a_missing_one(tmp_path: Path) -> None:
    disk, path = Journal(), tmp_path / "x"
    path.touch()
    remove_file(path, disk)
    remove_file(path, disk)
    assert not path.exists()
    assert len(disk.lines) == 2

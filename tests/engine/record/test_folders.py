"""The kernel's look at many folders: their files, the ends of short ones, and one sync for all."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.record.kernel.folders import data_ends_at, files_below, queue_stamps, read_ends, sync_filesystem

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_files_are_found_with_their_sizes_and_times_in_folders_and_behind_links(tmp_path: Path, folder: int) -> None:
    (tmp_path / "top/topic/0").mkdir(parents=True)
    (tmp_path / "top/topic/0/a").write_bytes(b"four")
    (tmp_path / "top/\udcff").write_bytes(b"")
    (tmp_path / "top/link").symlink_to("topic")
    (tmp_path / "top/dangling").symlink_to("nowhere")
    os.utime(tmp_path / "top/topic/0/a", ns=(1, 2_000_000_003))
    os.utime(tmp_path / "top/\udcff", ns=(1, -5))
    inner = {"0": {"a": (4, 2_000_000_003)}}
    assert files_below(folder, b"top") == {"topic": inner, "link": inner, "\udcff": (0, -5)}
    assert files_below(folder, b"top/topic/0") == {"a": (4, 2_000_000_003)}


def test_links_in_circles_end(tmp_path: Path, folder: int) -> None:
    for name in "ab":
        (tmp_path / name).symlink_to(".")
    found: object = files_below(folder, b".")
    depth = 0
    while isinstance(found, dict):
        assert found.keys() == {"a", "b"}
        found, depth = found["a"], depth + 1
    assert depth == 5


@pytest.mark.parametrize(("name", "error"), [(b"none", FileNotFoundError), (b"file", NotADirectoryError)])
def test_what_is_no_folder_is_an_error(tmp_path: Path, folder: int, name: bytes, error: type[OSError]) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(error):
        files_below(folder, name)


def test_the_stamps_of_a_topics_queues_are_of_its_folders_and_of_the_files_of_their_entries(
    tmp_path: Path, folder: int
) -> None:
    for name in ("T/0/00000000000000000040", "T/0/00000000000000000080", "T/12/00000000000000000000"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 40)
        os.utime(tmp_path / name, ns=(1, 5))
    for number, name in enumerate(("T/0", "T/12", "T"), 6):
        os.utime(tmp_path / name, ns=(1, number))
    links = [os.stat(tmp_path / name).st_nlink for name in ("T", "T/0", "T/12")]
    extents = {12: (0, 2), 0: (2, 5), 13: (4, 4)}
    found = queue_stamps(folder, b"T", extents, 20, 40)
    assert struct.unpack("=14q", found) == (8, links[0], 6, links[1], 5, 40, 5, 40, 7, links[2], 5, 40, 0, 0)
    with pytest.raises(FileNotFoundError):
        queue_stamps(folder, b"T", {12: (0, 3)}, 20, 40)
    assert struct.unpack("=2q", queue_stamps(folder, b"none", {}, 20, 40)) == (0, 0)


@pytest.mark.parametrize(
    ("content", "end", "ends"),
    [
        (b"", 0, False),
        (b"\1" * 20, 20, True),
        (b"\1" * 20, 40, False),
        (b"\1" * 40, 20, False),
        (b"\0" * 19 + b"\1", 20, True),
        (b"\1" * 20 + b"\0" * 100_000, 20, True),
        (b"\1" * 20 + b"\0" * 100_000 + b"\1", 20, False),
        (b"\0" * 4096 + b"\1" * 20, 4116, True),
        (b"\1" * 20 + b"\0" * 4096 + b"\1", 20, False),
        (b"\1" * 10, 10, False),
        (b"\1" * 20, -1, False),
    ],
)
def test_the_end_of_the_data_is_known_by_the_bytes(
    tmp_path: Path, folder: int, content: bytes, end: int, ends: bool
) -> None:
    (tmp_path / "file").write_bytes(content)
    assert data_ends_at(folder, b"file", end, 20) is ends


@pytest.mark.parametrize("last", [20, 5000, MIB, 5 * MIB - 1])
def test_holes_are_not_read_and_a_byte_behind_them_is_seen(tmp_path: Path, folder: int, last: int) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.write(b"\1" * 20)
        file.truncate(5 * MIB)
        assert data_ends_at(folder, b"file", 20, 20)
        file.seek(last)
        file.write(b"\1")
        file.flush()
        assert not data_ends_at(folder, b"file", 20, 20)


def test_much_space_that_may_hold_data_is_not_read(tmp_path: Path, folder: int) -> None:
    (tmp_path / "file").write_bytes(b"\1" * 20 + bytes(2 * MIB))
    assert not data_ends_at(folder, b"file", 20, 20)


def test_what_can_not_be_read_does_not_end_anywhere(tmp_path: Path, folder: int) -> None:
    (tmp_path / "file").write_bytes(b"\1" * 20)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    assert [data_ends_at(folder, name, 20, 20) for name in (b"none", b"link", b"folder")] == [False] * 3
    assert [read_ends(folder, name, 20, 20) for name in (b"none", b"link", b"folder")] == [b""] * 3


def test_both_ends_of_a_files_data_are_read(tmp_path: Path, folder: int) -> None:
    (tmp_path / "file").write_bytes(b"abcdefgh")
    assert read_ends(folder, b"file", 7, 2) == b"abfg"
    assert read_ends(folder, b"file", 2, 2) == b"abab"
    assert read_ends(folder, b"file", 9, 2) == b"abh"
    assert read_ends(folder, b"file", 1, 2) == b""
    assert read_ends(folder, b"file", 700, 65) == b""


def test_a_filesystem_is_synced_or_known_to_be_unable(folder: int) -> None:
    assert sync_filesystem(folder) in (True, False)
    proc = os.open("/proc", os.O_RDONLY)
    try:
        assert not sync_filesystem(proc)
    finally:
        os.close(proc)

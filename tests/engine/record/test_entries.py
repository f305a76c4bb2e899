"""The kernel's look at the files of a consume queue tells what opening it does, or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.derived.consume_queues import ConsumeQueues
from engine.files.mapped_file import Access
from engine.log.entries import ENTRY_STRUCT, PRE_BLANK_SIZE
from engine.record.kernel.entries import Look, look

ROOM = 300
"""Entries of a file: more than the look reads at first."""
FILE_BYTES = ROOM * ENTRY_STRUCT.size
BLANK = (0, PRE_BLANK_SIZE, 0)
VISIBLE_END = 1 << 40

Entry = tuple[int, int, int]


def entries(first: int, count: int) -> list[Entry]:
    """Of records of 100 bytes each, the first of them the log's record `first`."""
    return [(100 * number, 100, number) for number in range(first, first + count)]


def write(path: Path, number: int, content: Sequence[Entry], size: int = FILE_BYTES) -> Path:
    """The `number`-th file of a queue, with these entries and zeros behind them."""
    path.mkdir(parents=True, exist_ok=True)
    file = path / f"{number * FILE_BYTES:020}"
    file.write_bytes(b"".join(ENTRY_STRUCT.pack(*one) for one in content).ljust(size, b"\0"))
    return file


def packed(content: Sequence[Entry]) -> bytes:
    return b"".join(ENTRY_STRUCT.pack(*one) for one in content)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def look_at(folder: int, log_begin: int = 0, most: int = 2) -> Look | None:
    return look(folder, b"T", b"0", FILE_BYTES, log_begin, most)


@pytest.mark.parametrize(
    ("content", "log_begin", "bounds"),
    [
        ([], 0, (0, 0)),
        (entries(0, 3), 0, (0, 3)),
        (entries(0, 3), 101, (2, 3)),
        (entries(0, 3), 1000, (3, 3)),
        (entries(0, 204), 0, (0, 204)),
        (entries(0, ROOM), 20_000, (200, ROOM)),
        ([BLANK] * 250 + entries(7, 2), 0, (250, 252)),
        ([BLANK] * 2, 0, (2, 2)),
    ],
)
def test_one_file_tells_both_bounds(
    tmp_path: Path, folder: int, content: list[Entry], log_begin: int, bounds: tuple[int, int]
) -> None:
    write(tmp_path / "T/0", 0, content)
    assert look_at(folder, log_begin) == (1, *bounds, packed(content[-2:]))


def test_of_several_files_only_the_newest_is_read(tmp_path: Path, folder: int) -> None:
    newest = [*entries(ROOM, 5)]
    write(tmp_path / "T/0", 1, newest)
    write(tmp_path / "T/0", 0, entries(0, ROOM)).chmod(0)
    assert look_at(folder) == (2, ROOM, ROOM + 5, packed(newest[-2:]))
    assert look_at(folder, 100 * ROOM + 1) == (2, ROOM + 1, ROOM + 5, packed(newest[-2:]))
    assert look_at(folder, most=6) is None


def test_a_folder_without_a_file_is_an_empty_queue(tmp_path: Path, folder: int) -> None:
    (tmp_path / "T/0").mkdir(parents=True)
    assert look_at(folder) == (0, 0, 0, b"")


@pytest.mark.parametrize(
    "content",
    [
        [(500, 100, 0), (400, 100, 0)],
        [(-1, 100, 0)],
        [*entries(0, 2), BLANK],
        [*entries(0, 250), (3, 100, 0)],
    ],
    ids=["order", "negative", "late blank", "order on a later page"],
)
def test_damaged_entries_take_a_closer_look(tmp_path: Path, folder: int, content: list[Entry]) -> None:
    write(tmp_path / "T/0", 0, content)
    assert look_at(folder) is None


def test_what_is_no_plain_queue_takes_a_closer_look(tmp_path: Path, folder: int) -> None:
    queue = tmp_path / "T/0"
    assert look_at(folder) is None  # it is not there
    file = write(queue, 0, entries(0, 3))
    assert look_at(folder) is not None
    odd = [queue / "readme", queue / f"{FILE_BYTES:019}", queue / f"{FILE_BYTES:021}", queue / f"{FILE_BYTES + 20:020}"]
    odd += [queue / f"{2 * FILE_BYTES:020}", queue / ("9" * 20), queue / f"{(1 << 63) // FILE_BYTES * FILE_BYTES:020}"]
    for path in odd:
        path.write_bytes(bytes(FILE_BYTES))
        assert look_at(folder) is None, path
        path.unlink()
    (queue / f"{FILE_BYTES:020}").symlink_to(file)
    assert look_at(folder) is None
    (queue / f"{FILE_BYTES:020}").unlink()
    os.truncate(file, FILE_BYTES - 1)
    assert look_at(folder) is None
    write(queue, 0, entries(0, 3))
    for path in (queue, queue.parent):
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        assert look_at(folder) is None
        path.unlink()
        (tmp_path / "elsewhere").rename(path)
    assert look_at(folder) is not None


@pytest.mark.parametrize("count", [1, 6, 400])
def test_the_newest_entries_of_all_queues_are_found_in_one_file_or_several(tmp_path: Path, count: int) -> None:
    written = [*entries(0, ROOM + 5)]
    write(tmp_path / "T/0", 0, written[:ROOM])
    write(tmp_path / "T/0", 1, written[ROOM:])
    write(tmp_path / "U/1", 0, entries(1000, 3))
    queues = ConsumeQueues(tmp_path, FILE_BYTES, Access.READ)
    queues.load()
    assert queues.newest_entries(count).tolist() == [*written[-count:], *entries(1000, 3)[-count:]]
    assert queues.opened() == []
    queues.close()


FEW = st.sampled_from([(0, 0, 0), BLANK, *entries(0, 4), (-1, 100, 0), (100, -1, 0), (VISIBLE_END, 1, 0)])


@settings(max_examples=100, deadline=None)
@given(st.lists(FEW, max_size=6), st.lists(FEW, max_size=4), st.sampled_from([0, 1, 150, 1000]))
def test_the_look_and_the_opening_agree(first: list[Entry], second: list[Entry], log_begin: int) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name) / "consumequeue"
        write(folder / "T/0", 0, first)
        if second:
            write(folder / "T/0", 1, second)
        queues = ConsumeQueues(folder, FILE_BYTES, Access.READ)
        queues.load()
        queues.expire(log_begin)
        queues.refresh(VISIBLE_END)
        state = queues.state("T", 0)
        queue = queues.get("T", 0)
        assert queue is not None
        bounds = min(queue.min_offset, queue.max_offset), queue.max_offset
        assert (state.min_offset, state.max_offset, state.files) == (*bounds, len(queue.files.files))
        queues.close()

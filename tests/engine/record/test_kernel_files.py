"""The kernel's files: whatever a place, a number or a file's length is, nothing outside of the file is touched."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Message, MessageStore, OpenMode, ReadError, StoredMessage
from engine.derived.consume_queue import ConsumeQueue
from engine.errors import TruncatedFileError, UnreadableRangeError
from engine.files.file_queue import FileQueue
from engine.files.mapped_file import Access, MappedFile
from engine.log.entries import ENTRY
from engine.record.kernel.decode import KeyReader
from engine.record.kernel.files import FileMap, Mapped
from tests.engine.records import log_of
from tests.engine.storetools import SMALL

PAGE = mmap.PAGESIZE
EXTREMES = [0, 1, -1, 19, 20, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63), (1 << 62) // 20, (1 << 63) // 20]
EVER = -(1 << 63), 1 << 63
words = st.sampled_from([b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x5b", b"\0\0\0\0"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


def filled(path: Path, data: bytes | bytearray) -> Path:
    path.write_bytes(data)
    return path


def test_a_map_has_what_the_file_has_and_outlives_its_name(tmp_path: Path) -> None:
    path = filled(tmp_path / "file", b"ab" * PAGE)
    with path.open("r+b") as file:
        for writable, private in ((False, False), (True, False), (True, True)):
            view = memoryview(FileMap(file.fileno(), PAGE, writable=writable, private=private))
            assert (len(view), view.readonly, bytes(view[:2])) == (PAGE, not writable, b"ab")
            if writable:
                view[1] = ord("c")
                assert path.read_bytes()[:2] == (b"ab" if private else b"ac")
                view[1] = ord("b")
    path.unlink()
    assert bytes(view[2:4]) == b"ab"


@pytest.mark.parametrize("size", [0, -1, -(1 << 63), (1 << 63) - 1])
def test_a_map_of_no_size_is_refused(tmp_path: Path, size: int) -> None:
    for descriptor in (-1, os.open(filled(tmp_path / "file", b"x"), os.O_RDWR)):
        with pytest.raises((ValueError, OSError)):
            FileMap(descriptor, size, writable=True, private=True)
    os.close(descriptor)


def test_a_map_needs_a_descriptor_that_may_do_it(tmp_path: Path) -> None:
    descriptor = os.open(filled(tmp_path / "file", b"x"), os.O_RDONLY)
    with pytest.raises(PermissionError):
        FileMap(descriptor, 1, writable=True, private=False)
    os.close(descriptor)
    with pytest.raises(OSError, match="descriptor"):
        FileMap(descriptor, 1, writable=False, private=False)


def test_maps_give_their_descriptors_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with filled(tmp_path / "file", b"x").open("rb") as file:
        kept = [Mapped(FileMap(file.fileno(), 1, writable=False, private=False)).view for _ in range(10)]
    assert len(os.listdir("/proc/self/fd")) == before + 10
    assert bytes(kept[-1]) == b"x"
    kept.clear()
    assert len(os.listdir("/proc/self/fd")) == before


def test_views_lie_within_what_is_readable(folder: Path) -> None:
    file = MappedFile(filled(folder / "views", bytes(2 * PAGE)), 2 * PAGE, Access.READ)
    file.set_end(PAGE)
    for position in (*EXTREMES, PAGE - 1, PAGE, PAGE + 1):
        for length in (*EXTREMES, PAGE):
            if position >= 0 and length >= 0 and position + length <= PAGE:
                assert len(file.view(position, length)) == length
            else:
                with pytest.raises(UnreadableRangeError):
                    file.view(position, length)
        if 0 <= position <= PAGE:
            assert len(file.rest(position)) == PAGE - position
        else:
            with pytest.raises(UnreadableRangeError):
                file.rest(position)


def test_a_file_that_lost_bytes_is_not_touched(folder: Path) -> None:
    path = filled(folder / "lost", bytes(2 * PAGE))
    file = MappedFile(path, 2 * PAGE, Access.WRITE)
    looks: list[Callable[[], object]] = [file.whole, file.pages, lambda: file.view(PAGE, 1), lambda: file.rest(PAGE)]
    for look in looks:
        look()
    for length in (2 * PAGE - 1, PAGE, 0):
        os.truncate(path, length)
        for look in looks:
            with pytest.raises(TruncatedFileError):
                look()


def queue_of(folder: Path, entries: int) -> ConsumeQueue:
    """A queue of one file, of a page, that ends with it."""
    path = folder / "queue"
    path.mkdir(exist_ok=True)
    found = np.zeros(204, ENTRY)
    found["physical_offset"], found["size"] = 100 * np.arange(204), 100
    filled(path / f"{0:020d}", found.tobytes())
    queue = ConsumeQueue("T", 0, FileQueue(path, 4080, Access.READ))
    queue.recover()
    queue._max = entries
    return queue


def test_entries_are_those_that_a_file_has(folder: Path) -> None:
    queue = queue_of(folder, 204)
    for queue_offset in (*EXTREMES, 203, 204, 1 << 70, -(1 << 70)):
        is_there = 0 <= queue_offset < 204
        assert queue.entry(queue_offset) == ((100 * queue_offset, 100, 0) if is_there else None)
    queue._max = 1 << 62
    for queue_offset in (204, 1 << 40, (1 << 62) // 20):
        with pytest.raises(UnreadableRangeError):
            queue.entry(queue_offset)


@given(st.data())
def test_messages_by_key_are_read_within_their_file(folder: Path, data: st.DataObject) -> None:
    """Sizes and lengths on disk are anything, places too, and a file ends with the last page that is mapped."""
    records, positions = log_of([Message("T", b"body %d" % number, ["k"]) for number in range(3)], 0)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.sampled_from(positions)) + 4 * data.draw(st.sampled_from([0, 3, 5, 6, 9, 21, 22, 24, 27]))
        records[at : at + 4] = data.draw(words)
    cut = data.draw(st.integers(0, 100))
    raw = records[: len(records) - cut].rjust(PAGE, b"\0")
    lead = PAGE - len(records) + cut
    (folder / "log").mkdir(exist_ok=True)
    filled(folder / "log" / f"{0:020d}", raw)
    log = FileQueue(folder / "log", PAGE, Access.READ)
    log.set_end(data.draw(st.integers(0, PAGE)))
    queues = {("T", number): queue_of(folder, data.draw(st.sampled_from([0, 3, 204]))) for number in (0, 3)}
    places = [*(lead + position for position in positions), *EXTREMES, *range(PAGE - 200, PAGE + 1)]
    asked: list[int] = []

    class Reader(KeyReader):
        def _shown(self, topic: str, place: int) -> list[StoredMessage]:
            asked.append(place)
            return []

        def _likely(self, rest: Iterator[int], key: str) -> Iterator[int]:
            return rest

    index = SimpleNamespace(candidates=lambda *_: iter(places))
    deleted = SimpleNamespace(until=lambda _: 0)

    def is_on_disk(*_: object) -> bool:
        return False

    for is_ledger in (False, True):
        for message in Reader(index, deleted, log, queues, is_on_disk, is_ledger, 100).query(
            "T", "k", len(places), *EVER
        ):
            assert message.physical_offset in places
            assert message.physical_end <= PAGE
            assert "k" in message.keys
    assert len(asked) >= 2 * len(EXTREMES) - 2


@pytest.mark.parametrize("mode", [OpenMode.READ_ONLY, OpenMode.WRITE])
@pytest.mark.parametrize("below", ["commitlog", "consumequeue/T/0", "index"])
def test_a_key_in_a_file_that_is_cut_meanwhile_kills_nobody(tmp_path: Path, below: str, mode: OpenMode) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as store:
        for number in range(5):
            store.put(Message("T", b"%d" % number, ["k"]), 0)
    with MessageStore.open(path, SMALL if mode is OpenMode.WRITE else SMALL.__class__(mode=mode)) as store:
        assert len(store.query("T", "k")) == 5
        files = [file for file in (path / below).iterdir() if file.is_file()]
        sizes = [file.stat().st_size for file in files]
        for file in files:
            os.truncate(file, 0)
        if below == "index":
            with pytest.raises(ReadError):
                store.query("T", "k")
        elif below == "commitlog":
            assert store.query("T", "k") == []
        else:
            assert len(store.query("T", "k")) == 5
        for file, size in zip(files, sizes, strict=True):
            os.truncate(file, size)


@pytest.mark.parametrize(("start", "size"), [(-1, 2), (0, 0), (0, PAGE + 1), (1, PAGE), (1 << 62, 1 << 62), (5, -1)])
def test_only_bytes_of_a_map_are_read_ahead(start: int, size: int) -> None:
    memory = FileMap(-1, PAGE, writable=True, private=True)
    for read in (memory.is_read, memory.read_soon, memory.read_large):
        for first, length in ((0, PAGE), (PAGE - 1, 1)):
            read(first, length)
        with pytest.raises(IndexError, match=f"of {PAGE} bytes"):
            read(start, size)


def test_bytes_that_were_read_ahead_are_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (3 << 20))
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    memory = FileMap(descriptor, 3 << 20, writable=False, private=False)
    os.close(descriptor)
    memory.read_large(5000, (3 << 20) - 5000)
    assert memory.is_read(5000, (3 << 20) - 5000)
    assert bytes(memory) == path.read_bytes()

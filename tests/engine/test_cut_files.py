"""Files that are cut, extended, missing or another store's: each costs only its own content."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count as count_from
from pathlib import Path

import numpy as np
import pytest

from engine import (
    EMBEDDED_SIZES,
    DamagedRecordError,
    Message,
    MessageNotFoundError,
    MessageStore,
    OpenMode,
    ReadError,
    StoreConfig,
    TruncatedFileError,
    check_store,
    repair_store,
)
from tests.engine.storetools import SMALL, SMALL_SIZES, contents, killed

ENDS = pytest.mark.parametrize("end", ["closed", "killed"])
MARKS = pytest.mark.parametrize("marks", ["marks", "no marks"])
KEYS = ("even", "odd")
ALONE = replace(SMALL, preallocate=False)
"""No file is made ahead: the newest one has records."""


def body_of(number: int) -> bytes:
    return b"body-%03d" % number * 20


class Fixture:
    """A store with `count` messages in one queue, and their physical offsets."""

    def __init__(self, path: Path, end: str, marks: str, count: int) -> None:
        live, clock = path.with_name("live"), count_from(1_700_000_000_000)
        with killed(live, path, replace(ALONE, clock=lambda: next(clock))) as store:
            self.places = [self._put(store, number) for number in range(count)]
            self.times_ms = [store.get("T", 0, number).store_time_ms for number in range(count)]
            self.end = store.physical_end
            store.flush()
        if end == "closed":
            shutil.rmtree(path)
            shutil.copytree(live, path)
            for file in live.rglob("*"):
                os.utime(path / file.relative_to(live), ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
        if marks == "no marks":
            shutil.rmtree(path / "fsstore")
        self.path = path

    def _put(self, store: MessageStore, number: int) -> int:
        return store.put(Message("T", body_of(number), [KEYS[number % 2]]), 0).physical_offset

    def log_files(self) -> list[Path]:
        return sorted((self.path / "commitlog").iterdir())

    def log_file(self, number: int) -> Path:
        return self.log_files()[number]

    def within(self, file: Path, position: int = 0) -> set[int]:
        """The messages with a byte at or behind `position` in a file of the log."""
        start = int(file.name)
        ends = [*self.places[1:], self.end]
        places = list(zip(self.places, ends, strict=True))
        return {
            number
            for number, (first, after) in enumerate(places)
            if start <= first < start + SMALL_SIZES.commit_log_bytes and after > start + position
        }

    def require_costs(self, lost: set[int]) -> None:
        """Check reports it; readers change nothing; writing goes on."""
        before = contents(self.path)
        assert any(problem.path.startswith("commitlog") for problem in check_store(self.path))
        self.require(OpenMode.READ_ONLY, lost)
        assert contents(self.path) == before
        self.require(OpenMode.WRITE, lost)
        self.require_goes_on()

    def require(self, mode: OpenMode, lost: set[int]) -> None:
        """All but `lost` are there by number, in a run, by key, by time and in the stream; those are damaged."""
        kept = [number for number in range(len(self.places)) if number not in lost]
        with MessageStore.open(self.path, replace(ALONE, mode=mode)) as store:
            for number in lost:
                with pytest.raises(ReadError) as error:
                    store.get("T", 0, number)
                assert not isinstance(error.value, MessageNotFoundError)
            assert [store.get("T", 0, number).body for number in kept] == [body_of(number) for number in kept]
            assert [message.queue_offset for message in store.read("T", 0, 0)] == kept
            for parity, key in enumerate(KEYS):
                found = [message.queue_offset for message in store.query("T", key, limit=1_000)]
                assert found[::-1] == [number for number in kept if number % 2 == parity]
            if kept:
                newest = store.newest_with_key("T", KEYS[kept[-1] % 2])
                assert newest is not None
                assert newest.queue_offset == kept[-1]
            for number in kept:
                found_at = store.offset_at("T", 0, self.times_ms[number])
                assert set(range(found_at, number)) <= lost
                assert found_at <= number
            stream = store.stream("T", 0)
            assert bytes(stream.read(0, stream.size)) == b"".join(body_of(number) + b"\n" for number in kept)
            columns = store.columns("T", 0, 0, len(self.places))
            whole = [columns.bodies[row] for row in np.flatnonzero(columns.headers["ok"]).tolist()]
            assert whole == [body_of(number) for number in kept]

    def require_goes_on(self) -> None:
        """The next message gets the next number, however large it is, and stands behind all others."""
        with MessageStore.open(self.path, ALONE) as store:
            put = store.put(Message("T", b"next" * 1_500, ["next"]), 0)
            assert put.queue_offset == len(self.places)
            assert put.physical_offset > self.places[-1]
            assert store.sizes == SMALL_SIZES
            assert [found.queue_offset for found in store.query("T", "next", limit=2)] == [put.queue_offset]


def cut(file: Path, length: int) -> None:
    """Truncate it, as a copy that broke off does."""
    os.truncate(file, length)


@ENDS
@MARKS
@pytest.mark.parametrize("length", [1, 600, 5_000])
def test_the_only_log_file_that_was_cut_has_the_size_that_was_remembered(
    tmp_path: Path, length: int, marks: str, end: str
) -> None:
    store = Fixture(tmp_path / "store", end, marks, 25)
    assert len(store.log_files()) == 1
    lost = store.within(store.log_file(0), length)
    cut(store.log_file(0), length)
    store.require_costs(lost)


COUNT = 100
"""In four files of the log."""


def lengthen(store: Fixture, file: Path) -> set[int]:
    """More bytes than a file should have; they are ignored."""
    with file.open("ab") as longer:
        longer.write(b"\xff" * 100)
    return set()


def halve(store: Fixture, file: Path) -> set[int]:
    """The second half is gone."""
    cut(file, 4_096)
    return store.within(file, 4_096)


def empty(store: Fixture, file: Path) -> set[int]:
    """All bytes are gone."""
    cut(file, 0)
    return store.within(file)


def remove(store: Fixture, file: Path) -> set[int]:
    """The file is gone."""
    file.unlink()
    return store.within(file)


def swap(store: Fixture, file: Path) -> set[int]:
    """The file and the one before it have each other's name."""
    other = store.log_file(store.log_files().index(file) - 1)
    other.rename(file.with_name("other"))
    file.rename(other)
    file.with_name("other").rename(file)
    return store.within(file) | store.within(other)


@ENDS
@MARKS
@pytest.mark.parametrize(
    ("hurt", "number"),
    [(lengthen, 1), (halve, 1), (empty, 1), (remove, 1), (swap, 1), (lengthen, 3), (halve, 3)],
    ids=lambda value: value.__name__ if callable(value) else ("oldest", "middle", "", "newest")[value],
)
def test_a_log_file_that_is_not_as_it_was_costs_its_own_messages(
    tmp_path: Path, number: int, hurt: Callable[[Fixture, Path], set[int]], marks: str, end: str
) -> None:
    store = Fixture(tmp_path / "store", end, marks, COUNT)
    assert len(store.log_files()) == 4
    lost = hurt(store, store.log_file(number))
    store.require_costs(lost)


@pytest.mark.parametrize(("end", "marks"), [("closed", "marks"), ("closed", "no marks"), ("killed", "marks")])
@pytest.mark.parametrize("hurt", [empty, remove, swap])
def test_places_and_numbers_of_a_newest_log_file_that_is_gone_stay_taken(
    tmp_path: Path, hurt: Callable[[Fixture, Path], set[int]], marks: str, end: str
) -> None:
    store = Fixture(tmp_path / "store", end, marks, COUNT)
    store.require_costs(hurt(store, store.log_file(3)))


@pytest.mark.parametrize("marks", ["marks", "no marks"])
def test_places_and_numbers_of_several_newest_log_files_stay_taken(tmp_path: Path, marks: str) -> None:
    store = Fixture(tmp_path / "store", "closed", marks, COUNT)
    store.require_costs(remove(store, store.log_file(3)) | remove(store, store.log_file(2)))


@pytest.mark.parametrize(("end", "marks"), [("closed", "marks"), ("closed", "no marks"), ("killed", "marks")])
def test_a_repair_frames_a_newest_log_file_that_is_gone(tmp_path: Path, marks: str, end: str) -> None:
    store = Fixture(tmp_path / "store", end, marks, COUNT)
    lost = remove(store, store.log_file(3))
    assert list(repair_store(store.path))
    assert list(check_store(store.path)) == []
    store.require(OpenMode.WRITE, lost)
    store.require_goes_on()


def test_the_length_of_an_only_log_file_that_was_cut_is_not_taken_for_its_size(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, StoreConfig(sizes=EMBEDDED_SIZES), create=True) as store:
        places = [store.put(Message("T", b"message %d" % number), 0).physical_offset for number in range(60)]
    shutil.rmtree(path / "fsstore")
    (path / "config" / "sizes.json").unlink()  # as a broker's
    os.truncate(path / "commitlog" / f"{0:020d}", 3378)
    assert list(repair_store(path))
    assert list(repair_store(path)) == []
    with MessageStore.open(path) as store:
        whole = sum(following <= 3378 for following in places[1:])
        assert [bytes(store.get("T", 0, number).body) for number in range(whole)] == [
            b"message %d" % number for number in range(whole)
        ]
        assert store.bounds("T", 0).max_offset >= 60
    assert (path / "commitlog" / f"{0:020d}").stat().st_size == EMBEDDED_SIZES.commit_log_bytes


def put_until_refused(store: MessageStore, bodies: list[bytes]) -> int:
    """How many were acknowledged before the first one that was not."""
    for acknowledged, body in enumerate(bodies):
        try:
            store.put(Message("T", body), 0)
        except TruncatedFileError:
            return acknowledged
    raise AssertionError("all were acknowledged")


def test_nothing_is_acknowledged_where_the_log_was_cut(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        bodies = [b"%d" % number * 900 for number in range(1, 9)]
        store.put(Message("T", bodies[0]), 0)
        log = tmp_path / "commitlog" / f"{0:020d}"
        os.truncate(log, -(-store.physical_end // mmap.PAGESIZE) * mmap.PAGESIZE)
        assert put_until_refused(store, bodies[1:]) == store.bounds("T", 0).max_offset - 1 == 3
        assert [bytes(store.get("T", 0, number).body) for number in range(4)] == bodies[:4]


def test_a_copied_body_is_never_the_zeros_of_a_file_that_was_cut(tmp_path: Path) -> None:
    body = b"x" * 20_000
    with MessageStore.open(tmp_path / "store", create=True) as store:
        store.put(Message("T", body), 0)
    with MessageStore.open(tmp_path / "store", StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        for end, error in ((10_000, TruncatedFileError), (20_000, DamagedRecordError)):
            message = store.get("T", 0, 0)
            assert message.copy_body() == body
            log = tmp_path / "store/commitlog" / f"{0:020d}"
            whole = log.read_bytes()
            os.truncate(log, end)
            with pytest.raises(error):
                message.copy_body()
            log.write_bytes(whole)


def test_bodies_that_are_copied_together_are_never_the_zeros_of_a_file_that_was_cut(tmp_path: Path) -> None:
    bodies = [b"%d" % number * 9_000 for number in range(1, 4)]
    with MessageStore.open(tmp_path / "store", create=True) as store:
        for body in bodies:
            store.put(Message("T", body), 0)
    with MessageStore.open(tmp_path / "store", StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        [found] = store.holding("T", 0, 0, 3, [], False, lambda queue_offset: None)
        assert bytes(found.bodies.joined(b"\n")[1]) == b"\n" + b"\n".join(bodies) + b"\n"
        os.truncate(tmp_path / "store/commitlog" / f"{0:020d}", 3 * mmap.PAGESIZE)
        first, last = found.bodies.take(np.array([0])), found.bodies.take(np.array([2]))
        for copy in (
            partial(last.__getitem__, 0),
            last.packed,
            found.bodies.packed,
            partial(found.bodies.joined, b"\n"),
        ):
            with pytest.raises(TruncatedFileError):
                copy()
        assert first[0] == bytes(first.packed().data) == bodies[0]

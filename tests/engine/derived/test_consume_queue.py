"""The consume queue: its layout, appending, reading, recovery, cutting, time, retention, and following a writer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.derived.consume_queue import ConsumeQueue
from engine.derived.queue_end import valid_prefix
from engine.errors import QueueGapError, RetiredFileError, StoreFullError
from engine.files.file_queue import FileQueue
from engine.files.mapped_file import Access
from engine.log.entries import ENTRY, PRE_BLANK_SIZE
from tests.engine.disks import FullDisk

FILE_ENTRIES = 8
FILE_BYTES = FILE_ENTRIES * 20

Opener = Callable[..., ConsumeQueue]
Wanted = Callable[[tuple[int, int, int]], bool]


@pytest.fixture
def open_queue(tmp_path: Path) -> Opener:
    def opened(access: Access = Access.WRITE, *, scan: bool = True, **options: object) -> ConsumeQueue:
        files = FileQueue(tmp_path / "orders" / "3", FILE_BYTES, access, **options)  # type: ignore[arg-type]
        queue = ConsumeQueue("orders", 3, files)
        queue.recover(scan)
        return queue

    return opened


def entries_of(places: list[int], size: int = 10) -> np.ndarray:
    return np.array([(place, size, place * 3) for place in places], dtype=ENTRY)


def places_in(queue: ConsumeQueue) -> list[int]:
    found = queue.entries(queue.min_offset, queue.max_offset)
    return [int(place) for place in found["physical_offset"]]


# layout


def test_an_entry_has_the_bytes_of_the_format(open_queue: Opener, tmp_path: Path) -> None:
    queue = open_queue()
    queue.append_one(5, 1_048_576, 170, 2_598_919)
    raw = (tmp_path / "orders/3" / f"{0:020d}").read_bytes()
    assert raw[100:120].hex() == "0000000000100000000000aa000000000027a807"
    assert raw[:100].hex() == "00000000000000007fffffff0000000000000000" * 5
    assert raw[120:] == bytes(40)


def test_a_first_entry_in_a_later_file_is_pre_blanked_from_that_files_start(open_queue: Opener, tmp_path: Path) -> None:
    queue = open_queue()
    queue.append(19, entries_of([100, 200]))
    assert [path.name for path in sorted((tmp_path / "orders/3").iterdir())] == [f"{320:020d}"]
    assert (queue.min_offset, queue.max_offset) == (19, 21)
    assert queue.read(16, 5)["size"].tolist() == [PRE_BLANK_SIZE] * 3 + [10, 10]
    reopened = open_queue(Access.READ)
    assert (reopened.min_offset, reopened.max_offset, reopened.physical_end) == (19, 21, 210)


# append and read


def test_appended_entries_are_those_of_a_list_whatever_the_batches(tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(max_examples=60)
    @given(st.lists(st.integers(1, 20), max_size=8), st.integers(0, 12))
    def check(batches: list[int], first: int) -> None:
        files = FileQueue(tmp_path_factory.mktemp("queue") / "q", FILE_BYTES, Access.WRITE)
        queue = ConsumeQueue("t", 0, files)
        queue.recover()
        model: list[int] = []
        for count in batches:
            batch = [100 + 50 * (len(model) + i) for i in range(count)]
            if count == 1:
                assert queue.append_one(first + len(model), batch[0], 10, batch[0] * 3) == 1
            else:
                assert queue.append(first + len(model), entries_of(batch)) == count
            model += batch
        if model:
            assert (queue.min_offset, queue.max_offset) == (first, first + len(model))
            assert queue.entries(first, 1000).tolist() == entries_of(model).tolist()
            assert queue.entry(first + len(model) - 1) == (model[-1], 10, model[-1] * 3)
            for start in range(len(model)):
                part = queue.read(first + start, 3)
                assert 0 < len(part) <= 3
                assert part.tolist() == entries_of(model[start : start + len(part)]).tolist()
        assert len(queue.read(queue.max_offset, 5)) == 0
        assert queue.entry(queue.max_offset) is None
        again = ConsumeQueue("t", 0, FileQueue(files.directory, FILE_BYTES, Access.WRITE))
        again.recover(scan=False)
        assert (again.max_offset, again.physical_end) == (queue.max_offset, queue.physical_end)
        again.close()
        queue.close()

    check()


def test_what_is_built_already_is_not_built_again(open_queue: Opener) -> None:
    queue = open_queue()
    queue.append(0, entries_of([0, 10, 20, 30]))
    assert queue.append(0, entries_of([0, 10, 20, 30])) == 0
    assert queue.append(2, entries_of([20, 30, 40])) == 1
    assert queue.append_one(4, 40, 10, 120) == 0
    assert places_in(queue) == [0, 10, 20, 30, 40]


def test_a_gap_is_an_error_that_names_the_queue(open_queue: Opener) -> None:
    queue = open_queue()
    queue.append(0, entries_of([0, 10]))
    with pytest.raises(QueueGapError) as caught:
        queue.append(3, entries_of([30]))
    assert (caught.value.topic, caught.value.queue, caught.value.expected, caught.value.found) == ("orders", 3, 2, 3)
    assert queue.max_offset == 2


def test_fillers_may_name_the_same_place(open_queue: Opener) -> None:
    queue = open_queue()
    queue.append(0, entries_of([0]))
    assert queue.append(1, entries_of([10, 10])) == 2
    assert queue.append(3, entries_of([10])) == 1
    queue.append(4, entries_of([20]))
    assert places_in(open_queue()) == [0, 10, 10, 10, 20]


def test_an_offset_given_again_belongs_to_the_newer_record(open_queue: Opener) -> None:
    queue = open_queue()
    queue.append(0, entries_of([10 * i for i in range(12)]))
    assert queue.append(5, entries_of([500, 510])) == 2
    assert places_in(queue) == [0, 10, 20, 30, 40, 500, 510]
    assert places_in(open_queue()) == places_in(queue)


def test_numbering_that_restarts_below_the_oldest_file_replaces_the_queue(open_queue: Opener) -> None:
    queue = open_queue()
    queue.append(20, entries_of([100, 110]))
    queue.append(0, entries_of([500, 510]))
    assert (queue.min_offset, queue.max_offset, places_in(queue)) == (0, 2, [500, 510])


def test_a_full_disk_is_noticed_by_reserve_before_anything_is_stored(tmp_path: Path) -> None:
    disk = FullDisk(allocations=1)
    queue = ConsumeQueue("t", 0, FileQueue(tmp_path / "q", FILE_BYTES, Access.WRITE, disk=disk))
    queue.recover()
    queue.reserve(5)
    queue.append(0, entries_of([0, 10, 20, 30, 40]))
    with pytest.raises(StoreFullError):
        queue.reserve(4)
    assert queue.max_offset == 5
    disk.allocations = 3
    queue.reserve(12)
    disk.allocations = 0
    assert queue.append(5, entries_of([50 + 10 * i for i in range(12)])) == 12
    queue.close()


def test_a_queue_begins_with_all_of_its_blanks_or_not_at_all(tmp_path: Path) -> None:
    """Half of them would give its first entry another queue offset."""
    disk, entries = FullDisk(allocations=1), 4096
    queue = ConsumeQueue("t", 0, FileQueue(tmp_path / "q", entries * 20, Access.WRITE, disk=disk))
    queue.recover()
    for _ in range(2):
        disk.allocations = 1
        with pytest.raises(StoreFullError):
            queue.append(entries - 100, entries_of([0, 10]))
        assert list((tmp_path / "q").iterdir()) == []
        assert (queue.first_offset, queue.max_offset) == (0, 0)
    disk.allocations = 9
    queue.append(entries - 100, entries_of([0, 10]))
    assert (queue.min_offset, queue.max_offset, places_in(queue)) == (entries - 100, entries - 98, [0, 10])
    queue.files.flush()
    queue.close()


def test_what_is_reserved_has_its_space(tmp_path: Path) -> None:
    disk, entries = FullDisk(allocations=1), 4096
    queue = ConsumeQueue("t", 0, FileQueue(tmp_path / "q", entries * 20, Access.WRITE, disk=disk))
    queue.recover()
    disk.allocations = 1 << 20
    queue.pending = 300
    assert queue.reserve(9_000) == 300
    disk.allocations = 0
    assert queue.append(0, entries_of([10 * i for i in range(300)])) == 300
    queue.pending = 0
    assert queue.append(300, entries_of([10 * i for i in range(300, 9_300)])) == 9_000
    assert sum(file.stat().st_blocks * 512 for file in (tmp_path / "q").iterdir()) < 9_300 * 20 + 3 * 8192
    queue.close()


def test_numbers_are_given_after_those_that_are_pending(open_queue: Opener) -> None:
    queue = open_queue()
    queue.append(0, entries_of([0, 10, 20, 30, 40]))
    queue.pending = 3
    assert queue.reserve(2) == 8
    queue.pending = 0
    assert queue.reserve(2) == 5


def test_entries_go_on_alone_after_retention_took_the_file_of_the_last_one_that_came_alone(open_queue: Opener) -> None:
    queue = open_queue()
    queue.append_one(queue.reserve(1), 0, 10, 0)
    queue.append(queue.reserve(10), entries_of([10 * i for i in range(1, 11)]))
    queue.expire(90)
    assert queue.delete_expired(0) == 1
    queue.append_one(queue.reserve(1), 110, 10, 0)
    assert places_in(queue) == [90, 100, 110]


# recovery and cutting


def test_truncate_keeps_entries_before_physical_end_and_clears_the_rest(open_queue: Opener, tmp_path: Path) -> None:
    queue = open_queue()
    queue.append(0, entries_of([10 * i for i in range(20)]))
    assert queue.truncate(105) == 10
    assert (queue.max_offset, queue.physical_end) == (10, 100)
    files = sorted((tmp_path / "orders/3").iterdir())
    assert [path.name for path in files] == [f"{0:020d}", f"{160:020d}"]
    assert files[1].read_bytes()[40:] == bytes(120)
    queue.append(10, entries_of([100]))
    assert places_in(open_queue()) == [10 * i for i in range(11)]


def test_truncate_to_nothing_keeps_the_numbering(open_queue: Opener) -> None:
    queue = open_queue()
    queue.append(11, entries_of([10, 20]))
    assert queue.truncate(5) == 2
    assert (queue.min_offset, queue.max_offset, queue.physical_end) == (11, 11, -1)
    queue.append(11, entries_of([7]))
    assert (open_queue().min_offset, open_queue().max_offset, open_queue().physical_end) == (11, 12, 17)


@pytest.mark.parametrize(
    ("position", "damage"),
    [
        (20 * 5, bytes(20)),
        (20 * 5 + 8, b"\xff\xff\xff\xff"),
        (20 * 5, b"\xff" * 8),
        (20 * 5, bytes(8)),
        (20 * 5, bytes(20 * 3)),
    ],
    ids=["zero entry", "negative size", "negative place", "falling place", "rest of the file is a hole"],
)
def test_recovery_ends_before_a_broken_entry(open_queue: Opener, tmp_path: Path, position: int, damage: bytes) -> None:
    open_queue().append(0, entries_of([100 + 10 * i for i in range(11)]))
    path = tmp_path / "orders/3" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[position : position + len(damage)] = damage
    path.write_bytes(raw)
    assert open_queue(Access.READ).max_offset == 5
    assert path.read_bytes() == raw
    assert open_queue(Access.WRITE).max_offset == 5
    assert path.read_bytes()[100:] == bytes(60)
    assert open_queue(scan=False).max_offset == 5


def test_entries_before_a_missing_file_are_left_out(open_queue: Opener, tmp_path: Path) -> None:
    open_queue().append(0, entries_of([10 * i for i in range(28)]))
    (tmp_path / "orders/3" / f"{160:020d}").unlink()
    queue = open_queue()
    assert (queue.min_offset, queue.max_offset) == (16, 28)


def test_a_queue_that_is_only_read_is_rebuilt_in_memory_alone(open_queue: Opener, tmp_path: Path) -> None:
    open_queue().append(0, entries_of([10 * i for i in range(6)]))
    before = {path: path.read_bytes() for path in (tmp_path / "orders/3").iterdir()}
    queue = open_queue(Access.READ)
    queue.truncate(40)
    queue.append(4, entries_of([400 + 10 * i for i in range(10)]))
    queue.files.flush()
    assert places_in(queue) == [0, 10, 20, 30, *(400 + 10 * i for i in range(10))]
    assert {path: path.read_bytes() for path in (tmp_path / "orders/3").iterdir()} == before


def test_valid_prefix_skips_over_pre_blank_entries() -> None:
    blank = (0, PRE_BLANK_SIZE, 0)
    assert valid_prefix(np.array([blank, blank, (70, 5, 0), (75, 5, 0), (60, 5, 0)], ENTRY)) == 4
    assert valid_prefix(np.array([(70, 5, 0)], ENTRY), after=71) == 0
    assert valid_prefix(np.empty(0, ENTRY)) == 0


@settings(max_examples=100)
@given(st.lists(st.binary(min_size=FILE_BYTES, max_size=FILE_BYTES), min_size=1, max_size=3), st.integers(0, 2**62))
def test_garbage_is_recovered_searched_and_appended_to_without_harm(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], physical_offset: int
) -> None:
    directory = tmp_path_factory.mktemp("garbage")
    for number, raw in enumerate(contents):
        (directory / f"{number * FILE_BYTES:020d}").write_bytes(raw)
    queue = ConsumeQueue("t", 0, FileQueue(directory, FILE_BYTES, Access.READ))
    queue.recover()
    queue.begin_at(physical_offset)
    assert 0 <= queue.min_offset <= queue.max_offset <= FILE_ENTRIES * len(contents)
    assert queue.offset_at(5, lambda place: 7) == queue.min_offset
    place = max(queue.physical_end, 0)
    assert queue.append_one(queue.max_offset, place, 10, 0) == 1
    assert queue.entries(queue.max_offset - 1, 5).tolist() == [(place, 10, 0)]
    queue.close()


# time


@settings(max_examples=200)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(0, 60), st.data())
def test_offset_at_is_the_first_message_stored_at_or_after(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], wanted: int, data: st.DataObject
) -> None:
    times = np.cumsum(steps).tolist()
    unreadable = data.draw(st.sets(st.integers(0, len(times) - 2))) if len(times) > 1 else set()
    queue = ConsumeQueue("t", 0, FileQueue(tmp_path_factory.mktemp("q") / "q", FILE_BYTES, Access.READ))
    queue.recover()
    queue.append(3, entries_of([10 * i for i in range(len(times))]))
    found = queue.offset_at(wanted, lambda place: -1 if place // 10 in unreadable else times[place // 10])
    counted = [min(times[j] for j in range(i, len(times)) if j not in unreadable) for i in range(len(times))]
    assert found == 3 + next((i for i, time in enumerate(counted) if time >= wanted), len(times))
    queue.close()


# retention


def test_a_minimum_that_is_looked_for_while_the_log_begins_anew_is_looked_for_again(
    open_queue: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue()
    queue.append(0, entries_of([10 * number for number in range(20)]))
    search = ConsumeQueue._search

    def and_meanwhile_retention_goes_on(queue: ConsumeQueue, wanted: Wanted, low: int, high: int, **_: object) -> int:
        found = search(queue, wanted, low, high)
        monkeypatch.undo()
        queue.begin_at(175)
        return found

    queue.begin_at(30)
    monkeypatch.setattr(ConsumeQueue, "_search", and_meanwhile_retention_goes_on)
    assert queue.min_offset == 3
    assert queue.min_offset == 18


def test_expired_entries_move_the_minimum_and_then_their_files_go(open_queue: Opener, tmp_path: Path) -> None:
    queue = open_queue()
    queue.append(0, entries_of([10 * i for i in range(20)]))
    assert queue.expire(0) == 0
    assert queue.expire(95) == 10
    assert queue.entry(9) is None
    assert queue.delete_expired(now_ms=0) == 1
    assert sorted(path.name for path in (tmp_path / "orders/3").iterdir()) == [f"{160:020d}", f"{320:020d}"]
    assert queue.expire(10_000) == 20
    assert queue.delete_expired(now_ms=0) == 1
    reopened = open_queue()
    reopened.begin_at(10_000)
    assert (reopened.min_offset, reopened.max_offset) == (20, 20)
    reopened.append(20, entries_of([10_000]))
    assert (reopened.min_offset, places_in(reopened)) == (20, [10_000])


def test_pre_blank_entries_never_count_as_messages(open_queue: Opener) -> None:
    queue = open_queue()
    queue.append(6, entries_of([0, 10, 20]))
    queue.begin_at(0)
    assert queue.min_offset == 6
    assert queue.offset_of_physical(0) == 6
    assert queue.offset_at(0, lambda place: 1) == 6


# following


def test_a_follower_sees_what_the_writer_appends_up_to_the_logs_end(open_queue: Opener) -> None:
    follower = open_queue(Access.READ)
    assert follower.refresh(1000) is False
    writer = open_queue()
    writer.append(0, entries_of([10 * i for i in range(20)]))
    assert follower.refresh(135) is True
    assert (follower.min_offset, follower.max_offset, follower.physical_end) == (0, 13, 130)
    assert follower.refresh(135) is False
    assert follower.refresh(1000) is True
    assert places_in(follower) == places_in(writer)
    writer.expire(90)
    writer.delete_expired(0)
    assert follower.refresh(1000) is True
    assert follower.expire(90) == 9
    assert places_in(follower) == places_in(writer)


def test_a_follower_finds_what_expired_though_the_files_went_before_it_looked(open_queue: Opener) -> None:
    writer = open_queue()
    writer.append(0, entries_of([10 * i for i in range(20)]))
    follower = open_queue(Access.READ)
    assert follower.min_offset == 0
    writer.append(20, entries_of([10 * i for i in range(20, 30)]))
    follower.refresh(1000)  # a file more: none is mapped now
    writer.expire(170)
    writer.delete_expired(0)
    assert follower.expire(170) == 17
    follower.refresh(1000)
    assert places_in(follower) == places_in(writer)


def test_a_queue_begins_right_though_its_first_entries_came_while_somebody_looked(
    open_queue: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = open_queue(Access.READ)
    assert follower.min_offset == 0

    def come_meanwhile(wanted: Wanted, low: int, high: int, **_: object) -> int:
        patch.undo()
        found = follower._search(wanted, low, high)
        open_queue().append(5, entries_of([10, 20]))  # behind 5 pre-blank ones
        assert follower.refresh(1000)
        return found

    follower.begin_at(0)
    with monkeypatch.context() as patch:
        patch.setattr(follower, "_search", come_meanwhile)
        assert follower.min_offset == 0
    assert (follower.min_offset, follower.max_offset) == (5, 7)


def test_a_follower_tells_what_it_took_in_before_a_look_failed(
    open_queue: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_queue()
    writer.append(0, entries_of([0]))
    follower = open_queue(Access.READ)
    assert follower.refresh(1000) is False
    writer.append(1, entries_of([10, 20]))

    def taken(physical_end: int) -> bool:
        assert take_in(physical_end) is False
        raise RetiredFileError(follower.files.directory)

    take_in = follower._take_in
    with monkeypatch.context() as patch:
        patch.setattr(follower, "_take_in", taken)
        with pytest.raises(RetiredFileError):
            follower.refresh(1000)
    assert follower.refresh(1000) is True
    assert follower.refresh(1000) is False
    assert places_in(follower) == [0, 10, 20]


def test_a_follower_notices_that_the_writer_cut_the_queue(open_queue: Opener) -> None:
    writer = open_queue()
    writer.append(0, entries_of([10 * i for i in range(12)]))
    follower = open_queue(Access.READ)
    assert follower.max_offset == 12
    writer.truncate(60)
    writer.append(6, entries_of([63, 70]))
    assert follower.refresh(1000) is True
    assert places_in(follower) == [0, 10, 20, 30, 40, 50, 63, 70]


def test_a_follower_looks_behind_new_files_without_an_entry_for_the_end(open_queue: Opener, tmp_path: Path) -> None:
    open_queue().append(0, entries_of([10 * i for i in range(12)]))
    for number in range(2, 6):
        (tmp_path / "orders/3" / f"{number * FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    follower = open_queue(Access.READ)
    assert (follower.max_offset, follower.newest_physical_offset) == (12, 110)


def test_a_queue_without_an_entry_is_not_read_whole_at_each_look(
    open_queue: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "orders/3"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}").write_bytes(bytes(FILE_BYTES))
    os.utime(directory, (1_600_000_000, 1_600_000_000))
    follower = open_queue(Access.READ)
    follower.refresh(1000)
    monkeypatch.setattr(follower, "recover", lambda: pytest.fail("read whole"))
    assert follower.refresh(1000) is False


def test_a_followers_bound_holds_from_the_start(open_queue: Opener) -> None:
    open_queue().append(0, entries_of([10 * i for i in range(12)]))
    follower = open_queue(Access.READ)
    follower.truncate(45)
    assert follower.max_offset == 4
    follower.refresh(200)
    assert follower.max_offset == 12


def test_bounds_are_found_while_retention_deletes_files(open_queue: Opener) -> None:
    queue = open_queue()
    queue.append(0, entries_of([100 * number for number in range(1, 4 * FILE_ENTRIES + 1)]))
    queue.begin_at(100 * (3 * FILE_ENTRIES + 2))
    for _ in range(3):  # as another thread does, which has not said so yet
        queue.files.retire_first(0)
    assert queue.min_offset == 3 * FILE_ENTRIES + 1
    assert queue.offset_at(0, lambda place: place) == queue.min_offset
    assert queue.first_offset == 0
    queue.delete_expired(0)
    assert queue.first_offset == 3 * FILE_ENTRIES

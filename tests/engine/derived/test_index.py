"""The index: its files, their names, keys that wait in memory, queries, cutting, expiry, and following a writer."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.derived.index import MEMTABLE_KEYS, Index, next_name
from engine.derived.index_file import index_file_bytes
from engine.errors import StoreFullError
from engine.files.mapped_file import Access
from engine.record.hashes import index_hash
from tests.engine.disks import FullDisk
from tests.engine.records import keyed

SLOTS, ENTRIES = 4, 6
NOW_MS = 1_700_000_000_000

Record = tuple[str, list[str]]
"""Topic and keys."""

KEYS = ["k", "κ", "😀", "k2"]
records = st.lists(st.tuples(st.sampled_from(["a", "topic"]), st.lists(st.sampled_from(KEYS))), max_size=30)


def new_index(directory: Path, access: Access = Access.WRITE, disk: FullDisk | None = None) -> Index:
    index = Index(directory, SLOTS, ENTRIES, access, lambda: NOW_MS, disk)
    index.load()
    return index


def place_of(number: int) -> int:
    return 100 * number


def put(index: Index, wanted: list[Record], first: int = 0) -> None:
    for number, (topic, keys) in enumerate(wanted, first):
        index.put(keyed(topic, keys), place_of(number), NOW_MS + number * 700)


def put_at_once(index: Index, wanted: list[Record], first: int = 0) -> None:
    rows = [(number, topic, key) for number, (topic, keys) in enumerate(wanted, first) for key in keys]
    hashes = np.array([index_hash(topic, key) for _, topic, key in rows], np.int32)
    numbers = np.array([number for number, _, _ in rows], np.int64)
    index.put_many(hashes, 100 * numbers, NOW_MS + numbers * 700, bool(wanted) and not wanted[-1][1])


def contents(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.iterdir())] if directory.exists() else []


def test_a_flush_that_says_nothing_leaves_no_key_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = new_index(tmp_path)
    put(index, [("a", ["k"])])
    make, refusals = index._file_with_room, [StoreFullError(tmp_path, 1)]

    def full_for_a_moment() -> object:
        if refusals:
            raise refusals.pop()
        return make()

    monkeypatch.setattr(index, "_file_with_room", full_for_a_moment)
    with pytest.raises(StoreFullError):
        index.flush()
    index.flush()
    assert list(new_index(tmp_path).candidates("a", "k")) == [0]


def test_a_file_whose_header_alone_was_lost_leads_nobody_astray(tmp_path: Path) -> None:
    """As after a power cut, or a copy made during writes: slots lead to entries that are not counted."""
    records: list[Record] = [("t", [f"k{number}"]) for number in range(3)]
    index = new_index(tmp_path)
    put(index, records)
    index.flush()
    index.close()
    (file,) = tmp_path.iterdir()
    with file.open("r+b") as header:
        header.write(bytes(40))
    again = new_index(tmp_path)
    again.truncate(place_of(3), lambda place: NOW_MS)
    put(again, records)
    again.flush()
    for _ in range(2):
        assert [list(again.candidates("t", f"k{number}")) for number in range(3)] == [
            [place_of(number)] for number in range(3)
        ]
        again.truncate(place_of(3), lambda place: NOW_MS)


@settings(max_examples=80)
@given(records, st.lists(st.integers(0, 30), max_size=3))
def test_records_one_by_one_or_at_once_make_the_same_files_and_answers(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[Record], cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("index")
    single, batched = new_index(folder / "single"), new_index(folder / "batched")
    bounds = sorted({0, len(wanted), *(cut for cut in cuts if cut < len(wanted))})
    for start, end in pairwise(bounds):
        put(single, wanted[start:end], start)
        put_at_once(batched, wanted[start:end], start)
    check_answers(single, wanted)
    check_answers(batched, wanted)
    single.flush()
    batched.flush()
    assert contents(folder / "single") == contents(folder / "batched")
    reader = new_index(folder / "single", Access.READ)
    check_answers(reader, wanted)
    reader.close()
    keys = sum(len(keys) for _, keys in wanted)
    full_files, rest = divmod(keys, ENTRIES - 1)
    starts_another = bool(wanted) and not wanted[-1][1] and rest == 0
    assert len(single.files) == full_files + (rest > 0 or starts_another)
    single.close()
    batched.close()


def check_answers(index: Index, wanted: list[Record]) -> None:
    for topic in ("a", "topic"):
        for key in ("k", "κ", "😀", "k2"):
            carriers = [place_of(i) for i, (one, keys) in enumerate(wanted) if one == topic and key in keys]
            found = list(index.candidates(topic, key))
            assert [place for place in found if place in set(carriers)] == carriers[::-1]
            assert len(found) == len(set(found))
            assert list(index.candidates(topic, key, 700)) == [place for place in found if place >= 700]
    newest = [place_of(i) for i, (_, keys) in enumerate(wanted) if keys]
    assert index.last_physical_offset == (newest[-1] if newest else -1)


def test_the_first_message_makes_a_file_even_without_keys(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    index.put(keyed("t", []), 0, NOW_MS)
    index.flush()
    assert contents(tmp_path) == [bytes(index_file_bytes(SLOTS, ENTRIES))]


def test_a_record_that_is_there_is_not_indexed_again(tmp_path: Path) -> None:
    wanted: list[Record] = [("t", ["k", "k2"]), ("t", ["k"]), ("t", ["k2"])]
    index = new_index(tmp_path)
    put(index, wanted)
    put(index, wanted[1:], 1)
    index.flush()
    before = contents(tmp_path)
    again = new_index(tmp_path)
    put(again, wanted)
    put_at_once(again, wanted)
    again.flush()
    assert contents(tmp_path) == before
    put_at_once(again, [*wanted, ("t", ["k"])])
    assert list(again.candidates("t", "k")) == [300, 100, 0]


def test_many_single_records_go_into_the_files_by_themselves(tmp_path: Path) -> None:
    index = Index(tmp_path, SLOTS, 3 * MEMTABLE_KEYS, Access.WRITE, lambda: NOW_MS)
    index.load()
    put(index, [("t", ["k"])] * (MEMTABLE_KEYS - 1))
    assert not index.files
    put(index, [("t", ["k"])], MEMTABLE_KEYS - 1)
    assert index.files[0].header.next_entry == MEMTABLE_KEYS + 1


def test_keys_wait_in_memory_while_the_disk_is_full(tmp_path: Path) -> None:
    disk = FullDisk(allocations=1)
    index = new_index(tmp_path / "full", disk=disk)
    wanted: list[Record] = [("t", ["k", "k2"])] * 7
    put_at_once(index, wanted[:5])
    with pytest.raises(StoreFullError):
        index.flush()
    put(index, wanted[5:], 5)
    assert len(index.files) == 1
    assert list(index.candidates("t", "k")) == [place_of(number) for number in reversed(range(7))]
    disk.allocations = 5
    index.flush()
    roomy = new_index(tmp_path / "roomy")
    put(roomy, wanted)
    roomy.flush()
    assert contents(tmp_path / "full") == contents(tmp_path / "roomy")


@settings(max_examples=60)
@given(records, st.integers(0, 30), st.booleans(), st.booleans())
def test_a_cut_index_is_as_if_the_rest_was_never_put(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[Record], kept: int, at_once: bool, flushed: bool
) -> None:
    folder = tmp_path_factory.mktemp("index")
    index, short = new_index(folder / "cut"), new_index(folder / "short")
    wanted = [(topic, keys or ["k"]) for topic, keys in wanted]
    (put_at_once if at_once else put)(index, wanted)
    put(short, wanted[:kept])
    if flushed:
        index.flush()
    index.truncate(place_of(kept), lambda place: NOW_MS + place * 7)
    check_answers(index, wanted[:kept])
    index.flush()
    short.flush()
    assert contents(folder / "cut") == contents(folder / "short")
    index.close()
    short.close()


def test_files_expire_with_the_log_but_never_the_newest(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    put(index, [("t", ["k"])] * 17)
    index.flush()
    assert index.delete_expired(place_of(4)) == 0
    assert index.delete_expired(place_of(5)) == 1
    assert list(index.candidates("t", "k", place_of(5)))[-1] == place_of(5)
    assert index.delete_expired(place_of(1000)) == 2
    assert len(list(tmp_path.iterdir())) == len(index.files) == 1


def test_a_follower_sees_new_keys_files_and_expiry(tmp_path: Path) -> None:
    writer, follower = new_index(tmp_path), new_index(tmp_path, Access.READ)
    put(writer, [("t", ["k"])] * 8)
    writer.flush()
    assert follower.refresh() is True
    assert list(follower.candidates("t", "k")) == [place_of(number) for number in reversed(range(8))]
    put(writer, [("t", ["k"])], 8)
    writer.settle()
    assert follower.refresh() is False
    assert next(follower.candidates("t", "k")) == place_of(8)
    writer.delete_expired(place_of(5))
    assert follower.refresh() is True
    assert list(follower.candidates("t", "k")) == [place_of(number) for number in (8, 7, 6, 5)]


def test_files_of_other_sizes_are_told_apart_and_stay_when_the_index_is_made_anew(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    put(index, [("t", ["k"])])
    index.flush()
    (tmp_path / "20230101000000000").write_bytes(bytes(100))
    index.close()
    again = new_index(tmp_path)
    assert [path.name for path in again.foreign] == ["20230101000000000"]
    assert list(again.candidates("t", "k")) == [0]
    again.destroy()
    assert [path.name for path in tmp_path.iterdir()] == ["20230101000000000"]
    put(again, [("t", ["k"])])
    assert list(again.candidates("t", "k")) == [0]


def test_an_index_that_is_only_read_changes_nothing_on_disk(tmp_path: Path) -> None:
    index = new_index(tmp_path)
    put(index, [("t", ["k"])] * 3)
    index.flush()
    before = contents(tmp_path)
    private = new_index(tmp_path, Access.READ)
    private.truncate(150, lambda place: NOW_MS)
    put(private, [("t", ["k"])] * 9, 4)
    private.flush()
    assert list(private.candidates("t", "k")) == [place_of(number) for number in (*reversed(range(4, 13)), 1, 0)]
    assert contents(tmp_path) == before


def test_names_are_local_times_that_rise_even_when_the_clock_goes_back() -> None:
    first = next_name(NOW_MS + 7, "")
    assert re.fullmatch(r"202311\d{8}007", first)
    assert next_name(NOW_MS, first) == first[:-3] + "008"
    assert next_name(NOW_MS, "20231231235959999") == "20240101000000000"
    assert next_name(NOW_MS, "99999999999999998") == "99999999999999999"

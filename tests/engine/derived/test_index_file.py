"""The index file: its bytes, many puts against one after another, chains, and cutting."""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.deadline import WouldBlock, nonblocking
from engine.derived.index_file import (
    IndexFile,
    IndexHeader,
    index_file_bytes,
    trusted_prefix,
)
from engine.errors import TruncatedFileError
from engine.files.mapped_file import Access, MappedFile
from engine.record.hashes import index_hash
from engine.record.kernel.chain import GIVEN_AT_ONCE, NEWEST, Candidates, walk_chain
from engine.record.kernel.keys import KeyMemtable
from engine.record.kernel.pages import Pages

SLOTS, ENTRIES = 5, 12
FILE_BYTES = index_file_bytes(SLOTS, ENTRIES)

Key = tuple[int, int, int]
"""Hash, physical offset, store time in ms."""


def new_file(slots: int = SLOTS, entries: int = ENTRIES) -> IndexFile:
    file = MappedFile.create(Path("index"), index_file_bytes(slots, entries), Access.READ)
    file.set_end(file.size)
    return IndexFile(file, slots, entries)


def memtable(keys: list[Key]) -> KeyMemtable:
    hashes, places, times = np.array(keys, dtype=np.int64).T
    table = KeyMemtable()
    table.extend(hashes.astype(np.int32).tobytes(), places.tobytes(), times.tobytes())
    return table


def put(file: IndexFile, keys: list[Key]) -> None:
    if keys:
        file.put_many(memtable(keys), len(keys))


def candidates_of(file: IndexFile, key_hash: int) -> Candidates:
    """All of one file, each as often as it stands there."""
    return Candidates([], (file,), key_hash, -(1 << 63), False)


def test_a_file_that_retention_took_has_no_candidates() -> None:
    file = new_file()
    put(file, [(7, 100, 5)])
    assert list(candidates_of(file, 7)) == [100]
    file.file.retire()
    assert list(candidates_of(file, 7)) == []


@given(
    st.lists(st.tuples(st.sampled_from([7, 7, 7, 2, 9]), st.integers(0, 3)), max_size=60),
    st.sampled_from([1, 2, 7, 256]),
    st.sampled_from([1, 3, 1 << 16]),
)
def test_a_long_bucket_is_followed_some_entries_at_a_time(keys: list[tuple[int, int]], least: int, more: int) -> None:
    file, places = new_file(5, 100), np.cumsum([step for _, step in keys]).tolist()
    put(file, [(key_hash, place, 1) for (key_hash, _), place in zip(keys, places, strict=True)])
    pages, found, number = Pages(file.file.whole()), [], NEWEST
    while number:
        some, number = walk_chain(pages, 5, 100, 7, number, least)
        found += some
        least *= more
    wanted = [place for (key_hash, _), place in zip(keys, places, strict=True) if key_hash == 7]
    assert list(dict.fromkeys(found)) == list(dict.fromkeys(reversed(wanted)))


def long_file() -> IndexFile:
    """A file with one bucket of 1,000 entries."""
    file = new_file(1, 1001)
    put(file, [(7, 100 * number, 1) for number in range(1000)])
    return file


def test_a_nonblocking_thread_follows_no_long_bucket() -> None:
    candidates = candidates_of(long_file(), 7)
    with nonblocking():
        first = [next(candidates) for _ in range(GIVEN_AT_ONCE)]
        assert first == [100 * number for number in range(999, 999 - len(first), -1)]
        with pytest.raises(WouldBlock):
            next(candidates)


def test_the_file_is_looked_at_again_before_more_of_a_bucket_is_followed(tmp_path: Path) -> None:
    whole = bytes(long_file().file.whole())
    (tmp_path / "index").write_bytes(whole)
    file = IndexFile(MappedFile(tmp_path / "index", len(whole), Access.READ), 1, 1001)
    candidates = candidates_of(file, 7)
    next(candidates)
    os.truncate(tmp_path / "index", 4096)
    with pytest.raises(TruncatedFileError):
        list(candidates)  # entries are followed from the file's end: to touch them would kill this process
    again = IndexFile(MappedFile(tmp_path / "index", len(whole), Access.READ), 1, 1001)
    with pytest.raises(TruncatedFileError):
        list(candidates_of(again, 7))


NUMBERS = st.integers(-(1 << 31), (1 << 31) - 1)


@given(NUMBERS, NUMBERS, NUMBERS, st.integers(-(1 << 63), (1 << 63) - 1), NUMBERS)
def test_numbers_of_a_chain_are_whatever_a_disk_holds(
    slot: int, counted: int, previous: int, number: int, key_hash: int
) -> None:
    file = new_file()
    put(file, [(3, 100, 1), (3, 107, 1), (3, 114, 1)])
    pages = file.file.writable()
    for of in range(SLOTS):
        struct.pack_into(">i", pages, 40 + 4 * of, slot)
    struct.pack_into(">i", pages, 36, counted)
    for of in (1, 2, 3):
        struct.pack_into(">i", pages, 40 + 4 * SLOTS + 20 * of + 16, previous)
    view = Pages(file.file.whole())
    found, following = walk_chain(view, SLOTS, ENTRIES, key_hash, NEWEST, 1 << 40)
    assert len(found) <= 1
    assert following == 0
    found, following = walk_chain(view, SLOTS, ENTRIES, 3, number, 2)
    assert len(found) <= 2
    assert 0 <= following < ENTRIES


def test_a_chain_is_followed_within_the_file_alone() -> None:
    view = new_file().file.whole()
    with pytest.raises(IndexError):
        walk_chain(Pages(view[:-1]), SLOTS, ENTRIES, 3, NEWEST, 1)
    with pytest.raises(IndexError):
        walk_chain(Pages(view), 1 << 40, ENTRIES, 3, NEWEST, 1)


class Model:
    """RocketMQ's putKey, step by step, as the format describes it."""

    def __init__(self, inherited_end: tuple[int, int] = (0, 0)) -> None:
        place, time_ms = max(inherited_end[0], 0), max(inherited_end[1], 0)
        self.begin_ms = self.end_ms = time_ms
        self.begin = self.end = place
        self.used_slots, self.next_entry = 0, 1
        self.slots = [0] * SLOTS
        self.entries = [(0, 0, 0, 0)] * ENTRIES

    def put(self, key_hash: int, place: int, time_ms: int) -> None:
        slot = key_hash % SLOTS
        previous = self.slots[slot]
        if previous <= 0 or previous > self.next_entry:
            previous = 0
        difference = max(0, min((time_ms - self.begin_ms) // 1000, 2**31 - 1)) if self.begin_ms > 0 else 0
        self.entries[self.next_entry] = (key_hash, place, difference, previous)
        self.slots[slot] = self.next_entry
        if self.next_entry <= 1:
            self.begin, self.begin_ms = place, time_ms
        self.used_slots += previous == 0
        self.next_entry += 1
        self.end, self.end_ms = place, time_ms

    def raw(self) -> bytes:
        next_entry = self.next_entry if self.next_entry > 1 else 0
        numbers = (self.begin_ms, self.end_ms, self.begin, self.end, self.used_slots, next_entry)
        entries = b"".join(struct.pack(">iqii", *entry) for entry in self.entries)
        return struct.pack(">qqqqii", *numbers) + struct.pack(f">{SLOTS}i", *self.slots) + entries


keys_in_log_order = st.lists(
    st.tuples(st.integers(0, 12) | st.just(2**31 - 1), st.integers(0, 40), st.integers(-2, 2**43)), max_size=ENTRIES - 1
).map(lambda keys: [(key_hash, 100 + 7 * i, time_ms) for i, (key_hash, _, time_ms) in enumerate(keys)])


def test_header_slots_and_entries_have_the_bytes_of_the_format() -> None:
    file = new_file(5_000_000, 20_000_000)
    unique, key = (index_hash("TopicTest", text) for text in ("AC1F00010A2B18B4AAC20000", "order-1"))
    put(file, [(unique, 1_048_576, 1_700_000_000_123)])
    assert file.header[4:] == (1, 2)
    put(file, [(key, 1_048_576, 1_700_000_000_123)])
    pages = file.file.whole()
    assert pages[:40].hex(" ", 8) == (
        "0000018bcfe5687b 0000018bcfe5687b 0000000000100000 0000000000100000 0000000200000003"
    )
    assert (unique, key) == (1_162_408_323, 1_829_193_424)
    assert pages[9_633_332:9_633_336].hex() == "00000001"
    assert pages[16_773_736:16_773_740].hex() == "00000002"
    assert pages[20_000_040:20_000_060] == bytes(20)
    assert pages[20_000_060:20_000_080].hex() == "4548f183" + "0000000000100000" + "00000000" * 2
    assert pages[20_000_080:20_000_100].hex() == "6d0746d0" + "0000000000100000" + "00000000" * 2


@settings(max_examples=300)
@given(keys_in_log_order, st.lists(st.integers(0, ENTRIES), max_size=4), st.integers(0, 90), st.integers(0, 2**42))
@example([(3, 100, 5_999), (3, 107, 7_000)], [], 90, 1)
@example([(3, 100, 9_000), (8, 107, 4_000), (3, 114, 12_999)], [1], 0, 0)
def test_many_puts_write_the_bytes_of_one_after_another(
    keys: list[Key], cuts: list[int], inherited_place: int, inherited_ms: int
) -> None:
    file, model = new_file(), Model((inherited_place, inherited_ms))
    file.inherit(IndexHeader(0, inherited_ms, 0, inherited_place, 0, 1))
    bounds = sorted({0, len(keys), *(cut for cut in cuts if cut < len(keys))})
    for start, end in pairwise(bounds):
        put(file, keys[start:end])
    for key in keys:
        model.put(*key)
    assert bytes(file.file.whole()) == model.raw()
    assert file.room == ENTRIES - 1 - len(keys)


@settings(max_examples=100)
@given(keys_in_log_order)
def test_a_chain_leads_to_every_entry_of_its_hash_newest_first(keys: list[Key]) -> None:
    file = new_file()
    put(file, keys)
    for wanted in {key[0] for key in keys} | {1}:
        assert list(candidates_of(file, wanted)) == [place for key, place, _ in reversed(keys) if key == wanted]


@settings(max_examples=150)
@given(keys_in_log_order, st.integers(0, ENTRIES), st.data())
def test_a_cut_file_is_as_if_the_rest_was_never_put_even_with_slots_lost(
    keys: list[Key], kept: int, data: st.DataObject
) -> None:
    file, model = new_file(), Model()
    put(file, keys)
    kept = min(kept, len(keys))
    for key in keys[:kept]:
        model.put(*key)
    slots = np.frombuffer(file.file.writable(), ">i4", SLOTS, 40)
    slots[data.draw(st.integers(0, SLOTS - 1))] = data.draw(st.integers(-3, ENTRIES))
    physical_end = keys[kept][1] if kept < len(keys) else 10_000
    times = {place: time_ms for _, place, time_ms in keys}
    assert file.truncate(physical_end, times.__getitem__) == kept
    if kept and times[keys[kept - 1][1]] > 0:
        assert bytes(file.file.whole()) == model.raw()


def test_a_circular_or_wild_chain_ends() -> None:
    file = new_file()
    put(file, [(3, 100, 1), (3, 107, 1), (3, 114, 1)])
    position = 40 + 4 * SLOTS + 20 * 2 + 16
    struct.pack_into(">i", file.file.writable(), position, 3)
    assert list(candidates_of(file, 3)) == [114, 107]
    struct.pack_into(">i", file.file.writable(), 40 + 4 * 3, 2**31 - 1)
    assert list(candidates_of(file, 3)) == []
    struct.pack_into(">i", file.file.writable(), 36, 2**31 - 1)
    assert list(candidates_of(file, 3)) == []


def test_trusted_entries_end_where_a_power_cut_left_zeros() -> None:
    file = new_file()
    put(file, [(3, 100, 1), (4, 107, 1), (3, 114, 1), (3, 121, 1)])
    records = file.records().copy()
    assert trusted_prefix(records, 10_000) == 4
    records[2] = 0
    assert trusted_prefix(records, 10_000) == 2


def raw_file(begin_time_ms: int, time_difference_s: int, used_slots: int, next_entry: int) -> bytes:
    """A file with one entry, and these fields."""
    header = struct.pack(">qqqqii", begin_time_ms, 0, 0, 0, used_slots, next_entry)
    return (header + bytes(4 * SLOTS + 20) + struct.pack(">iqii", 3, 5, time_difference_s, 0)).ljust(FILE_BYTES, b"\0")


@example(raw_file((1 << 63) - 1, 1, used_slots=1, next_entry=2), 3)
@example(raw_file(-(1 << 63), -1, used_slots=1, next_entry=2), 3)
@example(raw_file(1, 1, used_slots=(1 << 31) - 1, next_entry=0), 4)
@settings(max_examples=300)
@given(
    st.binary(min_size=40 + 4 * SLOTS + 20 * ENTRIES, max_size=40 + 4 * SLOTS + 20 * ENTRIES), st.integers(0, 2**31 - 1)
)
def test_garbage_is_walked_cut_and_written_to_without_harm(raw: bytes, wanted: int) -> None:
    file = new_file()
    file.file.writable()[:] = raw
    assert len(list(candidates_of(file, wanted))) < ENTRIES
    assert 0 <= file.truncate(1 << 62, lambda place: -1) < ENTRIES
    if file.room > 0:
        put(file, [(wanted, 1 << 62, 1)])
        assert next(candidates_of(file, wanted)) == 1 << 62

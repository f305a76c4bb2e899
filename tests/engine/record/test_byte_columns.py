"""Byte columns: many ranges at once are the same as one by one, in each form, and are written as Parquet has them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.record.byte_columns import (
    ByteColumn,
    CodedColumn,
    SliceColumn,
)
from engine.record.kernel.columns import NO_LEAD, gather

range_lists = st.lists(
    st.tuples(st.integers(0, 9_000), st.integers(0, 40) | st.integers(500, 1_030) | st.integers(4_090, 9_000)),
    max_size=20,
)


@given(range_lists, st.sampled_from([NO_LEAD, 0, 32]))
def test_packed_slices_are_the_slices_in_order(ranges: list[tuple[int, int]], lead: int) -> None:
    starts, sizes = np.array(ranges, np.int64).reshape(-1, 2).T
    offsets, packed = gather(DATA, starts, sizes, lead)
    mark = b"" if lead == NO_LEAD else bytes([lead])
    found = [packed[a:b].tobytes() for a, b in pairwise(offsets)]
    assert found == [mark + DATA[start : start + size].tobytes() for start, size in ranges]
    assert offsets[-1] == len(packed)


@given(st.integers(0, 5), st.lists(st.integers(0, 90) | st.integers(1_000, 1_030), min_size=1, max_size=9))
def test_thousands_of_slices_come_in_groups(seed: int, some_sizes: list[int]) -> None:
    random = np.random.default_rng(seed)
    sizes = random.choice(np.array(some_sizes), 5_000)
    starts = random.integers(0, len(DATA) - sizes, endpoint=True)
    offsets, packed = gather(DATA, starts, sizes)
    whole = b"".join(DATA[a : a + n].tobytes() for a, n in zip(starts.tolist(), sizes.tolist(), strict=True))
    assert packed.tobytes() == whole
    assert offsets[-1] == len(whole)


DATA = np.random.default_rng(7).integers(0, 256, 20_000, np.uint8)
MOST_DIFFERENT, LEAST_ALIKE, LONGEST_BYTES = 4096, 32, 1 << 15
ranges = st.tuples(st.integers(0, 19_999), st.integers(0, 40) | st.integers(1_000, 1_050) | st.integers(4_090, 9_000))
short = st.binary(max_size=3) | st.sampled_from([b"", b"a", b"a\0", b"\0a", b"\0\0", b"\0"])


def texts(column: ByteColumn | SliceColumn | CodedColumn) -> list[bytes]:
    return [column[row] for row in range(len(column))]


def slices_of(ranges: Sequence[tuple[int, int]]) -> SliceColumn:
    """These ranges of DATA, as far as it goes."""
    starts, sizes = np.array(ranges, np.int64).reshape(-1, 2).T
    return SliceColumn(DATA, starts, np.minimum(sizes, len(DATA) - starts))


@given(st.lists(st.binary(max_size=40)))
def test_byte_strings_are_the_same_by_where_they_are(wanted: list[bytes]) -> None:
    column = ByteColumn.of(wanted)
    assert texts(column) == texts(column.slices) == texts(column.slices.packed()) == wanted
    assert column.text_bytes == sum(map(len, wanted))
    few = [row for row, text in enumerate(wanted) if len(text) > 1]
    assert texts(column.slices.take(np.array(few, np.int64))) == [wanted[row] for row in few]


@given(st.lists(st.binary(max_size=40), min_size=1), st.lists(st.integers(0)))
def test_numbered_byte_strings_are_the_same_by_where_they_are(different: list[bytes], codes: list[int]) -> None:
    wanted = [different[code % len(different)] for code in codes]
    column = CodedColumn(ByteColumn.of(different), np.array([code % len(different) for code in codes], np.int32))
    assert texts(column) == texts(column.slices) == wanted
    assert column.text_bytes == sum(map(len, wanted))


# numbers for those that differ


def are_few(wanted: Sequence[bytes]) -> bool:
    """Whether each stands for as many as it has to, on average; the first one need not."""
    different = len(set(wanted))
    is_few = different <= MOST_DIFFERENT and (different <= 1 or len(wanted) > LEAST_ALIKE * (different - 1))
    return is_few and max(map(len, wanted), default=0) <= LONGEST_BYTES


def check_coded(wanted: Sequence[bytes]) -> bool:
    """Whether the texts are numbered; if so, each different one has one number."""
    coded = ByteColumn.of(wanted).slices.coded()
    if coded is None:
        return False
    assert texts(coded) == wanted
    assert texts(coded.texts) == list(dict.fromkeys(wanted))
    assert coded.codes.dtype == np.int32
    return True


@given(st.lists(st.tuples(short, st.integers(0, 80)), max_size=7), st.booleans(), st.randoms(use_true_random=False))
def test_texts_are_numbered_exactly_if_few_differ(
    kinds: list[tuple[bytes, int]], shuffled: bool, chance: st.DataObject
) -> None:
    wanted = [text for text, count in kinds for _ in range(count)]
    if shuffled:
        chance.shuffle(wanted)  # type: ignore[attr-defined]
    assert check_coded(wanted) == are_few(wanted)


@pytest.mark.parametrize(
    ("wanted", "is_coded"),
    [
        ([], True),
        ([b""], True),
        ([b"", b""], True),
        ([b"TagA"] * 1_000, True),
        ([b"TagA"] * 31 + [b"TagB"], False),
        ([b"TagA"] * 32 + [b"TagB"], True),
        ([b"", b"TagA", b"TagB"] * 40, True),
        ([b"TagA"] * 63 + [b"error", b"retry"], True),
        ([b"TagA"] * 62 + [b"error", b"retry"], False),
        ([b""] * 63 + [b"error", b"retry"], True),
        ([b""] * 62 + [b"error", b"retry"], False),
        ([b"error", b"retry"] + [b"TagA"] * 64, True),
        ([b"a", b"a\0", b"a\0\0", b"\0a", b"\0\0", b"\0", b""] * 40, True),
        ([b"x" * 5_000, b"x" * 4_999 + b"y"] * 40, True),
        ([b"%04d" % number for number in range(MOST_DIFFERENT)] * LEAST_ALIKE, True),
        ([b"%04d" % number for number in range(MOST_DIFFERENT + 1)] * LEAST_ALIKE, False),
        ([b"%d" % number for number in range(1_000)], False),
        ([b"x" * size for size in range(100)] * 40, True),
        ([b"x" * size for size in range(100)] * 31, False),
        ([b"x" * LONGEST_BYTES, b"y" * (LONGEST_BYTES - 1), b""] * 40, True),
        ([b"x", b"y" * ((1 << 16) + 1)] * 40, False),
    ],
)
def test_few_texts_are_numbered_and_many_are_not(wanted: list[bytes], is_coded: bool) -> None:
    assert check_coded(wanted) == is_coded == are_few(wanted)


# as Parquet has them


def check_sized(column: SliceColumn) -> None:
    wanted = b"".join(struct.pack("<i", len(text)) + text for text in texts(column))
    target = np.full(len(wanted), 0xEE, np.uint8)
    column.put_sized(target)
    assert target[: len(wanted)].tobytes() == wanted


@given(st.lists(ranges, max_size=20))
def test_texts_are_put_down_with_the_size_of_each_before_it(ranges: list[tuple[int, int]]) -> None:
    check_sized(slices_of(ranges))


@settings(max_examples=25)
@given(st.integers(0, 5), st.lists(st.sampled_from([0, 1, 7, 90, 1_023, 1_024, 1_500]), min_size=1, max_size=3))
def test_thousands_of_texts_are_put_down_with_their_sizes(seed: int, some_sizes: list[int]) -> None:
    random = np.random.default_rng(seed)
    sizes = random.choice(np.array(some_sizes), 5_000)
    check_sized(SliceColumn(DATA, random.integers(0, len(DATA) - sizes, endpoint=True), sizes))


@pytest.mark.parametrize("size", [0, 1, 1_023, 1_024, 5_000])
def test_texts_of_one_size_are_put_down_with_it(size: int) -> None:
    check_sized(slices_of([(position, size) for position in range(0, 10_000, 500)]))
    check_sized(slices_of([(len(DATA) - size, size)]))


def test_no_texts_are_put_down_as_nothing() -> None:
    target = np.full(9, 0xEE, np.uint8)
    slices_of([]).put_sized(target)
    ByteColumn.of([]).slices.put_sized(target)
    assert (target == 0xEE).all()

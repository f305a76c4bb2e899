"""Properties of one shape: values are told for all records at once only where each record alone says the same."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.record.properties import find_property
from engine.record.property_values import alike_values

NAMES = [b"KEYS", b"TAGS", b"K"]
SHAPE = b"KEYS\x01k-100\x02TAGS\x01paid"


def found_in(rows: list[bytes]) -> list[tuple[int, int]] | None:
    """What is found when the rows stand one behind the other, a byte before each."""
    sizes = np.array([len(row) for row in rows], np.int64)
    starts = np.cumsum(sizes + 1) - sizes
    return alike_values(np.frombuffer(b"".join(b"\2" + row for row in rows), np.uint8), starts, sizes, NAMES)


def test_values_stand_where_they_stand_in_the_first() -> None:
    assert found_in([SHAPE, SHAPE.replace(b"100", b"101"), SHAPE.replace(b"paid", b"sent")]) == [
        (5, 5),
        (16, 4),
        (0, 0),
    ]


@pytest.mark.parametrize(
    "other",
    [
        SHAPE.replace(b"TAGS", b"TAGZ"),
        SHAPE.replace(b"k-100", b"k\x02100"),
        SHAPE.replace(b"k-100", b"k\x01100"),
        SHAPE.replace(b"k-100", b"k-10").replace(b"paid", b"repay"),
        SHAPE.replace(b"\x02", b"\x03"),
        SHAPE + b"\x02",
        b"",
    ],
)
def test_one_of_another_shape_is_enough_to_tell_nothing(other: bytes) -> None:
    assert found_in([SHAPE, other, SHAPE]) is None
    assert found_in([other, SHAPE, SHAPE]) is None


def test_the_last_of_equal_names_wins_unless_it_is_empty() -> None:
    assert found_in([b"K\x011\x02K\x012\x02K\x01"] * 2) == [(0, 0), (0, 0), (6, 1)]


def test_nothing_is_told_of_no_records_nor_of_a_value_with_a_separator() -> None:
    assert found_in([]) is None
    assert found_in([b"K\x01a\x01b"] * 2) is None


def test_a_few_records_take_no_more_memory_than_they_are_long() -> None:
    rows = [b"KEYS\x01" + b"k" * 900] * 2
    tracemalloc.start()
    try:
        assert found_in(rows) == [(5, 900), (0, 0), (0, 0)]
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


changes = st.lists(st.tuples(st.integers(0, 18), st.sampled_from(b"\x01\x02KTAGSx")), max_size=3)


@given(st.lists(changes, min_size=1, max_size=6), changes)
def test_what_is_told_is_what_each_record_says(
    changed: list[list[tuple[int, int]]], common: list[tuple[int, int]]
) -> None:
    rows = []
    for own in changed:
        row = bytearray(SHAPE)
        for position, byte in common + own:
            row[position] = byte
        rows.append(bytes(row))
    found = found_in(rows)
    for name, (start, size) in zip(NAMES, found or [], strict=found is not None):
        assert [row[start : start + size] for row in rows] == [find_property(row, name) or b"" for row in rows]

"""Ranges that hold a text, against Python's own search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.record.kernel.search import Texts, find_texts

Array = np.ndarray[Any, Any]
LETTERS = st.binary(max_size=6).map(lambda raw: bytes(b"abAB-\x00"[byte % 6] for byte in raw))


def found_in(data: Array, starts: list[int], sizes: list[int], text: bytes, *, any_case: bool = False) -> list[bool]:
    """Which ranges hold the text."""
    numbers = find_texts(Texts([text], any_case, data), data, np.array(starts, np.int64), np.array(sizes, np.int64))
    return [number == 0 for number in numbers.tolist()]


@given(
    pieces=st.lists(st.tuples(LETTERS, st.integers(0, 90), LETTERS, st.booleans()), max_size=8),
    text=LETTERS.filter(bool),
    any_case=st.booleans(),
)
def test_every_range_that_holds_the_text_is_found(
    pieces: list[tuple[bytes, int, bytes, bool]], text: bytes, any_case: bool
) -> None:
    bodies = [before + b"." * gap + behind for before, gap, behind, _ in pieces]
    data = b"".join(body + b"#" * has_gap for body, (*_, has_gap) in zip(bodies, pieces, strict=True))
    starts, at = [], 0
    for body, (*_, has_gap) in zip(bodies, pieces, strict=True):
        starts.append(at)
        at += len(body) + has_gap
    sizes = list(map(len, bodies))
    found = found_in(np.frombuffer(data, np.uint8), starts, sizes, text, any_case=any_case)
    for row, body in enumerate(bodies):
        assert found[row] == (text.lower() in body.lower() if any_case else text in body)


def test_a_text_at_the_very_end_of_the_data_is_found() -> None:
    for size in range(3, 200):
        data = np.frombuffer(b"." * (size - 3) + b"abc", np.uint8)
        assert found_in(data, [0], [size], b"abc") == [True]


@pytest.mark.parametrize(("start", "size"), [(0, 5), (-1, 2), (4, 1), (1 << 62, 1 << 62), (0, -1), (5, 1)])
def test_a_range_outside_is_refused_unless_it_is_empty(start: int, size: int) -> None:
    data = np.frombuffer(b"abcd", np.uint8)
    with pytest.raises(IndexError, match="range 1 is not inside"):
        found_in(data, [0, start], [4, size], b"c")
    assert found_in(data, [start, 0], [0, 4], b"c") == [False, True]


def test_arrays_that_make_no_ranges_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        found_in(np.zeros(4, np.uint8), [0], [], b"c")
    with pytest.raises(ValueError, match="no text"):
        found_in(np.zeros(4, np.uint8), [0], [1], b"")

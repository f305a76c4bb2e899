"""CRC groups: many bodies are whole together exactly if each of them is."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.record.crc_group import LARGEST_BYTES, LEAST_ROWS, proved_whole

Array = np.ndarray[Any, Any]
SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 13, 100, 255, 256, 511, LARGEST_BYTES]


def bodies_of(size: int, count: int) -> Array:
    """Bytes (count, size) of no pattern."""
    return np.random.default_rng(size).integers(0, 256, (count, size), dtype=np.uint8)


def crcs_of(bodies: Array) -> Array:
    """As records keep them."""
    return np.array([crc32(body.tobytes()) & 0x7FFFFFFF for body in bodies], np.uint32)


def whole(bodies: Array, crcs: Array) -> Array:
    """`proved_whole` of rows of bytes, one behind the other, with something before and behind them all."""
    count, size = bodies.shape
    starts, sizes = np.arange(count) * size + 8, np.full(count, size)
    return proved_whole(np.pad(bodies.reshape(-1), 8, constant_values=0xFF), starts, sizes, crcs)


def mixed(sizes: list[int]) -> tuple[Array, Array, Array, Array]:
    """Bodies of these sizes, a few bytes between them: (data, starts, sizes, crcs)."""
    lengths = np.array(sizes, np.int64)
    starts = np.cumsum(lengths + 5) - lengths + 3
    data = np.random.default_rng(1).integers(0, 256, int(starts[-1] + lengths[-1]) + 4, dtype=np.uint8)
    bodies = [data[start : start + size] for start, size in zip(starts, lengths, strict=True)]
    return data, starts, lengths, np.array([crc32(body.tobytes()) & 0x7FFFFFFF for body in bodies], np.uint32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [LEAST_ROWS, 3001])
def test_bodies_with_their_crcs_are_whole(size: int, count: int) -> None:
    bodies = bodies_of(size, count)
    assert whole(bodies, crcs_of(bodies)).all()
    zeros = np.zeros_like(bodies)
    assert whole(zeros, crcs_of(zeros)).all()


@given(st.sampled_from(SIZES), st.integers(0), st.integers(0), st.integers(0, 7))
def test_one_bit_of_one_body_is_enough(size: int, row: int, position: int, bit: int) -> None:
    bodies = bodies_of(size, LEAST_ROWS)
    crcs = crcs_of(bodies)
    bodies[row % LEAST_ROWS, position % size] ^= 1 << bit
    assert not whole(bodies, crcs)[row % LEAST_ROWS]


@given(st.sampled_from(SIZES), st.integers(0, 1500), st.integers(0, 31))
def test_one_bit_of_one_crc_is_enough(size: int, row: int, bit: int) -> None:
    bodies = bodies_of(size, 1501)
    crcs = crcs_of(bodies)
    crcs[row] ^= 1 << bit
    assert not whole(bodies, crcs)[row]


def test_swapped_bodies_are_detected() -> None:
    bodies = bodies_of(64, LEAST_ROWS)
    crcs = crcs_of(bodies)
    assert not whole(np.roll(bodies, 1, axis=0), crcs).any()
    bodies[[3, 200]] = bodies[[200, 3]]
    assert not whole(bodies, crcs)[[3, 200]].any()


def test_the_same_damage_in_two_bodies_is_seen() -> None:
    bodies = bodies_of(64, LEAST_ROWS)
    crcs = crcs_of(bodies)
    bodies[:2, 5] ^= 0x10
    assert not whole(bodies, crcs)[:2].any()


def test_damage_leaves_other_groups_proved() -> None:
    bodies = bodies_of(500, 3001)
    crcs = crcs_of(bodies)
    bodies[1500, 7] ^= 1
    proved = whole(bodies, crcs)
    assert not proved[1500]
    assert np.count_nonzero(proved) > 2000


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([7] * LEAST_ROWS, {7}),
        ([LARGEST_BYTES] * LEAST_ROWS, {LARGEST_BYTES}),
        ([LARGEST_BYTES + 1] * LEAST_ROWS, set()),
        ([7] * (LEAST_ROWS - 1), set()),
        ([7, 8] * LEAST_ROWS, {7, 8}),
        ([4, 5] * (LEAST_ROWS - 1) + [12], {5, 12}),
        ([5, 6, 7, 12] * (LEAST_ROWS // 4), {5, 6, 7, 12}),
        ([297, 300, 304, 0, 5000, 70_000] * LEAST_ROWS + [3, 4], {297, 300, 304}),
        ([0] * LEAST_ROWS, set()),
    ],
)
def test_short_bodies_of_which_many_take_as_many_words_are_proved(sizes: list[int], found: set[int]) -> None:
    data, starts, lengths, crcs = mixed(sizes)
    proved = proved_whole(data, starts, lengths, crcs)
    assert proved.tolist() == [size in found for size in sizes]
    for row in np.flatnonzero(proved)[:: LEAST_ROWS // 2].tolist():
        data[starts[row]] ^= 1
        assert not proved_whole(data, starts, lengths, crcs)[row]


def test_bodies_at_the_very_edge_are_for_a_call_each() -> None:
    bodies = bodies_of(61, LEAST_ROWS + 2)
    starts, sizes = np.arange(len(bodies)) * 61, np.full(len(bodies), 61)
    proved = proved_whole(bodies.reshape(-1), starts, sizes, crcs_of(bodies))
    assert proved.tolist() == [False, *[True] * LEAST_ROWS, False]


def test_of_no_bodies_none_is_proved() -> None:
    none = np.zeros(0, np.int64)
    assert len(proved_whole(np.zeros(0, np.uint8), none, none, none.astype(np.uint32))) == 0

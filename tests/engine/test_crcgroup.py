"""CRC groups: many bodies are whole together exactly if each of them is."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.crcgroup import LARGEST_BYTES, LEAST_ROWS, are_whole, common_size

Array = np.ndarray[Any, Any]
SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 13, 100, 255, 256, 511, LARGEST_BYTES]


def bodies_of(size: int, count: int) -> Array:
    """Bytes (count, size) of no pattern."""
    return np.random.default_rng(size).integers(0, 256, (count, size), dtype=np.uint8)


def crcs_of(bodies: Array) -> Array:
    """As records keep them."""
    return np.array([crc32(body.tobytes()) & 0x7FFFFFFF for body in bodies], np.uint32)


def whole(bodies: Array, crcs: Array) -> bool:
    """`are_whole` of rows of bytes, one behind the other."""
    count, size = bodies.shape
    return are_whole(np.ascontiguousarray(bodies).reshape(-1), np.arange(count) * size, size, crcs)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, LEAST_ROWS, 3001])
def test_bodies_with_their_crcs_are_whole(size: int, count: int) -> None:
    bodies = bodies_of(size, count)
    assert whole(bodies, crcs_of(bodies))
    zeros = np.zeros_like(bodies)
    assert whole(zeros, crcs_of(zeros))


@given(st.sampled_from(SIZES), st.integers(0), st.integers(0), st.integers(0, 7))
def test_one_bit_of_one_body_is_enough(size: int, row: int, position: int, bit: int) -> None:
    bodies = bodies_of(size, LEAST_ROWS)
    crcs = crcs_of(bodies)
    bodies[row % LEAST_ROWS, position % size] ^= 1 << bit
    assert not whole(bodies, crcs)


@given(st.sampled_from(SIZES), st.integers(0, 1500), st.integers(0, 31))
def test_one_bit_of_one_crc_is_enough(size: int, row: int, bit: int) -> None:
    bodies = bodies_of(size, 1501)
    crcs = crcs_of(bodies)
    crcs[row] ^= 1 << bit
    assert not whole(bodies, crcs)


def test_bodies_that_took_each_others_place_are_seen() -> None:
    bodies = bodies_of(64, LEAST_ROWS)
    crcs = crcs_of(bodies)
    assert not whole(np.roll(bodies, 1, axis=0), crcs)
    bodies[[3, 200]] = bodies[[200, 3]]
    assert not whole(bodies, crcs)


def test_the_same_damage_in_two_bodies_is_seen() -> None:
    bodies = bodies_of(64, LEAST_ROWS)
    crcs = crcs_of(bodies)
    bodies[:2, 5] ^= 0x10
    assert not whole(bodies, crcs)


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([7] * LEAST_ROWS, 7),
        ([LARGEST_BYTES] * LEAST_ROWS, LARGEST_BYTES),
        ([LARGEST_BYTES + 1] * LEAST_ROWS, 0),
        ([7] * (LEAST_ROWS - 1), 0),
        ([7] * LEAST_ROWS + [8], 0),
        ([0] * LEAST_ROWS, 0),
        ([], 0),
    ],
)
def test_many_short_bodies_of_one_size_make_groups(sizes: list[int], found: int) -> None:
    assert common_size(np.array(sizes, np.int64)) == found

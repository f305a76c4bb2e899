"""Slices: many ranges at once are the same as one by one."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.record.slices import items_at, pack_slices, put_items

DATA = np.random.default_rng(7).integers(0, 256, 20_000, np.uint8)
ranges = st.lists(
    st.tuples(st.integers(0, 9_000), st.integers(0, 40) | st.integers(500, 1_030) | st.integers(4_090, 9_000)),
    max_size=20,
)


@given(ranges, st.sampled_from([None, 0, 32]))
def test_packed_slices_are_the_slices_in_order(ranges: list[tuple[int, int]], lead: int | None) -> None:
    starts, sizes = np.array(ranges, np.int64).reshape(-1, 2).T
    offsets, packed = pack_slices(DATA, starts, sizes, lead)
    mark = b"" if lead is None else bytes([lead])
    found = [packed[a:b].tobytes() for a, b in pairwise(offsets)]
    assert found == [mark + DATA[start : start + size].tobytes() for start, size in ranges]
    assert offsets[-1] == len(packed)


@given(st.integers(0, 5), st.lists(st.integers(0, 90) | st.integers(1_000, 1_030), min_size=1, max_size=9))
def test_thousands_of_slices_come_in_groups(seed: int, some_sizes: list[int]) -> None:
    random = np.random.default_rng(seed)
    sizes = random.choice(np.array(some_sizes), 5_000)
    starts = random.integers(0, len(DATA) - sizes, endpoint=True)
    offsets, packed = pack_slices(DATA, starts, sizes)
    whole = b"".join(DATA[a : a + n].tobytes() for a, n in zip(starts.tolist(), sizes.tolist(), strict=True))
    assert packed.tobytes() == whole
    assert offsets[-1] == len(whole)


def test_items_are_written_where_they_were_read() -> None:
    positions = np.array([3, 90, 17, 121])
    items = items_at(DATA, positions, 7)
    target = np.zeros(128, np.uint8)
    put_items(target, positions, items)
    for position in positions.tolist():
        assert target[position : position + 7].tobytes() == DATA[position : position + 7].tobytes()
    assert np.count_nonzero(target) <= 28

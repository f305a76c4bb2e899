"""The kernel's columns: with any ranges and texts, they stay within the bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.record.hashes import java_hash, java_hashes, slices_index_hashes, topic_hashes
from engine.record.kernel import columns as kernel
from tests.engine.record.guarded import guarded
from tests.engine.record.meanwhile import longest_wait

Array = np.ndarray[Any, Any]
Ranged = Callable[[Array, Array, Array], Any]

EXTREMES = [1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63), (1 << 62) + 1, -1, 5]
RANGED: dict[str, Ranged] = {
    "gather": lambda data, starts, sizes: kernel.gather(data, starts, sizes, target=np.empty(99, np.uint8)),
    "find_values": lambda data, starts, sizes: kernel.find_values(data, starts, sizes, [b"a", b"KEYS"]),
    "split_items": kernel.split_items,
    "words": lambda data, starts, sizes: kernel.words(data, *none(starts), starts, sizes),
    "words of": lambda data, starts, sizes: kernel.words(data, starts, sizes, *none(starts)),
    "java_hashes": lambda data, starts, sizes: kernel.java_hashes(data, starts, sizes, None),
    "number": lambda data, starts, sizes: kernel.number(data, starts, sizes, len(starts)),
}
ranged = pytest.mark.parametrize("call", RANGED.values(), ids=RANGED)
texts = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"a", b"KEYS", b" ", b"\xf0\x9f", b"\xe4\xb8\xad", b"\xff"]), max_size=9
)


def i64(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def none(like: Array) -> tuple[Array, Array]:
    """As many empty ranges."""
    return np.zeros(len(like), np.int64), np.zeros(len(like), np.int64)


def ranges_of(some: Sequence[bytes]) -> tuple[Array, Array, Array]:
    """These texts, the last of which ends where nothing may be read any more."""
    sizes = i64(*map(len, some))
    return guarded(b"-" + b"".join(some)), np.cumsum(sizes) - sizes + 1, sizes


@ranged
@given(some=st.lists(texts.map(b"".join), min_size=1, max_size=5))
def test_nothing_is_read_past_the_end(call: Ranged, some: list[bytes]) -> None:
    call(*ranges_of(some))


@ranged
@pytest.mark.parametrize("extreme", EXTREMES)
def test_ranges_outside_of_the_bytes_are_refused(call: Ranged, extreme: int) -> None:
    data = guarded(b"KEYS")
    for starts, sizes in (([0, extreme], [4, 1]), ([0, 1], [4, extreme]), ([0, extreme], [4, extreme])):
        with pytest.raises((IndexError, ValueError)):
            call(data, i64(*starts), i64(*sizes))


@ranged
def test_an_empty_range_may_be_anywhere(call: Ranged) -> None:
    call(guarded(b"KEYS"), i64(*EXTREMES), i64(*[0] * len(EXTREMES)))


@ranged
@pytest.mark.parametrize(
    "wrong", [np.zeros(2, np.int32), np.zeros(2, ">i8"), np.zeros((2, 1), np.int64), np.zeros(3, np.int64)]
)
def test_arrays_of_another_kind_or_length_are_refused(call: Ranged, wrong: Array) -> None:
    for starts, sizes in ((wrong, i64(0, 0)), (i64(0, 0), wrong)):
        with pytest.raises(ValueError, match="buffer|Buffer|dimensions|lengths"):  # noqa: RUF043
            call(guarded(b"KEYS"), starts, sizes)


def test_nothing_is_written_past_the_target() -> None:
    data, starts, sizes = ranges_of([b"one", b"two", b"three"])
    for lead, size in ((kernel.NO_LEAD, 11), (7, 14), (kernel.SIZED, 23)):
        offsets, packed = kernel.gather(data, starts, sizes, lead, guarded(bytes(size)))
        assert offsets[-1] == len(packed) == size
        for less in range(size):
            with pytest.raises(IndexError):
                kernel.gather(data, starts, sizes, lead, guarded(bytes(less)))
    with pytest.raises((ValueError, BufferError)):
        kernel.gather(data, starts, sizes, target=np.frombuffer(bytes(99), np.uint8))


def test_at_most_eight_names_are_looked_for() -> None:
    data, starts, sizes = ranges_of([b"a\x01b"])
    assert kernel.find_values(data, starts, sizes, [b"a"] * 8)[:, 1].tolist() == [[1]] * 8
    with pytest.raises(ValueError, match="names"):
        kernel.find_values(data, starts, sizes, [b"a"] * 9)


def test_the_earlier_of_equals_are_told() -> None:
    assert kernel.last_of_equals(i64(0, 3, 3, 5), np.array([0, 1, 0, 0, 1], np.int32), 2).tolist() == [
        False,
        True,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("rows", "codes"),
    [([0, 2], [0, 2]), ([0, 2], [-1, 0]), ([0, 3], [0, 0]), ([1, 2], [0, 0]), ([0, -9, 2], [0, 0]), ([], [])],
)
def test_rows_and_codes_that_do_not_fit_are_refused(rows: list[int], codes: list[int]) -> None:
    if rows == [0, -9, 2]:
        kernel.last_of_equals(i64(*rows), np.array(codes, np.int32), 2)  # told of nothing outside
        return
    with pytest.raises((IndexError, ValueError)):
        kernel.last_of_equals(i64(*rows), np.array(codes, np.int32), 2)


def test_a_seed_is_wanted_for_each_text() -> None:
    data, starts, sizes = ranges_of([b"a", b"b"])
    with pytest.raises(ValueError, match="lengths"):
        kernel.java_hashes(data, starts, sizes, np.zeros(1, np.uint32))
    with pytest.raises(ValueError, match="lengths"):
        kernel.words(data, starts, sizes, *none(i64(0)))


@given(st.lists(st.binary(max_size=12) | texts.map(b"".join), min_size=1, max_size=6))
def test_what_is_no_text_is_hashed_as_it_is_shown(some: list[bytes]) -> None:
    wanted = [text.decode(errors="replace") for text in some]
    assert java_hashes(*ranges_of(some)).tolist() == [java_hash(text) for text in wanted]
    seeds = topic_hashes(["T"]).repeat(len(some))
    joined = [abs(java_hash("T#" + text)) & 0x7FFFFFFF for text in wanted]
    assert slices_index_hashes(seeds, *ranges_of(some)).tolist() == joined


@pytest.mark.parametrize("first", [0x00, 0x7F, 0x80, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF])
def test_utf_8_is_what_python_takes_for_it(first: int) -> None:
    some = [
        bytes((first, second, *rest))
        for second in range(256)
        for rest in ((), (0x80,), (0xBF, 0x80), (0xBF, 0xBF), (0x80, 0x41))
    ]
    wanted = [java_hash(text.decode(errors="replace")) for text in some]
    assert java_hashes(*ranges_of(some)).tolist() == wanted


@given(st.lists(st.binary(max_size=20), max_size=30), st.integers(0, 40))
def test_numbers_are_those_of_the_first_equals(some: list[bytes], most: int) -> None:
    different = list(dict.fromkeys(some))
    found = kernel.number(*ranges_of(some), most)
    if len(different) > most:
        assert found is None
        return
    assert found is not None
    codes, firsts = found
    assert [different[code] for code in codes.tolist()] == some
    assert [some[row] for row in firsts.tolist()] == different


def test_other_threads_run_while_texts_are_hashed() -> None:
    text = np.full(1 << 20, ord("a"), np.uint8)
    starts = np.zeros(500, np.int64)
    assert longest_wait(lambda: kernel.java_hashes(text, starts, starts + len(text), None)) < 0.5

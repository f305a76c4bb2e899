"""Property columns: shapes and items tell what each record alone tells, and shapes decline what does not fit them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.record import property_columns
from engine.record.byte_columns import ByteColumn, CodedColumn
from engine.record.located import HEADER, PLACE, LocatedRecords
from engine.record.properties import find_property
from engine.record.property_columns import PropertyItems, ShapedProperties, alike_rows, alike_values

Array = np.ndarray[Any, Any]

NAMES = [b"KEYS", b"TAGS", b"a", b"ab", "имя".encode()]


def records_of(properties: Sequence[bytes]) -> LocatedRecords:
    """Records of which only the properties are known."""
    sizes = np.array([len(text) for text in properties], np.int64)
    log = np.frombuffer(b"".join(b"\x01\x02" + text for text in properties) + b"\x01", np.uint8)
    places = np.zeros(len(sizes), PLACE)
    places["properties_start"], places["properties_size"] = np.cumsum(sizes + 2) - sizes, sizes
    return LocatedRecords(log, places["topic_start"], np.zeros(len(sizes), HEADER), places)


def texts(column: ByteColumn | CodedColumn) -> list[bytes]:
    return [column[row] for row in range(len(column))]


def contents_of(properties: ShapedProperties | PropertyItems) -> dict[str, Any]:
    values = {name.decode(): properties.value(name) for name in NAMES}
    gathered = {name.decode(): properties.value_bytes(name) for name in NAMES}
    assert gathered == {name: sum(map(len, texts(column))) for name, column in values.items()}
    for name in NAMES:
        assert texts(properties.few_values(name)) == texts(properties.value(name))
    assert properties.values_bytes == sum(map(len, texts(properties.values()))) <= properties.nbytes
    return {
        "row_starts": properties.row_starts.tolist(),
        "names": texts(properties.names()),
        "values": texts(properties.values()),
        **{name: texts(column) for name, column in values.items()},
    }


def shaped(properties: Sequence[bytes]) -> dict[str, Any] | None:
    """What shapes tell, None when nothing; never anything else than `PropertyItems`."""
    records = records_of(properties)
    found = ShapedProperties.of(records)
    if found is None:
        return None
    assert contents_of(found) == contents_of(PropertyItems.of(records))
    return contents_of(found)


def one_by_one(items: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"\x02".join(name + b"\x01" + value for name, value in items)


names = st.sampled_from([*NAMES, b""])
values = st.sampled_from([b"", b"v", b"w", b"xyz", b"XYZ", "значение".encode(), b"\xff", b"a\x01b", b"a\x02b"])
usual = st.lists(st.tuples(names, values), max_size=5).map(one_by_one)
odd = st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"KEYS", b"KEYS\x01k\x02", b"\xd0", b"\xb8"]), max_size=8)
rows = st.lists(usual | odd.map(b"".join), max_size=4).flatmap(
    lambda kinds: st.lists(st.sampled_from(kinds or [b""]), max_size=12)
)


@given(rows)
@example([b"\xb8\x01v", b"a\x01v\xd0"])
@example([b"a\x01\xd0", b"\xb8\x01v"])
@example([b"a\x01xx\x02b", b"a\x01xxxxx", b"a\x01x\x02xx"])
def test_shapes_give_what_splitting_at_separators_gives(properties: list[bytes]) -> None:
    shaped(properties)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.booleans()), min_size=1, max_size=800))
def test_values_of_different_lengths_are_distinguished(wanted: list[tuple[int, int, bool]]) -> None:
    properties = [
        one_by_one([(b"KEYS", b"kkk"[:key]), (b"TAGS" if tagged else b"LAGS", b"ttt"[:tag]), (b"a", b"%04d" % row)])
        for row, (key, tag, tagged) in enumerate(wanted)
    ]
    shaped(properties)


@pytest.mark.parametrize(
    "properties",
    [
        [b"KEYS\x01k%d\x02TAGS\x01paid" % number for number in range(10)],
        [b"KEYS\x01k%d\x02TAGS\x01%s" % (number, (b"paid", b"new")[number % 2]) for number in range(10)],
        [b"a\x011\x02a\x012", b"a\x013\x02a\x014"],
        [b"a\x011\x02b\x012\x02a\x013"],
        [b"a\x011\x02a\x01", b"a\x013\x02a\x01"],
        [b"a\x01v\x02", b"a\x01w\x02"],
        ["имя\x01да".encode(), "имя\x01не".encode()],
        [b"a\x01v", b"", b"a\x01w"],
        [b"", b""],
        [b"no separator"],
        [],
    ],
)
def test_few_shapes_are_known(properties: list[bytes]) -> None:
    assert shaped(properties) is not None


@pytest.mark.parametrize(
    "properties",
    [
        [b"a\x01v\x01w"],
        [b"a\x01\xff"],
        [b"a\x01v\xd0", b"\xb8\x01vw"],
        [b"a\x01" + b"v" * 1_100],
        [b"a\x01" + b"v" * size for size in range(1, 8)],
        [b"a\x01vvvvvvvvv", b"ab\x01vvvvvvvv", b"abc\x01vvvvvvv", b"abcd\x01vvvvvv", b"abcde\x01vvvvv"],
    ],
)
def test_other_properties_are_left_to_be_looked_at_one_by_one(properties: list[bytes]) -> None:
    assert shaped(properties) is None


def test_odd_ones_among_many_of_one_shape_are_shapes_of_their_own() -> None:
    usual = [b"KEYS\x01k%04d\x02TAGS\x01paid" % number for number in range(1_000)]
    odd = [b"a\x01" + b"v" * size for size in range(1, 9)]
    assert shaped(odd + usual) is not None
    assert shaped(odd + usual[:500]) is None


def test_values_of_any_length_are_soon_left_to_be_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def counted(rows: Array, places: Iterable[tuple[int, int]]) -> Array:
        looks.append(len(rows))
        return alike_rows(rows, places)

    monkeypatch.setattr(property_columns, "alike_rows", counted)
    lengths = np.random.default_rng(1).integers(1, 10, (5_000, 4)).tolist()
    properties = [one_by_one([(b"a%d" % at, b"v" * size) for at, size in enumerate(row)]) for row in lengths]
    assert shaped(properties) is None
    assert len(looks) < 10


def test_a_separator_in_a_value_is_not_hidden_by_a_zero_in_the_first() -> None:
    assert shaped([b"a\x01v\0w\x02b\x01v", b"a\x01v\x02w\x02b\x01v"]) is not None
    assert shaped([b"a\x01vvw\x02b\x01v", b"a\x01v\0w\x02b\x01v"]) is not None


@pytest.mark.parametrize("rows", [511, 512, 513, 1_024, 1_500])
def test_the_last_of_many_may_be_the_odd_one(rows: int) -> None:
    usual = [b"KEYS\x01k%04d\x02TAGS\x01paid" % number for number in range(rows)]
    assert shaped([*usual[:-1], usual[-1].replace(b"TAGS", b"LAGS")]) is not None
    assert shaped([*usual[:-1], usual[-1].replace(b"paid", b"pa\x02d")]) is not None


@pytest.mark.parametrize(
    ("tags", "is_coded"),
    [
        ([b"paid", b"new"], True),
        ([b"paid", b"sent", b"new", None], True),
        ([b"paid"], True),
        ([None], True),
        ([b"%04d" % number for number in range(1_000)], False),
    ],
)
def test_few_values_are_coded_whatever_their_sizes(tags: list[bytes | None], is_coded: bool) -> None:
    wanted = [tags[row % len(tags)] for row in range(1_000)]
    properties = ShapedProperties.of(
        records_of([b"a\x01v" if tag is None else b"a\x01v\x02TAGS\x01" + tag for tag in wanted])
    )
    assert properties is not None
    few = properties.few_values(b"TAGS")
    assert isinstance(few, CodedColumn) == is_coded
    assert texts(few) == [tag or b"" for tag in wanted]


@pytest.mark.parametrize("kind", [ShapedProperties, PropertyItems])
def test_few_values_are_coded_though_a_rare_shape_has_two_of_them(
    kind: type[ShapedProperties] | type[PropertyItems],
) -> None:
    properties = kind.of(
        records_of([b"KEYS\x01k%d\x02TAGS\x01" % row + (b"paid", b"sent")[row % 2] for row in range(1_000)])
    )
    assert properties is not None
    tags, names = properties.few_values(b"TAGS"), properties.names()
    assert isinstance(tags, CodedColumn)
    assert texts(tags) == [b"paid", b"sent"] * 500
    assert isinstance(names, CodedColumn)
    assert texts(names) == [b"KEYS", b"TAGS"] * 1_000


def test_a_separator_in_a_value_is_not_hidden_by_one_that_another_row_lacks() -> None:
    assert shaped([b"a\x01vvvv\x02b\x01w", b"a\x01vvvv_b_w", b"a\x01v\x02\x01v\x02b\x01w"]) is not None


SHAPE_NAMES = [b"KEYS", b"TAGS", b"K"]
SHAPE = b"KEYS\x01k-100\x02TAGS\x01paid"


def found_in(rows: list[bytes]) -> list[tuple[int, int]] | None:
    """What is found when the rows stand one behind the other, a byte before each."""
    sizes = np.array([len(row) for row in rows], np.int64)
    starts = np.cumsum(sizes + 1) - sizes
    return alike_values(np.frombuffer(b"".join(b"\2" + row for row in rows), np.uint8), starts, sizes, SHAPE_NAMES)


def test_alike_records_have_values_at_the_positions_of_the_first() -> None:
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
def test_one_record_of_another_shape_makes_records_not_alike(other: bytes) -> None:
    assert found_in([SHAPE, other, SHAPE]) is None
    assert found_in([other, SHAPE, SHAPE]) is None


def test_the_last_of_equal_names_wins_unless_it_is_empty() -> None:
    assert found_in([b"K\x011\x02K\x012\x02K\x01"] * 2) == [(0, 0), (0, 0), (6, 1)]


def test_no_records_and_values_with_a_separator_are_not_alike() -> None:
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
def test_alike_values_are_what_each_record_says(
    changed: list[list[tuple[int, int]]], common: list[tuple[int, int]]
) -> None:
    rows = []
    for own in changed:
        row = bytearray(SHAPE)
        for position, byte in common + own:
            row[position] = byte
        rows.append(bytes(row))
    found = found_in(rows)
    for name, (start, size) in zip(SHAPE_NAMES, found or [], strict=found is not None):
        assert [row[start : start + size] for row in rows] == [find_property(row, name) or b"" for row in rows]

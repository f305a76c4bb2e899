"""Property columns: they tell what each record alone tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.record.byte_columns import ByteColumn, CodedColumn, SliceColumn
from engine.record.columns import find_properties
from engine.record.parsed_headers import HEADER, PARTS, ParsedHeaders
from engine.record.properties import decode_properties, find_property
from engine.record.property_columns import Properties, words

Array = np.ndarray[Any, Any]

NAMES = [b"KEYS", b"TAGS", b"a", b"ab", "имя".encode()]


def records_of(properties: Sequence[bytes]) -> ParsedHeaders:
    """Records of which only the properties are known."""
    sizes = np.array([len(text) for text in properties], np.int64)
    log = np.frombuffer(b"".join(b"\x01\x02" + text for text in properties) + b"\x01", np.uint8)
    parts = np.zeros(len(sizes), PARTS)
    parts["properties_start"], parts["properties_size"] = np.cumsum(sizes + 2) - sizes, sizes
    return ParsedHeaders(log, parts["topic_start"], np.zeros(len(sizes), HEADER), parts)


def one_by_one(items: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"\x02".join(name + b"\x01" + value for name, value in items)


names = st.sampled_from([*NAMES, b""])
values = st.sampled_from([b"", b"v", b"w", b"xyz", b"XYZ", "значение".encode(), b"\xff", b"a\x01b", b"a\x02b"])
usual = st.lists(st.tuples(names, values), max_size=5).map(one_by_one)
odd = st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"KEYS", b"KEYS\x01k\x02", b"\xd0", b"\xb8"]), max_size=8)
rows = st.lists(usual | odd.map(b"".join), max_size=4).flatmap(
    lambda kinds: st.lists(st.sampled_from(kinds or [b""]), max_size=12)
)


def texts(column: ByteColumn | CodedColumn | SliceColumn) -> list[bytes]:
    return [column[row] for row in range(len(column))]


def check(raw: Sequence[bytes]) -> Properties:
    """Compare with what each record says alone."""
    found = Properties.of(records_of(raw))
    wanted = [decode_last(text) for text in raw]
    assert found.row_starts.tolist() == np.cumsum([0, *map(len, wanted)]).tolist()
    assert texts(found.names) == [name.encode() for own in wanted for name in own]
    assert texts(found.values) == [value.encode() for own in wanted for value in own.values()]
    for name in [*NAMES, b"absent"]:
        assert texts(found.value(name)) == [own.get(name.decode(), "").encode() for own in wanted]
    assert found.nbytes >= sum(map(len, texts(found.values)))
    return found


def decode_last(raw: bytes) -> dict[str, str]:
    """`decode_properties`, each name where its last value stands."""
    found: dict[str, str] = {}
    for item in raw.decode(errors="replace").split("\x02"):
        for name, value in decode_properties(item.encode()).items():
            found.pop(name, None)
            found[name] = value
    assert found == decode_properties(raw)
    return found


@given(rows)
@example([b"\xb8\x01v", b"a\x01v\xd0"])
@example([b"a\x01\xd0", b"\xb8\x01v"])
@example([b"a\x01xx\x02b", b"a\x01xxxxx", b"a\x01x\x02xx"])
def test_properties_are_what_each_record_says(properties: list[bytes]) -> None:
    check(properties)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.booleans()), min_size=1, max_size=800))
def test_values_of_different_lengths_are_distinguished(wanted: list[tuple[int, int, bool]]) -> None:
    check(
        [
            one_by_one([(b"KEYS", b"kkk"[:key]), (b"TAGS" if tagged else b"LAGS", b"ttt"[:tag]), (b"a", b"%04d" % row)])
            for row, (key, tag, tagged) in enumerate(wanted)
        ]
    )


@pytest.mark.parametrize(
    "properties",
    [
        [b"KEYS\x01k%d\x02TAGS\x01paid" % number for number in range(10)],
        [b"a\x011\x02a\x012", b"a\x013\x02a\x014"],
        [b"a\x011\x02b\x012\x02a\x013"],
        [b"a\x011\x02a\x01", b"a\x013\x02a\x01"],
        [b"a\x01v\x02", b"a\x01w\x02"],
        ["имя\x01да".encode(), "имя\x01не".encode()],
        [b"a\x01v", b"", b"a\x01w"],
        [b"", b""],
        [b"no separator"],
        [],
        [b"a\x01v\x01w"],
        [b"a\x01\xff"],
        [b"a\x01v\xd0", b"\xb8\x01vw"],
        [b"a\x01" + b"v" * 1_100],
        [b"a\x01v\0w\x02b\x01v", b"a\x01v\x02w\x02b\x01v"],
        [b"a\x01vvvv\x02b\x01w", b"a\x01vvvv_b_w", b"a\x01v\x02\x01v\x02b\x01w"],
        [b"%d\x01v\x02a\x01w\x02%d\x01x" % (number, number) for number in range(5_000)],
        [b"\x02".join(b"%d\x01%d" % (number % 3_000, number) for number in range(4_000))],
    ],
)
def test_odd_properties_are_what_each_record_says(properties: list[bytes]) -> None:
    check(properties)


@pytest.mark.parametrize("tags", [[b"paid", b"new"], [b"paid", b"sent", b"new", None], [b"paid"], [None]])
def test_few_values_are_coded_whatever_their_sizes(tags: list[bytes | None]) -> None:
    wanted = [tags[row % len(tags)] for row in range(1_000)]
    found = check([b"a\x01v" if tag is None else b"a\x01v\x02TAGS\x01" + tag for tag in wanted])
    few = found.value(b"TAGS").coded()
    assert few is not None
    assert texts(few) == [tag or b"" for tag in wanted]


@given(
    st.lists(st.lists(st.sampled_from([b"a", b"bc", b" ", b"  ", "é".encode()]), max_size=6).map(b"".join), max_size=9)
)
def test_words_are_parted_by_spaces(wanted: list[bytes]) -> None:
    starts, found = words(ByteColumn.of(wanted).slices)
    split = [[word for word in text.split(b" ") if word] for text in wanted]
    assert starts.tolist() == np.cumsum([0, *map(len, split)]).tolist()
    assert texts(found) == [word for own in split for word in own]


changes = st.lists(st.tuples(st.integers(0, 18), st.sampled_from(b"\x01\x02KTAGSx")), max_size=3)
SHAPE = b"KEYS\x01k-100\x02TAGS\x01paid"


@given(st.lists(changes, min_size=1, max_size=6), changes)
def test_properties_of_nearly_one_shape_are_told_apart(
    changed: list[list[tuple[int, int]]], common: list[tuple[int, int]]
) -> None:
    raw = []
    for own in changed:
        row = bytearray(SHAPE)
        for position, byte in common + own:
            row[position] = byte
        raw.append(bytes(row))
    check(raw)
    records = records_of(raw)
    for name, found in zip(NAMES, find_properties(records, NAMES), strict=True):
        assert texts(SliceColumn(records.log, *found)) == [find_property(row, name) or b"" for row in raw]

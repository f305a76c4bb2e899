"""Names: what they say, and how they are spelled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsstore.tree.listing import offset_names
from fsstore.tree.names import (
    NAME_MAX_BYTES,
    AppendOptions,
    BodyFormat,
    Frame,
    can_be_name,
    decode_key,
    encode_key,
    offset_name,
    parse_append,
    parse_match,
    parse_queue,
    parse_time_ms,
)

VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\x01\x02 "), min_size=1, max_size=30)


@given(st.text(min_size=1))
def test_a_listed_key_is_a_possible_name_that_decodes_to_the_key(key: str) -> None:
    name = encode_key(key)
    if name is None:
        assert len(quote(key, safe="")) > NAME_MAX_BYTES
        return
    assert can_be_name(name)
    assert not name.endswith(b"@all")
    assert not set(name) & set(b"/@:\n\x00\x1b")
    assert decode_key(name) == key


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("ORDER-17", b"ORDER-17"),
        ("a@b.com", b"a%40b.com"),
        ("a/b:c%", b"a%2Fb%3Ac%25"),
        (".", b"%2E"),
        ("..", b"%2E%2E"),
        ("...", b"..."),
        ("ключ", "ключ".encode()),
        ("a\nb\x7f\x85", b"a%0Ab%7F%C2%85"),
    ],
)
def test_keys_are_encoded_only_where_a_name_needs_it(key: str, name: bytes) -> None:
    assert encode_key(key) == name


@pytest.mark.parametrize("key", ["", "k" * 256, "é" * 128, "@" * 86])
def test_a_key_that_no_name_can_hold_is_not_listed(key: str) -> None:
    assert encode_key(key) is None


@pytest.mark.parametrize(
    ("name", "key"),
    [(b"a@b.com", "a@b.com"), (b"100%", "100%"), (b"%zz", "%zz"), (b"%40all", "@all"), (b"%ff", None), (b"\xff", None)],
)
def test_lookup_takes_raw_characters_and_refuses_what_is_no_utf8(name: bytes, key: str | None) -> None:
    assert decode_key(name) == key


@given(st.integers(0, 2**62), st.integers(0, 300))
def test_bulk_names_are_the_names_of_each_offset(start: int, count: int) -> None:
    names = offset_names(np.arange(start, start + count, dtype=np.int64))
    assert names.tolist() == [offset_name(offset) for offset in range(start, start + count)]


@pytest.mark.parametrize("start", [0, 7, 98, 9_999_990, 10**18 - 3])
def test_bulk_names_carry_over_at_powers_of_ten(start: int) -> None:
    names = offset_names(np.arange(start, start + 20, dtype=np.int64))
    assert names.tolist() == [offset_name(offset) for offset in range(start, start + 20)]


@given(VALUES, st.lists(VALUES, min_size=1, max_size=4), st.sampled_from(Frame), st.sampled_from(BodyFormat))
def test_options_in_a_name_come_back_as_they_were_encoded(
    tags: str, keys: list[str], frame: Frame, body_format: BodyFormat
) -> None:
    name = f"append@tags={quote(tags, safe='')},keys={'+'.join(quote(key, safe='') for key in keys)}"
    name += f",frame={frame.value},format={body_format.value}"
    assert parse_append(name.encode()) == AppendOptions(frame, body_format, tags, tuple(keys))


def test_a_plus_parts_keys_and_its_escape_does_not() -> None:
    options = parse_append(b"append@keys=A+B%2BC,tags=x+y")
    assert options == AppendOptions(tags="x+y", keys=("A", "B+C"))


@pytest.mark.parametrize(
    "name",
    [
        b"appendix",
        b"append@",
        b"append@tag=paid",
        b"append@tags",
        b"append@tags=",
        b"append@keys=A+",
        b"append@keys=A%20B",
        b"append@frame=page",
        b"append@format=xml",
        b"append@tags=a,tags=b",
        b"append@tags=a,",
        b"append@tags=%zz",
        b"append@tags=%FF",
        b"append@tags=%01",
        b"append@Tags=a",
    ],
)
def test_an_unknown_or_malformed_option_is_no_append(name: bytes) -> None:
    assert parse_append(name) is None


@given(st.binary(max_size=60))
def test_no_name_makes_the_parsers_fail(name: bytes) -> None:
    parse_append(name)
    parse_append(b"append@" + name)
    parse_append(b"append@keys=" + name)
    decode_key(name)
    parse_time_ms(name)
    parse_match(name)
    parse_queue(name)


@pytest.fixture
def five_and_a_half_hours_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "IST-05:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("five_and_a_half_hours_east")
@pytest.mark.parametrize(
    ("text", "utc"),
    [
        (b"2026-07-01T12:00:00Z", datetime(2026, 7, 1, 12, tzinfo=UTC)),
        (b"2026-07-01T12:00:00+02:00", datetime(2026, 7, 1, 10, tzinfo=UTC)),
        (b"2026-07-01T12:00", datetime(2026, 7, 1, 6, 30, tzinfo=UTC)),
        (b"2026-07-01%2012%3A00", datetime(2026, 7, 1, 6, 30, tzinfo=UTC)),
        (b"2026-07-01", datetime(2026, 6, 30, 18, 30, tzinfo=UTC)),
        (b"20260701T120000Z", datetime(2026, 7, 1, 12, tzinfo=UTC)),
    ],
)
def test_iso_8601_without_a_zone_is_local_time(text: bytes, utc: datetime) -> None:
    assert parse_time_ms(text) == int(utc.timestamp()) * 1000


def test_digits_are_epoch_milliseconds() -> None:
    assert parse_time_ms(b"1700000000123") == 1_700_000_000_123


def test_a_fraction_of_a_millisecond_rounds_up_to_the_first_one_at_or_after() -> None:
    assert parse_time_ms(b"1970-01-01T00:00:01.000001Z") == 1001


@pytest.mark.parametrize("text", [b"", b"yesterday", b"2026-13-01", b"0001-01-01", b"9999-12-31T23:59:59-12:00"])
def test_what_is_no_time_is_none_or_a_number(text: bytes) -> None:
    parsed = parse_time_ms(text)
    assert parsed is None or isinstance(parsed, int)


@pytest.mark.parametrize(("name", "queue"), [(b"0", 0), (b"17", 17), (b"07", None), (b"-1", None), (b"1.log", None)])
def test_a_queue_is_a_plain_decimal(name: bytes, queue: int | None) -> None:
    assert parse_queue(name) == queue


@pytest.mark.parametrize(
    ("name", "place"), [(b"0-00000000000000000012", (0, 12)), (b"3-7", (3, 7)), (b"03-7", None), (b"3-", None)]
)
def test_a_match_names_queue_and_offset(name: bytes, place: tuple[int, int] | None) -> None:
    assert parse_match(name) == place

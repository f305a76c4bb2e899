"""Long JSON read in pieces says what the parser says of the whole, however it is cut."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine import IllegalMessageError, Message, MessageTooLargeError, StoreError
from engine.record.kernel.encode import encode_properties
from engine.record.record import check_message
from fsstore.tree import json_messages
from fsstore.tree.json_messages import MOST_REST_CHARACTERS, LongString, parse_json_message, parse_long
from fsstore.tree.names import PLAIN_APPEND

FRAGMENTS = [
    *b'{ } [ ] , : " \\ \\u \\\\ \\" \\n \\x u d83d \\ud83d \\ude00 \\uD83D\\uDE00 \\u0000 \\u0001 \\u00e9'.split(),
    *b'"body": "body_base64": "keys": "tags": "properties": "b\\u006fdy": "a" "K" NaN -Infinity 1e5 true nul'.split(),
    *(b" ", b"\t\r ", b"\0", b"\x01", b"abcdefgh", b"QUJD", b"QQ==", b"\xff", b"\xc3\xa9", b"\xf0\x9f\x98\x80"),
    *(b"\xed\xa0\xbd", b"\xed\xb8\x80", b"\xef\xbb\xbf", b"\x80\x80\x80\x80", b"1" * 30),
]
STRINGS = st.text(st.sampled_from('abc\\"/\n\x01\x02\0 é€\U0001f600\ud83d\ude00'), max_size=16)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["body", "body", "body_base64", "keys", "tags", "properties", "other"])
FIELDS = st.tuples(
    NAMES, STRINGS | st.lists(STRINGS, max_size=3) | st.dictionaries(STRINGS, STRINGS, max_size=3) | VALUES
)
"""Of a record; one may be there twice."""
ENCODINGS = ["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"]


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """JSON, almost JSON, and what is none."""
    if draw(st.booleans()):
        return b"".join(draw(st.lists(st.sampled_from(FRAGMENTS), max_size=20)))
    escaped = draw(st.booleans())
    fields = [
        f"{json.dumps(name, ensure_ascii=escaped)}:{json.dumps(value, ensure_ascii=escaped)}"
        for name, value in draw(st.lists(FIELDS, max_size=4))
    ]
    text = "{" + draw(st.sampled_from([",", " , ", ",\n"])).join(fields) + "}"
    data = text.encode(draw(st.sampled_from(ENCODINGS)), "surrogatepass")
    if draw(st.booleans()):
        place = draw(st.integers(0, len(data)))
        data = data[:place] + draw(st.sampled_from(FRAGMENTS)) + data[place + draw(st.integers(0, 2)) :]
    return data


@contextmanager
def small_pieces(piece: int, short: int, kept: int) -> Iterator[None]:
    """Have a few bytes be long."""
    with (
        patch.multiple(json_messages, PIECE_BYTES=piece, _SHORT=short, MOST_KEPT_BYTES=kept),
        patch.multiple(json_messages, _AT_ONCE_BYTES=0, _BASE64_AT_ONCE_BYTES=8),
    ):
        yield


def restored(value: Any, long: dict[str, LongString]) -> Any:
    """What was cut out put back."""
    if isinstance(value, dict):
        return {restored(name, long): restored(inner, long) for name, inner in value.items()}
    if isinstance(value, list):
        return [restored(inner, long) for inner in value]
    return long[value].text() if isinstance(value, str) and value in long else value


PIECES = st.tuples(st.integers(4, 12), st.integers(0, 6), st.integers(4, 12))


@settings(max_examples=400)
@given(texts(), PIECES)
@example(b'"ab\\ud83d\\ude00"', (8, 0, 20))
@example(b'"abc\\\\ud83d\\ude00"', (11, 0, 20))
@example(b'"\xed\xa0\xbd\\ude00"', (4, 0, 20))
@example(b'"abcd\\u12"4"', (4, 0, 20))
def test_pieces_say_what_the_whole_says(text: bytes, pieces: tuple[int, int, int]) -> None:
    try:
        expected = repr(json.loads(text))
    except (ValueError, RecursionError):
        expected = None
    with small_pieces(*pieces):
        try:
            value, long = parse_long(text)
        except (ValueError, RecursionError):
            assert expected is None
        else:
            assert repr(restored(value, dict(long))) == expected


def outcome(text: bytes, most_properties: int) -> Message | type[StoreError]:
    """The message that a line is, or what it is refused with where properties may have so many bytes."""
    try:
        message = parse_json_message("orders", text, PLAIN_APPEND)
        check_message(message, 64)
    except StoreError as error:
        return type(error)
    properties = encode_properties(message.keys, message.tags, message.properties)
    return message if len(properties) <= most_properties else MessageTooLargeError


@settings(max_examples=400)
@given(texts(), PIECES)
@example(b'{"body_base64": "QUJDQUJDQQ==QUJD"}', (4, 0, 4))
def test_a_long_line_is_the_message_that_a_short_one_is(text: bytes, pieces: tuple[int, int, int]) -> None:
    piece, short, kept = pieces
    kept = 32_767 if kept % 2 else kept + 8  # no name of a field is cut out
    with patch.object(json_messages, "_AT_ONCE_BYTES", 1 << 30):
        expected = outcome(text, kept)
    with small_pieces(piece, short, kept):
        found = outcome(text, kept)
    assert found == expected


@pytest.mark.parametrize("escape", [b"\\u0041", b"A"])
def test_a_line_of_any_length_is_its_body(escape: bytes) -> None:
    body = escape * 100_000
    padding = b" " * 2_000_000
    message = parse_json_message("orders", b'{"body":' + padding + b'"' + body + b'", "keys": "K"}', PLAIN_APPEND)
    assert (message.body, message.keys) == (b"A" * 100_000, ["K"])
    coded = base64.b64encode(b"A" * 500_000)
    assert parse_json_message("orders", b'{"body_base64": "' + coded + b'"}', PLAIN_APPEND).body == b"A" * 500_000


@pytest.mark.parametrize("filling", [b"[],", b'"",', b"1,", b'"' + b"A" * 4000 + b'",'])
def test_what_is_long_without_its_long_strings_is_no_message(filling: bytes) -> None:
    text = b'{"body": "b", "keys": [' + filling * (2 * MOST_REST_CHARACTERS // len(filling)) + b'"K"]}'
    with pytest.raises(IllegalMessageError, match="than a message has"):
        parse_json_message("orders", text, PLAIN_APPEND)
    with pytest.raises(IllegalMessageError, match="not JSON"):
        parse_json_message("orders", text[:-30], PLAIN_APPEND)


def test_the_largest_properties_are_read() -> None:
    keys = b'"\\u0041" , ' * 16_380
    body = b"\\u0001" * 30_000
    message = parse_json_message("orders", b'{"body": "' + body + b'", "keys": [' + keys + b'"K"]}', PLAIN_APPEND)
    check_message(message, 1 << 20)
    assert len(message.keys) == 16_381
    assert message.body == b"\x01" * 30_000

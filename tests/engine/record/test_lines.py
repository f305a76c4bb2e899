"""Lines, encoded at once, are the records they would be one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import IllegalMessageError, MessageTooLargeError
from engine.record.hosts import Host
from engine.record.lines import Lines, encode_lines, line_bodies
from engine.record.message import Message
from engine.record.record import RecordEncoder
from tests.engine.batches import QUEUE, check_facts, one_by_one, place
from tests.engine.records import MAX_BODY_BYTES, encoder, keys, names, texts

bodies = st.lists(st.binary(max_size=300).map(lambda body: body.replace(b"\n", b"")), max_size=20)


@given(bodies, st.lists(keys, max_size=2), texts, st.dictionaries(names, texts, max_size=2), st.integers(0, 1 << 40))
def test_lines_are_the_records_of_their_bodies(
    bodies: list[bytes], keys: list[str], tags: str, properties: dict[str, str], physical_offset: int
) -> None:
    text = b"".join(body + b"\n" for body in bodies)
    properties.pop("UNIQ_KEY", None)
    wanted = [Message("orders", body, keys, tags, properties) for body in bodies if body]
    for lines in (text, [body + b"\n" for body in bodies]):
        batch = encode_lines(encoder, "orders", lines, 77, keys=keys, tags=tags, properties=properties)
        place(batch, 5, physical_offset, 99)
        assert bytes(batch.buffer) == one_by_one(wanted, 5, physical_offset, 99)
        check_facts(batch, wanted)
        assert line_bodies(lines) == [message.body for message in wanted]


@pytest.mark.parametrize("text", [b"", b"\n", b"\n\n\n"])
def test_text_without_lines_is_an_empty_batch(text: bytes) -> None:
    batch = encode_lines(encoder, "orders", text, 0)
    place(batch, 0, 0, 0)
    assert (len(batch), len(batch.buffer)) == (0, 0)


def test_lines_are_any_buffer_and_keep_their_carriage_returns() -> None:
    batch = encode_lines(encoder, "orders", memoryview(bytearray(b"\n\none\r\n\ntwo\n")), 77)
    place(batch, 0, 0, 0)
    assert bytes(batch.buffer) == one_by_one([Message("orders", b"one\r"), Message("orders", b"two")], 0, 0, 0)


def test_lines_carry_the_encoders_ipv6_host() -> None:
    own = RecordEncoder(Host.parse("[2001:db8::1]:10911"), MAX_BODY_BYTES)
    batch = encode_lines(own, "orders", b"one\nanother\n", 77)
    place(batch, 0, 0, 0)
    alone = own.encode(Message("orders", b"one"), QUEUE, 77)
    alone.place(0, 0, 0)
    assert batch.buffer[: alone.size] == alone.buffer


@pytest.mark.parametrize(
    "lines", [b"one\ntwo", b"\ntwo", [b"one\n", b"two"], [b"one", b"two\n"], [b"one\n", b""], [b"x", b"one\n"], [b""]]
)
def test_a_line_without_a_newline_is_refused(lines: Lines) -> None:
    with pytest.raises(IllegalMessageError, match="newline"):
        encode_lines(encoder, "orders", lines, 0)
    with pytest.raises(IllegalMessageError, match="newline"):
        line_bodies(lines)


def test_limits_hold_for_each_line() -> None:
    fits = b"x" * MAX_BODY_BYTES
    assert len(encode_lines(encoder, "orders", fits + b"\n", 0)) == 1
    with pytest.raises(MessageTooLargeError):
        encode_lines(encoder, "orders", b"one\n" + fits + b"x\n", 0)
    with pytest.raises(IllegalMessageError):
        encode_lines(encoder, "no/topic", b"one\n", 0)

"""Batches: lines and messages, encoded at once, are the records they would be one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.errors import IllegalMessageError, MessageTooLargeError
from engine.hosts import Host
from engine.keyhash import index_hash, tags_hash
from engine.lines import EncodedBatch, encode_batch, encode_lines
from engine.message import Message
from engine.record import RecordEncoder
from tests.engine.records import MAX_BODY_BYTES, encoder, keys, messages, names, texts

bodies = st.lists(st.binary(max_size=300).map(lambda body: body.replace(b"\n", b"")), max_size=20)


def one_by_one(messages: list[Message], queue_offset: int, physical_offset: int, store_time_ms: int) -> bytes:
    """The records encoded each on its own."""
    log = b""
    for number, message in enumerate(messages):
        record = encoder.encode(message, 3, now_ms=77)
        record.place(queue_offset + number, physical_offset + len(log), store_time_ms)
        log += bytes(record.buffer)
    return log


def check_facts(batch: EncodedBatch, messages: list[Message]) -> None:
    """What dispatch wants to know of a batch."""
    assert len(batch) == len(messages)
    assert batch.starts.tolist() == (np.cumsum(batch.sizes) - batch.sizes).tolist()
    assert np.broadcast_to(batch.tags_codes, len(batch)).tolist() == [tags_hash(message.tags) for message in messages]
    wanted = [(row, index_hash(m.topic, key)) for row, m in enumerate(messages) for key in m.keys]
    assert list(zip(batch.key_rows.tolist(), batch.key_hashes.tolist(), strict=True)) == wanted


@given(bodies, st.lists(keys, max_size=2), texts, st.dictionaries(names, texts, max_size=2), st.integers(0, 1 << 40))
def test_lines_are_the_records_of_their_bodies(
    bodies: list[bytes], keys: list[str], tags: str, properties: dict[str, str], physical_offset: int
) -> None:
    text = b"".join(body + b"\n" for body in bodies)
    properties.pop("UNIQ_KEY", None)
    batch = encode_lines(encoder, "orders", text, 3, 77, keys=keys, tags=tags, properties=properties)
    wanted = [Message("orders", body, keys, tags, properties) for body in bodies if body]
    batch.place(5, physical_offset, 99)
    assert bytes(batch.buffer) == one_by_one(wanted, 5, physical_offset, 99)
    check_facts(batch, wanted)


@given(st.lists(messages(st.just("orders")), max_size=6), st.integers(0, 1 << 40))
def test_a_batch_is_the_records_of_its_messages(stored: list[Message], physical_offset: int) -> None:
    batch = encode_batch(encoder, stored, 3, 77)
    batch.place(5, 1, 98)
    batch.place(6, physical_offset, 99)  # the try that counts
    assert bytes(batch.buffer) == one_by_one(stored, 6, physical_offset, 99)
    check_facts(batch, stored)


@given(st.lists(messages(st.just("orders")), min_size=1, max_size=9), st.integers(900, 6000))
def test_the_parts_of_a_batch_are_the_batch(stored: list[Message], limit: int) -> None:
    batch = encode_batch(encoder, stored, 3, 77)
    if batch.sizes.max() > limit:
        with pytest.raises(MessageTooLargeError):
            list(batch.cut(limit))
        return
    parts = list(batch.cut(limit))
    first, physical_offset = 0, 1000
    for part, after in zip(parts, [*parts[1:], None], strict=True):
        check_facts(part, stored[first : first + len(part)])
        part.place(first, physical_offset, 99)
        first += len(part)
        physical_offset += len(part.buffer)
        assert len(part.buffer) <= limit
        assert after is None or len(part.buffer) + after.sizes[0] > limit
    assert b"".join(part.buffer for part in parts) == one_by_one(stored, 0, 1000, 99)


def test_a_part_may_be_as_large_as_the_limit() -> None:
    batch = encode_lines(encoder, "orders", b"one\ntwo\nten\nsix\n", 3, 77)
    assert [len(part) for part in batch.cut(2 * int(batch.sizes[0]))] == [2, 2]
    assert [len(part) for part in batch.cut(2 * int(batch.sizes[0]) - 1)] == [1, 1, 1, 1]


@pytest.mark.parametrize("text", [b"", b"\n", b"\n\n\n"])
def test_text_without_lines_is_an_empty_batch(text: bytes) -> None:
    batch = encode_lines(encoder, "orders", text, 0, 0)
    batch.place(0, 0, 0)
    assert (len(batch), len(batch.buffer)) == (0, 0)


def test_lines_are_any_buffer_and_keep_their_carriage_returns() -> None:
    batch = encode_lines(encoder, "orders", memoryview(bytearray(b"\n\none\r\n\ntwo\n")), 3, 77)
    batch.place(0, 0, 0)
    assert bytes(batch.buffer) == one_by_one([Message("orders", b"one\r"), Message("orders", b"two")], 0, 0, 0)


def test_lines_carry_the_encoders_ipv6_host() -> None:
    own = RecordEncoder(Host.parse("[2001:db8::1]:10911"), MAX_BODY_BYTES)
    batch = encode_lines(own, "orders", b"one\nanother\n", 3, 77)
    batch.place(0, 0, 0)
    alone = own.encode(Message("orders", b"one"), 3, 77)
    alone.place(0, 0, 0)
    assert batch.buffer[: alone.size] == alone.buffer


def test_a_line_without_a_newline_is_refused() -> None:
    with pytest.raises(IllegalMessageError, match="newline"):
        encode_lines(encoder, "orders", b"one\ntwo", 0, 0)


def test_limits_hold_for_each_line_and_message() -> None:
    fits = b"x" * MAX_BODY_BYTES
    assert len(encode_lines(encoder, "orders", fits + b"\n", 0, 0)) == 1
    with pytest.raises(MessageTooLargeError):
        encode_lines(encoder, "orders", b"one\n" + fits + b"x\n", 0, 0)
    with pytest.raises(MessageTooLargeError):
        encode_batch(encoder, [Message("orders", b"one"), Message("orders", fits + b"x")], 0, 0)
    with pytest.raises(IllegalMessageError):
        encode_lines(encoder, "no/topic", b"one\n", 0, 0)


def test_the_messages_of_a_batch_have_one_topic() -> None:
    message = Message("orders", b"one")
    with pytest.raises(IllegalMessageError, match="topics"):
        encode_batch(encoder, [message, replace(message, topic="other")], 0, 0)

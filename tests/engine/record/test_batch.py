"""Batches of messages or lines, encoded at once, are the records they would be one by one, however they are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import IllegalMessageError, MessageTooLargeError
from engine.record.batch import Lines, line_bodies, shares_of
from engine.record.hashes import index_hash, tags_hash
from engine.record.header import HEADERS
from engine.record.message import Host, Message
from engine.record.record import RecordEncoder
from tests.engine.batches import QUEUE, check_facts, encode_lines, key_hashes, one_by_one, place, starts, tags_codes
from tests.engine.records import MAX_BODY_BYTES, encoder, keys, messages, names, texts


@given(st.lists(messages(st.just("orders")), min_size=1, max_size=6), st.integers(0, 1 << 40))
def test_a_batch_is_the_records_of_its_messages(stored: list[Message], physical_offset: int) -> None:
    batch = encoder.encode_batch(stored, 77)
    place(batch, 5, 1, 98)
    place(batch, 6, physical_offset, 99)  # the try that counts
    assert bytes(batch.buffer) == one_by_one(stored, 6, physical_offset, 99)
    check_facts(batch, stored)


@given(
    st.lists(st.builds(Message, st.just("orders"), st.binary(max_size=99), st.lists(keys, max_size=2), texts)),
    st.lists(keys, min_size=1, max_size=2),
)
def test_messages_with_only_body_keys_and_tags_are_their_records(drawn: list[Message], key_list: list[str]) -> None:
    stored = [Message("orders", b"first", key_list), *drawn, Message("orders", bytearray(b"last"), key_list, "a b")]
    for alike in (stored, [message for message in stored if message.keys], stored[:1] * 3):
        batch = encoder.encode_batch(alike, 77)
        place(batch, 6, 1000, 99)
        assert bytes(batch.buffer) == one_by_one(alike, 6, 1000, 99)
        check_facts(batch, alike)


@pytest.mark.parametrize(
    "other",
    [
        {"flag": 1},
        {"sys_flag": 8},
        {"born_time_ms": 5},
        {"born_host": Host.parse("127.0.0.2:1")},
        {"store_host": Host.parse("[::1]:1")},
        {"reconsume_times": 1},
        {"prepared_transaction_offset": 1},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_message_may_differ_in_one_field_of_its_header(other: dict[str, Any]) -> None:
    plain, different = (
        Message("orders", b"first", ["key"], "tag"),
        Message("orders", b"second", ["key"], "tag", **other),
    )
    for stored in ([plain, different], [different, plain], [different, different]):
        batch = encoder.encode_batch(stored, 77)
        place(batch, 6, 1000, 99)
        assert bytes(batch.buffer) == one_by_one(stored, 6, 1000, 99)


def test_properties_given_by_hand_are_indexed() -> None:
    by_hand = {"KEYS": "one two", "TAGS": "paid", "UNIQ_KEY": "id"}
    stored = [Message("orders", b"first", ["key"], "tag", by_hand), Message("orders", b"second", ["key"], "tag")]
    batch = encoder.encode_batch(stored, 77)
    place(batch, 6, 1000, 99)
    assert bytes(batch.buffer) == one_by_one(stored, 6, 1000, 99)
    assert tags_codes(batch) == [tags_hash("paid"), tags_hash("tag")]
    wanted = [(0, "id"), (0, "one"), (0, "two"), (1, "key")]
    assert key_hashes(batch) == [(row, index_hash("orders", key)) for row, key in wanted]


@pytest.mark.parametrize(
    "refused",
    [
        Message("orders", b"", ["a b"]),
        Message("orders", b"", ["a", ""]),
        Message("orders", b"", ["", "a"]),
        Message("orders", b"", [""]),
        Message("orders", b"", "abc"),
        Message("orders", b"", ["a\x02b"]),
        Message("orders", b"", ["a\x01b"]),
        Message("orders", b"", ["a"], "\x02\x02KEYS\x01b"),
        Message("orders", b"", ["a"], "\x01"),
        Message("orders", b"", ["\ud800"]),
    ],
)
def test_a_batch_refuses_what_a_single_message_is_refused_for(refused: Message) -> None:
    with pytest.raises(IllegalMessageError):
        encoder.encode(refused, 0, 0)
    fine = [Message("orders", b"", ["key"], "tag"), Message("orders", b"", ["key"])]
    with pytest.raises(IllegalMessageError):
        encoder.encode_batch([fine[0], refused, fine[1]], 0)


@pytest.mark.parametrize("large", [{"keys": ["x" * 32763]}, {"tags": "x" * 32763}, {"properties": {"x": "x" * 32766}}])
def test_properties_have_a_limit(large: dict[str, Any]) -> None:
    with pytest.raises(MessageTooLargeError, match="properties"):
        encoder.encode_batch([Message("orders", b"", ["k"]), Message("orders", b"", **{"keys": ["k"], **large})], 0)


def test_limits_hold_for_each_message() -> None:
    with pytest.raises(MessageTooLargeError):
        encoder.encode_batch([Message("orders", b"one"), Message("orders", b"x" * (MAX_BODY_BYTES + 1))], 0)


def test_the_messages_of_a_batch_have_one_topic() -> None:
    with pytest.raises(IllegalMessageError, match="topics"):
        encoder.encode_batch([Message("orders", b"one"), Message("other", b"one")], 0)


@given(st.lists(messages(st.just("orders")), min_size=1, max_size=9), st.integers(900, 6000))
def test_the_parts_of_a_batch_are_the_batch(stored: list[Message], limit: int) -> None:
    batch = encoder.encode_batch(stored, 77)
    if max(batch.sizes()) > limit:
        with pytest.raises(MessageTooLargeError):
            list(batch.cut(limit))
        return
    parts = list(batch.cut(limit))
    first, physical_offset = 0, 1000
    for part, after in zip(parts, [*parts[1:], None], strict=True):
        check_facts(part, stored[first : first + len(part)])
        place(part, first, physical_offset, 99)
        first += len(part)
        physical_offset += len(part.buffer)
        assert len(part.buffer) <= limit
        assert after is None or len(part.buffer) + after.sizes()[0] > limit
    assert b"".join(part.buffer for part in parts) == one_by_one(stored, 0, 1000, 99)


def test_a_part_may_be_as_large_as_the_limit() -> None:
    batch = encode_lines(encoder, "orders", b"one\ntwo\nten\nsix\n", 77)
    assert [len(part) for part in batch.cut(2 * batch.sizes()[0])] == [2, 2]
    assert [len(part) for part in batch.cut(2 * batch.sizes()[0] - 1)] == [1, 1, 1, 1]


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True),
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
)
def test_each_queue_numbers_its_own_rows_on_through_all_parts(queue_ids: list[int], counts: list[int]) -> None:
    next_offsets = {queue_id: 100 * queue_id for queue_id in queue_ids}
    wanted = []
    for row in range(sum(counts)):
        queue_id = queue_ids[row % len(queue_ids)]
        wanted.append((queue_id, next_offsets[queue_id]))
        next_offsets[queue_id] += 1
    found, start = [], 0
    for count in counts:
        batch = encode_lines(encoder, "orders", b"line\n" * count, 77)
        shares = shares_of(queue_ids, [100 * queue_id for queue_id in queue_ids], start, start + count)
        batch.distribute(shares)
        batch.place(None, 0, 0)
        for position in starts(batch):
            fields = HEADERS[0].unpack_from(batch.buffer, position)
            found.append((fields[3], fields[5]))
        assert sum(share.size for share in shares) == count
        assert all(share.size for share in shares)
        assert not shares or shares[0].rows.start == 0
        start += count
    assert found == wanted


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

"""Batches of messages, encoded at once, are the records they would be one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import IllegalMessageError, MessageTooLargeError
from engine.record.batch import encode_batch
from engine.record.hashes import index_hash, tags_hash
from engine.record.hosts import Host
from engine.record.message import Message
from tests.engine.batches import check_facts, one_by_one, place
from tests.engine.records import MAX_BODY_BYTES, encoder, keys, messages, texts


@given(st.lists(messages(st.just("orders")), min_size=1, max_size=6), st.integers(0, 1 << 40))
def test_a_batch_is_the_records_of_its_messages(stored: list[Message], physical_offset: int) -> None:
    batch = encode_batch(encoder, stored, 77)
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
        batch = encode_batch(encoder, alike, 77)
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
def test_a_message_may_differ_in_one_field_of_its_head(other: dict[str, Any]) -> None:
    plain, different = (
        Message("orders", b"first", ["key"], "tag"),
        Message("orders", b"second", ["key"], "tag", **other),
    )
    for stored in ([plain, different], [different, plain], [different, different]):
        batch = encode_batch(encoder, stored, 77)
        place(batch, 6, 1000, 99)
        assert bytes(batch.buffer) == one_by_one(stored, 6, 1000, 99)


def test_properties_given_by_hand_are_indexed() -> None:
    by_hand = {"KEYS": "one two", "TAGS": "paid", "UNIQ_KEY": "id"}
    stored = [Message("orders", b"first", ["key"], "tag", by_hand), Message("orders", b"second", ["key"], "tag")]
    batch = encode_batch(encoder, stored, 77)
    place(batch, 6, 1000, 99)
    assert bytes(batch.buffer) == one_by_one(stored, 6, 1000, 99)
    assert np.broadcast_to(batch.tags_codes, 2).tolist() == [tags_hash("paid"), tags_hash("tag")]
    wanted = [(0, "id"), (0, "one"), (0, "two"), (1, "key")]
    found = zip(batch.key_rows.tolist(), batch.key_hashes.tolist(), strict=True)
    assert list(found) == [(row, index_hash("orders", key)) for row, key in wanted]


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
        encode_batch(encoder, [fine[0], refused, fine[1]], 0)


@pytest.mark.parametrize("large", [{"keys": ["x" * 32763]}, {"tags": "x" * 32763}, {"properties": {"x": "x" * 32766}}])
def test_properties_have_a_limit(large: dict[str, Any]) -> None:
    with pytest.raises(MessageTooLargeError, match="properties"):
        encode_batch(encoder, [Message("orders", b"", ["k"]), Message("orders", b"", **{"keys": ["k"], **large})], 0)


def test_limits_hold_for_each_message() -> None:
    with pytest.raises(MessageTooLargeError):
        encode_batch(encoder, [Message("orders", b"one"), Message("orders", b"x" * (MAX_BODY_BYTES + 1))], 0)


def test_the_messages_of_a_batch_have_one_topic() -> None:
    with pytest.raises(IllegalMessageError, match="topics"):
        encode_batch(encoder, [Message("orders", b"one"), Message("other", b"one")], 0)

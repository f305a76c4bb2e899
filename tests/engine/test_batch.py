"""Batches of messages, encoded at once, are the records they would be one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import encode_batch
from engine.errors import IllegalMessageError, MessageTooLargeError
from engine.message import Message
from tests.engine.batches import check_facts, one_by_one, place
from tests.engine.records import MAX_BODY_BYTES, encoder, messages


@given(st.lists(messages(st.just("orders")), min_size=1, max_size=6), st.integers(0, 1 << 40))
def test_a_batch_is_the_records_of_its_messages(stored: list[Message], physical_offset: int) -> None:
    batch = encode_batch(encoder, stored, 77)
    place(batch, 5, 1, 98)
    place(batch, 6, physical_offset, 99)  # the try that counts
    assert bytes(batch.buffer) == one_by_one(stored, 6, physical_offset, 99)
    check_facts(batch, stored)


def test_limits_hold_for_each_message() -> None:
    with pytest.raises(MessageTooLargeError):
        encode_batch(encoder, [Message("orders", b"one"), Message("orders", b"x" * (MAX_BODY_BYTES + 1))], 0)


def test_the_messages_of_a_batch_have_one_topic() -> None:
    with pytest.raises(IllegalMessageError, match="topics"):
        encode_batch(encoder, [Message("orders", b"one"), Message("other", b"one")], 0)

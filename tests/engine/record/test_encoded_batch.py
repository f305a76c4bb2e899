"""Encoded batches: cut to what a file takes, dealt over queues."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import MessageTooLargeError
from engine.record.batch import encode_batch
from engine.record.encoded_batch import shares_of
from engine.record.lines import encode_lines
from engine.record.message import Message
from engine.record.record import HEADERS
from tests.engine.batches import check_facts, one_by_one, place
from tests.engine.records import encoder, messages


@given(st.lists(messages(st.just("orders")), min_size=1, max_size=9), st.integers(900, 6000))
def test_the_parts_of_a_batch_are_the_batch(stored: list[Message], limit: int) -> None:
    batch = encode_batch(encoder, stored, 77)
    if batch.sizes.max() > limit:
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
        assert after is None or len(part.buffer) + after.sizes[0] > limit
    assert b"".join(part.buffer for part in parts) == one_by_one(stored, 0, 1000, 99)


def test_a_part_may_be_as_large_as_the_limit() -> None:
    batch = encode_lines(encoder, "orders", b"one\ntwo\nten\nsix\n", 77)
    assert [len(part) for part in batch.cut(2 * int(batch.sizes[0]))] == [2, 2]
    assert [len(part) for part in batch.cut(2 * int(batch.sizes[0]) - 1)] == [1, 1, 1, 1]


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
        batch.place(shares, 0, 0)
        for position in batch.starts.tolist():
            fields = HEADERS[0].unpack_from(batch.buffer, position)
            found.append((fields[3], fields[5]))
        assert sum(share.size for share in shares) == count
        assert all(share.size for share in shares)
        assert not shares or shares[0].rows.start == 0
        start += count
    assert found == wanted

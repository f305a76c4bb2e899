"""What the tests of encoded batches share."""

from __future__ import annotations

import numpy as np

from engine.record.batch import EncodedBatch, Share
from engine.record.hashes import index_hash, tags_hash
from engine.record.message import Message
from tests.engine.records import encoder

QUEUE = 3


def one_by_one(messages: list[Message], queue_offset: int, physical_offset: int, store_time_ms: int) -> bytes:
    """The records encoded each on its own."""
    log = b""
    for number, message in enumerate(messages):
        record = encoder.encode(message, QUEUE, now_ms=77)
        record.place(queue_offset + number, physical_offset + len(log), store_time_ms)
        log += bytes(record.buffer)
    return log


def place(batch: EncodedBatch, queue_offset: int, physical_offset: int, store_time_ms: int) -> None:
    """Place a batch in one queue."""
    batch.place([Share(QUEUE, queue_offset, slice(0, len(batch), 1))], physical_offset, store_time_ms)


def check_facts(batch: EncodedBatch, messages: list[Message]) -> None:
    """What dispatch wants to know of a batch."""
    assert len(batch) == len(messages)
    assert batch.starts.tolist() == (np.cumsum(batch.sizes) - batch.sizes).tolist()
    assert np.broadcast_to(batch.tags_codes, len(batch)).tolist() == [tags_hash(message.tags) for message in messages]
    wanted = [(row, index_hash(m.topic, key)) for row, m in enumerate(messages) for key in m.keys]
    assert list(zip(batch.key_rows.tolist(), batch.key_hashes.tolist(), strict=True)) == wanted

"""Helpers for tests of encoded batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.derived.index_file import INDEX_ENTRY
from engine.log.entries import ENTRY
from engine.record import batch as batch_module
from engine.record.batch import Lines, Share
from engine.record.hashes import index_hash, tags_hash
from engine.record.header import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from engine.record.kernel.encode import EncodedBatch, Encoder
from engine.record.kernel.keys import KeyMemtable
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
    batch.distribute([Share(QUEUE, queue_offset, slice(0, len(batch), 1))])
    batch.place(None, physical_offset, store_time_ms)


def encode_lines(
    encoder: Encoder,
    topic: str,
    lines: Lines,
    now_ms: int,
    *,
    keys: Sequence[str] = (),
    tags: str = "",
    properties: Mapping[str, str] | None = None,
) -> EncodedBatch:
    """Lines as one batch."""
    sample = Message(topic, b"", keys, tags, properties or {})
    batches = batch_module.encode_lines(encoder, sample, lines, now_ms)
    return batches[0] if batches else encoder.encode_lines(encoder.encode(sample, 0, 0), b"", 0, 1)[0]


def _entries(batch: EncodedBatch) -> np.ndarray[Any, Any]:
    return np.frombuffer(batch.entries(slice(0, len(batch)), 0), ENTRY)


def starts(batch: EncodedBatch) -> list[int]:
    """Where each record begins."""
    return [int(place) for place in _entries(batch)["physical_offset"]]


def tags_codes(batch: EncodedBatch) -> list[int]:
    """Of each record."""
    return [int(code) for code in _entries(batch)["tags_code"]]


def key_hashes(batch: EncodedBatch) -> list[tuple[int, int]]:
    """The row and index hash of each key, as an index file gets them."""
    table = KeyMemtable()
    table.add(batch, 0, 0)
    if not len(table):
        return []
    entries = np.frombuffer(table.chained(len(table), bytes(44), 1, 1, 0)[0], INDEX_ENTRY)
    rows = {start: row for row, start in enumerate(starts(batch))}
    return [(rows[int(entry["physical_offset"])], int(entry["key_hash"])) for entry in entries]


def check_facts(batch: EncodedBatch, messages: list[Message]) -> None:
    """The fields of a batch that dispatch uses."""
    assert len(batch) == len(messages)
    assert starts(batch) == [sum(batch.sizes()[:row]) for row in range(len(batch))]
    assert tags_codes(batch) == [tags_hash(message.tags) for message in messages]
    is_kept = [message.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK for message in messages]
    wanted = [(row, index_hash(m.topic, key)) for row, m in enumerate(messages) for key in m.keys if is_kept[row]]
    assert key_hashes(batch) == wanted

"""Helpers for tests of the codec: messages of every kind, and parts of a log to read them from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from engine.record.kernel.encode import EncodedBatch
from engine.record.message import Host, Message
from engine.record.record import RecordEncoder

Array = np.ndarray[Any, Any]

STORE_HOST = Host.parse("10.0.0.5:10911")
MAX_BODY_BYTES = 4096
BASE = 1 << 30  # a physical offset that no position is mistaken for

encoder = RecordEncoder(STORE_HOST, MAX_BODY_BYTES)

hosts = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.integers(0, 65535))
texts = st.text(st.characters(exclude_characters="\0\x01\x02", exclude_categories=["Cs"]), max_size=20)
keys = st.text(st.characters(exclude_characters="\0\x01\x02 ", exclude_categories=["Cs"]), min_size=1, max_size=20)
names = texts.filter(lambda name: name not in ("", "KEYS", "TAGS"))
topics = st.text("%|_-aZ09", min_size=1, max_size=127)
i32s = st.integers(-(1 << 31), (1 << 31) - 1)
times = st.integers(0, 1 << 42)


def messages(topics: st.SearchStrategy[str] = topics) -> st.SearchStrategy[Message]:
    """Messages that can be stored, with every field somewhere."""
    return st.builds(
        Message,
        topic=topics,
        body=st.binary(max_size=600),
        keys=st.lists(keys, max_size=3),
        tags=texts,
        properties=st.dictionaries(names, texts, max_size=3),
        flag=i32s,
        sys_flag=st.sampled_from([0, 2, 4, 8, 0xC]),
        born_time_ms=st.none() | times,
        born_host=st.none() | hosts,
        store_host=st.none() | hosts,
        reconsume_times=st.integers(0, 16),
        prepared_transaction_offset=times,
    )


def keyed(topic: str, keys: Sequence[str], sys_flag: int = 0) -> EncodedBatch:
    """A record with these keys and no body."""
    return encoder.encode(Message(topic, b"", keys, sys_flag=sys_flag), 0, 0)


def log_of(messages: list[Message], base: int = BASE, queue_id: int = 3) -> tuple[bytearray, list[int]]:
    """The records of `messages` as they lie in the log from `base` on, queue offsets from 0: (bytes, positions)."""
    log, positions = bytearray(), []
    for queue_offset, message in enumerate(messages):
        record = encoder.encode(message, queue_id, now_ms=1_700_000_000_000)
        record.place(queue_offset, base + len(log), 1_700_000_000_000 + queue_offset)
        positions.append(len(log))
        log += record.buffer
    return log, positions


def as_array(log: bytes | bytearray) -> Array:
    """The log as numpy sees a mapped file."""
    return np.frombuffer(log, np.uint8)

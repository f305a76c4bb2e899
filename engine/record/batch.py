"""Batches of messages, encoded into one buffer before the append lock is taken (docs/format.md, 2).

Messages of a batch mostly differ in body, keys and tags alone. Then one record is encoded as a sample, and the batch is
worked on in columns: one join makes the buffer, numpy writes the fields that differ.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from isal.isal_zlib import crc32
from msgspec.structs import replace

from engine.errors import IllegalMessageError
from engine.record.encoded_batch import HEAD, EncodedBatch, alike_heads
from engine.record.hashes import index_hashes, tags_hash
from engine.record.message import Message
from engine.record.properties import check_size, encode_labels, encode_properties
from engine.record.record import RecordEncoder, index_keys, names_magic
from engine.record.slices import items_at, put_items

Array = np.ndarray[Any, Any]
Body: TypeAlias = bytes | bytearray | memoryview


class MessageColumns(NamedTuple):
    """What mostly differs from message to message: a list of one value a message for each."""

    body: Sequence[Body]
    keys: Sequence[Sequence[str]]
    tags: Sequence[str]
    properties: Sequence[Mapping[str, str]]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "MessageColumns":
        """The columns of `messages`."""
        return cls(
            [message.body for message in messages],
            [message.keys for message in messages],
            [message.tags for message in messages],
            [message.properties for message in messages],
        )


def encode_batch(encoder: RecordEncoder, messages: Sequence[Message], now_ms: int) -> EncodedBatch:
    """The records of `messages`, at least one, all of one topic. IllegalMessageError, MessageTooLargeError."""
    if _are_alike(messages):
        alike = replace(messages[0], body=b"", keys=(), tags="", properties={})
        return _encode_columns(encoder, alike, MessageColumns.of(messages), now_ms)
    topic = messages[0].topic
    if any(message.topic != topic for message in messages):
        raise IllegalMessageError("the messages of a batch have different topics")
    return _encode_each(encoder, messages, now_ms)


def _are_alike(messages: Sequence[Message]) -> bool:
    """Whether nothing differs but body, keys, tags and properties: told at one look at each, which may miss equal
    times and hosts that are not the same objects."""
    first = messages[0]
    topic, flag, sys_flag = first.topic, first.flag, first.sys_flag
    born_time_ms, born_host, store_host = first.born_time_ms, first.born_host, first.store_host
    reconsume_times, prepared = first.reconsume_times, first.prepared_transaction_offset
    return not [
        message
        for message in messages
        if message.topic != topic
        or message.flag != flag
        or message.sys_flag != sys_flag
        or message.born_time_ms is not born_time_ms
        or message.born_host is not born_host
        or message.store_host is not store_host
        or message.reconsume_times != reconsume_times
        or message.prepared_transaction_offset != prepared
    ]


def _encode_columns(encoder: RecordEncoder, alike: Message, columns: MessageColumns, now_ms: int) -> EncodedBatch:
    """Records of messages that share all that `alike` has, and differ in `columns`."""
    sample = encoder.encode(alike, 0, now_ms)
    topic = alike.topic
    middle = encoder.encode_topic(topic) + b"\0\0"
    head = bytes(sample.buffer[: -len(middle)])
    bodies = columns.body
    if {*map(type, bodies)} != {bytes}:
        bodies = [encoder.check_body(body) for body in bodies]
    properties, tags_codes, keys, key_rows = _properties(columns)
    body_sizes, property_sizes = _sizes(bodies), _sizes(properties)
    encoder.check_body_size(int(body_sizes.max()))
    check_size(int(property_sizes.max()))
    sizes = body_sizes + property_sizes + sample.size
    starts = np.cumsum(sizes) - sizes
    buffer = _interleaved(len(head), bodies, middle, properties)
    found = names_magic(buffer, 0)
    data = np.frombuffer(buffer, np.uint8)
    put_items(data, starts + sizes - property_sizes - 2, property_sizes.astype(">u2"))
    return EncodedBatch(
        memoryview(buffer),
        starts,
        sizes,
        alike_heads(head, sizes, np.fromiter(map(crc32, bodies), np.uint32, len(bodies)), body_sizes),
        tags_codes,
        key_rows,
        index_hashes(topic, keys),
        found,
    )


def _interleaved(head_bytes: int, bodies: Sequence[Body], middle: bytes, properties: Sequence[bytes]) -> bytearray:
    """Room for a head, body, middle, properties of each record, one record after the other."""
    parts: list[Body] = [bytes(head_bytes)] * (4 * len(bodies))
    parts[1::4] = bodies
    parts[2::4] = [middle] * len(bodies)
    parts[3::4] = properties
    return bytearray().join(parts)


def _properties(columns: MessageColumns) -> tuple[Sequence[bytes], Array | int, Sequence[str], Array]:
    """Stored properties of each message; tags codes, or the one that all have; keys for the index, and the row of
    each."""
    key_lists, tags, properties = columns.keys, columns.tags, columns.properties
    if any(properties):
        encoded: Sequence[bytes] = list(map(encode_properties, key_lists, tags, properties))
        key_lists = list(map(index_keys, key_lists, properties))
        tags = [more.get("TAGS", own) for own, more in zip(tags, properties, strict=True)]
        keys = list(chain.from_iterable(key_lists))
    else:
        keys = list(chain.from_iterable(key_lists))
        encoded = encode_labels(key_lists, keys, tags)
    codes = tags_hash(tags[0]) if _alike(tags) else np.fromiter(map(tags_hash, tags), np.int64, len(tags))
    return encoded, codes, keys, _rows_of(key_lists, len(keys))


def _encode_each(encoder: RecordEncoder, messages: Sequence[Message], now_ms: int) -> EncodedBatch:
    """Records of any kind."""
    records = [encoder.encode(message, 0, now_ms) for message in messages]
    sizes = np.fromiter((record.size for record in records), np.int64, len(records))
    starts = np.cumsum(sizes) - sizes
    buffer = bytearray().join([record.buffer for record in records])
    keys = [key for record in records for key in record.keys]
    store_times = np.fromiter((record.store_time_position for record in records), np.int64, len(records))
    return EncodedBatch(
        memoryview(buffer),
        starts,
        sizes,
        items_at(np.frombuffer(buffer, np.uint8), starts, HEAD.itemsize).view(HEAD),
        np.fromiter((record.tags_code for record in records), np.int64, len(records)),
        _rows_of([record.keys for record in records], len(keys)),
        index_hashes(messages[0].topic, keys),
        any(record.names_magic for record in records),
        starts + store_times,
    )


def _rows_of(key_lists: Sequence[Sequence[str]], key_count: int) -> Array:
    """The row of each key, int64 (k,)."""
    rows = np.arange(len(key_lists))
    if key_count == len(key_lists) and all(key_lists):  # one each
        return rows
    return np.repeat(rows, _sizes(key_lists))


def _sizes(items: Sequence[Sequence[object] | memoryview]) -> Array:
    return np.fromiter(map(len, items), np.int64, len(items))


def _alike(column: Sequence[object]) -> bool:
    return column.count(column[0]) == len(column)

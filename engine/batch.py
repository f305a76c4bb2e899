"""Batches of messages, encoded into one buffer before the append lock is taken (docs/format.md, 2).

Messages of a batch mostly differ in body, keys and tags alone. Then one record is encoded as a sample, and the batch is
worked on in columns: one join makes the buffer, numpy writes the fields that differ.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from isal.isal_zlib import crc32
from msgspec.structs import replace

from engine.encodedbatch import HEAD, EncodedBatch, record_heads
from engine.errors import IllegalMessageError
from engine.hosts import Host
from engine.keyhash import index_hashes, tags_hash
from engine.message import Message
from engine.properties import check_size, encode_labels, encode_properties
from engine.record import RecordEncoder, index_keys
from engine.slices import items_at, put_items

Array = np.ndarray[Any, Any]
Body: TypeAlias = bytes | bytearray | memoryview


class MessageColumns(NamedTuple):
    """The fields of many messages, each a list of one value a message, in the order of Message's."""

    topic: Sequence[str]
    body: Sequence[Body]
    keys: Sequence[Sequence[str]]
    tags: Sequence[str]
    properties: Sequence[Mapping[str, str]]
    flag: Sequence[int]
    sys_flag: Sequence[int]
    born_time_ms: Sequence[int | None]
    born_host: Sequence[Host | None]
    store_host: Sequence[Host | None]
    reconsume_times: Sequence[int]
    prepared_transaction_offset: Sequence[int]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "MessageColumns":
        """The columns of `messages`, not of none."""
        return cls(
            [message.topic for message in messages],
            [message.body for message in messages],
            [message.keys for message in messages],
            [message.tags for message in messages],
            [message.properties for message in messages],
            [message.flag for message in messages],
            [message.sys_flag for message in messages],
            [message.born_time_ms for message in messages],
            [message.born_host for message in messages],
            [message.store_host for message in messages],
            [message.reconsume_times for message in messages],
            [message.prepared_transaction_offset for message in messages],
        )


_FIRST_HEADER_FIELD = MessageColumns._fields.index("flag")


def encode_batch(encoder: RecordEncoder, messages: Sequence[Message], now_ms: int) -> EncodedBatch:
    """The records of `messages`, at least one, all of one topic. IllegalMessageError, MessageTooLargeError."""
    columns = MessageColumns.of(messages)
    if not _alike(columns.topic):
        raise IllegalMessageError("the messages of a batch have different topics")
    if all(map(_alike, columns[_FIRST_HEADER_FIELD:])):
        alike = replace(messages[0], body=b"", keys=(), tags="", properties={})
        return _encode_columns(encoder, alike, columns, now_ms)
    return _encode_each(encoder, messages, now_ms)


def _alike(column: Sequence[object]) -> bool:
    return column.count(column[0]) == len(column)


def _encode_columns(encoder: RecordEncoder, alike: Message, columns: MessageColumns, now_ms: int) -> EncodedBatch:
    """Records of messages that share all that `alike` has, and differ in body, keys, tags and properties."""
    sample = encoder.encode(alike, 0, now_ms)
    topic = alike.topic
    middle = encoder.encode_topic(topic) + b"\0\0"
    head = bytes(sample.buffer[: -len(middle)])
    bodies = columns.body
    if {*map(type, bodies)} != {bytes}:
        bodies = [encoder.check_body(body) for body in bodies]
    properties, tags_codes, keys = _properties(columns)
    body_sizes, property_sizes = _sizes(bodies), _sizes(properties)
    encoder.check_body_size(int(body_sizes.max()))
    check_size(int(property_sizes.max()))
    sizes = body_sizes + property_sizes + sample.size
    starts = np.cumsum(sizes) - sizes
    buffer = bytearray().join(chain.from_iterable(zip(repeat(head), bodies, repeat(middle), properties)))
    data = np.frombuffer(buffer, np.uint8)
    put_items(data, starts + len(head) - 4, body_sizes.astype(">i4"))
    put_items(data, starts + sizes - property_sizes - 2, property_sizes.astype(">u2"))
    return EncodedBatch(
        memoryview(buffer),
        starts,
        sizes,
        record_heads(sizes, np.fromiter(map(crc32, bodies), np.uint32, len(bodies)), columns.flag[0]),
        starts + sample.store_time_position,
        tags_codes,
        np.repeat(np.arange(len(bodies)), _sizes(keys)),
        index_hashes(topic, list(chain.from_iterable(keys))),
    )


def _properties(columns: MessageColumns) -> tuple[Sequence[bytes], Array | int, Sequence[Sequence[str]]]:
    """Stored properties of each message; tags codes, or the one that all have; keys for the index."""
    keys, tags, properties = columns.keys, columns.tags, columns.properties
    if any(properties):
        encoded: Sequence[bytes] = list(map(encode_properties, keys, tags, properties))
        keys = list(map(index_keys, keys, properties))
        tags = [more.get("TAGS", own) for own, more in zip(tags, properties, strict=True)]
    else:
        encoded = encode_labels(keys, tags)
    codes = tags_hash(tags[0]) if _alike(tags) else np.fromiter(map(tags_hash, tags), np.int64, len(tags))
    return encoded, codes, keys


def _encode_each(encoder: RecordEncoder, messages: Sequence[Message], now_ms: int) -> EncodedBatch:
    """Records of any kind."""
    records = [encoder.encode(message, 0, now_ms) for message in messages]
    sizes = np.fromiter((record.size for record in records), np.int64, len(records))
    starts = np.cumsum(sizes) - sizes
    buffer = bytearray().join([record.buffer for record in records])
    store_times = np.fromiter((record.store_time_position for record in records), np.int64, len(records))
    return EncodedBatch(
        memoryview(buffer),
        starts,
        sizes,
        items_at(np.frombuffer(buffer, np.uint8), starts, HEAD.itemsize).view(HEAD),
        starts + store_times,
        np.fromiter((record.tags_code for record in records), np.int64, len(records)),
        np.repeat(np.arange(len(records)), _sizes([record.keys for record in records])),
        index_hashes(messages[0].topic, [key for record in records for key in record.keys]),
    )


def _sizes(items: Iterable[Sequence[object] | memoryview]) -> Array:
    return np.fromiter(map(len, items), np.int64)

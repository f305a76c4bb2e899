"""Batches: many messages of one topic, encoded into one buffer before the append lock is taken (docs/format.md, 2).

Messages of a batch mostly differ in body, keys and tags alone. Then one record is encoded as a sample, and the batch is
encoded in columns: one join makes the buffer, numpy writes the fields that differ. What is known only under the append
lock, queue offsets, physical offsets and the time, is written later (`EncodedBatch.place`).

Records of lines of text share everything but the body. So one join of the lines by what is between two bodies (the
rest of one record, the header of the next) makes the log's bytes. Python has one object a line, and calls one C
function with it, for its CRC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace

from engine.errors import IllegalMessageError, MessageTooLargeError
from engine.record.byte_columns import items_at, put_items
from engine.record.hashes import index_hashes, tags_hash
from engine.record.header import CRC_MASK, FAMILIES_POSITION, HEADERS, LAYOUTS
from engine.record.kernel.crc import crc32
from engine.record.message import Message
from engine.record.properties import check_size, encode_labels, encode_properties
from engine.record.record import RecordEncoder, index_keys, names_magic

Array = np.ndarray[Any, Any]

Body: TypeAlias = bytes | bytearray | memoryview
Lines: TypeAlias = bytes | bytearray | memoryview | Sequence[bytes]
"""Text, or its lines; each line ends in a newline, the last one, too."""

HEADER_START = np.dtype(LAYOUTS[0].descr[:7])
"""How every record begins (docs/format.md, 2): up to its physical offset."""
assert HEADER_START.itemsize == 36

_SPLIT_AT_ONCE_BYTES = 1 << 17
"""What one call splits: other threads wait for the interpreter no longer than that."""
_NEWLINE = ord("\n")
_NO_NEWLINE = "a line does not end in a newline"
_NO_ROWS = np.empty(0, np.int64)
_NO_HASHES = np.empty(0, np.int32)


def alike_headers(header: bytes, sizes: Array, crcs: Array, body_sizes: Array) -> Array:
    """Headers of records that begin as `header` (all fixed fields) does, but for sizes and body CRC-32s, and without
    offsets: one of LAYOUTS, (n,)."""
    layout = LAYOUTS[header[FAMILIES_POSITION] >> 4 & 3]
    headers = np.frombuffer(bytearray(header) * len(sizes), layout)
    headers["store_size"], headers["stored_body_size"] = sizes, body_sizes
    headers["body_crc"] = crcs & CRC_MASK
    return headers


class Share(NamedTuple):
    """One queue's records of a batch: those of `rows`, in order, numbered from `queue_offset` on."""

    queue_id: int
    queue_offset: int
    rows: slice

    @property
    def size(self) -> int:
        """How many records."""
        return len(range(self.rows.start, self.rows.stop, self.rows.step))


def shares_of(queue_ids: Sequence[int], queue_offsets: Sequence[int], start: int, stop: int) -> list[Share]:
    """The shares of a batch's rows [start, stop), counted from 0, when row r goes to queue_ids[r % their number].

    `queue_offsets` are those of each queue's first row in the whole batch. Queues that get none have no share; the
    first share has the first row.
    """
    shares = []
    turns = len(queue_ids)
    for row in range(start, min(start + turns, stop)):
        turn, round_number = row % turns, row // turns
        rows = slice(row - start, stop - start, turns)
        shares.append(Share(queue_ids[turn], queue_offsets[turn] + round_number, rows))
    return shares


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Records of one topic to be appended together: complete but for their headers and store times.

    `buffer` holds all records, the i-th at starts[i] with sizes[i] bytes (int64, (n,)). `headers` (n,) lack offsets.
    They are all fixed fields (one of LAYOUTS), or HEADER_START alone where hosts of both families give several layouts:
    then the store time belongs at `store_time_positions` (int64 (n,)). `tags_codes` (int64 (n,), or one number for all)
    and the keys (`key_rows` ascending, `key_hashes` of topic#key: int64 and int32 (k,), a row's unique key first) are
    what dispatch wants to know. `names_magic`: as the function in `record` says of the bodies. Thread safety: one
    caller at a time.
    """

    buffer: memoryview
    starts: Array
    sizes: Array
    headers: Array
    tags_codes: Array | int
    key_rows: Array
    key_hashes: Array
    names_magic: bool
    store_time_positions: Array | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def place(self, shares: Sequence[Share], physical_offset: int, store_time_ms: int) -> None:
        """Fill in where and when: the queues' shares, the buffer's first byte at `physical_offset`. May be done again
        after another try."""
        for queue_id, queue_offset, rows in shares:
            headers = self.headers[rows]
            headers["queue_id"] = queue_id
            headers["queue_offset"] = np.arange(queue_offset, queue_offset + len(headers))
        self.headers["physical_offset"] = self.starts + physical_offset
        data = np.frombuffer(self.buffer, np.uint8)
        if self.store_time_positions is None:
            self.headers["store_time_ms"] = store_time_ms
        else:
            put_items(data, self.store_time_positions, np.full(len(self), store_time_ms, ">i8"))
        put_items(data, self.starts, self.headers)

    def cut(self, limit_bytes: int) -> Iterator[EncodedBatch]:
        """The batch in parts of at most `limit_bytes` each, over the same buffer. MessageTooLargeError for a record."""
        if len(self.buffer) <= limit_bytes:
            yield self
            return
        if self.sizes.max() > limit_bytes:
            raise MessageTooLargeError("record", int(self.sizes.max()), limit_bytes)
        ends = self.starts + self.sizes
        first = 0
        while first < len(self):
            after = int(np.searchsorted(ends, self.starts[first] + limit_bytes, side="right"))
            yield self._part(first, after)
            first = after

    def _part(self, first: int, after: int) -> EncodedBatch:
        start = int(self.starts[first])
        end = int(self.starts[after - 1] + self.sizes[after - 1])
        keys = slice(*np.searchsorted(self.key_rows, [first, after]).tolist())
        return EncodedBatch(
            self.buffer[start:end],
            self.starts[first:after] - start,
            self.sizes[first:after],
            self.headers[first:after],
            self.tags_codes if isinstance(self.tags_codes, int) else self.tags_codes[first:after],
            self.key_rows[keys] - first,
            self.key_hashes[keys],
            self.names_magic,
            None if self.store_time_positions is None else self.store_time_positions[first:after] - start,
        )


class MessageColumns(NamedTuple):
    """What mostly differs from message to message: a list of one value a message for each."""

    body: Sequence[Body]
    keys: Sequence[Sequence[str]]
    tags: Sequence[str]
    properties: Sequence[Mapping[str, str]]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> MessageColumns:
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
    """Whether nothing differs but body, keys, tags and properties. It compares by identity, so it may miss equal
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
    header = bytes(sample.buffer[: -len(middle)])
    bodies = columns.body
    if {*map(type, bodies)} != {bytes}:
        bodies = [encoder.check_body(body) for body in bodies]
    properties, tags_codes, keys, key_rows = _properties(columns)
    body_sizes, property_sizes = _sizes(bodies), _sizes(properties)
    encoder.check_body_size(int(body_sizes.max()))
    check_size(int(property_sizes.max()))
    sizes = body_sizes + property_sizes + sample.size
    starts = np.cumsum(sizes) - sizes
    buffer = _interleaved(len(header), bodies, middle, properties)
    found = names_magic(buffer, 0)
    data = np.frombuffer(buffer, np.uint8)
    put_items(data, starts + sizes - property_sizes - 2, property_sizes.astype(">u2"))
    return EncodedBatch(
        memoryview(buffer),
        starts,
        sizes,
        alike_headers(header, sizes, np.fromiter(map(crc32, bodies), np.uint32, len(bodies)), body_sizes),
        tags_codes,
        key_rows,
        index_hashes(topic, keys),
        found,
    )


def _interleaved(header_bytes: int, bodies: Sequence[Body], middle: bytes, properties: Sequence[bytes]) -> bytearray:
    """Room for a header, body, middle, properties of each record, one record after the other."""
    parts: list[Body] = [bytes(header_bytes)] * (4 * len(bodies))
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
        items_at(np.frombuffer(buffer, np.uint8), starts, HEADER_START.itemsize).view(HEADER_START),
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


def split_lines(lines: Lines) -> Sequence[bytes]:
    """Each line, its newline with it."""
    return split_text(lines) if isinstance(lines, bytes | bytearray | memoryview) else lines


def split_text(text: bytes | bytearray | memoryview) -> list[bytes]:
    """As `split_lines`; what follows the last newline is a line, too."""
    file = BytesIO(text)
    rows: list[bytes] = []
    while more := file.readlines(_SPLIT_AT_ONCE_BYTES):  # faster than `split`, which looks at one byte after the other
        rows += more
    return rows


def line_bodies(lines: Lines) -> list[bytes]:
    """The lines that are not empty, without their newlines. IllegalMessageError when one has none."""
    rows = split_lines(lines)
    if not all(row.endswith(b"\n") for row in rows):
        raise IllegalMessageError(_NO_NEWLINE)
    return [row[:-1] for row in rows if len(row) > 1]


def encode_lines(
    encoder: RecordEncoder,
    topic: str,
    lines: Lines,
    now_ms: int,
    *,
    keys: Sequence[str] = (),
    tags: str = "",
    properties: Mapping[str, str] | None = None,
) -> EncodedBatch:
    """A record for each line of `lines`, all with the same properties; a line's newline is dropped, empty lines are
    skipped.

    IllegalMessageError (also when a line has no newline), MessageTooLargeError.
    """
    rows, row_sizes = _measured(split_lines(lines))
    sample = encoder.encode(Message(topic, b"", keys, tags, properties or {}), 0, now_ms)
    header_bytes = HEADERS[3 if encoder.store_host.is_ipv6 else 0].size
    header, tail = bytes(sample.buffer[:header_bytes]), bytes(sample.buffer[header_bytes:])
    sizes, body_sizes = row_sizes + (sample.size - 1), row_sizes - 1
    ends = np.cumsum(sizes)
    if rows and ends[-1] > encoder.max_message_bytes:
        encoder.check_body_size(int(body_sizes.max()))
    starts = ends - sizes
    buffer = _joined(rows, starts + header_bytes + body_sizes, header_bytes, tail)
    return EncodedBatch(
        memoryview(buffer)[len(tail) - 1 : len(buffer) - header_bytes],
        starts,
        sizes,
        alike_headers(header, sizes, _body_crcs(rows), body_sizes),
        sample.tags_code,
        *_shared_keys(topic, sample.keys, len(rows)),
        names_magic(buffer, 0),
    )


def _measured(rows: Sequence[bytes]) -> tuple[Sequence[bytes], Array]:
    """The lines that are not empty, and the size of each, int64 (n,)."""
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    if rows and sizes.min() <= 1:
        rows, sizes = [row for row in rows if row != b"\n"], sizes[sizes > 1]
        if len(rows) != len(sizes):
            raise IllegalMessageError(_NO_NEWLINE)
    return rows, sizes


def _joined(rows: Sequence[bytes], tails: Array, header_bytes: int, tail: bytes) -> bytearray:
    """Each line, without its newline, between room for a header and `tail`; all but a tail's first byte in front of it,
    and room for a header after it. IllegalMessageError when a line has no newline.

    One join makes it: the newlines come to lie at `tails` of what is between, where a tail's first byte belongs.
    """
    rest = tail[1:]
    buffer = bytearray(rest + bytes(header_bytes)).join([b"", *rows, b""])
    data = np.frombuffer(buffer, np.uint8)[len(rest) :]
    if (data[tails] != _NEWLINE).any():
        raise IllegalMessageError(_NO_NEWLINE)
    data[tails] = tail[0]
    return buffer


def _shared_keys(topic: str, keys: Sequence[str], count: int) -> tuple[Array, Array]:
    """Rows and index hashes of keys that each of `count` records has."""
    if not keys:
        return _NO_ROWS, _NO_HASHES
    return np.repeat(np.arange(count), len(keys)), np.tile(index_hashes(topic, keys), count)


def _body_crcs(rows: Sequence[bytes]) -> Array:
    """CRC-32 of each line without its newline: uint32 (n,).

    A CRC's step for one byte is one to one, so it can be taken back: cheaper than lines without newlines.
    """
    crcs = np.fromiter(map(crc32, rows), np.uint32, len(rows))
    return np.asarray(crcs << 8 ^ _BEFORE_NEWLINE[crcs >> 24])


def _newline_table() -> Array:
    """What takes a newline back, by the first byte of the CRC with it: uint32 (256,)."""
    table = np.zeros(256, np.uint32)
    for crc in range(256):
        after = crc32(b"\n", crc)
        table[after >> 24] = after << 8 & 0xFFFFFFFF ^ crc
    return table


_BEFORE_NEWLINE = _newline_table()

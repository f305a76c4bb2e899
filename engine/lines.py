"""Batches of records, encoded into one buffer before the append lock is taken (docs/format.md, 2).

Lines: all records of a batch share everything but the body, so the text becomes the log's bytes by one replacement: a
newline by what stands between two bodies (the rest of one record, the head of the next). numpy then writes the fields
that differ. Python calls one C function a line, for its CRC.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from engine.errors import IllegalMessageError, MessageTooLargeError
from engine.keyhash import index_hashes
from engine.message import Message
from engine.record import HEADERS, MESSAGE_MAGIC, RecordEncoder
from engine.slices import put_items

Array = np.ndarray[Any, Any]

_START = np.dtype([("size", ">i4"), ("magic", ">i4"), ("body_crc", ">i4")])
_PLACE = np.dtype([("queue_offset", ">i8"), ("physical_offset", ">i8")])
_PLACE_POSITION = 20
_NEWLINE = ord("\n")


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Records of one topic and queue to be appended together: complete but for what only the append lock can say.

    `buffer` holds all records, the i-th at starts[i] with sizes[i] bytes (int64, (n,)). `tags_codes` (int64 (n,), or
    one number for all) and the keys (`key_rows` ascending, `key_hashes` of topic#key: int64 and int32 (k,), a row's
    unique key first) are what dispatch wants to know. Thread safety: one caller at a time.
    """

    buffer: memoryview
    starts: Array
    sizes: Array
    store_time_positions: Array
    tags_codes: Array | int
    key_rows: Array
    key_hashes: Array

    def __len__(self) -> int:
        return len(self.starts)

    def place(self, first_queue_offset: int, physical_offset: int, store_time_ms: int) -> None:
        """Fill in where and when: consecutive queue offsets, the buffer's first byte at `physical_offset`."""
        data = np.frombuffer(self.buffer, np.uint8)
        places = np.empty(len(self), _PLACE)
        places["queue_offset"] = np.arange(first_queue_offset, first_queue_offset + len(self))
        places["physical_offset"] = self.starts + physical_offset
        put_items(data, self.starts + _PLACE_POSITION, places)
        put_items(data, self.store_time_positions, np.full(len(self), store_time_ms, ">i8"))

    def cut(self, limit_bytes: int) -> Iterator["EncodedBatch"]:
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

    def _part(self, first: int, after: int) -> "EncodedBatch":
        start = int(self.starts[first])
        end = int(self.starts[after - 1] + self.sizes[after - 1])
        keys = slice(*np.searchsorted(self.key_rows, [first, after]).tolist())
        return EncodedBatch(
            self.buffer[start:end],
            self.starts[first:after] - start,
            self.sizes[first:after],
            self.store_time_positions[first:after] - start,
            self.tags_codes if isinstance(self.tags_codes, int) else self.tags_codes[first:after],
            self.key_rows[keys] - first,
            self.key_hashes[keys],
        )


def encode_batch(encoder: RecordEncoder, messages: Sequence[Message], queue_id: int, now_ms: int) -> EncodedBatch:
    """The records of `messages`, all of one topic. IllegalMessageError, MessageTooLargeError."""
    if len({message.topic for message in messages}) > 1:
        raise IllegalMessageError("the messages of a batch have different topics")
    records = [encoder.encode(message, queue_id, now_ms) for message in messages]
    sizes = np.fromiter((record.size for record in records), np.int64, len(records))
    starts = np.cumsum(sizes) - sizes
    store_times = np.fromiter((record.store_time_position for record in records), np.int64, len(records))
    key_counts = np.fromiter((len(record.keys) for record in records), np.int64, len(records))
    topic = messages[0].topic if messages else ""
    return EncodedBatch(
        memoryview(bytearray().join([record.buffer for record in records])),
        starts,
        sizes,
        starts + store_times,
        np.fromiter((record.tags_code for record in records), np.int64, len(records)),
        np.repeat(np.arange(len(records)), key_counts),
        index_hashes(topic, [key for record in records for key in record.keys]),
    )


def encode_lines(
    encoder: RecordEncoder,
    topic: str,
    lines: bytes | bytearray | memoryview,
    queue_id: int,
    now_ms: int,
    *,
    keys: Sequence[str] = (),
    tags: str = "",
    properties: Mapping[str, str] | None = None,
) -> EncodedBatch:
    """A record for each line of `lines`, all with the same properties; a line's newline is dropped, empty lines are
    skipped.

    IllegalMessageError (also when the last line has no newline), MessageTooLargeError.
    """
    text = _whole_lines(lines)
    sample = encoder.encode(Message(topic, b"", keys, tags, properties or {}), queue_id, now_ms)
    head_bytes = HEADERS[3 if encoder.store_host.is_ipv6 else 0].size
    head, tail = bytes(sample.buffer[:head_bytes]), bytes(sample.buffer[head_bytes:])
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
    count = len(ends)
    body_sizes = np.diff(ends, prepend=-1) - 1
    if count and body_sizes.max() > encoder.max_message_bytes:
        raise MessageTooLargeError("body", int(body_sizes.max()), encoder.max_message_bytes)
    buffer = bytearray(head + text.replace(b"\n", tail + head))
    del buffer[len(buffer) - head_bytes :]
    sizes = body_sizes + sample.size
    starts = np.cumsum(sizes) - sizes
    _write_heads(np.frombuffer(buffer, np.uint8), starts, sizes, body_sizes, _line_crcs(text, count), head_bytes)
    return EncodedBatch(
        memoryview(buffer),
        starts,
        sizes,
        starts + sample.store_time_position,
        sample.tags_code,
        np.repeat(np.arange(count), len(sample.keys)),
        np.tile(index_hashes(topic, sample.keys), count),
    )


def _whole_lines(lines: bytes | bytearray | memoryview) -> bytes:
    """The text without its empty lines."""
    text = bytes(lines)
    if text and not text.endswith(b"\n"):
        raise IllegalMessageError("the last line does not end in a newline")
    if text.startswith(b"\n") or b"\n\n" in text:
        text = b"".join([line + b"\n" for line in text.split(b"\n") if line])
    return text


def _write_heads(data: Array, starts: Array, sizes: Array, body_sizes: Array, crcs: Array, head_bytes: int) -> None:
    """The fields in which records of lines differ before they are placed."""
    heads = np.empty(len(starts), _START)
    heads["size"], heads["magic"], heads["body_crc"] = sizes, MESSAGE_MAGIC, crcs & np.uint32(0x7FFFFFFF)
    put_items(data, starts, heads)
    put_items(data, starts + (head_bytes - 4), body_sizes.astype(">i4"))


def _line_crcs(text: bytes, count: int) -> Array:
    """CRC-32 of each of the `count` lines of `text` without its newline: uint32 (n,).

    Iterating over a BytesIO reuses one small object, twice as fast as a list of lines, but yields the newline too: each
    CRC is then taken back by that byte, which a table can since the CRC's step is one to one.
    """
    states = ~np.fromiter(map(crc32, BytesIO(text)), np.uint32, count)
    indices = _CRC_INDEX_BY_TOP[states >> 24]
    states = (states ^ _CRC_TABLE[indices]) << 8 | (indices ^ _NEWLINE)
    return np.asarray(~states)


def _crc_table() -> Array:
    """The CRC of one step for each byte, as the usual algorithm has it: uint32 (256,)."""
    # crc32 of a byte b from state 0xFFFFFFFF is ~(T[0xFF ^ b] ^ 0x00FFFFFF).
    steps = [~crc32(bytes([0xFF ^ index])) & 0xFFFFFFFF ^ 0x00FFFFFF for index in range(256)]
    return np.array(steps, np.uint32)


_CRC_TABLE = _crc_table()
_CRC_INDEX_BY_TOP = np.argsort(_CRC_TABLE >> 24).astype(np.uint32)

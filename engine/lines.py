"""Lines: a buffer of text becomes a batch of records (docs/format.md, 2).

All records of such a batch share everything but the body, so the text becomes the log's bytes by one replacement: a
newline by what stands between two bodies (the rest of one record, the head of the next). numpy then writes the fields
that differ. Python has one object a line, and calls one C function with it, for its CRC.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from engine.encodedbatch import EncodedBatch, record_heads
from engine.errors import IllegalMessageError, MessageTooLargeError
from engine.keyhash import index_hashes
from engine.message import Message
from engine.record import HEADERS, RecordEncoder
from engine.slices import put_items

Array = np.ndarray[Any, Any]

_NEWLINE = ord("\n")
_NO_ROWS = np.empty(0, np.int64)
_NO_HASHES = np.empty(0, np.int32)


def encode_lines(
    encoder: RecordEncoder,
    topic: str,
    lines: bytes | bytearray | memoryview,
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
    text, rows, row_sizes = _split(lines)
    if rows and row_sizes.max() > encoder.max_message_bytes + 1:
        raise MessageTooLargeError("body", int(row_sizes.max()) - 1, encoder.max_message_bytes)
    sample = encoder.encode(Message(topic, b"", keys, tags, properties or {}), 0, now_ms)
    head_bytes = HEADERS[3 if encoder.store_host.is_ipv6 else 0].size
    sizes = row_sizes + (sample.size - 1)
    starts = np.cumsum(sizes) - sizes
    buffer = _records(text, bytes(sample.buffer[:head_bytes]), bytes(sample.buffer[head_bytes:]))
    put_items(np.frombuffer(buffer, np.uint8), starts + (head_bytes - 4), (row_sizes - 1).astype(">i4"))
    return EncodedBatch(
        buffer,
        starts,
        sizes,
        record_heads(sizes, _body_crcs(rows)),
        starts + sample.store_time_position,
        sample.tags_code,
        *_shared_keys(topic, sample.keys, len(rows)),
    )


def _split(lines: bytes | bytearray | memoryview) -> tuple[bytes, list[bytes], Array]:
    """The text without its empty lines; each line, its newline with it; their sizes, int64 (n,)."""
    text = bytes(lines)
    if text and not text.endswith(b"\n"):
        raise IllegalMessageError("the last line does not end in a newline")
    rows = BytesIO(text).readlines()  # faster than `split`, which looks at one byte after the other
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    if rows and sizes.min() == 1:
        return _split(b"".join([row for row in rows if row != b"\n"]))
    return text, rows, sizes


def _records(text: bytes, head: bytes, tail: bytes) -> memoryview:
    """Each line of `text` between `head` and `tail`; writable."""
    framed = bytearray(b"\n")  # in front of the first line, too: it takes one replacement then, and no further copy
    framed += text
    return memoryview(framed.replace(b"\n", tail + head))[len(tail) : -len(head)]


def _shared_keys(topic: str, keys: Sequence[str], count: int) -> tuple[Array, Array]:
    """Rows and index hashes of keys that each of `count` records has."""
    if not keys:
        return _NO_ROWS, _NO_HASHES
    return np.repeat(np.arange(count), len(keys)), np.tile(index_hashes(topic, keys), count)


def _body_crcs(rows: Sequence[bytes]) -> Array:
    """CRC-32 of each line without its newline: uint32 (n,).

    The CRC of a line is taken back by its newline, which a table can since the CRC's step is one to one: cheaper than
    lines without newlines.
    """
    states = ~np.fromiter(map(crc32, rows), np.uint32, len(rows))
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

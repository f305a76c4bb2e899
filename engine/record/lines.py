"""Lines: text becomes a batch of records (docs/format.md, 2).

All records of such a batch share everything but the body, so one join of the lines by what stands between two bodies
(the rest of one record, the head of the next) makes the log's bytes. numpy then writes the fields that differ. Python
has one object a line, and calls one C function with it, for its CRC.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, TypeAlias

import numpy as np
from isal.isal_zlib import crc32

from engine.errors import IllegalMessageError
from engine.record.encoded_batch import EncodedBatch, alike_heads
from engine.record.hashes import index_hashes
from engine.record.message import Message
from engine.record.record import HEADERS, RecordEncoder, names_magic

Array = np.ndarray[Any, Any]

_SPLIT_AT_ONCE_BYTES = 1 << 17
"""What one call splits: others who want the interpreter wait for no more."""
_NEWLINE = ord("\n")
_NO_NEWLINE = "a line does not end in a newline"
_NO_ROWS = np.empty(0, np.int64)
_NO_HASHES = np.empty(0, np.int32)


Lines: TypeAlias = bytes | bytearray | memoryview | Sequence[bytes]
"""Text, or its lines; each line ends in a newline, the last one, too."""


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
    head_bytes = HEADERS[3 if encoder.store_host.is_ipv6 else 0].size
    head, tail = bytes(sample.buffer[:head_bytes]), bytes(sample.buffer[head_bytes:])
    sizes, body_sizes = row_sizes + (sample.size - 1), row_sizes - 1
    ends = np.cumsum(sizes)
    if rows and ends[-1] > encoder.max_message_bytes:
        encoder.check_body_size(int(body_sizes.max()))
    starts = ends - sizes
    buffer = _joined(rows, starts + head_bytes + body_sizes, head_bytes, tail)
    return EncodedBatch(
        memoryview(buffer)[len(tail) - 1 : len(buffer) - head_bytes],
        starts,
        sizes,
        alike_heads(head, sizes, _body_crcs(rows), body_sizes),
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


def _joined(rows: Sequence[bytes], tails: Array, head_bytes: int, tail: bytes) -> bytearray:
    """Each line, without its newline, between room for a head and `tail`; all but a tail's first byte in front of it,
    and room for a head behind it. IllegalMessageError when a line has no newline.

    One join makes it: the newlines come to lie at `tails` of what is between, where a tail's first byte belongs.
    """
    rest = tail[1:]
    buffer = bytearray(rest + bytes(head_bytes)).join([b"", *rows, b""])
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

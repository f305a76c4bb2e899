"""Batches: lines as messages, and the distribution of a batch's messages over queues.

A batch is encoded into one buffer before the append lock is taken (engine.record.kernel.encode).
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import NamedTuple, TypeAlias

from engine.errors import IllegalMessageError
from engine.record.kernel.encode import EncodedBatch, Encoder
from engine.record.message import Message

Lines: TypeAlias = bytes | bytearray | memoryview | Sequence[bytes]
"""A text, or its lines; each line, also the last one, ends in a newline."""

ENCODED_AT_ONCE = 16_384
"""Messages encoded by one kernel call, which holds the GIL for a few ms."""

_SPLIT_AT_ONCE_BYTES = 1 << 17
"""Bytes split by one call, which holds the GIL."""


class Share(NamedTuple):
    """One queue's records of a batch: those of `rows`, in order, with queue offsets from `queue_offset` on."""

    queue_id: int
    queue_offset: int
    rows: slice

    @property
    def size(self) -> int:
        """Number of records."""
        return len(range(self.rows.start, self.rows.stop, self.rows.step))


def shares_of(queue_ids: Sequence[int], queue_offsets: Sequence[int], start: int, stop: int) -> list[Share]:
    """The shares of a batch's rows [start, stop), counted from 0; row r goes to queue_ids[r % len(queue_ids)].

    `queue_offsets` are those of each queue's first row in the whole batch. Queues without rows have no share; the first
    share has the first row.
    """
    shares = []
    turns = len(queue_ids)
    for row in range(start, min(start + turns, stop)):
        turn, round_number = row % turns, row // turns
        rows = slice(row - start, stop - start, turns)
        shares.append(Share(queue_ids[turn], queue_offsets[turn] + round_number, rows))
    return shares


def split_text(text: bytes | bytearray | memoryview) -> list[bytes]:
    """The lines of a text with their newlines; bytes after the last newline are a line, too."""
    file = BytesIO(text)
    rows: list[bytes] = []
    while more := file.readlines(_SPLIT_AT_ONCE_BYTES):  # faster than `split`, which tests single bytes
        rows += more
    return rows


def encode_lines(encoder: Encoder, sample: Message, lines: Lines, now_ms: int) -> list[EncodedBatch]:
    """Records of the non-empty lines, each with the fields of `sample`, whose body is empty; newlines are dropped.
    IllegalMessageError (also when a line has no newline), MessageTooLargeError."""
    record = encoder.encode(sample, 0, now_ms)
    if isinstance(lines, memoryview):
        lines = lines.cast("B") if lines.c_contiguous else lines.tobytes()
    batches, position = [], 0
    while position < len(lines):
        batch, position = encoder.encode_lines(record, lines, position, ENCODED_AT_ONCE)
        batches.append(batch)
    return batches


def line_bodies(lines: Lines) -> list[bytes]:
    """The non-empty lines without their newlines. IllegalMessageError: a line has no newline."""
    rows = split_text(lines) if isinstance(lines, bytes | bytearray | memoryview) else lines
    if not all(row.endswith(b"\n") for row in rows):
        raise IllegalMessageError("a line does not end in a newline")
    return [row[:-1] for row in rows if len(row) > 1]

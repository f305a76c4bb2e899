"""Batches: lines, and which of the messages that are stored together go to which queue.

They are encoded into one buffer before the append lock is taken (engine.record.kernel.encode).
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import NamedTuple, TypeAlias

from engine.errors import IllegalMessageError
from engine.record.kernel.encode import EncodedBatch, Encoder
from engine.record.message import Message

Lines: TypeAlias = bytes | bytearray | memoryview | Sequence[bytes]
"""Text, or its lines; each line ends in a newline, the last one, too."""

ENCODED_AT_ONCE = 16_384
"""Messages that one call into the kernel encodes: others who want the interpreter wait some ms for no more."""

_SPLIT_AT_ONCE_BYTES = 1 << 17
"""What one call splits: other threads wait for the interpreter no longer than that."""


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


def split_text(text: bytes | bytearray | memoryview) -> list[bytes]:
    """Each line, its newline with it; what follows the last newline is a line, too."""
    file = BytesIO(text)
    rows: list[bytes] = []
    while more := file.readlines(_SPLIT_AT_ONCE_BYTES):  # faster than `split`, which looks at one byte after the other
        rows += more
    return rows


def encode_lines(encoder: Encoder, sample: Message, lines: Lines, now_ms: int) -> list[EncodedBatch]:
    """The records of the lines that are not empty, each as `sample`'s, whose body is empty; a line's newline is
    dropped. IllegalMessageError (also when a line has no newline), MessageTooLargeError."""
    record = encoder.encode(sample, 0, now_ms)
    if isinstance(lines, memoryview):
        lines = lines.cast("B") if lines.c_contiguous else lines.tobytes()
    batches, position = [], 0
    while position < len(lines):
        batch, position = encoder.encode_lines(record, lines, position, ENCODED_AT_ONCE)
        batches.append(batch)
    return batches


def line_bodies(lines: Lines) -> list[bytes]:
    """The lines that are not empty, without their newlines. IllegalMessageError when one has none."""
    rows = split_text(lines) if isinstance(lines, bytes | bytearray | memoryview) else lines
    if not all(row.endswith(b"\n") for row in rows):
        raise IllegalMessageError("a line does not end in a newline")
    return [row[:-1] for row in rows if len(row) > 1]

"""QueueStream: a queue as one growing text, body, newline, body, newline (docs/format.md, 13)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from engine.consumequeue import ConsumeQueue
from engine.errors import DamagedRecordError, ExpiredMessageError
from engine.streamsums import QueueSums, Summed, sizes_of

Array = np.ndarray[Any, Any]

WINDOW_BYTES = 1 << 20
"""How much is copied together for a reader that goes straight on."""


class Window(NamedTuple):
    """Stream bytes from `start` (from the base on) that were copied out of the log."""

    start: int
    text: memoryview

    @property
    def end(self) -> int:
        """Just past the last byte."""
        return self.start + len(self.text)


class QueueStream:
    """The text of the queue's messages from `first_offset` on; positions count bytes of that text.

    Messages that are damaged when they are summed are left out. The first message stays where it was found, whatever
    retention does. Thread safety: any thread.
    """

    def __init__(self, queue: ConsumeQueue, sums: QueueSums) -> None:
        """Bind to the queue's first message now."""
        self._queue = queue
        self._sums = sums
        self._first = queue.min_offset
        self._skipped: int | None = None
        self._window = Window(0, memoryview(b""))
        self._straight_on = 0

    @property
    def first_offset(self) -> int:
        """Queue offset of the message at position 0."""
        return self._first

    @property
    def unsummed(self) -> int:
        """Messages that the next `size` or `read` has to sum first."""
        return self._sums.unsummed

    @property
    def size(self) -> int:
        """Bytes in the stream now."""
        summed = self._sums.grow()
        return summed.bytes - self._skip(summed)

    def _skip(self, summed: Summed) -> int:
        """Bytes from the sums' base to position 0."""
        if self._skipped is None:
            self._skipped = self._sums.position_of(self._first, summed)
        return self._skipped

    def read(self, position: int, length: int) -> memoryview:
        """Bytes [position, position + length), fewer at the end. ExpiredMessageError; DamagedRecordError when the log
        is not what it was when it was summed."""
        summed = self._sums.grow()
        start = self._skip(summed) + position
        end = min(start + length, summed.bytes)
        if position < 0 or start >= end:
            return memoryview(b"")
        window = self._window
        if not window.start <= start < end <= window.end:
            goes_on = start == self._straight_on
            wanted_end = min(start + WINDOW_BYTES, summed.bytes) if goes_on and length < WINDOW_BYTES else end
            self._window = window = self._copy(start, max(end, wanted_end), summed)
        self._straight_on = end
        return window.text[start - window.start : end - window.start]

    def _copy(self, start: int, end: int, summed: Summed) -> Window:
        """At least the stream bytes [start, end), with the whole messages they are part of."""
        block = self._sums.block_at(start)
        last = self._sums.block_end(self._sums.block_at(end - 1).queue_offset, summed)
        first, parts = self._sums.rows(block.queue_offset, last.queue_offset)
        row_ends = np.cumsum(sizes_of(parts))
        begin = last.bytes - (int(row_ends[-1]) if len(row_ends) else 0)
        if begin != block.bytes and (first == block.queue_offset or begin < block.bytes):
            raise DamagedRecordError(self._physical_offset(first), "it is not as it was when its queue was summed")
        if start < begin:
            raise ExpiredMessageError(self._queue.topic, self._queue.queue_id, block.queue_offset, first)
        first_row = int(np.searchsorted(row_ends, start - begin, side="right"))
        end_row = int(np.searchsorted(row_ends, end - begin, side="left")) + 1
        pieces, passed = [], 0
        for part in parts:
            wanted = part.cut(max(first_row - passed, 0), max(end_row - passed, 0))
            if len(wanted):
                pieces.append(self._sums.text(wanted))
            passed += len(part)
        text = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return Window(begin + (int(row_ends[first_row - 1]) if first_row else 0), text.data.toreadonly())

    def _physical_offset(self, queue_offset: int) -> int:
        found = self._queue.read(queue_offset, 1)
        return int(found[0]["physical_offset"]) if len(found) else -1

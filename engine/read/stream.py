"""QueueStream: a queue as one growing text, body, newline, body, newline (docs/format.md, 13)."""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.deadline import WouldBlock, check_deadline, nonblocking, within
from engine.derived.consume_queue import ConsumeQueue
from engine.errors import (
    DamagedRecordError,
    ExpiredMessageError,
    RetiredFileError,
    StoreError,
    UnreadableRangeError,
)
from engine.read.stream_rows import LogPart, sizes_of
from engine.read.topic_queue import TopicQueue

if TYPE_CHECKING:
    from engine.read.offset_index import OffsetIndex, Summed

Array = np.ndarray[Any, Any]

WINDOW_BYTES = 1 << 20
"""Bytes copied at once for a sequential reader."""
LARGEST_WINDOW_BYTES = 3 << 20
"""Largest window that is extended to whole blocks."""
MOST_ROWS_AT_ONCE = 1 << 15
"""Messages copied at once on a nonblocking thread, in about 4 ms; a window of very short messages has many more."""
BACKGROUND_READ_BYTES = WINDOW_BYTES
"""Shorter reads do not use the background: two threads would contend for the GIL at each read."""


class QueueStream:
    """The text of a queue's messages from `first_offset` on; positions count bytes of that text. A topic's messages are
    in the order of the log.

    Messages that are damaged when they are summed are left out. Retention does not move position 0. Thread safety: any
    thread.
    """

    def __init__(self, queue: ConsumeQueue | TopicQueue, index: OffsetIndex) -> None:
        """Position 0 is the queue's first message at construction."""
        self._queue = queue
        self._index = index
        self._first = queue.min_offset
        self._skipped: int | None = None

    @property
    def first_offset(self) -> int:
        """Queue offset of the message at position 0; in a topic's stream its physical offset, below 0 while there is no
        such message."""
        if not isinstance(self._queue, TopicQueue):
            return self._first
        return self._physical_offset(self._first) if self._first < self._queue.max_offset else self._queue.empty_offset

    def begins_as(self, first_offset: int) -> bool:
        """Whether a stream of the same queue or topic with that `first_offset` has the same message at position 0."""
        return self.first_offset == first_offset or (
            isinstance(self._queue, TopicQueue) and first_offset == self._queue.empty_offset
        )

    @property
    def unsummed(self) -> int:
        """Number of messages that the next `size` or `read` must sum first."""
        return self._index.unsummed

    @property
    def is_refused(self) -> bool:
        """Whether a message is left out because the disk could not read it."""
        return self._index.refused is not None

    @property
    def decompresses(self) -> bool:
        """Whether `sum_for` may decompress; False until a compressed message was met."""
        return self._index.decompresses

    @property
    def size(self) -> int:
        """Bytes in the stream now. WouldBlock on a nonblocking thread."""
        return self.size_of(self.summed())

    def sum_for(self, seconds: float) -> bool:
        """Sum new messages for about `seconds`; returns whether all are summed."""
        summed = self._index.grow_until(time.monotonic() + seconds, decompress=self.decompresses)
        if summed is None:
            return False
        with within(seconds) if self.decompresses else nonblocking():
            try:
                self._skip(summed)
            except WouldBlock:
                self._index.decompresses = True
        return self._skipped is not None

    def measure_for(self, start: int, end: int, summed: Summed, seconds: float) -> bool:
        """Measure compressed messages in the blocks of bytes [start, end), for about `seconds`; returns whether all are
        measured. Errors as `read`."""
        with suppress(WouldBlock), within(seconds):
            self.rows(start, end, summed)
            return True
        return False

    def _skip(self, summed: Summed) -> int:
        """Bytes from the index's base to position 0."""
        if self._skipped is None:
            self._skipped = self._index.position_of(self._first, summed)
        return self._skipped

    def read(self, position: int, length: int) -> memoryview:
        """Bytes [position, position + length), fewer at the end. ExpiredMessageError; DamagedRecordError: the log has
        changed since it was summed."""
        return self.reader().read(position, length)

    def reader(self, background: Executor | None = None) -> StreamReader:
        """A reader for sequential reads: it copies the next bytes ahead. `background`, an executor of one thread,
        prepares the next window during the use of the current one."""
        return StreamReader(self, background)

    def summed(self) -> Summed:
        """Sum all messages; returns the end."""
        return self._index.grow()

    def size_of(self, summed: Summed) -> int:
        """Bytes in the stream up to `summed`."""
        return summed.bytes - self._skip(summed)

    def rows(self, start: int, end: int, summed: Summed) -> tuple[int, list[LogPart]]:
        """The position of the first message with bytes in [start, end), and all such messages. Errors as `read`."""
        skipped = self._skip(summed)
        first, parts = self._rows(start + skipped, end + skipped, summed)
        return first - skipped, parts

    def _rows(self, start: int, end: int, summed: Summed) -> tuple[int, list[LogPart]]:
        """As `rows`; positions count from the index's base."""
        block, last = self._blocks(start, end, summed)
        first, parts = self._index.rows(block.queue_offset, last.queue_offset)
        row_ends = np.cumsum(sizes_of(parts))
        begin = last.bytes - (int(row_ends[-1]) if len(row_ends) else 0)
        if begin != block.bytes and (first == block.queue_offset or begin < block.bytes):
            raise DamagedRecordError(self._physical_offset(first), "it is not as it was when its queue was summed")
        if start < begin:
            raise ExpiredMessageError(self._queue.topic, self._queue.queue_id, block.queue_offset, first)
        first_row = int(np.searchsorted(row_ends, start - begin, side="right"))
        end_row = int(np.searchsorted(row_ends, end - begin, side="left")) + 1
        wanted, passed = [], 0
        for part in parts:
            wanted.append(part.cut(max(first_row - passed, 0), max(end_row - passed, 0)))
            passed += len(part)
        return begin + (int(row_ends[first_row - 1]) if first_row else 0), wanted

    def put_blocks(self, start: int, end: int, summed: Summed, text: Array) -> bool:
        """Write the bytes [start, end) to `text` of that length; False unless they are whole, unchanged blocks of plain
        messages. WouldBlock on a nonblocking thread."""
        skipped = self._skip(summed)
        first, last = self._blocks(start + skipped, end + skipped, summed)
        if (first.bytes, last.bytes) != (start + skipped, end + skipped):
            return False
        count = last.queue_offset - first.queue_offset
        try:
            return self._index.source.put_plain_text(self._queue, first.queue_offset, count, text) == end - start
        except (RetiredFileError, UnreadableRangeError):
            return False

    def _blocks(self, start: int, end: int, summed: Summed) -> tuple[Summed, Summed]:
        """Begin and end of the blocks with bytes [start, end), which count from the index's base."""
        first = self._index.block_at(start)
        last = self._index.block_end(self._index.block_at(end - 1).queue_offset, summed)
        if last.queue_offset - first.queue_offset > MOST_ROWS_AT_ONCE:
            check_deadline()
        return first, last

    def block_end(self, position: int, summed: Summed) -> int:
        """End position of the block with the byte before `position`."""
        skipped = self._skip(summed)
        block = self._index.block_at(position - 1 + skipped)
        return self._index.block_end(block.queue_offset, summed).bytes - skipped

    def put_text(self, part: LogPart, text: Array) -> int:
        """As `RowSource.put_text`."""
        return self._index.source.put_text(part, text)

    def _physical_offset(self, queue_offset: int) -> int:
        found = self._queue.read(queue_offset, 1)
        return int(found[0]["physical_offset"]) if len(found) else -1


class Window(NamedTuple):
    """Whole messages copied out of the log: the stream's bytes from position `start` on."""

    start: int
    text: memoryview

    @property
    def end(self) -> int:
        """Position just past the last byte."""
        return self.start + len(self.text)

    def holds(self, start: int, end: int) -> bool:
        """Whether the window contains the bytes [start, end), which may be none."""
        return self.start <= start and end <= self.start + len(self.text)

    def after(self, position: int) -> memoryview:
        """The text from `position` on; empty if that is outside the window."""
        return self.text[position - self.start :] if self.start <= position else self.text[:0]


class StreamReader:
    """Sequential reader of a stream.

    Thread safety: one thread at a time. The background only makes the next window, and the reader makes none meanwhile.
    """

    def __init__(self, stream: QueueStream, background: Executor | None) -> None:
        self._stream = stream
        self._background = background
        self._window = Window(0, memoryview(b""))
        self._next: Future[Window] | None = None
        self._size = 0
        self._straight_on = -1
        self._buffers = Buffers()
        self._prepared: dict[tuple[int, int], tuple[Window, int]] = {}

    @property
    def kept_bytes(self) -> int:
        """Approximate bytes of memory held for the next reads, including the background's window."""
        coming = LARGEST_WINDOW_BYTES if self._next is not None else 0
        return self._buffers.kept_bytes + len(self._window.text) + coming

    def let_go(self) -> None:
        """Release all memory until the next read. Any thread may call this."""
        coming, self._next = self._next, None
        if coming is not None:
            coming.cancel()
        self._window, self._buffers = Window(0, memoryview(b"")), Buffers()

    def prepare(self, position: int, length: int, seconds: float) -> None:
        """Prepare a later `read` of these bytes, so that it does not block; any thread may call this. If summing and
        measuring take longer than `seconds`, no window is made."""
        if not self._stream.sum_for(seconds):
            return
        summed = self._stream.summed()
        size = self._stream.size_of(summed)
        end = min(position + length, size)
        if 0 <= position < end and self._stream.measure_for(position, end, summed, seconds):
            window = self._next_window(Window(0, memoryview(b"")), position, end, summed, Buffers())
            self._prepared[position, length] = window, size

    def read(self, position: int, length: int) -> memoryview:
        """As `QueueStream.read`; the returned bytes never change. WouldBlock on a nonblocking thread: see `prepare`."""
        window, end = self._window, position + length
        prepared = self._prepared.pop((position, length), None) if self._prepared else None
        if prepared is not None:
            (window, self._size), self._straight_on = prepared, -1
            self._window, end = window, min(end, self._size)
        if not window.holds(position, end):
            summed = self._stream.summed()
            self._size = self._stream.size_of(summed)
            end = min(end, self._size)
            if not 0 <= position < end:
                return memoryview(b"")
            if not window.holds(position, end):
                self._window = window = self._made_ready(position, end) or self._window_at(position, end, summed)
        if position == self._straight_on:
            self._make_ready(end, length)
        self._straight_on = end
        return window.text[position - window.start : end - window.start]

    def _make_ready(self, position: int, length: int) -> None:
        """Make the next window in the background, if the next sequential read goes past the current window."""
        window = self._window
        if self._background is None or self._next is not None or length < BACKGROUND_READ_BYTES:
            return
        if window.end < min(position + length, self._size):
            self._next = self._background.submit(self._further_window, position, length)

    def _further_window(self, position: int, length: int) -> Window:
        with nonblocking():  # a reader may soon wait for this
            summed = self._stream.summed()
            end = min(position + length, self._stream.size_of(summed))
            return self._next_window(self._window, position, end, summed, self._buffers)

    def _made_ready(self, start: int, end: int) -> Window | None:
        """The background's window if it contains the bytes [start, end), else None."""
        made, self._next = self._next, None
        if made is None or made.cancel():
            return None
        try:
            window = made.result()
        except (StoreError, WouldBlock):  # a read of those bytes raises it again
            return None
        return window if window.holds(start, end) else None

    def _window_at(self, start: int, end: int, summed: Summed) -> Window:
        if start == self._straight_on:
            return self._next_window(self._window, start, end, summed, self._buffers)
        return self._copied(memoryview(b""), start, end, summed, self._buffers)

    def _next_window(self, window: Window, start: int, end: int, summed: Summed, buffers: Buffers) -> Window:
        """A window with at least the bytes [start, end), and usually the next ones."""
        known = window.after(start)
        further = min(max(end, start + WINDOW_BYTES), self._stream.size_of(summed))
        block_end = self._stream.block_end(further, summed)
        if block_end - start <= LARGEST_WINDOW_BYTES:
            further = block_end
            blocks = self._copied_blocks(known, start, further, summed, buffers)
            if blocks is not None:
                return blocks
        try:
            return self._copied(known, start, further, summed, buffers)
        except DamagedRecordError:  # the damage may be after `end`
            return self._copied(known, start, end, summed, buffers)

    def _copied_blocks(
        self, known: memoryview, start: int, end: int, summed: Summed, buffers: Buffers
    ) -> Window | None:
        """The bytes [start, end), beginning with `known`, if the others are whole blocks of plain messages; else
        None."""
        text = buffers.take(end - start)[: end - start]
        if not self._stream.put_blocks(start + len(known), end, summed, text[len(known) :]):
            return None
        text[: len(known)] = known
        return Window(start, text.data.toreadonly())

    def _copied(self, known: memoryview, start: int, end: int, summed: Summed, buffers: Buffers) -> Window:
        """A window with at least the stream bytes [start, end), which begin with `known`."""
        first, parts = self._stream.rows(start + len(known), end, summed)
        text = buffers.take(len(known) + sum(int(part.sizes.sum()) for part in parts))
        text[: len(known)] = known
        filled = len(known)
        for part in parts:
            filled += self._stream.put_text(part, text[filled:])
        return Window(first - len(known), text[:filled].data.toreadonly())


class Buffers:
    """Memory for texts, reused once it has no views: fresh memory costs a page fault each 4 KiB, which takes longer
    than the copy. Thread safety: one thread at a time."""

    _KEPT = 2
    _KEPT_BYTES = 4 << 20

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory that is kept."""
        return sum(map(len, self._kept))

    def take(self, size: int) -> Array:
        """An array (uint8) of at least `size` bytes with arbitrary content."""
        for memory in self._kept:
            if len(memory) >= size and _has_no_view(memory):
                return np.frombuffer(memory, np.uint8)
        if size + size // 4 > self._KEPT_BYTES:
            return np.empty(size, np.uint8)
        new = bytearray(size + size // 4 + 1)
        self._kept = [*self._kept, new][-self._KEPT :]
        return np.frombuffer(new, np.uint8)


def _has_no_view(memory: bytearray) -> bool:
    """Whether there is no view of a bytearray: only then it can be resized."""
    try:
        memory.append(memory.pop())
    except BufferError:
        return False
    return True

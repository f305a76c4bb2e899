"""Offset index of the stream of a queue or topic: at which byte of the `.log` text each block of messages ends
(docs/format.md, 13).

A block is 1,024 queue offsets. For each whole block, the stream bytes from the index's base (the first message when it
was begun) to the block's end are known; the messages after the last whole block are summed together. So a position is
found without reading what is before its block. Everything is derived from the log: what is missing is summed when
someone asks.

Between two openings of a store the whole blocks are kept:

    STORE/fsstore/sums/<topic>/<queue id>       `all`: of the topic's stream                             little-endian
    header  magic 8 bytes | base i64
    row     first_physical i64 | last_physical i64 | end i64 | left_out i32 | crc u32         one whole block

`crc` is the CRC-32 of the row before it, begun with that of the row before. A file grows by rows; nothing is synced. It
is believed as far as its CRCs hold and the caller trusts the log, and deletable at any time.
"""

from __future__ import annotations

import math
import os
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engine.errors import ObstructedError, RetiredFileError, StoreError, UnreadableRangeError
from engine.files.disk import make_directory
from engine.files.file_scan import MAX_OFFSET
from engine.files.paths import open_or_create, read_file, remove_tree
from engine.haste import TakesLongError, in_haste, require_time
from engine.log.consume_queue import ConsumeQueue
from engine.read.stream import QueueStream
from engine.read.stream_rows import LogPart, RowSource, leave_out, sizes_of
from engine.read.topic_queue import TopicQueue
from engine.record.kernel.crc import crc32

Array = np.ndarray[Any, Any]

BLOCK_MESSAGES = 1024
STEP_BLOCKS = 32
"""Blocks that are summed at once."""

ALL_QUEUES = "all"
"""The file of a topic's stream."""

MAGIC = b"FSSUMS\x00\x01"
HEADER_BYTES = 16
MOST_BYTES = 256 << 20
"""Rows of eight thousand million messages: we wrote no longer file."""
ROW = np.dtype(
    [("first_physical", "<i8"), ("last_physical", "<i8"), ("end", "<i8"), ("left_out", "<i4"), ("crc", "<u4")]
)
assert ROW.itemsize == 32
_CHECKED_BYTES = 28


class IndexRow(NamedTuple):
    """One whole block: physical offsets of its first (from the base on) and last record, stream bytes from the base to
    its end, and how many of its messages are left out."""

    first_physical: int
    last_physical: int
    end: int
    left_out: int


class Summed(NamedTuple):
    """How far a queue is summed: all before `queue_offset`, which are `bytes` from the base on."""

    queue_offset: int
    bytes: int


class OffsetIndex:
    """The offset index of one queue. Thread safety: any thread; one at a time sums (an own lock)."""

    def __init__(self, queue: ConsumeQueue | TopicQueue, source: RowSource, checked_before: int) -> None:
        """Records at physical offsets below `checked_before` are checked whole when they are summed; the others were,
        by this process."""
        self.queue = queue
        self.source = source
        self._checked_before = checked_before
        self._lock = threading.Lock()
        self._set_base(queue.min_offset)
        self._counted = self._base
        self._set_blocks(())
        self._open_bytes = 0
        self._left_out: dict[int, frozenset[int]] = {}

    def _set_base(self, queue_offset: int) -> None:
        self._base, self._first_block = queue_offset, queue_offset // BLOCK_MESSAGES

    def _set_blocks(self, blocks: Sequence[IndexRow]) -> None:
        """The fields of all blocks, a column each: 32 bytes a block, because blocks stay for the life of a mount."""
        rows = zip(*blocks, strict=True) if blocks else ((), (), (), ())
        self._columns = tuple(array("q", row) for row in rows)
        _, _, self._ends, self._left_out_counts = self._columns

    # summing

    @property
    def unsummed(self) -> int:
        """Messages that the next `grow` has to sum."""
        unmerged = self.queue.unmerged if isinstance(self.queue, TopicQueue) else 0
        return max(self.queue.max_offset - self._counted, 0) + unmerged

    def grow(self) -> Summed:
        """Sum what is new. TakesLongError in haste: a body is compressed, or another thread sums."""
        summed = self.grow_until(math.inf)
        assert summed is not None
        return summed

    def grow_until(self, until_s: float) -> Summed | None:
        """As `grow`; None when there is more to sum at `until_s` (of time.monotonic)."""
        if not self._may_sum(until_s):
            return None
        try:
            if isinstance(self.queue, TopicQueue) and not self.queue.merge_until(until_s):
                return None
            max_offset = self.queue.max_offset
            if max_offset < self._counted:
                self._forget_from(max_offset)
            while self._counted < max_offset:
                step_end = (self._counted // BLOCK_MESSAGES + STEP_BLOCKS) * BLOCK_MESSAGES
                self._sum_until(min(max_offset, step_end), until_s)
                if self._counted < max_offset and time.monotonic() >= until_s:
                    return None
            return Summed(self._counted, self._total())
        finally:
            self._lock.release()

    def _may_sum(self, until_s: float) -> bool:
        """Take the lock; False when another thread has it all the time."""
        if self._lock.acquire(blocking=False):
            return True
        require_time()
        return self._lock.acquire(timeout=-1 if until_s == math.inf else max(until_s - time.monotonic(), 0))

    def _total(self) -> int:
        return (self._ends[-1] if self._ends else 0) + self._open_bytes

    def _sum_until(self, end: int, until_s: float) -> None:
        """Sum until `end`, or as far as bodies are decompressed at `until_s`."""
        first, parts = self._rows_left(self._counted, end, self._checked_before)
        next_row = self.source.measure(parts, until_s)
        end = end if next_row is None else first + next_row
        sizes = np.zeros(end - self._counted, np.int64)  # what expired before it was summed has no bytes
        found = sizes_of(parts)[:next_row]
        sizes[first - self._counted :][: len(found)] = found
        while self._counted < end:
            count = min(BLOCK_MESSAGES - self._counted % BLOCK_MESSAGES, len(sizes))
            self._count(sizes[:count])
            sizes = sizes[count:]

    def _rows_left(self, first: int, end: int, checked_before: int) -> tuple[int, list[LogPart]]:
        """The rows of [first, end) that have not expired, not measured, and where they begin; retention may go on
        meanwhile."""
        while True:
            first = max(first, min(self.queue.min_offset, end))
            try:
                parts = self.source.rows(self.queue, first, end - first, checked_before)
            except (RetiredFileError, UnreadableRangeError):
                if self.queue.min_offset <= first:
                    raise
            else:
                if min(self.queue.min_offset, end) <= first:  # or their file of the log may have gone meanwhile
                    return first, parts

    def _count(self, sizes: Array) -> None:
        """Add the next messages, all of one block; close the block when they reach its end."""
        number = self._counted // BLOCK_MESSAGES
        is_closed = (self._counted + len(sizes)) % BLOCK_MESSAGES == 0
        edges = self._edges(number) if is_closed else None  # before anything is counted: it may fail
        empty = self._counted + np.flatnonzero(sizes == 0)
        if len(empty):
            self._left_out[number] = self._left_out.get(number, frozenset()).union(empty.tolist())
        self._open_bytes += int(sizes.sum())
        self._counted += len(sizes)
        if edges is not None:
            left_out = len(self._left_out.get(number, ()))
            block = IndexRow(*edges, self._total(), left_out)
            self._open_bytes = 0
            for column, value in zip(self._columns, block, strict=True):
                column.append(value)

    def _edges(self, number: int) -> tuple[int, int]:
        """Physical offsets of a block's first and last record, -1 for one that is gone."""
        first, last = max(number * BLOCK_MESSAGES, self._base), (number + 1) * BLOCK_MESSAGES - 1
        return self._physical_offset(first), self._physical_offset(last)

    def _physical_offset(self, queue_offset: int) -> int:
        with suppress(RetiredFileError, UnreadableRangeError):
            return next(iter(self.queue.read(queue_offset, 1)["physical_offset"].tolist()), -1)
        return -1

    def _forget_from(self, max_offset: int) -> None:
        """The queue was cut: keep the whole blocks before `max_offset`."""
        self._set_base(min(self._base, max_offset))
        kept = max(max_offset // BLOCK_MESSAGES - self._first_block, 0)
        for column in self._columns:
            del column[kept:]
        self._open_bytes = 0
        self._counted = (self._first_block + kept) * BLOCK_MESSAGES if kept else self._base
        self._left_out = {block: out for block, out in self._left_out.items() if block < self._first_block + kept}

    # finding positions

    def block_at(self, position: int) -> Summed:
        """Begin of the block that the stream byte `position` (from the base on) lies in."""
        index = bisect_right(self._ends, position)
        first = max((self._first_block + index) * BLOCK_MESSAGES, self._base)
        return Summed(first, self._ends[index - 1] if index else 0)

    def block_end(self, queue_offset: int, summed: Summed) -> Summed:
        """End of the block that holds `queue_offset`; of the last one, where `summed` ends."""
        index = queue_offset // BLOCK_MESSAGES - self._first_block
        end = (self._first_block + index + 1) * BLOCK_MESSAGES
        if 0 <= index < len(self._ends) and end <= summed.queue_offset:
            return Summed(end, self._ends[index])
        return summed

    def position_of(self, queue_offset: int, summed: Summed) -> int:
        """Stream bytes from the base to `queue_offset`, or to the first message after it that has not expired."""
        if queue_offset <= self._base:
            return 0
        end = self.block_end(max(queue_offset, min(self.queue.min_offset, summed.queue_offset)), summed)
        _, parts = self.rows(queue_offset, end.queue_offset)
        return end.bytes - int(sizes_of(parts).sum())

    def rows(self, first: int, end: int) -> tuple[int, list[LogPart]]:
        """The rows of [first, end) that have not expired, without those that were left out when they were summed, and
        the queue offset of the first."""
        first, parts = self._rows_left(first, end, 0)
        self.source.measure(parts)
        for queue_offset in self._left_out_of(range(first // BLOCK_MESSAGES, -(-end // BLOCK_MESSAGES))):
            leave_out(parts, queue_offset - first)
        return first, parts

    def _left_out_of(self, blocks: range) -> list[int]:
        """The queue offsets that were left out of those blocks when they were summed."""
        found: list[int] = []
        for block in blocks:
            known = self._left_out.get(block)
            index = block - self._first_block
            if known is None and 0 <= index < len(self._left_out_counts) and self._left_out_counts[index]:
                first, parts = self._rows_left(block * BLOCK_MESSAGES, (block + 1) * BLOCK_MESSAGES, 1 << 62)
                self.source.measure(parts)
                known = self._left_out[block] = frozenset((first + np.flatnonzero(sizes_of(parts) == 0)).tolist())
            found += known or ()
        return found

    # what is kept

    def restore(self, base: int, blocks: Sequence[IndexRow]) -> bool:
        """Take over blocks that were kept instead of summing again, if the queue agrees with them; whether it does."""
        end = (base // BLOCK_MESSAGES + len(blocks)) * BLOCK_MESSAGES
        if not blocks or base > self._base or not self._base < end <= self.queue.max_offset:
            return False
        edges = self._edges(end // BLOCK_MESSAGES - 1)
        if edges[1] != blocks[-1].last_physical or edges[0] not in (blocks[-1].first_physical, -1):
            return False
        self._set_base(base)
        self._counted = end
        self._set_blocks(blocks)
        return True

    def kept(self, first: int) -> tuple[int, list[IndexRow]]:
        """(base, whole blocks from the `first`-th on)."""
        with self._lock:
            return self._base, list(map(IndexRow, *(column[first:] for column in self._columns)))


class OffsetIndexes:
    """The offset indexes of all queues of a store, and the streams over them. Thread safety: any thread."""

    def __init__(
        self, directory: Path, source: RowSource, *, trusted_end: int, checked_before: int, writable: bool = True
    ) -> None:
        """Kept blocks count for records before `trusted_end` of the log, whose files nobody changed since; 0: none do.

        Records at physical offsets below `checked_before` are checked whole (CRC) when they are summed. Unless
        `writable`, nothing is written to `directory`.
        """
        self._directory = directory
        self._source = source
        self._trusted_end = trusted_end
        self._checked_before = checked_before
        self._writable = writable
        self._lock = threading.Lock()
        self._indexes: dict[ConsumeQueue | TopicQueue, OffsetIndex] = {}
        self._saved: dict[ConsumeQueue | TopicQueue, int] = {}
        self._topics: dict[str, TopicQueue] = {}

    def stream(self, queue: ConsumeQueue | TopicQueue) -> QueueStream:
        """The text of the queue, from its first message now on."""
        return QueueStream(queue, self.of(queue))

    def topic(self, topic: str, make: Callable[[], TopicQueue]) -> TopicQueue:
        """The messages of all queues of a topic; made where it is not there yet, or others are there now."""
        known = self._topics.get(topic)
        if known is None or known.is_stale:
            with self._lock:
                known = self._topics.get(topic)
                if known is None or known.is_stale:
                    self._forget(lambda queue: queue is known)
                    known = self._topics[topic] = make()
        return known

    def refreshed(self) -> None:
        """FOLLOW: all queues were looked at again."""
        for topic in list(self._topics.values()):
            topic.refreshed()

    def of(self, queue: ConsumeQueue | TopicQueue) -> OffsetIndex:
        """The offset index of a queue, with the blocks that were kept; of a topic, once it is merged."""
        known = self._indexes.get(queue)
        if known is not None:
            return known
        with self._lock:
            known = self._indexes.get(queue)
            if known is None:
                base, blocks = self._kept(queue)
                if blocks and isinstance(queue, TopicQueue):  # its rows have no numbers of their own
                    last = (base // BLOCK_MESSAGES + len(blocks)) * BLOCK_MESSAGES - 1
                    queue.number_from(last, blocks[-1].last_physical)
                known = OffsetIndex(queue, self._source, self._checked_before)
                self._saved[queue] = len(blocks) if known.restore(base, blocks) else 0
                self._indexes[queue] = known
            return known

    def _kept(self, queue: ConsumeQueue | TopicQueue) -> tuple[int, list[IndexRow]]:
        """(base, blocks) that were kept, and may be believed if the queue agrees."""
        try:
            raw = read_file(self._path(queue), MOST_BYTES)
        except (OSError, StoreError, ValueError):
            return 0, []
        base, blocks = decode_rows(raw)
        return base, [block for block in blocks if block.last_physical < self._trusted_end]

    def _path(self, queue: ConsumeQueue | TopicQueue) -> Path:
        return self._directory / queue.topic / (ALL_QUEUES if isinstance(queue, TopicQueue) else str(queue.queue_id))

    def save(self) -> None:
        """Sum what is new in queues whose index is in use, where that does not take long, and write what grew. An error
        costs only that it is summed again."""
        if not self._writable:
            return
        with self._lock:
            for queue, index in self._indexes.items():
                with suppress(OSError, StoreError):
                    with suppress(TakesLongError), in_haste():
                        if not isinstance(queue, TopicQueue) or queue.unmerged <= STEP_BLOCKS * BLOCK_MESSAGES:
                            index.grow()
                    base, blocks = index.kept(self._saved[queue])
                    if blocks:
                        self._append(queue, base, blocks)
                        self._saved[queue] += len(blocks)

    def _append(self, queue: ConsumeQueue | TopicQueue, base: int, blocks: list[IndexRow]) -> None:
        """Write `blocks` after those that count; what else is in the file is cut off."""
        path = self._path(queue)
        make_directory(path.parent)
        end = HEADER_BYTES + self._saved[queue] * ROW.itemsize
        descriptor = open_or_create(path)
        try:
            os.ftruncate(descriptor, end if end > HEADER_BYTES else 0)
            header = MAGIC + base.to_bytes(8, "little", signed=True)
            os.pwrite(descriptor, header, 0)
            before = os.pread(descriptor, 4, end - 4) if end > HEADER_BYTES else header
            os.pwrite(descriptor, encode_rows(blocks, before), end)
        finally:
            os.close(descriptor)

    def forget_log(self) -> None:
        """Another log came in place of the one that was summed: none of its records was checked by this process."""
        with self._lock:
            self._forget(lambda _: True)
            self._trusted_end, self._checked_before = 0, MAX_OFFSET

    def _forget(self, unwanted: Callable[[ConsumeQueue | TopicQueue], bool]) -> None:
        """Of such queues, everything."""
        for queue in filter(unwanted, [*self._indexes]):
            del self._indexes[queue], self._saved[queue]
        for topic, merged in list(self._topics.items()):
            if unwanted(merged):
                merged.is_stale = True
                del self._topics[topic]

    def forget_topic(self, topic: str) -> None:
        """All queues of a topic were deleted."""
        with self._lock:
            self._forget(lambda queue: queue.topic == topic)
            if self._writable:
                with suppress(OSError, ObstructedError):
                    remove_tree(self._directory / topic)


def encode_rows(blocks: list[IndexRow], before: bytes) -> bytes:
    """Rows as stored, after a row whose CRC (or header) is `before`."""
    rows = np.array([(*block, 0) for block in blocks], ROW)
    crc = crc32(before)
    for row in rows:
        crc = crc32(row.tobytes()[:_CHECKED_BYTES], crc)
        row["crc"] = crc
        crc = crc32(crc.to_bytes(4, "little"))
    return rows.tobytes()


def decode_rows(raw: bytes | bytearray) -> tuple[int, list[IndexRow]]:
    """(base, blocks) of a file, as far as its CRCs hold."""
    if len(raw) < HEADER_BYTES or raw[:8] != MAGIC:
        return 0, []
    rows = np.frombuffer(raw, ROW, (len(raw) - HEADER_BYTES) // ROW.itemsize, HEADER_BYTES)
    crc = crc32(raw[:HEADER_BYTES])
    whole = 0
    for position, stored in zip(range(HEADER_BYTES, len(raw), ROW.itemsize), rows["crc"].tolist(), strict=False):
        crc = crc32(raw[position : position + _CHECKED_BYTES], crc)
        if crc != stored:
            break
        crc = crc32(crc.to_bytes(4, "little"))
        whole += 1
    blocks = [IndexRow(*row[:4]) for row in rows[:whole].tolist()]
    return int.from_bytes(raw[8:HEADER_BYTES], "little", signed=True), blocks

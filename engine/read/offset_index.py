"""Offset index of the stream of a queue or topic: the end position of each block of messages in the `.log` text
(docs/format.md, 13).

A block is 1,024 queue offsets. For each whole block the index has the stream bytes from its base (the first message at
its creation) to the block's end; messages after the last whole block have one sum. So a position is found without
reading earlier blocks. Messages of this process are summed at dispatch (`QueueEnd.text_blocks`), all others from the
log, in the background or on demand.

Whole blocks are stored:

    STORE/fsstore/sums/<topic>/<queue id>       `all`: the topic's stream                                little-endian
    header  magic 8 bytes
    row     base i64 | first_physical i64 | last_physical i64 | end i64 | left_out i32 | crc u32      one whole block

`crc` is 31 bits of the CRC-32 of the row's other fields. A file grows by rows and is never synced. Its rows are used up
to the first with a wrong CRC, another base or a falling end, and only before the trusted end of the log. The file may
be deleted at any time.
"""

from __future__ import annotations

import math
import os
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from engine.deadline import WouldBlock, check_deadline, nonblocking
from engine.derived.consume_queue import ConsumeQueue
from engine.errors import ObstructedError, RetiredFileError, StoreError, UnreadableRangeError
from engine.files.disk import make_directory
from engine.files.ignored import IgnoredErrors
from engine.files.paths import open_or_create, read_file, remove_tree
from engine.read.stream_rows import LogPart, RowSource, first_refused, leave_out, sizes_of
from engine.read.topic_queue import TopicQueue
from engine.record.header import CRC_MASK, MAX_OFFSET
from engine.record.kernel.append import BLOCK_MESSAGES as BLOCK_MESSAGES
from engine.record.kernel.crc import crc32
from engine.record.kernel.scan import whole_bodies
from engine.results import TextAtRest

Array = np.ndarray[Any, Any]
Source: TypeAlias = ConsumeQueue | TopicQueue

QUICK_SUM_MESSAGES = 2_000
"""Maximum number of messages that a nonblocking thread sums, in about 1 ms."""

STEP_BLOCKS = 32
"""Blocks that are summed at once."""

LOOK_S, LONGEST_LOOK_S = 1.0, 60.0
"""First and longest pause in seconds before data that the disk could not read is tried again."""

ALL_QUEUES = "all"
"""The file of a topic's stream."""

MAGIC = b"FSSUMS\x00\x02"
HEADER_BYTES = len(MAGIC)
MOST_BYTES = 256 << 20
"""Limit of a file: the rows of about 6.9 billion messages."""
COLUMNS = ("first_physical", "last_physical", "end", "left_out")
"""Columns for whole blocks: physical offsets of the first (from the base on) and last record, stream bytes from the
base to the block's end, and the number of messages that are left out."""
ROW = np.dtype([("base", "<i8"), *((name, "<i8") for name in COLUMNS[:3]), ("left_out", "<i4"), ("crc", "<u4")])
assert ROW.itemsize == 40
_CHECKED_BYTES = 36


class Summed(NamedTuple):
    """The summed part of a queue: all messages before `queue_offset`, with `bytes` stream bytes from the base on."""

    queue_offset: int
    bytes: int


class OffsetIndex:
    """The offset index of one queue. Thread safety: any thread; sums take turns under a lock of its own."""

    def __init__(
        self, queue: Source, source: RowSource, checked_before: int, is_refused: Callable[[OffsetIndex], object]
    ) -> None:
        """Records at physical offsets below `checked_before` are checked whole when they are summed; this process has
        checked the others already. `is_refused` is called when the disk could not read a message."""
        self.queue = queue
        self._is_refused = is_refused
        self.source = source
        self._checked_before = checked_before
        self._lock = threading.Lock()
        self.decompresses = False
        """Whether a compressed body was met while summing."""
        self.refused: int | None = None
        """Queue offset of the first message that the disk could not read. The sums from its block on are valid until
        the disk can read it."""
        self._look_at_s, self._look_pause_s = 0.0, LOOK_S
        self._set_base(queue.min_offset)
        self._counted = self._base
        self._columns = tuple(array("q") for _ in COLUMNS)
        _, _, self._ends, self._left_out_counts = self._columns
        self._open_bytes = 0
        self._left_out: dict[int, frozenset[int]] = {}
        self.stored_blocks = 0
        """Number of blocks that are in its file."""

    def _set_base(self, queue_offset: int) -> None:
        self._base, self._first_block = queue_offset, queue_offset // BLOCK_MESSAGES

    def _add_blocks(self, *fields: Array) -> None:
        """Add whole blocks; `fields` has one array for each column. They take 32 bytes a block, as long as a mount
        lasts."""
        for column, values in zip(self._columns, fields, strict=True):
            column.frombytes(values.astype(np.int64).tobytes())
        self._open_bytes = 0

    # summing

    @property
    def unsummed(self) -> int:
        """Number of messages that the next `grow` must read."""
        if self.queue.text_blocks and self._lock.acquire(blocking=False):
            try:
                self._take_noted()
            finally:
                self._lock.release()
        unmerged = self.queue.unmerged if isinstance(self.queue, TopicQueue) else 0
        return max(self.queue.max_offset - self._counted, 0) + unmerged

    @property
    def lasting_blocks(self) -> int:
        """Number of whole summed blocks before the first message that the disk could not read."""
        if self.refused is None:
            return len(self._ends)
        return min(len(self._ends), max(self.refused // BLOCK_MESSAGES - self._first_block, 0))

    def is_outdated(self) -> bool:
        """Whether the disk can read the refused message now. It is tried at growing intervals, up to a minute."""
        if self.refused is None or time.monotonic() < self._look_at_s:
            return False
        with suppress(RetiredFileError, UnreadableRangeError):
            if first_refused(self._rows_left(self.refused, self.refused + 1, MAX_OFFSET)[1]) is None:
                return True
        self._look_at_s = time.monotonic() + self._look_pause_s
        self._look_pause_s = min(2 * self._look_pause_s, LONGEST_LOOK_S)
        return False

    def grow(self) -> Summed:
        """Sum new messages. WouldBlock on a nonblocking thread: there are many, a body is compressed, or another thread
        sums."""
        if self.unsummed > QUICK_SUM_MESSAGES:
            check_deadline()
        summed = self.grow_until(math.inf)
        assert summed is not None
        return summed

    def grow_until(self, until_s: float, *, decompress: bool = True) -> Summed | None:
        """As `grow`; None when messages are left at `until_s` (of time.monotonic), or, without `decompress`, from a
        compressed body on."""
        if not self._may_sum(until_s):
            return None
        try:
            if isinstance(self.queue, TopicQueue) and not self.queue.merge_until(until_s):
                return None
            max_offset = self.queue.max_offset
            if max_offset < self._counted:
                self._forget_from(max_offset)
            while self._counted < max_offset:
                if not (self._take_noted() or self._sum_plain_blocks(max_offset)):
                    step_end = (self._counted // BLOCK_MESSAGES + STEP_BLOCKS) * BLOCK_MESSAGES
                    try:
                        with nullcontext() if decompress else nonblocking():
                            self._sum_until(min(max_offset, step_end), until_s)
                    except WouldBlock:
                        self.decompresses = True
                        if decompress:
                            raise
                        return None
                if self._counted < max_offset and time.monotonic() >= until_s:
                    return None
            self._drop_noted()
            return Summed(self._counted, self._total())
        finally:
            self._lock.release()

    def _may_sum(self, until_s: float) -> bool:
        """Take the lock; False: another thread has it until `until_s`."""
        if self._lock.acquire(blocking=False):
            return True
        check_deadline()
        return self._lock.acquire(timeout=-1 if until_s == math.inf else max(until_s - time.monotonic(), 0))

    def _take_noted(self) -> bool:
        """Add the next blocks that were summed at dispatch; returns whether there were any."""
        noted, began = self.queue.text_blocks, self._counted
        number = began // BLOCK_MESSAGES
        while number * BLOCK_MESSAGES >= self._base and number not in self._left_out:
            block = noted.pop(number, None)
            if block is None:
                break
            fields = (*block[:2], self._total() - self._open_bytes + block[2], 0)
            self._add_blocks(*np.array(fields).reshape(4, 1))
            number += 1
            self._counted = number * BLOCK_MESSAGES
        return self._counted > began

    def _drop_noted(self) -> None:
        """Drop dispatch sums of blocks that are summed already."""
        noted = self.queue.text_blocks
        for number in [number for number in noted.copy() if number < self._counted // BLOCK_MESSAGES]:
            noted.pop(number, None)

    def _sum_plain_blocks(self, max_offset: int) -> bool:
        """Sum the next whole blocks if all their messages are plain and not expired; returns whether they were
        summed."""
        first = self._counted
        count = min(max_offset // BLOCK_MESSAGES - first // BLOCK_MESSAGES, STEP_BLOCKS) * BLOCK_MESSAGES
        if first % BLOCK_MESSAGES or not count or self.queue.min_offset > first:
            return False
        try:
            found = self.source.plain_sizes(self.queue, first, count, self._checked_before)
        except (RetiredFileError, UnreadableRangeError):
            return False
        if found is None:
            return False
        offsets, sizes = found
        ends = self._total() + np.cumsum(sizes.reshape(-1, BLOCK_MESSAGES).sum(axis=1))
        self._add_blocks(offsets[::BLOCK_MESSAGES], offsets[BLOCK_MESSAGES - 1 :: BLOCK_MESSAGES], ends, 0 * ends)
        self._counted += count
        return True

    def _total(self) -> int:
        return (self._ends[-1] if self._ends else 0) + self._open_bytes

    def _sum_until(self, end: int, until_s: float) -> None:
        """Sum until `end`, or as far as bodies could be decompressed before `until_s`."""
        first, parts = self._rows_left(self._counted, end, self._checked_before)
        next_row = self.source.measure(parts, until_s)
        end = end if next_row is None else first + next_row
        row = first_refused(parts)
        if self.refused is None and row is not None:
            self.refused = first + row
            self._is_refused(self)
        sizes = np.zeros(end - self._counted, np.int64)  # messages that expired before the sum have no bytes
        found = sizes_of(parts)[:next_row]
        sizes[first - self._counted :][: len(found)] = found
        while self._counted < end:
            count = min(BLOCK_MESSAGES - self._counted % BLOCK_MESSAGES, len(sizes))
            self._count(sizes[:count])
            sizes = sizes[count:]

    def _rows_left(self, first: int, end: int, checked_before: int) -> tuple[int, list[LogPart]]:
        """The first queue offset in [first, end) that has not expired, and the unmeasured rows from it on. Retention
        may run concurrently."""
        while True:
            first = max(first, min(self.queue.min_offset, end))
            try:
                parts = self.source.rows(self.queue, first, end - first, checked_before)
            except (RetiredFileError, UnreadableRangeError):
                if self.queue.min_offset <= first:
                    raise
            else:
                if min(self.queue.min_offset, end) <= first:  # else their log file may have been deleted meanwhile
                    return first, parts

    def _count(self, sizes: Array) -> None:
        """Add the sizes of the next messages, all of one block; complete the block when they reach its end."""
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
            self._add_blocks(*np.array((*edges, self._total(), left_out)).reshape(4, 1))

    def _edges(self, number: int) -> tuple[int, int]:
        """Physical offsets of a block's first and last record, -1 for a deleted one."""
        first, last = max(number * BLOCK_MESSAGES, self._base), (number + 1) * BLOCK_MESSAGES - 1
        return self._physical_offset(first), self._physical_offset(last)

    def _physical_offset(self, queue_offset: int) -> int:
        with suppress(RetiredFileError, UnreadableRangeError):
            return next(iter(self.queue.read(queue_offset, 1)["physical_offset"].tolist()), -1)
        return -1

    def _forget_from(self, max_offset: int) -> None:
        """After the queue was cut: keep only the whole blocks before `max_offset`."""
        self._set_base(min(self._base, max_offset))
        kept = max(max_offset // BLOCK_MESSAGES - self._first_block, 0)
        for column in self._columns:
            del column[kept:]
        self._open_bytes = 0
        self._counted = (self._first_block + kept) * BLOCK_MESSAGES if kept else self._base
        self._left_out = {block: out for block, out in self._left_out.items() if block < self._first_block + kept}

    # finding positions

    def block_at(self, position: int) -> Summed:
        """Begin of the block with the stream byte `position`, which counts from the base."""
        index = bisect_right(self._ends, position)
        first = max((self._first_block + index) * BLOCK_MESSAGES, self._base)
        return Summed(first, self._ends[index - 1] if index else 0)

    def block_end(self, queue_offset: int, summed: Summed) -> Summed:
        """End of the block with `queue_offset`; `summed` for the last, incomplete block."""
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
        """The first queue offset in [first, end) that has not expired, and the rows from it on; rows that were left out
        of the sum have size 0."""
        first, parts = self._rows_left(first, end, 0)
        self.source.measure(parts)
        for queue_offset in self._left_out_of(range(first // BLOCK_MESSAGES, -(-end // BLOCK_MESSAGES))):
            leave_out(parts, queue_offset - first)
        return first, parts

    def _left_out_of(self, blocks: range) -> list[int]:
        """The queue offsets that were left out when `blocks` were summed."""
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

    # stored blocks

    def restore(self, rows: Array) -> bool:
        """Use stored blocks (ROW) in an empty index, if they match the queue; returns whether they do."""
        base = int(rows[0]["base"]) if len(rows) else 0
        end = (base // BLOCK_MESSAGES + len(rows)) * BLOCK_MESSAGES
        if not len(rows) or not 0 <= base <= self._base < end <= self.queue.max_offset:
            return False
        first, last = self._edges(end // BLOCK_MESSAGES - 1)
        if last != rows[-1]["last_physical"] or first not in (rows[-1]["first_physical"], -1):
            return False
        self._set_base(base)
        self._counted = end
        self._add_blocks(*(rows[name] for name in COLUMNS))
        return True

    def kept(self, first: int) -> Array:
        """The `lasting_blocks` from the `first`-th on, as ROW without CRCs."""
        with self._lock:
            rows = np.zeros(max(self.lasting_blocks - first, 0), ROW)
            rows["base"] = self._base
            for name, column in zip(COLUMNS, self._columns, strict=True):
                rows[name] = column[first : first + len(rows)]
            return rows


class OffsetIndexes:
    """The offset indexes of all queues and topics of a store. Thread safety: any thread."""

    def __init__(
        self,
        directory: Path,
        source: RowSource,
        *,
        trusted_end: int,
        checked_before: int,
        writable: bool = True,
        ignored: IgnoredErrors | None = None,
    ) -> None:
        """Stored blocks are used for records before physical offset `trusted_end`: those log files are unchanged.

        Records at physical offsets below `checked_before` are checked whole (CRC) when they are summed. Unless
        `writable`, nothing is written to `directory`. Failed writes are noted in `ignored`.
        """
        self._ignored = ignored or IgnoredErrors()
        self._directory = directory
        self._source = source
        self._trusted_end = trusted_end
        self._checked_before = checked_before
        self._writable = writable
        self._lock = threading.Lock()
        self._indexes: dict[str, dict[Source, OffsetIndex]] = {}  # by topic
        self._topics: dict[str, TopicQueue] = {}
        self._refused: set[OffsetIndex] = set()
        self._due: set[Source] = set()
        self._grown, self._grown_before = set[str](), set[str]()

    def topic(self, topic: str, make: Callable[[], TopicQueue]) -> TopicQueue:
        """The messages of all queues of a topic; `make` is called if there is no object yet, or a stale one."""
        known = self._topics.get(topic)
        if known is None or known.is_stale:
            with self._lock:
                known = self._topics.get(topic)
                if known is None or known.is_stale:
                    if known is not None:
                        self._drop(known)
                    known = self._topics[topic] = make()
        return known

    def note_growth(self, topic: str | None = None) -> None:
        """FOLLOW: a queue of the topic changed, or one of any topic came or went. Call `refreshed` next."""
        self._grown.update(self._topics if topic is None else (topic,))

    def refreshed(self) -> None:
        """FOLLOW: call this after each look at the queues. A topic's bound is that of the look before, so the topics
        that grew then are updated, too."""
        grown, self._grown_before, self._grown = self._grown | self._grown_before, self._grown, set()
        for topic in grown:
            merged = self._topics.get(topic)
            if merged is not None:
                merged.refreshed()

    def of(self, queue: Source) -> OffsetIndex:
        """The offset index of a queue, or of a merged topic, with its stored blocks."""
        known = self._known(queue)
        if known is not None:
            return known
        with self._lock:
            known = self._known(queue)
            if known is None:
                kept = self._kept(queue)
                if len(kept) and isinstance(queue, TopicQueue):  # its numbers start anew in each process
                    last = (int(kept[0]["base"]) // BLOCK_MESSAGES + len(kept)) * BLOCK_MESSAGES - 1
                    queue.number_from(last, int(kept[-1]["last_physical"]))
                known = OffsetIndex(queue, self._source, self._checked_before, self._refused.add)
                known.stored_blocks = len(kept) if known.restore(kept) else 0
                self._indexes.setdefault(queue.topic, {})[queue] = known
                if isinstance(queue, ConsumeQueue):
                    self._due.add(queue)
            return known

    def text_at_rest(self, topic: str, rows: bytes) -> TextAtRest | None:
        """The text of messages without an index (TOPIC_ROW, in the order of the log); None unless each is whole and
        plain."""
        return self._source.text_at_rest(topic, rows, self._checked_before)

    def _known(self, queue: Source) -> OffsetIndex | None:
        of_topic = self._indexes.get(queue.topic)
        return None if of_topic is None else of_topic.get(queue)

    def _kept(self, queue: Source) -> Array:
        """Stored blocks (ROW) before the trusted end; the caller compares them with the queue."""
        try:
            raw = read_file(self._path(queue), MOST_BYTES)
        except (OSError, StoreError, ValueError):
            return np.empty(0, ROW)
        rows = decode_rows(raw)
        return rows[: _leading(rows["last_physical"] < self._trusted_end)]

    def _path(self, queue: Source) -> Path:
        return self._directory / queue.topic / (ALL_QUEUES if isinstance(queue, TopicQueue) else str(queue.queue_id))

    def keep(self, grown: Iterable[Source], seconds: float) -> bool:
        """Sum new messages for about `seconds`, without decompressing, and store new whole blocks: of the queues that
        have `grown`, and of those with work left from earlier calls. False: some is left. Messages whose blocks can't
        be stored are summed again later."""
        until_s = time.monotonic() + seconds
        is_done = True
        self._due.update(grown, self._forget_outdated())
        for queue in list(self._due):
            try:
                if queue.is_stale or not self._is_worth_it(queue) or self._is_kept(queue, until_s):
                    self._due.discard(queue)
                else:
                    is_done &= self.of(queue).decompresses
            except (OSError, StoreError) as error:
                self._ignored.note("sizes of a stream are not kept, and are summed again", error)
            if time.monotonic() >= until_s:
                return False
        return is_done

    def _is_kept(self, queue: Source, until_s: float) -> bool:
        """Sum and store the blocks of a queue; returns whether all its messages are summed. OSError, StoreError."""
        index = self.of(queue)
        summed = index.grow_until(until_s, decompress=False)
        self._save(queue, index)
        return summed is not None

    def _forget_outdated(self) -> list[Source]:
        """Drop indexes with sums from before the disk could read a refused message, and return their queues. Open
        streams keep the old sums."""
        outdated = []
        for index in list(self._refused):
            if self._known(index.queue) is index and not index.is_outdated():
                continue
            self._refused.discard(index)
            with self._lock:
                if self._known(index.queue) is index:
                    self._drop(index.queue)
                    outdated.append(index.queue)
        return outdated

    def _is_worth_it(self, queue: Source) -> bool:
        """Whether there may be a new whole block; an unused queue counts once it has a whole block."""
        index = self._known(queue)
        if index is None and (
            queue.max_offset < BLOCK_MESSAGES or queue.max_offset - queue.min_offset < BLOCK_MESSAGES
        ):
            return False
        index = index or self.of(queue)
        is_unsaved = self._writable and index.lasting_blocks > index.stored_blocks
        return bool(queue.text_blocks) or index.unsummed >= BLOCK_MESSAGES or is_unsaved

    def _save(self, queue: Source, index: OffsetIndex) -> None:
        with self._lock:
            if self._writable and self._known(queue) is index:  # else its topic was deleted
                rows = index.kept(index.stored_blocks)
                if len(rows):
                    self._append(queue, rows, index.stored_blocks)
                    index.stored_blocks += len(rows)

    def _append(self, queue: Source, rows: Array, stored_blocks: int) -> None:
        """Write `rows` after the valid rows of the file; the rest of the file is cut off."""
        path = self._path(queue)
        make_directory(path.parent)
        end = HEADER_BYTES + stored_blocks * ROW.itemsize
        descriptor = open_or_create(path)
        try:
            os.ftruncate(descriptor, end if end > HEADER_BYTES else 0)
            os.pwrite(descriptor, MAGIC, 0)
            os.pwrite(descriptor, encode_rows(rows), end)
        finally:
            os.close(descriptor)

    @property
    def in_use(self) -> list[Source]:
        """Queues and topics with an offset index."""
        return [queue for of_topic in list(self._indexes.values()) for queue in list(of_topic)]

    def forget_log(self) -> None:
        """Drop everything after another log replaced the summed one; this process has checked none of its records."""
        with self._lock:
            self._indexes.clear()
            for merged in self._topics.values():
                merged.is_stale = True
            self._topics.clear()
            self._trusted_end, self._checked_before = 0, MAX_OFFSET

    def _drop(self, queue: Source) -> None:
        """Drop the index of a queue, if it has one."""
        self._indexes.get(queue.topic, {}).pop(queue, None)

    def forget_topic(self, topic: str) -> None:
        """Drop memory and files of a topic whose queues were deleted."""
        with self._lock:
            self._indexes.pop(topic, None)
            merged = self._topics.pop(topic, None)
            if merged is not None:
                merged.is_stale = True
            if self._writable:
                with suppress(OSError, ObstructedError):
                    remove_tree(self._directory / topic)


def encode_rows(rows: Array) -> bytes:
    """Rows as stored, with their CRCs."""
    raw = rows.tobytes()
    starts = range(0, len(raw), ROW.itemsize)
    rows["crc"] = [crc32(raw[start : start + _CHECKED_BYTES]) & CRC_MASK for start in starts]
    return rows.tobytes()


def decode_rows(raw: bytes | bytearray) -> Array:
    """The valid leading rows of a file: see above."""
    if raw[:HEADER_BYTES] != MAGIC:
        return np.empty(0, ROW)
    rows = np.frombuffer(raw, ROW, (len(raw) - HEADER_BYTES) // ROW.itemsize, HEADER_BYTES)
    starts = HEADER_BYTES + ROW.itemsize * np.arange(len(rows))
    sizes = np.full(len(rows), _CHECKED_BYTES)
    good = whole_bodies(np.frombuffer(raw, np.uint8), starts, sizes, rows["crc"].astype(np.int32))
    good &= (rows["base"] == rows["base"][:1]) & (np.diff(rows["end"], prepend=0) >= 0)
    return rows[: _leading(good)]


def _leading(good: Array) -> int:
    """Number of leading true values."""
    return len(good) if good.all() else int(np.argmin(good))

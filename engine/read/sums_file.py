"""Sums files: the stream sums of each queue between two openings of a store (docs/format.md, 13).

    STORE/fsstore/sums/<topic>/<queue id>                                                                 little-endian
    header  magic 8 bytes | base i64
    row     first_physical i64 | last_physical i64 | end i64 | left_out i32 | crc u32      a whole block of 1,024 queue
    offsets

`crc` is the CRC-32 of the row before it, begun with that of the row before. A file grows by rows; nothing is synced. It
is believed as far as its CRCs hold and the caller trusts the log, and deletable at any time.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from engine.errors import ObstructedError, StoreError
from engine.files.disk import make_directory
from engine.files.file_scan import MAX_OFFSET
from engine.files.paths import open_or_create, read_file, remove_tree
from engine.haste import TakesLongError, in_haste
from engine.log.consume_queue import ConsumeQueue
from engine.read.stream import QueueStream
from engine.read.stream_rows import RowSource
from engine.read.stream_sums import BlockSum, QueueSums

Array = np.ndarray[Any, Any]

MAGIC = b"FSSUMS\x00\x01"
HEADER_BYTES = 16
MOST_BYTES = 256 << 20
"""Sums of eight thousand million messages: what is longer was not written by us."""
ROW = np.dtype(
    [("first_physical", "<i8"), ("last_physical", "<i8"), ("end", "<i8"), ("left_out", "<i4"), ("crc", "<u4")]
)
assert ROW.itemsize == 32
_CHECKED_BYTES = 28


class StreamSums:
    """The sums of all queues of a store, and the streams over them. Thread safety: any thread."""

    def __init__(
        self, directory: Path, source: RowSource, *, trusted_end: int, checked_before: int, writable: bool = True
    ) -> None:
        """Kept sums count for records before `trusted_end` of the log, whose files nobody changed since; 0: none do.

        Records at physical offsets below `checked_before` are checked whole (CRC) when they are summed. Unless
        `writable`, nothing is written to `directory`.
        """
        self._directory = directory
        self._source = source
        self._trusted_end = trusted_end
        self._checked_before = checked_before
        self._writable = writable
        self._lock = threading.Lock()
        self._sums: dict[ConsumeQueue, QueueSums] = {}
        self._saved: dict[ConsumeQueue, int] = {}

    def stream(self, queue: ConsumeQueue) -> QueueStream:
        """The text of the queue, from its first message now on."""
        return QueueStream(queue, self.of(queue))

    def of(self, queue: ConsumeQueue) -> QueueSums:
        """The sums of a queue: those that were kept, or none yet."""
        known = self._sums.get(queue)
        if known is not None:
            return known
        with self._lock:
            known = self._sums.get(queue)
            if known is None:
                known = QueueSums(queue, self._source, self._checked_before)
                self._saved[queue] = self._restore(known)
                self._sums[queue] = known
            return known

    def _restore(self, sums: QueueSums) -> int:
        try:
            raw = read_file(self._path(sums.queue), MOST_BYTES)
        except (OSError, StoreError, ValueError):
            return 0
        base, blocks = decode_sums(raw)
        trusted = [block for block in blocks if block.last_physical < self._trusted_end]
        return len(trusted) if sums.restore(base, trusted) else 0

    def _path(self, queue: ConsumeQueue) -> Path:
        return self._directory / queue.topic / str(queue.queue_id)

    def save(self) -> None:
        """Sum what is new in queues whose sums are in use, where that does not take long, and write what grew. An error
        costs only that it is summed again."""
        if not self._writable:
            return
        with self._lock:
            for queue, sums in self._sums.items():
                with suppress(OSError, StoreError):
                    with suppress(TakesLongError), in_haste():
                        sums.grow()
                    base, blocks = sums.kept(self._saved[queue])
                    if blocks:
                        self._append(queue, base, blocks)
                        self._saved[queue] += len(blocks)

    def _append(self, queue: ConsumeQueue, base: int, blocks: list[BlockSum]) -> None:
        """Write `blocks` behind those that count; what else is in the file goes."""
        path = self._path(queue)
        make_directory(path.parent)
        end = HEADER_BYTES + self._saved[queue] * ROW.itemsize
        descriptor = open_or_create(path)
        try:
            os.ftruncate(descriptor, end if end > HEADER_BYTES else 0)
            header = MAGIC + base.to_bytes(8, "little", signed=True)
            os.pwrite(descriptor, header, 0)
            before = os.pread(descriptor, 4, end - 4) if end > HEADER_BYTES else header
            os.pwrite(descriptor, encode_blocks(blocks, before), end)
        finally:
            os.close(descriptor)

    def forget_log(self) -> None:
        """Another log came in place of the one that was summed: none of its records was checked by this process."""
        with self._lock:
            self._sums.clear()
            self._saved.clear()
            self._trusted_end, self._checked_before = 0, MAX_OFFSET

    def forget_topic(self, topic: str) -> None:
        """All queues of a topic were deleted."""
        with self._lock:
            for queue in [queue for queue in self._sums if queue.topic == topic]:
                del self._sums[queue], self._saved[queue]
            if self._writable:
                with suppress(OSError, ObstructedError):
                    remove_tree(self._directory / topic)


def encode_blocks(blocks: list[BlockSum], before: bytes) -> bytes:
    """Rows as stored, behind a row whose CRC (or header) is `before`."""
    rows = np.array([(*block, 0) for block in blocks], ROW)
    crc = crc32(before)
    for row in rows:
        crc = crc32(row.tobytes()[:_CHECKED_BYTES], crc)
        row["crc"] = crc
        crc = crc32(crc.to_bytes(4, "little"))
    return rows.tobytes()


def decode_sums(raw: bytes | bytearray) -> tuple[int, list[BlockSum]]:
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
    blocks = [BlockSum(*row[:4]) for row in rows[:whole].tolist()]
    return int.from_bytes(raw[8:HEADER_BYTES], "little", signed=True), blocks

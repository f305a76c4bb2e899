"""Encoded batches: records of one topic, ready for the log but for what only the append lock can say.

    batch's rows     0  1  2  3  4  5 …        dealt over queues A, B: shares of every second row
    queue            A  B  A  B  A  B          A numbers 0, 2, 4 …, B numbers 1, 3, 5 … on, each from its own end

The fields that every record has first, its head, are an array until `place` knows all of them, and are then written by
one numpy call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from engine.errors import MessageTooLargeError
from engine.record.located import LAYOUTS
from engine.record.slices import put_items

Array = np.ndarray[Any, Any]

HEAD = np.dtype(LAYOUTS[0].descr[:7])
"""How every record begins (docs/format.md, 2): up to its physical offset."""
assert HEAD.itemsize == 36

_FAMILIES_POSITION = 39  # the byte of the system flag that says which hosts are IPv6


def alike_heads(head: bytes, sizes: Array, crcs: Array, body_sizes: Array) -> Array:
    """Heads of records that begin as `head` (all fixed fields) does, but for their sizes and body CRC-32s, and without
    their places: one of LAYOUTS, (n,)."""
    layout = LAYOUTS[head[_FAMILIES_POSITION] >> 4 & 3]
    heads = np.frombuffer(bytearray(head) * len(sizes), layout)
    heads["store_size"], heads["stored_body_size"] = sizes, body_sizes
    heads["body_crc"] = crcs & 0x7FFFFFFF
    return heads


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


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Records of one topic to be appended together: complete but for their heads and store times.

    `buffer` holds all records, the i-th at starts[i] with sizes[i] bytes (int64, (n,)). `heads` (n,) miss their places.
    They are all fixed fields (one of LAYOUTS), or HEAD alone where hosts of both families make fields lie differently:
    then the store time belongs at `store_time_positions` (int64 (n,)). `tags_codes` (int64 (n,), or one number for all)
    and the keys (`key_rows` ascending, `key_hashes` of topic#key: int64 and int32 (k,), a row's unique key first) are
    what dispatch wants to know. `names_magic`: as the function in `record` says of the bodies. Thread safety: one
    caller at a time.
    """

    buffer: memoryview
    starts: Array
    sizes: Array
    heads: Array
    tags_codes: Array | int
    key_rows: Array
    key_hashes: Array
    names_magic: bool
    store_time_positions: Array | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def place(self, shares: Sequence[Share], physical_offset: int, store_time_ms: int) -> None:
        """Fill in where and when: the queues' shares, the buffer's first byte at `physical_offset`. May be done again
        after another try."""
        for queue_id, queue_offset, rows in shares:
            heads = self.heads[rows]
            heads["queue_id"] = queue_id
            heads["queue_offset"] = np.arange(queue_offset, queue_offset + len(heads))
        self.heads["physical_offset"] = self.starts + physical_offset
        data = np.frombuffer(self.buffer, np.uint8)
        if self.store_time_positions is None:
            self.heads["store_time_ms"] = store_time_ms
        else:
            put_items(data, self.store_time_positions, np.full(len(self), store_time_ms, ">i8"))
        put_items(data, self.starts, self.heads)

    def cut(self, limit_bytes: int) -> Iterator[EncodedBatch]:
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

    def _part(self, first: int, after: int) -> EncodedBatch:
        start = int(self.starts[first])
        end = int(self.starts[after - 1] + self.sizes[after - 1])
        keys = slice(*np.searchsorted(self.key_rows, [first, after]).tolist())
        return EncodedBatch(
            self.buffer[start:end],
            self.starts[first:after] - start,
            self.sizes[first:after],
            self.heads[first:after],
            self.tags_codes if isinstance(self.tags_codes, int) else self.tags_codes[first:after],
            self.key_rows[keys] - first,
            self.key_hashes[keys],
            self.names_magic,
            None if self.store_time_positions is None else self.store_time_positions[first:after] - start,
        )

"""Layout: the length of a file and its row groups, computed from sizes alone.

    PAR1 zeros | row group 0 | row group 1 | … | zeros | the footer, at its very end

A file is as long as it can possibly become, with any texts: an upper bound from sizes, which are the same each
time. A body counts its bytes. The rest of a record (topic, keys, properties) counts the bytes that the worst text of
that length would take in its columns. All positions are known once the messages have been read (`file_map`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from engine import MIN_RECORD_BYTES, ExpiredMessageError, MessageNotFoundError, MessageStore, StoreError
from fsstore.interface import Array
from fsstore.parquet.format import SCHEMA

MAGIC = b"PAR1"
PAGE_BYTES = 4096
"""The least that the kernel reads."""

ROW_GROUP_MESSAGES = 65_536
ROW_GROUP_BYTES = 32 << 20
"""A row group ends before its bodies and the rest of its records exceed this size, unless it is a single message."""

_ROW_BYTES = SCHEMA.row_bytes
ITEM_SHARE = 4  # the most expensive texts are keys of one byte: two bytes of a record become seven
_ROW_GROUP_BYTES = PAGE_BYTES + (PAGE_BYTES + 137) * len(SCHEMA.columns)  # each chunk begins a page; headers of pages
_FOOTER_BYTES = 4 << 10
_FOOTER_ROW_GROUP_BYTES = 205 * len(SCHEMA.columns)

_KEPT_BY_MALLOC_BYTES = 31 << 20


class RowGroup(NamedTuple):
    """Queue offsets [begin, end), with records in one file of the log, and the most bytes of its pages."""

    begin: int
    end: int
    most_bytes: int

    @property
    def messages(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class RangeKey:
    """A range of a queue, with the log's generation and the physical offsets of its first and last records. So another
    range of the same name has another key; so has one that was `damaged` after a mount had shown it, so often."""

    topic: str
    queue: int
    begin: int
    end: int
    log_generation: int
    first_physical: int
    last_physical: int
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """A file before it is read. `mtime_ms` is the store time of its last message."""

    key: RangeKey
    row_groups: tuple[RowGroup, ...]
    size: int
    mtime_ms: int


def page_aligned(size: int) -> int:
    """`size` rounded up to whole pages of memory."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def range_key(store: MessageStore, topic: str, queue: int, begin: int, end: int, damaged: int = 0) -> RangeKey:
    """The range as it is now. ExpiredMessageError, MessageNotFoundError, TopicNotFoundError."""
    generation, bounds = store.log_generation, store.bounds(topic, queue)
    if begin < bounds.min_offset:
        raise ExpiredMessageError(topic, queue, begin, bounds.min_offset)
    first, last = store.entries(topic, queue, begin, 1), store.entries(topic, queue, end - 1, 1)
    if end > bounds.max_offset or not len(first) or not len(last):
        raise MessageNotFoundError(topic, queue, end - 1)
    physical = int(first["physical_offset"][0]), int(last["physical_offset"][0])
    return RangeKey(topic, queue, begin, end, generation, *physical, damaged)


def measure(store: MessageStore, key: RangeKey) -> Layout:
    """Compute the layout of a range. Reads the sizes of its messages, and compressed bodies. Errors as `range_key`."""
    _keep_freed_memory()
    count = key.end - key.begin
    physical_offsets = store.entries(key.topic, key.queue, key.begin, count)["physical_offset"]
    record_sizes, body_sizes = store.record_sizes(key.topic, key.queue, key.begin, count)
    range_key(store, key.topic, key.queue, key.begin, key.end)  # if the range has expired, its sizes are wrong
    bodies, texts = _lengths(store, physical_offsets, record_sizes, body_sizes)
    # An IPv6 host is longer by 12 bytes in the record and by 26 as text; it counts as text, too.
    bounds = np.cumsum(np.where(record_sizes > 0, bodies + texts * ITEM_SHARE + _ROW_BYTES, 0))
    files = physical_offsets // store.sizes.commit_log_bytes
    file_ends = np.append(np.flatnonzero(np.diff(files)) + 1, count)
    row_groups = tuple(_row_groups(key.begin, np.cumsum(bodies + texts), bounds, file_ends))
    row_group_bytes = sum(row_group.most_bytes for row_group in row_groups)
    size = PAGE_BYTES + row_group_bytes + _FOOTER_BYTES + _FOOTER_ROW_GROUP_BYTES * len(row_groups)
    return Layout(key, row_groups, size, _newest_ms(store, key))


@lru_cache(maxsize=1)
def _keep_freed_memory() -> None:
    """Make glibc keep freed memory. After a block of this length was freed, it keeps up to twice as much, and no longer
    maps shorter blocks anew each time, which costs page faults. A daemon without Parquet readers keeps nothing."""
    np.empty(_KEPT_BY_MALLOC_BYTES, np.uint8)


def _lengths(
    store: MessageStore, physical_offsets: Array, record_sizes: Array, body_sizes: Array
) -> tuple[Array, Array]:
    """Bytes of each decompressed body, and of other variable parts of its record: int64 (n,); 0 without a record."""
    bodies = body_sizes.copy()
    texts = np.where(record_sizes > 0, record_sizes - MIN_RECORD_BYTES - bodies, 0)
    for row in np.flatnonzero(bodies < 0).tolist():
        try:
            message = store.at(int(physical_offsets[row]))
            known = store.known_body_size(message)
            bodies[row] = len(store.body_of(message)) if known is None else known
            texts[row] = message.store_size - MIN_RECORD_BYTES - len(message.stored_body)
        except StoreError:
            bodies[row] = texts[row] = 0  # damaged: left out
    return bodies, texts


def _row_groups(begin: int, lengths: Array, bounds: Array, file_ends: Array) -> Iterator[RowGroup]:
    """Cut a range into row groups. `lengths` and `bounds` are running sums of the rows' bytes, and of their upper
    bounds. A log file ends before each of `file_ends` (ascending rows, the last one is the end)."""
    row, length, bound = 0, 0, 0
    while row < len(bounds):
        most = int(np.searchsorted(lengths, length + ROW_GROUP_BYTES, side="right"))
        file_end = int(file_ends[np.searchsorted(file_ends, row, side="right")])
        end = min(max(most, row + 1), row + ROW_GROUP_MESSAGES, file_end)
        yield RowGroup(begin + row, begin + end, _ROW_GROUP_BYTES + int(bounds[end - 1]) - bound)
        row, length, bound = end, int(lengths[end - 1]), int(bounds[end - 1])


def _newest_ms(store: MessageStore, key: RangeKey) -> int:
    """The store time of the newest good message; 0: there is none. It is mostly the last one."""
    for begin in (key.end - 1, key.begin):
        headers = store.headers(key.topic, key.queue, begin, key.end - begin)
        good = np.flatnonzero(headers["ok"])
        if len(good):
            return int(headers["store_time_ms"][good[-1]])
    return 0

"""Layout: how long a file is and which row groups it has, computed from sizes alone.

    PAR1 zeros | row group 0 | row group 1 | … | zeros | the footer, at its very end

A file is as long as it can become at most, whatever its texts are: a bound from sizes, which are the same each time
that someone looks. A body counts by its bytes, and what else a record holds (topic, keys, properties) by what the worst
text of that length would take in the columns that it goes to. Where everything stands is known when the messages have
been read (`file_map`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from engine import MIN_RECORD_BYTES, ExpiredMessageError, MessageNotFoundError, MessageStore, StoreError
from fsstore.parquet.format import SCHEMA

Array = np.ndarray[Any, Any]

MAGIC = b"PAR1"
PAGE_BYTES = 4096
"""What the kernel reads at least."""

ROW_GROUP_MESSAGES = 65_536
ROW_GROUP_BYTES = 32 << 20
"""A row group ends before its bodies and what else its records hold are more than this, but for a single message."""

_ROW_BYTES = SCHEMA.row_bytes
ITEM_SHARE = 4  # the most expensive text is keys of one byte: two bytes of a record take seven
_ROW_GROUP_BYTES = PAGE_BYTES + (PAGE_BYTES + 137) * len(SCHEMA.columns)  # each chunk begins a page; headers of pages
_FOOTER_BYTES = 4 << 10
_FOOTER_ROW_GROUP_BYTES = 205 * len(SCHEMA.columns)

_KEPT_BY_MALLOC_BYTES = 31 << 20


class RowGroup(NamedTuple):
    """Queue offsets [begin, end), whose records are in one file of the log, and the most bytes of its pages."""

    begin: int
    end: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class RangeKey:
    """A range of a queue, in which log, and where its first and last records lie: so never another range of the same
    name."""

    topic: str
    queue: int
    begin: int
    end: int
    log_generation: int
    first_physical: int
    last_physical: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A file before it is read. `mtime_ms` is the store time of its last message."""

    key: RangeKey
    row_groups: tuple[RowGroup, ...]
    size: int
    mtime_ms: int


def page_aligned(size: int) -> int:
    """Bytes of as many pages of memory as `size` bytes need."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def range_key(store: MessageStore, topic: str, queue: int, begin: int, end: int) -> RangeKey:
    """The range as it is now. ExpiredMessageError, MessageNotFoundError, TopicNotFoundError."""
    generation, bounds = store.log_generation, store.bounds(topic, queue)
    if begin < bounds.min_offset:
        raise ExpiredMessageError(topic, queue, begin, bounds.min_offset)
    first, last = store.entries(topic, queue, begin, 1), store.entries(topic, queue, end - 1, 1)
    if end > bounds.max_offset or not len(first) or not len(last):
        raise MessageNotFoundError(topic, queue, end - 1)
    places = int(first["physical_offset"][0]), int(last["physical_offset"][0])
    return RangeKey(topic, queue, begin, end, generation, *places)


def measure(store: MessageStore, key: RangeKey) -> Layout:
    """Lay a range out. Reads the sizes of its messages, and the bodies of compressed ones. Errors as `range_key`."""
    _keep_freed_memory()
    count = key.end - key.begin
    places = store.entries(key.topic, key.queue, key.begin, count)["physical_offset"]
    record_sizes, body_sizes = store.record_sizes(key.topic, key.queue, key.begin, count)
    range_key(store, key.topic, key.queue, key.begin, key.end)  # still there: else some of it was read as damaged
    bodies, texts = _lengths(store, places, record_sizes, body_sizes)
    # An IPv6 host, longer by 12 bytes in the record and by 26 as text, is among the text, too.
    bounds = np.cumsum(np.where(record_sizes > 0, bodies + texts * ITEM_SHARE + _ROW_BYTES, 0))
    files = places // store.sizes.commit_log_bytes
    file_ends = np.append(np.flatnonzero(np.diff(files)) + 1, count)
    row_groups = tuple(_row_groups(key.begin, np.cumsum(bodies + texts), bounds, file_ends))
    row_group_bytes = sum(row_group.most_bytes for row_group in row_groups)
    size = PAGE_BYTES + row_group_bytes + _FOOTER_BYTES + _FOOTER_ROW_GROUP_BYTES * len(row_groups)
    return Layout(key, row_groups, size, _newest_ms(store, key))


@lru_cache(maxsize=1)
def _keep_freed_memory() -> None:
    """Once glibc has seen a block of that length come and go, it keeps what is freed up to twice of it, and does not
    map shorter ones again each time, which costs page faults. A daemon that nobody asks for Parquet keeps nothing."""
    np.empty(_KEPT_BY_MALLOC_BYTES, np.uint8)


def _lengths(store: MessageStore, places: Array, record_sizes: Array, body_sizes: Array) -> tuple[Array, Array]:
    """Bytes of each body, decompressed, and of what else is not fixed in its record: int64, shape (n,); 0 without a
    record."""
    bodies = body_sizes.copy()
    texts = np.where(record_sizes > 0, record_sizes - MIN_RECORD_BYTES - bodies, 0)
    for row in np.flatnonzero(bodies < 0).tolist():
        try:
            message = store.at(int(places[row]))
            known = store.known_body_size(message)
            bodies[row] = len(store.body_of(message)) if known is None else known
            texts[row] = message.store_size - MIN_RECORD_BYTES - len(message.stored_body)
        except StoreError:
            bodies[row] = texts[row] = 0  # damaged: left out
    return bodies, texts


def _row_groups(begin: int, lengths: Array, bounds: Array, file_ends: Array) -> Iterator[RowGroup]:
    """Cut a range into row groups. `lengths` and `bounds` are running sums of what its rows hold, and can take; before
    `file_ends` (ascending rows, the last is the end) a file of the log ends."""
    row, length, bound = 0, 0, 0
    while row < len(bounds):
        most = int(np.searchsorted(lengths, length + ROW_GROUP_BYTES, side="right"))
        file_end = int(file_ends[np.searchsorted(file_ends, row, side="right")])
        end = min(max(most, row + 1), row + ROW_GROUP_MESSAGES, file_end)
        yield RowGroup(begin + row, begin + end, _ROW_GROUP_BYTES + int(bounds[end - 1]) - bound)
        row, length, bound = end, int(lengths[end - 1]), int(bounds[end - 1])


def _newest_ms(store: MessageStore, key: RangeKey) -> int:
    """The store time of the newest good message; 0 without one. Mostly the last one is."""
    for begin in (key.end - 1, key.begin):
        headers = store.headers(key.topic, key.queue, begin, key.end - begin)
        good = np.flatnonzero(headers["ok"])
        if len(good):
            return int(headers["store_time_ms"][good[-1]])
    return 0

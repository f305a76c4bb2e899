"""Layout: how long a file is and where its row groups stand, computed from the messages' headers alone.

    PAR1 | place of row group 0 | place of row group 1 | … | place of the footer
           bound of its bytes     zeros up to the next       the footer, at its very end

Each place is as long as its row group can become at most, whatever pyarrow makes of the values: a bound from sizes,
which are the same each time that someone looks. A body counts by its bytes, and what else a record holds (topic, keys,
properties) by what the worst text of that length would take in the columns that it goes to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from engine import ExpiredMessageError, MessageNotFoundError, MessageStore, StoreError

Array = np.ndarray[Any, Any]

MAGIC = b"PAR1"

ROW_GROUP_MESSAGES = 16_384
ROW_GROUP_BYTES = 32 << 20
"""A row group ends before it is bounded by more than this, but for a single message."""

_RECORD_BYTES = 91  # what a record takes at least beside its body, topic and properties
_ROW_BYTES = 160  # five 64-bit and 32-bit columns, two hosts, lengths, levels, what a row rounds up
_PLACE_BYTES = 4 << 10  # page headers and dictionaries' pages of 17 columns
_PAGE_SHARE = 10  # and for each KiB one more byte, for the headers of further pages
_FOOTER_BYTES = 4 << 10
_FOOTER_ROW_GROUP_BYTES = 3 << 10


class RowGroup(NamedTuple):
    """Queue offsets [begin, end), in the place [position, position + size) of the file."""

    begin: int
    end: int
    position: int
    size: int


@dataclass(frozen=True, slots=True)
class RangeKey:
    """A range of a queue, and where its first and last records lie: so never another range of the same name."""

    topic: str
    queue: int
    begin: int
    end: int
    first_physical: int
    last_physical: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A file before it is rendered. `mtime_ms` is the store time of its last message."""

    key: RangeKey
    row_groups: tuple[RowGroup, ...]
    footer_position: int
    size: int
    mtime_ms: int

    @property
    def footer_index(self) -> int:
        """The footer counts as the part behind the last row group."""
        return len(self.row_groups)

    def place(self, index: int) -> tuple[int, int]:
        """[start, end) of a part of the file."""
        if index == len(self.row_groups):
            return self.footer_position, self.size
        row_group = self.row_groups[index]
        return row_group.position, row_group.position + row_group.size

    def parts(self, position: int, end: int) -> range:
        """Indices of the parts that bytes [position, end) belong to; what is before the first one is MAGIC."""
        starts = [row_group.position for row_group in self.row_groups]
        starts.append(self.footer_position)
        return range(max(bisect_right(starts, position) - 1, 0), max(bisect_right(starts, end - 1), 0))


def range_key(store: MessageStore, topic: str, queue: int, begin: int, end: int) -> RangeKey:
    """The range as it is now. ExpiredMessageError, MessageNotFoundError, TopicNotFoundError."""
    bounds = store.bounds(topic, queue)
    if begin < bounds.min_offset:
        raise ExpiredMessageError(topic, queue, begin, bounds.min_offset)
    first, last = store.entries(topic, queue, begin, 1), store.entries(topic, queue, end - 1, 1)
    if end > bounds.max_offset or not len(first) or not len(last):
        raise MessageNotFoundError(topic, queue, end - 1)
    return RangeKey(topic, queue, begin, end, int(first["physical_offset"][0]), int(last["physical_offset"][0]))


def measure(store: MessageStore, key: RangeKey) -> Layout:
    """Lay a range out. Reads the headers of its messages, and the bodies of compressed ones. Errors as `range_key`."""
    headers = store.headers(key.topic, key.queue, key.begin, key.end - key.begin)
    bounds = np.cumsum(_row_bounds(store, headers), dtype=np.int64)
    range_key(store, key.topic, key.queue, key.begin, key.end)  # still there: else some of it was read as damaged
    row_groups = tuple(_row_groups(key.begin, bounds))
    footer_position = row_groups[-1].position + row_groups[-1].size
    size = footer_position + _FOOTER_BYTES + _FOOTER_ROW_GROUP_BYTES * len(row_groups)
    good = np.flatnonzero(headers["ok"])
    mtime_ms = int(headers["store_time_ms"][good[-1]]) if len(good) else 0
    return Layout(key, row_groups, footer_position, size, mtime_ms)


def _row_bounds(store: MessageStore, headers: Array) -> Array:
    """What each message can take in a row group at most: int64, shape (n,)."""
    ok = headers["ok"]
    bodies = headers["body_size"].astype(np.int64)
    texts = headers["store_size"].astype(np.int64) - _RECORD_BYTES - bodies
    for row in np.flatnonzero(ok & (bodies < 0)).tolist():
        try:
            message = store.at(int(headers["physical_offset"][row]))
            bodies[row] = message.body_size
            texts[row] = message.store_size - _RECORD_BYTES - len(message.stored_body)
        except StoreError:
            bodies[row] = texts[row] = 0  # damaged: the rendered file leaves it out
    # The dearest text: properties, or keys, of one byte each. An item of 4 bytes takes 16, a key of 2 bytes 8. An IPv6
    # host, longer by 12 bytes in the record and by 26 as text, is among the text, too.
    return np.asarray(np.where(ok, bodies + texts * 9 // 2 + _ROW_BYTES, 0))


def _row_groups(begin: int, bounds: Array) -> Iterator[RowGroup]:
    """Cut a range into row groups; `bounds` are running sums of what its rows can take."""
    position, row, before = len(MAGIC), 0, 0
    while row < len(bounds):
        most = int(np.searchsorted(bounds, before + ROW_GROUP_BYTES, side="right"))
        end = min(max(most, row + 1), row + ROW_GROUP_MESSAGES, len(bounds))
        taken = int(bounds[end - 1]) - before
        size = _PLACE_BYTES + taken + (taken >> _PAGE_SHARE)
        yield RowGroup(begin + row, begin + end, position, size)
        position, row, before = position + size, end, before + taken

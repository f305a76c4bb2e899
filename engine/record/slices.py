"""Slices: many byte ranges of one buffer, taken at once with numpy.

Ranges of equal size are one gather of opaque items: 20 to 40 ns a range, where an index of every byte would cost some 5
ns a byte. Ranges of any size are taken in groups, each as long as its group's longest, and put down in order: what was
too much of one is overwritten by the next.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MAX_ITEM_BYTES = 1024
"""From here on, a copy of its own for each range is as fast. What `pack_into` wants behind the last range."""

_GROUP_BYTES = 1 << 17  # what lies between gather and scatter stays in the processor's cache
_GROUP_ROWS = 4096


def items_at(data: Array, positions: Array, size: int) -> Array:
    """The `size` bytes at each of `positions` in `data` (uint8), as void items, shape (n,): a copy. All must lie
    inside."""
    return np.asarray(_windows(data, size)[positions])


def put_items(data: Array, positions: Array, items: Array) -> None:
    """Write each of `items` (n,), whatever its dtype, at its one of `positions` in `data` (uint8)."""
    size = items.dtype.itemsize
    _windows(data, size)[positions] = items.view(f"V{size}")


def _put_evenly(packed: Array, items: Array, gap: int) -> None:
    """Write `items` (void, n) one behind the other, `gap` bytes before each left alone."""
    size = items.dtype.itemsize
    np.ndarray(items.shape, items.dtype, packed, gap, (size + gap,))[:] = items


def _windows(data: Array, size: int) -> Array:
    """The `size` bytes from each position of `data` on, as far as there are so many: views that overlap."""
    if len(data) < size:
        return np.empty(0, f"V{size}")
    return np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))


def are_equal(data: Array, starts: Array, sizes: Array) -> bool:
    """Whether the ranges data[start:start + size] all hold the same, and are any."""
    size = int(sizes[0]) if len(sizes) else 0
    if not 0 < size < MAX_ITEM_BYTES or not (sizes == size).all():
        return False
    texts = items_at(data, starts, size).view(f"S{size}")
    return bool(texts[0] == texts[-1] and (texts == texts[0]).all())


def rows_by_size(sizes: Array) -> Iterator[tuple[int, Array]]:
    """Each size from 1 up that occurs in `sizes` (all below 65,536), with the rows that have it, ascending."""
    if len(sizes) and sizes[0] and (sizes == sizes[0]).all():
        yield int(sizes[0]), np.arange(len(sizes))
        return
    small = sizes.astype(np.uint16)
    order = np.argsort(small, kind="stable")
    counts = np.bincount(small)
    ends = np.cumsum(counts)
    for size in np.flatnonzero(counts).tolist():
        if size:
            yield size, order[ends[size] - counts[size] : ends[size]]


def pack_slices(data: Array, starts: Array, sizes: Array, lead: int | None = None) -> tuple[Array, Array]:
    """The ranges data[start:start + size] one behind the other: (offsets int64 (n + 1,), packed uint8).

    With `lead`, that byte stands before each: then range i is packed[offsets[i] + 1:offsets[i + 1]].
    """
    gap = 0 if lead is None else 1
    packed = np.empty(int(sizes.sum()) + gap * len(sizes) + MAX_ITEM_BYTES, np.uint8)
    offsets = pack_into(packed, data, starts, sizes, gap)
    if lead is not None:
        packed[offsets[:-1]] = lead
    return offsets, packed[: offsets[-1]]


def pack_into(packed: Array, data: Array, starts: Array, sizes: Array, gap: int = 0) -> Array:
    """Write the ranges data[start:start + size] to `packed` one behind the other, `gap` bytes before each; the offsets
    where these begin, and where all ends (int64 (n + 1,)).

    Gaps, and the MAX_ITEM_BYTES behind the end, which must be there, are left with anything in them.
    """
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes + gap if gap else sizes, out=offsets[1:])
    if len(sizes) and 0 < sizes[0] < MAX_ITEM_BYTES and (sizes == sizes[0]).all():
        _put_evenly(packed, items_at(data, starts, int(sizes[0])), gap)
        return offsets
    targets = offsets[:-1] + gap
    short = sizes < MAX_ITEM_BYTES
    longest = int(sizes.max(where=short, initial=0))
    short &= starts <= len(data) - longest
    if short.all():
        _put_short(packed, data, starts, sizes, targets, longest)
        return offsets
    _put_short(packed, data, starts[short], sizes[short], targets[short], longest)
    alone = ~short  # after the short ones: nothing is put down behind these
    _put_each(packed, data, starts[alone], sizes[alone], targets[alone])
    return offsets


def _put_short(packed: Array, data: Array, starts: Array, sizes: Array, targets: Array, longest: int) -> None:
    """Ranges of up to `longest` bytes, in the order of `targets`, which ascend."""
    rows_at_once = min(_GROUP_BYTES // max(longest, 1), _GROUP_ROWS)
    for first in range(0, len(starts), rows_at_once):
        rows = slice(first, first + rows_at_once)
        item_bytes = int(sizes[rows].max())
        if item_bytes:
            put_items(packed, targets[rows], items_at(data, starts[rows], item_bytes))


def _put_each(packed: Array, data: Array, starts: Array, sizes: Array, targets: Array) -> None:
    source, target = data.data, packed.data
    for start, place, size in zip(starts.tolist(), targets.tolist(), sizes.tolist(), strict=True):
        target[place : place + size] = source[start : start + size]

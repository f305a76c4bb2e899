"""Slices: many byte ranges of one buffer, taken at once with numpy.

Ranges of equal size are one gather of opaque items: 20 to 60 ns a range, where an index of every byte would cost some 5
ns a byte. Ranges of any size are two such items each, of the power of two below it, which overlap: so there are few
groups.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_MAX_ITEM_BYTES = 1024  # from here on, a copy of its own for each range is as fast


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


def rows_by_size(sizes: Array) -> Iterator[tuple[int, Array]]:
    """Each size from 1 up that occurs in `sizes` (all below 65,536), with the rows that have it, ascending."""
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
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes if lead is None else sizes + 1, out=offsets[1:])
    packed = np.empty(int(offsets[-1]), np.uint8)
    targets = offsets[:-1]
    if lead is not None:
        packed[targets] = lead
        targets = targets + 1
    if len(sizes) and 0 < sizes[0] < _MAX_ITEM_BYTES and (sizes == sizes[0]).all():
        _put_evenly(packed, items_at(data, starts, int(sizes[0])), gap=0 if lead is None else 1)
        return offsets, packed
    is_long = sizes >= _MAX_ITEM_BYTES
    _, exponents = np.frexp(np.where(is_long, 0, sizes))  # size < 2**exponent <= 2 * size
    for exponent, rows in rows_by_size(exponents):
        item_bytes = 1 << exponent - 1
        sources, places, rests = starts[rows], targets[rows], sizes[rows] - item_bytes
        put_items(packed, places, items_at(data, sources, item_bytes))
        put_items(packed, places + rests, items_at(data, sources + rests, item_bytes))
    _copy_each(data, packed, starts[is_long], targets[is_long], sizes[is_long])
    return offsets, packed


def _copy_each(data: Array, packed: Array, starts: Array, targets: Array, sizes: Array) -> None:
    source, target = data.data, packed.data
    for start, place, size in zip(starts.tolist(), targets.tolist(), sizes.tolist(), strict=True):
        target[place : place + size] = source[start : start + size]

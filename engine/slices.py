"""Slices: many byte ranges of one buffer, taken at once with numpy.

Ranges of equal size are one gather of opaque items, so the work is grouped by size: 20 to 50 ns a range, whatever it
holds, where building an index of every byte costs some 5 ns a byte.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_MAX_GROUPED_BYTES = 4096  # beyond it, copying outweighs the loop over ranges


def items_at(data: Array, positions: Array, size: int) -> Array:
    """The `size` bytes at each of `positions` in `data` (uint8), as void items, shape (n,): a copy. All must lie
    inside."""
    return np.asarray(_windows(data, size)[positions])


def put_items(data: Array, positions: Array, items: Array) -> None:
    """Write each of `items` (n,), whatever its dtype, at its one of `positions` in `data` (uint8)."""
    size = items.dtype.itemsize
    _windows(data, size)[positions] = items.view(f"V{size}")


def _windows(data: Array, size: int) -> Array:
    """The `size` bytes from each position of `data` on, as far as there are so many: views that overlap."""
    if len(data) < size:
        return np.empty(0, f"V{size}")
    return np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))


def rows_by_size(sizes: Array) -> Iterator[tuple[int, Array]]:
    """Each size from 1 up that occurs in `sizes` (all below 65,536), with the rows that have it."""
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
    is_short = sizes <= _MAX_GROUPED_BYTES
    for size, rows in rows_by_size(np.where(is_short, sizes, 0)):
        put_items(packed, targets[rows], items_at(data, starts[rows], size))
    for row in np.flatnonzero(~is_short).tolist():
        packed[targets[row] : targets[row] + sizes[row]] = data[starts[row] : starts[row] + sizes[row]]
    return offsets, packed

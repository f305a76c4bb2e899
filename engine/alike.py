"""Properties of one shape: records with the same names in the same places, as those of one publisher mostly are
(docs/format.md, 2).

The first record is looked through, and one comparison tells whether the others have their values where it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.slices import MAX_ITEM_BYTES, items_at

Array = np.ndarray[Any, Any]


def alike_values(log: Array, starts: Array, sizes: Array, names: Sequence[bytes]) -> list[tuple[int, int]] | None:
    """For each name, (position in the properties, size) of its value in all of the records, size 0 when it is absent
    or empty; None when they are not of one shape. The last of equals wins.

    The properties of record i are log[starts[i]:starts[i] + sizes[i]] (uint8).
    """
    size = int(sizes[0]) if len(sizes) else 0
    if not 0 < size < MAX_ITEM_BYTES or not (sizes == size).all():
        return None
    rows = items_at(log, starts, size).view(np.uint8).reshape(-1, size)
    values = _values(rows[0].tobytes())
    if values is None or not _have_shape(rows, list(values.values())):
        return None
    return [values.get(name, (0, 0)) for name in names]


def _values(properties: bytes) -> dict[bytes, tuple[int, int]] | None:
    """(position, size) of each value that is not empty; None where the byte 1 stands in a value."""
    values, start = {}, 0
    for item in properties.split(b"\x02"):
        name, _, value = item.partition(b"\x01")
        if b"\x01" in value:
            return None
        if value:
            values[name] = start + len(name) + 1, len(value)
        start += len(item) + 1
    return values


def _have_shape(rows: Array, values: Sequence[tuple[int, int]]) -> bool:
    """Whether all of `rows` (uint8, (n, size)) have what the first has outside of `values`, and no other separator."""
    is_fixed = np.ones(rows.shape[1], np.bool_)
    for start, size in values:
        is_fixed[start : start + size] = False
    fixed, first = np.flatnonzero(is_fixed), rows[0]
    if not (rows[:, fixed] == first[fixed]).all():
        return False
    return _separators(rows) == len(rows) * _separators(first)


def _separators(data: Array) -> int:
    """How many bytes 1 and 2 there are."""
    return int(np.count_nonzero(data - np.uint8(1) < 2))

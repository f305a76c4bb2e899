"""Property values: where named properties of many records stand, found with numpy (docs/format.md, 2).

Records of one publisher mostly have the same names in the same places: then the first is looked through, and one
comparison tells that the others are alike. Otherwise every separator is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from engine.record.slices import MAX_ITEM_BYTES, items_at, pack_slices

Array = np.ndarray[Any, Any]

_LAST_SEPARATOR = 2
_ROWS_AT_ONCE = 512


def find_values(log: Array, starts: Array, sizes: Array, names: Sequence[bytes]) -> list[tuple[Array, Array]]:
    """For each name, (starts, sizes) int64 (n,) of its value in `log` (uint8): size 0 when absent or empty. The last of
    equals wins.

    The properties of record i are log[starts[i]:starts[i] + sizes[i]].
    """
    alike = alike_values(log, starts, sizes, names)
    if alike is not None:
        return [(starts + position, np.full(len(sizes), size)) for position, size in alike]
    offsets, packed = pack_slices(log, starts, sizes, lead=2)
    shifts = starts - offsets[:-1] - 1
    found = _find_packed(offsets, packed, names)
    return [(np.where(value_sizes > 0, value_starts + shifts, 0), value_sizes) for value_starts, value_sizes in found]


def alike_values(log: Array, starts: Array, sizes: Array, names: Sequence[bytes]) -> list[tuple[int, int]] | None:
    """As `find_values` where all values of a name are at one position of the properties: (position, size) for each
    name. None when the records are not alike."""
    size = int(sizes[0]) if len(sizes) else 0
    if not 0 < size < MAX_ITEM_BYTES or not (sizes == size).all():
        return None
    rows = items_at(log, starts, size).view(np.uint8).reshape(-1, size)
    places = value_places(rows[0].tobytes())
    if places is None or not alike_rows(rows, places.values()).all():
        return None
    return [places.get(name, (0, 0)) for name in names]


def value_places(properties: bytes) -> dict[bytes, tuple[int, int]] | None:
    """(position, size) of each value by its name, in stored order, of equal names the last; what has no name, or is
    empty, is left out. None where the byte 1 stands in a value."""
    places: dict[bytes, tuple[int, int]] = {}
    start = 0
    for item in properties.split(b"\x02"):
        name, _, value = item.partition(b"\x01")
        if b"\x01" in value:
            return None
        if name and value:
            places.pop(name, None)
            places[name] = start + len(name) + 1, len(value)
        start += len(item) + 1
    return places


def alike_rows(rows: Array, places: Iterable[tuple[int, int]]) -> Array:
    """Which of `rows` (uint8, (n, size)) have what the first has outside of the values at `places`, and no other
    separator: bool (n,)."""
    is_fixed = np.ones(rows.shape[1], np.bool_)
    for start, size in places:
        is_fixed[start : start + size] = False
    if _are_all_alike(rows, is_fixed):  # as it mostly is
        return np.ones(len(rows), np.bool_)
    fixed = np.flatnonzero(is_fixed)
    is_same = rows[:, fixed] == rows[0, fixed]
    separators = np.count_nonzero(rows - np.uint8(1) < 2, axis=1)
    return np.asarray(is_same.all(axis=1) & (separators == separators[0]))


def _are_all_alike(rows: Array, is_fixed: Array) -> bool:
    """What `alike_rows` asks, of all of them; where texts have zeros, no. Many rows at once are one long text: numpy
    takes long for each short row."""
    rows_at_once = min(len(rows), _ROWS_AT_ONCE)  # of a few, no longer a text than theirs
    first = np.tile(rows[0], rows_at_once)
    mask = np.tile(np.where(is_fixed, np.uint8(0xFF), np.uint8(0)), rows_at_once)
    separators = np.count_nonzero(rows[0] - np.uint8(1) < 2)
    for begin in range(0, len(rows), rows_at_once):
        part = rows[begin : begin + rows_at_once]
        text = part.reshape(-1)
        if ((text ^ first[: len(text)]) & mask[: len(text)]).max():
            return False
        if np.count_nonzero(text <= _LAST_SEPARATOR) != separators * len(part):
            return False
    return True


def _find_packed(offsets: Array, packed: Array, names: Sequence[bytes]) -> list[tuple[Array, Array]]:
    """As `find_values`, in `packed`: the properties of row i are packed[offsets[i]:offsets[i + 1]], a 2 before them."""
    marks = np.append(np.flatnonzero(packed - np.uint8(1) < 2), len(packed))  # each 1 and 2, and the end
    is_one = packed[marks[:-1]] == 1
    in_value = is_one[1:] & is_one[:-1]
    if in_value.any():  # only the first 1 of an item ends its name
        keeps = np.append(np.append(True, ~in_value), True)
        marks, is_one = marks[keeps], is_one[keeps[:-1]]
    items = np.flatnonzero(is_one)
    name_starts, value_starts, value_ends = marks[items - 1] + 1, marks[items] + 1, marks[items + 1]
    name_sizes = np.where(value_ends > value_starts, value_starts - 1 - name_starts, 0)  # 0: as good as absent
    sized: dict[int, tuple[Array, Array]] = {}
    found = []
    for name in names:
        if len(name) not in sized:
            hits = np.flatnonzero(name_sizes == len(name))
            sized[len(name)] = hits, items_at(packed, name_starts[hits], len(name)).view(f"S{len(name)}")
        hits, texts = sized[len(name)]
        hits = hits[texts == name]
        found.append(_by_row(offsets, value_starts[hits], value_ends[hits]))
    return found


def _by_row(offsets: Array, starts: Array, ends: Array) -> tuple[Array, Array]:
    """(starts, sizes) of the last of the ranges, which ascend, in each row [offsets[i], offsets[i + 1]): 0 without."""
    count = len(offsets) - 1
    if len(starts) == count and ((offsets[:-1] < starts) & (ends <= offsets[1:])).all():
        return starts, ends - starts  # as it mostly is: one in each row
    rows = np.searchsorted(offsets, starts, side="right") - 1
    found_starts, found_sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    found_starts[rows], found_sizes[rows] = starts, ends - starts
    return found_starts, found_sizes

"""Property items: the properties of many records as arrays, one item for each name and value (docs/format.md, 2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from engine.columns import ByteColumn, LocatedRecords
from engine.keyhash import hash_slices
from engine.slices import pack_slices

Array = np.ndarray[Any, Any]

_NAME_END, _VALUE_END, _SPACE = 1, 2, 32


@dataclass(frozen=True, slots=True)
class PropertyItems:
    """Items of n records, in stored order, as ranges of `data` (uint8, valid UTF-8); all arrays int64.

    Row i has items [row_starts[i], row_starts[i + 1]). As RocketMQ reads them: no name or value is empty, and of equal
    names in a row only the last is there.
    """

    data: Array
    row_starts: Array
    name_starts: Array
    name_sizes: Array
    value_starts: Array
    value_sizes: Array

    @classmethod
    def of(cls, records: LocatedRecords) -> PropertyItems:
        """The properties of `records`, copied out of the log."""
        offsets, data = _valid_text(
            *pack_slices(records.log, records.properties_starts, records.properties_sizes, lead=2)
        )
        item_starts = np.flatnonzero(data == _VALUE_END) + 1
        item_ends = np.append(item_starts[1:] - 1, len(data))[: len(item_starts)]
        ones = np.append(np.flatnonzero(data == _NAME_END), len(data))
        name_ends = ones[np.searchsorted(ones, item_starts)]
        real = (name_ends > item_starts) & (name_ends + 1 < item_ends)
        starts, name_ends, ends = item_starts[real], name_ends[real], item_ends[real]
        rows = np.searchsorted(offsets, starts, side="right") - 1
        last = _last_of_equals(data, rows, starts, name_ends - starts)
        rows, starts, name_ends, ends = rows[last], starts[last], name_ends[last], ends[last]
        row_starts = np.searchsorted(rows, np.arange(len(records) + 1))
        return cls(data, row_starts, starts, name_ends - starts, name_ends + 1, ends - name_ends - 1)

    def names(self) -> ByteColumn:
        """The name of each item."""
        return ByteColumn(*pack_slices(self.data, self.name_starts, self.name_sizes))

    def values(self) -> ByteColumn:
        """The value of each item."""
        return ByteColumn(*pack_slices(self.data, self.value_starts, self.value_sizes))

    def value(self, name: bytes) -> ByteColumn:
        """The value of property `name` of each row, empty where it is absent."""
        hits = np.flatnonzero(self.name_sizes == len(name))
        for position, byte in enumerate(name):
            hits = hits[self.data[self.name_starts[hits] + position] == byte]
        rows = np.searchsorted(self.row_starts, hits, side="right") - 1
        count = len(self.row_starts) - 1
        starts, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        starts[rows], sizes[rows] = self.value_starts[hits], self.value_sizes[hits]
        return ByteColumn(*pack_slices(self.data, starts, sizes))


def words(texts: ByteColumn) -> tuple[Array, ByteColumn]:
    """The words of each text, parted by spaces: (starts, words), row i has the words [starts[i], starts[i + 1])."""
    sizes = np.diff(texts.offsets)
    offsets, data = pack_slices(texts.data, texts.offsets[:-1], sizes, lead=_SPACE)
    spaces = np.append(np.flatnonzero(data == _SPACE), len(data))
    word_starts, word_sizes = spaces[:-1] + 1, np.diff(spaces) - 1
    word_starts, word_sizes = word_starts[word_sizes > 0], word_sizes[word_sizes > 0]
    rows = np.searchsorted(offsets, word_starts, side="right") - 1
    return np.searchsorted(rows, np.arange(len(texts) + 1)), ByteColumn(*pack_slices(data, word_starts, word_sizes))


def _valid_text(offsets: Array, data: Array) -> tuple[Array, Array]:
    """The same texts, one behind the other, with U+FFFD for what is not UTF-8."""
    try:
        str(data.data, "utf-8")
    except UnicodeDecodeError:
        texts = [data[a:b].tobytes().decode(errors="replace").encode() for a, b in pairwise(offsets.tolist())]
        return np.cumsum([0, *map(len, texts)], dtype=np.int64), np.frombuffer(b"".join(texts), np.uint8)
    return offsets, data


def _last_of_equals(data: Array, rows: Array, name_starts: Array, name_sizes: Array) -> Array:
    """Which items no later item of their row has the name of: bool."""
    last = np.ones(len(rows), bool)
    hashes, _ = hash_slices(data, name_starts, name_sizes)
    groups = rows << 32 | hashes.astype(np.int64)
    order = np.argsort(groups, kind="stable")
    alike = np.flatnonzero(groups[order][1:] == groups[order][:-1])
    for earlier, later in zip(order[alike].tolist(), order[alike + 1].tolist(), strict=True):
        one, other = (
            data[name_starts[item] : name_starts[item] + name_sizes[item]].tobytes() for item in (earlier, later)
        )
        last[earlier] = one != other
    return last

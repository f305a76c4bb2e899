"""Property shapes: the properties of many records, where few differ in more than their values (docs/format.md, 2).

Records of one publisher have the same names in the same places, but for values of a few different lengths. A shape is
what such records have in common: it is looked for in the first of them, and compared with the others; where names and
values are is then known for all. What has too many shapes, or text that is none, is for `PropertyItems`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from engine.record.byte_columns import ByteColumn, CodedColumn
from engine.record.located import LocatedRecords
from engine.record.property_values import alike_rows, value_places
from engine.record.slices import MAX_ITEM_BYTES, items_at, put_items, rows_by_size

Array = np.ndarray[Any, Any]

_FEW_SHAPES, _ROWS_A_SHAPE = 4, 128


class _Item(NamedTuple):
    """A property of a shape: its value is at [position, position + size) of the text."""

    name: bytes
    position: int
    size: int


class _Shape(NamedTuple):
    """The rows (int64 (n,), ascending) that have a shape, and their properties as stored (uint8 (n, size))."""

    rows: Array
    texts: Array
    items: list[_Item]

    @property
    def value_bytes(self) -> int:
        """Bytes of the values of a row."""
        return sum(item.size for item in self.items)

    def values_of(self, item: _Item) -> Array:
        """The value of each row, where it is: void (n,)."""
        return np.ndarray(len(self.rows), f"V{item.size}", self.texts, item.position, self.texts.strides[:1])


@dataclass(frozen=True, slots=True)
class ShapedProperties:
    """What `PropertyItems` tells of n records, known from their shapes.

    Row i has the items [row_starts[i], row_starts[i + 1]) (int64 (n + 1,)), in stored order. Values are gathered by who
    asks for them.
    """

    shapes: list[_Shape]
    row_starts: Array

    @classmethod
    def of(cls, records: LocatedRecords) -> ShapedProperties | None:
        """The properties of `records`, copied out of the log; None where they have too many shapes."""
        shapes = _shapes_of(records.log, records.properties_starts, records.properties_sizes)
        if shapes is None:
            return None
        return cls(shapes, _starts(len(records), [(shape.rows, len(shape.items)) for shape in shapes]))

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return self.row_starts.nbytes + sum(shape.rows.nbytes + shape.texts.nbytes for shape in self.shapes)

    def names(self) -> CodedColumn:
        """The name of each item."""
        numbers: dict[bytes, int] = {}
        own = [[numbers.setdefault(item.name, len(numbers)) for item in shape.items] for shape in self.shapes]
        texts, count, rows = ByteColumn.of(list(numbers)), int(self.row_starts[-1]), len(self.row_starts) - 1
        if own and all(codes == own[0] for codes in own) and len(own[0]) * rows == count:  # as it mostly is
            return CodedColumn(texts, np.tile(np.array(own[0], np.int32), rows))
        codes = np.empty(count, np.int32)
        for shape, shape_codes in zip(self.shapes, own, strict=True):
            self._put(codes, shape, np.tile(np.array(shape_codes, np.int32), (len(shape.rows), 1)))
        return CodedColumn(texts, codes)

    @property
    def values_bytes(self) -> int:
        """Bytes of all values."""
        return sum(len(shape.rows) * shape.value_bytes for shape in self.shapes)

    def values(self) -> ByteColumn:
        """The value of each item."""
        rows = len(self.row_starts) - 1
        starts = _starts(rows, [(shape.rows, shape.value_bytes) for shape in self.shapes])
        offsets = np.empty(int(self.row_starts[-1]) + 1, np.int64)
        offsets[-1] = starts[-1]
        joined = np.empty(int(starts[-1]), np.uint8)
        for shape in self.shapes:
            if shape.value_bytes:
                put_items(joined, starts[shape.rows], _joined_values(shape))
            within = np.array([0, *accumulate(item.size for item in shape.items)][:-1], np.int64)
            self._put(offsets, shape, starts[shape.rows, np.newaxis] + within)
        return ByteColumn(offsets, joined)

    def _put(self, column: Array, shape: _Shape, rows: Array) -> None:
        """Put what `rows` (n, items) say of a shape's items where these are in `column`."""
        if shape.items:
            items = np.ascontiguousarray(rows).view(f"V{len(shape.items) * column.itemsize}")[:, 0]
            put_items(column.view(np.uint8), self.row_starts[shape.rows] * column.itemsize, items)

    def value(self, name: bytes) -> ByteColumn:
        """The value of property `name` of each row, empty where it is absent."""
        found = self._named(name)
        offsets = _starts(len(self.row_starts) - 1, [(shape.rows, item.size) for shape, item in found])
        data = np.empty(int(offsets[-1]), np.uint8)
        for shape, item in found:
            put_items(data, offsets[shape.rows], shape.values_of(item))
        return ByteColumn(offsets, data)

    def few_values(self, name: bytes) -> ByteColumn | CodedColumn:
        """As `value`, of a property of which few values differ: then coded."""
        parts = [(shape.rows, shape.values_of(item)) for shape, item in self._named(name)]
        return CodedColumn.of(len(self.row_starts) - 1, parts) or self.value(name)

    def value_bytes(self, name: bytes) -> int:
        """Bytes of all that `value` returns."""
        return sum(len(shape.rows) * item.size for shape, item in self._named(name))

    def _named(self, name: bytes) -> list[tuple[_Shape, _Item]]:
        """The shapes that have a property of that name, and that property."""
        return [(shape, item) for shape in self.shapes for item in shape.items if item.name == name]


def _starts(count: int, numbers: list[tuple[Array, int]]) -> Array:
    """Running sums of `count` numbers, 0 before them: of `numbers`, each for some rows."""
    starts = np.zeros(count + 1, np.int64)
    for rows, number in numbers:
        starts[rows + 1] = number
    return np.cumsum(starts, out=starts)


def _joined_values(shape: _Shape) -> Array:
    """The values of each row, one behind the other: void items (n,)."""
    joined = np.empty((len(shape.rows), shape.value_bytes), np.uint8)
    place = 0
    for item in shape.items:
        np.ndarray(len(joined), f"V{item.size}", joined, place, joined.strides[:1])[:] = shape.values_of(item)
        place += item.size
    return joined.view(f"V{shape.value_bytes}")[:, 0]


def _shapes_of(log: Array, starts: Array, sizes: Array) -> list[_Shape] | None:
    """The shapes of the properties log[start:start + size]; None where they are too many, or not to be told."""
    if sizes.max(initial=0) >= MAX_ITEM_BYTES or np.count_nonzero(np.bincount(sizes)) > _most_shapes(len(sizes)):
        return None
    shapes: list[_Shape] = []
    done = 0
    for size, rows in sorted(rows_by_size(sizes), key=lambda found: -len(found[1])):  # the usual ones first
        texts = items_at(log, starts[rows], size).view(np.uint8).reshape(-1, size)
        if not _are_text(texts):
            return None
        while len(rows):
            items = _items(texts[0].tobytes())
            if items is None or len(shapes) == _most_shapes(done):
                return None
            alike = alike_rows(texts, [(item.position, item.size) for item in items])
            shapes.append(_Shape(rows, texts, items) if alike.all() else _Shape(rows[alike], texts[alike], items))
            rows, texts = rows[~alike], texts[~alike]
            done += len(shapes[-1].rows)
    return shapes


def _most_shapes(rows: int) -> int:
    """How many shapes `rows` may have: with more, to look at each item costs less."""
    return _FEW_SHAPES + rows // _ROWS_A_SHAPE


def _are_text(texts: Array) -> bool:
    """Whether each of `texts` (uint8, (n, size)) is UTF-8."""
    if texts.max() < 0x80:
        return True
    parted = np.pad(texts, ((0, 0), (1, 0)))
    try:
        str(parted.data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _items(properties: bytes) -> list[_Item] | None:
    """The properties as `value_places` finds them."""
    places = value_places(properties)
    if places is None:
        return None
    return [_Item(name, *place) for name, place in places.items()]

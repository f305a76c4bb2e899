"""Property columns: the properties of many records, as numpy arrays (docs/format.md, 2).

`find_values` finds named properties. All names and values come as `ShapedProperties` or, where these do not fit, as
`PropertyItems`.

Records of one publisher mostly have the same names at the same positions, with values of a few different lengths. A
shape is what such records have in common: it is taken from the first of them, and one comparison tells which others
have it; positions of names and values are then known for all. Records with too many shapes, or with bytes that are not
UTF-8, are split at every separator instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from engine.record.byte_columns import (
    MAX_ITEM_BYTES,
    SPACE,
    ByteColumn,
    CodedColumn,
    items_at,
    pack_slices,
    put_items,
    rows_by_size,
    word_ranges,
)
from engine.record.located import LocatedRecords

Array = np.ndarray[Any, Any]

_LAST_SEPARATOR = 2
_ROWS_AT_ONCE = 512
_FEW_SHAPES, _ROWS_A_SHAPE = 4, 128
_NAME_END, _VALUE_END = 1, 2
_WORD_BYTES = 8
_FEW_ITEMS = 8  # of a row: compared each with each, which costs less than sorting
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD_BYTES + 1)], np.uint64)  # the first `size` bytes
_MIXERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)  # odd, from xxHash


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
    positions = value_positions(rows[0].tobytes())
    if positions is None or not alike_rows(rows, positions.values()).all():
        return None
    return [positions.get(name, (0, 0)) for name in names]


def value_positions(properties: bytes) -> dict[bytes, tuple[int, int]] | None:
    """(position, size) of each value by its name, in stored order, of equal names the last; what has no name, or is
    empty, is left out. None where a value holds the byte 1."""
    positions: dict[bytes, tuple[int, int]] = {}
    start = 0
    for item in properties.split(b"\x02"):
        name, _, value = item.partition(b"\x01")
        if b"\x01" in value:
            return None
        if name and value:
            positions.pop(name, None)
            positions[name] = start + len(name) + 1, len(value)
        start += len(item) + 1
    return positions


def alike_rows(rows: Array, positions: Iterable[tuple[int, int]]) -> Array:
    """Which of `rows` (uint8, (n, size)) have what the first has outside of the values at `positions`, and no other
    separator: bool (n,)."""
    is_fixed = np.ones(rows.shape[1], np.bool_)
    for start, size in positions:
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
    """As `PropertyItems`, of n records of few shapes.

    Row i has the items [row_starts[i], row_starts[i + 1]) (int64 (n + 1,)), in stored order. Values are copied when
    they are asked for.
    """

    shapes: list[_Shape]
    row_starts: Array

    @classmethod
    def of(cls, records: LocatedRecords) -> ShapedProperties | None:
        """The properties of `records`, copied out of the log; None where they have too many shapes."""
        shapes = _shapes_of(records.log, *records.properties)
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
    """The values of each row, one after the other: void items (n,)."""
    joined = np.empty((len(shape.rows), shape.value_bytes), np.uint8)
    position = 0
    for item in shape.items:
        np.ndarray(len(joined), f"V{item.size}", joined, position, joined.strides[:1])[:] = shape.values_of(item)
        position += item.size
    return joined.view(f"V{shape.value_bytes}")[:, 0]


def _shapes_of(log: Array, starts: Array, sizes: Array) -> list[_Shape] | None:
    """The shapes of the properties log[start:start + size]; None where they are too many, or can't be told."""
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
    """How many shapes `rows` may have: with more, splitting each record costs less."""
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
    """The properties as `value_positions` finds them."""
    positions = value_positions(properties)
    if positions is None:
        return None
    return [_Item(name, *found) for name, found in positions.items()]


@dataclass(frozen=True, slots=True)
class PropertyItems:
    """Items of n records, in stored order, as ranges of `data` (uint8, valid UTF-8); all arrays int64 unless said.

    Row i has items [row_starts[i], row_starts[i + 1]); `rows` is the way back, `fingerprints` (uint64) are those of the
    names. As RocketMQ reads them: no name or value is empty, and of equal names in a row only the last is there.
    """

    data: Array
    row_starts: Array
    rows: Array
    name_starts: Array
    name_sizes: Array
    fingerprints: Array
    value_starts: Array
    value_sizes: Array

    @classmethod
    def of(cls, records: LocatedRecords) -> PropertyItems:
        """The properties of `records`, copied out of the log."""
        offsets, data = _valid_text(*pack_slices(records.log, *records.properties, lead=_VALUE_END))
        marks = np.flatnonzero(data - np.uint8(_NAME_END) < 2)  # each 1 and 2
        begins = np.flatnonzero(data[marks] == _VALUE_END)  # marks that an item follows
        starts, ends = marks[begins] + 1, np.append(marks[begins[1:]], len(data))
        name_ends = np.append(marks, len(data))[begins + 1]  # the mark after: where no name ends, the item's end
        firsts = np.searchsorted(starts, offsets + 1)
        rows = np.repeat(np.arange(len(records)), np.diff(firsts))
        real = (name_ends > starts) & (name_ends + 1 < ends)
        if not real.all():
            rows, starts, name_ends, ends = rows[real], starts[real], name_ends[real], ends[real]
        fingerprints = _fingerprints(data, starts, name_ends - starts)
        last = _last_of_equals(data, rows, starts, name_ends - starts, fingerprints)
        if not last.all():
            rows, starts, name_ends, ends = rows[last], starts[last], name_ends[last], ends[last]
            fingerprints = fingerprints[last]
        row_starts = np.append(0, np.cumsum(np.bincount(rows, minlength=len(records))))
        sizes = name_ends - starts
        return cls(data, row_starts, rows, starts, sizes, fingerprints, name_ends + 1, ends - name_ends - 1)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return sum(getattr(self, name).nbytes for name in self.__slots__)

    def names(self) -> ByteColumn | CodedColumn:
        """The name of each item, coded where few differ."""
        names = ByteColumn(*pack_slices(self.data, self.name_starts, self.name_sizes))
        return names.coded() or names

    @property
    def values_bytes(self) -> int:
        """Bytes of all values."""
        return int(self.value_sizes.sum())

    def values(self) -> ByteColumn:
        """The value of each item."""
        return ByteColumn(*pack_slices(self.data, self.value_starts, self.value_sizes))

    def value(self, name: bytes) -> ByteColumn:
        """The value of property `name` of each row, empty where it is absent."""
        hits, count = self._named(name), len(self.row_starts) - 1
        starts, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        starts[self.rows[hits]], sizes[self.rows[hits]] = self.value_starts[hits], self.value_sizes[hits]
        return ByteColumn(*pack_slices(self.data, starts, sizes))

    def few_values(self, name: bytes) -> ByteColumn | CodedColumn:
        """As `value`, of a property of which few values differ: then coded."""
        values = self.value(name)
        return values.coded() or values

    def value_bytes(self, name: bytes) -> int:
        """Bytes of all that `value` returns."""
        return int(self.value_sizes[self._named(name)].sum())

    def _named(self, name: bytes) -> Array:
        """The items of that name."""
        wanted = np.frombuffer(name, np.uint8)
        fingerprint = _fingerprints(wanted, np.zeros(1, np.int64), np.array([len(name)]))
        hits = np.flatnonzero((self.fingerprints == fingerprint) & (self.name_sizes == len(name)))
        found = items_at(self.data, self.name_starts[hits], len(name)).view(np.uint8).reshape(-1, len(name))
        return np.asarray(hits[(found == wanted).all(axis=1)])


def words(texts: ByteColumn) -> tuple[Array, ByteColumn]:
    """The words of each text, parted by spaces: (starts, words), row i has the words [starts[i], starts[i + 1])."""
    sizes = np.diff(texts.offsets)
    if not (texts.data == SPACE).any():  # at most one each: the texts that are not empty
        has_word = sizes > 0
        if has_word.all():
            return np.arange(len(texts) + 1), texts
        return np.append(0, np.cumsum(has_word)), ByteColumn(np.append(0, texts.offsets[1:][has_word]), texts.data)
    rows, starts, word_sizes = word_ranges(texts.data, texts.offsets[:-1], sizes)
    return np.searchsorted(rows, np.arange(len(texts) + 1)), ByteColumn(*pack_slices(texts.data, starts, word_sizes))


def _valid_text(offsets: Array, data: Array) -> tuple[Array, Array]:
    """The same texts, one after the other, with U+FFFD for what is not UTF-8."""
    try:
        str(data.data, "utf-8")
    except UnicodeDecodeError:
        texts = [data[a:b].tobytes().decode(errors="replace").encode() for a, b in pairwise(offsets.tolist())]
        return np.cumsum([0, *map(len, texts)], dtype=np.int64), np.frombuffer(b"".join(texts), np.uint8)
    return offsets, data


def _fingerprints(data: Array, starts: Array, sizes: Array) -> Array:
    """A number (uint64) for each of the texts data[start:start + size]: equal for equal ones, hardly ever for others.

    It is made of the first and the last eight bytes, and the size.
    """
    padded = np.append(data, np.zeros(_WORD_BYTES, np.uint8))
    mask = _MASKS[np.minimum(sizes, _WORD_BYTES)]
    heads = items_at(padded, starts, _WORD_BYTES).view("<u8") & mask
    tails = heads
    if sizes.max(initial=0) > _WORD_BYTES:
        tails = items_at(padded, starts + np.maximum(sizes - _WORD_BYTES, 0), _WORD_BYTES).view("<u8") & mask
    return np.asarray((heads * _MIXERS[0] ^ tails) * _MIXERS[1] + sizes.astype(np.uint64))


def _last_of_equals(data: Array, rows: Array, name_starts: Array, name_sizes: Array, fingerprints: Array) -> Array:
    """Which items no later item of their row has the name of: bool."""
    last = np.ones(len(rows), bool)
    groups = fingerprints + rows.astype(np.uint64) * _MIXERS[2]
    if not _has_equals(groups, rows):  # nearly always
        return last
    order = np.argsort(groups)
    alike = np.flatnonzero(groups[order][1:] == groups[order][:-1])
    found: dict[tuple[int, bytes], int] = {}
    for item in np.unique(order[np.append(alike, alike + 1)]).tolist():
        name = data[name_starts[item] : name_starts[item] + name_sizes[item]].tobytes()
        earlier = found.get((int(rows[item]), name))
        if earlier is not None:
            last[earlier] = False
        found[int(rows[item]), name] = item
    return last


def _has_equals(groups: Array, rows: Array) -> bool:
    """Whether two of `groups` (uint64) are equal in one of `rows`, which ascend; True may be wrong."""
    for distance in range(1, _FEW_ITEMS):
        if not (rows[distance:] == rows[:-distance]).any():
            return False
        if (groups[distance:] == groups[:-distance]).any():
            return True
    ordered = np.sort(groups)
    return bool((ordered[1:] == ordered[:-1]).any())

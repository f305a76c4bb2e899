"""Property items: the properties of many records as arrays, one item for each name and value (docs/format.md, 2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from engine.record.byte_columns import ByteColumn, CodedColumn
from engine.record.located import LocatedRecords
from engine.record.slices import items_at, pack_slices

Array = np.ndarray[Any, Any]

_NAME_END, _VALUE_END, _SPACE = 1, 2, 32
_WORD_BYTES = 8
_FEW_ITEMS = 8  # of a row: compared each with each, which costs less than sorting
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD_BYTES + 1)], np.uint64)  # the first `size` bytes
_MIXERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)  # odd, from xxHash


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
        offsets, data = _valid_text(
            *pack_slices(records.log, records.properties_starts, records.properties_sizes, lead=_VALUE_END)
        )
        marks = np.flatnonzero(data - np.uint8(_NAME_END) < 2)  # each 1 and 2
        begins = np.flatnonzero(data[marks] == _VALUE_END)  # marks that an item stands behind
        starts, ends = marks[begins] + 1, np.append(marks[begins[1:]], len(data))
        name_ends = np.append(marks, len(data))[begins + 1]  # the mark behind: where no name ends, the item's end
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
    if not (texts.data == _SPACE).any():  # at most one each: the texts that are not empty
        has_word = sizes > 0
        if has_word.all():
            return np.arange(len(texts) + 1), texts
        return np.append(0, np.cumsum(has_word)), ByteColumn(np.append(0, texts.offsets[1:][has_word]), texts.data)
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
    """Whether two of `groups` (uint64) are equal that stand in one of `rows`, which ascend; True may be wrong."""
    for distance in range(1, _FEW_ITEMS):
        if not (rows[distance:] == rows[:-distance]).any():
            return False
        if (groups[distance:] == groups[:-distance]).any():
            return True
    ordered = np.sort(groups)
    return bool((ordered[1:] == ordered[:-1]).any())

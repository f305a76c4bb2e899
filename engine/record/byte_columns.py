"""Byte columns: many byte strings as numpy arrays, in three forms: one behind the other, wherever they are in a buffer,
and as numbers of a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.record.slices import MAX_ITEM_BYTES, items_at, pack_into, pack_slices, put_items, rows_by_size

Array = np.ndarray[Any, Any]

_SIZE = np.dtype("<i4")

MOST_OVERRUN_BYTES = MAX_ITEM_BYTES
"""What `put_sized` may write behind the end."""

_MOST_DIFFERENT, _LEAST_ALIKE, _LONGEST_BYTES = 64, 32, 1 << 15
"""So many different texts of a size, and sizes, are looked for at most, and no longer than each found one stands for so
many rows, on average; and no text that is longer."""


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """n byte strings: the i-th is data[offsets[i]:offsets[i + 1]]; `offsets` int64 (n + 1,) from 0 on, `data` uint8."""

    offsets: Array
    data: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    @property
    def text_bytes(self) -> int:
        """Bytes of all together."""
        return int(self.offsets[-1])

    @property
    def slices(self) -> SliceColumn:
        """The same, by where they are."""
        return SliceColumn(self.data, self.offsets[:-1], np.diff(self.offsets))

    def coded(self) -> CodedColumn | None:
        """The same, as the texts that differ, and their numbers; None when these are too many."""
        starts, sizes = self.offsets[:-1], np.diff(self.offsets)
        if sizes.max(initial=0) > _LONGEST_BYTES:
            return None
        by_size = list(rows_by_size(sizes))
        if len(by_size) > _MOST_DIFFERENT:
            return None
        return CodedColumn.of(len(self), [(rows, items_at(self.data, starts[rows], size)) for size, rows in by_size])

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> ByteColumn:
        """Those byte strings."""
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return cls(offsets, np.frombuffer(b"".join(texts), np.uint8))

    @classmethod
    def concatenate(cls, parts: Sequence[ByteColumn]) -> ByteColumn:
        """One after the other; of no parts, an empty one."""
        if len(parts) == 1:
            return parts[0]
        sizes = [np.diff(part.offsets) for part in parts]
        offsets = np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes]))
        return cls(offsets, np.concatenate([np.zeros(0, np.uint8), *(part.data for part in parts)]))


@dataclass(frozen=True, slots=True)
class SliceColumn:
    """n byte strings: the i-th is data[starts[i]:starts[i] + sizes[i]]; both int64 (n,), `data` uint8, which may be the
    mapped log."""

    data: Array
    starts: Array
    sizes: Array

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.starts[row] : self.starts[row] + self.sizes[row]].tobytes()

    def take(self, rows: Array) -> SliceColumn:
        """Only those at `rows` (indices or a mask)."""
        return SliceColumn(self.data, self.starts[rows], self.sizes[rows])

    def packed(self) -> ByteColumn:
        """The same, copied, one behind the other."""
        return ByteColumn(*pack_slices(self.data, self.starts, self.sizes))

    def put_sized(self, target: Array) -> None:
        """Write them to `target` (uint8) one behind the other, the size of each, i32 little-endian, before it. There
        must be MOST_OVERRUN_BYTES behind the end."""
        offsets = pack_into(target, self.data, self.starts, self.sizes, _SIZE.itemsize)
        put_items(target, offsets[:-1], self.sizes.astype(_SIZE))


@dataclass(frozen=True, slots=True)
class CodedColumn:
    """n byte strings of which few differ: the i-th is texts[codes[i]]; `codes` int32 (n,)."""

    texts: ByteColumn
    codes: Array

    @classmethod
    def of(cls, count: int, parts: Sequence[tuple[Array, Array]]) -> CodedColumn | None:
        """`count` byte strings, of which `parts` have some each: (rows, those of one size, void (n,)). What no part has
        is empty. None when too many differ."""
        spare = count - sum(len(rows) for rows, _ in parts) - _LEAST_ALIKE
        coded = list[tuple[Array, CodedColumn]]()
        for rows, items in sorted(parts, key=lambda part: -len(part[0])):  # a rare text is one of many
            spare = max(spare, 0)
            few = _coded_items(items, spare)
            if few is None:
                return None
            spare += len(rows) - _LEAST_ALIKE * len(few.texts)
            coded.append((rows, few))
        return cls._joined(count, coded)

    @classmethod
    def _joined(cls, count: int, parts: Sequence[tuple[Array, CodedColumn]]) -> CodedColumn:
        has_all = sum(len(rows) for rows, _ in parts) == count
        numbers = {} if has_all else {b"": 0}
        codes = np.zeros(count, np.int32)
        for rows, column in parts:
            own = [numbers.setdefault(column.texts[row], len(numbers)) for row in range(len(column.texts))]
            codes[rows] = own[0] if len(own) == 1 else np.array(own, np.int32)[column.codes]
        return cls(ByteColumn.of(list(numbers)), codes)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> bytes:
        return self.texts[int(self.codes[row])]

    @property
    def text_bytes(self) -> int:
        """Bytes of all together."""
        times = np.bincount(self.codes, minlength=len(self.texts))
        return int((times * np.diff(self.texts.offsets)).sum())

    @property
    def slices(self) -> SliceColumn:
        """The same, each by where its text is."""
        offsets, codes = self.texts.offsets, self.codes
        return SliceColumn(self.texts.data, offsets[:-1][codes], np.diff(offsets)[codes])


def _coded_items(items: Array, spare: int) -> CodedColumn | None:
    """Byte strings of one size (void (n,)), as the ones that differ, by their first rows, and their numbers; None when
    these are too many. `spare`: so many more rows were alike elsewhere than what was found there had to stand for."""
    codes, found = np.zeros(len(items), np.int32), list[bytes]()
    rows: Array | None = None
    left = np.ascontiguousarray(items).view(f"S{items.itemsize}")
    while len(left):
        if len(found) == _MOST_DIFFERENT or spare + len(codes) - len(left) < _LEAST_ALIKE * len(found):
            return None
        alike = left == left[0]
        if rows is not None:
            codes[rows[alike]] = len(found)
        found.append(left[:1].tobytes())
        others = np.flatnonzero(~alike)
        rows, left = others if rows is None else rows[others], left[others]
    return CodedColumn(ByteColumn.of(found), codes)

"""Byte columns: many byte strings as numpy arrays (docs/format.md, 2).

The functions copy many byte ranges of one buffer at once. Ranges of equal size are one gather of opaque items: 20 to
40 ns a range, where an index of every byte would cost some 5 ns a byte. Ranges of any size are copied in groups, each
as long as its group's longest, and written in order: what was too much of one is overwritten by the next.

The classes hold a column of byte strings in one of three forms: contiguous (ByteColumn), as ranges of a buffer
(SliceColumn), as codes of the few that differ (CodedColumn).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MAX_ITEM_BYTES = 1024
"""From here on, a copy of its own for each range is as fast. What `pack_into` wants after the last range."""

_GROUP_BYTES = 1 << 17  # what lies between gather and scatter stays in the processor's cache
_GROUP_ROWS = 4096

SPACE = ord(" ")
_SIZE = np.dtype("<i4")

MOST_OVERRUN_BYTES = MAX_ITEM_BYTES
"""What `put_sized` may write past the end."""

_MOST_DIFFERENT, _LEAST_ALIKE, _LONGEST_BYTES = 64, 32, 1 << 15
"""So many different texts of a size, and sizes, are looked for at most, and no longer than each found one stands for so
many rows, on average; and no text that is longer."""


def items_at(data: Array, positions: Array, size: int) -> Array:
    """The `size` bytes at each of `positions` in `data` (uint8), as void items, shape (n,): a copy. All must lie
    inside."""
    return np.asarray(_windows(data, size)[positions])


def put_items(data: Array, positions: Array, items: Array) -> None:
    """Write each of `items` (n,), whatever its dtype, at its one of `positions` in `data` (uint8)."""
    size = items.dtype.itemsize
    _windows(data, size)[positions] = items.view(f"V{size}")


def _put_evenly(packed: Array, items: Array, gap: int) -> None:
    """Write `items` (void, n) one after the other, `gap` bytes before each left alone."""
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
    """The ranges data[start:start + size] one after the other: (offsets int64 (n + 1,), packed uint8).

    With `lead`, that byte stands before each: then range i is packed[offsets[i] + 1:offsets[i + 1]].
    """
    gap = 0 if lead is None else 1
    packed = np.empty(int(sizes.sum()) + gap * len(sizes) + MAX_ITEM_BYTES, np.uint8)
    offsets = pack_into(packed, data, starts, sizes, gap)
    if lead is not None:
        packed[offsets[:-1]] = lead
    return offsets, packed[: offsets[-1]]


def pack_into(packed: Array, data: Array, starts: Array, sizes: Array, gap: int = 0) -> Array:
    """Write the ranges data[start:start + size] to `packed` one after the other, `gap` bytes before each; the offsets
    where these begin, and where all ends (int64 (n + 1,)).

    Gaps, and the MAX_ITEM_BYTES past the end, which must be there, are left with anything in them.
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
    alone = ~short  # after the short ones: nothing is put down after these
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


def word_ranges(data: Array, starts: Array, sizes: Array) -> tuple[Array, Array, Array]:
    """The words, separated by spaces, of the texts data[start:start + size]: (row of the text, start, size), in
    order."""
    offsets, packed = pack_slices(data, starts, sizes, lead=SPACE)
    spaces = np.append(np.flatnonzero(packed == SPACE), len(packed))
    word_sizes = np.diff(spaces) - 1
    word_starts, word_sizes = spaces[:-1][word_sizes > 0] + 1, word_sizes[word_sizes > 0]
    rows = np.searchsorted(offsets, word_starts, side="right") - 1
    return rows, word_starts + (starts - offsets[:-1] - 1)[rows], word_sizes


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
        """The same, copied, one after the other."""
        return ByteColumn(*pack_slices(self.data, self.starts, self.sizes))

    def put_sized(self, target: Array) -> None:
        """Write them to `target` (uint8) one after the other, the size of each, i32 little-endian, before it. There
        must be MOST_OVERRUN_BYTES past the end."""
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

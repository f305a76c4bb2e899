"""Byte columns: many byte strings as numpy arrays, in three forms that Arrow has, too: one behind the other, wherever
they are in a buffer, and as numbers of a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.slices import items_at, pack_slices, put_items, rows_by_size

Array = np.ndarray[Any, Any]

_VIEW_START_BYTES, INLINE_BYTES = 4, 12
VIEW = np.dtype([("size", "<i4"), ("start", f"V{_VIEW_START_BYTES}"), ("buffer", "<i4"), ("position", "<i4")])
"""Of a byte string of up to INLINE_BYTES, all of it stands behind the size, and zeros."""
assert VIEW.itemsize == 4 + INLINE_BYTES


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """n byte strings: the i-th is data[offsets[i]:offsets[i + 1]]; `offsets` int64 (n + 1,), `data` uint8."""

    offsets: Array
    data: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

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

    def views(self) -> Array:
        """As Arrow describes them in a BinaryView array whose only buffer is `data`, of less than 2 GiB: VIEW (n,)."""
        views = np.zeros(len(self), VIEW)
        views["size"] = self.sizes
        short = np.flatnonzero(self.sizes <= INLINE_BYTES)
        long = np.flatnonzero(self.sizes > INLINE_BYTES) if len(short) else slice(None)
        views["start"][long] = items_at(self.data, self.starts[long], _VIEW_START_BYTES)
        views["position"][long] = self.starts[long]
        for size, found in rows_by_size(self.sizes[short]):
            rows = short[found]
            places = rows * VIEW.itemsize + VIEW.itemsize - INLINE_BYTES
            put_items(views.view(np.uint8), places, items_at(self.data, self.starts[rows], size))
        return views

    @classmethod
    def concatenate(cls, parts: Sequence[SliceColumn]) -> SliceColumn:
        """One after the other; of no parts, an empty one."""
        if len(parts) == 1:
            return parts[0]
        packed = ByteColumn.concatenate([part.packed() for part in parts])
        return cls(packed.data, packed.offsets[:-1], np.diff(packed.offsets))


@dataclass(frozen=True, slots=True)
class CodedColumn:
    """n byte strings of which few differ: the i-th is texts[codes[i]]; `codes` int32 (n,)."""

    texts: ByteColumn
    codes: Array

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> bytes:
        return self.texts[int(self.codes[row])]

    def plain(self) -> ByteColumn:
        """The same, each byte string for itself."""
        offsets, codes = self.texts.offsets, self.codes
        return ByteColumn(*pack_slices(self.texts.data, offsets[:-1][codes], np.diff(offsets)[codes]))

    @classmethod
    def concatenate(cls, parts: Sequence[CodedColumn]) -> CodedColumn:
        """One after the other; of no parts, an empty one."""
        numbers: dict[bytes, int] = {}
        codes = [np.zeros(0, np.int32)]
        for part in parts:
            texts = [part.texts[row] for row in range(len(part.texts))]
            own = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)
            codes.append(own[part.codes])
        return cls(ByteColumn.of(list(numbers)), np.concatenate(codes))

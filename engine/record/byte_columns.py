"""Byte columns: many byte strings as numpy arrays (docs/format.md, 2).

The classes hold a column of byte strings in one of three forms: contiguous (ByteColumn), as ranges of a buffer
(SliceColumn), as codes of the few that differ (CodedColumn).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import ReadError
from engine.record.kernel.columns import SIZED, gather, number
from engine.record.kernel.files import require_read

Array = np.ndarray[Any, Any]

_MOST_DIFFERENT, _LEAST_ALIKE, _LONGEST_BYTES = 4096, 32, 1 << 15
"""Limits of a coded column: most different texts, least average rows a text, most bytes of a text."""


def most_coded(rows: int) -> int:
    """Most different texts of a coded column."""
    return min(1 + (rows - 1) // _LEAST_ALIKE, _MOST_DIFFERENT)


def items_at(data: Array, positions: Array, size: int) -> Array:
    """Copy of the `size` bytes at each of `positions` in `data` (uint8), as void items, shape (n,). All positions must
    be valid."""
    return np.asarray(_windows(data, size)[positions])


def _windows(data: Array, size: int) -> Array:
    """Overlapping views of `size` bytes at each position of `data` that has as many."""
    if len(data) < size:
        return np.empty(0, f"V{size}")
    return np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))


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
        """The same texts as slices, without a copy."""
        return SliceColumn(self.data, self.offsets[:-1], np.diff(self.offsets))

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> ByteColumn:
        """A column of `texts`."""
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return cls(offsets, np.frombuffer(b"".join(texts), np.uint8))

    @classmethod
    def concatenate(cls, parts: Sequence[ByteColumn]) -> ByteColumn:
        """Concatenate columns; without parts, an empty column."""
        if len(parts) == 1:
            return parts[0]
        sizes = [np.diff(part.offsets) for part in parts]
        offsets = np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes]))
        return cls(offsets, np.concatenate([np.zeros(0, np.uint8), *(part.data for part in parts)]))


@dataclass(frozen=True, slots=True)
class SliceColumn:
    """n byte strings: the i-th is data[starts[i]:starts[i] + sizes[i]]; both int64 (n,), `data` uint8, which may be the
    mapped log. Each copy is made first and then checked: RefusedReadError or TruncatedFileError if the disk refused one
    of its bytes, or its file was cut."""

    data: Array
    starts: Array
    sizes: Array

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> bytes:
        start, size = int(self.starts[row]), int(self.sizes[row])
        copied = self.data[start : start + size].tobytes()
        require_read(self.data.data, start, size)
        return copied

    def take(self, rows: Array | slice) -> SliceColumn:
        """Only the texts at `rows` (a slice, indices or a mask)."""
        return SliceColumn(self.data, self.starts[rows], self.sizes[rows])

    def packed(self) -> ByteColumn:
        """A contiguous copy."""
        copied = ByteColumn(*gather(self.data, self.starts, self.sizes))
        self._require_read()
        return copied

    def joined(self, border: bytes) -> tuple[Array, Array]:
        """A contiguous copy with the byte `border` before each text and after the last one: (positions of the borders,
        int64 (n + 1,); the bytes, uint8)."""
        target = np.empty(int(self.sizes.sum()) + len(self) + 1, np.uint8)
        target[-1] = border[0]
        copied = gather(self.data, self.starts, self.sizes, border[0], target)
        self._require_read()
        return copied

    def put_sized(self, target: Array) -> None:
        """Write the texts to `target` (uint8), each after its size, i32 little-endian."""
        gather(self.data, self.starts, self.sizes, SIZED, target)
        self._require_read()

    def _require_read(self) -> None:
        """RefusedReadError, TruncatedFileError: one of the texts is on a page that was refused."""
        if not len(self):
            return
        first, end = int(self.starts.min()), int((self.starts + self.sizes).max())
        try:
            require_read(self.data.data, first, end - first)
        except ReadError:  # perhaps between the texts
            for start, size in zip(self.starts.tolist(), self.sizes.tolist(), strict=True):
                require_read(self.data.data, start, size)

    def numbered(self) -> CodedColumn:
        """A coded column with the different texts in order of first occurrence."""
        found = number(self.data, self.starts, self.sizes, len(self))
        assert found is not None
        return CodedColumn(self.take(found[1]).packed(), found[0])

    def coded(self) -> CodedColumn | None:
        """As `numbered`; None when there are too many different texts."""
        if self.sizes.max(initial=0) > _LONGEST_BYTES:
            return None
        found = number(self.data, self.starts, self.sizes, most_coded(len(self)))
        return None if found is None else CodedColumn(self.take(found[1]).packed(), found[0])


@dataclass(frozen=True, slots=True)
class CodedColumn:
    """n byte strings with few different ones: the i-th is texts[codes[i]]; `codes` int32 (n,)."""

    texts: ByteColumn
    codes: Array

    @classmethod
    def concatenate(cls, parts: Sequence[CodedColumn]) -> CodedColumn:
        """Concatenate columns."""
        numbers: dict[bytes, int] = {}
        codes = []
        for part in parts:
            texts = (part.texts[row] for row in range(len(part.texts)))
            codes.append(np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)[part.codes])
        return cls(ByteColumn.of(list(numbers)), np.concatenate(codes))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> bytes:
        return self.texts[int(self.codes[row])]

    @classmethod
    def repeated(cls, texts: Sequence[tuple[bytes, int]]) -> CodedColumn:
        """A column with each of these texts as often as is said, one after the other."""
        codes = np.repeat(np.arange(len(texts), dtype=np.int32), np.array([times for _, times in texts], np.int64))
        return cls(ByteColumn.of([text for text, _ in texts]), codes)

    @property
    def text_bytes(self) -> int:
        """Bytes of all together."""
        times = np.bincount(self.codes, minlength=len(self.texts))
        return int((times * np.diff(self.texts.offsets)).sum())

    @property
    def slices(self) -> SliceColumn:
        """The same texts as slices, without a copy."""
        offsets, codes = self.texts.offsets, self.codes
        return SliceColumn(self.texts.data, offsets[:-1][codes], np.diff(offsets)[codes])

"""Property columns: all properties of many records, as numpy arrays (docs/format.md, 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from engine.record.byte_columns import ByteColumn, CodedColumn, SliceColumn
from engine.record.kernel import columns as kernel
from engine.record.parsed_headers import ParsedHeaders

Array = np.ndarray[Any, Any]

_VALUE_END = 2
_NOT_ASCII = 0x80


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of n records, in stored order, as valid UTF-8.

    Row i has the items [row_starts[i], row_starts[i + 1]) (int64 (n + 1,)). As in RocketMQ, items with an empty name or
    value are left out, and all but the last of equal names in a row.
    """

    row_starts: Array
    names: CodedColumn
    values: ByteColumn
    stored_sizes: Array
    """Bytes of each row in the log: int64 (n,)."""
    is_as_stored: bool
    """False when the log has invalid UTF-8, so that a row may be longer than stored."""

    @classmethod
    def of(cls, records: ParsedHeaders) -> Properties:
        """The properties of `records`, copied out of the log."""
        stored, stored_data = kernel.gather(records.log, *records.properties, lead=_VALUE_END)
        offsets, data = _valid_text(stored, stored_data)
        row_starts, codes, slices, found = kernel.split_items(data, offsets[:-1], np.diff(offsets))
        values = ByteColumn(*found)
        last = kernel.last_of_equals(row_starts, codes, slices.shape[1])
        if not last.all():
            row_starts = np.append(0, np.cumsum(last))[row_starts]
            codes, values = codes[last], values.slices.take(last).packed()
        names = CodedColumn(SliceColumn(data, *slices).packed(), codes)
        return cls(row_starts, names, values, records.properties[1].copy(), data is stored_data)

    @classmethod
    def concatenate(cls, parts: Sequence[Properties]) -> Properties:
        """Concatenate properties."""
        ends = np.cumsum([0, *(len(part.names) for part in parts)])
        row_starts = [part.row_starts[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
        return cls(
            np.concatenate([*row_starts, ends[-1:]]),
            CodedColumn.concatenate([part.names for part in parts]),
            ByteColumn.concatenate([part.values for part in parts]),
            np.concatenate([part.stored_sizes for part in parts]),
            all(part.is_as_stored for part in parts),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        arrays = (
            self.row_starts,
            self.stored_sizes,
            self.names.codes,
            self.names.texts.data,
            self.values.offsets,
            self.values.data,
        )
        return sum(array.nbytes for array in arrays)

    def value(self, name: bytes) -> SliceColumn:
        """The value of property `name` of each row, empty where it is absent."""
        count = len(self.row_starts) - 1
        starts, sizes = np.zeros((2, count), np.int64)
        texts = self.names.texts
        code = next((code for code in range(len(texts)) if texts[code] == name), -1)
        items = np.flatnonzero(self.names.codes == code)
        rows = np.repeat(np.arange(count), np.diff(self.row_starts))[items]
        starts[rows], sizes[rows] = self.values.offsets[items], np.diff(self.values.offsets)[items]
        return SliceColumn(self.values.data, starts, sizes)


def words(texts: SliceColumn) -> tuple[Array, SliceColumn]:
    """The words of each text, split at spaces: (starts, words), row i has the words [starts[i], starts[i + 1])."""
    none = np.zeros(len(texts), np.int64)
    rows, starts, sizes = kernel.words(texts.data, texts.starts, texts.sizes, none, none)
    firsts = np.append(0, np.cumsum(np.bincount(rows, minlength=len(texts))))
    return firsts, SliceColumn(texts.data, starts, sizes)


def _valid_text(offsets: Array, data: Array) -> tuple[Array, Array]:
    """The same texts, contiguous, with U+FFFD for invalid UTF-8."""
    if data.max(initial=0) < _NOT_ASCII:
        return offsets, data
    try:
        str(data.data, "utf-8")
    except UnicodeDecodeError:
        texts = [data[a:b].tobytes().decode(errors="replace").encode() for a, b in pairwise(offsets.tolist())]
        return np.cumsum([0, *map(len, texts)], dtype=np.int64), np.frombuffer(b"".join(texts), np.uint8)
    return offsets, data

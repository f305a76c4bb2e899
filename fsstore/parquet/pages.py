"""Pages: the encoded values of a column chunk, whose size is known before they are made.

A chunk has one data page, and a dictionary before it if that is shorter. Nothing is compressed, and every size follows
from counts and lengths. So the position of each chunk is known before a value is gathered, and a read of cached data
costs no more than a copy.

    data page      header | repetition and definition levels | values
    dictionary     header | the different values
    plain texts    size i32, bytes, size i32, bytes …
    codes          bits of a code u8 | run header | codes, of 8, 16 or 32 bits
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np

from engine import ByteColumn, CodedColumn, SliceColumn
from fsstore.interface import Array
from fsstore.parquet.format import i32, struct, varint

PLAIN, RLE, RLE_DICTIONARY = 0, 3, 8
DATA_PAGE, DICTIONARY_PAGE = 0, 2
_SIZE_BYTES = 4
_GROUP = 8  # codes are packed in groups of this number
_QUICK_TEXTS = 256
_PIECE_BYTES = 1 << 19
"""Bytes of a piece: few enough for the allocator to reuse memory, since it maps large blocks anew."""


class Page(NamedTuple):
    """The bytes before the values, with levels; the size of the values; a function that writes them into an array; and
    whether this takes no longer than a copy."""

    head: bytes
    size: int
    fill: Callable[[Array], None]
    is_quick: bool


@dataclass(frozen=True, slots=True)
class Texts:
    """Byte strings that are gathered later: their number, and their total size."""

    count: int
    size: int
    gather: Callable[[], SliceColumn]


class Levels(NamedTuple):
    """The row of each value of a list: the number of entries, one for an empty row, and their encoded levels."""

    entries: int
    encoded: bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group. `values` counts the entries; `bounds` are the least and greatest value as PLAIN."""

    values: int
    dictionary: Page | None
    data: Page
    bounds: tuple[bytes, bytes] | None = None
    copied: Texts | None = None
    """The texts, if the data page is a copy of bytes in the log, so that it need not be kept."""

    @property
    def dictionary_bytes(self) -> int:
        return 0 if self.dictionary is None else len(self.dictionary.head) + self.dictionary.size

    @property
    def is_quick(self) -> bool:
        """Whether encoding it takes no longer than a copy."""
        return self.data.is_quick and (self.dictionary is None or self.dictionary.is_quick)

    @property
    def size(self) -> int:
        return self.dictionary_bytes + len(self.data.head) + self.data.size

    def encode(self) -> memoryview:
        encoded = np.empty(self.size, np.uint8)
        begin = 0
        for page in (self.dictionary, self.data) if self.dictionary is not None else (self.data,):
            values = begin + len(page.head)
            encoded[begin:values] = np.frombuffer(page.head, np.uint8)
            page.fill(encoded[values:])
            begin = values + page.size
        return encoded[:begin].data

    def pieces(self, texts: Texts) -> list[memoryview]:
        """All pages of a chunk with `copied` texts, in pieces."""
        found, gathered = [memoryview(self.data.head)], texts.gather()
        ends = np.cumsum(gathered.sizes + _SIZE_BYTES)
        row, begin = 0, 0
        while row < len(ends):
            end_row = max(int(np.searchsorted(ends, begin + _PIECE_BYTES, side="right")), row + 1)
            end = int(ends[end_row - 1])
            piece = np.empty(end - begin, np.uint8)
            gathered.take(slice(row, end_row)).put_sized(piece)
            found.append(piece.data)
            row, begin = end_row, end
        return found


def numbers(values: Array) -> Chunk:
    """A column of int32 or int64 (n,)."""
    raw = np.ascontiguousarray(values).view(np.uint8)
    bounds = (values.min().tobytes(), values.max().tobytes()) if len(values) else None
    head = _data_head(len(values), PLAIN, b"", raw.nbytes)
    return Chunk(len(values), None, _copied(head, raw), bounds)


def numbers_within(bounds: Array, count: int) -> Chunk:
    """As `numbers` of that many numbers, from bounds[0] to bounds[1]; it can't be encoded."""
    size = count * bounds.itemsize
    page = Page(_data_head(count, PLAIN, b"", size), size, _unknown, True)
    return Chunk(count, None, page, (bounds[0].tobytes(), bounds[1].tobytes()))


def plain(texts: Texts, levels: Levels | None = None, *, is_copy: bool = False) -> Chunk:
    """A column of texts, one after the other. `is_copy`: they are a copy of bytes in the log."""
    entries, prefix = levels or (texts.count, b"")
    size = texts.size + _SIZE_BYTES * texts.count
    head = _data_head(entries, PLAIN, prefix, size)
    page = Page(head, size, lambda target: texts.gather().put_sized(target), False)
    return Chunk(entries, None, page, copied=texts if is_copy else None)


def coded(column: ByteColumn | CodedColumn, levels: Levels | None = None) -> Chunk:
    """A column of texts, with a dictionary if they are coded and it is shorter."""
    if isinstance(column, ByteColumn) or not len(column):
        return plain(texts_of(column), levels)
    entries, prefix = levels or (len(column), b"")
    different = len(column.texts)
    dictionary_bytes = len(column.texts.data) + _SIZE_BYTES * different
    dictionary = Page(
        _dictionary_head(different, dictionary_bytes),
        dictionary_bytes,
        column.texts.slices.put_sized,
        different <= _QUICK_TEXTS,
    )
    run, codes = _run_of(column.codes, different)
    head = _data_head(entries, RLE_DICTIONARY, prefix + run, codes.nbytes)
    chunk = Chunk(entries, dictionary, _copied(head, codes))
    if chunk.size < _SIZE_BYTES * len(column):  # shorter than the lengths of all texts: these need not be summed
        return chunk
    without = plain(texts_of(column), levels)
    return chunk if chunk.size < without.size else without


def texts_like(count: int, size: int) -> Texts:
    """Texts of which only the number and the total size are known."""
    return Texts(count, size, _unknown)


def texts_of(column: ByteColumn | CodedColumn) -> Texts:
    """Texts that are gathered already."""
    return Texts(len(column), column.text_bytes, lambda: column.slices)


def levels_of(starts: Array) -> Levels:
    """The levels of lists: row i has the values [starts[i], starts[i + 1]) (int64 (n + 1,)); none is null."""
    counts = np.diff(starts)
    if (counts == 1).all():
        return Levels(len(counts), _equal_levels(len(counts), 0) + _equal_levels(len(counts), 1))
    firsts = np.cumsum(np.maximum(counts, 1)) - np.maximum(counts, 1)
    entries = int(np.maximum(counts, 1).sum())
    repeats = np.ones(entries, np.bool_)
    repeats[firsts] = False
    defined = np.ones(entries, np.bool_)
    defined[firsts[counts == 0]] = False
    return Levels(entries, _level_run(repeats) + _level_run(defined))


def levels_like(rows: int, values: int, empty_rows: int) -> Levels:
    """Levels as long as those of so many lists with so many values; `empty_rows` of the lists are empty."""
    entries = values + empty_rows
    packed = _packed_levels(bytes(-(-entries // _GROUP)))
    repeats = packed if entries > rows else _equal_levels(entries, 0)
    return Levels(entries, repeats + (packed if values and empty_rows else _equal_levels(entries, 0)))


def _level_run(levels: Array) -> bytes:
    """Levels of one bit: a run of equal ones, or all in groups."""
    if levels.all() or not levels.any():
        return _equal_levels(len(levels), int(levels[:1].any()))
    return _packed_levels(np.packbits(levels, bitorder="little").tobytes())


def _packed_levels(packed: bytes) -> bytes:
    return _sized(varint(len(packed) << 1 | 1) + packed)


def _equal_levels(count: int, level: int) -> bytes:
    return _sized(varint(count << 1) + bytes((level,)))


def _sized(run: bytes) -> bytes:
    return len(run).to_bytes(_SIZE_BYTES, "little") + run


def _run_of(codes: Array, different: int) -> tuple[bytes, Array]:
    """The bytes before codes, and the codes: a run of equal ones, or all in groups."""
    kind = np.dtype("u1" if different <= 1 << 8 else "<u2" if different <= 1 << 16 else "<u4")
    bits = bytes((kind.itemsize * 8,))
    if different == 1:
        return bits + varint(len(codes) << 1), np.zeros(1, np.uint8)
    groups = -(-len(codes) // _GROUP)
    packed = np.zeros(groups * _GROUP, kind)
    packed[: len(codes)] = codes
    return bits + varint(groups << 1 | 1), packed.view(np.uint8)


def _data_head(entries: int, encoding: int, prefix: bytes, size: int) -> bytes:
    about = struct({1: i32(entries), 2: i32(encoding), 3: i32(RLE), 4: i32(RLE)})
    page_bytes = i32(len(prefix) + size)
    return struct({1: i32(DATA_PAGE), 2: page_bytes, 3: page_bytes, 5: about}).encoded + prefix


def _dictionary_head(values: int, size: int) -> bytes:
    about = struct({1: i32(values), 2: i32(PLAIN)})
    return struct({1: i32(DICTIONARY_PAGE), 2: i32(size), 3: i32(size), 7: about}).encoded


def _copied(head: bytes, raw: Array) -> Page:
    def fill(target: Array) -> None:
        target[: len(raw)] = raw

    return Page(head, len(raw), fill, True)


def _unknown(*_: object) -> NoReturn:
    raise AssertionError("only sizes are known")

"""The map of a file: the positions of its column chunks, and the footer that has them.

Each chunk begins a page of memory, and none the first one. So the kernel, which reads whole pages, and ahead from the
first one, reads no chunk that its reader did not ask for.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from fsstore.interface import Array
from fsstore.options import DISTRIBUTION
from fsstore.parquet.format import SCHEMA, Column, Value, binary, i32, i64, items, struct, text
from fsstore.parquet.layout import MAGIC, PAGE_BYTES, Layout, RangeKey, page_aligned
from fsstore.parquet.pages import DATA_PAGE, DICTIONARY_PAGE, PLAIN, RLE, RLE_DICTIONARY, Chunk
from fsstore.parquet.row_groups import BoundError, RowGroupColumns

_VERSION = version(DISTRIBUTION)  # read once: each call opens a file
PROGRAM = f"fsstore version {_VERSION}"
_UNCOMPRESSED = 0
_FOOTER_SIZE_BYTES = 4


def _page_count(kind: int, encoding: int) -> Value:
    return struct({1: i32(kind), 2: i32(encoding), 3: i32(1)})


# Without a dictionary, and with one.
_ENCODINGS = (items([i32(RLE), i32(PLAIN)]), items([i32(RLE), i32(PLAIN), i32(RLE_DICTIONARY)]))
_PAGES = (
    items([_page_count(DATA_PAGE, PLAIN)]),
    items([_page_count(DICTIONARY_PAGE, PLAIN), _page_count(DATA_PAGE, RLE_DICTIONARY)]),
)
_PATHS = {column: items([text(name) for name in column.name.split(".")]) for column in SCHEMA.columns}


def _any_of(values: Iterable[Value]) -> bytes:
    return b"|".join(re.escape(value.encoded) for value in values)


_NUMBER = rb"([\x80-\xff]{0,9}[\x00-\x7f])"


@cache
def _chunk_pattern() -> re.Pattern[bytes]:
    """A chunk as `_column_chunk` describes it: its start, the number of its values, its size."""
    chunk = rb"\x26%b\x1c\x15.\x19(?:%b)\x19(?:%b)\x15\x00\x16%b\x16%b\x16"
    texts = _any_of(_ENCODINGS), _any_of(_PATHS.values())
    return re.compile(chunk % (_NUMBER, *texts, _NUMBER, _NUMBER), re.DOTALL)


def chunk_ends(footer: bytes) -> list[int]:
    """Positions at which the chunks end that a footer describes, ascending; of another writer's footer, none."""
    return sorted(_decoded(found[1]) + _decoded(found[3]) for found in _chunk_pattern().finditer(footer))


def _decoded(encoded: bytes) -> int:
    """The number that `i64` encoded; it is not negative."""
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded)) >> 1


class ChunkIndex(NamedTuple):
    """A chunk of a file: the number of its row group, and its column's index in SCHEMA.in_file."""

    row_group: int
    column: int


@dataclass(frozen=True, slots=True)
class FileMap:
    """Chunk i, in file order, begins at starts[i] and ends before starts[i + 1] (int64 (n + 1,)); `sizes` are those of
    each row group's chunks; `footer` is the end of the file, from the metadata on."""

    starts: Array
    sizes: tuple[tuple[int, ...], ...]
    footer: bytes
    left_out: int

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory that it takes, about."""
        return 6 * self.starts.nbytes + len(self.footer)  # a number in a tuple takes five times as much as in an array

    def chunks(self, position: int, end: int) -> range:
        """Numbers of the chunks that overlap the bytes [position, end)."""
        first = bisect_right(self.starts, position) - 1
        return range(max(first, 0), min(bisect_left(self.starts, end), len(self.starts) - 1))


def chunk_index(number: int) -> ChunkIndex:
    """Row group and column of the chunk with that number."""
    return ChunkIndex(*divmod(number, len(SCHEMA.in_file)))


def starts_of(sizes: Iterable[tuple[int, ...]]) -> list[int]:
    """The positions at which chunks of those sizes begin (a tuple of sizes for each row group), and the end of the
    last one."""
    return [*accumulate(map(page_aligned, chain.from_iterable(sizes)), initial=PAGE_BYTES)]


def map_file(layout: Layout, row_groups: Iterable[RowGroupColumns]) -> FileMap:
    """The map of a file with these row groups, which are taken one after the other and not kept. BoundError."""
    starts, sizes, described = [PAGE_BYTES], list[tuple[int, ...]](), list[Value]()
    rows = left_out = 0
    for columns in row_groups:
        own = [*accumulate(map(page_aligned, columns.sizes), initial=starts[-1])]
        if columns.rows:
            described.append(_row_group(columns, dict(zip(SCHEMA.in_file, own, strict=False))))
        starts += own[1:]
        sizes.append(columns.sizes)
        rows, left_out = rows + columns.rows, left_out + columns.left_out
    metadata = _metadata(layout.key, described, rows, left_out)
    footer = metadata + len(metadata).to_bytes(_FOOTER_SIZE_BYTES, "little") + MAGIC
    if starts[-1] + len(footer) > layout.size:
        raise BoundError(f"footer of {layout.key}")
    return FileMap(np.array(starts, np.int64), tuple(sizes), footer, left_out)


def _metadata(key: RangeKey, row_groups: Sequence[Value], rows: int, left_out: int) -> bytes:
    return struct(
        {
            1: i32(2),
            2: items(SCHEMA.elements),
            3: i64(rows),
            4: items(row_groups),
            5: items([struct({1: text(name), 2: text(value)}) for name, value in _facts(key, left_out)]),
            6: text(PROGRAM),
            7: items([struct({1: struct({})})] * len(SCHEMA.columns)),
        }
    ).encoded


def _facts(key: RangeKey, left_out: int) -> Iterable[tuple[str, str]]:
    """Key-value metadata of the file."""
    yield "fsstore.version", _VERSION
    yield "fsstore.topic", key.topic.encode("utf-8", "replace").decode()
    yield "fsstore.queue", str(key.queue)
    yield "fsstore.range", f"{key.begin}-{key.end}"
    yield "fsstore.left_out", str(left_out)


def _row_group(columns: RowGroupColumns, starts: dict[Column, int]) -> Value:
    size = i64(sum(columns.sizes))
    return struct(
        {
            1: items([_column_chunk(column, columns.chunks[column.name], starts[column]) for column in SCHEMA.columns]),
            2: size,
            3: i64(columns.rows),
            5: i64(min(starts.values())),
            6: size,
        }
    )


def _column_chunk(column: Column, chunk: Chunk, start: int) -> Value:
    has_dictionary = chunk.dictionary is not None
    size = i64(chunk.size)
    about = struct(
        {
            1: i32(column.kind),
            2: _ENCODINGS[has_dictionary],
            3: _PATHS[column],
            4: i32(_UNCOMPRESSED),
            5: i64(chunk.values),
            6: size,
            7: size,
            9: i64(start + chunk.dictionary_bytes),
            11: i64(start) if has_dictionary else None,
            12: _statistics(chunk.bounds),
            13: _PAGES[has_dictionary],
        }
    )
    return struct({2: i64(start), 3: about})


def _statistics(bounds: tuple[bytes, bytes] | None) -> Value | None:
    if bounds is None:
        return None
    least, greatest = map(binary, bounds)
    return struct({3: i64(0), 5: greatest, 6: least})

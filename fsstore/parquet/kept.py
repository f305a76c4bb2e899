"""Layout and map of a whole segment as the store keeps them, so that the next mount's footer reads no message.

program  its version | 0                  another version would render other bytes
numbers  i64, little-endian: size, mtime_ms, and of each row group: begin, end, most_bytes, the sizes of its chunks
footer
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from engine import KnownRange
from fsstore.interface import Array
from fsstore.parquet.file_map import PROGRAM, FileMap, starts_of
from fsstore.parquet.format import SCHEMA
from fsstore.parquet.layout import Layout, RangeKey, RowGroup

_LEAD = PROGRAM.encode() + b"\0"
_FACTS = np.dtype([("size", "<i8"), ("mtime_ms", "<i8"), ("row_groups", "<i8")])
_ROW_GROUP = np.dtype([("bounds", "<i8", 3), ("sizes", "<i8", len(SCHEMA.in_file))])


class Kept(NamedTuple):
    """A file whose messages are all good."""

    layout: Layout
    map: FileMap


def known_range(key: RangeKey) -> KnownRange:
    """The range of a file, as the store knows it."""
    return KnownRange(key.topic, key.queue, key.begin, key.end, key.first_physical, key.last_physical)


def encode(kept: Kept) -> bytes:
    layout, found = kept
    facts = np.array([(layout.size, layout.mtime_ms, len(layout.row_groups))], _FACTS)
    groups = np.array(list(zip(layout.row_groups, found.sizes, strict=True)), _ROW_GROUP)
    return _LEAD + facts.tobytes() + groups.tobytes() + found.footer


def decode(key: RangeKey, content: bytes) -> Kept | None:
    """Decode the data kept for the range. None: another version wrote it, or it can't be right."""
    begin = len(_LEAD)
    if content[:begin] != _LEAD or len(content) < begin + _FACTS.itemsize:
        return None
    size, mtime_ms, count = np.frombuffer(content, _FACTS, 1, begin)[0].tolist()
    begin += _FACTS.itemsize
    if not 0 < count <= (len(content) - begin) // _ROW_GROUP.itemsize:
        return None
    groups = np.frombuffer(content, _ROW_GROUP, count, begin)
    row_groups = tuple(RowGroup(*bounds) for bounds in groups["bounds"].tolist())
    footer = content[begin + groups.nbytes :]
    if not _are_right(key, row_groups, groups["sizes"]):
        return None
    sizes = tuple(map(tuple, groups["sizes"].tolist()))
    starts = starts_of(sizes)
    if starts[-1] + len(footer) > size:
        return None
    return Kept(Layout(key, row_groups, size, mtime_ms), FileMap(np.array(starts, np.int64), sizes, footer, 0))


def _are_right(key: RangeKey, row_groups: tuple[RowGroup, ...], sizes: Array) -> bool:
    """Whether the row groups follow each other through the range, each with chunks that have room."""
    follow = all(before.end == after.begin for before, after in pairwise(row_groups))
    is_whole = (row_groups[0].begin, row_groups[-1].end) == (key.begin, key.end)
    have_room = all(group.messages > 0 and group.most_bytes > 0 for group in row_groups)
    return follow and is_whole and have_room and bool((sizes > 0).all() and (sizes < 1 << 40).all())

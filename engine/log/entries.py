"""Entries of consume queues: their layout, and the records they lead to (docs/format.md, 6).

physical_offset i64 | size i32 | tags_code i64    big-endian, 20 bytes
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import ReadError

if TYPE_CHECKING:
    from engine.record.kernel.files import FilesByStart

ENTRY = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
ENTRY_STRUCT = Struct(">qiq")
assert ENTRY.itemsize == ENTRY_STRUCT.size == 20

PRE_BLANK_SIZE = 0x7FFFFFFF
"""Size in an entry that only fills a file before the queue's first message. Its physical offset is 0."""

LAST_EXTENSION_CODE = -(1 << 31) - 1
"""Tags codes up to this one are no hashes but addresses in `consumequeue_ext`, written with `enableConsumeQueueExt`."""

TOPIC_ROW = np.dtype([("physical_offset", "<i8"), ("queue_offset", "<i8"), ("queue_id", "<i4")])
"""A message of any queue of a topic."""
_TOPIC_ROW_STRUCT = Struct("<qqi")
assert TOPIC_ROW.itemsize == _TOPIC_ROW_STRUCT.size == 20

Array = np.ndarray[Any, Any]
Entries = np.ndarray[Any, Any]
"""dtype ENTRY, shape (n,)."""
TopicRows = np.ndarray[Any, Any]
"""dtype TOPIC_ROW, shape (n,)."""


def is_pre_blank(entries: Entries) -> np.ndarray[Any, Any]:
    """Whether each entry is a blank before a queue's first message: bool (n,)."""
    blank: np.ndarray[Any, Any] = entries["size"] == PRE_BLANK_SIZE
    return blank


def record_end(entry: tuple[int, int, int]) -> int:
    """Physical offset just past an entry's record; -1 for a pre-blank entry, which has no record."""
    return entry[0] + entry[1] if entry[1] != PRE_BLANK_SIZE else -1


def starts_from(entry: tuple[int, int, int], physical_offset: int) -> bool:
    """Whether an entry's record does not begin before `physical_offset`. True for negative ones, which are damaged."""
    return not 0 <= entry[0] < physical_offset and entry[1] != PRE_BLANK_SIZE


def physical_offset_of(rows: bytes, number: int) -> int:
    """The physical offset in a row (TOPIC_ROW)."""
    found: int = _TOPIC_ROW_STRUCT.unpack_from(rows, number * TOPIC_ROW.itemsize)[0]
    return found


def runs_by_file(
    log: FilesByStart, entries: Entries, most_rows: int | None = None
) -> Iterator[tuple[Array, int, Array]]:
    """(pages, physical offset of their first byte, physical offsets of the records) for each run of `entries` with
    records in one file. A run has `most_rows` entries at most.

    `pages` holds the readable bytes of the file (uint8): none if it is missing or unreadable. Physical offsets are
    int64 (n,).
    """
    offsets = entries["physical_offset"].astype(np.int64)
    bounds = {0, *_borders(offsets, log.file_bytes), len(offsets)}
    bounds.update(range(0, len(offsets), most_rows or len(offsets) or 1))
    for start, end in pairwise(sorted(bounds)):
        base = int(offsets[start]) // log.file_bytes * log.file_bytes
        yield np.frombuffer(file_pages(log, base), np.uint8), base, offsets[start:end]


def _borders(offsets: Array, file_bytes: int) -> list[int]:
    """The rows whose record is in another file than the record of the row before."""
    if not len(offsets) or offsets.min() // file_bytes == offsets.max() // file_bytes:  # the usual case
        return []
    found: list[int] = (np.flatnonzero(np.diff(offsets // file_bytes)) + 1).tolist()
    return found


def file_pages(log: FilesByStart, base: int) -> memoryview:
    """The readable bytes of the file that begins at physical offset `base`; empty when it is missing."""
    file = log.find(base)
    try:
        return file.pages() if file is not None else memoryview(b"")
    except ReadError:
        return memoryview(b"")

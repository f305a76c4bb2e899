"""Entries of consume queues: their layout, where they end, and where they lead (docs/format.md, 6).

physical_offset i64 | size i32 | tags_code i64    big-endian, 20 bytes
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import ReadError

if TYPE_CHECKING:
    from engine.files.mapped_file import MappedFile
    from engine.record.kernel.files import FilesByStart

ENTRY = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
ENTRY_STRUCT = Struct(">qiq")
assert ENTRY.itemsize == ENTRY_STRUCT.size == 20

PRE_BLANK_SIZE = 0x7FFFFFFF
"""Size in an entry that only fills a file up to the queue's first message; its physical offset is 0."""

LAST_EXTENSION_CODE = -(1 << 31) - 1
"""A tags code up to it is no hash but an address in `consumequeue_ext`, which `enableConsumeQueueExt` puts there."""

_LOOKED_AT_BYTES = 1 << 20
FEW = 8
"""So many entries are looked at one by one: faster than by numpy."""

Array = np.ndarray[Any, Any]
Entries = np.ndarray[Any, Any]
"""dtype ENTRY, shape (n,)."""


def valid_prefix(entries: Entries, after: int = -1) -> int:
    """Count of leading entries to trust: sizes are positive, and each record starts after the one before (or
    `after`)."""
    before = after
    for row, (physical_offset, size, _) in enumerate(
        ENTRY_STRUCT.iter_unpack(entries[:FEW].tobytes())
    ):  # many queues have no more
        if size <= 0 or (size != PRE_BLANK_SIZE and physical_offset < before):
            return row
        before = physical_offset if size != PRE_BLANK_SIZE else after
    offsets = entries["physical_offset"].astype(np.int64)
    blank = is_pre_blank(entries)
    starts = np.concatenate(([after], np.where(blank, after, offsets)[:-1]))
    trusted = (entries["size"] > 0) & (blank | (offsets >= starts))
    return len(entries) if trusted.all() else int(trusted.argmin())


def shown_prefix(entries: Entries, after: int, physical_end: int) -> int:
    """Count of leading entries that lead to records of a log up to `physical_end`, from `after` on. One that leads
    elsewhere counts when a later one leads there: its writer has gone on, so it is damaged."""
    offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
    written = np.logical_and.accumulate(sizes > 0)
    led = np.flatnonzero(
        written & (is_pre_blank(entries) | (offsets >= max(after, 0)) & (offsets <= physical_end - sizes))
    )
    return int(led[-1]) + 1 if len(led) else 0


def is_pre_blank(entries: Entries) -> np.ndarray[Any, Any]:
    """Which entries are blanks before a queue's first message: bool (n,)."""
    blank: np.ndarray[Any, Any] = entries["size"] == PRE_BLANK_SIZE
    return blank


def unbroken_tail(files: Sequence[MappedFile], missized: Collection[int]) -> Sequence[MappedFile]:
    """The newest files that follow one another without one missing, or of those that
    start at `missized`."""
    first = len(files) - 1
    while first > 0 and files[first - 1].start not in missized and _joins(files[first - 1], files[first]):
        first -= 1
    return files[max(first, 0) :]


def _joins(file: MappedFile, following: MappedFile) -> bool:
    return file.start + file.size == following.start


def scanned_end(files: Sequence[MappedFile]) -> int:
    """Byte offset where the valid entries of `files` end: every entry looked at, and no space that was never
    written."""
    end, newest = (files[0].start if files else 0), -1
    for file in files:
        start, written = next(file.data_ranges(), (0, 0))
        count = -(-written // ENTRY.itemsize) if start == 0 else 0
        entries = file.array(ENTRY, 0, min(count, file.readable // ENTRY.itemsize))
        valid = valid_prefix(entries, newest)
        end = file.start + valid * ENTRY.itemsize
        if end < file.start + file.size:
            break
        newest = int(entries[-1]["physical_offset"]) if entries[-1]["size"] != PRE_BLANK_SIZE else newest
    return end


def ends_at(files: Sequence[MappedFile], end: int) -> bool:
    """Whether an entry ends at byte offset `end` and none follows: right when nothing else is damaged, and no proof."""
    last = next((file for file in files if file.start < end <= file.start + file.size), None)
    if last is None or end % ENTRY.itemsize:
        return False
    position, after = end - last.start, end + ENTRY.itemsize
    following = next((file for file in files if file.start <= end < after <= file.start + file.size), None)
    newest = last.array(np.uint8, position - ENTRY.itemsize, ENTRY.itemsize)
    return bool(newest.any()) and (
        following is None or not following.array(np.uint8, end - following.start, ENTRY.itemsize).any()
    )


def searched_end(files: Sequence[MappedFile]) -> int:
    """Byte offset where the entries of `files` end, when nothing but zeros follows them: found in a few looks."""
    for file in reversed(files):
        sizes = file.array(ENTRY)["size"]
        used = bisect_left(sizes, True, key=lambda size: size <= 0)
        if used:
            return file.start + used * ENTRY.itemsize
    return files[0].start if files else 0


def holds_more(files: Sequence[MappedFile], end: int) -> bool:
    """Whether anything but zeros follows `end`, or a whole further file."""
    if not files:
        return False
    last = files[-1]
    if last.start > end:
        return True
    return any(
        last.view(chunk, min(_LOOKED_AT_BYTES, until - chunk)).tobytes().strip(b"\0")
        for start, until in last.data_ranges(end - last.start)
        for chunk in range(start, until, _LOOKED_AT_BYTES)
    )


def record_end(entry: tuple[int, int, int]) -> int:
    """Physical offset just past an entry's record; -1 for a pre-blank one, which has none."""
    return entry[0] + entry[1] if entry[1] != PRE_BLANK_SIZE else -1


def starts_from(entry: tuple[int, int, int], physical_offset: int) -> bool:
    """Whether an entry's record is not before `physical_offset`. One that is nowhere in a log is damaged, not old."""
    return not 0 <= entry[0] < physical_offset and entry[1] != PRE_BLANK_SIZE


def runs_by_file(
    log: FilesByStart, entries: Entries, most_rows: int | None = None
) -> Iterator[tuple[Array, int, Array]]:
    """(pages, physical offset of their first byte, physical offsets of the records) for each run of `entries` in one
    file, and of `most_rows` at most.

    `pages` is what can be read of the file (uint8), physical offsets are int64 (n,). A file that is missing, or can't
    be read, has no pages: no record is found in it.
    """
    places = entries["physical_offset"].astype(np.int64)
    bounds = {0, *_borders(places, log.file_bytes), len(places)}
    bounds.update(range(0, len(places), most_rows or len(places) or 1))
    for start, end in pairwise(sorted(bounds)):
        base = int(places[start]) // log.file_bytes * log.file_bytes
        yield np.frombuffer(file_pages(log, base), np.uint8), base, places[start:end]


def _borders(places: Array, file_bytes: int) -> list[int]:
    """The rows whose record is in another file than the one before."""
    if not len(places) or places.min() // file_bytes == places.max() // file_bytes:  # as it mostly is
        return []
    found: list[int] = (np.flatnonzero(np.diff(places // file_bytes)) + 1).tolist()
    return found


def file_pages(log: FilesByStart, base: int) -> memoryview:
    """What can be read of the file that begins at `base`; nothing when it is missing."""
    file = log.find(base)
    try:
        return file.pages() if file is not None else memoryview(b"")
    except ReadError:
        return memoryview(b"")

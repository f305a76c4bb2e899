"""Finds the end of a consume queue's entries in its files (docs/format.md, 6)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.log.entries import ENTRY, ENTRY_STRUCT, PRE_BLANK_SIZE, Entries, is_pre_blank
from engine.record.kernel.files import read_through

if TYPE_CHECKING:
    from engine.files.mapped_file import MappedFile

_LOOKED_AT_BYTES = 1 << 20
FEW = 8
"""Up to this number, checking entries one by one is faster than numpy."""


def valid_prefix(entries: Entries, after: int = -1) -> int:
    """Number of leading entries to trust: sizes are positive, and physical offsets never fall, from `after` on."""
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
    """Number of leading entries up to the last one for a record in [`after`, `physical_end`). Earlier entries that lead
    elsewhere are damaged, because their writer has continued."""
    offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
    written = np.logical_and.accumulate(sizes > 0)
    led = np.flatnonzero(
        written & (is_pre_blank(entries) | (offsets >= max(after, 0)) & (offsets <= physical_end - sizes))
    )
    return int(led[-1]) + 1 if len(led) else 0


def unbroken_tail(files: Sequence[MappedFile], missized: Collection[int]) -> Sequence[MappedFile]:
    """The newest files without a gap. A file whose start is in `missized` counts as missing."""
    first = len(files) - 1
    while first > 0 and files[first - 1].start not in missized and _joins(files[first - 1], files[first]):
        first -= 1
    return files[max(first, 0) :]


def _joins(file: MappedFile, following: MappedFile) -> bool:
    return file.start + file.size == following.start


def scanned_end(files: Sequence[MappedFile]) -> int:
    """Byte offset of the end of the valid entries in `files`. All entries are read, but no unwritten space."""
    end, newest = (files[0].start if files else 0), -1
    for file in files:
        start, written = next(file.data_ranges(), (0, 0))
        count, rest = divmod(min(written, file.readable), ENTRY.itemsize) if start == 0 else (0, 0)
        if any(file.view(count * ENTRY.itemsize, rest)):  # an entry goes on where unwritten space may begin
            count += 1
        entries = file.array(ENTRY, 0, min(count, file.readable // ENTRY.itemsize))
        valid = valid_prefix(entries, newest)
        end = file.start + valid * ENTRY.itemsize
        if end < file.start + file.size:
            break
        newest = int(entries[-1]["physical_offset"]) if entries[-1]["size"] != PRE_BLANK_SIZE else newest
    return end


def ends_at(files: Sequence[MappedFile], end: int) -> bool:
    """Whether an entry ends at byte offset `end` and none follows. This is no proof if other entries are damaged."""
    last = next((file for file in files if file.start < end <= file.start + file.size), None)
    if last is None or end % ENTRY.itemsize:
        return False
    position, after = end - last.start, end + ENTRY.itemsize
    following = next((file for file in files if file.start <= end < after <= file.start + file.size), None)
    return _is_set(last, position - ENTRY.itemsize) and (
        following is None or not _is_set(following, end - following.start)
    )


def _is_set(file: MappedFile, position: int) -> bool:
    """Whether a byte of the entry there is not zero. RefusedReadError."""
    entry = file.view(position, ENTRY.itemsize)
    read_through(entry)
    return any(entry)


def searched_end(files: Sequence[MappedFile]) -> int:
    """Byte offset of the end of the entries in `files`, by a binary search: only zeros may follow them."""
    for file in reversed(files):
        sizes = file.array(ENTRY)["size"]
        used = bisect_left(sizes, True, key=lambda size: size <= 0)
        if used:
            return file.start + used * ENTRY.itemsize
    return files[0].start if files else 0


def holds_more(files: Sequence[MappedFile], end: int) -> bool:
    """Whether a byte that is not zero, or a whole further file, follows the byte offset `end`."""
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

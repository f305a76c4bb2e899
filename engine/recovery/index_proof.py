"""Index proof: finds the slot and entry counts of index files, which no file states (docs/format.md, 7).

A file's size gives one equation, 4*S + 20*N = size - 40. The other comes from the file: entry 1 stands at
40 + 4*S + 20, and the header names its physical offset, the log its hash. Whatever S is, guessed or found so, is
believed only when it explains the chains: putting the same hashes one after another into S slots gives the same links
and the same slots. The log is asked too, but an entry that it does not explain condemns nothing: a later RocketMQ may
index what we know nothing of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import ReadError
from engine.files.mapped_file import Access, MappedFile
from engine.log.index_file import HEADER, INDEX_ENTRY, SLOT, index_file_bytes, link
from engine.record.hashes import java_hash

Array = np.ndarray[Any, Any]
KeysAt = Callable[[int], Sequence[str]]

CHECKED_ENTRIES = 1 << 20
"""Chains are followed through so many of a file's oldest entries."""
_ASKED_ENTRIES = 32
"""For so many entries of a file the log is asked whether their records have such a key."""
_SEARCH_WORDS = 1 << 22


def prove_index_sizes(
    paths: Sequence[Path], candidates: Iterable[tuple[int, int]], keys_at: KeysAt
) -> tuple[int, int] | None:
    """(slots, entries) of these index files, or None when nothing proves any.

    `candidates`, remembered or usual sizes, are tried first; one whose size fits is also believed of files without any
    entry. `keys_at` gives the index keys (topic#key) of the record at a physical offset, none when it can't be read.
    The files may be in use by a writer.
    """
    usual = list(candidates)
    fallback = None
    for path in paths:
        file = _opened(path)
        if file is None:
            continue
        try:
            raw = np.frombuffer(file.whole(), np.uint8)
            ranges = list(file.data_ranges(HEADER.itemsize))
        except (OSError, ReadError):
            continue
        fitting = [sizes for sizes in usual if index_file_bytes(*sizes) == len(raw)]
        if _next_entry(raw) <= 1:
            fallback = fallback or next(iter(fitting), None)
            continue
        for sizes in (*fitting, *_found_sizes(raw, ranges, keys_at)):
            if explains(raw, *sizes, keys_at):
                return sizes
    return fallback


def _opened(path: Path) -> MappedFile | None:
    """An index file, if it can be one by its size."""
    try:
        size = path.stat().st_size
    except OSError:
        return None
    fits = size > HEADER.itemsize and size % SLOT.itemsize == 0
    return MappedFile(path, size, Access.READ) if fits else None


def _header(raw: Array) -> Any:
    return raw[: HEADER.itemsize].view(HEADER)[0]


def _next_entry(raw: Array) -> int:
    return int(_header(raw)["next_entry"])


def _found_sizes(raw: Array, ranges: Sequence[tuple[int, int]], keys_at: KeysAt) -> Iterator[tuple[int, int]]:
    """Sizes that put something that looks like entry 1 where entry 1 is: the header's begin, linking to nothing.
    `ranges`, positions [start, end), hold what was written of the file."""
    begin = int(_header(raw)["begin_physical_offset"])
    hashes = _hashes(keys_at(begin))
    words = raw[HEADER.itemsize :].view(SLOT)
    high, low = np.array([begin], ">i8").view(SLOT).tolist()
    for start, end in _pieces(ranges, len(words) - 4):
        part = words[start : end + 4]
        hits = np.flatnonzero(part[:-4])  # entry 1 begins with a hash; most words are zeros
        hits = hits[(part[hits + 2] == low) & (part[hits + 1] == high) & (part[hits + 4] == 0) & (part[hits] > 0)]
        hits = hits[np.isin(part[hits], hashes)] if hashes else hits
        for word in (start + hits).tolist():
            slots = word - INDEX_ENTRY.itemsize // SLOT.itemsize
            entries, rest = divmod(len(words) - slots, INDEX_ENTRY.itemsize // SLOT.itemsize)
            if slots > 0 and rest == 0 and entries > 1:
                yield slots, entries


def _pieces(ranges: Sequence[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    """The first `count` words behind the header that lie in `ranges`, positions in the file, in pieces to look at."""
    for first, last in ranges:
        word, end = (first - HEADER.itemsize) // SLOT.itemsize, min((last - HEADER.itemsize) // SLOT.itemsize, count)
        while word < end:
            yield word, min(word + _SEARCH_WORDS, end)
            word += _SEARCH_WORDS


def _hashes(keys: Sequence[str]) -> list[int]:
    """Index hashes of topic#key texts."""
    return [abs(java_hash(key)) & 0x7FFFFFFF for key in keys]


def explains(raw: Array, slots: int, entries: int, keys_at: KeysAt) -> bool:
    """Whether a file (uint8, with an entry at least) is one of so many slots and entries."""
    next_entry = _next_entry(raw)
    if not 1 < next_entry <= entries:
        return False
    entries_position = HEADER.itemsize + SLOT.itemsize * slots
    table = raw[entries_position:].view(INDEX_ENTRY)
    heads = raw[HEADER.itemsize : entries_position].view(SLOT)
    records = table[1 : min(next_entry, CHECKED_ENTRIES + 1)]
    if (records["key_hash"] < 0).any() or table[:1].tobytes() != bytes(INDEX_ENTRY.itemsize):
        return False
    buckets = records["key_hash"].astype(np.int64) % slots
    numbers = np.arange(1, len(records) + 1, dtype=np.int64)
    previous, used, newest = link(buckets, numbers, np.zeros(slots, SLOT))
    if not (records["previous"] == previous).all():
        return False
    if len(records) == next_entry - 1 and not _leads_to(heads, table, used, newest):
        return False
    return not _denied(records, keys_at)


def _leads_to(heads: Array, table: Array, used: Array, newest: Array) -> bool:
    """Whether the slots are those that lead to `newest`, but for entries that a writer added meanwhile."""
    filled = np.flatnonzero(heads)
    found = heads[filled].astype(np.int64)
    limit = int(newest.max())
    while (late := (found > limit) & (found < len(table))).any():
        older = table["previous"][found[late]]
        found[late] = np.where(older < found[late], older, -1)
    rows = np.searchsorted(filled, used)
    if (rows == len(filled)).any() or (filled[rows] != used).any():
        return False
    expected = np.zeros(len(filled), np.int64)
    expected[rows] = newest
    return bool((found == expected).all())


def _denied(records: Array, keys_at: KeysAt) -> bool:
    """Whether the log knows none of the hashes: then the file is of another log. One entry alone shows nothing."""
    rows = np.unique(np.linspace(0, len(records) - 1, _ASKED_ENTRIES).astype(np.int64))
    asked = [(int(record["key_hash"]), _hashes(keys_at(int(record["physical_offset"])))) for record in records[rows]]
    told = [key_hash in hashes for key_hash, hashes in asked if hashes]
    return len(told) > 1 and not any(told)

"""Checking the index: the keys in records, compared with the entries of its files, in order.

No problem are keys of records that retention deleted, a record that RocketMQ indexed twice at a restart, and the entry
for a record's tag that RocketMQ adds since version 5.4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.derived.index_file import INDEX_ENTRY, MAX_TIME_DIFFERENCE_S, TAG_TYPE, IndexFile, link
from engine.errors import ReadError, RefusedReadError
from engine.record.hashes import slices_index_hashes, topic_hashes
from engine.record.header import MAX_OFFSET
from engine.record.scan import ScannedRecords
from engine.results import Problem, ProblemKind

if TYPE_CHECKING:
    from engine.derived.derived import Extent
    from engine.derived.index import Index
    from engine.log.sequence import Suspect

Array = np.ndarray[Any, Any]


class Part(NamedTuple):
    """Consecutive entries of one file. `number` is that of the first."""

    file: IndexFile
    number: int
    entries: Array


class CheckedIndex:
    """Compares an index: see `engine.derived.derived.Comparison`."""

    def __init__(self, index: Index, begin: int, *, is_settled: bool = True) -> None:
        """`begin` is the physical offset of the log's begin: keys of earlier records are not compared. Not
        `is_settled`: the writer died with the newest keys in memory, and the next opening adds those of records behind
        the newest in the files."""
        newest = index.last_physical_offset
        self._newest_settled = newest if newest >= 0 and not is_settled else MAX_OFFSET
        self._index = index
        self._files = index.files
        self._begin = begin
        self._file = 0
        self._row = 0
        self._known: dict[IndexFile, Array] = {}
        self._tags: tuple[Array, Array] = (np.empty(0, np.int64), np.empty(0, np.int32))
        self._newest: set[tuple[int, int]] = set()
        self._problems: list[tuple[int, Problem]] = []
        self._missing: list[tuple[int, int]] = []
        self._surplus: list[tuple[int, int]] = []

    def put_scanned(self, found: ScannedRecords) -> None:
        if not len(found):
            return
        self._surplus_until(int(found.records.headers["physical_offset"][0]))
        starts, sizes = found.properties.tags
        rows = np.flatnonzero(sizes)
        topics = topic_hashes([f"{topic}#{TAG_TYPE}" for topic in found.topics])[found.topic_rows[rows]]
        hashes = slices_index_hashes(topics, found.records.log, starts[rows], sizes[rows])
        self._tags = (found.records.headers["physical_offset"][rows], hashes)
        self._put(*found.keys[:3])

    def take_back(self, suspect: Suspect) -> None:
        """The keys stay: the index has no queue offsets."""

    def _put(self, key_hashes: Array, physical_offsets: Array, store_times_ms: Array) -> None:
        """Compare the next entries with these keys, in this order. Arrays have the shape (k,)."""
        if not len(key_hashes):
            return
        newest = int(physical_offsets[-1])
        parts = self._take_until(newest)
        self._newest = {(newest, key_hash) for key_hash in key_hashes[physical_offsets == newest].tolist()}
        entries = np.concatenate([np.empty(0, INDEX_ENTRY), *(part.entries for part in parts)])
        hashes, offsets = entries["key_hash"].astype(np.int64), entries["physical_offset"].astype(np.int64)
        keeps = (offsets >= self._begin) & ~self._is_tag(hashes, offsets)
        settled = physical_offsets <= self._newest_settled
        key_hashes, physical_offsets = key_hashes[settled], physical_offsets[settled]
        same = np.array_equal(hashes[keeps], key_hashes) and np.array_equal(offsets[keeps], physical_offsets)
        if not same:
            self._compare(
                list(zip(physical_offsets.tolist(), key_hashes.tolist(), strict=True)),
                list(zip(offsets[keeps].tolist(), hashes[keeps].tolist(), strict=True)),
            )
        else:
            self._compare_times(parts, keeps, store_times_ms[settled])

    def _is_tag(self, hashes: Array, offsets: Array) -> Array:
        """Whether each entry is for a record's tag: bool (n,)."""
        tag_offsets, tag_hashes = self._tags
        if not len(tag_offsets):
            return np.zeros(len(offsets), bool)
        rows = np.minimum(np.searchsorted(tag_offsets, offsets), len(tag_offsets) - 1)
        return np.asarray((tag_offsets[rows] == offsets) & (tag_hashes[rows] == hashes))

    def _take_until(self, physical_offset: int) -> list[Part]:
        """The next entries, up to the record at `physical_offset`."""
        parts = []
        while self._file < len(self._files):
            file = self._files[self._file]
            rest = self._entries(file)[self._row :]
            later = rest["physical_offset"] > physical_offset
            count = int(later.argmax()) if later.any() else len(rest)
            if count:
                parts.append(Part(file, self._row + 1, rest[:count]))
                self._row += count
            if count < len(rest):
                break
            self._known.pop(file, None)
            self._file, self._row = self._file + 1, 0
        return parts

    def _entries(self, file: IndexFile) -> Array:
        if file not in self._known:
            try:
                self._known[file] = file.records()
            except (ReadError, ValueError):
                self._known[file] = np.empty(0, INDEX_ENTRY)
        return self._known[file]

    def _compare(self, expected: list[tuple[int, int]], found: list[tuple[int, int]]) -> None:
        """Compare (physical offset, key hash) of keys and entries, in order. Duplicate entries are no problem."""
        missing = Counter(expected) - Counter(found)
        surplus = [pair for pair in (Counter(found) - Counter(expected)) if pair not in set(expected)]
        if missing:
            self._missing.append((min(missing)[0], missing.total()))
        if surplus:
            self._surplus.append((min(surplus)[0], len(surplus)))
        if not missing and not surplus and list(dict.fromkeys(expected)) != list(dict.fromkeys(found)):
            text = f"the keys of records from physical offset {expected[0][0]} on are out of order"
            self._problems.append((expected[0][0], Problem(ProblemKind.INDEX, "index", -1, text)))

    def _compare_times(self, parts: list[Part], keeps: Array, store_times_ms: Array) -> None:
        """`keeps` selects the entries of `parts` for the keys stored at `store_times_ms`, in order."""
        first = told = 0
        for part in parts:
            rows = np.flatnonzero(keeps[first : first + len(part.entries)])
            times = store_times_ms[told : told + len(rows)]
            seconds = np.clip((times - part.file.header.begin_time_ms) // 1000, 0, MAX_TIME_DIFFERENCE_S)
            # The first entry's time is relative to a begin that the file inherited.
            wrong = rows[(part.entries["time_difference_s"][rows] != seconds) & (rows + part.number > 1)]
            if len(wrong):
                number = part.number + int(wrong[0])
                text = f"{len(wrong):,} entries from number {number} on have a wrong time"
                name = f"index/{part.file.file.path.name}"
                problem = Problem(ProblemKind.INDEX, name, entry_position(part.file, number), text)
                self._problems.append((int(part.entries["physical_offset"][int(wrong[0])]), problem))
            first, told = first + len(part.entries), told + len(rows)

    def problems(self, extent: Extent, progress: Callable[[], None]) -> Iterator[Problem]:
        begin, end = extent.begin(""), extent.end
        yield from (problem for physical_offset, problem in self._problems if physical_offset >= begin)
        missing = [found for found in self._missing if found[0] >= begin]
        if missing:
            count = sum(count for _, count in missing)
            text = f"keys that are missing: {count:,}, the first of the record at physical offset"
            yield Problem(ProblemKind.INDEX, "index", -1, f"{text} {missing[0][0]}")
        self._surplus_until(end)
        surplus = [found for found in self._surplus if found[0] >= begin]
        if surplus:
            count = sum(count for _, count in surplus)
            text = f"entries of no record with their key: {count:,}, the first for physical offset"
            yield Problem(ProblemKind.INDEX, "index", -1, f"{text} {surplus[0][0]}")
        for path in self._index.foreign:
            text = "no index file of this store's sizes"
            yield Problem(ProblemKind.FOREIGN_FILE, f"index/{path.name}", -1, text)
        for file in self._files:
            yield from chain_problems(self._index, file, end if extent.is_written else None)
        for before, after in pairwise(self._files):
            yield from order_problems(before, after)

    def _surplus_until(self, end: int) -> None:
        """Note the entries after the last key that was put, of records before `end`, as surplus."""
        for part in self._take_until(end - 1):
            offsets = part.entries["physical_offset"].astype(np.int64)
            hashes = part.entries["key_hash"].astype(np.int64)
            rows = np.flatnonzero((offsets >= self._begin) & ~self._is_tag(hashes, offsets))
            pairs = zip(offsets[rows].tolist(), hashes[rows].tolist(), strict=True)
            left = [pair for pair in pairs if pair not in self._newest]
            if left:
                self._surplus.append((left[0][0], len(left)))


def entry_position(file: IndexFile, number: int) -> int:
    """Position in bytes of the entry of that number in its file."""
    return file.file.size - (file.entries - number) * INDEX_ENTRY.itemsize


def chain_problems(index: Index, file: IndexFile, written_from: int | None = None) -> Iterator[Problem]:
    """Problems within one file: its slots and chains must follow from the entries' hashes.

    `written_from`: another process writes keys of records from that physical offset on. It writes entries first, then
    their count, then slots, so a slot may lead to any of these entries.
    """
    name = f"index/{file.file.path.name}"
    is_written = written_from is not None and file in index.files[-1:]
    try:
        file.require_read()
        slots_before = file.chain_starts().copy() if is_written else None
        header, entries, stored = index.between_writes(file)
    except RefusedReadError as error:
        yield Problem(ProblemKind.INDEX, name, error.position, error.reason)
        return
    except (ReadError, ValueError) as error:
        yield Problem(ProblemKind.WRONG_SIZE, name, -1, str(error))
        return
    if not 1 <= header.next_entry <= file.entries:
        yield Problem(ProblemKind.INDEX, name, 36, f"its header counts {header.next_entry:,} entries: more than fit")
        return
    none, buckets = np.zeros(file.slots, np.int64), entries["key_hash"].astype(np.int64) % file.slots
    numbers = np.arange(1, len(entries) + 1)
    previous, used, heads = link(buckets, numbers, none)
    slots = none.copy()
    slots[used] = heads
    differs = stored != slots
    if slots_before is not None:
        settled = int(np.count_nonzero(entries["physical_offset"] < written_from))
        _, used, heads = link(buckets[:settled], numbers[:settled], none)
        slots[:] = 0
        slots[used] = heads
        newer = (slots_before > settled) & (slots_before <= len(entries))
        newer[newer] = buckets[slots_before[newer] - 1] == np.flatnonzero(newer)
        differs = (slots_before != slots) & ~newer
    wrong = np.flatnonzero(differs)
    if len(wrong):
        yield Problem(ProblemKind.INDEX, name, 40 + 4 * int(wrong[0]), f"{len(wrong):,} slots lead to a wrong entry")
    wrong = np.flatnonzero(entries["previous"] != previous)
    if len(wrong):
        position = entry_position(file, int(wrong[0]) + 1)
        yield Problem(ProblemKind.INDEX, name, position, f"{len(wrong):,} entries are chained to a wrong one")
    if is_written:
        return  # the header's fields change one by one
    if len(entries) and header.end_physical_offset != int(entries["physical_offset"][-1]):
        yield Problem(ProblemKind.INDEX, name, 24, "its header's last physical offset is not its newest entry's")
    if len(entries) and header.begin_physical_offset != int(entries["physical_offset"][0]):
        yield Problem(ProblemKind.INDEX, name, 16, "its header's first physical offset is not its oldest entry's")


def order_problems(before: IndexFile, after: IndexFile) -> Iterator[Problem]:
    """A problem if the file `before` is not full although the next one has entries."""
    try:
        if before.room <= 0 or after.header.next_entry <= 1:
            return
    except (ReadError, ValueError):
        return  # reported by `chain_problems`
    text = f"it is not full, though {after.file.path.name} follows"
    yield Problem(ProblemKind.INDEX, f"index/{before.file.path.name}", -1, text)

"""Checking the index: the keys that records carry, compared with what its files hold, in order.

RocketMQ indexes the record at a restart's boundary twice; that is no problem, and neither are keys of records that
retention took.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from engine.errors import ReadError
from engine.index import Index
from engine.indexfile import INDEX_ENTRY, MAX_TIME_DIFFERENCE_S, IndexFile, link
from engine.problem import Problem, ProblemKind

Array = np.ndarray[Any, Any]


@dataclass
class _Cursor:
    """The next entry to compare: `row` of `entries` of the file with that number."""

    number: int = -1
    row: int = 0


class CheckedIndex:
    """The index, told what its entries should be. Thread safety: one caller."""

    def __init__(self, index: Index, begin: int) -> None:
        """`begin` is where the log begins: keys of earlier records are not compared."""
        self._files = index.files
        self._foreign = index.foreign
        self._size = index.files[0].file.size if index.files else 0
        self._begin = begin
        self._entries: Array = np.empty(0, INDEX_ENTRY)
        self._number = -1
        self._row = 0
        self._last = -1
        self._found: list[Problem] = []
        self._lost = 0
        self._lost_at = -1

    def put_many(
        self, key_hashes: Array, physical_offsets: Array, store_times_ms: Array, more_records: bool = False
    ) -> None:
        """The next keys should be these, in this order."""
        done = 0
        while done < len(key_hashes):
            if not self._skip_to(int(physical_offsets[done])):
                self._lose(physical_offsets[done:])
                return
            count = min(len(self._entries) - self._row, len(key_hashes) - done)
            part = slice(done, done + count)
            same = self._compare(key_hashes[part], physical_offsets[part], store_times_ms[part])
            self._row += same
            done += same
            if same < count:
                self._lose(physical_offsets[done : done + 1])
                done += 1

    def _skip_to(self, physical_offset: int) -> bool:
        """Move to the next entry that is not of an earlier record; False when the files hold no more."""
        while True:
            places = self._entries["physical_offset"][self._row :]
            earlier = (places < self._begin) | ((places <= self._last) & (places < physical_offset))
            self._row += len(places) if earlier.all() else int(earlier.argmin())
            if self._row < len(self._entries):
                return True
            if self._number + 1 >= len(self._files):
                return False
            self._number += 1
            self._row = 0
            self._entries = self._read(self._files[self._number])

    def _read(self, file: IndexFile) -> Array:
        try:
            return file.records()
        except (ReadError, ValueError):
            return np.empty(0, INDEX_ENTRY)

    def _compare(self, key_hashes: Array, physical_offsets: Array, store_times_ms: Array) -> int:
        """How many of the next entries are as they should be."""
        file = self._files[self._number]
        entries = self._entries[self._row : self._row + len(key_hashes)]
        same = (entries["key_hash"] == key_hashes) & (entries["physical_offset"] == physical_offsets)
        count = len(same) if same.all() else int(same.argmin())
        seconds = np.clip((store_times_ms - file.header.begin_time_ms) // 1000, 0, MAX_TIME_DIFFERENCE_S)
        wrong = np.flatnonzero(entries["time_difference_s"][:count] != seconds[:count])
        if self._row == 0:
            wrong = wrong[wrong > 0]  # the first entry's counts from a begin that the file inherited
        if len(wrong):
            self._note(file, self._row + int(wrong[0]) + 1, f"{len(wrong):,} entries from there on have a wrong time")
        if count:
            self._last = int(physical_offsets[count - 1])
        return count

    def _lose(self, physical_offsets: Array) -> None:
        if not self._lost and len(physical_offsets):
            self._lost_at = int(physical_offsets[0])
        self._lost += len(physical_offsets)

    def _note(self, file: IndexFile, number: int, text: str) -> None:
        position = file.file.size - (file.entries - number) * INDEX_ENTRY.itemsize
        self._found.append(Problem(ProblemKind.INDEX, f"index/{file.file.path.name}", position, text))

    def problems(self, end: int) -> Iterator[Problem]:
        """What is wrong, once all keys of records before the physical offset `end` were told."""
        yield from self._found
        if self._lost:
            text = f"{self._lost:,} keys are missing, the first of the record at physical offset {self._lost_at}"
            yield Problem(ProblemKind.INDEX, "index", -1, text)
        if self._skip_to(end):
            places = self._entries["physical_offset"][self._row :]
            if bool(np.any(places < end)):
                name = self._files[self._number].file.path.name
                text = f"{int(np.count_nonzero(places < end)):,} entries are of no record"
                yield Problem(ProblemKind.INDEX, f"index/{name}", -1, text)
        for path in self._foreign:
            yield Problem(ProblemKind.FOREIGN_FILE, f"index/{path.name}", -1, "no index file of this store's sizes")
        for file in self._files:
            yield from _chain_problems(file)
        for before, after in pairwise(self._files):
            if before.room > 0 and after.header.next_entry > 1:
                text = f"it is not full, though {after.file.path.name} follows"
                yield Problem(ProblemKind.INDEX, f"index/{before.file.path.name}", -1, text)


def _chain_problems(file: IndexFile) -> Iterator[Problem]:
    """Slots and chains follow from the entries' hashes alone."""
    name = f"index/{file.file.path.name}"
    try:
        header, entries = file.header, file.records()
    except (ReadError, ValueError) as error:
        yield Problem(ProblemKind.WRONG_SIZE, name, -1, str(error))
        return
    if not 1 <= header.next_entry <= file.entries:
        yield Problem(ProblemKind.INDEX, name, 36, f"it counts {header.next_entry:,} entries, and has room for fewer")
        return
    slots, numbers = np.zeros(file.slots, np.int64), np.arange(1, len(entries) + 1)
    previous, used, heads = link(entries["key_hash"].astype(np.int64) % file.slots, numbers, slots)
    slots[used] = heads
    wrong = np.flatnonzero(file.chain_starts() != slots)
    if len(wrong):
        yield Problem(ProblemKind.INDEX, name, 40 + 4 * int(wrong[0]), f"{len(wrong):,} slots lead to a wrong entry")
    wrong = np.flatnonzero(entries["previous"] != previous)
    if len(wrong):
        position = file.file.size - (file.entries - 1 - int(wrong[0])) * INDEX_ENTRY.itemsize
        yield Problem(ProblemKind.INDEX, name, position, f"{len(wrong):,} entries are chained to a wrong one")
    if len(entries) and header.end_physical_offset != int(entries["physical_offset"][-1]):
        yield Problem(ProblemKind.INDEX, name, 24, "its header's last physical offset is not its newest entry's")
    if len(entries) and header.begin_physical_offset != int(entries["physical_offset"][0]):
        yield Problem(ProblemKind.INDEX, name, 16, "its header's first physical offset is not its oldest entry's")

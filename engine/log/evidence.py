"""Evidence: the bytes written to the log according to marks and consume queues (docs/format.md, 8).

The log alone can't tell a torn write from damage, or a record from a copy of one in a message's body. Marks and queue
entries can: the bytes that a mark covers were once written, and in a closed store also the bytes that an entry leads
to. Entries lead to records only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from engine.log.entries import ENTRY, Entries, is_pre_blank
from engine.record.header import MAX_OFFSET

Array = np.ndarray[Any, Any]

Extents = dict[str, dict[int, tuple[int, int]]]
"""Each queue's first queue offset in its files, and its next one, by topic and queue id."""


class QueueEntries(Protocol):
    """The part of a consume queue that counts as evidence."""

    topic: str
    queue_id: int

    @property
    def first_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def newest_physical_offset(self) -> int: ...
    @property
    def physical_end(self) -> int: ...
    def offset_of_physical(self, physical_offset: int) -> int: ...
    def entries(self, first: int, count: int) -> Entries: ...


MOST_ENTRIES = 4_000_000
"""Limit of the entries kept in memory: the newest are kept, and the log before them is read without entries."""


@dataclass(frozen=True, slots=True)
class QueueEvidence:
    """A queue's next queue offset, the physical offsets at which its newest entry's record begins and ends (-1: not
    known), and the queue offsets of its entries."""

    next_offset: int
    physical_offset: int = -1
    physical_end: int = -1
    held: range = range(0)


class Run(NamedTuple):
    """Entries of one queue, from queue offset `first` on, in memory of their own."""

    first: int
    entries: Entries


@dataclass(frozen=True)  # no slots: `_led_to` is computed at its first use, which only a damaged log has
class Evidence:
    """The bytes written to the log according to marks and consume queues. By default there is no evidence.

    `is_clean`: the last writer closed the store, so all bytes that entries lead to were written. The log before the
    physical offset `covered_end` is on disk. The log from `own_from` on was written by fsstore and may not be on disk;
    None: the store was closed, or another program wrote it. `runs` holds the entries of each queue. Records before the
    physical offset `deleted_until(topic)` were deleted with their topic: a topic of that name begins again at 0.
    Further queues are `at_rest`. Their records end at `rest_end` at the latest; -1: there are none.
    """

    is_clean: bool = False
    covered_end: int = 0
    own_from: int | None = None
    queues: Mapping[tuple[str, int], QueueEvidence] = field(default_factory=dict)
    runs: Mapping[tuple[str, int], Sequence[Run]] = field(default_factory=dict)
    deleted_until: Callable[[str], int] = lambda topic: 0
    at_rest: Extents = field(default_factory=dict)
    rest_end: int = -1

    @cached_property
    def _led_to(self) -> tuple[Array, Array]:
        return _by_physical_offset(_joined(self.runs))

    @property
    def physical_offsets(self) -> Array:
        """Physical offsets of the records that entries lead to: int64 (n,), ascending."""
        return self._led_to[0]

    @property
    def sizes(self) -> Array:
        """Sizes of these records in bytes, according to the entries: int64 (n,)."""
        return self._led_to[1]

    @property
    def dispatched_end(self) -> int:
        """Physical offset just past the last record that an entry leads to; -1: no entry leads to one."""
        return max([self.rest_end, *(queue_evidence.physical_end for queue_evidence in self.queues.values())])

    def has_entry(self, physical_offset: int, size: int) -> bool:
        """Whether an entry leads to a record of `size` bytes at `physical_offset`."""
        start, end = np.searchsorted(self.physical_offsets, [physical_offset, physical_offset + 1]).tolist()
        return bool(np.any(self.sizes[start:end] == size))

    def physical_offset_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Physical offset in the queue's entry at `queue_offset`; -1: the entry is missing, or leads to no record."""
        for first, entries in self.runs.get((topic, queue_id), ()):
            row = queue_offset - first
            if 0 <= row < len(entries):
                return int(entries["physical_offset"][row]) if _leads(entries[row : row + 1])[0] else -1
        return -1

    def size_at(self, physical_offset: int) -> int | None:
        """Size in bytes of the record at `physical_offset` according to its entries. None without an entry, or if
        entries contradict each other: their sizes differ, or another record begins before this one's end."""
        start, end = np.searchsorted(self.physical_offsets, [physical_offset, physical_offset + 1]).tolist()
        sizes = set(self.sizes[start:end].tolist())
        if len(sizes) != 1:
            return None
        (size,) = sizes
        return (
            size if end == len(self.physical_offsets) or self.physical_offsets[end] >= physical_offset + size else None
        )

    def end_around(self, physical_offset: int) -> int:
        """End of the record that spans `physical_offset` according to an entry, or the offset itself if none does."""
        before = int(np.searchsorted(self.physical_offsets, physical_offset)) - 1
        if before < 0:
            return physical_offset
        found = int(self.physical_offsets[before])
        return max(physical_offset, found + (self.size_at(found) or 0))

    def reaches_beyond(self, physical_offset: int) -> bool:
        """Whether a record spans `physical_offset` according to an entry: no other record begins inside it."""
        return self.end_around(physical_offset) > physical_offset

    def entries_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """(physical offset, size) of each record that begins in [start, end) and has an entry, ascending."""
        first, last = np.searchsorted(self.physical_offsets, [start, end]).tolist()
        return sorted(
            set(zip(self.physical_offsets[first:last].tolist(), self.sizes[first:last].tolist(), strict=True))
        )

    def lacks_entry(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether the queue held no entry at `queue_offset` when it was opened. Its record may exist without one."""
        queue_evidence = self.queues.get((topic, queue_id))
        if queue_evidence is not None:
            return queue_offset not in queue_evidence.held
        first, after = self.at_rest.get(topic, {}).get(queue_id, (0, 0))
        return not first <= queue_offset < after


@dataclass(frozen=True, slots=True)
class Covered:
    """A recovery point: the log before the physical offset `end` is on disk, with each queue's messages before its
    queue offset in `next_offsets`. The last record before `end` ends at `newest_end`."""

    end: int
    next_offsets: Mapping[tuple[str, int], int]
    newest_end: int

    def reach(self, files_end: int) -> int:
        """Physical offset at which the log ended. No checksum covers `end` and `newest_end`, so a log end behind
        `files_end`, the end of its files now, is believed only if both agree on it."""
        return self.end if self.end == self.newest_end else min(self.end, files_end)


def read_evidence(
    queues: Iterable[QueueEntries],
    covered: Covered | None,
    *,
    clean: bool,
    start: int,
    end: int,
    file_bytes: int,
    deleted_until: Callable[[str], int],
    at_rest: Extents | None = None,
) -> Evidence:
    """The evidence about a log whose files, of `file_bytes` each, end at the physical offset `end`. Its newest files
    may be missing. Entries for records from the physical offset `start` on are kept in memory.

    `covered` comes from the mark if that belongs to this log; `clean` means that the last writer closed the store.
    Further queues are `at_rest`, as in `Evidence`. Call this after the ends of the queues are found, and before
    anything is cut. `queues` is iterated twice.
    """
    own_from = covered.end if covered is not None and not clean else None
    covered_end = covered.reach(end) if covered is not None else 0
    end = max(end, covered_end)
    if clean and covered is None:
        end = _reach(queues, end, file_bytes)
    evidence = {
        (queue.topic, queue.queue_id): QueueEvidence(
            queue.max_offset,
            queue.newest_physical_offset,
            queue.physical_end,
            range(queue.first_offset, queue.max_offset),
        )
        for queue in queues
        if 0 <= queue.physical_end <= end
    }
    for key, next_offset in covered.next_offsets.items() if covered is not None else ():
        known = evidence.get(key)
        if known is None or known.next_offset < next_offset:
            evidence[key] = QueueEvidence(next_offset, held=known.held if known is not None else range(0))
    runs = _runs(queues, start, end)
    rest_end = covered.newest_end if covered is not None and at_rest else -1
    return Evidence(clean, covered_end, own_from, evidence, runs, deleted_until, at_rest or {}, rest_end)


def with_entries(evidence: Evidence, queues: Iterable[QueueEntries], start: int, end: int) -> Evidence:
    """`evidence` with the entries for records in [start, end), which it does not hold yet."""
    runs = _runs(queues, start, end)
    return replace(
        evidence, runs={key: [*evidence.runs.get(key, ()), *runs.get(key, ())] for key in {**evidence.runs, **runs}}
    )


def _reach(queues: Iterable[QueueEntries], end: int, file_bytes: int) -> int:
    """Physical end of the records at or behind `end` that entries lead to. No checksum covers an entry, so the first
    distance or size of a whole file or more ends the search."""
    physical_offsets, sizes = _by_physical_offset(_joined(_runs(queues, end, MAX_OFFSET)))
    ends = physical_offsets + sizes
    apart = physical_offsets - np.concatenate(([end], ends[:-1])) >= file_bytes
    apart |= sizes > file_bytes
    count = int(apart.argmax()) if apart.any() else len(physical_offsets)
    return int(ends[:count].max(initial=end))


def _runs(queues: Iterable[QueueEntries], start: int, end: int) -> dict[tuple[str, int], Sequence[Run]]:
    """The entries for records in [start, end): the newest, up to about MOST_ENTRIES."""
    known = list(queues)
    bounds = _bounds(known, start, end)
    while start < end and sum(after - first for _, first, after in bounds) > MOST_ENTRIES:
        start = (start + end + 1) // 2
        bounds = _bounds(known, start, end)
    return {
        (queue.topic, queue.queue_id): [Run(first, _copied(queue.entries(first, after - first)))]
        for queue, first, after in bounds
    }


def _joined(runs: Mapping[tuple[str, int], Sequence[Run]]) -> Entries:
    return _in_one([run.entries for own in runs.values() for run in own])


def _bounds(queues: Sequence[QueueEntries], start: int, end: int) -> list[tuple[QueueEntries, int, int]]:
    """Each queue that has entries for records in [start, end), with their queue offsets [first, after)."""
    found = ((queue, queue.offset_of_physical(start), queue.offset_of_physical(end)) for queue in queues)
    return [(queue, first, after) for queue, first, after in found if first < after]


def entries_between(bounds: Sequence[tuple[QueueEntries, int, int]]) -> tuple[Array, Array]:
    """Physical offsets and sizes of the records that the bounded entries lead to: int64 (n,), in the log's order."""
    runs = [_copied(queue.entries(first, after - first)) for queue, first, after in bounds]  # a view holds its file
    return _by_physical_offset(_in_one(runs))


def _in_one(parts: Sequence[Entries]) -> Entries:
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, ENTRY), *parts])


def _copied(entries: Entries) -> Entries:
    """`entries` in memory of their own, not as a view of a queue's file."""
    return (
        entries if entries.flags.owndata else entries.view(f"V{ENTRY.itemsize}").copy().view(ENTRY)
    )  # field by field costs more


def _by_physical_offset(entries: Entries) -> tuple[Array, Array]:
    leads = _leads(entries)
    if not leads.all():
        entries = entries[leads]
    physical_offsets, sizes = entries["physical_offset"].astype(np.int64), entries["size"].astype(np.int64)
    if (physical_offsets[1:] >= physical_offsets[:-1]).all():  # as those of one queue are
        return physical_offsets, sizes
    order = np.argsort(physical_offsets, kind="stable")
    return physical_offsets[order], sizes[order]


def _leads(entries: Entries) -> Array:
    """Whether each entry leads to a record: bool (n,)."""
    return np.asarray(~is_pre_blank(entries) & (entries["size"] > 0))

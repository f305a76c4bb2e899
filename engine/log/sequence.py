"""Sequence: checks that the queue offsets in records follow each other, queue by queue (docs/format.md, 8).

No checksum covers a record's queue offset, topic or queue id. A queue offset that fits its neighbours shows that all
three are undamaged.

A publisher may have written secondary slots (multi-dispatch) itself. A secondary slot counts only if it has its queue's
next offset, and a record with that offset as its own displaces it. The same holds for the offsets of a batch that is
stored as one record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.record.header import INNER_BATCH, MIN_RECORD_BYTES, is_queued
from engine.record.multi_dispatch import Slot, can_have_queues, inner_slots, secondary_slots

if TYPE_CHECKING:
    from engine.record.scan import ScannedRecords

Array = np.ndarray[Any, Any]
Seed = Callable[[str, int], int | None]
"""The queue offset that the next record of a queue must have, None when it is unknown."""

PlaceOf = Callable[[str, int, int], int]
"""The physical offset that a queue's entry (topic, queue id, queue offset) leads to; -1: there is none."""

SPARE = 1
"""Tolerated gap in a queue's offsets without visible damage: a bit flip in topic, queue id or transaction bits moves a
record out of its queue undetected."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A record whose queue offset is believed only because records before it may be lost. `expected` was the queue's
    next offset, and no record has continued from this one yet."""

    topic: str
    queue_id: int
    expected: int
    queue_offset: int
    physical_offset: int
    store_size: int


@dataclass(frozen=True, slots=True)
class Misnumbered:
    """Records whose queue offset a run shows to be damaged: `rows` of this run (int64, ascending, mostly empty), and
    records of `earlier` runs. `slots` are the believed secondary slots by row; `displaced` are slots of earlier runs
    that are believed no longer."""

    rows: Array
    earlier: tuple[Suspect, ...] = ()
    slots: dict[int, list[Slot]] = field(default_factory=dict)
    displaced: tuple[Suspect, ...] = ()


class Gap(NamedTuple):
    """Queue offsets [first, after) that no record of the log has."""

    topic: str
    queue_id: int
    first: int
    after: int


def queued_rows(records: ScannedRecords) -> Array:
    """Rows that have a queue entry: int64 (k,). Prepared and rolled back transactions have none, nor have topics that
    can have no queues."""
    in_queue = is_queued(records.records.headers["sys_flag"])
    for number, topic in enumerate(records.topics):
        if not can_have_queues(topic):
            in_queue &= records.topic_rows != number
    return np.flatnonzero(in_queue)


def queue_groups(topic_numbers: Array, queue_ids: Array) -> Array:
    """One number for a topic and queue: int64 (n,)."""
    return np.asarray(topic_numbers.astype(np.int64) << 32 | queue_ids.astype(np.int64) & 0xFFFFFFFF)


def equal_groups(groups: Array) -> Iterator[Array | slice]:
    """The indices of each group, ascending."""
    if (groups == groups[:1]).all():
        yield from [slice(None)] if len(groups) else []
        return
    order = np.argsort(groups, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def last_rows(found: ScannedRecords, rows: Array) -> list[int]:
    """The last of `rows` of each queue, ascending."""
    groups = queue_groups(found.topic_rows[rows], found.records.queue_ids[rows])
    _, from_end = np.unique(groups[::-1], return_index=True)
    last: list[int] = np.sort(rows[len(rows) - 1 - from_end]).tolist()
    return last


def all_or(rows: Array, count: int) -> Array | slice:
    """`rows`, ascending, or a slice if they are all `count` rows: numpy gathers no copy for a slice."""
    return slice(None) if len(rows) == count else rows


def secondary_slots_of(found: ScannedRecords, rows: Array) -> dict[int, list[Slot]]:
    """Secondary slots in the properties of `rows`, by row. Rows without any are left out."""
    _, sizes = found.properties.multi_dispatch
    multiple = rows[sizes[rows] > 0]
    return {
        row: secondary_slots(found.records.properties_of(row), int(found.records.queue_ids[row]))
        for row in multiple.tolist()
    }


def inner_batches(found: ScannedRecords, rows: Array) -> dict[int, list[Slot]]:
    """Slots that the batches among `rows` take besides their first, by row: batches that are stored as one record."""
    headers = found.records.headers
    batches: dict[int, list[Slot]] = {}
    for row in rows[headers["sys_flag"][rows] & INNER_BATCH != 0].tolist():
        topic, queue_id = found.topics[int(found.topic_rows[row])], int(found.records.queue_ids[row])
        first = Slot(topic, queue_id, int(headers["queue_offset"][row]))
        batches[row] = inner_slots(found.records.properties_of(row), first)
    return {row: secondary for row, secondary in batches.items() if secondary}


class QueueSequence:
    """The next queue offset of every queue, learned from the records seen. Thread safety: one caller at a time."""

    def __init__(
        self,
        seed: Seed,
        physical_offset_of: PlaceOf,
        *,
        deleted_until: Callable[[str], int] = lambda topic: 0,
        multi_dispatch: bool = False,
    ) -> None:
        """`seed` gives a queue's first offset. `physical_offset_of` is called for a queue offset that does not follow.
        Records of a topic before the physical offset `deleted_until(topic)` are ignored. `multi_dispatch`: records may
        have secondary slots."""
        self._seed = seed
        self._physical_offset_of = physical_offset_of
        self._deleted_until = deleted_until
        self._multi_dispatch = multi_dispatch
        self._next: dict[tuple[str, int], int | None] = {}
        self._suspects: dict[tuple[str, int], Suspect] = {}
        self._disproved: list[Suspect] = []
        self._newest_slots: dict[tuple[str, int], Suspect] = {}
        self._displaced: list[Suspect] = []
        self.gaps: list[Gap] = []
        """The queue offsets that were skipped."""

    def expected(self, topic: str, queue_id: int) -> int | None:
        """The queue offset that the queue's next record must have; None when any may be right."""
        queue = (topic, queue_id)
        if queue not in self._next:
            self._next[queue] = self._seed(topic, queue_id)
        return self._next[queue]

    def fits(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, lost_bytes: int) -> bool:
        """Whether `queue_offset` can be right if `lost_bytes` of the log before it are unreadable."""
        expected = self.expected(topic, queue_id)
        if not _is_possible(queue_offset, physical_offset):
            return False
        if expected is None:
            return True
        suspect = self._suspects.get((topic, queue_id))
        first = suspect.expected + 1 if suspect else expected
        if (topic, queue_id) in self._newest_slots:
            first = min(first, self._newest_slots[topic, queue_id].expected)
        return first <= queue_offset <= expected + _missing(lost_bytes)

    def take(self, found: ScannedRecords, lost_bytes: int) -> Misnumbered:
        """Advance by a run of records; return the records whose queue offset must be damaged.

        An offset that does not follow is believed if the queue's next record continues from it (RocketMQ started that
        queue again), or if lost records explain the step. If lost records explain it and the run ends there, a later
        run may disprove it by continuing from the offset before.
        """
        rows = self._without_deleted(found, queued_rows(found))
        if len(rows) == 0:
            return Misnumbered(rows)
        secondary = inner_batches(found, rows)
        if self._multi_dispatch:
            secondary = secondary_slots_of(found, rows) | secondary
        slots: dict[int, list[Slot]] = {}
        if secondary:
            wrong, slots = self._take_with_slots(found, rows, secondary, lost_bytes)
        else:
            wrong = self._take_plain(found, rows, lost_bytes)
        disproved, self._disproved = self._disproved, []
        displaced, self._displaced = self._displaced, []
        return Misnumbered(np.array(sorted(wrong), dtype=np.int64), tuple(disproved), slots, tuple(displaced))

    def _without_deleted(self, found: ScannedRecords, rows: Array) -> Array:
        ends = np.array([self._deleted_until(topic) for topic in found.topics], np.int64)
        if not ends.any():
            return rows
        return rows[found.records.headers["physical_offset"][rows] >= ends[found.topic_rows[rows]]]

    def _take_plain(self, found: ScannedRecords, rows: Array, lost_bytes: int) -> list[int]:
        chosen = all_or(rows, len(found))
        groups = queue_groups(found.topic_rows[chosen], found.records.queue_ids[chosen])
        wrong: list[int] = []
        for members in equal_groups(groups):
            wrong += self._take_queue(found, rows[members], lost_bytes)
        return wrong

    def _take_queue(self, found: ScannedRecords, rows: Array, lost_bytes: int) -> list[int]:
        first = int(rows[0])
        queue = (found.topics[int(found.topic_rows[first])], int(found.records.queue_ids[first]))
        offsets = found.records.headers["queue_offset"][all_or(rows, len(found))]
        expected = self.expected(*queue)
        if int(offsets[0]) == expected and bool(np.all(offsets[1:] - offsets[:-1] == 1)):
            self._next[queue] = expected + len(offsets)
            self._suspects.pop(queue, None)
            self._newest_slots.pop(queue, None)
            return []
        line = [_Numbered(row, offset) for row, offset in zip(rows.tolist(), offsets.tolist(), strict=True)]
        return self._take_line(found, queue, line, lost_bytes)

    def _take_with_slots(
        self, found: ScannedRecords, rows: Array, secondary: dict[int, list[Slot]], lost_bytes: int
    ) -> tuple[list[int], dict[int, list[Slot]]]:
        """As `_take_plain` for records with secondary slots, which take queue offsets; and the believed slots."""
        headers, queue_ids = found.records.headers, found.records.queue_ids
        lines: dict[tuple[str, int], list[_Numbered]] = {}
        for row in rows.tolist():
            own = (found.topics[int(found.topic_rows[row])], int(queue_ids[row]))
            lines.setdefault(own, []).append(_Numbered(row, int(headers["queue_offset"][row])))
            for slot in secondary.get(row, ()):
                line = lines.setdefault((slot.topic, slot.queue_id), [])
                line.append(_Numbered(row, slot.queue_offset, own=False))
        wrong: list[int] = []
        slots: dict[int, list[Slot]] = {}
        for queue, line in lines.items():
            believed = self._believed_line(found, queue, line, lost_bytes)
            if believed:
                wrong += self._take_line(found, queue, believed, lost_bytes)
            for row, queue_offset, is_own in believed:
                if not is_own:
                    slots.setdefault(row, []).append(Slot(*queue, queue_offset))
        return wrong, slots

    def _believed_line(
        self, found: ScannedRecords, queue: tuple[str, int], line: list[_Numbered], lost_bytes: int
    ) -> list[_Numbered]:
        """The rows of one queue without the secondary slots that do not follow, or have a later record's offset."""
        if all(numbered.own for numbered in line):
            return line
        starts = found.records.headers["physical_offset"]
        to_come = Counter(numbered.queue_offset for numbered in line if numbered.own)
        expected, lost = self.expected(*queue), lost_bytes // MIN_RECORD_BYTES
        believed = []
        for position, numbered in enumerate(line):
            offset = numbered.queue_offset
            most = int(starts[numbered.row]) // MIN_RECORD_BYTES if expected is None else expected + lost
            fits = (expected or 0) <= offset <= most or self._physical_offset_of(*queue, offset) == starts[numbered.row]
            if numbered.own:
                to_come[offset] -= 1
                following = line[position + 1].queue_offset if position + 1 < len(line) else None
                if fits or offset == (expected or 0) + SPARE or following == offset + 1:
                    expected = offset + 1
                else:
                    lost += 1  # its offset is damaged, but the record took one
            elif not fits or to_come[offset]:
                continue
            else:
                expected = offset + 1
            believed.append(numbered)
        return believed

    def _take_line(
        self, found: ScannedRecords, queue: tuple[str, int], line: list[_Numbered], lost_bytes: int
    ) -> list[int]:
        """Advance by one queue's part of a run; return the rows whose own queue offset must be damaged."""
        headers, missing = found.records.headers, _missing(lost_bytes)
        offsets = [numbered.queue_offset for numbered in line]
        physical_offsets = headers["physical_offset"][[numbered.row for numbered in line]].tolist()
        expected = self.expected(*queue)
        newest_slot = self._newest_slots.pop(queue, None)
        since = newest_slot.expected if newest_slot is not None else expected
        if newest_slot is not None and line[0].own and newest_slot.expected <= offsets[0] < (expected or 0):
            expected = since = offsets[0]
            self._displaced.append(replace(newest_slot, expected=expected))
        suspect = self._suspects.pop(queue, None)
        if suspect is not None and _disproves(offsets, suspect, missing):
            self._disproved.append(suspect)
            expected = suspect.expected + 1
        self._note_newest_slot(queue, line, since)
        possible = (
            offset
            for offset, physical_offset in zip(offsets, physical_offsets, strict=True)
            if _is_possible(offset, physical_offset)
        )
        begin = next(possible, None) if expected is None else expected
        if begin is None:
            self._next[queue] = None
            return [numbered.row for numbered in line if numbered.own]
        walked = _walk(
            offsets, physical_offsets, begin, missing, lambda offset: self._physical_offset_of(*queue, offset)
        )
        self._next[queue] = walked.expected
        self.gaps += [Gap(*queue, first, after) for first, after in walked.gaps]
        if walked.jump is not None and line[walked.jump].own:
            row = line[walked.jump].row
            size = int(headers["store_size"][row])
            self._suspects[queue] = Suspect(
                *queue, walked.before_jump, offsets[walked.jump], physical_offsets[walked.jump], size
            )
        return [line[index].row for index in walked.wrong if line[index].own]

    def _note_newest_slot(self, queue: tuple[str, int], line: list[_Numbered], since: int | None) -> None:
        """Note the queue offset from which a queue ends in secondary slots only: the next record may have it as its
        own. `since` is that offset if the whole line is secondary slots."""
        count = 0
        while count < len(line) and not line[-1 - count].own:
            count += 1
        if count:
            first = line[-count].queue_offset
            before = line[-1 - count].queue_offset + 1 if count < len(line) else since
            self._newest_slots[queue] = Suspect(*queue, first if before is None else min(first, before), first, -1, 0)


class _Numbered(NamedTuple):
    """A row and one of its queue offsets: its own, or that of a secondary slot."""

    row: int
    queue_offset: int
    own: bool = True


class _Walked(NamedTuple):
    """`wrong` are the rows of one queue that must be damaged, `expected` is the next queue offset. `jump` is the last
    row that was accepted only on the assumption that earlier records were lost; `before_jump` was expected there.
    `gaps` are ranges [first, after) of queue offsets that no row has."""

    wrong: list[int]
    expected: int
    jump: int | None
    before_jump: int
    gaps: list[tuple[int, int]]


def _missing(lost_bytes: int) -> int:
    """Upper limit of the records of one queue that can be missing."""
    return lost_bytes // MIN_RECORD_BYTES + SPARE


def _walk(
    offsets: list[int],
    physical_offsets: list[int],
    expected: int,
    missing: int,
    physical_offset_of: Callable[[int], int],
) -> _Walked:
    """Check the queue offsets of one queue, before which `missing` records at most were lost. `physical_offset_of`
    gives the physical offset in the entry at a queue offset: it decides between two records with the same one."""
    wrong: list[int] = []
    gaps: list[tuple[int, int]] = []
    jump, before_jump = None, expected
    for row, offset in enumerate(offsets):
        following = offsets[row + 1] if row + 1 < len(offsets) else None
        if offset == expected or (told := physical_offset_of(offset)) == physical_offsets[row]:
            jump = None
        elif offset < expected and 0 <= told < physical_offsets[row]:
            wrong.append(row)
            continue
        elif _believed(offset, physical_offsets[row], expected, following, missing + len(wrong)):
            jump, before_jump = (row, expected) if offset > expected else (None, expected)
        else:
            wrong.append(row)
            continue
        if offset > expected:
            gaps.append((expected, offset))
        expected = offset + 1
    return _Walked(wrong, expected, jump, before_jump, gaps)


def _is_possible(offset: int, physical_offset: int) -> bool:
    """Whether the log before `physical_offset` has room for `offset` records."""
    return 0 <= offset <= physical_offset // MIN_RECORD_BYTES


def _believed(offset: int, physical_offset: int, expected: int, following: int | None, missing: int) -> bool:
    if not _is_possible(offset, physical_offset):
        return False
    if following is not None and following != offset + 1:
        return expected <= offset <= expected + missing and following > offset
    return following == offset + 1 or expected <= offset <= expected + missing


def _disproves(offsets: list[int], suspect: Suspect, missing: int) -> bool:
    """Whether a queue's next offsets continue from the record before the suspect one, whose offset then is wrong."""
    following = offsets[1] if len(offsets) > 1 else None
    if following is not None and following != offsets[0] + 1:
        return False
    return suspect.expected < offsets[0] <= min(suspect.queue_offset, suspect.expected + 1 + missing)

"""Sequence: whether the queue offsets that records carry follow each other, queue by queue (docs/format.md, 8).

No checksum covers a record's queue offset, topic or queue id; that they fit their neighbours is what shows them
undamaged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.columns import find_properties
from engine.logscan import ScannedRecords
from engine.place import MULTI_DISPATCH, Place, places
from engine.properties import decode_properties
from engine.record import MIN_RECORD_BYTES, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

Array = np.ndarray[Any, Any]
Seed = Callable[[str, int], int | None]
"""The queue offset that the next record of a queue must have, None when nothing is known of it."""


def queued_rows(records: ScannedRecords) -> Array:
    """Rows that stand in their queue: all but transactions prepared or rolled back. int64 (k,)."""
    kinds = records.records.headers["sys_flag"] & TRANSACTION_MASK
    return np.flatnonzero((kinds != TRANSACTION_PREPARED) & (kinds != TRANSACTION_ROLLBACK))


def further_places(found: ScannedRecords, rows: Array) -> dict[int, list[Place]]:
    """The further queues of those of `rows` that were dispatched to some."""
    ((_, sizes),) = find_properties(found.records, [MULTI_DISPATCH.encode()])
    multiple = rows[sizes[rows] > 0]
    return {row: places(_properties(found, row), int(found.records.queue_ids[row])) for row in multiple.tolist()}


def _properties(found: ScannedRecords, row: int) -> dict[str, str]:
    start = int(found.records.properties_starts[row])
    return decode_properties(found.records.log[start : start + int(found.records.properties_sizes[row])].tobytes())


class QueueSequence:
    """The next queue offset of every queue, learned from the records seen. Thread safety: one caller at a time."""

    def __init__(self, seed: Seed) -> None:
        """`seed` is asked once for each queue, at its first record."""
        self._seed = seed
        self._next: dict[tuple[str, int], int | None] = {}

    def expected(self, topic: str, queue_id: int) -> int | None:
        """What the next record of the queue must carry; None when any number may be right."""
        place = (topic, queue_id)
        if place not in self._next:
            self._next[place] = self._seed(topic, queue_id)
        return self._next[place]

    def fits(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, lost_bytes: int) -> bool:
        """Whether the number can be right when `lost_bytes` of the log before it cannot be read."""
        expected = self.expected(topic, queue_id)
        if not 0 <= queue_offset <= physical_offset // MIN_RECORD_BYTES:
            return False
        return expected is None or expected <= queue_offset <= expected + lost_bytes // MIN_RECORD_BYTES

    def take(self, found: ScannedRecords, lost_bytes: int) -> Array:
        """Learn from a run of records; the rows whose number must be damaged (int64, ascending, mostly empty).

        A number that does not follow is believed when the queue's next record goes on from it (RocketMQ started that
        queue anew), when lost records explain the step, or when it is 0 and no next record says otherwise.
        """
        rows = queued_rows(found)
        if len(rows) == 0:
            return rows
        further = further_places(found, rows)
        if further:
            return self._take_with_places(found, rows, further, lost_bytes)
        codes = found.topic_rows[rows] << 32 | found.records.queue_ids[rows].astype(np.int64) & 0xFFFFFFFF
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        starts = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
        ends = np.append(starts[1:], len(codes))
        wrong: list[int] = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            wrong += self._take_queue(found, rows[order[start:end]], lost_bytes)
        return np.array(sorted(wrong), dtype=np.int64)

    def _take_with_places(
        self, found: ScannedRecords, rows: Array, further: dict[int, list[Place]], lost_bytes: int
    ) -> Array:
        """As `take`, when some records stand in further queues, whose numbers they use up."""
        headers, queue_ids = found.records.headers, found.records.queue_ids
        lines: dict[tuple[str, int], list[tuple[int, int, bool]]] = {}
        for row in rows.tolist():
            own = (found.topics[int(found.topic_rows[row])], int(queue_ids[row]))
            lines.setdefault(own, []).append((row, int(headers["queue_offset"][row]), True))
            for place in further.get(row, ()):
                lines.setdefault((place.topic, place.queue_id), []).append((row, place.queue_offset, False))
        wrong: set[int] = set()
        for (topic, queue_id), line in lines.items():
            offsets = [offset for _, offset, _ in line]
            expected = self.expected(topic, queue_id)
            places_of = [int(headers["physical_offset"][row]) for row, _, _ in line]
            first = offsets[0] if expected is None else expected
            strays, self._next[topic, queue_id] = _walk(offsets, places_of, first, lost_bytes // MIN_RECORD_BYTES)
            wrong.update(line[stray][0] for stray in strays if line[stray][2])
        return np.array(sorted(wrong), dtype=np.int64)

    def _take_queue(self, records: ScannedRecords, rows: Array, lost_bytes: int) -> list[int]:
        first = int(rows[0])
        topic = records.topics[int(records.topic_rows[first])]
        queue_id = int(records.records.queue_ids[first])
        offsets = records.records.headers["queue_offset"][rows]
        expected = self.expected(topic, queue_id)
        if expected is None:
            expected = int(offsets[0])
        if int(offsets[0]) == expected and bool(np.all(offsets[1:] - offsets[:-1] == 1)):
            self._next[topic, queue_id] = expected + len(offsets)
            return []
        places = records.records.headers["physical_offset"][rows].tolist()
        wrong, self._next[topic, queue_id] = _walk(offsets.tolist(), places, expected, lost_bytes // MIN_RECORD_BYTES)
        return [int(rows[row]) for row in wrong]


def _walk(offsets: list[int], places: list[int], expected: int, lost: int) -> tuple[list[int], int]:
    """Rows of one queue that must be damaged, and what is expected behind them; `lost` records at most are missing."""
    wrong: list[int] = []
    for row, offset in enumerate(offsets):
        following = offsets[row + 1] if row + 1 < len(offsets) else None
        if offset == expected or _believed(offset, places[row], expected, following, lost + len(wrong)):
            expected = offset + 1
        else:
            wrong.append(row)
    return wrong, expected


def _believed(offset: int, place: int, expected: int, following: int | None, lost: int) -> bool:
    if not 0 <= offset <= place // MIN_RECORD_BYTES:
        return False
    if following is not None and following != offset + 1:
        return expected <= offset <= expected + lost and following > offset
    return following == offset + 1 or offset == 0 or expected <= offset <= expected + lost

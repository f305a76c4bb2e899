"""Queue rows: what a scan of the log found, sorted by the queues that it belongs to (docs/format.md, 5).

A record belongs to its own queue (unless its transaction is prepared or rolled back), and to its further places. Each
queue's rows stay in log order, wherever they come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from engine.log.delay import SCHEDULE_TOPIC, DelayLevels, tags_code
from engine.log.entries import ENTRY, Entries
from engine.log.queue_sequence import queued_rows
from engine.record.scan import ScannedRecords

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class QueueRows:
    """Rows of one queue: their queue offsets (int64 (n,)) and entries (ENTRY (n,))."""

    topic: str
    queue_id: int
    queue_offsets: Array
    entries: Entries


def rows_by_queue(scanned: ScannedRecords, tags: Array, levels: DelayLevels) -> Iterator[QueueRows]:
    """The rows of each queue. `tags` are hashes of TAGS."""
    records, headers = scanned.records, scanned.records.headers
    rows = queued_rows(scanned)
    topics = {topic: number for number, topic in enumerate(scanned.topics)}
    groups = _group(scanned.topic_rows[rows], records.queue_ids[rows])
    offsets = headers["queue_offset"][rows]
    codes = _with_due_times(scanned, tags, topics.get(SCHEDULE_TOPIC), levels)[rows]
    if scanned.places:
        more = np.array(_further_rows(scanned, set(rows.tolist()), topics), np.int64).reshape(-1, 4)
        rows = np.concatenate([rows, more[:, 0]])
        order = np.argsort(rows, kind="stable")  # in log order, a record's own queue first
        rows = rows[order]
        groups = np.concatenate([groups, _group(more[:, 1], more[:, 2])])[order]
        offsets = np.concatenate([offsets, more[:, 3]])[order]
        codes = np.concatenate([codes, tags[more[:, 0]]])[order]
    names = list(topics)
    for members in _equal_groups(groups):
        group, wanted = int(groups[members[0]]), rows[members]
        entries = np.empty(len(members), ENTRY)
        entries["physical_offset"] = headers["physical_offset"][wanted]
        entries["size"] = headers["store_size"][wanted]
        entries["tags_code"] = codes[members]
        yield QueueRows(names[group >> 32], group & 0xFFFFFFFF, offsets[members], entries)


def _group(topic_numbers: Array, queue_ids: Array) -> Array:
    """One number for a topic and queue."""
    return np.asarray(topic_numbers.astype(np.int64) << 32 | queue_ids.astype(np.int64) & 0xFFFFFFFF)


def _equal_groups(groups: Array) -> Iterator[Array]:
    """The indices of each group, in order."""
    if len(groups):
        order = np.argsort(groups, kind="stable")
        yield from np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def _with_due_times(scanned: ScannedRecords, tags: Array, schedule: int | None, levels: DelayLevels) -> Array:
    """The tags codes: `tags`, but for records of the schedule's topic (number `schedule`)."""
    if schedule is None:
        return tags
    codes = tags.copy()
    for row in np.flatnonzero(scanned.topic_rows == schedule).tolist():
        store_time_ms = int(scanned.records.headers["store_time_ms"][row])
        codes[row] = tags_code(SCHEDULE_TOPIC, scanned.records.properties_of(row), store_time_ms, levels)
    return codes


def _further_rows(scanned: ScannedRecords, rows: set[int], topics: dict[str, int]) -> list[tuple[int, int, int, int]]:
    """(row, topic's number, queue id, queue offset) for each further place of `rows`; numbers new `topics`."""
    return [
        (row, topics.setdefault(place.topic, len(topics)), place.queue_id, place.queue_offset)
        for row, places in scanned.places.items()
        if row in rows
        for place in places
    ]


def consecutive_runs(queue_offsets: Array) -> Iterator[tuple[int, int]]:
    """The ranges [start, end) of rows whose `queue_offsets` follow each other without a step."""
    breaks = np.flatnonzero(np.diff(queue_offsets) != 1) + 1
    return pairwise([0, *breaks.tolist(), len(queue_offsets)])

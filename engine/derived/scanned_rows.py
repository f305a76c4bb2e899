"""The consume queue entries that follow from the records of a scan of the log, queue by queue (docs/format.md, 5).

transaction      none, commit: an entry    prepared, rolled back: none
delayed          the tags code is the due time
multi-dispatch   an entry in each secondary queue, after its own: made by brokers, not by our writer
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.log.delay import SCHEDULE_TOPIC, tags_code
from engine.log.entries import ENTRY, Entries
from engine.log.sequence import all_or, equal_groups, queue_groups, queued_rows
from engine.record.inner_batch import may_be_wrapper

if TYPE_CHECKING:
    from engine.record.scan import ScannedRecords
    from engine.settings.delay_levels import DelayLevels

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class QueueRows:
    """Rows of one queue: queue offsets (int64 (n,)), entries (ENTRY (n,)), text sizes as of `QueueEnd.note_texts`."""

    topic: str
    queue_id: int
    queue_offsets: Array
    entries: Entries
    text_bytes: Array


def rows_by_queue(scanned: ScannedRecords, levels: DelayLevels) -> Iterator[QueueRows]:
    """The rows of each queue, in log order."""
    tags = scanned.tag_hashes.astype(np.int64)
    records, headers = scanned.records, scanned.records.headers
    rows = queued_rows(scanned)
    topics = {topic: number for number, topic in enumerate(scanned.topics)}
    chosen = all_or(rows, len(headers))
    groups = queue_groups(scanned.topic_rows[chosen], records.queue_ids[chosen])
    offsets = headers["queue_offset"][chosen]
    codes = _with_due_times(scanned, tags, topics.get(SCHEDULE_TOPIC), levels)[chosen]
    if scanned.slots:
        more = np.array(_secondary_rows(scanned, set(rows.tolist()), topics), np.int64).reshape(-1, 4)
        rows = np.concatenate([rows, more[:, 0]])
        order = np.argsort(rows, kind="stable")  # in log order, a record's own queue first
        rows = rows[order]
        groups = np.concatenate([groups, queue_groups(more[:, 1], more[:, 2])])[order]
        offsets = np.concatenate([offsets, more[:, 3]])[order]
        codes = np.concatenate([codes, tags[more[:, 0]]])[order]
    names = list(topics)
    is_plain = (headers["body_size"] >= 0) & ~may_be_wrapper(headers["sys_flag"])
    text_bytes = np.where(is_plain, headers["body_size"] + 1, -1)
    for members in equal_groups(groups):
        group, wanted = int(groups[members][0]), rows[members]
        entries = np.empty(len(wanted), ENTRY)
        of = wanted if scanned.slots else all_or(wanted, len(headers))  # secondary slots repeat rows
        entries["physical_offset"], entries["size"] = headers["physical_offset"][of], headers["store_size"][of]
        entries["tags_code"] = codes[members]
        yield QueueRows(names[group >> 32], group & 0xFFFFFFFF, offsets[members], entries, text_bytes[of])


def _with_due_times(scanned: ScannedRecords, tags: Array, schedule: int | None, levels: DelayLevels) -> Array:
    """`tags`, with due times for records of the schedule's topic (number `schedule`)."""
    if schedule is None:
        return tags
    codes = tags.copy()
    for row in np.flatnonzero(scanned.topic_rows == schedule).tolist():
        store_time_ms = int(scanned.records.headers["store_time_ms"][row])
        codes[row] = tags_code(SCHEDULE_TOPIC, scanned.records.properties_of(row), store_time_ms, levels)
    return codes


def _secondary_rows(scanned: ScannedRecords, rows: set[int], topics: dict[str, int]) -> list[tuple[int, int, int, int]]:
    """(row, topic number, queue id, queue offset) for each secondary slot of `rows`. `topics` gets new topics."""
    return [
        (row, topics.setdefault(slot.topic, len(topics)), slot.queue_id, slot.queue_offset)
        for row, slots in scanned.slots.items()
        if row in rows
        for slot in slots
    ]


def consecutive_runs(queue_offsets: Array) -> Iterator[tuple[int, int]]:
    """The ranges [start, end) of rows with consecutive `queue_offsets`."""
    breaks = np.flatnonzero(np.diff(queue_offsets) != 1) + 1
    return pairwise([0, *breaks.tolist(), len(queue_offsets)])

"""Remake: makes the entries of a consume queue that the disk refuses from the log of an opened store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.deadline import check_deadline
from engine.derived.remade import Made
from engine.derived.scanned_rows import rows_by_queue
from engine.log.entries import ENTRY
from engine.log.scan import Known, LogScan

if TYPE_CHECKING:
    from engine.derived.store_files import StoreFiles

LONG_BYTES = 64 << 10
"""Reading more of the log than this checks the deadline: short records take up to 3 ms."""


class LogEntries:
    """A `Make` for the queues of a store. Thread safety: any thread."""

    def __init__(self, parts: StoreFiles) -> None:
        self._parts = parts

    def __call__(self, topic: str, queue_id: int, start: int, end: int | None) -> Made:
        parts, framing = self._parts, self._parts.log.framing
        stop = parts.log.readable_end if end is None else framing.frame_start(end)
        begin = max(framing.frame_start(start), parts.log.min_offset, parts.deleted.until(topic))
        if stop <= begin:
            return Made(np.zeros(0, np.int64), np.zeros(0, ENTRY), start, is_whole=True)
        if stop - begin > LONG_BYTES:
            check_deadline()
        scan = LogScan(
            parts.log.files,
            begin,
            Known(trusted_end=stop, multi_dispatch=parts.multi_dispatch),
            end=stop,
            pages=lambda file: file.pages()[: max(stop - file.start, 0)],
        )
        offsets, entries = [np.zeros(0, np.int64)], [np.zeros(0, ENTRY)]
        for found in scan:
            for rows in rows_by_queue(parts.deleted.without_queues(found), parts.levels):
                if (rows.topic, rows.queue_id) == (topic, queue_id):
                    offsets.append(rows.queue_offsets)
                    entries.append(rows.entries)
        following = max(stop, begin) + framing.header_bytes
        return Made(np.concatenate(offsets), np.concatenate(entries), following, not scan.damaged)

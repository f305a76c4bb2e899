"""The consume queues of a store as derived data (docs/format.md, 6 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.derived.coverage import queues_complete
from engine.derived.derived import Basis, Losses, Proof
from engine.derived.scanned_rows import consecutive_runs, rows_by_queue
from engine.errors import QueueGapError
from engine.log.entries import ENTRY
from engine.settings.config import CONSUME_QUEUE_ENTRY_BYTES

if TYPE_CHECKING:
    from engine.derived.consume_queue import ConsumeQueue
    from engine.derived.consume_queues import ConsumeQueues
    from engine.derived.deleted_topics import DeletedTopics
    from engine.derived.marks import RecoveryPoint
    from engine.files.mapped_file import Access
    from engine.log.commit_log import CommitLog
    from engine.log.sequence import Suspect
    from engine.record.scan import ScannedRecords
    from engine.results import DamagedRange
    from engine.settings.delay_levels import DelayLevels

SCRATCH_FILE_BYTES = 8_192 * CONSUME_QUEUE_ENTRY_BYTES
"""Size of files in scratch memory. It is small, because a store may have thousands of queues."""


class QueuesFromLog:
    """See `Derived`."""

    foreign: Sequence[Path] = ()

    def __init__(self, log: CommitLog, queues: ConsumeQueues, deleted: DeletedTopics, levels: DelayLevels) -> None:
        """`levels` are the delays of messages in the schedule's topic."""
        self._log = log
        self._queues = queues
        self._deleted = deleted
        self._levels = levels

    def prove(self, basis: Basis) -> Proof:
        self.truncate(basis.trusted_end)
        if self._are_complete(basis.point, basis.trusted_end):
            return Proof(basis.trusted_end)
        return Proof(self._log.min_offset, "consume queues")

    def _are_complete(self, point: RecoveryPoint | None, trusted_end: int) -> bool:
        """Whether the queues lead to every record before `trusted_end`, by the recovery point or by a check."""
        if point is None or point.log_begin != self._log.min_offset:
            return queues_complete(self._log, self._queues, self._deleted, trusted_end)
        for topic, extents in point.queues.items():
            if self._deleted.until(topic) >= trusted_end:
                continue
            for queue_id, extent in extents.items():
                if self._queues.extent(topic, queue_id) != extent:
                    return False
        return True

    def put_scanned(self, found: ScannedRecords, losses: Losses) -> list[tuple[str, int]]:
        """As `Derived.put_scanned`. Queue offsets whose records are lost get entries that lead to the damage."""
        while True:
            try:
                return self._put(found)
            except QueueGapError as gap:
                self._fill_gap(self._queues.get_or_create(gap.topic, gap.queue), gap, losses)

    def _put(self, found: ScannedRecords) -> list[tuple[str, int]]:
        appended = []
        for rows in rows_by_queue(found, self._levels) if len(found) else ():
            queue = self._queues.get_or_create(rows.topic, rows.queue_id)
            for start, end in consecutive_runs(rows.queue_offsets):
                queue.append(int(rows.queue_offsets[start]), rows.entries[start:end], rows.text_bytes[start:end])
            appended.append((rows.topic, rows.queue_id))
        return appended

    def _fill_gap(self, queue: ConsumeQueue, gap: QueueGapError, losses: Losses) -> None:
        """Append entries for lost records that lead into the damaged range, so that they read as damaged."""
        entries = np.zeros(gap.found - gap.expected, ENTRY)
        entries["physical_offset"], entries["size"] = self._lost_range(queue, gap, losses.damaged)
        losses.keep(gap.topic, gap.queue, gap.expected, entries)
        queue.append(queue.max_offset, entries)

    def _lost_range(self, queue: ConsumeQueue, gap: QueueGapError, damaged: Sequence[DamagedRange]) -> tuple[int, int]:
        """(physical offset, size) of the first damaged range between the gap's two records, within one file and without
        its frame header; else of the record before the gap, or of the one after it."""
        files = self._log.files
        for damage in damaged:
            if queue.physical_end <= damage.start < gap.physical_offset:
                end = min(damage.end, damage.start - damage.start % files.file_bytes + files.file_bytes)
                start = min(damage.start + files.framing.header_bytes, end - 1)
                return start, end - start
        if queue.newest_physical_offset < 0:
            return gap.physical_offset, gap.size
        return queue.newest_physical_offset, queue.physical_end - queue.newest_physical_offset

    def take_back(self, suspect: Suspect) -> None:
        queue = self._queues.get(suspect.topic, suspect.queue_id)
        if queue is not None:
            queue.drop_from(suspect.expected)

    def truncate(self, physical_end: int) -> None:
        self._queues.truncate(physical_end)

    def delete_expired(self, now_ms: int) -> None:
        self._queues.delete_expired(now_ms)

    def begin_anew(self, folder: Path, access: Access) -> None:
        self._queues.move(folder / "consumequeue", SCRATCH_FILE_BYTES, access, is_made_here=True)

    def destroy(self) -> None:
        """Destroy the queues with records in the log. Others stay: their queue offsets are not given again."""
        for queue in list(self._queues):
            if queue.physical_end > self._log.min_offset or queue.physical_end < 0:
                queue.truncate(-1)
                queue.destroy()

"""Deleted topics: topics whose records in the log must not be dispatched again (docs/format.md, 13).

    STORE/fsstore/deleted.json    {"topics": {"orders": 1048576}}    records before that physical offset are deleted

The log keeps a deleted topic's records until retention deletes their file. Without this note a rebuild would restore
them. The note deletes the topic: it is written first, and the topic's files are deleted after it, or at the next
opening if that fails.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from engine.errors import StoreError
from engine.files.disk import Disk, read_own_file, whole_number, write_own_file
from engine.log.sequence import queued_rows
from engine.record.header import MAX_OFFSET, TRANSACTION_MASK, TRANSACTION_PREPARED, is_rolled_back
from engine.record.scan import ScannedRecords


class DeletedTopics:
    """The deleted topics of one store. Thread safety: any thread."""

    def __init__(self, path: Path, disk: Disk) -> None:
        """Reads `path`. If the file is missing or malformed, no topic counts as deleted."""
        self._path = path
        self._disk = disk
        self._until = _read(path)
        self._known: frozenset[str] | None = None
        self._left_out: set[str] = set()
        self._unfinished: set[str] = set()
        self._storing = threading.Lock()  # retention and deletions run at the same time

    def reload(self) -> None:
        """Read the file again after another process wrote it."""
        self._until = _read(self._path)

    def leave_out_all_but(self, known: frozenset[str]) -> None:
        """Treat all topics not in `known` as deleted by their broker. Call `keep_left_out` after the last record."""
        self._known = known

    def keep_left_out(self, physical_end: int, *, durably: bool) -> list[str]:
        """Note the topics found deleted up to `physical_end`; return them. `durably`: also in the file. OSError."""
        self._known, left_out = None, sorted(self._left_out)
        until = {**self._until, **dict.fromkeys(left_out, physical_end)}
        with self._storing:
            if left_out and durably:
                self._store(until)
            self._until = until
        return left_out

    def _leave_out(self, found: ScannedRecords) -> None:
        """Note the unknown topics of records that belong in a queue."""
        if self._known is None or self._known.issuperset(found.topics):
            return
        topics = {found.topics[row] for row in np.unique(found.topic_rows[queued_rows(found)]).tolist()}
        self._left_out |= topics - self._known
        self._until = {**self._until, **dict.fromkeys(topics - self._known, MAX_OFFSET)}

    def until(self, topic: str) -> int:
        """Physical offset before which the topic's records are deleted; 0 if the topic was never deleted."""
        return self._until.get(topic, 0)

    def add(self, topic: str, physical_end: int) -> None:
        """Durably note that the topic is deleted up to `physical_end`. Call `finish` later. OSError: it is not."""
        with self._storing:
            before = self._until
            try:
                self._store({**before, topic: physical_end})
            except (StoreError, OSError):
                self._put_back(topic, before)
                raise
            self._unfinished.add(topic)

    def take_back(self, topic: str, until: int) -> bool:
        """Undo `add`: set the topic's note back to `until`, 0 for none. False: the disk refuses, and the note stays."""
        with self._storing:
            noted = self._until
            others = {name: end for name, end in noted.items() if name != topic}
            if self._put_back(topic, {**others, topic: until} if until else others):
                return True
            self._until = noted
            return False

    def finish(self, topic: str) -> None:
        """Note that all files of the topic are deleted."""
        self._unfinished.discard(topic)

    @property
    def are_finished(self) -> bool:
        """Whether no deletion is left for the next opening to finish."""
        return not self._unfinished

    def _put_back(self, topic: str, until: dict[str, int]) -> bool:
        self._unfinished.add(topic)  # until the file surely lacks the note
        try:
            self._store(until)
        except (StoreError, OSError):
            return False
        self._unfinished.discard(topic)
        return True

    def forget_before(self, min_physical_offset: int) -> None:
        """Drop the notes about records that retention has deleted. OSError."""
        with self._storing:
            kept = {topic: end for topic, end in self._until.items() if end > min_physical_offset}
            if kept != self._until:
                self._store(kept)

    def include(self, other: DeletedTopics) -> None:
        """Durably add the notes of `other`; the larger physical offset of a topic counts. OSError."""
        with self._storing:
            ends = {topic: max(end, self.until(topic)) for topic, end in other._until.items()}
            joined = {**self._until, **ends}
            if joined != self._until:
                self._store(joined)

    def without_queues(self, found: ScannedRecords) -> ScannedRecords:
        """The run with its records of deleted topics turned into prepared transactions, which get no queue entry.

        They stay in the index, which has no topics: queries check the records they find.
        """
        self._leave_out(found)
        found = self._without_secondary_slots(found)
        if not any(topic in self._until for topic in found.topics):
            return found
        ends = np.array([self.until(topic) for topic in found.topics], dtype=np.int64)
        headers = found.records.headers.copy()
        gone = headers["physical_offset"] < ends[found.topic_rows]
        gone &= ~is_rolled_back(headers["sys_flag"])
        headers["sys_flag"][gone] = headers["sys_flag"][gone] & ~TRANSACTION_MASK | TRANSACTION_PREPARED
        return replace(found, records=replace(found.records, headers=headers))

    def _without_secondary_slots(self, found: ScannedRecords) -> ScannedRecords:
        """The run without secondary slots in deleted topics."""
        if not found.slots or not self._until:
            return found
        starts = found.records.headers["physical_offset"]
        kept = {
            row: [slot for slot in slots if int(starts[row]) >= self.until(slot.topic)]
            for row, slots in found.slots.items()
        }
        return replace(found, slots=kept)

    def _store(self, until: dict[str, int]) -> None:
        write_own_file(self._path, {"topics": until}, self._disk)
        self._until = until


def _read(path: Path) -> dict[str, int]:
    stored = read_own_file(path)
    try:
        return {topic: whole_number(end) for topic, end in stored["topics"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}

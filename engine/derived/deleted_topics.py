"""Deleted topics: whose records in the log are not to be dispatched again (docs/format.md, 13).

    STORE/fsstore/deleted.json    {"topics": {"orders": 1048576}}    its records before that physical offset are gone

The log keeps a deleted topic's records until retention takes their file; without this note a rebuild would bring them
back.

The note is what deletes a topic: it is written first; whatever is left of the topic is deleted
after that, at the next opening if the disk refuses before.
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
        """Reads `path`; a file that is missing or can't be understood says that nothing was deleted."""
        self._path = path
        self._disk = disk
        self._until = _read(path)
        self._known: frozenset[str] | None = None
        self._left_out: set[str] = set()
        self._unfinished: set[str] = set()
        self._storing = threading.Lock()  # retention forgets while people delete

    def reload(self) -> None:
        """Read the file again, which another process wrote."""
        self._until = _read(self._path)

    def leave_out_all_but(self, known: frozenset[str]) -> None:
        """From now on records of other topics than `known` count as deleted: their broker deleted those topics. Call
        `keep_left_out` when all records were seen."""
        self._known = known

    def keep_left_out(self, physical_end: int, *, durably: bool) -> list[str]:
        """The topics that were found to be deleted, noted up to `physical_end`; `durably`: in the file, too.
        OSError."""
        self._known, left_out = None, sorted(self._left_out)
        until = {**self._until, **dict.fromkeys(left_out, physical_end)}
        with self._storing:
            if left_out and durably:
                self._store(until)
            self._until = until
        return left_out

    def _leave_out(self, found: ScannedRecords) -> None:
        """Note the topics of records that a queue would lead to, if those were known."""
        if self._known is None or self._known.issuperset(found.topics):
            return
        topics = {found.topics[row] for row in np.unique(found.topic_rows[queued_rows(found)]).tolist()}
        self._left_out |= topics - self._known
        self._until = {**self._until, **dict.fromkeys(topics - self._known, MAX_OFFSET)}

    def until(self, topic: str) -> int:
        """Records of `topic` before this physical offset are gone; 0 when it was never deleted."""
        return self._until.get(topic, 0)

    def add(self, topic: str, physical_end: int) -> None:
        """Note, durably, that the topic is deleted up to `physical_end`; `finish` is to follow. OSError: it is not."""
        with self._storing:
            before = self._until
            try:
                self._store({**before, topic: physical_end})
            except (StoreError, OSError):
                self._put_back(topic, before)
                raise
            self._unfinished.add(topic)

    def take_back(self, topic: str, until: int) -> bool:
        """The topic is not to be deleted after all: what is noted of it is `until` again, 0 for nothing. False where
        the disk refuses that, too: the note stands."""
        with self._storing:
            noted = self._until
            others = {name: end for name, end in noted.items() if name != topic}
            if self._put_back(topic, {**others, topic: until} if until else others):
                return True
            self._until = noted
            return False

    def finish(self, topic: str) -> None:
        """Nothing is left of the topic."""
        self._unfinished.discard(topic)

    @property
    def are_finished(self) -> bool:
        """Whether all deletions that were begun are done, so that the next opening has nothing to do."""
        return not self._unfinished

    def _put_back(self, topic: str, until: dict[str, int]) -> bool:
        self._unfinished.add(topic)  # as long as the file may have the note
        try:
            self._store(until)
        except (StoreError, OSError):
            return False
        self._unfinished.discard(topic)
        return True

    def forget_before(self, min_physical_offset: int) -> None:
        """Drop notes about records that retention has taken. OSError."""
        with self._storing:
            kept = {topic: end for topic, end in self._until.items() if end > min_physical_offset}
            if kept != self._until:
                self._store(kept)

    def include(self, other: DeletedTopics) -> None:
        """Note, durably, what `other` notes as well, and further where it does. OSError."""
        with self._storing:
            ends = {topic: max(end, self.until(topic)) for topic, end in other._until.items()}
            joined = {**self._until, **ends}
            if joined != self._until:
                self._store(joined)

    def without_queues(self, found: ScannedRecords) -> ScannedRecords:
        """The run, its records of deleted topics made such as no queue leads to: transactions that were only prepared.

        The index goes on leading to them: it knows no topics, and queries look at what they find.
        """
        self._leave_out(found)
        found = self._without_places(found)
        if not any(topic in self._until for topic in found.topics):
            return found
        ends = np.array([self.until(topic) for topic in found.topics], dtype=np.int64)
        headers = found.records.headers.copy()
        gone = headers["physical_offset"] < ends[found.topic_rows]
        gone &= ~is_rolled_back(headers["sys_flag"])
        headers["sys_flag"][gone] = headers["sys_flag"][gone] & ~TRANSACTION_MASK | TRANSACTION_PREPARED
        return replace(found, records=replace(found.records, headers=headers))

    def _without_places(self, found: ScannedRecords) -> ScannedRecords:
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

"""Receiver: appends another store's log to this one, byte for byte, and dispatches its records.

    received bytes ─► commit log: whole records, the first one's head last ─► scan ─► queues, index ─► readers

The log then has the other one's bytes at the same physical offsets. Queues and index get what a recovery of that log
would give them: both are made by the same scan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.derived.derived import Losses
from engine.log.scan import Known, LogScan
from engine.record.header import MAX_OFFSET
from engine.record.kernel.files import read_through

if TYPE_CHECKING:
    from engine.derived.dispatch import WriteDispatcher
    from engine.derived.store_files import StoreFiles
    from engine.log.sequence import Suspect
    from engine.record.scan import ScannedRecords


class Receiver:
    """The writer of a replica. Thread safety: one caller, beside the flush threads."""

    def __init__(self, parts: StoreFiles, dispatcher: WriteDispatcher) -> None:
        """`parts` as recovery left them: what is in the log is dispatched."""
        self._parts = parts
        self._log = log = parts.log
        self._dispatcher = dispatcher
        self._waiting: ScannedRecords | None = None
        """Records in the log whose dispatch failed."""
        end = log.readable_end
        known = Known(
            self._next_offset,
            trusted_end=MAX_OFFSET,  # bodies were checked before they were appended
            multi_dispatch=parts.multi_dispatch or parts.queues.multi_dispatch,
        )
        self._scan = LogScan(log.files, end, known, end=end, disproved=self._take_back)

    @property
    def end(self) -> int:
        """Physical offset at which the log goes on."""
        return self._log.readable_end

    @property
    def newest_ms(self) -> int:
        """Store time of the newest record in ms; 0 without one."""
        return self._log.last_store_time_ms

    def bytes_at(self, physical_offset: int, size: int) -> bytes:
        """Bytes of the log, within one file. ReadError: retention has deleted them, or the disk refuses them."""
        view = self._log.files.view(physical_offset, size)
        read_through(view)
        return bytes(view)

    def append(self, data: bytes, physical_offset: int, store_time_ms: int) -> None:
        """Store `data`, whole and checked records of the other log, and dispatch them: see `CommitLog.append_copied`.
        StoreFullError, OSError: `data` is stored if `end` has moved; the next call dispatches the rest first."""
        with self._log.lock:
            self.dispatch()
            self._log.append_copied(data, physical_offset, store_time_ms)
            self.dispatch()

    def dispatch(self) -> None:
        """Dispatch what an earlier call has left. StoreFullError, OSError: a later call goes on."""
        with self._log.lock:
            if self._waiting is not None:
                self._put(self._waiting)
            if not self._log.files.files:
                return
            if self._scan.end < self._log.min_offset:
                self._scan.end = self._log.min_offset  # the log begins there
            self._scan.reach(self._log.readable_end)
            for found in self._scan:
                self._put(found)

    def _put(self, found: ScannedRecords) -> None:
        parts, dispatcher = self._parts, self._dispatcher
        self._waiting = found
        dispatcher.is_broken = True  # no mark may cover these records before they are dispatched
        queued, losses = parts.deleted.without_queues(found), Losses(self._scan.damaged)
        appended: dict[tuple[str, int], None] = {}
        for kind in reversed(parts.derived):  # keys first: a reader that finds a message finds its keys
            appended.update(dict.fromkeys(kind.put_scanned(queued, losses)))
        dispatcher.note_scanned([parts.queues.by_key[key] for key in appended], self._scan.newest)
        dispatcher.is_broken = False
        self._waiting = None

    def _next_offset(self, topic: str, queue_id: int) -> int | None:
        queue = self._parts.queues.get(topic, queue_id)
        if queue is not None:
            return queue.max_offset
        return 0 if self._log.min_offset == 0 else None

    def _take_back(self, suspect: Suspect) -> None:
        for kind in self._parts.derived:
            kind.take_back(suspect)

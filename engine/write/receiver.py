"""Receiver: appends another store's log to this one, byte for byte, and dispatches its records.

    received bytes ─► commit log: whole records, the first one's head last ─► disk
                                                                           └► scan ─► queues, index ─► readers

The log then has the other one's bytes at the same physical offsets. Queues and index get what a recovery of that log
would give them: both are made by the same scan. It may come later, for several calls of `append` at once; no mark is
made before it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from engine.derived.derived import Losses
from engine.errors import StoreError
from engine.log.scan import Known, LogScan
from engine.record.header import MAX_OFFSET
from engine.record.kernel.files import read_through

if TYPE_CHECKING:
    from engine.derived.dispatch import WriteDispatcher
    from engine.derived.store_files import StoreFiles
    from engine.log.sequence import Suspect
    from engine.record.scan import ScannedRecords
    from engine.write.durability import Durability


class Receiver:
    """The writer of a replica. Thread safety: one caller, beside the flush threads."""

    def __init__(self, parts: StoreFiles, dispatcher: WriteDispatcher, durability: Durability) -> None:
        """`parts` as recovery left them: what is in the log is dispatched."""
        self._parts = parts
        self._log = log = parts.log
        self._dispatcher = dispatcher
        self._flusher = durability.log_flusher
        self._waiting: ScannedRecords | None = None
        """Records in the log whose dispatch failed."""
        end = log.readable_end
        known = Known(
            self._next_offset,
            trusted_end=MAX_OFFSET,  # bodies were checked before they were appended
            multi_dispatch=parts.multi_dispatch or parts.queues.multi_dispatch,
        )
        self._scan = LogScan(log.files, end, known, end=end, disproved=self._take_back)
        durability.before_mark = self._before_mark

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
        """Store `data`, whole and checked records of the other log: see `CommitLog.append_copied`. Readers find them
        after `dispatch`. StoreFullError, OSError: nothing is stored."""
        self._log.append_copied(data, physical_offset, store_time_ms)

    def sync(self) -> None:
        """Return when everything in the log is on disk. FlushFailedError, StoreClosedError."""
        self._flusher.sync()

    def dispatch(self) -> None:
        """Give queues and index the records that they lack. StoreFullError, OSError: a later call goes on."""
        with self._log.lock:
            if self._waiting is None and self._scan.end == self._log.readable_end:
                return
            self._dispatcher.is_broken = True  # no mark may cover these records before they are dispatched
            if self._waiting is not None:
                self._put(self._waiting)
            self._scan.end = max(self._scan.end, self._log.min_offset)  # the log may begin there by now
            self._scan.reach(self._log.readable_end)
            for found in self._scan:
                self._put(found)
            self._dispatcher.is_broken = False

    def _before_mark(self) -> None:
        """Dispatch what is in the log; no mark is made if that fails."""
        with suppress(StoreError, OSError):  # the next call of `dispatch` raises it
            self.dispatch()

    def _put(self, found: ScannedRecords) -> None:
        parts = self._parts
        self._waiting = found
        queued, losses = parts.deleted.without_queues(found), Losses(self._scan.damaged)
        appended: dict[tuple[str, int], None] = {}
        for kind in reversed(parts.derived):  # keys first: a reader that finds a message finds its keys
            appended.update(dict.fromkeys(kind.put_scanned(queued, losses)))
        self._dispatcher.note_scanned([parts.queues.by_key[key] for key in appended], self._scan.newest)
        self._waiting = None

    def _next_offset(self, topic: str, queue_id: int) -> int | None:
        queue = self._parts.queues.get(topic, queue_id)
        if queue is not None:
            return queue.max_offset
        return 0 if self._log.min_offset == 0 else None

    def _take_back(self, suspect: Suspect) -> None:
        for kind in self._parts.derived:
            kind.take_back(suspect)

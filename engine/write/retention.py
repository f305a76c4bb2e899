"""Retention: deletes the oldest files of the log, and the derived data that refers to them (docs/format.md, 10).

`retention_plan` chooses the files. While the disk is over the warn ratio, writes are refused. Retention is off by
default, because opening a store must not lose messages.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from engine.derived.consume_queues import ConsumeQueues
from engine.errors import ReadError, StoreError
from engine.events import Expired
from engine.files.disk import lacks_descriptor
from engine.files.periodic import PeriodicThread
from engine.log.commit_log import CommitLog
from engine.results import Deletion
from engine.settings.config import Clock, Retention
from engine.write.retention_plan import (
    DiskUse,
    DoomedFile,
    LogState,
    RetentionPlan,
    plan,
    proposed_max_bytes,
    waiting_files,
    written_ms,
)

if TYPE_CHECKING:
    from engine.derived.store_files import StoreFiles

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 1.0
"""Interval in seconds at which a writer refused for a full disk checks the disk again."""


class ExpiringLog:
    """Retention's view of a commit log: its files, their disks and contents. Thread safety: any thread."""

    def __init__(self, root: Path, log: CommitLog, queues: ConsumeQueues, clock: Clock, disk_use: DiskUse) -> None:
        """`root` is the store's directory."""
        self._root = root
        self._log = log
        self._queues = queues
        self._clock = clock
        self._disk_use = disk_use

    def state(self) -> LogState:
        """The log and its disks now."""
        files, paths = self._log.files, self._log.files.paths
        disks = {folder: self._disk_use(folder) for folder in (*paths.folders, self._root)}
        pending = Counter[int]()
        for file in files.retired:
            if not file.closed:
                pending[disks[file.path.parent].device] += file.size
        end = self._log.readable_end
        return LogState(files.files, end, self._root, paths.writable, disks, written_ms, pending)

    def plan(self, retention: Retention | None) -> RetentionPlan:
        """The files that `retention` would delete now. Changes nothing."""
        found, now_ms = self.state(), self._clock()
        doomed = list(plan(retention, found, now_ms)) if retention is not None else []
        freed = Counter(found.pending)
        for one in doomed:
            freed[found.disk_of(one.file).device] += one.file.size
        kept = found.files[len(doomed) :]
        return RetentionPlan(
            retention,
            tuple(_by_reason(self.deletion(one) for one in doomed)),
            max(waiting_files(retention, found, now_ms) - len(doomed), 0) if retention is not None else 0,
            len(kept),
            found.end - kept[0].start if kept else 0,
            found.use({}),
            found.use(freed),
            proposed_max_bytes((retention or Retention()).disk_warn_ratio, found, freed),
        )

    def deletion(self, doomed: DoomedFile) -> Deletion:
        """Counts, sizes and times of the messages that are deleted with a file; call it before the deletion."""
        start, end = doomed.file.start, doomed.file.start + doomed.file.size
        messages, first, last = 0, end, -1
        for queue in self._queues.leading_into(start, end):
            with suppress(ReadError):  # a damaged queue keeps no file
                begin, after = queue.offset_of_physical(start), queue.offset_of_physical(end)
                if begin < after:
                    messages += after - begin
                    first = min([first, *queue.physical_offsets(begin, begin + 1).tolist()])
                    last = max([last, *queue.physical_offsets(after - 1, after).tolist()])
        return Deletion(
            self._clock(), doomed.reason, 1, doomed.file.size, messages, self._stored_ms(first), self._stored_ms(last)
        )

    def _stored_ms(self, physical_offset: int) -> int | None:
        try:
            stored = self._log.stored_ms(physical_offset)
        except StoreError:
            return None
        return stored if stored >= 0 else None


def _by_reason(deletions: Iterable[Deletion]) -> Iterable[Deletion]:
    for _, same in groupby(deletions, key=lambda one: one.reason):
        first, *later = same
        for one in later:
            first = first.and_then(one)
        yield first


class Cleaner:
    """Applies a store's retention at intervals on its own thread. A round never holds a lock that puts need while it
    waits for the disk. Thread safety: any thread; one round at a time."""

    def __init__(
        self,
        expiring: ExpiringLog,
        parts: StoreFiles,
        retention: Retention | None,
        clock: Clock,
        *,
        expired: Callable[[Expired], None],
        refused: Callable[[str | None], None],
        marked: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Without `retention` nothing is deleted.

        `expired` is called with each queue that lost messages. `refused` is called with the reason why the disk is too
        full for writing, or None when it is not any more. `marked` updates the recovery point after a round that
        deleted files. `failed` is called with errors of the disk, and with any error that ends the thread.
        """
        self._expiring = expiring
        self._log = parts.log
        self._queues = parts.queues
        self._derived = parts.derived
        self._deleted = parts.deleted
        self.retention = retention
        """The retention in force."""
        self._clock = clock
        self._expired = expired
        self._refused = refused
        self._marked = marked
        self._failed = failed
        self._round = threading.Lock()
        self._lifecycle = threading.Lock()
        self._looking = threading.Lock()
        self._looked_s = 0.0
        self._ending = threading.Event()
        self._closed = False
        self._thread: PeriodicThread | None = None
        self.expired_files = 0
        self.expired_messages = 0
        self.expired_bytes = 0
        self.last_deletion: Deletion | None = None

    def start(self) -> None:
        """Start the thread, if there is a retention."""
        if self.retention is not None:
            interval_ms = self.retention.clean_interval_ms
            self._thread = PeriodicThread("fsstore-retention", interval_ms, self._tick, failed=self._failed)
            self._thread.start()

    def apply(self, retention: Retention | None) -> None:
        """Replace the retention, None for none; a running round ends after its current file."""
        with self._lifecycle:
            if self._closed:
                return
            self._end_thread()
            with self._round:
                self.retention = retention
                self._ending.clear()
                if retention is None:
                    self._refused(None)  # no later round would notice free space
            self.start()

    def close(self) -> None:
        """End the thread; a running round ends after its current file."""
        with self._lifecycle:
            self._closed = True
            self._end_thread()

    def _end_thread(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _tick(self) -> None:
        try:
            self.clean()
        except (StoreError, OSError) as error:
            if not lacks_descriptor(error):  # the next round may get a descriptor
                self._failed(error)

    def look_again(self) -> None:
        """Allow writes again if the disk has free space; checks it at most once a second. Thread safety: any thread; a
        call during another thread's check returns at once."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            retention = self.retention
            if retention is not None and time.monotonic() - self._looked_s >= LOOK_AGAIN_SECONDS:
                self._look(retention)
        finally:
            self._looking.release()

    def _look(self, retention: Retention) -> LogState:
        """The log and its disks now; calls `refused` with the result."""
        self._looked_s = time.monotonic()
        found = self._expiring.state()
        used, limit = found.use({}), retention.disk_warn_ratio
        self._refused(f"the disk is {used:.0%} full, over {limit:.0%}" if used > limit else None)
        return found

    def clean(self) -> int:
        """One round: delete up to `delete_batch_files` log files, with a check of the disk after each; returns their
        number. OSError."""
        with self._round:
            return self._clean(self.retention) if self.retention is not None else 0

    def _clean(self, retention: Retention) -> int:
        found = self._look(retention)
        self._avoid_full_folders(retention, found)
        deleted = 0
        while deleted < retention.delete_batch_files and not self._ending.is_set():
            doomed = next(plan(retention, found, self._clock()), None)
            if doomed is None or not self._delete(doomed):
                break
            deleted += 1
            found = self._look(retention)
            if not doomed.frees_disk or self._ending.wait(retention.delete_pause_ms / 1000):
                break
        if deleted:
            self._delete_derived()
            self._marked()
        now_ms, interval_ms = self._clock(), retention.forced_destroy_interval_ms
        self._log.files.sweep(now_ms, interval_ms)
        self._queues.sweep(now_ms, interval_ms)
        return deleted

    def _avoid_full_folders(self, retention: Retention, found: LogState) -> None:
        """Make new log files in full folders only if no other folder is left."""
        limit = retention.disk_warn_ratio if retention.disk_clean_ratio is None else retention.disk_clean_ratio
        full = frozenset(folder for folder in found.writable if found.disks[folder].ratio > limit)
        self._log.files.avoid(full)

    def _delete(self, doomed: DoomedFile) -> bool:
        """Delete the oldest log file; returns whether it was deleted. Its queue entries expire first, so listeners find
        its messages neither in queues nor in the log."""
        deletion = self._expiring.deletion(doomed)
        gone = self._queues.expire(self._log.files.files[1].start)
        try:
            is_gone = self._log.files.retire_first(self._clock()) is not None
        finally:
            for expired in gone:
                self._expired(expired)
        if is_gone:
            self._note(deletion)
        return is_gone

    def _note(self, deletion: Deletion) -> None:
        log.info("retention deleted %s", deletion)
        self.expired_files += deletion.files
        self.expired_messages += deletion.messages
        self.expired_bytes += deletion.bytes
        self.last_deletion = deletion

    def _delete_derived(self) -> None:
        """Delete derived data that refers to deleted log files."""
        for kind in self._derived:
            kind.delete_expired(self._clock())
        self._deleted.forget_before(self._log.min_offset)

"""Retention: deleting the oldest files of the log, and what leads into them (docs/format.md, 10).

`retention_plan` says which files go. Over the warn ratio nothing more is written, until the disk is below again. Off by
default: opening a store must not lose messages.
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
"""So often a writer that is refused for a full disk has the disk looked at."""


class ExpiringLog:
    """A commit log as retention sees it: its files, its disks, and what is in a file. Thread safety: any thread."""

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
        """What `retention` would delete now. Changes nothing."""
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
        """What goes with a file that is still there."""
        start, end = doomed.file.start, doomed.file.start + doomed.file.size
        messages, first, last = 0, end, -1
        for queue in self._queues:
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
    """Applies a store's retention, at intervals on a thread of its own. Thread safety: any thread; one round at a
    time. A round holds no lock that a put needs for longer than memory takes."""

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

        `expired` is called with each queue that lost messages, `refused` with why the disk is too full to be written,
        or None when it is not any more; `marked` brings the recovery point up to date after a round that deleted files;
        `failed` is called when the disk refused something, and with whatever else ends the thread.
        """
        self._expiring = expiring
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._deleted = parts.deleted
        self.retention = retention
        """What is in force."""
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
        """Begin cleaning."""
        if self.retention is not None:
            interval_ms = self.retention.clean_interval_ms
            self._thread = PeriodicThread("fsstore-retention", interval_ms, self._tick, failed=self._failed)
            self._thread.start()

    def apply(self, retention: Retention | None) -> None:
        """Replace the retention, None for none; a round that is under way ends after the file that it is at."""
        with self._lifecycle:
            if self._closed:
                return
            self._end_thread()
            with self._round:
                self.retention = retention
                self._ending.clear()
                if retention is None:
                    self._refused(None)  # no later round would say that there is space again
            self.start()

    def close(self) -> None:
        """End the thread; a round that is under way ends after the file that it is at."""
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
            if not lacks_descriptor(error):  # the next round may have one
                self._failed(error)

    def look_again(self) -> None:
        """Have writers go on if the disk has room again; looks at it once a second at most. Thread safety: whoever
        finds another thread looking goes on with what was known."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            retention = self.retention
            if retention is not None and time.monotonic() - self._looked_s >= LOOK_AGAIN_SECONDS:
                self._look(retention)
        finally:
            self._looking.release()

    def _look(self, retention: Retention) -> LogState:
        """The log and its disks now; writers are refused, or not any more, by what is found."""
        self._looked_s = time.monotonic()
        found = self._expiring.state()
        used, limit = found.use({}), retention.disk_warn_ratio
        self._refused(f"the disk is {used:.0%} full, over {limit:.0%}" if used > limit else None)
        return found

    def clean(self) -> int:
        """One round: delete what may be deleted, `delete_batch_files` at most, looking at the disk after each; how many
        files of the log that were. OSError."""
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
        """Of the log's folders for new files the full ones get none, while there is another."""
        limit = retention.disk_warn_ratio if retention.disk_clean_ratio is None else retention.disk_clean_ratio
        full = frozenset(folder for folder in found.writable if found.disks[folder].ratio > limit)
        self._log.files.avoid(full)

    def _delete(self, doomed: DoomedFile) -> bool:
        """Delete the oldest file of the log; whether it went. No queue leads to it by then, so that whoever is notified
        finds its messages gone by every way."""
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
        """Delete what led into the files that were deleted."""
        min_offset = self._log.min_offset
        self._queues.delete_expired(self._clock())
        self._index.delete_expired(min_offset)
        self._deleted.forget_before(min_offset)

"""Retention: deleting the oldest files of the log, and what leads into them (docs/format.md, 10).

    by age     a file last written `max_age_hours` ago, in the hours of the day meant for it, or when the disk fills up
    by size    the oldest file, while the log is longer than `max_bytes`
    by need    the oldest file whatever its age, when the disk is over its clean ratio
    refusal    over the warn ratio nothing more is written, until it is below again

The newest file is never deleted. Off by default: opening a store must not lose messages.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from engine.errors import StoreError
from engine.events import Expired
from engine.files.disk import lacks_descriptor
from engine.files.mapped_file import MappedFile
from engine.files.periodic import PeriodicThread
from engine.log.commit_log import CommitLog
from engine.log.consume_queues import ConsumeQueues
from engine.log.deleted_topics import DeletedTopics
from engine.log.index import Index
from engine.settings.config import Clock, Retention

MS_AN_HOUR = 3_600_000

DiskUse = Callable[[Path], float]
"""The used part of the disk under a path, 0 to 1; negative when that is unknown."""


def disk_use(path: Path) -> float:
    """Used part of the disk, in whole percents rounded up, of what is not kept for root: RocketMQ's measure."""
    try:
        found = os.statvfs(path)
    except OSError:
        return -1.0
    used = found.f_blocks - found.f_bfree
    usable = used + found.f_bavail
    return math.ceil(100 * used / usable) / 100 if usable else -1.0


class Cleaner:
    """Applies a store's retention, at intervals on a thread of its own. Thread safety: any thread; one round at a
    time."""

    def __init__(
        self,
        root: Path,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index,
        deleted: DeletedTopics,
        retention: Retention | None,
        clock: Clock,
        *,
        expired: Callable[[Expired], None],
        refused: Callable[[str | None], None],
        marked: Callable[[], None],
        failed: Callable[[Exception], None],
        disk_use: DiskUse = disk_use,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`root` is the store's directory. Without `retention` nothing is deleted.

        `expired` is called with each queue that lost messages, `refused` with why the disk is too full to be written,
        or None when it is not any more; `marked` brings the recovery point up to date after a round that deleted files;
        `failed` is called when the disk refused something, and with whatever else ends the thread. `pause` sleeps for
        some seconds.
        """
        self._root = root
        self._log = log
        self._queues = queues
        self._index = index
        self._deleted = deleted
        self._retention = retention
        self._clock = clock
        self._expired = expired
        self._refused = refused
        self._marked = marked
        self._failed = failed
        self._disk_use = disk_use
        self._pause = pause
        self._round = threading.Lock()
        self._lifecycle = threading.Lock()
        self._closed = False
        self._thread: PeriodicThread | None = None
        self.expired_files = 0

    def start(self) -> None:
        """Begin cleaning."""
        if self._retention is not None:
            interval_ms = self._retention.clean_interval_ms
            self._thread = PeriodicThread("fsstore-retention", interval_ms, self._tick, failed=self._failed)
            self._thread.start()

    def apply(self, retention: Retention | None) -> None:
        """Replace the retention, None for none; a round that is under way ends first."""
        with self._lifecycle:
            if self._closed:
                return
            self._end_thread()
            with self._round:
                self._retention = retention
                if retention is None:
                    self._refused(None)  # no later round would say that there is space again
            self.start()

    def close(self) -> None:
        """End the thread; a round that is under way ends first."""
        with self._lifecycle:
            self._closed = True
            self._end_thread()

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _tick(self) -> None:
        try:
            self.clean()
        except (StoreError, OSError) as error:
            if not lacks_descriptor(error):  # the next round may have one
                self._failed(error)

    def clean(self) -> int:
        """One round: delete what may be deleted, `delete_batch_files` at most; how many files of the log that were.
        OSError."""
        with self._round:
            return self._clean(self._retention) if self._retention is not None else 0

    def _clean(self, retention: Retention) -> int:
        used = max(self._log_disk_use(retention), self._disk_use(self._root))
        full = used > retention.disk_warn_ratio
        self._refused(f"the disk is {used:.0%} full, over {retention.disk_warn_ratio:.0%}" if full else None)
        deleted = 0
        while deleted < retention.delete_batch_files and self._delete_oldest(retention, used):
            deleted += 1
            self._pause(retention.delete_pause_ms / 1000)
        if deleted:
            self.expired_files += deleted
            self._delete_derived()
            self._marked()
        now_ms, interval_ms = self._clock(), retention.forced_destroy_interval_ms
        self._log.files.sweep(now_ms, interval_ms)
        self._queues.sweep(now_ms, interval_ms)
        return deleted

    def _log_disk_use(self, retention: Retention) -> float:
        """Of the log's paths for new files the one with most space counts; the full ones get no file meanwhile."""
        uses = {folder: self._disk_use(folder) for folder in self._log.files.paths.writable}
        self._log.files.avoid(frozenset(path for path, use in uses.items() if use > retention.disk_clean_ratio))
        return min((use for use in uses.values() if use >= 0), default=-1.0)

    def _delete_oldest(self, retention: Retention, used: float) -> bool:
        """Delete the oldest file of the log if that may be deleted; whether it was. No queue leads to it by then, so
        that whoever is notified finds its messages gone by every way."""
        files = self._log.files.files
        if len(files) < 2 or not self._may_delete(files[0], retention, used):
            return False
        gone = self._queues.expire(files[1].start)
        try:
            return self._log.files.retire_first(self._clock()) is not None
        finally:
            for expired in gone:
                self._expired(expired)

    def _may_delete(self, file: MappedFile, retention: Retention, used: float) -> bool:
        if used > retention.disk_clean_ratio and retention.clean_forcibly:
            return True
        if retention.max_bytes is not None and self._log.readable_end - file.start > retention.max_bytes:
            return True
        if retention.max_age_hours is None:
            return False
        hour = time.localtime(self._clock() / 1000).tm_hour
        if hour not in retention.delete_when_hours and used <= retention.disk_use_ratio:
            return False
        return self._clock() - _written_ms(file.path) >= retention.max_age_hours * MS_AN_HOUR

    def _delete_derived(self) -> None:
        """Delete what led into the files that were deleted."""
        min_offset = self._log.min_offset
        self._queues.delete_expired(self._clock())
        self._index.delete_expired(min_offset)
        self._deleted.forget_before(min_offset)


def _written_ms(path: Path) -> int:
    """When the file was last written, in epoch ms: far from now when it is gone."""
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return 1 << 62

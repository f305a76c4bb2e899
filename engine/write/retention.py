"""Retention: deleting the oldest files of the log, and what leads into them (docs/format.md, 10).

    by age     a file last written `max_age_hours` ago, in the hours of the day meant for it, or when the disk fills up
    by size    the oldest file, while the log is longer than `max_bytes`
    by need    the oldest file whatever its age, when the disk is over its clean ratio
    refusal    over the warn ratio nothing more is written, until it is below again

The newest file never goes. Off unless asked for: a store is not to lose messages by being opened.
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
from engine.log.parts import StoreParts
from engine.settings.config import Clock, Retention

MS_AN_HOUR = 3_600_000

DiskUse = Callable[[Path], float]
"""Answers which part of the disk under a path is used, 0 to 1; negative when that can't be told."""


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
    """Applies a store's retention, now and then on a thread of its own. Thread safety: any thread; one round at
    a time."""

    def __init__(
        self,
        parts: StoreParts,
        retention: Retention,
        clock: Clock,
        *,
        expired: Callable[[Expired], None],
        refused: Callable[[str | None], None],
        marked: Callable[[], None],
        failed: Callable[[Exception], None],
        disk_use: DiskUse = disk_use,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`expired` is told of each queue that lost messages, `refused` why the disk is too full to be written, or None
        when it is not any more; `marked` brings marks up to date after a round that took files; `failed` is told when
        the disk refused something, and of what else ends the thread. `pause` sleeps for some seconds."""
        self._parts = parts
        self._log: CommitLog = parts.log
        self._retention = retention
        self._clock = clock
        self._expired = expired
        self._refused = refused
        self._marked = marked
        self._failed = failed
        self._disk_use = disk_use
        self._pause = pause
        self._round = threading.Lock()
        self._thread = PeriodicThread("fsstore-retention", retention.clean_interval_ms, self._tick, failed=failed)
        self.expired_files = 0

    def start(self) -> None:
        """Begin cleaning."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; a round that is under way ends first."""
        self._thread.close()

    def _tick(self) -> None:
        try:
            self.clean()
        except (StoreError, OSError) as error:
            if not lacks_descriptor(error):  # the next round may have one
                self._failed(error)

    def clean(self) -> int:
        """One round: delete what may go, `delete_batch_files` at most; how many files of the log went. OSError."""
        with self._round:
            return self._clean()

    def _clean(self) -> int:
        used = max(self._log_disk_use(), self._disk_use(self._parts.layout.root))
        self._refuse(used)
        taken = 0
        while taken < self._retention.delete_batch_files and self._take_oldest(used):
            taken += 1
            self._pause(self._retention.delete_pause_ms / 1000)
        if taken:
            self.expired_files += taken
            self._follow()
            self._marked()
        now_ms, interval_ms = self._clock(), self._retention.forced_destroy_interval_ms
        self._log.files.sweep(now_ms, interval_ms)
        self._parts.queues.sweep(now_ms, interval_ms)
        return taken

    def _log_disk_use(self) -> float:
        """Of the log's paths for new files the one with most space counts; the full ones get no file meanwhile."""
        uses = {folder: self._disk_use(folder) for folder in self._log.files.paths.writable}
        self._log.files.avoid(frozenset(path for path, use in uses.items() if use > self._retention.disk_clean_ratio))
        return min((use for use in uses.values() if use >= 0), default=-1.0)

    def _refuse(self, used: float) -> None:
        full = used > self._retention.disk_warn_ratio
        self._refused(f"the disk is {used:.0%} full, over {self._retention.disk_warn_ratio:.0%}" if full else None)

    def _take_oldest(self, used: float) -> bool:
        """Delete the oldest file of the log if it may go: no queue leads to it any more then, and whoever is told of
        what went finds it gone by every way."""
        files = self._log.files.files
        if len(files) < 2 or not self._may_go(files[0], used):
            return False
        gone = self._parts.queues.expire(files[1].start)
        try:
            return self._log.files.retire_first(self._clock()) is not None
        finally:
            for expired in gone:
                self._expired(expired)

    def _may_go(self, file: MappedFile, used: float) -> bool:
        retention = self._retention
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

    def _follow(self) -> None:
        """Delete what led into the files that went."""
        min_offset = self._log.min_offset
        self._parts.queues.delete_expired(self._clock())
        self._parts.index.delete_expired(min_offset)
        self._parts.deleted.forget_before(min_offset)


def _written_ms(path: Path) -> int:
    """When the file was last written, in epoch ms: far from now when it is gone."""
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return 1 << 62

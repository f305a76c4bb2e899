"""What retention deletes, as one pure function: for the round that deletes, and for a person who asks beforehand.

    age      a file last written `max_age_hours` ago: in the hours of the day meant for it, or while the disk is over
             `disk_use_ratio`, where that is named
    size     the oldest file, while the log is longer than `max_bytes`
    disk     the oldest file whatever its age, while the disk is over `disk_clean_ratio`, where that is named

Files go oldest first, and the newest never. A limit of a disk takes no more files than bring the disk below it.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from engine.results import Deletion
from engine.settings.config import Retention

MS_AN_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """How full the disk under a path is. `device` tells disks apart; `usable_bytes` is what is used and what everybody
    may use, 0 where the disk could not be asked."""

    device: int
    used_bytes: int
    usable_bytes: int

    @property
    def ratio(self) -> float:
        """The used part in whole percents rounded up, 0 to 1, which is RocketMQ's measure; -1 where it is unknown."""
        return math.ceil(100 * self.used_bytes / self.usable_bytes) / 100 if self.usable_bytes else -1.0

    def less(self, freed: Mapping[int, int]) -> DiskSpace:
        """The same disk, once `freed` bytes (by device) are free."""
        return replace(self, used_bytes=max(self.used_bytes - freed.get(self.device, 0), 0))


DiskUse = Callable[[Path], DiskSpace]
"""Looks at the disk under a path."""


def disk_use(path: Path) -> DiskSpace:
    """How full the disk under `path` is, without what is kept for root."""
    try:
        found, device = os.statvfs(path), os.stat(path).st_dev
    except OSError:
        return DiskSpace(-1, 0, 0)
    used = found.f_blocks - found.f_bfree
    return DiskSpace(device, used * found.f_frsize, (used + found.f_bavail) * found.f_frsize)


class LogFile(Protocol):
    """A file of the commit log."""

    @property
    def start(self) -> int:
        """Physical offset of its first byte."""

    @property
    def size(self) -> int:
        """Its length in bytes."""

    @property
    def path(self) -> Path:
        """Where it lies."""


@dataclass(frozen=True, slots=True)
class LogState:
    """A commit log and its disks at one moment: `files` oldest first, up to physical offset `end`; `writable` folders
    get new files; `disks` are those of all folders with files, and of `root`, the store's directory. `written_ms` says
    when a file was last written. `pending` bytes of a device belong to deleted files that a reader still holds."""

    files: Sequence[LogFile]
    end: int
    root: Path
    writable: tuple[Path, ...]
    disks: Mapping[Path, DiskSpace]
    written_ms: Callable[[Path], int]
    pending: Mapping[int, int] = field(default_factory=dict)

    def disk_of(self, file: LogFile) -> DiskSpace:
        """The disk that a file lies on."""
        return self.disks.get(file.path.parent) or DiskSpace(-1, 0, 0)

    def use(self, freed: Mapping[int, int]) -> float:
        """What the limits are compared with, once `freed` bytes are free: the log's emptiest disk, or the store's where
        that is fuller; negative where both are unknown."""
        return max(self._log_use(freed), self.disks[self.root].less(freed).ratio)

    def _log_use(self, freed: Mapping[int, int]) -> float:
        ratios = [self.disks[folder].less(freed).ratio for folder in self.writable]
        return min((ratio for ratio in ratios if ratio >= 0), default=-1.0)

    def over(self, limit: float, freed: Mapping[int, int]) -> frozenset[int]:
        """The devices that have to get emptier, so that `use` is not over `limit`."""
        store = self.disks[self.root].less(freed)
        of_store = {store.device} if store.ratio > limit else set()
        of_log = {self.disks[folder].device for folder in self.writable} if self._log_use(freed) > limit else set()
        return frozenset(of_store | of_log)


@dataclass(frozen=True, slots=True)
class DoomedFile:
    """A file that goes, and why; `frees_disk` is false where a limit of a disk asked for it, and the file lies on
    another disk: what that brings is seen when all that led to the file is gone."""

    file: LogFile
    reason: str
    frees_disk: bool = True


def plan(retention: Retention, log: LogState, now_ms: int) -> Iterator[DoomedFile]:
    """The files that go now, oldest first: each as if those before it were gone. `now_ms` is epoch milliseconds."""
    freed = Counter(log.pending)
    for file in islice(log.files, max(len(log.files) - 1, 0)):
        doomed = _doomed(retention, log, file, freed, now_ms)
        if doomed is None:
            return
        yield doomed
        if not doomed.frees_disk:
            return
        freed[log.disk_of(file).device] += file.size


def proposed_max_bytes(limit: float, log: LogState, freed: Mapping[int, int]) -> int | None:
    """The largest multiple of a file's size that, as `max_bytes`, brings the disk to `limit` with the next file of the
    log on it, once `freed` bytes are free; None where the disk is not over `limit` and has room for that file, or where
    no deletion helps."""
    newest = log.files[-1] if log.files else None
    if newest is None:
        return None
    with_next = Counter(freed)
    with_next[log.disk_of(newest).device] -= newest.size
    if log.use(freed) <= limit and log.use(with_next) <= 1:
        return None
    for number, file in enumerate(log.files):
        if log.use(with_next) <= limit:
            return (len(log.files) - number) * newest.size
        with_next[log.disk_of(file).device] += file.size
    return None


def waiting_files(retention: Retention, log: LogState, now_ms: int) -> int:
    """How many of the oldest files are over `max_age_hours`, whatever the hour: they go when `delete_when_hours`
    comes."""
    files = islice(log.files, max(len(log.files) - 1, 0))
    return sum(1 for _ in _while_old(retention, log, files, now_ms))


def _while_old(retention: Retention, log: LogState, files: Iterator[LogFile], now_ms: int) -> Iterator[LogFile]:
    for file in files:
        if not _is_old(retention, log, file, now_ms):
            return
        yield file


def _doomed(
    retention: Retention, log: LogState, file: LogFile, freed: Mapping[int, int], now_ms: int
) -> DoomedFile | None:
    """Why the oldest file that is left goes, the mildest reason first; None when it stays."""
    if retention.max_bytes is not None and log.end - file.start > retention.max_bytes:
        return DoomedFile(file, f"the log is larger than {retention.max_bytes:,} bytes (maxBytes)")
    if _is_old(retention, log, file, now_ms):
        old = f"it is older than {retention.max_age_hours:g} h (fileReservedTime)"
        if time.localtime(now_ms / 1000).tm_hour in retention.delete_when_hours:
            return DoomedFile(file, old)
        if retention.disk_use_ratio is not None and (over := log.over(retention.disk_use_ratio, freed)):
            return _for_space(log, file, f"{old}, and {_over(retention.disk_use_ratio, 'diskMaxUsedSpaceRatio')}", over)
    limit = retention.disk_clean_ratio
    if limit is not None and retention.clean_forcibly and (over := log.over(limit, freed)):
        return _for_space(log, file, _over(limit, "diskSpaceCleanForciblyRatio"), over)
    return None


def _for_space(log: LogState, file: LogFile, reason: str, over: frozenset[int]) -> DoomedFile:
    return DoomedFile(file, reason, log.disk_of(file).device in over)


def _over(limit: float, name: str) -> str:
    return f"the disk is over {limit:.0%} ({name})"


def _is_old(retention: Retention, log: LogState, file: LogFile, now_ms: int) -> bool:
    if retention.max_age_hours is None:
        return False
    return now_ms - log.written_ms(file.path) >= retention.max_age_hours * MS_AN_HOUR


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What a retention (None: off) would delete now, and what it would leave.

    `deletions` has one entry for each reason, oldest files first; `waiting_files` are old enough, and wait for their
    hour; `kept_files` stay, with `kept_bytes` of log. `disk_use` is the used part of the disk now, 0 to 1, and
    `disk_use_after` what it is expected to be then (negative: unknown). `proposed_max_bytes`: the maxBytes that would
    bring the disk below the retention's `disk_warn_ratio`, deleting no more than that takes; None where it is below
    already, or where no deletion of log files can do it.
    """

    retention: Retention | None
    deletions: tuple[Deletion, ...]
    waiting_files: int
    kept_files: int
    kept_bytes: int
    disk_use: float
    disk_use_after: float
    proposed_max_bytes: int | None


def written_ms(path: Path) -> int:
    """When the file was last written, in epoch ms: far from now when it is gone."""
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return 1 << 62

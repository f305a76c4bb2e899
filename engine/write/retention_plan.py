"""The choice of files that retention deletes, as a pure function: for the deletion itself, and for a preview.

    age      a file last written `max_age_hours` ago: in the hours `delete_when_hours`, or while the disk is over
             `disk_use_ratio`, if set
    size     the oldest file, while the log is longer than `max_bytes`
    disk     the oldest file of any age, while the disk is over `disk_clean_ratio`, if set

Files are deleted oldest first, the newest never. A disk limit deletes only as many files as bring the disk below it.
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
    """Used space of one disk. `device` identifies the disk; `usable_bytes` are the used bytes and those available
    without root, 0 after an error."""

    device: int
    used_bytes: int
    usable_bytes: int

    @property
    def ratio(self) -> float:
        """The used part, 0 to 1, rounded up to whole percents as RocketMQ does; -1: unknown."""
        return math.ceil(100 * self.used_bytes / self.usable_bytes) / 100 if self.usable_bytes else -1.0

    def less(self, freed: Mapping[int, int]) -> DiskSpace:
        """The same disk after `freed` bytes (by device) were freed."""
        return replace(self, used_bytes=max(self.used_bytes - freed.get(self.device, 0), 0))


DiskUse = Callable[[Path], DiskSpace]
"""Returns the used space of the disk that holds a path."""


def disk_use(path: Path) -> DiskSpace:
    """Used space of the disk that holds `path`, without the reserve for root."""
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
        """Length in bytes."""

    @property
    def path(self) -> Path:
        """Path on disk."""


@dataclass(frozen=True, slots=True)
class LogState:
    """A commit log and its disks at one moment: `files` oldest first, up to physical offset `end`. `writable` folders
    get new files. `disks` has all folders with files, and `root`, the store's directory. `written_ms` returns the time
    of a file's last write. `pending`: device -> bytes of deleted files that readers still hold."""

    files: Sequence[LogFile]
    end: int
    root: Path
    writable: tuple[Path, ...]
    disks: Mapping[Path, DiskSpace]
    written_ms: Callable[[Path], int]
    pending: Mapping[int, int] = field(default_factory=dict)

    def disk_of(self, file: LogFile) -> DiskSpace:
        """The disk of a file."""
        return self.disks.get(file.path.parent) or DiskSpace(-1, 0, 0)

    def use(self, freed: Mapping[int, int]) -> float:
        """The ratio to compare with the limits, after `freed` bytes were freed: that of the log's emptiest disk, or of
        the store's disk if it is fuller; negative: both are unknown."""
        return max(self._log_use(freed), self.disks[self.root].less(freed).ratio)

    def _log_use(self, freed: Mapping[int, int]) -> float:
        ratios = [self.disks[folder].less(freed).ratio for folder in self.writable]
        return min((ratio for ratio in ratios if ratio >= 0), default=-1.0)

    def over(self, limit: float, freed: Mapping[int, int]) -> frozenset[int]:
        """The devices that must be emptied until `use` is not over `limit`."""
        store = self.disks[self.root].less(freed)
        of_store = {store.device} if store.ratio > limit else set()
        of_log = {self.disks[folder].device for folder in self.writable} if self._log_use(freed) > limit else set()
        return frozenset(of_store | of_log)


@dataclass(frozen=True, slots=True)
class DoomedFile:
    """A file to delete, and the reason. `frees_disk` is false if the limit of another disk requires it: the effect
    there shows after the derived data of the file is deleted."""

    file: LogFile
    reason: str
    frees_disk: bool = True


def plan(retention: Retention, log: LogState, now_ms: int) -> Iterator[DoomedFile]:
    """Yields the files to delete now, oldest first, each as if those before were deleted. `now_ms`: epoch ms."""
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
    """The largest multiple of the file size that, as `max_bytes`, brings the disk to `limit` including the next log
    file, after `freed` bytes were freed. None: the disk has room for that file below `limit`, or no deletion helps."""
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
    """Number of files older than `max_age_hours`; they are deleted in the next of `delete_when_hours`."""
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
    """`file`, the oldest one left, with the mildest reason to delete it; None: it stays."""
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
    """The files that a retention (None: off) would delete now, and those that it would keep.

    `deletions` has one entry for each reason, oldest files first. `waiting_files` are old enough, and are deleted in
    the next of `delete_when_hours`. `kept_files` stay, with `kept_bytes` of log. `disk_use` is the used part of the
    disk, 0 to 1, and `disk_use_after` the part expected afterwards (negative: unknown). `proposed_max_bytes`: the
    largest maxBytes that brings the disk below `disk_warn_ratio`; None: it is below, or no deletion can do it.
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
    """Modification time of a file in epoch ms; a time in the far future if it is missing."""
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return 1 << 62

"""Derivation: private consume queues and index, made from a log that another process writes, and kept up to date.

They are dispatched as by a writer, from a scan of the log that continues at its last end. Records in the newest file
may be half written, so bytes there that are no record count as damage only after a while. The files do not outlive the
process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.derived.derived import Losses
from engine.errors import RefusedReadError
from engine.files.mapped_file import Access, MappedFile
from engine.files.scratch import ScratchDirectory
from engine.log.scan import Known, LogScan
from engine.record.scan import ScannedRecords
from engine.results import NewestRecord
from engine.settings.config import RecoveryProgress

if TYPE_CHECKING:
    from engine.derived.store_files import StoreFiles
    from engine.log.sequence import Suspect
    from engine.settings.config import StoreConfig

SETTLED_SECONDS = 1.0
"""Time after which bytes in the newest file that are no record count as damage."""

LOOK_SECONDS = 0.3
"""Interval at which unchanged bytes that are no record are read again."""

HEAD_BYTES = 128
SCRATCH_PREFIX = "fsstore-derived-"

Key = tuple[str, int]


class DerivedIndex:
    """An index derived from the log of a followed store without index files, whose broker keeps keys in RocksDB. `end`
    is the physical offset up to which it has all readable records. Thread safety: one caller at a time."""

    def __init__(self, parts: StoreFiles, cache: Path | None) -> None:
        """Restart the index, in files below `cache`, or without it in memory. OSError."""
        self._log = log = parts.log
        self._index = parts.index
        self._scratch = ScratchDirectory(cache, SCRATCH_PREFIX) if cache is not None else None
        self.end = log.min_offset
        root = self._scratch.path if self._scratch is not None else parts.layout.own
        access = Access.WRITE if self._scratch is not None else Access.READ
        parts.index.begin_anew(root, access)

    def advance(self, end: int, most_bytes: int) -> bool:
        """Index the next records of the log, which is whole up to `end`; return whether any bytes were new.
        StoreFullError, OSError: the next call continues."""
        log, index = self._log, self._index
        self.end = began = max(self.end, log.min_offset)
        if began >= end:
            return False
        scan = LogScan(log.files, began, Known(trusted_end=end), end=end, pages=MappedFile.whole)
        for found in scan:
            index.put_scanned(found)
            self.end = scan.end
            if scan.end - began >= most_bytes:
                break
        else:
            self.end = end  # the rest is damaged
        index.settle()
        index.delete_expired(log.min_offset)
        return True

    def close(self) -> None:
        """Remove the files below the cache."""
        if self._scratch is not None:
            self._scratch.close()


class Derivation:
    """Queues and index of a followed store, derived from its log. Thread safety: one caller at a time."""

    def __init__(self, parts: StoreFiles, config: StoreConfig) -> None:
        """Restart queues and index, in files below the cache of `config`, or without one in memory. OSError."""
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._derived = parts.derived
        self._deleted = parts.deleted
        self._multi_dispatch = config.multi_dispatch
        self._scratch = ScratchDirectory(config.cache, SCRATCH_PREFIX) if config.cache is not None else None
        self._progress = config.progress
        self._appended: set[Key] = set()
        self._waiting: ScannedRecords | None = None
        self._stuck: tuple[int, bytes, float, float] | None = None
        root = self._scratch.path if self._scratch is not None else parts.layout.own
        access = Access.WRITE if self._scratch is not None else Access.READ
        for kind in parts.derived:
            kind.begin_anew(root, access)
        self._log_scan = self._scan_from(self._log.min_offset)

    def _scan_from(self, start: int) -> LogScan:
        return LogScan(
            self._log.files,
            start,
            # older files are whole, and readers check bodies
            Known(self._seed(start), trusted_end=self._newest_start(), multi_dispatch=self._multi_dispatch),
            disproved=self._take_back,
            pages=MappedFile.whole,
            is_settled=self._is_settled,
        )

    def _take_back(self, suspect: Suspect) -> None:
        for kind in self._derived:
            kind.take_back(suspect)

    def _seed(self, start: int) -> Callable[[str, int], int | None]:
        def seed(topic: str, queue_id: int) -> int | None:
            queue = self._queues.get(topic, queue_id)
            return queue.max_offset if queue is not None else (0 if start == 0 else None)

        return seed

    @property
    def end(self) -> int:
        """Physical offset up to which the log is whole, and dispatched unless the last `advance` failed."""
        return self._log_scan.end

    @property
    def newest(self) -> NewestRecord | None:
        """The newest record before `end`, None if it is unknown."""
        return self._log_scan.newest

    def advance(self, most_bytes: int | None = None) -> None:
        """Dispatch whole records after `end`: about `most_bytes`, or all. StoreFullError, OSError: call it again."""
        if self._log_scan.end < self._log.min_offset:  # retention has deleted the log there
            self._waiting, self._log_scan = None, self._scan_from(self._log.min_offset)
        if self._waiting is not None:
            self._dispatch(self._waiting)
        began = self._log_scan.end
        if not self._may_have_more(began):
            return
        for found in self._log_scan:
            self._dispatch(found)
            self._tell()
            if most_bytes is not None and self._log_scan.end - began >= most_bytes:
                break
        self._index.settle()

    def _dispatch(self, found: ScannedRecords) -> None:
        self._waiting = found
        self._log.resume(self._log_scan.end, 0)  # first: a reader that finds an entry reads its record
        queued = self._deleted.without_queues(found)
        for kind in reversed(self._derived):  # keys first: a reader that finds a message finds its keys
            self._appended.update(kind.put_scanned(queued, Losses(self._log_scan.damaged)))
        self._waiting = None

    def _tell(self) -> None:
        last = self._log.files.last
        if self._progress is not None and last is not None:
            begin = self._log.min_offset
            self._progress(
                RecoveryProgress("deriving queues", self._log_scan.end - begin, last.start + last.size - begin)
            )

    # half-written records

    def _may_have_more(self, end: int) -> bool:
        """Whether a scan from `end` may find a record: not if the head is zero, or was no record just before."""
        head = self._head(end)
        if not any(head[:8]):
            self._stuck = None
            return end < self._newest_start()
        now = time.monotonic()
        if self._stuck is None or self._stuck[:2] != (end, head):
            self._stuck = (end, head, now, now + LOOK_SECONDS)
            return True
        _, _, since, next_look = self._stuck
        if now < next_look:
            return False
        self._stuck = (end, head, since, now + LOOK_SECONDS)
        return True

    def _head(self, physical_offset: int) -> bytes:
        """The first bytes at `physical_offset`; none if the disk refuses them."""
        try:
            return self._log.files.peek(physical_offset, HEAD_BYTES)
        except RefusedReadError:
            return b""

    def _newest_start(self) -> int:
        """Physical offset of the newest file with data. Brokers make one more file ahead."""
        for file in reversed(self._log.files.files):
            if any(self._head(file.start)[:8]):
                return file.start
        return self._log.min_offset

    def _is_settled(self, physical_offset: int) -> bool:
        """Whether bytes that are no record are damage: the writer is in a later file, or they do not change."""
        if physical_offset < self._newest_start():
            return True
        stuck = self._stuck
        return stuck is not None and stuck[0] == physical_offset and time.monotonic() - stuck[2] >= SETTLED_SECONDS

    # changes for listeners

    def take_appended(self) -> list[Key]:
        """The queues that got entries since the last call."""
        appended, self._appended = sorted(self._appended), set()
        return appended

    def forget_topics(self, known: set[str]) -> list[Key]:
        """Drop the queues of all topics not in `known`, which their broker deleted; return them. OSError."""
        gone: list[Key] = []
        queues = self._queues
        for topic in set(queues.topics()) - known:
            gone += [(topic, queue_id) for queue_id in queues.queue_ids(topic)]
            queues.remove_topic(topic)
        return gone

    def delete_expired(self, now_ms: int) -> None:
        """Delete files that lead only to records deleted by retention. OSError."""
        for kind in self._derived:
            kind.delete_expired(now_ms)
        self._queues.sweep(now_ms, 0)

    def close(self) -> None:
        """Remove the files below the cache."""
        if self._scratch is not None:
            self._scratch.close()

"""Durability: what of a store is on disk, and the marks that tell the next opening so (docs/format.md, 4 and 13).

log flusher      the commit log, at intervals and for those who wait
committer        the log's write buffer to its file, with a transient pool only
derived flusher  consume queues and index, then the checkpoint (RocketMQ's) and the coverage mark (ours)
close            all of it, then the clean mark; `abort` goes last

Once dispatch has failed no mark is written any more, and `abort` stays: the next opening reads the log again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from engine.errors import FlushFailedError, NoDescriptorError, ReadOnlyStoreError, StoreFullError
from engine.files.disk import remove_file
from engine.files.lock import lock_mtime_ns
from engine.log.checkpoint import CheckpointFile
from engine.log.dispatch import Feed, HeldFeed
from engine.log.parts import StoreParts
from engine.recovery.marks import (
    CleanMark,
    Coverage,
    QueueExtents,
    queue_extent,
    record_crc,
    stamp_files,
    write_clean_mark,
    write_coverage,
)
from engine.settings.config import FlushPolicy
from engine.write.flush import Committer, DerivedFlusher, LogFlusher


class Durability:
    """Flushes a store open for writing. Thread safety: any thread."""

    def __init__(
        self,
        parts: StoreParts,
        policy: FlushPolicy,
        feed: Feed,
        queues: QueueExtents,
        failed: Callable[[FlushFailedError], None],
    ) -> None:
        """`queues` is every queue's extent now; `failed` hears of the failure that ends durability."""
        self._parts = parts
        self._feed = feed
        self._extents = {topic: dict(extents) for topic, extents in queues.items()}
        self._index_behind = False
        self._covered: Coverage | None = None
        self._checkpoint = CheckpointFile(parts.layout.checkpoint, parts.disk)
        self._committer: Committer | None = None
        if isinstance(feed, HeldFeed):
            self._committer = Committer(parts.log, policy, committed=self._dispatch_held, failed=failed)
        commit = self._committer.commit if self._committer else (lambda: None)
        self.log = LogFlusher(parts.log, policy, failed=failed, commit=commit)
        self._derived: DerivedFlusher[Coverage] = DerivedFlusher(
            self.log,
            policy,
            self._checkpoint,
            snapshot=self._snapshot,
            flush_queues=self._flush_queues,
            flush_index=self._flush_index,
            covered=self._cover,
            failed=failed,
        )

    def start(self) -> None:
        """Begin flushing: once recovery has set the log's end."""
        self.log.start()
        if self._committer is not None:
            self._committer.start()
        self._derived.start()

    def commit(self) -> None:
        """Let everything appended so far be read and dispatched, with a transient pool too. FlushFailedError."""
        if self._committer is not None:
            self._committer.commit()
            self._dispatch_held()  # what the commit thread has committed and not come to dispatch

    def flush(self) -> None:
        """Bring everything appended so far to disk, derived data and marks too. FlushFailedError."""
        self.log.flush()
        self._derived.flush()

    def note_expired(self) -> None:
        """Retention took files: the marks are to speak of what is left. FlushFailedError."""
        parts = self._parts
        with parts.log.lock:
            known = {(topic, queue_id) for topic, extents in self._extents.items() for queue_id in extents}
        for topic, queue_id in known:
            parts.queues.get(topic, queue_id)  # opened here, while writers go on, and not under their lock
        with parts.log.lock:
            self._feed.touched |= known
        self._derived.flush()

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: the marks are to speak of it no more. FlushFailedError."""
        with self._parts.log.lock:
            self._extents.pop(topic, None)
            self._feed.touched = {queue for queue in self._feed.touched if queue[0] != topic}
        self._derived.flush()

    def close(self) -> bool:
        """Flush what is left and end the threads; whether everything is on disk, and dispatched."""
        self._derived.close()
        try:
            if self._committer is not None:
                self._committer.close()
            self.log.close()
            self._derived.flush()
        except (FlushFailedError, NoDescriptorError):
            self.log.close()
            return False
        return self.log.failure is None and self._derived.failure is None and not self._feed.is_broken

    def mark_clean(self) -> None:
        """Leave the marks of a clean close: after all files are closed. OSError."""
        layout, disk = self._parts.layout, self._parts.disk
        if self._covered is not None and not self._index_behind and self._parts.deleted.are_finished:
            write_clean_mark(layout.clean_mark, CleanMark(self._covered, stamp_files(layout)), disk)
        remove_file(layout.abort, disk)

    def _dispatch_held(self) -> None:
        with self._parts.log.lock, suppress(ReadOnlyStoreError):  # the feed has told why; writers are long answered
            if isinstance(self._feed, HeldFeed):
                self._feed.committed()

    def _snapshot(self) -> Coverage | None:
        """What is dispatched now; None when dispatch has failed."""
        parts = self._parts
        with parts.log.lock:
            self._dispatch_held()
            if self._feed.is_broken:
                return None
            for topic, queue_id in self._feed.touched:
                queue = parts.queues.get(topic, queue_id)
                if queue is not None:  # else its topic was deleted this moment
                    self._extents.setdefault(topic, {})[queue_id] = queue_extent(queue)
            self._feed.touched = set()
            newest = self._feed.newest
            return Coverage(
                physical_end=parts.log.readable_end,
                log_begin=parts.log.min_offset,
                newest=(newest.physical_offset, newest.size, newest.store_time_ms, 0) if newest else None,
                lock_mtime_ns=lock_mtime_ns(parts.layout.lock),
                queues={topic: dict(extents) for topic, extents in self._extents.items()},
                index_physical_offset=parts.index.last_physical_offset,
            )

    def _flush_queues(self, least_pages: int) -> None:
        """Bring entries to disk; and keys, so that followers see them, from memory into their files."""
        self._parts.index.settle()
        self._parts.queues.flush(least_pages)

    def _flush_index(self) -> None:
        try:
            self._parts.index.flush()
        except StoreFullError:  # its keys wait in memory; until they are in a file nothing claims that they are
            self._index_behind = True
            return
        self._index_behind = False
        self._checkpoint.note_index_flushed(self.log.flushed_time_ms)

    def _cover(self, snapshot: Coverage) -> None:
        """Everything in `snapshot` is on disk: say so. A mark that can't be written costs only time, at recovery."""
        if self._index_behind:
            return
        names = tuple(file.file.path.name for file in self._parts.index.files)
        newest = snapshot.newest
        if newest is not None:
            crc = record_crc(self._parts.log, newest[0], newest[1])
            if crc is None:
                return
            newest = (*newest[:3], crc)
        self._covered = replace(snapshot, newest=newest, index_files=names)
        try:
            write_coverage(self._parts.layout.coverage, self._covered, self._parts.disk)
        except OSError:
            return

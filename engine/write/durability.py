"""Durability: flushes a store and writes the marks for the next opening (docs/format.md, 4 and 13).

log flusher      the commit log, at intervals and on request
committer        the log's write buffer to its file, with a transient pool only
derived flusher  consume queues and index, then the checkpoint (RocketMQ's) and the recovery point (ours)
close            all of these, then the clean mark; `abort` is removed last

After a failed dispatch no mark is written, and `abort` stays: the next opening reads the log again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.derived.checkpoint import CheckpointFile
from engine.derived.dispatch import BufferedDispatcher, WriteDispatcher
from engine.derived.marks import (
    RecoveryPoint,
    RecoveryPointFile,
    clean_mark,
    record_crc,
    write_clean_mark,
)
from engine.errors import FlushFailedError, NoDescriptorError, ReadOnlyStoreError, StoreError, StoreFullError
from engine.files.disk import remove_file
from engine.files.file_scan import written_ns
from engine.settings.config import FlushPolicy
from engine.write.flush import Committer, DerivedFlusher, LogFlusher

if TYPE_CHECKING:
    from engine.derived.consume_queue import ConsumeQueue
    from engine.derived.store_files import StoreFiles
    from engine.log.evidence import Extents
    from engine.log.unread import Range


class Durability:
    """Flushes a store open for writing. Thread safety: any thread."""

    def __init__(
        self,
        parts: StoreFiles,
        dispatcher: WriteDispatcher,
        extents: Extents,
        unread: tuple[Range, ...],
        policy: FlushPolicy,
        failed: Callable[[FlushFailedError], None],
    ) -> None:
        """`extents`: extent of every queue now, kept up to date from here on. `unread`: ranges of the log without
        derived data. `failed` is called with the failure that ends durability. Marks that can't be written are noted in
        `parts.ignored`."""
        self._ignored = parts.ignored
        self._layout = parts.layout
        self._disk = parts.disk
        self._log = log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._dispatcher = dispatcher
        self._extents = extents
        self._gone: set[str] = set()
        """Topics that were deleted since the last snapshot."""
        self._unread = unread
        self._multi_dispatch = parts.multi_dispatch or parts.queues.multi_dispatch
        self._point_file = RecoveryPointFile(parts.layout.coverage, parts.disk)
        self._is_written = False
        """Whether the recovery point of the last snapshot was written."""
        self._index_is_late = False
        self._unflushed = set(parts.queues.opened())
        """Queues that changed since the last thorough flush, apart from `dispatcher.touched`, the newest ones."""
        self._passed_over: set[ConsumeQueue] = set()
        """Queues that changed since the last thorough flush, and had too few pages for the others."""
        self._covered: RecoveryPoint | None = None
        self._checkpoint = CheckpointFile(parts.layout.checkpoint, parts.disk)
        self.before_mark: Callable[[], None] = lambda: None
        """Dispatches what is in the log; called under the log's lock before a mark is made."""
        self._committer: Committer | None = None
        if isinstance(dispatcher, BufferedDispatcher):
            self._committer = Committer(log, policy, committed=self._dispatch_held, failed=failed)
        commit = self._committer.commit if self._committer else (lambda: None)
        self.log_flusher = LogFlusher(log, policy, failed=failed, commit=commit)
        self._derived = DerivedFlusher(
            self.log_flusher,
            policy,
            self._checkpoint,
            snapshot=self._snapshot,
            flush_queues=self._flush_queues,
            flush_index=self._flush_index,
            covered=self._cover,
            failed=failed,
        )

    def start(self) -> None:
        """Start the flush threads; call it after recovery has set the log's end."""
        self.log_flusher.start()
        if self._committer is not None:
            self._committer.start()
        self._derived.start()

    def commit(self) -> None:
        """Make everything appended so far readable and dispatched, with a transient pool too. FlushFailedError."""
        if self._committer is not None:
            self._committer.commit()
            self._dispatch_held()  # the commit thread may have committed bytes without dispatching them yet

    def flush(self) -> None:
        """Return when everything appended so far is on disk, derived data and marks too. FlushFailedError."""
        self.log_flusher.flush()
        self._derived.flush()

    def note_expired(self) -> None:
        """Write a recovery point for the files that retention left. FlushFailedError."""
        with self._log.lock:
            self._dispatcher.touched.update(self._queues.take_shortened())
        self._derived.flush()

    def forget_topic(self, topic: str) -> None:
        """Write a recovery point without a deleted topic. FlushFailedError."""
        with self._log.lock:
            self._extents.pop(topic, None)
            self._gone.add(topic)
        self._derived.flush()

    def close(self) -> bool:
        """Flush and end the threads; returns whether everything is on disk and dispatched."""
        self._derived.close()
        try:
            if self._committer is not None:
                self._committer.close()
            self.log_flusher.close()
            self._derived.flush()
        except (FlushFailedError, NoDescriptorError):
            self.log_flusher.close()
            return False
        return self.log_flusher.failure is None and self._derived.failure is None and not self._dispatcher.is_broken

    def mark_clean(self, *, deletions_done: bool) -> None:
        """Write the marks of a clean close, after all files are closed. OSError. Without `deletions_done` there is no
        clean mark, so that the next opening finishes the deletion of topics."""
        layout, disk = self._layout, self._disk
        if self._covered is not None and not self._index_is_late and deletions_done:
            point = replace(self._covered, queues=self._extents, gone=())
            with suppress(
                FileNotFoundError, NotADirectoryError
            ):  # a queue lost its file: the next opening looks at all
                mark = clean_mark(layout, point, self._queues.file_bytes)
                write_clean_mark(layout.clean_mark, mark, disk)
        remove_file(layout.abort, disk)

    def _dispatch_held(self) -> None:
        with self._log.lock, suppress(ReadOnlyStoreError):  # the dispatcher logged it, and writers get the error
            if isinstance(self._dispatcher, BufferedDispatcher):
                self._dispatcher.committed()

    def _snapshot(self) -> RecoveryPoint | None:
        """The recovery point of the dispatched data; None when dispatch has failed."""
        dispatcher, log = self._dispatcher, self._log
        with log.lock:
            self._dispatch_held()
            self.before_mark()
            if dispatcher.is_broken:
                return None
            self._take_touched()
            changed, gone = self._changed_extents(), tuple(self._gone)
            self._gone.clear()
            if not self._is_written:
                self._point_file.write_all_next()
            self._is_written = False
            newest = dispatcher.newest
            return RecoveryPoint(
                physical_end=log.readable_end,
                log_begin=log.min_offset,
                newest=(newest.physical_offset, newest.size, newest.store_time_ms, 0) if newest else None,
                lock_mtime_ns=written_ns(self._layout.lock),
                queues=changed,
                index_physical_offset=self._index.last_physical_offset,
                unread=tuple(one for one in self._unread if one[1] > log.min_offset),
                time_ns=time.time_ns(),
                multi_dispatch=self._multi_dispatch,
                gone=gone,
            )

    def _changed_extents(self) -> Extents:
        """The extents of the queues that changed, which are noted in those of all queues, too."""
        changed: Extents = {}
        for queue in self._unflushed:
            if not queue.is_stale:  # else its topic was deleted
                extent = queue.extent
                for extents in (changed, self._extents):
                    extents.setdefault(queue.topic, {})[queue.queue_id] = extent
        return changed

    def _all_extents(self) -> Extents:
        with self._log.lock:  # a deleted topic is taken out under it
            return dict(self._extents)

    def _flush_queues(self, least_pages: int) -> None:
        """Flush queue entries; and write keys from memory to the index files, so that followers see them."""
        self._index.settle()
        if least_pages:  # a queue with that many pages was touched since the last time
            with self._log.lock:
                touched = self._take_touched()
            self._passed_over |= touched
            if len(self._passed_over) <= self._queues.many_open:
                self._queues.flush(touched, least_pages)
                return
            self._queues.flush(self._passed_over)
        else:
            self._queues.flush(self._unflushed)
            self._unflushed.clear()
        self._passed_over.clear()

    def _take_touched(self) -> set[ConsumeQueue]:
        """Add the queues that were touched since the last call to those that changed; return them. Call it under the
        log's lock."""
        touched = set(self._dispatcher.touched)
        self._dispatcher.touched.clear()
        self._unflushed |= touched
        return touched

    def _flush_index(self) -> None:
        try:
            self._index.flush()
        except StoreFullError as error:  # its keys stay in memory; no mark is written until they are in a file
            self._index_is_late = True
            self._ignored.note("keys wait in memory, and no mark is written", error)
            return
        self._index_is_late = False
        self._checkpoint.note_index_flushed(self.log_flusher.flushed_time_ms)

    def _cover(self, snapshot: RecoveryPoint) -> None:
        """Write `snapshot`, which is on disk now, as recovery point. A failed write costs only time at recovery."""
        if self._index_is_late:
            return
        names = tuple(file.file.path.name for file in self._index.files)
        newest = snapshot.newest
        if newest is not None:
            crc = record_crc(self._log, newest[0], newest[1])
            if crc is None:
                return
            newest = (*newest[:3], crc)
        self._covered = replace(snapshot, newest=newest, index_files=names)
        try:
            self._point_file.write(self._covered, self._all_extents)
            self._is_written = True
        except (StoreError, OSError) as error:
            self._ignored.note("the recovery point can't be written: after a kill more of the log is read", error)

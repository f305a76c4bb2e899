"""Flush threads: the commit log at intervals and on request, derived data and the checkpoint at intervals
(docs/format.md, 4).

A failed flush is final: the kernel may have dropped the pages that it could not write, and the next flush may succeed
without them. So nothing counts as durable afterwards. Present and later waiters get the error, and the store stops
taking messages. A missing file descriptor is not a failure: nothing was written, so the flush is tried again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.derived.checkpoint import CheckpointFile
from engine.errors import FlushFailedError, NoDescriptorError, StoreClosedError, StoreError
from engine.files.periodic import PeriodicThread
from engine.log.commit_log import CommitLog
from engine.settings.config import FlushPolicy

if TYPE_CHECKING:
    from engine.derived.marks import RecoveryPoint

Done = Callable[[StoreError | None], None]


def wait_until(request: Callable[[int, Done], None], physical_end: int) -> None:
    """Return when `request` calls its `done` for `physical_end`; raise the error that it passes."""
    answered = threading.Event()
    answers: list[StoreError | None] = []

    def done(error: StoreError | None) -> None:
        answers.append(error)
        answered.set()

    request(physical_end, done)
    answered.wait()
    if answers[0] is not None:
        raise answers[0]


class LogFlusher:
    """Flushes the commit log on its own thread: at intervals, and at once on request.

    Requests made during a sync share the next one (group commit). A caller of `sync` flushes on its own thread. Thread
    safety: any thread. `done` callbacks run on the flush thread, or at once on the caller's; they must be quick and
    must not raise.
    """

    def __init__(
        self,
        log: CommitLog,
        policy: FlushPolicy,
        *,
        failed: Callable[[FlushFailedError], None],
        commit: Callable[[], None] = lambda: None,
    ) -> None:
        """`failed` is called, before any waiter, with the failure that ends durability. `commit` copies write buffers
        to the file before a thorough flush (`Committer.commit`)."""
        self._log = log
        self._policy = policy
        self._failed = failed
        self._commit = commit
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, Done]] = []
        self._asked = False
        self._closing = False
        self._next_thorough = 0.0
        self._thread = threading.Thread(target=self._run, name="fsstore-flush", daemon=True)
        self.failure: FlushFailedError | None = None
        self.flushed_time_ms = 0
        self.flushes = 0

    def start(self) -> None:
        """Start the thread; call it after recovery has set the log's end."""
        self.flushed_time_ms = self._log.last_store_time_ms
        self._thread.start()

    @property
    def durable_end(self) -> int:
        """Physical offset before which everything is on disk."""
        return self._log.files.flushed_offset

    def request_durable(self, physical_end: int, done: Done) -> None:
        """Call `done(None)` when everything before `physical_end` is on disk, `done(error)` when it never will be."""
        with self._changed:
            answer = self._answer(physical_end)
            if answer is None and physical_end > self.durable_end:
                self._waiting.append((physical_end, done))
                self._asked = True
                self._changed.notify_all()
                return
        done(answer)

    def _answer(self, physical_end: int) -> StoreError | None:
        if physical_end <= self.durable_end:
            return None
        return self.failure or (StoreClosedError() if self._closing else None)

    def wait_durable(self, physical_end: int) -> None:
        """Return when everything before `physical_end` is on disk. FlushFailedError, StoreClosedError."""
        if physical_end <= self.durable_end:
            return
        wait_until(self.request_durable, physical_end)

    def flush(self) -> None:
        """Return when everything appended so far is on disk. FlushFailedError, StoreClosedError."""
        self.wait_durable(self._log.wrote_end)

    def sync(self) -> None:
        """As `flush`, on the caller's thread: it saves a single writer, which waits anyway, two changes of threads."""
        end = self._log.wrote_end
        if end > self.durable_end and self._answer(end) is None:
            self._flush_once(thorough=True, closing=False)
            self._answer_waiting(closing=False)
        self.wait_durable(end)

    def close(self) -> None:
        """Flush, call all waiters, end the thread; an error is in `failure`. Calling it twice is harmless."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        closing = False
        try:
            while self.failure is None and not closing:
                closing = self._round()
        finally:
            if self.failure is None and not closing:  # a bug ended the thread: waiters must not wait for ever
                self._fail(FlushFailedError(self._log.files.directory, "the flush thread ended"))
                self._answer_waiting(closing=True)

    def _round(self) -> bool:
        """Sleep, flush, call waiters; returns whether this was the last round."""
        asked, closing = self._sleep()
        now = time.monotonic()
        thorough = asked or closing or now >= self._next_thorough
        if thorough:
            self._next_thorough = now + self._policy.thorough_interval_ms / 1000
        self._flush_once(thorough, closing)
        self._answer_waiting(closing)
        return closing

    def _sleep(self) -> tuple[bool, bool]:
        """Wait for a request, `close`, or the interval; returns whether there was a request, and whether to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._closing, self._policy.interval_ms / 1000)
            asked, self._asked = self._asked, False
            return asked, self._closing

    def _flush_once(self, thorough: bool, closing: bool) -> None:
        before = self.durable_end
        time_ms = self._log.last_store_time_ms
        try:
            if thorough:
                self._commit()
            durable_end = self._log.files.flush(0 if thorough else self._policy.least_pages)
        except FlushFailedError as error:
            self._fail(error)
            return
        except NoDescriptorError as error:
            self._next_thorough = 0.0  # the next round is thorough
            if closing:
                self._fail(FlushFailedError(error.path, "no file descriptor is left to open it"))
            return
        self.flushes += durable_end > before
        if thorough:
            self.flushed_time_ms = time_ms

    def _fail(self, error: FlushFailedError) -> None:
        self._failed(error)
        self.failure = error

    def _answer_waiting(self, closing: bool) -> None:
        with self._changed:
            durable_end, failure = self.durable_end, self.failure
            given_up = failure or (StoreClosedError() if closing else None)
            waiting = self._waiting
            self._waiting = [] if given_up else [pair for pair in waiting if pair[0] > durable_end]
        for physical_end, done in waiting:
            if physical_end <= durable_end:
                done(None)
            elif given_up is not None:
                done(given_up)


class Committer:
    """Commits the log's write buffer on its own thread. Thread safety: any thread."""

    def __init__(
        self,
        log: CommitLog,
        policy: FlushPolicy,
        *,
        committed: Callable[[], None],
        failed: Callable[[FlushFailedError], None],
    ) -> None:
        """`committed` dispatches bytes that became readable; it is called on any thread, under no lock of this class.
        `failed` is called with the failure that ends committing."""
        self._log = log
        self._policy = policy
        self._committed = committed
        self._failed = failed
        self._failure: FlushFailedError | None = None
        self._last_commit = time.monotonic()
        self._announced_end = log.readable_end
        self._thread = PeriodicThread("fsstore-commit", policy.commit_interval_ms, self._tick, failed=self._give_up)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def commit(self, least_pages: int = 0) -> None:
        """Commit and dispatch the appended bytes, if they touch `least_pages` pages. FlushFailedError."""
        if self._failure is not None:
            raise self._failure
        try:
            end = self._log.files.commit(least_pages)
        except FlushFailedError as error:
            self._fail(error)
            raise
        if end > self._announced_end:  # rolling to the next file commits, too, without calling `committed`
            self._announced_end = end
            self._last_commit = time.monotonic()
            self._committed()

    def close(self) -> None:
        """End the thread, then commit and dispatch the rest. FlushFailedError."""
        self._thread.close()
        self.commit()

    def _tick(self) -> None:
        waited_ms = (time.monotonic() - self._last_commit) * 1000
        thorough = waited_ms >= self._policy.commit_thorough_interval_ms
        try:
            self.commit(0 if thorough else self._policy.commit_least_pages)
        except FlushFailedError:
            return  # `failed` was called; nothing more can be committed

    def _give_up(self, error: Exception) -> None:
        self._fail(FlushFailedError(self._log.files.directory, f"the commit thread ended: {error!r}"))

    def _fail(self, error: FlushFailedError) -> None:
        self._failure = error
        self._failed(error)


class DerivedFlusher:
    """Flushes consume queues and index on its own thread, and writes the checkpoint for recovery.

    Thread safety: any thread. Close it before the log's flusher; a last `flush` is allowed after both.
    """

    def __init__(
        self,
        log: LogFlusher,
        policy: FlushPolicy,
        checkpoint_file: CheckpointFile,
        *,
        snapshot: Callable[[], RecoveryPoint | None],
        flush_queues: Callable[[int], None],
        flush_index: Callable[[], None],
        covered: Callable[[RecoveryPoint], None],
        failed: Callable[[FlushFailedError], None],
    ) -> None:
        """`snapshot` returns the dispatched state when a flush begins, None after a failed dispatch. `covered` is
        called with it once it is on disk, log included, and the checkpoint is written. `flush_queues(least_pages)` and
        `flush_index()` raise FlushFailedError. `failed` is called with the failure that ends the thread."""
        self._log = log
        self._policy = policy
        self._checkpoint_file = checkpoint_file
        self._snapshot = snapshot
        self._flush_queues = flush_queues
        self._flush_index = flush_index
        self._covered = covered
        self._failed = failed
        self._lock = threading.Lock()
        self._next_thorough = time.monotonic() + policy.consume_queue_thorough_interval_ms / 1000
        self._thread = PeriodicThread(
            "fsstore-flush-derived", policy.consume_queue_interval_ms, self._tick, failed=self._give_up
        )
        self.failure: FlushFailedError | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def flush(self) -> None:
        """Flush log and derived data, then write the checkpoint. FlushFailedError, also for an earlier failure;
        NoDescriptorError: the flush is incomplete."""
        with self._lock:
            if self.failure is not None:
                raise self.failure
            try:
                self._flush_thoroughly()
            except FlushFailedError as error:
                self._fail(error)
                raise

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _tick(self) -> None:
        with self._lock:
            if self.failure is not None:
                return
            try:
                if time.monotonic() >= self._next_thorough:
                    self._flush_thoroughly()
                else:
                    self._flush_queues(self._policy.consume_queue_least_pages)
            except NoDescriptorError:
                return  # the next round may get a descriptor
            except FlushFailedError as error:
                self._fail(error)

    def _flush_thoroughly(self) -> None:
        snapshot = self._snapshot()  # before the flush, which may miss later dispatches
        if snapshot is not None:
            self._log.wait_durable(snapshot.physical_end)
            self._flush_queues(0)
            self._flush_index()
            self._checkpoint_file.update(physic_ms=self._log.flushed_time_ms, logics_ms=snapshot.store_time_ms)
            self._covered(snapshot)
        self._next_thorough = time.monotonic() + self._policy.consume_queue_thorough_interval_ms / 1000

    def _give_up(self, error: Exception) -> None:
        self._fail(FlushFailedError(self._checkpoint_file.path, f"the thread that flushes queues ended: {error!r}"))

    def _fail(self, error: FlushFailedError) -> None:
        self.failure = error
        self._failed(error)

"""Brings the commit log's write buffer to its file, again and again (docs/format.md, 3; see `preallocate`)."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.errors import FlushFailedError
from engine.files.periodic import PeriodicThread
from engine.log.commit_log import CommitLog
from engine.settings.config import FlushPolicy


class Committer:
    """Commits the log's write buffer on a thread of its own. Thread safety: any thread."""

    def __init__(
        self,
        log: CommitLog,
        policy: FlushPolicy,
        *,
        committed: Callable[[], None],
        failed: Callable[[FlushFailedError], None],
    ) -> None:
        """`committed` is called, from any thread and never under a lock of ours, when bytes became readable: it
        dispatches them. `failed` hears of the one failure that ends committing."""
        self._log = log
        self._policy = policy
        self._committed = committed
        self._failed = failed
        self._failure: FlushFailedError | None = None
        self._last_commit = time.monotonic()
        self._announced_end = log.readable_end
        self._thread = PeriodicThread("fsstore-commit", policy.commit_interval_ms, self._tick, failed=self._give_up)

    def start(self) -> None:
        """Begin committing."""
        self._thread.start()

    def commit(self, least_pages: int = 0) -> None:
        """Commit and dispatch what was appended so far, if it touches `least_pages` pages. FlushFailedError."""
        if self._failure is not None:
            raise self._failure
        try:
            end = self._log.commit(least_pages)
        except FlushFailedError as error:
            self._fail(error)
            raise
        if end > self._announced_end:  # rolling to the next file commits, too, but announces nothing
            self._announced_end = end
            self._last_commit = time.monotonic()
            self._committed()

    def close(self) -> None:
        """End the thread, commit and dispatch what is left. FlushFailedError."""
        self._thread.close()
        self.commit()

    def _tick(self) -> None:
        waited_ms = (time.monotonic() - self._last_commit) * 1000
        thorough = waited_ms >= self._policy.commit_thorough_interval_ms
        try:
            self.commit(0 if thorough else self._policy.commit_least_pages)
        except FlushFailedError:
            return  # `failed` was told; nothing more can be committed

    def _give_up(self, error: Exception) -> None:
        self._fail(FlushFailedError(self._log.files.directory, f"the commit thread ended: {error!r}"))

    def _fail(self, error: FlushFailedError) -> None:
        self._failure = error
        self._failed(error)

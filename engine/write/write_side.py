"""Write side: what a store open for writing has running behind it, from its start to its close."""

from __future__ import annotations

import threading
from functools import partial

from engine.errors import StoreError
from engine.events import Listeners
from engine.log.dispatch import Feed, HeldFeed
from engine.log.topics import TopicView
from engine.recovery.open import Opened
from engine.settings.broker_options import read_retention
from engine.settings.config import Retention, StoreConfig
from engine.write.durability import Durability
from engine.write.retention import Cleaner, DiskUse
from engine.write.writer import Refusal, Writer


class WriteSide:
    """Writer, flushers and retention of one store. Thread safety: any thread; `start` and `close` once."""

    def __init__(
        self,
        opened: Opened,
        topics: TopicView,
        config: StoreConfig,
        listeners: Listeners,
        refusal: Refusal,
        disk_use: DiskUse,
    ) -> None:
        """Nothing runs until `start`. ConfigFileError: the store's own retention can't be understood."""
        parts, recovered = opened.parts, opened.recovered
        feed: Feed
        if config.transient_pool_buffers:
            feed = HeldFeed(
                parts.dispatcher, recovered.newest, parts.log, appended=listeners.appended, broken=refusal.stop
            )
        else:
            feed = Feed(parts.dispatcher, recovered.newest, appended=listeners.appended, broken=refusal.stop)
        self.writer = Writer(parts, topics, config, feed, refusal)
        self.durability = Durability(parts, config.flush, feed, recovered.queues, refusal.note_flush_failure)
        self.cleaner: Cleaner | None = None
        self._taken_over = recovered.taken_over
        self._log = parts.log
        self._parts = parts
        self._refusal = refusal
        self._expired_before = 0
        self._guard = threading.Lock()
        self._closed = False
        self._chosen = config.retention
        self._make_cleaner = partial(
            Cleaner,
            parts,
            clock=config.clock,
            expired=listeners.expired,
            refused=refusal.note_full_disk,
            marked=self.durability.note_expired,
            failed=lambda error: refusal.stop(f"retention failed: {_said_by(error)}"),
            disk_use=disk_use,
        )
        retention = config.retention or read_retention(parts.layout.retention)
        if retention is not None:
            self.cleaner = self._make_cleaner(retention)

    def start(self) -> None:
        """Begin what runs in the background; what was recovered is brought to disk first. FlushFailedError."""
        self.durability.start()
        if not self._taken_over:
            self.durability.flush()
        if self.cleaner is not None:
            self.cleaner.start()

    @property
    def expired_files(self) -> int:
        """How many files of the log retention took."""
        cleaner = self.cleaner
        return self._expired_before + (cleaner.expired_files if cleaner is not None else 0)

    def reread_retention(self) -> Retention | None:
        """Go on with what config/retention.json says now, unless the store's options chose; what is in force then.
        ConfigFileError, OSError: what was in force stays so."""
        if self._chosen is not None:
            return self._chosen
        retention = read_retention(self._parts.layout.retention)
        with self._guard:
            if self._closed:
                return retention
            self._end_cleaner()
            if retention is None:
                self._refusal.note_full_disk(None)  # nobody would tell that there is space again
            else:
                self.cleaner = self._make_cleaner(retention)
                self.cleaner.start()
        return retention

    def _end_cleaner(self) -> None:
        if self.cleaner is not None:
            self.cleaner.close()
            self._expired_before += self.cleaner.expired_files
            self.cleaner = None

    def close(self) -> bool:
        """Flush what is left and end what runs; whether everything is on disk. Nothing is written any more."""
        with self._guard:
            self._closed = True
            self._end_cleaner()
        with self._log.lock:  # a put that is under way ends first
            pass
        return self.durability.close()


def _said_by(error: Exception) -> str:
    return str(error) if isinstance(error, StoreError | OSError) else repr(error)

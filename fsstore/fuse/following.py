"""Looks again and again at a store that another process writes, so that the tree shows what came."""

from __future__ import annotations

import logging
import math
import os
import select
import time

import trio

from engine import IndexState, MessageStore, NewsWatch, StoreError
from fsstore.core import Filesystem
from fsstore.tree.limited_log import LIMITED_LOG

log = logging.getLogger(__name__)

LEAST_INTERVAL_S = 0.004
"""Time between two looks at a store that always has news: a look takes about a millisecond."""


class Following:
    """Follows the writer in a thread of its own: between two requests trio's tasks wait for milliseconds. Thread
    safety: `run` on trio's thread."""

    def __init__(self, store: MessageStore, core: Filesystem, interval_ms: int) -> None:
        """Without news from the writer it looks every `interval_ms`."""
        self._store = store
        self._core = core
        self._interval_s = interval_ms / 1_000
        self._queues_derived: str | None = None
        self._index: IndexState | None = None
        self._not_shown = store.not_shown  # the opening's log has these

    async def run(self) -> None:
        """Follow until cancelled."""
        ended = os.eventfd(0)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._in_thread, ended)
                try:
                    await trio.sleep_forever()
                finally:
                    os.eventfd_write(ended, 1)
        finally:
            os.close(ended)

    async def _in_thread(self, ended: int) -> None:
        await trio.to_thread.run_sync(self._follow, ended, limiter=trio.CapacityLimiter(1))

    def _follow(self, ended: int) -> None:
        """Look until the descriptor `ended` is readable."""
        news: NewsWatch | None = None
        waiting = select.poll()
        waiting.register(ended, select.POLLIN)
        try:
            while True:
                began_s = time.monotonic()
                self._look()
                least_s = min(self._interval_s, LEAST_INTERVAL_S)
                time.sleep(max(0.0, began_s + least_s - time.monotonic()))
                if news is None and (news := self._store.watch_news()) is not None:
                    waiting.register(news.descriptor, select.POLLIN)
                if any(found == ended for found, _ in waiting.poll(math.ceil(self._interval_s * 1_000))):
                    return
                if news is not None:
                    news.drain()
        finally:
            if news is not None:
                news.close()

    def _look(self) -> None:
        try:
            self._store.refresh()
            self._core.followed()
            self._log_changes()
        except (StoreError, OSError) as error:
            text = f"following the writer failed: {error}"
            LIMITED_LOG.log_once(log, logging.WARNING, text, text)
        except Exception as error:  # a defect must not end the mount: the next look may succeed
            text = f"following the writer failed: {error!r}"
            LIMITED_LOG.log_once(log, logging.ERROR, text, text, error)

    def _log_changes(self) -> None:
        """Log what became of the queues, the index and what is not shown since the last call."""
        store = self._store
        if store.queues_derived != self._queues_derived:
            self._queues_derived = derived = store.queues_derived
            log.info("queues: %s", f"derived from the log: {derived}" if derived else "the writer's files")
        for sentence in set(store.not_shown).difference(self._not_shown):
            LIMITED_LOG.log_once(log, logging.WARNING, sentence, sentence)
        self._not_shown = store.not_shown
        index = store.index_state
        if index != self._index and index.state in ("none", "not proved"):
            log.warning("keys may not be found: index %s: %s", index.state, index.reason)
        self._index = index

"""The kernel forgets names that are gone: messages that retention removed, topics that were deleted.

Unlike attributes, a name is dropped under the directory's lock, which a request that waits for us may hold. So it
happens in a thread, never in a handler, and a batch at a time: a file of the commit log may hold a million messages.
Bodies stay in the kernel's cache as long as somebody has them open; with the name gone nobody new gets to them.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyfuse3
import trio

from engine import StoreError
from fsstore.core import Filesystem
from fsstore.interface import CachedName

log = logging.getLogger(__name__)

BATCH_NAMES = 2_000
"""Names dropped by one call of the thread; the core makes the next ones between two calls."""


class Expiry:
    """Queues what expired, and drops the names in `run`. Thread safety: trio's thread only."""

    def __init__(self, core: Filesystem) -> None:
        self._core = core
        self._open = True
        self._send, self._receive = trio.open_memory_channel[Iterable[CachedName]](float("inf"))

    def queue_expired(self, topic: str, queue: int, old_min: int, new_min: int) -> None:
        """Queue offsets [old_min, new_min) are gone."""
        if self._open:
            self._send.send_nowait(self._core.expired(topic, queue, old_min, new_min))

    def topics_changed(self) -> None:
        """Topics or queues may have gone."""
        if self._open:
            self._send.send_nowait(self._core.topics_changed())

    def close(self) -> None:
        """Let `run` end after the batch under way; the kernel is about to forget everything."""
        self._open = False
        self._send.close()

    async def run(self) -> None:
        """Drop names until `close`."""
        with suppress(trio.ClosedResourceError, trio.EndOfChannel):
            async for names in self._receive:
                await self._drop(iter(names))

    async def _drop(self, names: Iterator[CachedName]) -> None:
        try:
            while self._open and (batch := list(itertools.islice(names, BATCH_NAMES))):
                await trio.to_thread.run_sync(drop_names, batch)
        except (StoreError, OSError) as error:
            log.warning("the kernel may still show names that expired: %s", error)


def drop_names(names: Iterable[CachedName]) -> None:
    """Have the kernel look up `names` again when it is asked for them. Waits for the directories' locks."""
    for parent_inode, name in names:
        try:
            pyfuse3.invalidate_entry(parent_inode, name)
        except FileNotFoundError:
            continue  # the kernel did not know it
        except OSError as error:
            log.debug("name %r: not dropped: %s", name, error)

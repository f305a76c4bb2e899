"""The kernel asks again about what is gone: messages that retention removed, topics that were deleted.

A file of the commit log may hold a million messages, so it happens in a thread, a batch at a time. Bodies stay in the
kernel's cache as long as somebody has them open; nobody new gets to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import suppress

import trio

from engine import Expired
from fsstore.core import Filesystem
from fsstore.fuse.channel import Channel

BATCH_INODES = 2_000
"""Inodes that one call of the thread tells of; the core makes the next ones between two calls."""


class Expiry:
    """Queues what expired, and tells the kernel in `run`. Thread safety: trio's thread only."""

    def __init__(self, core: Filesystem, channel: Channel) -> None:
        self._core = core
        self._channel = channel
        self._open = True
        self._send, self._receive = trio.open_memory_channel[Iterable[int]](float("inf"))

    def queue_expired(self, expired: Expired) -> None:
        """Messages are gone."""
        if self._open:
            self._send.send_nowait(self._core.expired(expired))

    def queue_gone(self, topic: str, queue: int) -> None:
        """A queue went, and may have come anew."""
        if self._open:
            self._send.send_nowait(self._core.queue_gone(topic, queue))

    def topics_changed(self) -> None:
        """Topics or queues may have gone."""
        if self._open:
            self._send.send_nowait(self._core.topics_changed())

    def log_rewritten(self, physical_end: int) -> None:
        """Another log came in place of the one that was shown: when this returns, nothing of that is answered."""
        if self._open:
            self._send.send_nowait(self._core.log_rewritten(physical_end))

    def close(self) -> None:
        """Let `run` end after the batch under way; the kernel is about to forget everything."""
        self._open = False
        self._send.close()

    async def run(self) -> None:
        """Tell the kernel until `close`."""
        with suppress(trio.ClosedResourceError, trio.EndOfChannel):
            async for inodes in self._receive:
                await self._tell(iter(inodes))

    async def _tell(self, inodes: Iterator[int]) -> None:
        while self._open and (batch := list(itertools.islice(inodes, BATCH_INODES))):
            await trio.to_thread.run_sync(self._drop, batch)

    def _drop(self, inodes: list[int]) -> None:
        for inode in inodes:
            self._channel.drop_attributes(inode)

"""A follower for programs with an event loop, of asyncio or of trio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import trio

from engine import MessageStore, StoredMessage

T = TypeVar("T")

WAIT_SECONDS = 0.25
"""The longest time that a thread waits for a message, and that a cancelled follower waits for its thread."""


async def follow(
    store: MessageStore,
    topic: str,
    queue: int | None = None,
    start: int | None = None,
    *,
    poll_ms: int = 100,
    damaged: Callable[[int, int], None] | None = None,
) -> AsyncGenerator[StoredMessage, None]:
    """As `MessageStore.follow`, for `async for`. A thread waits for each message, so the event loop goes on meanwhile.

    Ends when the store is closed. A cancelled iteration ends within 0.25 s. Errors as `MessageStore.follow`.

    >>> import asyncio
    >>> from engine import MessageStore, OpenMode, StoreConfig
    >>> from fsstore.aio import follow
    >>> async def first(topic):
    ...     with MessageStore.open("store", StoreConfig(mode=OpenMode.FOLLOW)) as store:
    ...         async for message in follow(store, topic, start=0):
    ...             return bytes(message.body)
    >>> asyncio.run(first("orders"))
    b'12 apples'
    """
    messages = store.follow(topic, queue, start, timeout=WAIT_SECONDS, poll_ms=poll_ms, damaged=damaged)
    with _Thread() as thread:
        while found := await thread.run(lambda: list(islice(messages, 1))):
            if found[0] is not None:
                yield found[0]


class _Thread:
    """A thread for one follower: those of the event loop are few, and a follower needs one all the time."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(1)
        self._executor = ThreadPoolExecutor(1, "fsstore follow")

    def __enter__(self) -> _Thread:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=False)

    async def run(self, call: Callable[[], T]) -> T:
        """The result of `call`. A cancelled caller waits until it has ended: an iterator takes one call at a time."""
        if trio.lowlevel.in_trio_run():
            return await trio.to_thread.run_sync(call, limiter=self._limiter)
        running = asyncio.get_running_loop().run_in_executor(self._executor, call)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

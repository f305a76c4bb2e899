"""Events of a store, and the listeners that are notified of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Expired:
    """Messages of one queue that were deleted: queue offsets [old_min, new_min).

    `physical_offsets`, int64 (n,): starts of their records in queue order, as far as the queue's files still had them.
    """

    topic: str
    queue: int
    old_min: int
    new_min: int
    physical_offsets: np.ndarray[Any, np.dtype[np.int64]]


class StoreListener:
    """Override the events that you need. Methods are called on any thread, possibly under the store's own locks.

    They must be quick and must not raise: note the fact, wake your thread, return.
    """

    def appended(self, topic: str, queue: int) -> None:
        """Messages became readable in this queue."""

    def expired(self, expired: Expired) -> None:
        """The oldest messages of a queue were deleted."""

    def queue_gone(self, topic: str, queue: int) -> None:
        """FOLLOW: a queue was deleted with its messages; a new queue may have its name already."""

    def topics_changed(self) -> None:
        """A topic or a queue was made or deleted."""

    def log_rewritten(self, physical_end: int) -> None:
        """FOLLOW: another log replaced the one that was shown up to `physical_end`. The old log can't be read any more.

        The new one is shown after this returns; physical offsets then mean other messages. This method may be slow.
        """


class Listeners(StoreListener):
    """The subscribers of one store. Thread safety: any thread; a copy of the list is called, never under the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribed: tuple[StoreListener, ...] = ()

    def subscribe(self, listener: StoreListener) -> Callable[[], None]:
        """Add `listener`; the returned function removes it again (calling it twice is harmless)."""
        with self._lock:
            self._subscribed = (*self._subscribed, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribed = tuple(one for one in self._subscribed if one is not listener)

        return unsubscribe

    def appended(self, topic: str, queue: int) -> None:
        """Call `appended` of each listener."""
        for listener in self._subscribed:
            listener.appended(topic, queue)

    def expired(self, expired: Expired) -> None:
        """Call `expired` of each listener."""
        for listener in self._subscribed:
            listener.expired(expired)

    def queue_gone(self, topic: str, queue: int) -> None:
        """Call `queue_gone` of each listener."""
        for listener in self._subscribed:
            listener.queue_gone(topic, queue)

    def log_rewritten(self, physical_end: int) -> None:
        """Call `log_rewritten` of each listener."""
        for listener in self._subscribed:
            listener.log_rewritten(physical_end)

    def topics_changed(self) -> None:
        """Call `topics_changed` of each listener."""
        for listener in self._subscribed:
            listener.topics_changed()

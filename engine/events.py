"""Events of a store, and the listeners that are notified of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Expired:
    """Messages of one queue that are gone: queue offsets [old_min, new_min).

    `physical_offsets`, int64 (n,): where their records were, in queue order, as far as the queue's files still held it.
    """

    topic: str
    queue: int
    old_min: int
    new_min: int
    physical_offsets: np.ndarray[Any, np.dtype[np.int64]]


class StoreListener:
    """Override the events that you want. Methods are called from any thread, and must be quick and not raise.

    They may be called while the store's own locks are held: note the fact, wake your thread, return.
    """

    def appended(self, topic: str, queue: int) -> None:
        """Messages became readable in this queue."""

    def expired(self, expired: Expired) -> None:
        """The oldest messages of a queue are gone."""

    def queue_gone(self, topic: str, queue: int) -> None:
        """FOLLOW: a queue was deleted with all that was in it; another of its name may be there already."""

    def topics_changed(self) -> None:
        """A topic or a queue came or went."""

    def log_rewritten(self, physical_end: int) -> None:
        """FOLLOW: nothing of the log that was shown, up to `physical_end`, can be read any more, and nothing of the one
        that is there now is shown before this returns: physical offsets mean other messages from then on. It may take
        its time."""


class Listeners:
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
        """Notify all that messages became readable."""
        for listener in self._subscribed:
            listener.appended(topic, queue)

    def expired(self, expired: Expired) -> None:
        """Notify all that the oldest messages of a queue are gone."""
        for listener in self._subscribed:
            listener.expired(expired)

    def queue_gone(self, topic: str, queue: int) -> None:
        """Notify all that a queue was deleted, and perhaps recreated."""
        for listener in self._subscribed:
            listener.queue_gone(topic, queue)

    def log_rewritten(self, physical_end: int) -> None:
        """Notify all that another log came in place of the one that was shown up to `physical_end`."""
        for listener in self._subscribed:
            listener.log_rewritten(physical_end)

    def topics_changed(self) -> None:
        """Notify all that topics or queues came or went."""
        for listener in self._subscribed:
            listener.topics_changed()

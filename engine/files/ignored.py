"""Errors after which a store goes on as before, since what failed can be made again: they are counted, and told."""

from __future__ import annotations

import logging
import threading

log = logging.getLogger(__name__)


class IgnoredErrors:
    """How many there were, and the `last` in a sentence. Thread safety: any thread."""

    def __init__(self) -> None:
        self.count = 0
        self.last: str | None = None
        self._lock = threading.Lock()

    def note(self, failed: str, error: Exception) -> None:
        """`failed` says what did, and what that costs. It is logged where it is another one than the last."""
        with self._lock:
            self.count += 1
            text = f"{failed}: {error}"
            is_new, self.last = text != self.last, text
        if is_new:
            log.warning("%s", text)

"""Errors that do not stop a store, because the failed work can be repeated: they are counted and logged."""

from __future__ import annotations

import logging
import threading

log = logging.getLogger(__name__)


class IgnoredErrors:
    """The count of errors, and the `last` as a sentence. Thread safety: any thread."""

    def __init__(self) -> None:
        self.count = 0
        self.last: str | None = None
        self._lock = threading.Lock()

    def note(self, failed: str, error: Exception) -> None:
        """Count an error; `failed` names the failed work and its cost. It is logged unless it repeats the last one."""
        with self._lock:
            self.count += 1
            text = f"{failed}: {error}"
            is_new, self.last = text != self.last, text
        if is_new:
            log.warning("%s", text)

"""Reading ahead: one thread of the process brings to memory what somebody will want next."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, Full, Queue

log = logging.getLogger(__name__)

MOST_WAITING = 8
"""A disk that is further behind than that gains nothing from being asked for more."""
IDLE_SECONDS = 10.0


class ReadAhead:
    """Does what it is asked for on a thread that ends when it is idle; drops what it has no room for. Thread safety:
    any thread."""

    def __init__(self) -> None:
        self._waiting: Queue[Callable[[], None]] = Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._runs = False

    def ask(self, work: Callable[[], None]) -> None:
        """Have `work` done soon, or not at all: nothing may depend on it. Never waits and never raises."""
        with self._lock:
            try:
                self._waiting.put_nowait(work)
                if not self._runs:
                    threading.Thread(target=self._run, name="read-ahead", daemon=True).start()
                    self._runs = True
            except Full:
                return
            except RuntimeError:  # no thread can be had now: who looks reads it
                self._waiting.get_nowait()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                log.exception("reading ahead failed")

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._waiting.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._lock:  # nobody asks meanwhile
                self._runs = not self._waiting.empty()
                return self._waiting.get_nowait() if self._runs else None


READ_AHEAD = ReadAhead()

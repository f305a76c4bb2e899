"""Read-ahead: one thread of the process loads data into memory before it is needed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, Full, Queue

log = logging.getLogger(__name__)

MOST_WAITING = 8
"""Length of the queue of work: a slower disk gains nothing from more requests."""
IDLE_SECONDS = 10.0


class ReadAhead:
    """Runs work on a thread that ends when idle; work is dropped when the queue is full. Thread safety: any thread."""

    def __init__(self) -> None:
        self._waiting: Queue[Callable[[], None]] = Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._runs = False

    def ask(self, work: Callable[[], None]) -> None:
        """Queue `work`, or drop it: it must be optional. Never waits and never raises."""
        with self._lock:
            try:
                self._waiting.put_nowait(work)
                if not self._runs:
                    threading.Thread(target=self._run, name="read-ahead", daemon=True).start()
                    self._runs = True
            except Full:
                return
            except RuntimeError:  # no thread can be started now: the reader itself loads the data
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
            with self._lock:  # no `ask` in between
                self._runs = not self._waiting.empty()
                return self._waiting.get_nowait() if self._runs else None


READ_AHEAD = ReadAhead()

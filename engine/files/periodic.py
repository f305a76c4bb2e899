"""A thread that repeats one piece of work."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class PeriodicThread:
    """Calls `work` every `interval_ms` until closed. Thread safety: any thread."""

    def __init__(
        self, name: str, interval_ms: int, work: Callable[[], None], *, failed: Callable[[Exception], None]
    ) -> None:
        """`work` handles the errors that it expects. Any other error is logged, passed to `failed`, and ends the
        thread."""
        self._interval_seconds = interval_ms / 1000
        self._work = work
        self._failed = failed
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; it calls `work` first after one interval."""
        self._thread.start()

    def close(self) -> None:
        """Return when `work` has returned and will not be called again. Calling it twice is harmless."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._interval_seconds):
            try:
                self._work()
            except Exception as error:
                log.exception("%s ended", self._thread.name)
                self._failed(error)
                return

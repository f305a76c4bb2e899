"""A rate-limited log of requests that fail: one reader can make the same thing go wrong a thousand times a second.

The same place and reason is logged once a minute, with how often it came meanwhile. No more than MOST_LINES of all
kinds are logged in a minute. What is left out is counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

QUIET_S = 60.0
"""How long nothing more is logged of the same place and reason."""
MOST_LINES = 100
"""Lines in that time, of all places and reasons."""
_KNOWN = 1_000


@dataclass(slots=True)
class _Logged:
    at_s: float
    left_out: int = 0


class RateLimitedLog:
    """Decides what is logged. Thread safety: any thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._logged: dict[Hashable, _Logged] = {}
        self._period_began_s = clock_s() - QUIET_S
        self._lines = 0
        self.made = 0
        """RateLimitedLog so far, logged or not."""
        self.left_out = 0
        """Those of them that were not logged."""
        self.by_errno: Counter[int] = Counter()
        """All requests that were answered with an errno, also those that are never logged."""

    def count(self, number: int) -> None:
        """A request is answered with that errno."""
        with self._lock:
            self.by_errno[number] += 1

    def log_once(
        self, log: logging.Logger, level: int, about: Hashable, text: str, error: BaseException | None = None
    ) -> None:
        """Log `text`, with the traceback of `error`, unless the same was logged `about` this a moment ago."""
        with self._lock:
            repeated = self._counted(about)
        if repeated is not None:
            more = f" ({repeated} more of this kind since it was last logged)" if repeated else ""
            log.log(level, "%s%s", text, more, exc_info=error)

    def _counted(self, about: Hashable) -> int | None:
        """How many were left out since the last that was logged; None to leave this one out, too."""
        self.made += 1
        now_s = self._clock_s()
        if now_s - self._period_began_s >= QUIET_S:
            self._period_began_s, self._lines = now_s, 0
        logged = self._logged.get(about)
        if logged is not None and now_s - logged.at_s < QUIET_S:
            logged.left_out += 1
        elif self._lines < MOST_LINES:
            self._lines += 1
            self._remember(about, now_s)
            return logged.left_out if logged is not None else 0
        self.left_out += 1
        return None

    def _remember(self, about: Hashable, now_s: float) -> None:
        self._logged.pop(about, None)
        self._logged[about] = _Logged(now_s)
        if len(self._logged) > _KNOWN:
            del self._logged[next(iter(self._logged))]


LIMITED_LOG = RateLimitedLog()
"""Of this process, which serves one mount."""

"""A rate-limited log of failed requests: one reader can repeat a failure a thousand times a second.

A failure with the same place and reason is logged once a minute, with the number of repetitions. At most MOST_LINES of
all kinds are logged in a minute. Further ones are only counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

QUIET_S = 60.0
"""Seconds in which a place and reason is not logged again."""
MOST_LINES = 100
"""Lines in that time, for all places and reasons."""
_KNOWN = 1_000


@dataclass(slots=True)
class _Logged:
    at_s: float
    left_out: int = 0


class RateLimitedLog:
    """Decides which failures are logged. Thread safety: any thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._logged: dict[Hashable, _Logged] = {}
        self._period_began_s = clock_s() - QUIET_S
        self._lines = 0
        self.made = 0
        """Failures so far, logged or not."""
        self.left_out = 0
        """Failures that were not logged."""
        self.by_errno: Counter[int] = Counter()
        """Requests answered with each errno, logged or not."""

    def count(self, number: int) -> None:
        """Count a request that is answered with errno `number`."""
        with self._lock:
            self.by_errno[number] += 1

    def log_once(
        self, log: logging.Logger, level: int, about: Hashable, text: str, error: BaseException | None = None
    ) -> None:
        """Log `text`, with the traceback of `error`, unless one with the same `about` was logged within QUIET_S."""
        with self._lock:
            repeated = self._counted(about)
        if repeated is not None:
            more = f" ({repeated} more of this kind since it was last logged)" if repeated else ""
            log.log(level, "%s%s", text, more, exc_info=error)

    def _counted(self, about: Hashable) -> int | None:
        """Failures left out since the last logged one of this kind; None: leave this one out too."""
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
"""The log of this process, which serves one mount."""

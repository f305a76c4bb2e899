"""Delay levels of a broker's `messageDelayLevel`."""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
UNKNOWN_LEVEL_DELAY_MS = 1000

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d{1,9})([smhd])", re.ASCII)


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """Delays by level: `delays_ms[level - 1]`."""

    delays_ms: tuple[int, ...]

    def __str__(self) -> str:
        return " ".join(map(_in_words, self.delays_ms))

    @classmethod
    def parse(cls, text: str = DEFAULT_LEVELS) -> DelayLevels:
        """Parse RocketMQ's `messageDelayLevel`: numbers with a unit, s, m, h or d. ValueError."""
        found = [_LEVEL.fullmatch(word) for word in text.split()]
        if None in found or not found:
            raise ValueError(f"delay levels are numbers with a unit, s, m, h or d: {text!r}")
        return cls(tuple(int(level[1]) * _UNIT_MS[level[2]] for level in found if level))

    def clamp(self, level: int) -> int:
        """The level at which a message is stored: at most the highest one."""
        return min(level, len(self.delays_ms))

    def due_ms(self, level: int, store_time_ms: int) -> int:
        """Time in epoch ms at which a message of `level`, stored at `store_time_ms`, is due."""
        known = 1 <= level <= len(self.delays_ms)
        return store_time_ms + (self.delays_ms[level - 1] if known else UNKNOWN_LEVEL_DELAY_MS)


def _in_words(delay_ms: int) -> str:
    unit = next(name for name in "dhms" if delay_ms % _UNIT_MS[name] == 0)
    return f"{delay_ms // _UNIT_MS[unit]}{unit}"

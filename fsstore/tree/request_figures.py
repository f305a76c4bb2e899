"""What a mount's requests cost: how many there were of each operation, and how long some of them took.

Each is counted. One in SAMPLE_OF of each operation is timed, since looking at the clock twice would show in requests
of ten microseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable

SAMPLE_OF = 64
"""The first request of an operation is timed, and then each of that number: a power of two."""

BUCKETS_S = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper bounds."""


class Histogram:
    """How many took how long. Thread safety: none."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        """Of each bucket alone; the last one has no bound."""
        self.seconds = 0.0
        """All together."""

    def took(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class RequestFigures:
    """Of one mount, since this daemon serves it. Thread safety: one thread; others may look at copies."""

    def __init__(self) -> None:
        self.name_of: Callable[[int], str] = str
        """The operation that an opcode means; the adapter knows."""
        self.counts: defaultdict[int, int] = defaultdict(int)
        """Requests by opcode."""
        self.times: defaultdict[int, Histogram] = defaultdict(Histogram)
        """By opcode, of those that were timed."""

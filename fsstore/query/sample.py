"""Samples: messages drawn over the queue offsets, so that a few stand for many that are not read."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from fsstore.query.hist import QueueRange


def drawn(ranges: Sequence[QueueRange], count: int) -> list[tuple[str, int, int]]:
    """Topic, queue and queue offset of `count` messages of the ranges, or of all if they are no more: one of each of so
    many equal parts of the queue offsets. Their order has no meaning, so its begin is a sample, too. The same ranges
    give the same sample."""
    ends = list(accumulate(chosen.end - chosen.start for chosen in ranges))
    there = ends[-1] if ends else 0
    chance, parts = random.Random(there), min(count, there)
    numbers = [chance.randrange(part * there // parts, (part + 1) * there // parts) for part in range(parts)]
    found = []
    for number in numbers:
        at = bisect_right(ends, number)
        found.append((ranges[at].topic, ranges[at].queue, ranges[at].end - (ends[at] - number)))
    chance.shuffle(found)
    return found

"""Turns, medians and spreads: how two sides are compared."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

CPU_CLOCK = 2
"""Beside a process's number inverted: the clock that clock_getcpuclockid(3) finds."""


class LeftOutError(Exception):
    """A peer that can't be had here; the message says why, and the row shows it."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """What a row measured: round by round, both sides in the row's unit. `note` is shown with the row.

    `counts` is False where this machine can't show what the row is about: then it is reported, without a verdict.
    """

    ours: tuple[float, ...]
    peer: tuple[float, ...]
    note: str = ""
    counts: bool = True

    @property
    def ratios(self) -> list[float]:
        """Each round's ours / peer."""
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios."""
        return statistics.median(self.ratios)


def interleave(ours: Callable[[], float], peer: Callable[[], float], rounds: int) -> Pairs:
    """Let both sides take turns, the other one first in every second round."""
    results: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        sides = ((0, ours), (1, peer))
        for side, run in sides if number % 2 == 0 else sides[::-1]:
            results[side].append(run())
    return Pairs(tuple(results[0]), tuple(results[1]))


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has had, its threads' that have ended too."""
    return time.clock_gettime(~pid << 3 | CPU_CLOCK)


def rate(count: int, work: Callable[[], object]) -> float:
    """So many things done by `work`: how many a second."""
    return count / seconds(work)

"""Turns, medians and spreads: how two sides are compared."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

CPU_CLOCK = 2
"""Beside a process's number inverted: the clock that clock_getcpuclockid(3) finds."""


class LeftOutError(Exception):
    """A peer that can't be had here; the message says why, and the row shows it."""


class Turn(NamedTuple):
    """One side in one round: its figure in the row's unit, and processor time in microseconds a piece, if known."""

    figure: float
    cpu_us: float | None = None


class Took(NamedTuple):
    """Seconds that some work took, and those of processor time that its server had meanwhile, if asked for."""

    seconds: float
    cpu_s: float | None = None

    def rate(self, count: float) -> Turn:
        """So many things were done: how many a second."""
        return Turn(count / self.seconds, None if self.cpu_s is None else 1e6 * self.cpu_s / count)


@dataclass(frozen=True, slots=True)
class Pairs:
    """What a row measured: round by round, both sides in the row's unit. `note` is shown with the row. `cpu_us`:
    processor time in microseconds a piece, of ours and the peer, for each round where both are known.

    `counts` is False where this machine can't show what the row is about: then it is reported, without a verdict.
    """

    ours: tuple[float, ...]
    peer: tuple[float, ...]
    note: str = ""
    counts: bool = True
    cpu_us: tuple[tuple[float, float], ...] = ()

    @property
    def ratios(self) -> list[float]:
        """Each round's ours / peer."""
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios."""
        return statistics.median(self.ratios)

    @property
    def cpu_ratio(self) -> float | None:
        """Median of the rounds' ratios peer / ours of processor time; None: it is not known."""
        ratios = [its / mine for mine, its in self.cpu_us if mine > 0]
        return statistics.median(ratios) if ratios else None


Side = Callable[[], float | Turn]


def interleave(ours: Side, peer: Side, rounds: int) -> Pairs:
    """Let both sides take turns, the other one first in every second round."""
    results: tuple[list[Turn], list[Turn]] = ([], [])
    for number in range(rounds):
        sides = ((0, ours), (1, peer))
        for side, run in sides if number % 2 == 0 else sides[::-1]:
            found = run()
            results[side].append(found if isinstance(found, Turn) else Turn(found))
    cpu_us = [(mine.cpu_us, its.cpu_us) for mine, its in zip(*results, strict=True)]
    known = tuple((mine, its) for mine, its in cpu_us if mine is not None and its is not None)
    ours_figures, peer_figures = (tuple(turn.figure for turn in side) for side in results)
    return Pairs(ours_figures, peer_figures, cpu_us=known)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has had, its threads' that have ended too."""
    return time.clock_gettime(~pid << 3 | CPU_CLOCK)


def rate(count: int, work: Callable[[], object], server: int | None = None) -> Turn:
    """So many things done by `work`: how many a second, and the processor time of process `server`, or of this one."""
    pid = server or os.getpid()
    began = cpu_seconds(pid)
    took = seconds(work)
    return Took(took, cpu_seconds(pid) - began).rate(count)

"""Random cases, by seed and number: run each with a deadline, count them, and the command line of a long run."""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from tests.durability.figures import keep

DEADLINE_S = 60
SHOWN_CHARS = 3_000
TOLD_CASES = 250
"""After so many cases a long run says how far it is."""


@dataclass
class CaseTally:
    """Counts of cases, and the findings."""

    cases: int = 0
    slowest_case_s: float = 0.0
    lost: int = 0
    findings: list[str] = field(default_factory=list)

    def missed(self) -> list[str]:
        """States that a long run must have reached, and this one did not."""
        return []


AnyTally = TypeVar("AnyTally", bound=CaseTally)
Tell = Callable[[AnyTally, list[str]], None]


class Case(Protocol):
    """One case: it leaves its store in a folder of its own."""

    done: list[str]
    """The actions of the case, for debugging a finding."""

    def run(self) -> list[str]:
        """Run the case; returns the broken promises."""


class HangError(Exception):
    """A case took longer than anything here may take."""


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """HangError in the main thread when the block takes longer."""

    def ring(number: int, frame: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def no_progress(tally: CaseTally, found: list[str]) -> None:
    """Say nothing meanwhile."""


def run_cases(
    make: Callable[[Path, random.Random], Case],
    folder: Path,
    tally: AnyTally,
    numbers: range,
    seed: int,
    most_findings: int,
    tell: Tell[AnyTally],
) -> AnyTally:
    """Run the cases of those `numbers`: `make` gets the folder of each one's store, and its chance."""
    failed = 0
    for number in numbers:
        case = make(folder / "store", random.Random(f"{seed}.{number}"))
        began = time.monotonic()
        with deadline(DEADLINE_S):
            wrong = case.run()
        tally.slowest_case_s = max(tally.slowest_case_s, round(time.monotonic() - began, 2))
        shutil.rmtree(folder / "store")
        tally.cases += 1
        failed += bool(wrong)
        found = [f"case {number}: {text}" for text in wrong]
        found += [f"case {number}: {' | '.join(case.done)}"] if wrong else []
        tally.findings += found
        tell(tally, found)
        if failed >= most_findings:
            break
    return tally


def main(name: str, about: str | None, run: Callable[..., CaseTally], counted: dict[str, str], well: str) -> int:
    """The long form of the proof `name`, whose cases `run` runs; its exit status. `counted` are fields of the tally and
    what a line now and then calls them; `well` is said when nothing was found."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-findings", type=int, default=20, help="stop after so many cases went wrong")
    chosen = parser.parse_args()
    faulthandler.enable()
    began = time.monotonic()
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=place) as folder:
        tally = run(
            Path(folder),
            chosen.cases,
            chosen.seed,
            first=chosen.first,
            most_findings=chosen.most_findings,
            tell=partial(_tell, counted),
        )
    tally.findings += tally.missed()
    keep(name, {"seed": chosen.seed, **tally.__dict__, "seconds": round(time.monotonic() - began)})
    print("NOT well: see the findings" if tally.findings else well)
    return 1 if tally.findings else 0


def _tell(counted: dict[str, str], tally: CaseTally, found: list[str]) -> None:
    """Print progress at intervals, and findings at once."""
    for text in found:
        print(text[:SHOWN_CHARS], flush=True)
    if tally.cases % TOLD_CASES == 0:
        figures = (f"{getattr(tally, name)} {title}" for name, title in counted.items())
        print(f"{tally.cases:7,} cases, {', '.join(figures)}", flush=True)

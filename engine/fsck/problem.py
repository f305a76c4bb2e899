"""Problem: one finding of `check`, and what a person needs to look it up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ProblemKind(Enum):
    """What is wrong, in the words that `mountctl check` prints."""

    BAD_RECORD = "bad record"
    STALE_TAIL = "stale tail"
    MISSING_FILE = "missing file"
    FOREIGN_FILE = "foreign file"
    WRONG_SIZE = "wrong size"
    CONSUME_QUEUE = "consume queue"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    CONFIG = "config"
    DERIVED = "derived data"
    LIVE_WRITER = "live writer"


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken invariant. `path` is relative to the store; `position` a byte there, -1: the file as a whole."""

    kind: ProblemKind
    path: str
    position: int
    text: str

    def __str__(self) -> str:
        place = self.path if self.position < 0 else f"{self.path} at byte {self.position}"
        return f"{self.kind.value}: {place}: {self.text}"


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """How far a check or repair is: bytes of the commit log read, of how many; `stage` is a word to show."""

    stage: str
    done_bytes: int
    total_bytes: int

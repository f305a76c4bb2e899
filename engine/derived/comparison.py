"""Comparison: one kind of derived data beside what a scan of the log finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.log.sequence import Suspect
    from engine.record.scan import ScannedRecords
    from engine.results import DamagedRange, Problem


@dataclass(frozen=True, slots=True)
class Extent:
    """What a check has read: the physical offsets [begin(topic), end) of each topic ("" is the log itself). A scan came
    to `scanned_end`. `is_moved` is as of `LogScan`. `is_open`: this or another process has the store open, so files may
    grow; `is_written`: another process writes it."""

    begin: Callable[[str], int]
    end: int
    scanned_end: int
    damaged: Sequence[DamagedRange]
    is_moved: Callable[[int, int, int], bool]
    is_open: bool
    is_written: bool


class Comparison(Protocol):
    """Compares one kind with the records of a scan of the whole log. Nothing is written."""

    def put_scanned(self, found: ScannedRecords) -> None:
        """Take the next records."""

    def take_back(self, suspect: Suspect) -> None:
        """Forget a record whose queue offset turned out to be wrong."""

    def problems(self, extent: Extent, progress: Callable[[], None]) -> Iterator[Problem]:
        """The differences, after the last record."""

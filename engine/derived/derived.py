"""Derived data: what follows from the commit log has one life cycle, whichever kind it is (docs/architecture.md).

    opening     each kind says up to where it is complete, is destroyed or cut, and gets what the scan finds behind that
    check       a `Comparison` of each kind gets what the scan finds
    follow      each kind begins anew in scratch memory, and gets what scans find
    retention   each kind drops its entries for deleted files of the log

A writer appends to the kinds itself (`engine.derived.dispatch`), and flushes them (`engine.write.durability`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.derived.marks import RecoveryPoint
    from engine.files.mapped_file import Access
    from engine.log.entries import Entries
    from engine.log.sequence import Suspect
    from engine.record.scan import ScannedRecords
    from engine.results import DamagedRange, Problem


@dataclass(frozen=True, slots=True)
class Basis:
    """The state that the last writer left. Derived data before the physical offset `trusted_end` is on disk. `point` is
    the recovery point, None if it does not describe the log. `was_closed`: the writer closed the store.
    `is_index_readable`: the sizes of index files are known."""

    trusted_end: int
    point: RecoveryPoint | None
    was_closed: bool
    is_index_readable: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """The kind is complete up to the physical offset `end`. `unfit` names it, with the reason, if it must be destroyed
    first."""

    end: int
    unfit: str | None = None


@dataclass(frozen=True, slots=True)
class Losses:
    """Damage that a scan has found, up to its records. `keep` may correct the entries, from a queue offset of a queue
    (topic, queue id) on, that stand for lost messages."""

    damaged: Sequence[DamagedRange]
    keep: Callable[[str, int, int, Entries], None] = lambda topic, queue_id, first, entries: None


class Derived(Protocol):
    """One kind of derived data. Thread safety: one caller at a time, beside any readers."""

    @property
    def foreign(self) -> Sequence[Path]:
        """Files in its folder that it does not read."""

    def prove(self, basis: Basis) -> Proof:
        """Cut it to where it can be trusted; say up to where it is complete."""

    def put_scanned(self, found: ScannedRecords, losses: Losses) -> list[tuple[str, int]]:
        """Append what follows from the next records of a scan, unless it is there; return the queues (topic, queue id)
        that got entries. StoreFullError, OSError: call it again."""

    def take_back(self, suspect: Suspect) -> None:
        """Drop the data appended for a record whose queue offset turned out to be wrong."""

    def truncate(self, physical_end: int) -> None:
        """Drop what leads to records that end after `physical_end`."""

    def delete_expired(self, now_ms: int) -> None:
        """Delete files that lead only to records before the log's begin. OSError."""

    def begin_anew(self, folder: Path, access: Access) -> None:
        """FOLLOW: use new files below `folder`, which this process makes, from now on."""

    def destroy(self) -> None:
        """Delete it; it can be made again."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of a store that a check has read: the physical offsets [begin(topic), end) of each topic; the topic ""
    stands for the log itself. The scan reached `scanned_end`. `is_moved` is that of `LogScan`. `is_open`: a process has
    the store open, so files may grow. `is_written`: another process writes the store."""

    begin: Callable[[str], int]
    end: int
    scanned_end: int
    damaged: Sequence[DamagedRange]
    is_moved: Callable[[int, int, int], bool]
    is_open: bool
    is_written: bool


class Comparison(Protocol):
    """Compares one kind with the records of a scan of the whole log, and writes nothing."""

    def put_scanned(self, found: ScannedRecords) -> None:
        """Take the next records."""

    def take_back(self, suspect: Suspect) -> None:
        """Forget a record whose queue offset turned out to be wrong."""

    def problems(self, extent: Extent, progress: Callable[[], None]) -> Iterator[Problem]:
        """The differences, after the last record."""

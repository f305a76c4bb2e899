"""Log scan: walks the records of a file of the commit log, checks each, and tells where they end (docs/format.md, 8).

The chain of sizes is followed one by one; all else is checked for many records at once. No object is made for a message.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from engine.columns import LocatedRecords

Array = np.ndarray[Any, Any]

CHUNK_RECORDS = 65_536


class ScanStop(Enum):
    """Why a scan went no further."""

    END = "the end that was asked for"
    BLANK = "the filler at the file's end"
    ZEROS = "zeros: nothing was written there"
    DAMAGED = "no record"


@dataclass(frozen=True, slots=True)
class ScannedRecords:
    """A run of whole records of one file, in log order. The topic of row i is topics[topic_rows[i]] (int64 (n,)).

    `records.log` is the scanned file's memory: drop the scan before the file is closed. `end` is the position just past the last record.
    `stop` and `problem` are set in the last chunk of a scan only: why it ends at `end`, and what is wrong there if it is DAMAGED.
    """

    records: LocatedRecords
    topics: list[str]
    topic_rows: Array
    end: int
    stop: ScanStop | None = None
    problem: str | None = None

    def __len__(self) -> int:
        return len(self.records)


def scan_records(
    view: memoryview,
    start: int,
    base_physical_offset: int,
    end: int,
    *,
    verify: bool = True,
    chunk_records: int = CHUNK_RECORDS,
) -> Iterator[ScannedRecords]:
    """The records of a file (`view`, at `base_physical_offset` of the log) from position `start` on, none past `end`, in chunks.

    There is always a last chunk, perhaps empty, with `stop` set. `verify` checks bodies' CRCs and lost sectors too.
    """
    raise NotImplementedError


def find_next_record(view: memoryview, position: int, base_physical_offset: int, end: int) -> int | None:
    """The first position from `position` on where a whole record starts, ends by `end`, and all that can be checked holds."""
    raise NotImplementedError

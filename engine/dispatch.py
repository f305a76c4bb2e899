"""Dispatch: from records in the commit log to consume queues and index (docs/format.md, 5).

One record, a run of records of one queue, or whatever a scan of the log found: the same entries come out, and what is there already
is not written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.consumequeues import ConsumeQueues
from engine.index import Index
from engine.logscan import ScannedRecords
from engine.schedule import DelayLevels

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PlacedRecord:
    """One record as it was placed in the log. `queue_offset` is what the record holds; `properties` as stored."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int
    store_time_ms: int
    sys_flag: int
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """Records of one queue at consecutive queue offsets, as arrays of shape (n,), in log order.

    `tags_codes` is one number when it is the same for all. Keys: `key_rows` (k,) ascending, the row of each key;
    `key_hashes` (k,) its index hash (of topic#key); the unique key of a row comes first.
    Plain records only: no transaction types PREPARED or ROLLBACK, no delay, no multi-dispatch (those go one by one).
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offsets: Array
    store_sizes: Array
    store_time_ms: int
    tags_codes: Array | int
    key_rows: Array
    key_hashes: Array


class Dispatcher:
    """Thread safety: one caller at a time."""

    def __init__(
        self, queues: ConsumeQueues, index: Index | None, delays: DelayLevels, multi_dispatch: bool = True
    ) -> None:
        """`index` None: messages are not indexed."""
        raise NotImplementedError

    def put(self, record: PlacedRecord) -> None:
        """Dispatch one record. QueueGapError, StoreFullError."""
        raise NotImplementedError

    def put_run(self, run: PlacedRun) -> None:
        """Dispatch a run. QueueGapError, StoreFullError."""
        raise NotImplementedError

    def put_scanned(self, records: ScannedRecords) -> None:
        """Dispatch what a scan of the log found, in log order; entries already built are skipped. QueueGapError, StoreFullError."""
        raise NotImplementedError

"""Dispatch: from records in the commit log to consume queues and index (docs/format.md, 5).

One record, a run of records of one queue, or whatever a scan of the log found: the same entries come out, and what is there already
is not written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from engine.consumequeues import ConsumeQueues
from engine.index import Index
from engine.logscan import ScannedRecords
from engine.place import Place
from engine.schedule import DelayLevels

Array = np.ndarray[Any, Any]


class Placed(NamedTuple):
    """One record as it was placed in the log, and what its queue and its keys want to know.

    `tags_code` is `schedule.tags_code`; `keys` are the unique key (when there is one), then those of KEYS;
    `places` its further queues (`place.places`).
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int
    store_time_ms: int
    sys_flag: int = 0
    tags_code: int = 0
    keys: Sequence[str] = ()
    places: Sequence[Place] = ()


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """Records of one queue at consecutive queue offsets, as arrays of shape (n,), in log order.

    `tags_codes` and `store_times_ms` are one number when it is the same for all. Keys: `key_rows` (k,) ascending, the row of each
    key; `key_hashes` (k,) its index hash (of topic#key); the unique key of a row comes first.
    Plain records only: no transaction types PREPARED or ROLLBACK, no multi-dispatch (those go one by one).
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offsets: Array
    store_sizes: Array
    store_times_ms: Array | int
    tags_codes: Array | int
    key_rows: Array
    key_hashes: Array


class Dispatcher:
    """Thread safety: one caller at a time.

    Keys of single records wait in memory (queries see them there) and go into the index files in batches: when some thousand
    are waiting, at `put_run`, and at `flush` of the index, which must come before any mark that says how far dispatch is on disk.
    """

    def __init__(self, queues: ConsumeQueues, index: Index | None, delays: DelayLevels) -> None:
        """`index` None: messages are not indexed."""
        raise NotImplementedError

    def put(self, record: Placed) -> None:
        """Dispatch one record. QueueGapError, StoreFullError."""
        raise NotImplementedError

    def put_run(self, run: PlacedRun) -> None:
        """Dispatch a run. QueueGapError, StoreFullError."""
        raise NotImplementedError

    def put_scanned(self, records: ScannedRecords) -> None:
        """Dispatch what a scan of the log found, in log order; entries already built are skipped. QueueGapError, StoreFullError."""
        raise NotImplementedError

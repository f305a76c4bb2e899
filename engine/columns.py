"""Columns: many records of a mapped file of the log at once, as numpy arrays, with no object for a message (docs/format.md, 2).

`locate` reads the fixed fields of records at given positions and where their parts are; `slices of properties` are found for all of
them in one pass. A `Columns` is a copy that stands alone: bodies, keys and tags as bytes with offsets, as Arrow lays them out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

HEADER = np.dtype(
    [
        ("queue_offset", "i8"),
        ("physical_offset", "i8"),
        ("store_size", "i4"),
        ("body_size", "i8"),  # as a reader gets it; -1: compressed, not known
        ("store_time_ms", "i8"),
        ("sys_flag", "i4"),
        ("ok", "?"),
    ]
)


@dataclass(frozen=True, slots=True)
class LocatedRecords:
    """Records at `positions` of `log` (uint8), all arrays of shape (n,), int64 unless said; where `ok` is false the others are 0.

    `ok`: magic, place and sizes hold (no CRC). `headers` are HEADER. `body_sizes` are as stored. Starts are positions in `log`.
    """

    log: Array
    positions: Array
    headers: Array
    queue_ids: Array  # int32
    body_crcs: Array  # int32
    body_starts: Array
    body_sizes: Array
    topic_starts: Array
    topic_sizes: Array
    properties_starts: Array
    properties_sizes: Array

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """n byte strings: the i-th is data[offsets[i]:offsets[i + 1]]; `offsets` int64 (n + 1,), `data` uint8."""

    offsets: Array
    data: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()


@dataclass(frozen=True, slots=True)
class Columns:
    """Messages as columns, copied out of the log. `headers` is HEADER (n,); a row that is not `ok` is empty in the others.

    `bodies` are decompressed; `keys` is KEYS as stored (joined by spaces), `tags` TAGS; both empty when absent.
    """

    headers: Array
    bodies: ByteColumn
    keys: ByteColumn
    tags: ByteColumn

    def __len__(self) -> int:
        return len(self.headers)

    @classmethod
    def concatenate(cls, parts: Sequence["Columns"]) -> "Columns":
        """One after the other; of no parts, an empty one."""
        raise NotImplementedError


def locate(log: Array, positions: Array, physical_offsets: Array) -> LocatedRecords:
    """The records at `positions` (int64, anything: what is no record is not `ok`) of `log`, which must be at `physical_offsets`."""
    raise NotImplementedError


def gather_headers(log: Array, positions: Array, physical_offsets: Array) -> Array:
    """HEADER (n,) of the records at `positions` of `log`: `locate` without the rest."""
    raise NotImplementedError


def find_properties(records: LocatedRecords, names: Sequence[bytes]) -> list[tuple[Array, Array]]:
    """For each name, (starts, sizes) int64 (n,) of its value in `records.log`: size 0 when absent or empty. The last of equals wins."""
    raise NotImplementedError


def read_columns(records: LocatedRecords, body_limit_bytes: int, *, verify: bool = True) -> Columns:
    """The messages of `records`. With `verify`, a body that its CRC denies makes its row not `ok`."""
    raise NotImplementedError


def index_key_rows(records: LocatedRecords, topics: Sequence[str], topic_rows: Array) -> tuple[Array, Array]:
    """What the index holds of `records`: (rows, hashes), rows ascending, the unique key of a row first; int64 and int32 (k,).

    The topic of row i is topics[topic_rows[i]].
    """
    raise NotImplementedError


def tags_codes(records: LocatedRecords) -> Array:
    """The hash of each record's TAGS, 0 when it has none: int64 (n,)."""
    raise NotImplementedError

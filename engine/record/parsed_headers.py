"""Parsed headers: fixed fields and parts' positions of many records of a mapped log file, as numpy arrays
(docs/format.md, 2).

`parse_headers` reads records at given positions and checks them as `engine.record.record` checks one; the kernel's
`read_sizes` reads only their sizes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.record.kernel import scan as kernel
from engine.record.properties import decode_properties

Array = np.ndarray[Any, Any]

HEADER = np.dtype(
    [
        ("queue_offset", "i8"),
        ("physical_offset", "i8"),
        ("store_size", "i4"),
        ("body_size", "i8"),  # as a reader gets it; -1: compressed, so not known
        ("store_time_ms", "i8"),
        ("sys_flag", "i4"),
        ("ok", "?"),
    ],
    align=True,  # numpy takes several times as long for a field at odd positions
)
PARTS = np.dtype(
    [
        ("body_start", "i8"),
        ("body_size", "i8"),
        ("topic_start", "i8"),
        ("topic_size", "i8"),
        ("properties_start", "i8"),
        ("properties_size", "i8"),
        ("queue_id", "i4"),
        ("body_crc", "i4"),
    ]
)
"""The dtypes of `engine.record.kernel.scan`."""


@dataclass(frozen=True, slots=True)
class ParsedHeaders:
    """Records at `positions` (int64 (n,)) of `log` (uint8).

    `headers` is HEADER; `ok` means right magic, physical offset and sizes (CRCs are not checked). `parts` is PARTS:
    starts are positions in `log`, the body's size is as stored. Where `ok` is false, starts and sizes are 0, and other
    fields are undefined.
    """

    log: Array
    positions: Array
    headers: Array
    parts: Array

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def queue_ids(self) -> Array:
        """int32 (n,)."""
        return self.parts["queue_id"]

    @property
    def bodies(self) -> tuple[Array, Array]:
        """(starts, sizes) of the bodies as stored."""
        return self.parts["body_start"], self.parts["body_size"]

    @property
    def topics(self) -> tuple[Array, Array]:
        """(starts, sizes) of the topics."""
        return self.parts["topic_start"], self.parts["topic_size"]

    @property
    def properties(self) -> tuple[Array, Array]:
        """(starts, sizes) of the properties."""
        return self.parts["properties_start"], self.parts["properties_size"]

    def properties_of(self, row: int) -> dict[str, str]:
        """The properties of one record, decoded."""
        start, size = int(self.parts["properties_start"][row]), int(self.parts["properties_size"][row])
        return decode_properties(self.log[start : start + size].tobytes())

    def take(self, rows: Array | slice) -> "ParsedHeaders":
        """Only the records at `rows` (a slice, indices or a mask)."""
        return ParsedHeaders(self.log, self.positions[rows], self.headers[rows], self.parts[rows])


def misplaced(records: ParsedHeaders, topic: str, queue_id: int, first: int) -> Array:
    """Mask (bool (n,)) of the `ok` records whose topic, queue id or queue offset differs from the queue's slots
    `first`, `first` + 1 …"""
    return kernel.misplaced(records.log, records.headers, records.parts, topic.encode(), queue_id, first)


def parse_headers(
    log: Array,
    positions: Array,
    physical_offsets: Array | None,
    is_ledger: bool = False,
    *,
    whole: bool = True,
) -> ParsedHeaders:
    """Parse the records at `positions` (int64) of `log` (uint8); other bytes are not `ok`, nor are records whose
    physical offset differs from `physical_offsets`, if given. `is_ledger`: the records follow DLedger headers.

    Without `whole`, bytes after the bodies are not read: topics and properties are empty, and not checked.
    """
    headers, parts = np.empty(len(positions), HEADER), np.empty(len(positions), PARTS)
    kernel.parse_headers(log, positions, physical_offsets, is_ledger, whole, headers, parts)
    return ParsedHeaders(log, positions, headers, parts)

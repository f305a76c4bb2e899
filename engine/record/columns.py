"""Columns: many records of a mapped log file as numpy arrays, without an object for each message (docs/format.md, 2).

`find_properties` finds named properties of all records in one pass; `read_bodies` finds the whole bodies. A `Columns`
is a copy, independent of the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.record.byte_columns import ByteColumn, SliceColumn
from engine.record.compression import COMPRESSED_FLAG, try_decompress
from engine.record.kernel.columns import find_values, gather
from engine.record.kernel.scan import whole_bodies
from engine.record.parsed_headers import HEADER, ParsedHeaders
from engine.record.properties import KEYS, TAGS
from engine.record.record import SECTOR_BYTES, has_lost_sector

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """Messages as columns, copied out of the log. `headers` is HEADER (n,); rows that are not `ok` are otherwise empty.

    `bodies` are decompressed, and `body_size` in the headers is their size. `keys` has KEYS as stored (joined by
    spaces), `tags` has TAGS; both are empty when absent.
    """

    headers: Array
    bodies: ByteColumn
    keys: ByteColumn
    tags: ByteColumn

    def __len__(self) -> int:
        return len(self.headers)

    @classmethod
    def concatenate(cls, parts: Sequence["Columns"]) -> "Columns":
        """Concatenate columns; without parts, empty ones."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([np.zeros(0, HEADER), *(part.headers for part in parts)]),
            ByteColumn.concatenate([part.bodies for part in parts]),
            ByteColumn.concatenate([part.keys for part in parts]),
            ByteColumn.concatenate([part.tags for part in parts]),
        )


def damaged_rows(records: ParsedHeaders) -> Array:
    """Mask of the `ok` records whose body has a wrong CRC: bool (n,)."""
    whole = whole_bodies(records.log, *records.bodies, records.parts["body_crc"])
    return np.asarray(~whole & records.headers["ok"])


def lost_sector_rows(records: ParsedHeaders) -> list[int]:
    """The `ok` records with a lost sector: see `has_lost_sector`."""
    view, lost = records.log.data, []
    for row in _rows_with_zero_at_sector_start(records):
        start, size = int(records.positions[row]), int(records.headers["store_size"][row])
        topic, properties = (int(records.parts[part][row]) - start for part in ("topic_start", "properties_start"))
        physical_offset = int(records.headers["physical_offset"][row])
        if has_lost_sector(view[start:], size, physical_offset, topic, properties):
            lost.append(row)
    return lost


def _rows_with_zero_at_sector_start(records: ParsedHeaders) -> list[int]:
    """Rows with a sector after the body that begins with a zero, ascending: only these can have a lost sector."""
    headers = records.headers
    ends = records.positions + headers["store_size"]
    topic_starts, _ = records.topics
    topic_offsets = headers["physical_offset"] - records.positions + topic_starts
    starts = topic_starts + (-topic_offsets & SECTOR_BYTES - 1)
    rows = np.flatnonzero(headers["ok"] & (starts < ends))
    suspects: set[int] = set()
    while len(rows):
        suspects.update(rows[records.log[starts[rows]] == 0].tolist())
        starts[rows] += SECTOR_BYTES
        rows = rows[starts[rows] < ends[rows]]
    return sorted(suspects)


def find_properties(records: ParsedHeaders, names: Sequence[bytes]) -> list[tuple[Array, Array]]:
    """For each name, (starts, sizes) int64 (n,) of its value in `records.log`; size 0 when absent or empty. The last of
    equal names counts."""
    return [(starts, sizes) for starts, sizes in find_values(records.log, *records.properties, names)]


def property_texts(records: ParsedHeaders, names: Sequence[bytes]) -> list[list[str]]:
    """For each name, its value in each record, "" when absent or empty. The last of equal names counts."""
    return [_texts(records.log, starts, sizes) for starts, sizes in find_properties(records, names)]


def _texts(data: Array, starts: Array, sizes: Array) -> list[str]:
    """The ranges data[start:start + size], which must not contain byte 2, as text."""
    _, joined = gather(data, starts, sizes, lead=2)
    return str(joined.data, "utf-8", "replace").split("\x02")[1:]


def topics_of(records: ParsedHeaders) -> tuple[list[str], Array]:
    """The distinct topics of `records`, and the index of each record's topic among them: int64 (n,)."""
    numbered = SliceColumn(records.log, *records.topics).numbered()
    names = [numbered.texts[number].decode(errors="replace") for number in range(len(numbered.texts))]
    return names, numbered.codes.astype(np.int64)


def read_bodies(records: ParsedHeaders, body_limit_bytes: int) -> tuple[Array, SliceColumn]:
    """Mask of the good records (bool (n,): `ok`, with a right CRC, and decompressible), and their decompressed bodies;
    the bodies of others are empty. Without compressed bodies nothing is copied."""
    starts, sizes = records.bodies
    good = records.headers["ok"] & whole_bodies(records.log, starts, sizes, records.parts["body_crc"])
    stored = SliceColumn(records.log, starts, _of_good(good, sizes))
    is_compressed = records.headers["sys_flag"] & COMPRESSED_FLAG != 0
    if not is_compressed.any():
        return good, stored
    bodies = [stored[row] for row in range(len(stored))]
    for row in np.flatnonzero(good & is_compressed).tolist():
        body = try_decompress(bodies[row], int(records.headers["sys_flag"][row]), body_limit_bytes)
        good[row] = body is not None
        bodies[row] = bytes(body or b"")
    joined = ByteColumn.of(bodies)
    return good, SliceColumn(joined.data, joined.offsets[:-1], np.diff(joined.offsets))


def _of_good(good: Array, sizes: Array) -> Array:
    """`sizes`, with 0 for rows that are not `good`."""
    return sizes if good.all() else np.where(good, sizes, 0)


def columns_of(records: ParsedHeaders, good: Array, bodies: SliceColumn) -> Columns:
    """Columns of `records` with `good` and `bodies` from `read_bodies`. Changes and keeps `records.headers`."""
    headers = records.headers
    headers["ok"], headers["body_size"] = good, bodies.sizes
    keys, tags = (
        ByteColumn(*gather(records.log, starts, _of_good(good, sizes)))
        for starts, sizes in find_properties(records, [KEYS, TAGS])
    )
    return Columns(headers, bodies.packed(), keys, tags)

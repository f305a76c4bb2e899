"""Columns: many records of a mapped file of the log at once, as numpy arrays, with no object for a message
(docs/format.md, 2).

`locate` reads the fixed fields of records at given positions and where their parts are, `read_sizes` no more than how
long they are; `find_properties` finds named properties of all of them in one pass; `read_bodies` tells bodies that are
whole. A `Columns` is a copy that stands alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from engine.bytecolumns import ByteColumn, SliceColumn
from engine.compression import COMPRESSED_FLAG, try_decompress
from engine.crcgroup import proved_whole
from engine.properties import KEYS, TAGS
from engine.propertyvalues import find_values
from engine.record import HEADERS, MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_BYTES, SECTOR_BYTES, has_lost_sector
from engine.slices import are_equal, items_at, pack_slices, rows_by_size

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
    align=True,  # numpy takes several times as long for a field at odd places
)


def _layout(born_host_bytes: int, store_host_bytes: int) -> "np.dtype[Any]":
    return np.dtype(
        [
            ("store_size", ">i4"),
            ("magic", ">i4"),
            ("body_crc", ">i4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("physical_offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_time_ms", ">i8"),
            ("born_host", f"V{born_host_bytes}"),
            ("store_time_ms", ">i8"),
            ("store_host", f"V{store_host_bytes}"),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("stored_body_size", ">i4"),
        ]
    )


# By (sys_flag >> 4) & 3, as record.HEADERS.
LAYOUTS = tuple(_layout(born, store) for store in (8, 20) for born in (8, 20))
assert [layout.itemsize for layout in LAYOUTS] == [header.size for header in HEADERS]

_FIXED_NAMES = (
    "store_size",
    "magic",
    "body_crc",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "store_time_ms",
    "stored_body_size",
)
_FIXED = np.dtype([(name, LAYOUTS[0][name].newbyteorder("=")) for name in _FIXED_NAMES], align=True)


def _only(layout: "np.dtype[Any]", names: list[str]) -> "np.dtype[Any]":
    """Those fields of a layout where they stand, and nothing behind the last."""
    fields: Mapping[str, Any] = layout.fields or {}
    kinds, offsets = zip(*(fields[name][:2] for name in names), strict=True)
    return np.dtype({"names": names, "formats": kinds, "offsets": offsets})


_SIZED = _only(LAYOUTS[0], ["store_size", "magic", "sys_flag"])  # at the same place in each
_BODY_SIZE_BYTES = 4  # what the fixed fields end with
_HEADER_BYTES = np.array([layout.itemsize for layout in LAYOUTS])

VIEWS_AT_ONCE = 512
"""Views of bodies that are alive together: fewer than make the garbage collector start."""
_LEAST_GROUP = 64
_LARGEST_GROUPED_BYTES = 2_048


@dataclass(frozen=True, slots=True)
class LocatedRecords:
    """Records at `positions` of `log` (uint8); all arrays have shape (n,) and are int64 unless said.

    `headers` is HEADER; its `ok` says that magic, place and sizes hold (no CRC). Where it is false, starts and sizes
    are 0 and the rest means nothing. `body_sizes` are as stored. Starts are positions in `log`.
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

    def take(self, rows: Array | slice) -> "LocatedRecords":
        """Only the records at `rows` (a slice, indices or a mask)."""
        return LocatedRecords(self.log, *(getattr(self, name)[rows] for name in self.__slots__[1:]))


@dataclass(frozen=True, slots=True)
class Columns:
    """Messages as columns, copied out of the log. `headers` is HEADER (n,); a row that is not `ok` is empty in the
    others.

    `bodies` are decompressed, and `body_size` of the headers is theirs; `keys` is KEYS as stored (joined by spaces),
    `tags` TAGS; empty when absent.
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
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([np.zeros(0, HEADER), *(part.headers for part in parts)]),
            ByteColumn.concatenate([part.bodies for part in parts]),
            ByteColumn.concatenate([part.keys for part in parts]),
            ByteColumn.concatenate([part.tags for part in parts]),
        )


def strays(records: LocatedRecords, topic: str, queue_id: int, first: int) -> Array:
    """Which `ok` records (bool (n,)) say that they stand elsewhere than at queue offsets `first`, `first` + 1 … of that
    queue."""
    headers, name = records.headers, topic.encode()
    found = headers["queue_offset"] != np.arange(first, first + len(records))
    found |= records.queue_ids != queue_id
    same_size = headers["ok"] & (records.topic_sizes == len(name))
    found |= ~same_size
    if name and same_size.any():
        starts = _where(same_size, records.topic_starts, 0)
        found |= items_at(records.log, starts, len(name)).view(f"S{len(name)}") != name
    return np.asarray(found & headers["ok"])


def _where(condition: Array, values: Array, otherwise: int) -> Array:
    """`np.where`, which costs nothing when the condition always holds."""
    return values if condition.all() else np.where(condition, values, otherwise)


def locate(log: Array, positions: Array, physical_offsets: Array) -> LocatedRecords:
    """The records at `positions` (int64; what is no record is not `ok`) of `log` (uint8), which must be at
    `physical_offsets`."""
    if len(log) < MIN_RECORD_BYTES:
        log = np.zeros(MIN_RECORD_BYTES, np.uint8)  # no record either, and room to look
    fixed, header_bytes = _fixed_fields(log, positions)
    sizes = fixed["store_size"].astype(np.int64)
    magics = fixed["magic"]
    is_v2 = magics == MESSAGE_MAGIC_V2
    ok = (magics == MESSAGE_MAGIC) | is_v2
    ok &= fixed["physical_offset"] == physical_offsets
    ends = positions + sizes
    ok &= (sizes >= MIN_RECORD_BYTES) & (ends <= len(log))
    ends = _where(ok, ends, 0)

    body_starts = positions + header_bytes
    body_sizes = np.maximum(fixed["stored_body_size"], 0).astype(np.int64)
    topic_starts = body_starts + body_sizes + 1
    if is_v2.any():
        topic_starts += is_v2
    ok &= topic_starts + 2 <= ends
    topic_sizes = _topic_sizes(log, _where(ok, topic_starts, 2), is_v2)
    properties_starts = topic_starts + topic_sizes + 2
    ok &= (topic_sizes >= 0) & (properties_starts <= ends)
    properties_sizes = _properties_sizes(log, _where(ok, properties_starts, 2))
    ok &= properties_starts + properties_sizes == ends

    headers = np.empty(len(positions), HEADER)
    for name in ("queue_offset", "physical_offset", "store_size", "store_time_ms", "sys_flag"):
        headers[name] = fixed[name]
    headers["body_size"] = _where(fixed["sys_flag"] & COMPRESSED_FLAG == 0, body_sizes, -1)
    headers["ok"] = ok
    parts: tuple[Array, ...] = (body_starts, body_sizes, topic_starts, topic_sizes, properties_starts, properties_sizes)
    parts = tuple(_where(ok, part, 0) for part in parts)
    return LocatedRecords(log, positions, headers, fixed["queue_id"], fixed["body_crc"], *parts)


def _fixed_fields(log: Array, positions: Array) -> tuple[Array, Array]:
    """What is needed of the fixed fields (_FIXED; zeros where `log` has no room for them), and the bytes that all of
    them take."""
    fixed = np.zeros(len(positions), _FIXED)
    header_bytes = np.full(len(positions), LAYOUTS[0].itemsize, np.int64)
    is_inside = (positions >= 0) & (positions <= len(log) - LAYOUTS[0].itemsize)
    rows: Array | slice = slice(None) if is_inside.all() else np.flatnonzero(is_inside)
    _read_layout(log, positions, LAYOUTS[0], rows, fixed)
    families = fixed["sys_flag"] >> 4 & 3
    for family in (1, 2, 3) if families.any() else ():
        layout = LAYOUTS[family]
        rows = np.flatnonzero((families == family) & (positions <= len(log) - layout.itemsize))
        _read_layout(log, positions, layout, rows, fixed)
        header_bytes[rows] = layout.itemsize
    return fixed, header_bytes


def read_sizes(log: Array, positions: Array) -> tuple[Array, Array]:
    """Store sizes and body sizes (int64 (n,)) of records at `positions` of `log` (uint8): both 0 where no record is, -1
    for a body that is compressed. By their fixed fields alone: what `locate` finds is told, and maybe more."""
    store_sizes, body_sizes = np.zeros((2, len(positions)), np.int64)
    inside = np.flatnonzero((positions >= 0) & (positions <= len(log) - MIN_RECORD_BYTES))
    starts = positions[inside]
    fixed = items_at(log, starts, _SIZED.itemsize).view(_SIZED)
    flags, sizes, magics = fixed["sys_flag"].astype(np.int32), fixed["store_size"].astype(np.int64), fixed["magic"]
    ends = starts + _HEADER_BYTES[flags >> 4 & 3]
    found = (magics == MESSAGE_MAGIC) | (magics == MESSAGE_MAGIC_V2)
    found &= (sizes >= MIN_RECORD_BYTES) & (starts + sizes <= len(log)) & (ends <= len(log))
    body_size_ends = _where(found, ends, _BODY_SIZE_BYTES)
    bodies = items_at(log, body_size_ends - _BODY_SIZE_BYTES, _BODY_SIZE_BYTES).view(">i4").astype(np.int64)
    np.maximum(bodies, 0, out=bodies)  # a negative size is read as none
    found &= ends + bodies <= starts + sizes
    store_sizes[inside] = _where(found, sizes, 0)
    body_sizes[inside] = _where(found, _where(flags & COMPRESSED_FLAG == 0, bodies, -1), 0)
    return store_sizes, body_sizes


def _read_layout(log: Array, positions: Array, layout: "np.dtype[Any]", rows: Array | slice, fixed: Array) -> None:
    raw = items_at(log, positions[rows], layout.itemsize).view(layout)
    for name in _FIXED_NAMES:
        fixed[name][rows] = raw[name]


def _topic_sizes(log: Array, topic_starts: Array, is_v2: Array) -> Array:
    sizes = log[topic_starts - 1].view(np.int8).astype(np.int64)
    if is_v2.any():
        high = log[topic_starts - 2].view(np.int8).astype(np.int64)
        sizes = np.where(is_v2, high << 8 | sizes & 0xFF, sizes)
    return np.asarray(sizes)


def _properties_sizes(log: Array, properties_starts: Array) -> Array:
    sizes = items_at(log, properties_starts - 2, 2).view(">i2").astype(np.int64)
    return np.maximum(sizes, 0, out=sizes)  # a negative size is read as none


def damaged_rows(records: LocatedRecords) -> Array:
    """Which `ok` records have a body that its CRC denies, or a lost sector: bool (n,)."""
    damaged = ~have_whole_bodies(records.log, records.body_starts, records.body_sizes, records.body_crcs)
    damaged[lost_sector_rows(records)] = True
    return np.asarray(damaged & records.headers["ok"])


def have_whole_bodies(log: Array, starts: Array, sizes: Array, crcs: Array) -> Array:
    """Which of the bodies log[start:start + size] are empty, or what their CRCs (int32 (n,)) say: bool (n,). One crc32
    call for many of about one size, or one a body."""
    whole = proved_whole(log, starts, sizes, crcs.view(np.uint32))
    whole[sizes == 0] = True
    if not whole.all():
        rows = np.flatnonzero(~whole)
        whole[rows] = _body_crcs(log, starts[rows], sizes[rows]) & 0x7FFFFFFF == crcs.view(np.uint32)[rows]
    return whole


def _body_crcs(log: Array, starts: Array, sizes: Array) -> Array:
    """CRC-32 of each of the bodies: uint32 (n,).

    Those of one size, when there are many, are copied out in groups that stay in the processor's cache: half the cost
    of a view of each.
    """
    crcs = np.empty(len(starts), np.uint32)
    is_single = np.ones(len(starts), np.bool_)
    for size, rows in rows_by_size(np.where(sizes <= _LARGEST_GROUPED_BYTES, sizes, 0)):
        if len(rows) >= _LEAST_GROUP:
            for first in range(0, len(rows), VIEWS_AT_ONCE):
                part = rows[first : first + VIEWS_AT_ONCE]
                crcs[part] = np.fromiter(map(crc32, items_at(log, starts[part], size).tolist()), np.uint32, len(part))
            is_single[rows] = False
    view, rows = log.data, np.flatnonzero(is_single)
    bounds = zip(starts[rows].tolist(), (starts[rows] + sizes[rows]).tolist(), strict=True)
    crcs[rows] = [crc32(view[start:end]) for start, end in bounds]
    return crcs


def lost_sector_rows(records: LocatedRecords) -> list[int]:
    """The `ok` records with a lost sector: see `has_lost_sector`."""
    view, lost = records.log.data, []
    for row in _rows_with_zero_at_sector_start(records):
        start, size = int(records.positions[row]), int(records.headers["store_size"][row])
        topic, properties = int(records.topic_starts[row]) - start, int(records.properties_starts[row]) - start
        physical_offset = int(records.headers["physical_offset"][row])
        if has_lost_sector(view[start : start + size], physical_offset, topic, properties):
            lost.append(row)
    return lost


def _rows_with_zero_at_sector_start(records: LocatedRecords) -> list[int]:
    """The few records behind whose body a sector begins with a zero: only they can have a lost one."""
    headers = records.headers
    ends = records.positions + headers["store_size"]
    topic_offsets = headers["physical_offset"] - records.positions + records.topic_starts
    starts = records.topic_starts + (-topic_offsets & SECTOR_BYTES - 1)
    rows = np.flatnonzero(headers["ok"] & (starts < ends))
    suspects: list[int] = []
    while len(rows):
        suspects += rows[records.log[starts[rows]] == 0].tolist()
        starts[rows] += SECTOR_BYTES
        rows = rows[starts[rows] < ends[rows]]
    return suspects


def find_properties(records: LocatedRecords, names: Sequence[bytes]) -> list[tuple[Array, Array]]:
    """For each name, (starts, sizes) int64 (n,) of its value in `records.log`: size 0 when absent or empty. The last of
    equals wins."""
    return find_values(records.log, records.properties_starts, records.properties_sizes, names)


def property_texts(records: LocatedRecords, names: Sequence[bytes]) -> list[list[str]]:
    """For each name, its value in each record, "" when absent or empty. The last of equals wins."""
    return [_texts(records.log, starts, sizes) for starts, sizes in find_properties(records, names)]


def _texts(data: Array, starts: Array, sizes: Array) -> list[str]:
    """The ranges data[start:start + size], which hold no byte 2, as text."""
    if are_equal(data, starts, sizes):
        return [data[starts[0] : starts[0] + sizes[0]].tobytes().decode(errors="replace")] * len(starts)
    _, joined = pack_slices(data, starts, sizes, lead=2)
    return str(joined.data, "utf-8", "replace").split("\x02")[1:]


def topics_of(records: LocatedRecords) -> tuple[list[str], Array]:
    """The distinct topics of `records` and, for each record, which of them is its: int64 (n,)."""
    if are_equal(records.log, records.topic_starts, records.topic_sizes):
        start, size = int(records.topic_starts[0]), int(records.topic_sizes[0])
        return [records.log[start : start + size].tobytes().decode(errors="replace")], np.zeros(len(records), np.int64)
    _, packed = pack_slices(records.log, records.topic_starts, records.topic_sizes, lead=0)
    names = packed.tobytes().split(b"\0")[1:]
    if len(names) != len(records):  # a damaged topic with a zero in it
        ends = records.topic_starts + records.topic_sizes
        names = [records.log[a:b].tobytes() for a, b in zip(records.topic_starts, ends, strict=True)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    rows = np.fromiter(map(numbers.__getitem__, names), np.int64, len(names))
    return [name.decode(errors="replace") for name in numbers], rows


def read_bodies(records: LocatedRecords, body_limit_bytes: int) -> tuple[Array, SliceColumn]:
    """Which records are good (bool (n,): `ok`, whole by their CRC, not impossible to decompress), and the bodies of
    those, decompressed; the others' are empty. What is not compressed is not copied, if nothing is."""
    good = records.headers["ok"] & ~damaged_rows(records)
    stored = SliceColumn(records.log, records.body_starts, np.where(good, records.body_sizes, 0))
    is_compressed = good & (records.headers["sys_flag"] & COMPRESSED_FLAG != 0)
    if not is_compressed.any():
        return good, stored
    bodies = [stored[row] for row in range(len(stored))]
    for row in np.flatnonzero(is_compressed).tolist():
        body = try_decompress(bodies[row], int(records.headers["sys_flag"][row]), body_limit_bytes)
        good[row] = body is not None
        bodies[row] = body or b""
    joined = ByteColumn.of(bodies)
    return good, SliceColumn(joined.data, joined.offsets[:-1], np.diff(joined.offsets))


def read_columns(records: LocatedRecords, body_limit_bytes: int) -> Columns:
    """The messages of `records`; one that is damaged, or cannot be decompressed, is not `ok`."""
    good, bodies = read_bodies(records, body_limit_bytes)
    headers = records.headers.copy()
    headers["ok"], headers["body_size"] = good, bodies.sizes
    keys, tags = (
        ByteColumn(*pack_slices(records.log, starts, np.where(good, sizes, 0)))
        for starts, sizes in find_properties(records, [KEYS, TAGS])
    )
    return Columns(headers, bodies.packed(), keys, tags)

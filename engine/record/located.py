"""Located records: the fixed fields of many records of a mapped file of the log, and where their parts are, as numpy
arrays (docs/format.md, 2).

`locate` reads them at given positions and checks them as `engine.record.record` checks one, `read_sizes` reads no more
than how long they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from engine.record.byte_columns import items_at
from engine.record.compression import COMPRESSED_FLAG
from engine.record.header import (
    INNER_BATCH,
    IPV6_FLAGS,
    LAYOUTS,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_BYTES,
    NEEDS_UNWRAPPING,
    are_magics,
)
from engine.record.log_framing import PLAIN, Framing
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


def _aligned(names: Sequence[str]) -> "np.dtype[Any]":
    return np.dtype([(name, LAYOUTS[0][name].newbyteorder("=")) for name in names], align=True)


_FIXED = _aligned(
    [
        "store_size",
        "magic",
        "body_crc",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "sys_flag",
        "store_time_ms",
        "stored_body_size",
    ]
)
_SIZED = _aligned(["store_size", "magic", "sys_flag", "stored_body_size"])

_PROPERTIES_SIZE = np.dtype(">i2")
_BATCH_FLAGS = INNER_BATCH | NEEDS_UNWRAPPING


@dataclass(frozen=True, slots=True)
class LocatedRecords:
    """Records at `positions` of `log` (uint8); all arrays have shape (n,) and are int64 unless said.

    `headers` is HEADER; its `ok` says that magic, physical offset and sizes hold (no CRC). Where it is false, starts
    and sizes are 0 and the rest means nothing. `body_sizes` are as stored. Starts are positions in `log`. `topic` is
    that of all `ok` records, `fixed` are the fixed fields of all as stored (LAYOUTS[0]): None where they have several,
    and maybe where some are not `ok`.
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
    topic: bytes | None
    fixed: Array | None

    def __len__(self) -> int:
        return len(self.positions)

    def properties_of(self, row: int) -> dict[str, str]:
        """The properties of one record, decoded."""
        start = int(self.properties_starts[row])
        return decode_properties(self.log[start : start + int(self.properties_sizes[row])].tobytes())

    def take(self, rows: Array | slice) -> "LocatedRecords":
        """Only the records at `rows` (a slice, indices or a mask)."""
        arrays = {name: getattr(self, name)[rows] for name in self.__slots__[1:-2]}
        return replace(self, **arrays, fixed=None if self.fixed is None else self.fixed[rows])


def strays(records: LocatedRecords, topic: str, queue_id: int, first: int) -> Array:
    """Which `ok` records (bool (n,)) name another position than queue offsets `first`, `first` + 1 … of that
    queue."""
    headers, name = records.headers, topic.encode()
    found = headers["queue_offset"] != np.arange(first, first + len(records))
    found |= records.queue_ids != queue_id
    found |= _of_other_topics(records, name) if records.topic is None else records.topic != name
    return np.asarray(found & headers["ok"])


def _of_other_topics(records: LocatedRecords, name: bytes) -> Array:
    same_size = records.headers["ok"] & (records.topic_sizes == len(name))
    if not name or not same_size.any():
        return np.asarray(~same_size)
    starts = _where(same_size, records.topic_starts, 0)
    return np.asarray(~same_size | (items_at(records.log, starts, len(name)).view(f"S{len(name)}") != name))


def _where(condition: Array, values: Array, otherwise: int) -> Array:
    """`np.where`, which costs nothing when the condition always holds."""
    return values if condition.all() else np.where(condition, values, otherwise)


def locate(log: Array, positions: Array, physical_offsets: Array, framing: Framing = PLAIN) -> LocatedRecords:
    """The records at `positions` (int64; what is no record is not `ok`) of `log` (uint8), which must be at
    `physical_offsets`, and framed so."""
    if len(log) < MIN_RECORD_BYTES:
        log = np.zeros(MIN_RECORD_BYTES, np.uint8)  # no record either, and room to look
    fixed, header_bytes = _fixed_fields(log, positions, _FIXED)
    sizes = fixed["store_size"].astype(np.int64)
    magics = fixed["magic"].astype(np.int32)
    is_v2 = magics == MESSAGE_MAGIC_V2
    ok = (magics == MESSAGE_MAGIC) | is_v2
    ok &= fixed["physical_offset"] == physical_offsets
    if framing.header_bytes:
        ok &= framing.precede(log, positions, sizes, physical_offsets)
    ends = positions + sizes
    ok &= (sizes >= MIN_RECORD_BYTES) & (ends <= len(log))
    ends = _where(ok, ends, 0)

    body_starts = positions + header_bytes
    body_sizes = np.maximum(fixed["stored_body_size"], 0).astype(np.int64)
    topic_starts = body_starts + body_sizes + 1
    if is_v2.any():
        topic_starts += is_v2
    ok &= topic_starts + 2 <= ends
    alike = _one_topic(log, topic_starts) if ok.all() and not is_v2.any() else None
    topic_sizes = alike.topic_sizes if alike else _topic_sizes(log, _where(ok, topic_starts, 2), is_v2)
    properties_starts = topic_starts + topic_sizes + 2
    ok &= (topic_sizes >= 0) & (properties_starts <= ends)
    properties_sizes = alike.properties_sizes if alike else _properties_sizes(log, _where(ok, properties_starts, 2))
    ok &= properties_starts + properties_sizes == ends

    headers = np.empty(len(positions), HEADER)
    for name in ("queue_offset", "physical_offset", "store_size", "store_time_ms", "sys_flag"):
        headers[name] = fixed[name]
    headers["body_size"] = _where(fixed["sys_flag"] & COMPRESSED_FLAG == 0, body_sizes, -1)
    headers["ok"] = ok

    def found(part: Array) -> Array:
        return _where(ok, part, 0)

    return LocatedRecords(
        log, positions, headers, fixed["queue_id"].astype(np.int32), fixed["body_crc"].astype(np.int32),
        found(body_starts), found(body_sizes), found(topic_starts), found(topic_sizes),
        found(properties_starts), found(properties_sizes),
        alike.topic if alike else None, fixed if fixed.dtype == LAYOUTS[0] else None,
    )  # fmt: skip


def _fixed_fields(log: Array, positions: Array, wanted: "np.dtype[Any]") -> tuple[Array, Array | int]:
    """The fixed fields, and the bytes that all of them take: as stored where they have one layout, as they mostly do;
    else those that `wanted` names (zeros where `log` has no room for them)."""
    rows = np.flatnonzero((positions >= 0) & (positions <= len(log) - LAYOUTS[0].itemsize))
    stored = items_at(log, positions if len(rows) == len(positions) else positions[rows], LAYOUTS[0].itemsize)
    stored = stored.view(LAYOUTS[0])
    if len(rows) == len(positions) and not (stored["sys_flag"] & IPV6_FLAGS).any():
        return stored, LAYOUTS[0].itemsize
    fixed, header_bytes = np.zeros(len(positions), wanted), np.full(len(positions), LAYOUTS[0].itemsize, np.int64)
    _put_fields(fixed, rows, stored)
    families = fixed["sys_flag"] >> 4 & 3
    for family in (1, 2, 3):
        layout, is_member = LAYOUTS[family], families == family
        rows = np.flatnonzero(is_member & (positions <= len(log) - layout.itemsize))
        _put_fields(fixed, rows, items_at(log, positions[rows], layout.itemsize).view(layout))
        header_bytes[is_member] = layout.itemsize
    return fixed, header_bytes


def _put_fields(fixed: Array, rows: Array, stored: Array) -> None:
    for name in fixed.dtype.names or ():
        fixed[name][rows] = stored[name]


def read_sizes(log: Array, positions: Array) -> tuple[Array, Array]:
    """Store sizes and body sizes (int64 (n,)) of records at `positions` of `log` (uint8): both 0 where no record is, -1
    for a body that is compressed. By their fixed fields alone: all that `locate` finds, and maybe more, but
    nothing of what may be a batch kept as one record."""
    fixed, header_bytes = _fixed_fields(log, positions, _SIZED)
    sizes, magics = fixed["store_size"].astype(np.int64), fixed["magic"]
    bodies = np.maximum(fixed["stored_body_size"], 0).astype(np.int64)  # a negative size is read as none
    found = are_magics(magics)
    found &= (sizes >= MIN_RECORD_BYTES) & (positions + sizes <= len(log)) & (header_bytes + bodies <= sizes)
    found &= fixed["sys_flag"] & _BATCH_FLAGS != _BATCH_FLAGS
    bodies = _where(fixed["sys_flag"] & COMPRESSED_FLAG == 0, bodies, -1)
    return _where(found, sizes, 0), _where(found, bodies, 0)


class _OneTopic(NamedTuple):
    """Records of one topic."""

    topic: bytes
    topic_sizes: Array
    properties_sizes: Array


def _one_topic(log: Array, topic_starts: Array) -> _OneTopic | None:
    """The topic of all records, if it is one, and the size of the properties of each: in one gather of both."""
    if not len(topic_starts):
        return None
    first, *samples = (topic_starts[[0, len(topic_starts) // 2, -1]] - 1).tolist()
    head = log[first : first + 1 + int(log[first])].tobytes()
    stride = len(head) + _PROPERTIES_SIZE.itemsize
    if head[0] >= 0x80 or topic_starts.max() - 1 + stride > len(log):
        return None
    if any(log[start : start + len(head)].tobytes() != head for start in samples):  # what has several costs no more
        return None
    heads = items_at(log, topic_starts - 1, stride)
    if not (np.ndarray(len(heads), f"S{len(head)}", heads, 0, (stride,)) == head).all():
        return None
    sizes = np.ndarray(len(heads), _PROPERTIES_SIZE, heads, len(head), (stride,)).astype(np.int64)
    return _OneTopic(head[1:], np.full(len(heads), len(head) - 1), np.maximum(sizes, 0, out=sizes))


def _topic_sizes(log: Array, topic_starts: Array, is_v2: Array) -> Array:
    sizes = log[topic_starts - 1].view(np.int8).astype(np.int64)
    if is_v2.any():
        high = log[topic_starts - 2].view(np.int8).astype(np.int64)
        sizes = np.where(is_v2, high << 8 | sizes & 0xFF, sizes)
    return np.asarray(sizes)


def _properties_sizes(log: Array, properties_starts: Array) -> Array:
    sizes = items_at(log, properties_starts - 2, 2).view(_PROPERTIES_SIZE).astype(np.int64)
    return np.maximum(sizes, 0, out=sizes)  # a negative size is read as none

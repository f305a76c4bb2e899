"""Blocks: a range of a queue as columns, for readers that want arrays (docs/format.md, 2).

Everything that a message has, gathered with numpy: no object for a message. Text is UTF-8, always: what is not valid in
the log has U+FFFD in its place, as in a StoredMessage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from engine.bytecolumns import ByteColumn, CodedColumn, SliceColumn
from engine.columns import LAYOUTS, LocatedRecords, locate, read_bodies, strays
from engine.consumequeue import ConsumeQueue
from engine.filequeue import FileQueue
from engine.hosts import Host
from engine.logpages import runs_by_file
from engine.properties import KEYS, TAGS, UNIQUE_KEY
from engine.propertyitems import PropertyItems, words
from engine.propertyshapes import ShapedProperties
from engine.slices import items_at
from engine.streamrows import InPlace

Array = np.ndarray[Any, Any]


_COLUMNS: dict[str, Any] = {kind.__name__: kind for kind in (ByteColumn, CodedColumn, SliceColumn)}


@dataclass(frozen=True, slots=True)
class Block:
    """Good messages of a queue range, in queue order: n rows.

    Numbers are int64 (n,). `keys` and `properties` are lists: row i has the items [x_starts[i], x_starts[i + 1])
    (int64, (n + 1,)). `properties` are all that are stored, KEYS and TAGS among them; of equal names the last. `body`
    may lie in the mapped log itself. `damaged` counts the messages that were left out.
    """

    queue_offset: Array
    physical_offset: Array
    store_size: Array
    flag: Array
    sys_flag: Array
    reconsume_times: Array
    born_time_ms: Array
    store_time_ms: Array
    body: SliceColumn
    tags: ByteColumn
    unique_key: ByteColumn
    born_host: CodedColumn
    store_host: CodedColumn
    key_starts: Array
    keys: ByteColumn
    property_starts: Array
    property_names: ByteColumn | CodedColumn
    property_values: ByteColumn
    damaged: int

    def __len__(self) -> int:
        return len(self.queue_offset)


class BlockReader:
    """Reads blocks. Thread safety: stateless; any thread."""

    def __init__(self, log: FileQueue, body_limit_bytes: int, in_place: InPlace) -> None:
        """`in_place` judges records that name another place than the entry that leads to them."""
        self._log = log
        self._body_limit_bytes = body_limit_bytes
        self._in_place = in_place

    def read(self, queue: ConsumeQueue, first: int, count: int) -> Block:
        """The messages at queue offsets [first, first + count), as far as they are there."""
        parts = []
        for pages, base, places in runs_by_file(self._log, queue.entries(first, count)):
            parts.append(self._part(queue, first, locate(pages, places - base, places)))
            first += len(places)
        return concatenate(parts)

    def _part(self, queue: ConsumeQueue, first: int, records: LocatedRecords) -> Block:
        offsets = np.arange(first, first + len(records))
        for row in np.flatnonzero(strays(records, queue.topic, queue.queue_id, first)).tolist():
            place = int(records.headers["physical_offset"][row])
            records.headers["ok"][row] = self._in_place(queue, first + row, place)
        good, bodies = read_bodies(records, self._body_limit_bytes)
        if good.all():
            return _block(records, offsets, bodies, 0)
        return _block(records.take(good), offsets[good], bodies.take(good), int(np.count_nonzero(~good)))


def _block(records: LocatedRecords, queue_offsets: Array, bodies: SliceColumn, damaged: int) -> Block:
    headers = records.headers
    properties = ShapedProperties.of(records) or PropertyItems.of(records)
    key_starts, keys = words(properties.value(KEYS))
    return Block(
        queue_offset=queue_offsets,
        physical_offset=headers["physical_offset"].astype(np.int64),
        store_size=headers["store_size"].astype(np.int64),
        sys_flag=headers["sys_flag"].astype(np.int64),
        store_time_ms=headers["store_time_ms"].astype(np.int64),
        body=bodies,
        tags=properties.value(TAGS),
        unique_key=properties.value(UNIQUE_KEY),
        key_starts=key_starts,
        keys=keys,
        property_starts=properties.row_starts,
        property_names=properties.names(),
        property_values=properties.values(),
        damaged=damaged,
        **_fixed_fields(records),
    )


def _fixed_fields(records: LocatedRecords) -> dict[str, Any]:
    """Those columns of a block that `records` have no array of."""
    count, families = len(records), records.headers["sys_flag"] >> 4 & 3
    fields = {name: np.empty(count, np.int64) for name in ("flag", "born_time_ms", "reconsume_times")}
    hosts = {name: _Hosts(count) for name in ("born_host", "store_host")}
    present = np.flatnonzero(np.bincount(families)).tolist()
    for family in present:
        rows = slice(None) if len(present) == 1 else np.flatnonzero(families == family)
        layout = LAYOUTS[family]
        raw = items_at(records.log, records.positions[rows], layout.itemsize).view(layout)
        for name, field in fields.items():
            field[rows] = raw[name]
        for name, column in hosts.items():
            column.put(rows, raw[name])
    return fields | {name: column.coded() for name, column in hosts.items()}


class _Hosts:
    """Hosts as text: there are few different ones, so each is made once."""

    def __init__(self, count: int) -> None:
        self._numbers: dict[bytes, int] = {}
        self._codes = np.empty(count, np.int32)

    def put(self, rows: Array | slice, raw: Array) -> None:
        """Set the hosts of `rows` from what their records hold (void (n,))."""
        distinct, found = _distinct(raw.view("<u8") if raw.itemsize == 8 else np.ascontiguousarray(raw))
        texts = [str(Host.decode(host.tobytes())).encode() for host in distinct]
        numbers = [self._numbers.setdefault(text, len(self._numbers)) for text in texts]
        self._codes[rows] = np.array(numbers, np.int32)[found]

    def coded(self) -> CodedColumn:
        """All of them."""
        return CodedColumn(ByteColumn.of(list(self._numbers)), self._codes)


def _distinct(items: Array) -> tuple[Array, Array | int]:
    """The different ones of `items` and, for each item, which of them it is."""
    if len(items) and (items == items[0]).all():  # as it mostly is
        return items[:1], 0
    return np.unique(items, return_inverse=True)


def concatenate(parts: Sequence[Block]) -> Block:
    """One after the other; of no parts, an empty one."""
    if len(parts) == 1:
        return parts[0]
    joined: dict[str, Any] = {}
    for field in fields(Block):
        values = [getattr(part, field.name) for part in parts]
        if field.name == "damaged":
            joined[field.name] = sum(values)
        elif isinstance(field.type, str) and field.type in _COLUMNS:
            joined[field.name] = _COLUMNS[field.type].concatenate(values)
        elif field.name == "property_names":
            joined[field.name] = _joined_names(values)
        elif field.name in ("key_starts", "property_starts"):
            joined[field.name] = np.cumsum(np.concatenate([np.zeros(1, np.int64), *map(np.diff, values)]))
        else:
            joined[field.name] = np.concatenate([np.zeros(0, np.int64), *values])
    return Block(**joined)


def _joined_names(parts: Sequence[ByteColumn | CodedColumn]) -> ByteColumn | CodedColumn:
    coded = [part for part in parts if isinstance(part, CodedColumn)]
    if len(coded) == len(parts):
        return CodedColumn.concatenate(coded)
    return ByteColumn.concatenate([part.plain() if isinstance(part, CodedColumn) else part for part in parts])

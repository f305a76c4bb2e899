"""Blocks: a range of a queue as columns, for readers that want arrays (docs/format.md, 2).

Everything that a message has, gathered with numpy: no object for a message. Text is UTF-8, always: what is not valid in
the log has U+FFFD in its place, as in a StoredMessage. What takes long to gather waits until somebody wants it: values
of properties, and bodies, which stay in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import DamagedRecordError
from engine.log.commit_log import CommitLog
from engine.log.consume_queue import ConsumeQueue
from engine.log.queue_records import QueueRecords, Run
from engine.record.byte_columns import ByteColumn, CodedColumn, SliceColumn, items_at
from engine.record.columns import read_bodies
from engine.record.header import LAYOUTS
from engine.record.kernel.scan import whole_bodies
from engine.record.located import LocatedRecords
from engine.record.message import Host
from engine.record.properties import KEYS, TAGS
from engine.record.property_columns import PropertyItems, ShapedProperties, words

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Bodies:
    """Where the bodies of n messages are: at `starts` (int64 (n,)) of the file of the log at physical offset
    `log_file`, with the CRCs in `crcs` (int32 (n,)); or, when any is compressed or mended, of `copied` (uint8)."""

    log_file: int
    starts: Array
    sizes: Array
    crcs: Array
    copied: Array | None

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        kept = 0 if self.copied is None else self.copied.nbytes
        return self.starts.nbytes + self.sizes.nbytes + self.crcs.nbytes + kept


@dataclass(frozen=True, slots=True)
class Block:
    """Good messages of a queue range in one file of the log, in queue order: n rows, copied out of it but for bodies.

    Numbers are int64 (n,). `properties` are all that are stored, KEYS and TAGS among them; of equal names the last.
    `damaged` counts the messages that were left out.
    """

    queue_offset: Array
    physical_offset: Array
    flag: Array
    sys_flag: Array
    reconsume_times: Array
    born_time_ms: Array
    store_time_ms: Array
    born_host: CodedColumn
    store_host: CodedColumn
    properties: ShapedProperties | PropertyItems
    bodies: Bodies
    damaged: int

    def __len__(self) -> int:
        return len(self.queue_offset)

    def tags(self) -> ByteColumn | CodedColumn:
        """TAGS, empty where absent."""
        return self.properties.few_values(TAGS)

    def keys(self) -> tuple[Array, ByteColumn]:
        """(starts, keys): row i has the keys [starts[i], starts[i + 1]) (int64, (n + 1,))."""
        return words(self.properties.value(KEYS))


class BlockReader:
    """Reads blocks. Thread safety: stateless; any thread."""

    def __init__(self, log: CommitLog, body_limit_bytes: int, records: QueueRecords) -> None:
        self._log = log
        self._body_limit_bytes = body_limit_bytes
        self._records = records

    def read(self, queue: ConsumeQueue, first: int, count: int) -> list[Block]:
        """The messages at queue offsets [first, first + count), as far as they are there: a block for each file of the
        log that they lead into, one after the other."""
        return [self._block(run) for run in self._records.runs(queue, first, queue.entries(first, count))]

    def bodies(self, bodies: Bodies) -> SliceColumn:
        """Those bodies, where they are. Errors as `CommitLog.view`; none where there are no bodies.

        They were whole when the block was read, and are checked again: meanwhile their pages may have been read again
        from a disk that lost them.
        """
        if bodies.copied is not None or not len(bodies.starts):
            data = np.empty(0, np.uint8) if bodies.copied is None else bodies.copied
            return SliceColumn(data, bodies.starts, bodies.sizes)
        data = np.frombuffer(self._log.rest(bodies.log_file), np.uint8)
        if len(data) < (bodies.starts + bodies.sizes).max():
            raise DamagedRecordError(bodies.log_file, "its file has become shorter")
        whole = whole_bodies(data, bodies.starts, bodies.sizes, bodies.crcs)
        if not whole.all():
            raise DamagedRecordError(bodies.log_file + int(bodies.starts[~whole][0]), "the body has changed")
        return SliceColumn(data, bodies.starts, bodies.sizes)

    def _block(self, run: Run) -> Block:
        records = run.records
        offsets = np.arange(run.first, run.first + len(records))
        good, bodies = read_bodies(records, self._body_limit_bytes)
        self._records.note_unread(run, good)
        if not good.all():
            records, offsets, bodies = records.take(good), offsets[good], bodies.take(good)
        headers = records.headers
        is_stored = bodies.data is records.log and run.log_file is not None
        return Block(
            queue_offset=offsets,
            physical_offset=headers["physical_offset"].astype(np.int64),
            sys_flag=headers["sys_flag"].astype(np.int64),
            store_time_ms=headers["store_time_ms"].astype(np.int64),
            properties=ShapedProperties.of(records) or PropertyItems.of(records),
            bodies=Bodies(
                run.log_file or 0,
                bodies.starts,
                bodies.sizes,
                records.places["body_crc"].copy(),
                None if is_stored else bodies.data,
            ),
            damaged=int(np.count_nonzero(~good)),
            **_fixed_fields(records),
        )


def _fixed_fields(records: LocatedRecords) -> dict[str, Any]:
    """Those columns of a block that `records` have no array of."""
    count = len(records)
    fields = {name: np.empty(count, np.int64) for name in ("flag", "born_time_ms", "reconsume_times")}
    hosts = {name: _Hosts(count) for name in ("born_host", "store_host")}
    families = records.headers["sys_flag"] >> 4 & 3
    for family in np.flatnonzero(np.bincount(families)).tolist():
        rows, layout = np.flatnonzero(families == family), LAYOUTS[family]
        stored = items_at(records.log, records.positions[rows], layout.itemsize).view(layout)
        for name, field in fields.items():
            field[rows] = stored[name]
        for name, column in hosts.items():
            column.put(rows, stored[name])
    return fields | {name: column.coded() for name, column in hosts.items()}


class _Hosts:
    """Hosts as text: there are few different ones, so each is made once."""

    def __init__(self, count: int) -> None:
        self._numbers: dict[bytes, int] = {}
        self._codes = np.empty(count, np.int32)

    def put(self, rows: Array, raw: Array) -> None:
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

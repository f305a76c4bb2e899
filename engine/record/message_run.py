"""Message runs: messages of a queue in a row, made from columns: for readers that iterate over a queue
(docs/format.md, 2).

All that arrays can check is checked before the first message is made. What is left for each message is a view of its
body, that body's CRC, and the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress, count, repeat
from typing import Any

import numpy as np
from msgspec import Struct

from engine.record.columns import VIEWS_AT_ONCE, property_texts
from engine.record.compression import COMPRESSED_FLAG
from engine.record.header import HeaderFields
from engine.record.inner_batch import may_be_wrapper
from engine.record.kernel.scan import whole_bodies
from engine.record.located import LocatedRecords, strays
from engine.record.message import DecodedMessage, StoredMessage
from engine.record.properties import KEYS, TAGS, split_keys
from engine.record.record import decode_record

Array = np.ndarray[Any, Any]

GROUP_BYTES = 1 << 20
"""Bodies whose CRCs are computed together, about."""


class Run(Struct, frozen=True, gc=False, eq=False):
    """What the messages of a run share."""

    topic: str
    queue_id: int
    log: memoryview
    log_offset: int


class RunMessage(StoredMessage, Struct, frozen=True, gc=False, eq=False):
    """A message whose body, keys, tags and offsets are known; the rest is decoded each time it is asked for.

    Its body is not compressed, and it is in its own queue, at its own offset.
    """

    body: memoryview
    tags: str
    _keys: str
    queue_offset: int
    physical_offset: int
    _run: Run

    @property
    def topic(self) -> str:
        return self._run.topic

    @property
    def queue_id(self) -> int:
        return self._run.queue_id

    @property
    def keys(self) -> list[str]:
        keys = self._keys.split(" ")  # as split_keys does, whose call would cost as much again
        return keys if "" not in keys else split_keys(self._keys)

    @property
    def body_size(self) -> int:
        return len(self.body)

    @property
    def record(self) -> memoryview:
        return self._decoded.record

    @property
    def _decoded(self) -> DecodedMessage:
        record = self._run.log[self.physical_offset - self._run.log_offset :]
        return decode_record(record, self.physical_offset, verify=False)

    @property
    def _fields(self) -> HeaderFields:
        return self._decoded._fields

    @property
    def _topic_position(self) -> int:
        return self._decoded._topic_position

    @property
    def _properties_position(self) -> int:
        return self._decoded._properties_position


def message_run(
    records: LocatedRecords, log_offset: int, topic: str, queue_id: int, first: int
) -> Iterator[tuple[Iterable[StoredMessage], Array]]:
    """The messages at queue offsets `first`, `first` + 1 …, to which entries of the queue lead, in groups: (messages,
    which rows of the group they are: bool).

    A row without a message must be read alone: its record is damaged, compressed, a batch, or names another
    position. `log_offset` is the physical offset of the first byte of `records.log`.
    """
    headers = records.headers
    is_plain = headers["ok"] & ~strays(records, topic, queue_id, first) & (headers["sys_flag"] & COMPRESSED_FLAG == 0)
    is_plain &= ~may_be_wrapper(headers["sys_flag"])
    (starts, sizes), crcs = records.bodies, records.places["body_crc"]
    keys, tags = property_texts(records, [KEYS, TAGS])
    ends = starts + sizes
    run = Run(topic, queue_id, records.log.data, log_offset)
    log, offsets = run.log, headers["physical_offset"]

    def made(rows: slice) -> tuple[Iterable[StoredMessage], Array]:
        bodies = [log[start:end] for start, end in zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)]
        is_good = is_plain[rows] & whole_bodies(records.log, starts[rows], sizes[rows], crcs[rows])
        queue_offsets, physical_offsets = count(first + rows.start), offsets[rows].tolist()
        messages = map(RunMessage, bodies, tags[rows], keys[rows], queue_offsets, physical_offsets, repeat(run))
        return messages if is_good.all() else compress(messages, is_good.tolist()), is_good

    group = max(1, min(VIEWS_AT_ONCE, GROUP_BYTES * len(records) // max(1, int(sizes.sum()))))
    return (made(slice(begin, begin + group)) for begin in range(0, len(records), group))

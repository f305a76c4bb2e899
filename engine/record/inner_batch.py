"""Inner batches: a client's batch that RocketMQ 5 kept as one record, the wrapper, in a topic with batch queues
(docs/format.md, 2).

    size i32 | 0 i32 | 0 i32 | flag i32 | body_size i32 | body | properties_size i16 | properties      item after item

The wrapper takes one queue offset for each item. Items are shown as the messages that the client sent: each has its own
flag, body and properties, and the wrapper's topic, queue, times, hosts and physical offset. A publisher writes all of
these bytes, so sizes and counts must agree before any item is shown.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from engine.errors import DamagedRecordError
from engine.record.header import CRC_MASK, HEADERS, INNER_BATCH, NEEDS_UNWRAPPING
from engine.record.kernel.crc import crc32
from engine.record.kernel.decode import StoredMessage, is_wrapper
from engine.record.multi_dispatch import INNER_BASE, INNER_COUNT, MOST_INNER
from engine.record.record import decode_record

Array = np.ndarray[Any, Any]

_ITEM = Struct(">iiiii")
_PROPERTIES_SIZE = Struct(">H")
_MARK = INNER_BATCH | NEEDS_UNWRAPPING


class InnerMessage(StoredMessage):
    """One message of a batch: `record` is encoded as if the message were stored singly."""

    __slots__ = ("body_position", "number")

    body_position: int
    number: int

    @property
    def place(self) -> int:
        return self.physical_offset + self.number

    @property
    def body_place(self) -> int:
        return self.physical_offset + self.body_position


def may_be_wrapper(sys_flags: Array) -> Array:
    """Mask of the records that may be wrappers, by their flags: bool (n,)."""
    return np.asarray(sys_flags & _MARK == _MARK)


class InnerBatch:
    """Positions of a wrapper's items. It keeps no bytes of the wrapper."""

    def __init__(self, wrapper: StoredMessage) -> None:
        """DamagedRecordError: the wrapper's properties contradict its items."""
        self.body_crc = wrapper.body_crc
        self.store_size = wrapper.store_size
        properties = wrapper.properties
        if wrapper.is_compressed:
            raise _bad(wrapper, "its body is compressed, which is not read")
        self._starts = _item_starts(wrapper)
        count, base = properties.get(INNER_COUNT, ""), properties.get(INNER_BASE, "")
        if count != str(len(self._starts)) or not 0 < len(self._starts) <= MOST_INNER:
            raise _bad(wrapper, f"it says that it holds {count[:20]!r} messages, and holds {len(self._starts)}")
        if base != str(wrapper.queue_offset):
            raise _bad(wrapper, f"it says that it begins at {base[:20]!r}, and is number {wrapper.queue_offset}")

    def __len__(self) -> int:
        return len(self._starts)

    def message(self, wrapper: StoredMessage, number: int) -> InnerMessage:
        """Message `number`, from 0, of the batch; `wrapper` is the one from the constructor."""
        header, body = wrapper.header, wrapper.stored_body
        start = self._starts[number]
        _, _, _, flag, body_size = _ITEM.unpack_from(body, start)
        first = start + _ITEM.size
        after = first + body_size
        (properties_size,) = _PROPERTIES_SIZE.unpack_from(body, after)
        own = body[first:after]
        rest = body[after : after + _PROPERTIES_SIZE.size + properties_size]
        layout = HEADERS[header.sys_flag >> 4 & 3]
        topic = wrapper.record[layout.size + len(body) : wrapper._properties_position - 2]
        fields = header._replace(
            store_size=layout.size + len(own) + len(topic) + len(rest),
            body_crc=crc32(own) & CRC_MASK,
            flag=flag,
            queue_offset=header.queue_offset + number,
            reconsume_times=0,
            prepared_transaction_offset=0,
            stored_body_size=len(own),
        )
        record = memoryview(b"".join((layout.pack(*fields), own, topic, rest)))
        message = decode_record(record, header.physical_offset, verify=False, kind=InnerMessage)
        message.number, message.body_position = number, layout.size + first
        return message


def _item_starts(wrapper: StoredMessage) -> list[int]:
    """Start positions of the items in the body. DamagedRecordError: they do not fill it."""
    body, position = wrapper.stored_body, 0
    starts: list[int] = []
    while position < len(body):
        if len(starts) > MOST_INNER:
            raise _bad(wrapper, f"it holds more than {MOST_INNER} messages")
        end = _item_end(body, position)
        if end is None:
            raise _bad(wrapper, f"no message begins at byte {position} of its body")
        starts.append(position)
        position = end
    return starts


def _item_end(body: memoryview, position: int) -> int | None:
    """End of the item at `position`; None: its sizes do not add up, or it exceeds the body."""
    if position + _ITEM.size > len(body):
        return None
    size, _, _, _, body_size = _ITEM.unpack_from(body, position)
    properties = position + _ITEM.size + body_size
    if body_size < 0 or properties + _PROPERTIES_SIZE.size > len(body):
        return None
    (properties_size,) = _PROPERTIES_SIZE.unpack_from(body, properties)
    end = properties + _PROPERTIES_SIZE.size + properties_size
    is_right = properties_size <= 0x7FFF and end == position + size and end <= len(body)
    return end if is_right else None


def _bad(wrapper: StoredMessage, reason: str) -> DamagedRecordError:
    return DamagedRecordError(wrapper.physical_offset, f"an inner batch that can't be taken apart: {reason}")


def wrapped_keys(log: Array, positions: Array, physical_offsets: Array, sys_flags: Array) -> list[tuple[int, str]]:
    """(row, key) for each key in inner batches among the records at `positions` of `log`, rows ascending."""
    found: list[tuple[int, str]] = []
    for row in np.flatnonzero(may_be_wrapper(sys_flags)).tolist():
        try:
            wrapper = decode_record(log[int(positions[row]) :].data, int(physical_offsets[row]), verify=False)
            if not is_wrapper(wrapper):
                continue
            batch = InnerBatch(wrapper)
        except DamagedRecordError:
            continue  # its messages are not shown either
        for number in range(len(batch)):
            message = batch.message(wrapper, number)
            found += [(row, key) for key in (message.unique_key, *message.keys) if key]
    return found

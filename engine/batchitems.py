"""Batch items: the messages inside one body, as RocketMQ's clients send a batch (docs/format.md, 2).

    size i32 | magic i32 | crc i32 | flag i32 | body_size i32 | body | properties_size i16 | properties

A broker takes a batch apart and stores ordinary records, unless the topic's queues are batch queues (RocketMQ 5): then
the record's sys_flag has INNER_BATCH_FLAG and its body is still such items.
"""

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from engine.properties import decode_properties

_HEAD = Struct(">iiiii")
_TAIL = Struct(">h")


class BatchItem(NamedTuple):
    """One message of a batch; topic, queue, times and hosts are the record's. `body` is a view of the batch."""

    flag: int
    body: memoryview
    properties: dict[str, str]


def decode_batch_items(body: memoryview) -> list[BatchItem]:
    """The messages in a body that is a batch, in order. ValueError when its sizes do not add up."""
    items: list[BatchItem] = []
    position = 0
    while position < len(body):
        item, size = _decode_item(body[position:])
        items.append(item)
        position += size
    return items


def _decode_item(view: memoryview) -> tuple[BatchItem, int]:
    try:
        size, _, _, flag, body_size = _HEAD.unpack_from(view)
        body_end = _HEAD.size + body_size
        if body_size < 0:
            raise ValueError("an item of the batch has a negative body size")
        (properties_size,) = _TAIL.unpack_from(view, body_end)
    except StructError:
        raise ValueError("the batch ends inside an item") from None
    properties_start = body_end + _TAIL.size
    if properties_size < 0 or properties_start + properties_size != size or size > len(view):
        raise ValueError("an item of the batch does not have the size it says")
    return BatchItem(flag, view[_HEAD.size : body_end], decode_properties(view[properties_start:size])), size

"""Multi-dispatch: secondary queues that a broker put a message in besides its own (LMQ; docs/format.md, 6).

INNER_MULTI_DISPATCH      names, joined by commas: what the publisher asks for
INNER_MULTI_QUEUE_OFFSET  the queue offset in each, in the same order: what the broker answers, in the record
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from engine.record.header import INNER_BATCH

if TYPE_CHECKING:
    from engine.record.kernel.decode import StoredMessage

MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
LMQ_PREFIX = "%LMQ%"
MAX_NAME_BYTES = 255

INNER_COUNT, INNER_BASE = "INNER_NUM", "INNER_BASE"
MOST_INNER = (1 << 15) - 1
"""Messages in one batch at most: a broker counts them in 16 bits."""

_OFFSET = re.compile(r"[0-9]{1,19}")
_MAX_OFFSET = (1 << 63) - 1


class Slot(NamedTuple):
    """One entry of one queue."""

    topic: str
    queue_id: int
    queue_offset: int


def queue_names(properties: Mapping[str, str]) -> list[str]:
    """The secondary queues that a message asks for, in order."""
    names = properties.get(MULTI_DISPATCH, "")
    return names.split(",") if names else []


def slot_queue_id(name: str, queue_id: int) -> int:
    """The queue of `name` that a message of queue `queue_id` is put in: a light queue (LMQ) has only queue 0."""
    return 0 if name.startswith(LMQ_PREFIX) else queue_id


def secondary_slots(properties: Mapping[str, str], queue_id: int) -> list[Slot]:
    """The secondary slots that a stored record claims; none when its two lists do not match.

    A name that no directory can have, or an offset that is no number (RocketMQ 5 leaves those of other queues empty),
    is skipped.
    """
    names = queue_names(properties)
    offsets = properties.get(MULTI_QUEUE_OFFSET, "").split(",")
    if len(names) != len(offsets):
        return []
    return [
        Slot(name, slot_queue_id(name, queue_id), int(offset))
        for name, offset in zip(names, offsets, strict=True)
        if _OFFSET.fullmatch(offset) and int(offset) <= _MAX_OFFSET and can_have_queues(name)
    ]


def inner_slots(properties: Mapping[str, str], first: Slot) -> list[Slot]:
    """The secondary slots of a batch that is kept as one record: it takes a number for each of its messages. None when
    it does not say how many these are, or other ones than from the record's own slot on."""
    count = inner_count(properties, first.queue_offset)
    return [first._replace(queue_offset=first.queue_offset + number) for number in range(1, count)]


def inner_count(properties: Mapping[str, str], queue_offset: int) -> int:
    """How many numbers such a batch takes from its own, `queue_offset`, on; 0 where `inner_slots` has none."""
    count, base = properties.get(INNER_COUNT, ""), properties.get(INNER_BASE, "")
    if not _OFFSET.fullmatch(count) or not _OFFSET.fullmatch(base) or int(base) != queue_offset:
        return 0
    return min(int(count), MOST_INNER + 1)


def matches_slot(message: StoredMessage, slot: Slot) -> bool:
    """Whether the record says that it stands there: in its own queue, as a batch with that number, too, or as in one of
    its secondary slots."""
    if (message.topic, message.queue_id) == slot[:2]:
        number = slot.queue_offset - message.queue_offset
        if number == 0:
            return True
        if message.sys_flag & INNER_BATCH and 0 < number < inner_count(message.properties, message.queue_offset):
            return True
    return bool(message.find_property(MULTI_DISPATCH.encode())) and (
        slot in secondary_slots(message.properties, message.queue_id)
    )


def can_have_queues(topic: str) -> bool:
    """Whether a directory can have this name: no checksum covers the topic of a record, so it may be anything."""
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
        return False
    return len(topic.encode(errors="replace")) <= MAX_NAME_BYTES

"""Multi-dispatch: secondary queues of a message besides its own (LMQ; docs/format.md, 6).

INNER_MULTI_DISPATCH      queue names, joined by commas; set by the publisher
INNER_MULTI_QUEUE_OFFSET  the queue offset in each, in the same order; set by the broker
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
"""Maximum number of messages in one batch: a broker counts them in 16 bits."""

_OFFSET = re.compile(r"[0-9]{1,19}")
_MAX_OFFSET = (1 << 63) - 1


class Slot(NamedTuple):
    """One entry of one queue."""

    topic: str
    queue_id: int
    queue_offset: int


def queue_names(properties: Mapping[str, str]) -> list[str]:
    """Names of the secondary queues in a message's properties, in order."""
    names = properties.get(MULTI_DISPATCH, "")
    return names.split(",") if names else []


def slot_queue_id(name: str, queue_id: int) -> int:
    """Queue id under the secondary name for a message of queue `queue_id`: a light queue (LMQ) has only queue 0."""
    return 0 if name.startswith(LMQ_PREFIX) else queue_id


def secondary_slots(properties: Mapping[str, str], queue_id: int) -> list[Slot]:
    """The secondary slots in a stored record's properties; none when the two lists have different lengths.

    Names that no directory can have are skipped, and offsets that are not numbers (RocketMQ 5 leaves some empty).
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
    """The slots after `first` of an inner batch, which takes one queue offset for each message. Empty if its properties
    have no valid count, or another base than `first`."""
    count = inner_count(properties, first.queue_offset)
    return [first._replace(queue_offset=first.queue_offset + number) for number in range(1, count)]


def inner_count(properties: Mapping[str, str], queue_offset: int) -> int:
    """Number of queue offsets that an inner batch takes from `queue_offset` on; 0: invalid properties."""
    count, base = properties.get(INNER_COUNT, ""), properties.get(INNER_BASE, "")
    if not _OFFSET.fullmatch(count) or not _OFFSET.fullmatch(base) or int(base) != queue_offset:
        return 0
    return min(int(count), MOST_INNER + 1)


def matches_slot(message: StoredMessage, slot: Slot) -> bool:
    """Whether `slot` is the record's own slot, a slot of its inner batch, or one of its secondary slots."""
    if (message.topic, message.queue) == slot[:2]:
        number = slot.queue_offset - message.queue_offset
        if number == 0:
            return True
        if message.sys_flag & INNER_BATCH and 0 < number < inner_count(message.properties, message.queue_offset):
            return True
    return bool(message.find_property(MULTI_DISPATCH.encode())) and (
        slot in secondary_slots(message.properties, message.queue)
    )


def can_have_queues(topic: str) -> bool:
    """Whether a directory can have this name. A record's topic has no checksum, so it may be any text."""
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
        return False
    return len(topic.encode(errors="replace")) <= MAX_NAME_BYTES

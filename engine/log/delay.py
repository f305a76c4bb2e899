"""Delay levels: how a delayed message is stored (docs/format.md, 2 and 5). fsstore does not deliver it.

It is stored in queue level - 1 of SCHEDULE_TOPIC_XXXX, with its own topic and queue id as the properties REAL_TOPIC and
REAL_QID. The tags code of its queue entry is the time at which it is due.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from engine.errors import IllegalMessageError
from engine.record.hashes import tags_hash
from engine.record.header import is_queued
from engine.record.message import Message
from engine.settings.delay_levels import DelayLevels

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_MAX_INTEGER = (1 << 31) - 1


def delay_level(properties: Mapping[str, str]) -> int:
    """The level in a stored DELAY; 0 without DELAY, and when it is no 32-bit number."""
    text = properties.get("DELAY", "")
    level = int(text) if _INTEGER.fullmatch(text) else 0
    return level if abs(level) <= _MAX_INTEGER else 0


def require_delay_level(properties: Mapping[str, str]) -> None:
    """IllegalMessageError when DELAY is given and is not a level: 0 or a positive 32-bit number in plain digits."""
    text = properties.get("DELAY", "")
    if text and not (text.isdecimal() and _INTEGER.fullmatch(text) and int(text) <= _MAX_INTEGER):
        raise IllegalMessageError(f"DELAY is {text[:40]!r}, which is no delay level")


def scheduled(message: Message, queue_id: int, levels: DelayLevels) -> tuple[Message, int]:
    """Message and queue id as stored: rewritten for a DELAY, except if the message is prepared or rolled back."""
    level = levels.clamp(delay_level(message.properties))
    if level <= 0 or not is_queued(message.sys_flag):
        return message, queue_id
    properties = {
        **message.properties,
        "DELAY": str(level),
        "REAL_TOPIC": message.topic,
        "REAL_QID": str(queue_id),
    }
    return replace(message, topic=SCHEDULE_TOPIC, properties=properties), level - 1


def tags_code(topic: str, properties: Mapping[str, str], store_time_ms: int, levels: DelayLevels) -> int:
    """Tags code of a queue entry: the due time in ms of a delayed message, else the hash of TAGS, 0 without TAGS."""
    if topic == SCHEDULE_TOPIC:
        level = levels.clamp(delay_level(properties))
        if level > 0:
            return levels.due_ms(level, store_time_ms)
    return tags_hash(properties.get("TAGS", ""))

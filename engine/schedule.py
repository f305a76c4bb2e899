"""Delay levels: how a delayed message is stored (docs/format.md, 2 and 5). Nobody here delivers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.message import Message

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """Delays by level: `delays_ms[level - 1]`."""

    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str = DEFAULT_LEVELS) -> DelayLevels:
        """From RocketMQ's `messageDelayLevel` syntax. ValueError."""
        raise NotImplementedError

    def clamp(self, level: int) -> int:
        """The level a message is stored at."""
        raise NotImplementedError

    def delivery_ms(self, level: int, store_time_ms: int) -> int:
        """When a message of that level is due."""
        raise NotImplementedError


def scheduled(message: Message, queue_id: int, delays: DelayLevels) -> tuple[Message, int]:
    """The message and queue id as stored: rewritten to SCHEDULE_TOPIC_XXXX when it asks for a delay, else unchanged."""
    raise NotImplementedError


def tags_code(topic: str, properties: Mapping[str, str], store_time_ms: int, delays: DelayLevels) -> int:
    """The consume queue's third column: delivery time of a delayed message, else the hash of TAGS, else 0."""
    raise NotImplementedError

"""Places: in which queues a stored message stands besides its own (multi-dispatch, LMQ; docs/format.md, 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
LMQ_PREFIX = "%LMQ%"


class Place(NamedTuple):
    """One entry of one queue."""

    topic: str
    queue_id: int
    queue_offset: int


def places(properties: Mapping[str, str], queue_id: int) -> list[Place]:
    """The further places of a stored record; empty when its two lists disagree or it has none."""
    raise NotImplementedError


def queue_names(properties: Mapping[str, str]) -> list[str]:
    """Names in INNER_MULTI_DISPATCH, in order; empty when the message has none."""
    raise NotImplementedError


def place_queue_id(name: str, queue_id: int) -> int:
    """Queue id for a multi-dispatch name: 0 for LMQ names, else the message's own."""
    raise NotImplementedError

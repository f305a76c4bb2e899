"""Positions of messages in the log, from consume-queue entries alone: by them the queues of a topic have one order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine import MessageStore
from fsstore.query.hist import QueueRange

Array = np.ndarray[Any, Any]

POSITION = np.dtype([("physical_offset", "i8"), ("queue", "i8"), ("offset", "i8"), ("size", "i8")])


def positions_in(store: MessageStore, chosen: QueueRange) -> Array:
    """The positions of a range, POSITION (n,), without those that expired meanwhile."""
    entries = store.entries(chosen.topic, chosen.queue, chosen.start, chosen.end - chosen.start)
    found = np.empty(len(entries), POSITION)
    found["physical_offset"], found["size"] = entries["physical_offset"], entries["size"]
    found["queue"], found["offset"] = chosen.queue, np.arange(chosen.end - len(entries), chosen.end)
    return found


def positions_at(store: MessageStore, chosen: QueueRange, offsets: Array) -> Array:
    """The positions at ascending queue offsets of a range, int64 (n,), as `positions_in`."""
    if not len(offsets):
        return np.empty(0, POSITION)
    every = positions_in(store, chosen._replace(start=int(offsets[0]), end=int(offsets[-1]) + 1))
    return every[np.isin(every["offset"], offsets)]


def newest_first(found: Sequence[Array]) -> Array:
    """All positions, the one with the greatest physical offset first."""
    every = np.concatenate([np.empty(0, POSITION), *found])
    return every[np.argsort(-every["physical_offset"], kind="stable")]


def physical_at(store: MessageStore, chosen: QueueRange, offset: int) -> int:
    """The physical offset at a queue offset; -1 if it has expired."""
    entries = store.entries(chosen.topic, chosen.queue, offset, 1)
    return int(entries["physical_offset"][0]) if len(entries) else -1


def first_from(store: MessageStore, chosen: QueueRange, physical_offset: int) -> int:
    """The first queue offset of a range whose message is at `physical_offset` or behind it; its end without one."""
    offsets = range(chosen.start, chosen.end)
    return chosen.start + bisect_left(offsets, physical_offset, key=lambda offset: physical_at(store, chosen, offset))


def fitting(store: MessageStore, chosen: QueueRange, most_bytes: int, *, from_end: bool) -> int:
    """The number of messages at one end of a range whose records are at most `most_bytes`; 1 at least."""
    sizes = positions_in(store, chosen)["size"]
    summed = np.cumsum(sizes[::-1] if from_end else sizes)
    return max(int(np.searchsorted(summed, most_bytes, side="right")), 1)

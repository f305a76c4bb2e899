"""Blocks: a range of a queue as columns, for readers that want arrays (Parquet, Arrow, data frames)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.consumequeue import ConsumeQueue
from engine.filequeue import FileQueue

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Strings:
    """Variable-length values: value i is `data[offsets[i]:offsets[i + 1]]`; offsets i8 (n + 1,), data u1."""

    offsets: Array
    data: Array


@dataclass(frozen=True, slots=True)
class Block:
    """Good messages of a queue range, in queue order; n rows. Damaged ones are left out and counted.

    `keys` and `properties` are lists: row i has items [x_rows[i], x_rows[i + 1]) (i8, (n + 1,)).
    """

    queue_offset: Array
    physical_offset: Array
    store_size: Array
    flag: Array
    sys_flag: Array
    reconsume_times: Array
    born_time_ms: Array
    store_time_ms: Array
    body: Strings
    tags: Strings
    unique_key: Strings
    born_host: Strings
    store_host: Strings
    key_rows: Array
    keys: Strings
    property_rows: Array
    property_names: Strings
    property_values: Strings
    damaged: int


def read_block(queue: ConsumeQueue, log: FileQueue, start: int, count: int, max_body_bytes: int) -> Block:
    """Columns of the messages at queue offsets [start, start + count). ExpiredMessageError when `start` is gone."""
    raise NotImplementedError

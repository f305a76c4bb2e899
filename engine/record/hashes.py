"""Hashes: of keys for the index, of tags for consume queues (docs/format.md, 6 and 7).

Both are Java's String.hashCode: h = 31*h + unit over the UTF-16 units, mod 2**32, read as i32. So the hash of a + b is
hash(a) * 31**len(b) + hash(b); the hash of topic#key is computed from the topic's and the key's. The kernel hashes
single texts, this module many.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.record.kernel import columns as kernel
from engine.record.kernel.encode import index_hash as index_hash
from engine.record.kernel.encode import java_hash as java_hash

Array = np.ndarray[Any, Any]

_MASK = 0xFFFFFFFF


def tags_hash(tags: str) -> int:
    """The consume queue's tags code: the hash of the whole TAGS text, 0 when there is none."""
    return java_hash(tags)


def text_index_hash(text: str) -> int:
    """As `index_hash`, for a text topic#key."""
    return abs(java_hash(text)) & 0x7FFFFFFF


def topic_hashes(topics: Sequence[str]) -> Array:
    """Hashes of "topic#", the seeds for hashes of keys: uint32 (n,)."""
    return np.array([java_hash(topic + "#") & _MASK for topic in topics], np.uint32)


def slices_index_hashes(topic_hashes: Array, data: Array, starts: Array, sizes: Array) -> Array:
    """`index_hash` of the keys data[start:start + size] (uint8, UTF-8), each with its `topic_hashes`: int32 (n,)."""
    joined = _hash_slices(data, starts, sizes, topic_hashes).view(np.int32)
    return np.abs(joined) & np.int32(0x7FFFFFFF)


def java_hashes(data: Array, starts: Array, sizes: Array) -> Array:
    """Java's hashes of the texts data[start:start + size] (uint8, UTF-8; starts and sizes shape (n,)): int32 (n,)."""
    return _hash_slices(data, starts, sizes, None).view(np.int32)


def _hash_slices(data: Array, starts: Array, sizes: Array, seeds: Array | None) -> Array:
    """Java's hashes (uint32) of the texts, each continued from its seed; invalid UTF-8 is hashed as U+FFFD."""
    hashes, odd_rows = kernel.java_hashes(data, starts, sizes, seeds)
    for row in odd_rows.tolist():
        text = data[starts[row] : starts[row] + sizes[row]].tobytes().decode(errors="replace")
        units = len(text.encode("utf-16-le")) // 2
        hashes[row] = (int(hashes[row]) * pow(31, units, 1 << 32) + java_hash(text)) & _MASK
    return hashes

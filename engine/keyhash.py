"""Hashes: of keys for the index, of tags for consume queues (docs/format.md, 6 and 7).

Both are Java's String.hashCode: h = 31*h + unit over the UTF-16 units, mod 2**32, read as i32. So a hash of two texts joined is
hash(a) * 31**len(b) + hash(b), which is how the hash of topic#key is had from a topic's, known, and a key's.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_MASK = 0xFFFFFFFF
# POWERS[i] = 31**i mod 2**32
_POWERS = tuple(pow(31, power, 1 << 32) for power in range(256))
_POWERS_FALLING = _POWERS[::-1]


def java_hash(text: str) -> int:
    """Java's hash of `text`, as an i32."""
    return _signed(_unsigned_hash(text))


def tags_hash(tags: str) -> int:
    """The consume queue's tags code: the hash of the whole TAGS text, 0 when there is none."""
    return _cached_hash(tags) if tags else 0


def index_hash(topic: str, key: str) -> int:
    """The index's hash of a key: absolute hash of topic#key, 0 for -2**31, which has no absolute value in 32 bits."""
    raise NotImplementedError


def java_hashes(data: Array, starts: Array, sizes: Array) -> Array:
    """Java's hashes of the texts data[start:start + size] (uint8, UTF-8; starts and sizes shape (n,)): int32 (n,)."""
    raise NotImplementedError


def index_hashes(topic: str, keys: Sequence[str]) -> Array:
    """`index_hash` of each of `keys`: int32 (n,)."""
    raise NotImplementedError


def topic_key_hashes(topic_hashes: Array, hashes: Array, units: Array) -> Array:
    """Index hashes of topic#key: from the hashes of "topic#", of the keys, and the keys' UTF-16 lengths, all (n,): int32 (n,)."""
    raise NotImplementedError


@lru_cache(maxsize=10_000)
def _cached_hash(text: str) -> int:
    return java_hash(text)


def _unsigned_hash(text: str) -> int:
    units: Any = text.encode("utf-16-be", "surrogatepass")
    if len(units) > 2 * len(_POWERS):
        value = 0
        for i in range(0, len(units), 2):
            value = (31 * value + (units[i] << 8 | units[i + 1])) & _MASK
        return value
    raise NotImplementedError


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value

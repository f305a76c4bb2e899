"""Hashes: of keys for the index, of tags for consume queues (docs/format.md, 6 and 7).

Both are Java's String.hashCode: h = 31*h + unit over the UTF-16 units, mod 2**32, read as i32. So the hash of two texts
joined is hash(a) * 31**len(b) + hash(b), which is how the hash of topic#key is had from a topic's, known, and a key's.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from struct import unpack
from typing import Any

import numpy as np

from engine.record.kernel import columns as kernel

Array = np.ndarray[Any, Any]

_MASK = 0xFFFFFFFF
_CHUNK_UNITS = 256
_DIGITS = b"0123456789abcdefghijklmnopqrstu"
_LOW_DIGITS = bytes(_DIGITS[byte % 31] for byte in range(256))
_HIGH_DIGITS = bytes(_DIGITS[byte // 31] for byte in range(256))
_POWERS = tuple(pow(31, power, 1 << 32) for power in range(_CHUNK_UNITS + 1))


def java_hash(text: str) -> int:
    """Java's hash of `text`, as an i32."""
    return _signed(_hash_units(_units(text)))


REMEMBERED_TAGS_CHARACTERS = 128
"""Longer tags are not remembered: a publisher may send different ones of 32 KB with each message."""


def tags_hash(tags: str) -> int:
    """The consume queue's tags code: the hash of the whole TAGS text, 0 when there is none."""
    return _tags_hash(tags) if len(tags) <= REMEMBERED_TAGS_CHARACTERS else java_hash(tags)


@lru_cache(maxsize=10_000)
def _tags_hash(tags: str) -> int:
    return java_hash(tags)


def index_hash(topic: str, key: str) -> int:
    """The index's hash of a key: absolute hash of topic#key, 0 for -2**31, which has no absolute value in 32 bits."""
    units = _units(key)
    power = _POWERS[len(units)] if len(units) <= _CHUNK_UNITS else pow(31, len(units), 1 << 32)
    value = (_topic_hash(topic) * power + _hash_units(units)) & _MASK
    if value >= 1 << 31:
        value = -value & _MASK
    return value & 0x7FFFFFFF


def text_index_hash(text: str) -> int:
    """As `index_hash`, of a topic#key text."""
    return abs(java_hash(text)) & 0x7FFFFFFF


def topic_hashes(topics: Sequence[str]) -> Array:
    """The hashes of "topic#", which those of keys go on from: uint32 (n,)."""
    return np.array([_topic_hash(topic) for topic in topics], np.uint32)


def index_hashes(topic: str, keys: Sequence[str]) -> Array:
    """`index_hash` of each of `keys`: int32 (n,)."""
    return texts_index_hashes(topic_hashes([topic]).repeat(len(keys)), keys)


def texts_index_hashes(topic_hashes: Array, keys: Sequence[str]) -> Array:
    """As `index_hashes`, of keys that each have their `topic_hashes`."""
    encoded = [key.encode("utf-8", "surrogatepass") for key in keys]
    sizes = np.fromiter(map(len, encoded), np.int64, len(keys))
    data = np.frombuffer(b"".join(encoded), np.uint8)
    return slices_index_hashes(topic_hashes, data, np.cumsum(sizes) - sizes, sizes)


def slices_index_hashes(topic_hashes: Array, data: Array, starts: Array, sizes: Array) -> Array:
    """`index_hash` of the keys data[start:start + size] (uint8, UTF-8), each with its `topic_hashes`: int32 (n,)."""
    joined = _hash_slices(data, starts, sizes, topic_hashes).view(np.int32)
    return np.abs(joined) & np.int32(0x7FFFFFFF)


def java_hashes(data: Array, starts: Array, sizes: Array) -> Array:
    """Java's hashes of the texts data[start:start + size] (uint8, UTF-8; starts and sizes shape (n,)): int32 (n,)."""
    return _hash_slices(data, starts, sizes, None).view(np.int32)


def _hash_slices(data: Array, starts: Array, sizes: Array, seeds: Array | None) -> Array:
    """Java's hashes (uint32) of these texts, each going on from its seed; U+FFFD stands for what is no UTF-8."""
    hashes, odd_rows = kernel.java_hashes(data, starts, sizes, seeds)
    for row in odd_rows.tolist():
        units = _units(data[starts[row] : starts[row] + sizes[row]].tobytes().decode(errors="replace"))
        hashes[row] = (int(hashes[row]) * pow(31, len(units), 1 << 32) + _hash_units(units)) & _MASK
    return hashes


@lru_cache(maxsize=10_000)
def _topic_hash(topic: str) -> int:
    return _hash_units(_units(topic + "#"))


def _units(text: str) -> bytes | tuple[int, ...]:
    if text.isascii():
        return text.encode()
    encoded = text.encode("utf-16-be", "surrogatepass")
    return unpack(f">{len(encoded) // 2}H", encoded)


def _hash_units(units: bytes | tuple[int, ...]) -> int:
    if len(units) <= _CHUNK_UNITS:
        if units and isinstance(units, bytes):  # a number of base 31, whose digits may be greater than 30
            return (int(units.translate(_LOW_DIGITS), 31) + 31 * int(units.translate(_HIGH_DIGITS), 31)) & _MASK
        return int(sum(map(mul, units[::-1], _POWERS))) & _MASK
    value = 0
    for start in range(0, len(units), _CHUNK_UNITS):
        chunk = units[start : start + _CHUNK_UNITS]
        value = (value * _POWERS[len(chunk)] + _hash_units(chunk)) & _MASK
    return value


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value

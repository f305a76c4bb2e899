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

from engine.record.byte_columns import are_equal, items_at, rows_by_size

Array = np.ndarray[Any, Any]

_MASK = 0xFFFFFFFF
_CHUNK_UNITS = 256
_DIGITS = b"0123456789abcdefghijklmnopqrstu"
_LOW_DIGITS = bytes(_DIGITS[byte % 31] for byte in range(256))
_HIGH_DIGITS = bytes(_DIGITS[byte // 31] for byte in range(256))
_POWERS = tuple(pow(31, power, 1 << 32) for power in range(_CHUNK_UNITS + 1))
_POWERS_ARRAY = np.array(_POWERS, np.uint32)


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


def java_hashes(data: Array, starts: Array, sizes: Array) -> Array:
    """Java's hashes of the texts data[start:start + size] (uint8, UTF-8; starts and sizes shape (n,)): int32 (n,)."""
    if are_equal(data, starts, sizes):  # as the tags of many messages are
        return hash_slices(data, starts[:1], sizes[:1])[0].view(np.int32).repeat(len(starts))
    return hash_slices(data, starts, sizes)[0].view(np.int32)


def index_hashes(topic: str, keys: Sequence[str]) -> Array:
    """`index_hash` of each of `keys`: int32 (n,)."""
    hashes, units = hash_texts(keys)
    return topic_key_hashes(topic_hashes([topic])[0], hashes, units)


def hash_texts(texts: Sequence[str]) -> tuple[Array, Array]:
    """Java's hashes (uint32) and UTF-16 lengths (int64) of each of `texts`."""
    joined = "".join(texts)
    encoded = texts if joined.isascii() else [text.encode("utf-8", "surrogatepass") for text in texts]
    sizes = np.fromiter(map(len, encoded), np.int64, len(texts))
    data = np.frombuffer(joined.encode("utf-8", "surrogatepass"), np.uint8)
    return hash_slices(data, np.cumsum(sizes) - sizes, sizes)


def topic_hashes(topics: Sequence[str]) -> Array:
    """The hashes of "topic#", to be joined with a key's: uint32 (n,)."""
    return np.array([_topic_hash(topic) for topic in topics], np.uint32)


def topic_key_hashes(topic_hashes: Array, hashes: Array, units: Array) -> Array:
    """Index hashes of topic#key from `topic_hashes` and what `hash_slices` returns for keys, all (n,): int32 (n,)."""
    joined = (topic_hashes * _powers(units) + hashes).view(np.int32)
    return np.abs(joined) & np.int32(0x7FFFFFFF)


def hash_slices(data: Array, starts: Array, sizes: Array) -> tuple[Array, Array]:
    """Java's hashes (uint32, the i32's bits) and UTF-16 lengths (int64) of the UTF-8 texts data[start:start + size]."""
    hashes = np.zeros(len(starts), np.uint32)
    units = sizes.astype(np.int64)
    is_long = sizes > _CHUNK_UNITS
    for size, rows in rows_by_size(np.where(is_long, 0, sizes)):
        texts = items_at(data, starts[rows], size).view(np.uint8).reshape(len(rows), size)
        hashes[rows] = texts.astype(np.uint32) @ _POWERS_ARRAY[size - 1 :: -1]
        if texts.max() > 0x7F:
            is_long[rows] = texts.max(axis=1) > 0x7F
    for row in np.flatnonzero(is_long).tolist():
        text = data[starts[row] : starts[row] + sizes[row]].tobytes().decode(errors="replace")
        row_units = _units(text)
        hashes[row], units[row] = _hash_units(row_units), len(row_units)
    return hashes, units


def _powers(exponents: Array) -> Array:
    if exponents.size == 0 or exponents.max() <= _CHUNK_UNITS:
        return _POWERS_ARRAY[exponents]
    return np.array([pow(31, exponent, 1 << 32) for exponent in exponents.tolist()], np.uint32)


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

"""CRC groups: the CRC-32s of bodies of which many have one size, checked by one call for some hundred of them.

A CRC is linear. Let R(x) be that of x when its register starts at zero; then

    crc32(x) = R(x) ^ crc32(zeros as long as x)
    R(zeros, x) = R(x)          leading zeros change nothing
    R(x, R(x)) = 0              as little-endian bytes: the register is at zero again

So the bodies are laid one behind the other, each followed by the R(x) that its stored CRC claims, and the register
must end at zero. One wrong body leaves another value there whatever follows, since each step can be undone; several
hide each other as rarely as one hides itself, once in 2**32.

A record keeps only 31 of the bits (docs/format.md, 2). The top one of R(x) is the parity of certain bits of x.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from engine.slices import items_at, rows_by_size

Array = np.ndarray[Any, Any]

_POLYNOMIAL = 0xEDB88320
_ZERO_REGISTER = 0xFFFFFFFF  # the CRC-32 that stands for it
_TOP_BIT = 31
_SUM_BYTES, _WORD_BYTES = 4, 8
LEAST_ROWS = 256
LARGEST_BYTES = 516
"""Of longer ones, a call for each costs no more. With its sum, it takes whole words."""
_GROUP_BYTES = 1 << 17  # stays in the processor's cache while it is looked at several times


def proved_whole(data: Array, starts: Array, sizes: Array, crcs: Array) -> Array:
    """Which of the bodies data[start:start + size] (uint8) have the CRC-32 that `crcs` (uint32, 31 bits) says, as far
    as groups tell: bool (n,).

    Where it is false, a call for the body must tell: it is long, or there are few of its size, or one of its group is
    not whole.
    """
    proved = np.zeros(len(starts), np.bool_)
    for size, rows in rows_by_size(np.where(sizes <= LARGEST_BYTES, sizes, 0)):
        if len(rows) == len(starts) >= LEAST_ROWS:
            _prove(proved, data, starts, size, crcs)
        elif len(rows) >= LEAST_ROWS:
            found = np.zeros(len(rows), np.bool_)
            _prove(found, data, starts[rows], size, crcs[rows])
            proved[rows] = found
    return proved


def _prove(proved: Array, data: Array, starts: Array, size: int, crcs: Array) -> None:
    """Set in `proved` (bool (n,)) what the groups of bodies of one size tell."""
    row_bytes = -(-(size + _SUM_BYTES) // _WORD_BYTES) * _WORD_BYTES
    rows = np.zeros((_GROUP_BYTES // row_bytes, row_bytes), np.uint8)
    sums = crcs ^ np.uint32(crc32(bytes(size)) & 0x7FFFFFFF)
    for first in range(0, len(starts), len(rows)):
        group = slice(first, first + len(rows))
        proved[group] = _group_is_whole(rows, items_at(data, starts[group], size), sums[group])


def _group_is_whole(rows: Array, bodies: Array, sums: Array) -> bool:
    """Whether R of each body (void items) has the low 31 bits in `sums`. Writes over `rows`: zeros, room for a body,
    for a sum."""
    if sums.max() >> _TOP_BIT:
        return False
    rows, size, row_bytes = rows[: len(bodies)], bodies.dtype.itemsize, rows.shape[1]
    end = row_bytes - _SUM_BYTES
    np.ndarray(len(bodies), bodies.dtype, rows, end - size, (row_bytes,))[:] = bodies
    np.ndarray(len(bodies), "<u4", rows, end, (row_bytes,))[:] = sums | _top_bits(rows)
    return crc32(rows.reshape(-1).data, _ZERO_REGISTER) == _ZERO_REGISTER


def _top_bits(rows: Array) -> Array:
    """The highest bit, in its place, of R(body) for each of `rows`, which end in the body and room for a sum:
    uint32."""
    words = rows.reshape(-1).view(np.uint64)
    row_starts = np.arange(0, len(words), rows.shape[1] // _WORD_BYTES)
    folded = np.bitwise_xor.reduceat(words & _masks(rows.shape[1])[: len(words)], row_starts)
    return (np.bitwise_count(folded) & 1).astype(np.uint32) << _TOP_BIT


@lru_cache(maxsize=16)
def _masks(row_bytes: int) -> Array:
    """Which bits of a body make that bit, for all rows of a group: uint64. The zeros before a short body have none."""
    masks = np.zeros((_GROUP_BYTES // row_bytes, row_bytes), np.uint8)
    masks[:, : row_bytes - _SUM_BYTES] = _longest_mask()[LARGEST_BYTES + _SUM_BYTES - row_bytes :]
    return masks.reshape(-1).view(np.uint64)


@lru_cache(maxsize=1)
def _longest_mask() -> Array:
    """Of a body of LARGEST_BYTES (uint8): that of a shorter one is the end of it."""
    bits, register = [], 1
    for _ in range(8 * LARGEST_BYTES):  # from the last bit to the first: what it has become at the end
        register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
        bits.append(register >> _TOP_BIT)
    return np.packbits(bits[::-1], bitorder="little")

"""CRC groups: the CRC-32s of many bodies of about one size, checked by one call for some hundred of them.

A CRC is linear. Let R(x) be that of x when its register starts at zero; then

    crc32(x) = R(x) ^ crc32(zeros as long as x)
    R(zeros, x) = R(x)          leading zeros change nothing
    R(x, R(x)) = 0              as little-endian bytes: the register is at zero again

So the bodies are laid one after the other, each followed by the R(x) that its stored CRC claims, and the register
must end at zero. One wrong body leaves another value there whatever follows, since each step can be undone; several
hide each other as rarely as one hides itself, once in 2**32.

A record keeps only 31 of the bits (docs/format.md, 2). The top one of R(x) is the parity of certain bits of x.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from engine.record.byte_columns import items_at, rows_by_size
from engine.record.header import CRC_MASK
from engine.record.kernel.crc import crc32

Array = np.ndarray[Any, Any]

_POLYNOMIAL = 0xEDB88320
_ZERO_REGISTER = 0xFFFFFFFF  # the CRC-32 that stands for it
_TOP_BIT = 31
_LEADS = np.array([(1 << 64) - (1 << 8 * lead) for lead in range(8)], np.uint64)  # all but the first `lead` bytes
_SUM_BYTES, _WORD_BYTES, _WORD_SHIFT = 4, 8, 3
LEAST_ROWS = 256
LARGEST_BYTES = 516
"""Of longer ones, a call for each costs no more. With its sum, it takes whole words."""
_GROUP_BYTES = 1 << 18  # stays in the processor's cache while it is looked at several times


def proved_whole(data: Array, starts: Array, sizes: Array, crcs: Array) -> Array:
    """Which of the bodies data[start:start + size] (uint8) have the CRC-32 that `crcs` (uint32, 31 bits) says, as far
    as groups prove it: bool (n,).

    Where it is false, the body needs a call of its own: it is long, or there are few of about its size, or one of its
    group is not whole, or it is at the very begin or end of `data`.
    """
    proved = np.zeros(len(starts), np.bool_)
    ends = starts + sizes
    words = sizes + (_SUM_BYTES + _WORD_BYTES - 1) >> _WORD_SHIFT
    if not _are_for_groups(data, starts, sizes, ends):
        fits = (sizes > 0) & (sizes <= LARGEST_BYTES) & (starts >= _WORD_BYTES) & (ends <= len(data) - _SUM_BYTES)
        words = np.where(fits, words, 0)
    for row_words, rows in rows_by_size(words):
        if len(rows) == len(starts) >= LEAST_ROWS:
            return _prove(data, ends, sizes, crcs, row_words)
        if len(rows) >= LEAST_ROWS:
            proved[rows] = _prove(data, ends[rows], sizes[rows], crcs[rows], row_words)
    return proved


def _are_for_groups(data: Array, starts: Array, sizes: Array, ends: Array) -> bool:
    """Whether all bodies are neither empty nor long, nor at the very begin or end of `data`."""
    if not len(sizes) or sizes.min() < 1 or sizes.max() > LARGEST_BYTES:
        return False
    return bool(starts.min() >= _WORD_BYTES and ends.max() <= len(data) - _SUM_BYTES)


def _prove(data: Array, ends: Array, sizes: Array, crcs: Array, row_words: int) -> Array:
    """Which bodies the groups prove, of those that fit, with a sum, into `row_words` words: bool (n,)."""
    proved = np.empty(len(ends), np.bool_)
    sizes = sizes[:1] if (sizes == sizes[0]).all() else sizes
    sums = crcs ^ _zeros_crcs()[sizes]
    row_bytes = row_words * _WORD_BYTES
    firsts = ends - (row_bytes - _SUM_BYTES)
    leads = np.broadcast_to(_LEADS[row_bytes - _SUM_BYTES - sizes], len(ends))
    rows_at_once = _GROUP_BYTES // row_bytes
    for first in range(0, len(ends), rows_at_once):
        group = slice(first, first + rows_at_once)
        rows = items_at(data, firsts[group], row_bytes).view(np.uint64).reshape(-1, row_words)
        rows[:, 0] &= leads[group]
        proved[group] = _group_is_whole(rows, sums[group])
    return proved


def _group_is_whole(rows: Array, sums: Array) -> bool:
    """Whether R of each body has the low 31 bits in `sums`. `rows` (uint64, (n, words)) are zeros, a body, and room for
    a sum, which is written."""
    if sums.max() >> _TOP_BIT:
        return False
    rows.view("<u4")[:, -1] = sums | _top_bits(rows)
    return crc32(rows.reshape(-1).data, _ZERO_REGISTER) == _ZERO_REGISTER


def _top_bits(rows: Array) -> Array:
    """The highest bit, in position, of R of each body: uint32."""
    words = rows.reshape(-1)
    row_starts = np.arange(0, len(words), rows.shape[1])
    folded = np.bitwise_xor.reduceat(words & _masks(rows.shape[1])[: len(words)], row_starts)
    return (np.bitwise_count(folded) & 1).astype(np.uint32) << _TOP_BIT


@lru_cache(maxsize=16)
def _masks(row_words: int) -> Array:
    """Which bits of a body make that bit, for all rows of a group: uint64. The zeros before a short body have none."""
    row_bytes = row_words * _WORD_BYTES
    masks = np.zeros((_GROUP_BYTES // row_bytes, row_bytes), np.uint8)
    masks[:, :-_SUM_BYTES] = _longest_mask()[LARGEST_BYTES + _SUM_BYTES - row_bytes :]
    return masks.reshape(-1).view(np.uint64)


@lru_cache(maxsize=1)
def _zeros_crcs() -> Array:
    """The low 31 bits of the CRC-32 of zeros, by their number: uint32."""
    return np.array([crc32(bytes(size)) & CRC_MASK for size in range(LARGEST_BYTES + 1)], np.uint32)


@lru_cache(maxsize=1)
def _longest_mask() -> Array:
    """Of a body of LARGEST_BYTES (uint8): that of a shorter one is the end of it."""
    bits, register = [], 1
    for _ in range(8 * LARGEST_BYTES):  # from the last bit to the first: what it has become at the end
        register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
        bits.append(register >> _TOP_BIT)
    return np.packbits(bits[::-1], bitorder="little")

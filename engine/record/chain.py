"""Chain: where the records of a stretch of the log begin, by their sizes (docs/format.md, 2).

A record tells where the next one begins, which would be one step of Python for each. But it also tells its own place,
so that a record can be recognised wherever one looks: the chain is followed from many such places at once, a numpy step
for all of them, and believed as far as each record ends where the next begins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.record.framing import PLAIN, Framing
from engine.record.record import BLANK_BYTES, MESSAGE_MAGIC, MESSAGE_MAGIC_V2
from engine.record.slices import items_at

Array = np.ndarray[Any, Any]

MAGICS = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2))
_LANES = 256
_LEAST_LANE_BYTES = 1 << 10
_SEARCHED_BYTES = 512
"""Of each lane: where records are longer than that, few lanes are enough."""
_MAGIC_POSITION, _PLACE_POSITION = 4, 28
_COMMON_BYTE = MAGICS[0][0]
assert MAGICS[1][0] == _COMMON_BYTE
assert _SEARCHED_BYTES <= _LEAST_LANE_BYTES  # so none is found twice


def follow_chain(
    log: Array, start: int, stop: int, end: int, base_physical_offset: int, framing: Framing = PLAIN
) -> tuple[Array, int, bool]:
    """The chain of what look like frames from `start` on in `log` (uint8, at `base_physical_offset` of the log).

    (positions of those that begin before `stop` and end by `end`, int64 (n,); the position behind the last; whether it
    was broken there). What stands before a record holds, of the record magic and size, and no more is checked. It may
    end early, unbroken: then go on from there.
    """
    if start + framing.least_bytes > end:
        return np.empty(0, np.int64), start, True
    words = np.ndarray((end - 3,), ">i4", log, strides=(1,))
    stop = min(stop, end - BLANK_BYTES + 1)
    lanes = _lane_starts(log, start, stop, base_physical_offset, framing)
    positions = np.sort(np.concatenate(_steps(words, lanes, stop, framing)))
    sizes = words[positions + framing.size_position].astype(np.int64)
    ends = positions + sizes
    good = framing.are_frames(log, positions, sizes, base_physical_offset)
    good &= (sizes >= framing.least_bytes) & (ends <= end)
    whole = len(good) if good.all() else int(good.argmin())
    is_next = ends[: max(whole - 1, 0)] == positions[1:whole]
    joined = whole if is_next.all() else int(is_next.argmin()) + 1
    chain_end = int(ends[joined - 1]) if joined else start
    return positions[:joined], chain_end, joined == whole < len(good) and chain_end == int(positions[whole])


def _lane_starts(log: Array, start: int, stop: int, base_physical_offset: int, framing: Framing) -> Array:
    """`start`, and a place behind it where a frame seems to begin for each lane of [start, stop): int64, ascending.

    There a record's magic and its own place stand as they must.
    """
    lane_bytes = max((stop - start) // _LANES, _LEAST_LANE_BYTES)
    lanes = np.arange(start + lane_bytes, min(stop, len(log) - _SEARCHED_BYTES), lane_bytes)
    seen = items_at(log, lanes, _SEARCHED_BYTES).view(np.uint8)
    last = len(seen) - _PLACE_POSITION - 8  # where a record's place is still seen
    at = np.flatnonzero(seen[_MAGIC_POSITION : last + _MAGIC_POSITION + 1] == _COMMON_BYTE)
    at = at[_is_magic(items_at(seen, at + _MAGIC_POSITION, 4).view(">i4"))]
    rows, places = at // _SEARCHED_BYTES, at % _SEARCHED_BYTES + lanes[at // _SEARCHED_BYTES]
    told = items_at(seen, at + _PLACE_POSITION, 8).view(">i8") - base_physical_offset
    rows, places = rows[told == places], places[told == places]
    is_first = np.diff(rows, prepend=-1) > 0
    return np.append(start, places[is_first & (places < stop)] - framing.header_bytes)


def _is_magic(words: Array) -> Array:
    return np.asarray((words == MESSAGE_MAGIC) | (words == MESSAGE_MAGIC_V2))


def _steps(words: Array, positions: Array, stop: int, framing: Framing) -> list[Array]:
    """What each step of the lanes that begin at `positions` reaches: each goes on to where the next one begins."""
    stops = np.append(positions[1:], stop)
    steps: list[Array] = []
    while len(positions):
        steps.append(positions)
        sizes = words[positions + framing.size_position]
        positions = positions + sizes
        goes_on = (sizes >= framing.least_bytes) & (positions < stops)
        if not goes_on.all():
            positions, stops = positions[goes_on], stops[goes_on]
    return steps

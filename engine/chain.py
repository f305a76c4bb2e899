"""Chain: where the records of a stretch of the log begin, by their sizes (docs/format.md, 2).

A record tells where the next one begins, which would be one step of Python for each. But it also tells its own place,
so that a record can be recognised wherever one looks: the chain is followed from many such places at once, a numpy step
for all of them, and believed as far as each record ends where the next begins.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from engine.record import BLANK_BYTES, MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_BYTES

Array = np.ndarray[Any, Any]

MAGICS = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2))
_LANES = 256
_LEAST_LANE_BYTES = 1 << 10
_SEARCHED_BYTES = 2 << 10
"""Of each lane: where records are longer than that, few lanes are enough."""
_PLACE = Struct(">q")
_PLACE_POSITION = 28
_COMMON_MAGIC = MAGICS[0][:3]
assert MAGICS[1].startswith(_COMMON_MAGIC)


def follow_chain(log: Array, start: int, stop: int, end: int, base_physical_offset: int) -> tuple[Array, int, bool]:
    """The chain of what look like records from `start` on in `log` (uint8, at `base_physical_offset` of the log).

    (positions of those that begin before `stop` and end by `end`, int64 (n,); the position behind the last; whether it
    was broken there). Magic and size hold, and no more is checked. It may end early, unbroken: then go on from there.
    """
    if start + MIN_RECORD_BYTES > end:
        return np.empty(0, np.int64), start, True
    words = np.ndarray((end - 3,), ">i4", log, strides=(1,))
    stop = min(stop, end - BLANK_BYTES + 1)
    positions = np.sort(np.concatenate(_steps(words, _lane_starts(log, start, stop, base_physical_offset), stop)))
    sizes, magics = words[positions].astype(np.int64), words[positions + 4]
    ends = positions + sizes
    good = ((magics == MESSAGE_MAGIC) | (magics == MESSAGE_MAGIC_V2)) & (sizes >= MIN_RECORD_BYTES) & (ends <= end)
    whole = len(good) if good.all() else int(good.argmin())
    is_next = ends[: max(whole - 1, 0)] == positions[1:whole]
    joined = whole if is_next.all() else int(is_next.argmin()) + 1
    chain_end = int(ends[joined - 1]) if joined else start
    return positions[:joined], chain_end, joined == whole < len(good) and chain_end == int(positions[whole])


def _lane_starts(log: Array, start: int, stop: int, base_physical_offset: int) -> Array:
    """`start`, and a place behind it where a record seems to begin for each lane of [start, stop): int64, ascending."""
    lane_bytes = max((stop - start) // _LANES, _LEAST_LANE_BYTES)
    view, starts = log.data, [start]
    for lane in range(start + lane_bytes, stop, lane_bytes):
        found = _first_record(view[lane : min(lane + _SEARCHED_BYTES, stop)], base_physical_offset + lane)
        if found >= 0:
            starts.append(lane + found)
    return np.array(starts, np.int64)


def _first_record(view: memoryview, physical_offset: int) -> int:
    """Where in `view` a magic and the own place of a record stand as they must; -1 if nowhere."""
    data = bytes(view)  # searching a map in place may read one byte past its end
    at = data.find(_COMMON_MAGIC, 4)
    while 4 <= at <= len(data) - _PLACE_POSITION - 4:
        place = at - 4
        if (
            data[at : at + 4] in MAGICS
            and _PLACE.unpack_from(data, place + _PLACE_POSITION)[0] == physical_offset + place
        ):
            return place
        at = data.find(_COMMON_MAGIC, at + 1)
    return -1


def _steps(words: Array, positions: Array, stop: int) -> list[Array]:
    """What each step of the lanes that begin at `positions` reaches: each goes on to where the next one begins."""
    stops = np.append(positions[1:], stop)
    steps: list[Array] = []
    while len(positions):
        steps.append(positions)
        sizes = words[positions]
        positions = positions + sizes
        goes_on = (sizes >= MIN_RECORD_BYTES) & (positions < stops)
        if not goes_on.all():
            positions, stops = positions[goes_on], stops[goes_on]
    return steps

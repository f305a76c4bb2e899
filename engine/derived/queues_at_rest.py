"""Queues at rest: their files are as a recovery point says, so that a recovery need not open them (docs/format.md, 8).

All bytes before the point are on disk. A later entry, a lost file or a foreign change shows in a queue's names, sizes,
times, or in the bytes behind its last entry. Entries before that are not read, as after a clean close.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engine.files.file_scan import file_name
from engine.files.paths import open_folder
from engine.files.watch import SAME_TICK_NS
from engine.log.entries import ENTRY
from engine.record.kernel.folders import data_ends_at, files_below

if TYPE_CHECKING:
    from engine.derived.marks import RecoveryPoint
    from engine.log.evidence import Extents
    from engine.record.kernel.folders import Members


def queues_at_rest(
    directory: Path, file_bytes: int, known: Mapping[str, Collection[int]], point: RecoveryPoint
) -> Extents:
    """The extents of the queues at rest, of those that are `known` by topic. OSError."""
    found: Extents = {}
    before_ns = point.time_ns - SAME_TICK_NS
    if not known:
        return found
    folder = open_folder(directory)
    try:
        for topic, ids in known.items():
            extents = point.queues.get(topic, {})
            try:
                members = files_below(folder, os.fsencode(topic))
            except OSError:
                continue  # its queues are opened, which raises it
            of_topic = {
                one: extents[one]
                for one in ids
                if one in extents
                and is_at_rest(folder, f"{topic}/{one}", members.get(str(one)), extents[one], file_bytes, before_ns)
            }
            if of_topic:
                found[topic] = of_topic
    finally:
        os.close(folder)
    return found


def is_at_rest(
    folder: int,
    path: str,
    members: Members | tuple[int, int] | None,
    extent: tuple[int, int],
    file_bytes: int,
    before_ns: int,
) -> bool:
    """Whether the queue at `path` below an open folder has the files of `extent` and no other, all older than
    `before_ns`, and no data behind its last entry."""
    start, end = extent[0] * ENTRY.itemsize, extent[1] * ENTRY.itemsize
    starts = range(start, end, file_bytes)
    if not isinstance(members, dict) or len(members) != len(starts) or start % file_bytes:
        return False
    for one in starts:
        size, written_ns = as_file(members.get(file_name(one)))
        if size != file_bytes or written_ns >= before_ns:
            return False
    if not starts:
        return extent == (0, 0)
    last = f"{path}/{file_name(starts[-1])}"
    return data_ends_at(folder, os.fsencode(last), end - starts[-1], ENTRY.itemsize)


def as_file(found: Members | tuple[int, int] | None) -> tuple[int, int]:
    """Size and time of a file; a size of -1 if it is none."""
    return found if isinstance(found, tuple) else (-1, 0)

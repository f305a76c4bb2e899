"""Names below `@parquet/`: pure functions, no store.

topic=%25RETRY%25billing                                                  as Hive escapes the values of partitions
queue=0
00000000000000000000-00000000000000065536.parquet                         a whole segment: [begin, end)
00000000000000131072-00000000000000140007.tail.parquet                    what was there of the newest one
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fsstore.tree.names import MAX_QUEUE_OFFSET, NAME_MAX_BYTES, parse_queue, to_name

SEGMENT_MESSAGES = 65_536
"""A segment ends at each multiple of so many queue offsets, and earlier where the log's files do."""

TOPIC_PREFIX = b"topic="
QUEUE_PREFIX = b"queue="
SUFFIX = b".parquet"
TAIL_SUFFIX = b".tail.parquet"

_ESCAPED = frozenset(b"\"#%'*/:=?\\{[]^\x7f") | frozenset(range(0x20))
"""What Hive, and Spark with it, escapes in the name of a partition."""

_NULL = b"__HIVE_DEFAULT_PARTITION__"
"""What stands for null in a name; a topic may be called so, too."""
_ESCAPE = re.compile(rb"%(?=[0-9A-Fa-f]{2})")
"""A % by which a reader would take what follows it for another byte."""

_RANGE = re.compile(rb"([0-9]{20})-([0-9]{20})(?:\.tail)?\.parquet")


class Range(NamedTuple):
    """Queue offsets [begin, end)."""

    begin: int
    end: int


def topic_partition(topic: str) -> bytes:
    """The directory of a topic."""
    name = to_name(topic)
    if name == _NULL:
        return TOPIC_PREFIX + b"%5F" + name[1:]
    partition = TOPIC_PREFIX + _escaped(name, _ESCAPED)
    if len(partition) <= NAME_MAX_BYTES:
        return partition
    return TOPIC_PREFIX + _escaped(_ESCAPE.sub(b"%25", name), _ESCAPED - {ord("%")})  # too long for a name otherwise


def _escaped(name: bytes, special: frozenset[int]) -> bytes:
    return b"".join(b"%%%02X" % byte if byte in special else bytes((byte,)) for byte in name)


def queue_partition(queue: int) -> bytes:
    """The directory of a queue."""
    return b"%s%d" % (QUEUE_PREFIX, queue)


def parse_queue_partition(name: bytes) -> int | None:
    """The queue that a directory's name says; None for any other name."""
    return parse_queue(name[len(QUEUE_PREFIX) :]) if name.startswith(QUEUE_PREFIX) else None


def segment_name(begin: int, end: int, *, is_tail: bool = False) -> bytes:
    """The file of queue offsets [begin, end)."""
    return b"%020d-%020d%s" % (begin, end, TAIL_SUFFIX if is_tail else SUFFIX)


def parse_segment(name: bytes) -> Range | None:
    """The range that a file's name says; None for a name that says none."""
    found = _RANGE.fullmatch(name)
    if found is None:
        return None
    begin, end = int(found[1]), int(found[2])
    return Range(begin, end) if begin < end <= MAX_QUEUE_OFFSET else None

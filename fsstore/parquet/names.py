"""Names below `@parquet/`: pure functions without a store.

topic=%25RETRY%25billing                                                  escaped as Hive escapes partition values
queue=0
00000000000000000000-00000000000000065536.parquet                         a whole segment: [begin, end)
00000000000000131072-00000000000000140007.tail.parquet                    the newest segment, which may still grow
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fsstore.tree.names import MAX_QUEUE_OFFSET, NAME_MAX_BYTES, from_name, parse_queue, to_name

SEGMENT_MESSAGES = 65_536
"""A segment ends at each multiple of this queue offset, and earlier at the end of a log file."""

TOPIC_PREFIX = b"topic="
QUEUE_PREFIX = b"queue="
SUFFIX = b".parquet"
TAIL_SUFFIX = b".tail.parquet"

_ESCAPED = frozenset(b"\"#%'*/:=?\\{[]^\x7f") | frozenset(range(0x20))
"""Characters that Hive, and thus Spark, escapes in a partition's name."""

_NULL = b"__HIVE_DEFAULT_PARTITION__"
"""The partition value that means null; a topic may have this name, too."""
_ESCAPE = re.compile(rb"%(?=[0-9A-Fa-f]{2})")
"""A % that a reader would decode with the next two characters."""

_ESCAPED_BYTE = re.compile(rb"%([0-9A-F]{2})")

_RANGE = re.compile(rb"([0-9]{20})-([0-9]{20})(?:\.tail)?\.parquet")


class OffsetRange(NamedTuple):
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


def parse_topic_partition(name: bytes) -> str | None:
    """The topic of a directory's name; None for any other name."""
    if not name.startswith(TOPIC_PREFIX):
        return None
    topic = from_name(_ESCAPED_BYTE.sub(lambda found: bytes((int(found[1], 16),)), name[len(TOPIC_PREFIX) :]))
    return topic if topic_partition(topic) == name else None


def _escaped(name: bytes, special: frozenset[int]) -> bytes:
    return b"".join(b"%%%02X" % byte if byte in special else bytes((byte,)) for byte in name)


def queue_partition(queue: int) -> bytes:
    """The directory of a queue."""
    return b"%s%d" % (QUEUE_PREFIX, queue)


def parse_queue_partition(name: bytes) -> int | None:
    """The queue of a directory's name; None for any other name."""
    return parse_queue(name[len(QUEUE_PREFIX) :]) if name.startswith(QUEUE_PREFIX) else None


def segment_name(begin: int, end: int, *, is_tail: bool = False) -> bytes:
    """The name of the file with queue offsets [begin, end)."""
    return b"%020d-%020d%s" % (begin, end, TAIL_SUFFIX if is_tail else SUFFIX)


def parse_segment(name: bytes) -> OffsetRange | None:
    """The range of a file's name; None: it is no such name."""
    found = _RANGE.fullmatch(name)
    if found is None:
        return None
    begin, end = int(found[1]), int(found[2])
    return OffsetRange(begin, end) if begin < end <= MAX_QUEUE_OFFSET else None

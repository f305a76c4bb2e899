"""A mounted store as jobs use it: the bounds of its queues, the files of `@parquet/`, and restarts of the daemon.

It imports no Spark: the driver plans, and executors read, with the tree of files alone.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from fsstore.parquet.names import SEGMENT_MESSAGES, queue_partition, segment_name, topic_partition

PATIENCE_S = 60.0
"""Seconds for which a job waits for a mount whose daemon has ended."""
RETRY_PAUSE_S = 0.2
STATUS = "@store/status.json"

_GONE = frozenset((errno.ENOTCONN, errno.ENOENT, errno.ENODEV, errno.ECONNABORTED, errno.ESTALE))
_NO_MESSAGE = frozenset((errno.ENOENT, errno.ESTALE, errno.EIO))
_T = TypeVar("_T")

Bounds = dict[str, dict[int, tuple[int, int]]]
"""topic -> queue -> (oldest queue offset, next queue offset)."""


class QueueRange(NamedTuple):
    """Queue offsets [begin, end) of a queue."""

    topic: str
    queue: int
    begin: int
    end: int


class MountGoneError(RuntimeError):
    """No store was mounted at `path`, or no daemon served it, for as long as a job waits."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"no store is mounted at {self.path}: mount it (mountctl mount STORE {self.path}) on this host too"


class DataLossError(RuntimeError):
    """Messages from queue offset `expected` on were removed; the store continues at `found`. The query must not
    skip."""

    def __init__(self, topic: str, queue: int, expected: int, found: int, why: str = "they expired") -> None:
        super().__init__(topic, queue, expected, found, why)
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        topic, queue, expected, found, why = self.args
        return (
            f"{topic}/{queue}: messages from queue offset {expected} on are needed, but it continues at {found}: "
            f"{why}; failOnDataLoss=false skips them"
        )


def bounds(mount: str) -> Bounds:
    """The present bounds of every queue. Waits for the mount while its daemon is down. MountGoneError; OSError EIO: the
    disk refuses to read the end of a queue."""
    return while_gone(mount, lambda: parse_bounds((Path(mount) / STATUS).read_bytes(), mount))


def parse_bounds(content: bytes, place: str) -> Bounds:
    """The bounds that a status.json of the store at `place` has. OSError EIO as `bounds`; ValueError, KeyError,
    TypeError, AttributeError: it is no status.json."""
    status = json.loads(content)
    for sentence in status.get("refused_queues", ()):
        raise OSError(errno.EIO, sentence, place)
    return {
        topic: {int(queue): (at["min_offset"], at["max_offset"]) for queue, at in known["queues"].items()}
        for topic, known in status["topics"].items()
    }


def physical_offset(mount: str, topic: str, queue: int, offset: int) -> int | None:
    """Physical offset of a message; None: there is none, or it is damaged. Waits as `bounds` does. MountGoneError."""
    message = os.path.join(mount, topic, str(queue), str(offset))
    return if_there(mount, lambda: int(os.getxattr(message, "user.mq.physical_offset")))


def witness(mount: str, topic: str, queue: int, offset: int) -> tuple[int, int] | None:
    """Physical offset and store time (epoch milliseconds) of a message, which together tell one store from another;
    None: there is none, or it is damaged. Waits as `bounds` does. MountGoneError."""
    message = os.path.join(mount, topic, str(queue), str(offset))
    names = "user.mq.physical_offset", "user.mq.store_time"
    found = if_there(mount, lambda: [int(os.getxattr(message, name)) for name in names])
    return None if found is None else (found[0], found[1])


def store_name(mount: str) -> str:
    """The name that the mounted store was given when it was first opened for writing; empty: it has none. Waits as
    `bounds` does. MountGoneError."""
    config = while_gone(mount, lambda: json.loads((Path(mount) / "@store/config.json").read_bytes()))
    return str(config["store"]["identity"]["name"] or "")


def offset_at(mount: str, topic: str, queue: int, time_ms: int) -> int | None:
    """The first queue offset stored at or after a time; None: there is none. Waits as `bounds` does. MountGoneError."""
    link = os.path.join(mount, topic, str(queue), f"@{time_ms}")
    return if_there(mount, lambda: int(os.path.basename(os.readlink(link))))


def if_there(mount: str, look: Callable[[], _T]) -> _T | None:
    """The result of `look`; None: the file does not exist, or is damaged. Waits as `bounds` does."""

    def try_to_look() -> _T | None:
        try:
            return look()
        except OSError as error:
            if error.errno not in _NO_MESSAGE:
                raise
        os.stat(os.path.join(mount, "@store"))  # fails if the mount itself is missing
        return None

    return while_gone(mount, try_to_look)


def while_gone(mount: str, work: Callable[[], _T]) -> _T:
    """The result of `work`, which is repeated while the daemon is down. MountGoneError after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return work()
        except OSError as error:
            if error.errno not in _GONE:
                raise
            if time.monotonic() > deadline:
                raise MountGoneError(mount) from error
        time.sleep(RETRY_PAUSE_S)


def within(bounds: Bounds, part: QueueRange) -> QueueRange:
    """`part` without messages that the store does not have. A range of a deleted queue becomes empty, at its end."""
    oldest, end = bounds.get(part.topic, {}).get(part.queue, (part.end, part.end))
    return part._replace(begin=max(part.begin, oldest), end=min(part.end, end))


def cut(whole: QueueRange, most: int = SEGMENT_MESSAGES) -> Iterator[QueueRange]:
    """A range in pieces with a file each: cut at multiples of `most`, which is at most 65,536."""
    begin = whole.begin
    while begin < whole.end:
        end = min((begin // most + 1) * most, whole.end)
        yield QueueRange(whole.topic, whole.queue, begin, end)
        begin = end


def range_name(part: QueueRange) -> str:
    """The Parquet file of a range from `cut`, by its path below `@parquet`."""
    names = (topic_partition(part.topic), queue_partition(part.queue), segment_name(part.begin, part.end))
    return os.path.join(*map(os.fsdecode, names))


def range_path(mount: str, part: QueueRange) -> str:
    """The Parquet file of a range from `cut`."""
    return os.path.join(mount, "@parquet", range_name(part))


def size_of(mount: str, part: QueueRange) -> int:
    """Bytes of the Parquet file of a range from `cut`; 0: it has expired."""
    try:
        return os.stat(range_path(mount, part)).st_size
    except FileNotFoundError:
        return 0


def files_between(mount: str, topic: str, from_ms: int | None, until_ms: int | None) -> list[str]:
    """The Parquet files of a topic that may have messages stored in [from_ms, until_ms), by names and times of a
    listing: no file is opened. As for `@<time>`, times are assumed to rise within a queue. FileNotFoundError: there is
    no such topic."""
    found = []
    for queue in sorted(os.scandir(os.path.join(mount, "@parquet", os.fsdecode(topic_partition(topic)))), key=_name):
        begins_ms = 0  # no message of the next file is older
        for path, newest_ms in _files_of(queue.path):
            if (from_ms is None or newest_ms >= from_ms) and (until_ms is None or begins_ms < until_ms):
                found.append(path)
            begins_ms = newest_ms
    return found


def _files_of(queue: str) -> Iterator[tuple[str, int]]:
    """Paths and times of a queue's files, without those that expire while they are listed."""
    with suppress(FileNotFoundError):
        for file in sorted(os.scandir(queue), key=_name):
            with suppress(FileNotFoundError):
                yield file.path, file.stat().st_mtime_ns // 1_000_000


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name

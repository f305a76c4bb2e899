"""The files of `@parquet/` at the places of a fleet, and whether those that were asked for are those that will be read.

A reader lists files for itself, some time after it was told which: what expired meanwhile must not be missing in
silence. Ranges of queue offsets are compared, not names: the newest file of a queue has another name as soon as it has
grown.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from fsstore.jobs.mount import QueueRange
from fsstore.parquet.names import parse_queue_partition, parse_segment, parse_topic_partition

DATASET = "@parquet"
_NAMED = 3
"""Ranges that an error names."""


class BrokerError(RuntimeError):
    """The store of a broker can't be asked; `reason` says why."""

    def __init__(self, broker: str, place: str, reason: str) -> None:
        super().__init__(broker, place, reason)
        self.broker = broker
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        named = "" if self.broker == self.place else f"broker {self.broker} at "
        return f"{named}{self.place}: {self.reason}"


class ExpiredFilesError(RuntimeError):
    """Messages that were asked for expired, or their topic was deleted, before a reader had listed their files."""

    def __init__(self, broker: str, parts: Sequence[QueueRange]) -> None:
        super().__init__(broker, parts)
        self.broker = broker
        self.parts = parts

    def __str__(self) -> str:
        shown = ", ".join(f"{part.topic}/{part.queue} [{part.begin}, {part.end})" for part in self.parts[:_NAMED])
        more = f" and {len(self.parts) - _NAMED} more" if len(self.parts) > _NAMED else ""
        return f"{self.broker}: queue offsets {shown}{more} expired while the job was planned"


class DatasetFile(NamedTuple):
    """A file of `@parquet/`, by its path below that directory, and the queue offsets in its name."""

    path: str
    part: QueueRange


def file_at(uri: str) -> DatasetFile | None:
    """The file that a URI, with its escapes, or a path names; None: it is no file of `@parquet/`."""
    names = (unquote_to_bytes(uri) if ":" in uri.partition("/")[0] else os.fsencode(uri)).split(b"/")[-3:]
    if len(names) < 3:
        return None
    topic, queue, part = parse_topic_partition(names[0]), parse_queue_partition(names[1]), parse_segment(names[2])
    if topic is None or queue is None or part is None:
        return None
    return DatasetFile(os.fsdecode(b"/".join(names)), QueueRange(topic, queue, *part))


def lost(asked: Iterable[QueueRange], planned: Iterable[QueueRange]) -> list[QueueRange]:
    """The parts of `asked` that `planned` does not cover, in order."""
    covered: defaultdict[tuple[str, int], list[QueueRange]] = defaultdict(list)
    for part in sorted(planned, reverse=True):
        covered[part[:2]].append(part)
    found: list[QueueRange] = []
    for part in sorted(asked):
        known, begin = covered[part[:2]], part.begin
        while known and known[-1].begin <= begin < part.end:
            begin = max(begin, known.pop().end) if known[-1].end <= part.end else part.end
        if begin < part.end:
            found.append(part._replace(begin=begin))
    return found

"""Offsets of a stream and of a batch, as Spark's Kafka source writes them: {"orders": {"0": 17, "1": -2}}.

-2 stands for the oldest message of a queue, -1 for what comes next. Pure functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TypeAlias

from fsstore.spark.mount import Bounds, Range

Offsets: TypeAlias = dict[str, dict[str, int]]
"""topic -> queue -> queue offset, in what JSON can hold."""

OLDEST, NEXT = -2, -1
EARLIEST, LATEST = "earliest", "latest"


class SourceOptionError(ValueError):
    """An option of the source that says nothing it knows."""


class DataLossError(RuntimeError):
    """Messages between `expected` and `found` of a queue are gone, and the query is not to pass over that."""

    def __init__(self, topic: str, queue: int, expected: int, found: int) -> None:
        super().__init__(topic, queue, expected, found)
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        topic, queue, expected, found = self.args
        return (
            f"{topic}/{queue}: messages from queue offset {expected} were to be read, and {found} is what there is: "
            "they expired, or the topic was deleted; failOnDataLoss=false goes on without them"
        )


def chosen(bounds: Bounds, subscribe: str | None, pattern: str | None) -> Bounds:
    """The topics that `subscribe` (names, comma-separated) or `subscribePattern` (a regular expression) ask for."""
    if subscribe is not None and pattern is not None:
        raise SourceOptionError("subscribe and subscribePattern exclude each other")
    if subscribe is not None:
        wanted = {name.strip() for name in subscribe.split(",")}
        return {topic: queues for topic, queues in bounds.items() if topic in wanted}
    if pattern is None:
        return bounds
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise SourceOptionError(f"subscribePattern: {error}") from None
    return {topic: queues for topic, queues in bounds.items() if expression.fullmatch(topic)}


def resolve(option: str, text: str, bounds: Bounds) -> Offsets:
    """`earliest`, `latest`, or JSON, as offsets of all queues of `bounds`.

    A queue that JSON leaves out is at its oldest message for startingOffsets, and at its end for endingOffsets.
    """
    if text.strip().lower() in (EARLIEST, LATEST):
        asked: Mapping[str, Mapping[str, int]] = {}
        missing = OLDEST if text.strip().lower() == EARLIEST else NEXT
    else:
        asked, missing = _parsed(option, text), OLDEST if option == "startingOffsets" else NEXT
    found: Offsets = {}
    for topic, queues in bounds.items():
        for queue, (oldest, next_offset) in queues.items():
            offset = asked.get(topic, {}).get(str(queue), missing)
            found.setdefault(topic, {})[str(queue)] = {OLDEST: oldest, NEXT: next_offset}.get(offset, offset)
    return found


def _parsed(option: str, text: str) -> dict[str, dict[str, int]]:
    try:
        asked = json.loads(text)
        well_formed = all(
            type(offset) is int and offset >= OLDEST for queues in asked.values() for offset in queues.values()
        )
    except (ValueError, AttributeError):
        well_formed = False
    if not well_formed:
        raise SourceOptionError(
            f'{option} is "earliest", "latest" or JSON like {{"orders": {{"0": 17, "1": -2}}}}: {text!r}'
        )
    return dict(asked)


def ends(bounds: Bounds) -> Offsets:
    """Where the queues end."""
    return {
        topic: {str(queue): end for queue, (_, end) in sorted(queues.items())}
        for topic, queues in sorted(bounds.items())
    }


def merged(start: Offsets, later: Offsets) -> Offsets:
    """`later`, and what only `start` knows: a topic that has gone stays where it was."""
    return {
        topic: start.get(topic, {}) | later.get(topic, {})
        for topic in [*start, *(topic for topic in later if topic not in start)]
    }


def limited(start: Offsets, end: Offsets, bounds: Bounds, most: int) -> Offsets:
    """At most `most` messages from `start` on: each queue's share is in proportion to what waits in it, but for one."""
    waiting = ranges(start, end, bounds, fail_on_data_loss=False)
    total = sum(part.end - part.begin for part in waiting)
    if total <= most:
        return end
    limits = {topic: dict(queues) for topic, queues in end.items()}
    left = most
    for part in sorted(waiting, key=lambda part: part.begin - part.end):  # the longest first
        size = part.end - part.begin
        share = min(max(size * most // total, 1), left)
        limits[part.topic][str(part.queue)] = part.begin + share
        left -= share
    return limits


def ranges(start: Offsets, end: Offsets, bounds: Bounds, *, fail_on_data_loss: bool) -> list[Range]:
    """What is to be read between two offsets, a range a queue. A queue that `start` does not know begins at 0.

    DataLossError where something of it is gone; without `fail_on_data_loss` that is left out.
    """
    found = []
    for topic, ends in sorted(end.items()):
        for queue, stop in sorted(ends.items(), key=lambda item: int(item[0])):
            begin = start.get(topic, {}).get(queue, 0)
            oldest, next_offset = bounds.get(topic, {}).get(int(queue), (0, 0))
            there = Range(topic, int(queue), max(begin, oldest), min(stop, next_offset))
            if fail_on_data_loss and stop < begin:
                raise DataLossError(topic, int(queue), begin, stop)
            if fail_on_data_loss and stop > begin and (there.begin, there.end) != (begin, stop):
                raise DataLossError(topic, int(queue), begin, oldest if oldest > begin else next_offset)
            if there.begin < there.end:
                found.append(there)
    return found

"""Copying of messages: each once, over any number of runs; of dead letters to the topics that they come from."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from engine import Message
from mountctl.client import MessageRow, StoreClient
from mountctl.local_store import LocalStore
from mountctl.output import Show
from mountctl.pattern import Pattern
from mountctl.selection import Range, Selection, messages_in, messages_with_key

BATCH = 1_000
DEAD, RETRY = "%DLQ%", "%RETRY%"
"""Prefixes of the topics of a group's dead letters and of its retries."""
COPIED_FROM = "COPIED_FROM"
"""The property of a copy: TOPIC/QUEUE/OFFSET@STORE_TIME_MS of its original. Later runs skip originals that it names."""
_MARK = re.compile(r"([^/@]+)/(\d{1,10})/(\d{1,19})@(\d{1,19})")
_ORIGINS = ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC", "REAL_TOPIC")
_OF_DELIVERY = frozenset(
    (
        *_ORIGINS, "DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID", "REAL_QID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME", "1ST_POP_TIME", "POP_CK", "MIN_OFFSET", "MAX_OFFSET",
    )
)  # fmt: skip
"""Properties about a message's delivery to a group. A redriven message starts without them."""


def origin_of(message: MessageRow) -> str | None:
    """The topic that a dead letter, a retry or a delayed message was sent to; None: no property names one."""
    named = [topic for topic in map(message.properties.get, _ORIGINS) if topic and topic != message.topic]
    return next((topic for topic in named if not topic.startswith((DEAD, RETRY))), None)


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges to copy; by source topic, its destination topic and its number of queues."""

    ranges: list[Range]
    names: Mapping[str, str]
    queues: Mapping[str, int]


class Marks:
    """The COPIED_FROM properties of a topic's messages."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._known: dict[str, dict[tuple[str, int], tuple[array[int], array[int]]]] = {}

    def has(self, topic: str, message: MessageRow, store_time_ms: int) -> bool:
        """Whether `topic` has a copy of `message`."""
        if topic not in self._known:
            self._known[topic] = self._read(topic)
        offsets, times = self._known[topic].get((message.topic, message.queue), (array("q"), array("q")))
        at = bisect_left(offsets, message.offset)
        while at < len(offsets) and offsets[at] == message.offset:
            if times[at] == store_time_ms:
                return True
            at += 1
        return False

    def _read(self, topic: str) -> dict[tuple[str, int], tuple[array[int], array[int]]]:
        found: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for mark in map(_MARK.fullmatch, self._store.property_values(topic, COPIED_FROM)):
            if mark:  # any publisher may write such a property
                name, queue, offset, time_ms = mark.groups()
                if max(int(offset), int(time_ms)) < 1 << 63:
                    found.setdefault((name, int(queue)), []).append((int(offset), int(time_ms)))
        sorted_pairs = {origin: sorted(pairs) for origin, pairs in found.items()}
        return {
            origin: (array("q", (offset for offset, _ in pairs)), array("q", (time_ms for _, time_ms in pairs)))
            for origin, pairs in sorted_pairs.items()
        }


@dataclass(slots=True)
class CopyJob:
    """One run: copies the messages of a plan; with `redrive`, those that keep their topic to that of `origin_of`. A dry
    run has no writer."""

    reader: LocalStore
    writer: StoreClient | None
    marks: Marks
    plan: Plan
    pattern: Pattern | None
    selection: Selection
    redrive: bool
    show: Show = lambda stage, done, total: None
    copied: dict[str, int] = field(init=False, default_factory=dict)
    """Number of messages by destination topic."""
    there: int = field(init=False, default=0)
    without_origin: int = field(init=False, default=0)
    queues: dict[str, int] = field(init=False, default_factory=dict)
    """Number of queues by destination topic that exists."""

    def run(self) -> None:
        """Copy the messages of the plan."""
        if self.writer is not None and not self.redrive:
            self.queues = {topic.name: len(topic.queues) for topic in self.writer.topics()}
        ranges = self.plan.ranges
        if self.pattern is None and self.selection.key is None and not self.selection.leaves_out:
            self._make_topics(chosen.topic for chosen in ranges if chosen.start < chosen.end)
        total = sum(max(chosen.end - chosen.start, 0) for chosen in ranges)
        if self.selection.key is not None:
            self._copy(messages_with_key(self.reader, ranges, self.selection))
            return
        done = 0
        for chosen in ranges:
            for start in range(chosen.start, chosen.end, BATCH):
                part = Range(chosen.topic, chosen.queue, start, min(start + BATCH, chosen.end))
                self._copy(list(messages_in(self.reader, part, self.selection, attributes=True)))
                done += part.end - part.start
                self.show("copying", done, total)

    def _copy(self, messages: Iterable[MessageRow]) -> None:
        copies_of = ((message, self._copy_of(message)) for message in messages if self._takes(message))
        wanted = [(message, copy) for message, copy in copies_of if copy is not None]
        self._make_topics(message.topic for message, _ in wanted)
        batches: dict[tuple[str, int | None], list[Message]] = {}
        for message, copy in wanted:
            batches.setdefault((copy.topic, self._queue(message, copy.topic)), []).append(copy)
        for (topic, queue), copies in batches.items():
            if self.writer is not None:
                self.writer.publish(queue, copies)
            self.copied[topic] = self.copied.get(topic, 0) + len(copies)

    def _takes(self, message: MessageRow) -> bool:
        return self.pattern is None or self.pattern.is_in(message.body)

    def _copy_of(self, message: MessageRow) -> Message | None:
        """A copy of `message`; None if there is one already, or if its destination is unknown."""
        properties = message.properties
        topic = self.plan.names[message.topic]
        if self.redrive and topic == message.topic:
            origin = origin_of(message)
            if origin is None:
                self.without_origin += 1
                return None
            topic = origin
        time_ms = message.store_time_ms
        if self.marks.has(topic, message, time_ms):
            self.there += 1
            return None
        dropped = _OF_DELIVERY if self.redrive else frozenset[str]()
        kept = {name: value for name, value in properties.items() if name not in dropped and name != "DELAY"}
        mark = f"{message.topic}/{message.queue}/{message.offset}@{time_ms}"
        return Message(
            topic,
            message.body,
            properties={**kept, COPIED_FROM: mark},
            flag=int(message.attributes["flag"]),
            born_time_ms=int(message.attributes["born_time"]),
        )

    def _queue(self, message: MessageRow, topic: str) -> int | None:
        """The queue for a copy in `topic`: the original's number, which keeps the order; None for redriven messages."""
        return None if self.redrive else message.queue % self.queues[topic]

    def _make_topics(self, sources: Iterable[str]) -> None:
        """Make the destination topics of these source topics, with as many queues, all that are missing at once. Those
        of redriven messages are made by publishing."""
        missing: dict[str, int] = {}
        for source in sources:
            if not self.redrive and (topic := self.plan.names[source]) not in self.queues:
                missing.setdefault(topic, self.plan.queues[source])
        if missing and self.writer is not None:
            self.writer.create_topics(missing)
        self.queues |= missing

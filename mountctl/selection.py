"""Which messages a command line asks for: topics by name or glob, from when until when, with which tag and key."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any

import click

from mountctl.access import Access, MessageRow, Queue, Target, narrowed, parse_time, topics_named

_FIRST_STEP, _LARGEST_STEP = 64, 8192
"""How many messages are read at once, backwards, where not each is wanted."""


@dataclass(frozen=True, slots=True)
class Range:
    """Queue offsets [start, end) of a queue."""

    topic: str
    queue: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What the options ask for: messages from `start` until before `end` (an offset, or a time), that have one of
    `tags` and the key, where those are given."""

    start: str | None = None
    end: str | None = None
    tags: tuple[str, ...] = ()
    key: str | None = None
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def takes(self, message: MessageRow) -> bool:
        """Whether the message has one of the tags; it needs its attributes, if tags are asked for."""
        return not self.tags or message.attributes.get("tags", "") in self.tags

    def has_key(self, message: MessageRow) -> bool:
        """Whether a message, with its attributes, has the key, if one is asked for."""
        known = (*message.attributes.get("keys", "").split(" "), message.attributes.get("unique_key"))
        return self.key is None or self.key in known

    def narrow(self, access: Access, topic: str, queue: Queue) -> Range:
        """What it leaves of a queue."""
        start, end = (
            default if text is None else self._offset(access, topic, queue.number, text)
            for text, default in ((self.start, queue.min_offset), (self.end, queue.max_offset))
        )
        return Range(topic, queue.number, max(start, queue.min_offset), min(end, queue.max_offset))

    def _offset(self, access: Access, topic: str, queue: int, text: str) -> int:
        return int(text) if text.isdecimal() else access.offset_at(topic, queue, parse_time(text, self.now_ms))


def takes_selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb --from, --until, --tag and --key: its function gets them as `selection`."""

    @functools.wraps(command)
    def with_selection(start: str | None, end: str | None, tags: tuple[str, ...], key: str | None, **rest: Any) -> Any:
        selection = Selection(start, end, tags, key)
        for text in (start, end):
            if text is not None and not text.isdecimal():
                parse_time(text, selection.now_ms)
        return command(selection=selection, **rest)

    for option in (
        click.option("--key", help="Only messages with this key, matched whole."),
        click.option("--tag", "tags", multiple=True, help="Only messages with this tag, or one of these."),
        click.option("--until", "end", metavar="OFFSET|TIME", help="End before that queue offset, or time."),
        click.option(
            "--from",
            "start",
            metavar="OFFSET|TIME",
            help="First queue offset, or a time: 2026-01-31T09:30, @EPOCH_MS, -15m, -1d12h.",
        ),
    ):
        with_selection = option(with_selection)
    return with_selection


def ranges_of(access: Access, targets: Iterable[Target], selection: Selection) -> list[Range]:
    """What targets and selection leave of each queue, as it stands now, in the order of the targets."""
    topics = access.topics()
    found: dict[tuple[str, int], Range] = {}
    for target in targets:
        for topic in topics_named(topics, target.topic):
            for queue in narrowed(topic, target):
                if (topic.name, queue.number) not in found:
                    found[topic.name, queue.number] = selection.narrow(access, topic.name, queue)
    return list(found.values())


def messages_in(access: Access, chosen: Range, selection: Selection, attributes: bool) -> Iterator[MessageRow]:
    """The messages of a range that are asked for but for their key, oldest first; damaged ones are left out."""
    count = max(chosen.end - chosen.start, 0)
    found = access.messages(chosen.topic, chosen.queue, chosen.start, count, attributes or bool(selection.tags))
    return filter(selection.takes, found)


def messages_with_key(access: Access, ranges: Iterable[Range], selection: Selection) -> list[MessageRow]:
    """The messages of those ranges with the selection's key, oldest first, with their attributes."""
    assert selection.key is not None
    by_queue = {(chosen.topic, chosen.queue): chosen for chosen in ranges}
    found = []
    for topic in dict.fromkeys(topic for topic, _ in by_queue):
        for message in access.with_key(topic, selection.key):
            chosen = by_queue.get((topic, message.queue))
            if chosen and chosen.start <= message.offset < chosen.end and selection.takes(message):
                found.append(message)
    return in_order(found)


def in_order(messages: Iterable[MessageRow]) -> list[MessageRow]:
    """The same messages in the order in which they were stored."""
    return sorted(messages, key=attrgetter("place"))


def newest(access: Access, chosen: Range, selection: Selection, count: int, attributes: bool) -> list[MessageRow]:
    """The newest `count` messages of a range that are asked for, oldest first; read backwards, as far as it takes."""
    found: list[MessageRow] = []
    end, step = chosen.end, count if not selection.tags else max(count, _FIRST_STEP)
    while end > chosen.start and len(found) < count:
        start = max(chosen.start, end - step)
        part = Range(chosen.topic, chosen.queue, start, end)
        found[:0] = messages_in(access, part, selection, attributes)
        end, step = start, min(max(step, _FIRST_STEP) * 4, _LARGEST_STEP)
    return found[max(len(found) - count, 0) :]


def at_most(messages: Iterable[MessageRow], count: int | None) -> Iterator[MessageRow]:
    """The first `count` of them; all for None."""
    return islice(messages, count)

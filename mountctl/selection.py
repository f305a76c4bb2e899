"""The messages that a command line selects: topics by name or glob, a range of offsets or times, tags, a key.

TOPIC[/QUEUE[/OFFSET]]   a path below a mount point; where a verb takes several topics, the topic may be a glob:
                         'ord*', '*/0'
2026-01-31T09:30         a time: ISO 8601, local without a zone
@1769848200000           the same, in epoch milliseconds
-1h, -1d12h, -15m, -30s  a time before now
"""

from __future__ import annotations

import difflib
import functools
import heapq
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, NoReturn

import click

from fsstore.query.expression import WhereError, bare_words
from fsstore.query.hist import QueueRange
from fsstore.query.sample import drawn
from fsstore.query.times import parse_moment_ms
from fsstore.query.where import Where
from mountctl.client import MessageRow, Queue, StoreClient, Topic
from mountctl.errors import CommandError
from mountctl.local_store import LocalStore
from mountctl.output import plural, visible
from mountctl.places import split_path

_FIRST_STEP, _LARGEST_STEP = 64, 8192
"""Batch sizes for reading backwards when messages are left out."""
READ_TOGETHER = 256
FEW = 8
"""Messages are read as a range if more than one in FEW is wanted."""

POLL_SECONDS = 0.1
LOOK_SECONDS = 5.0
"""Interval of looking for new topics and queues."""

_GLOB = re.compile(r"[*?\[]")


def parse_time(text: str, now_ms: int | None = None) -> int:
    """Epoch milliseconds of a time on the command line. CommandError."""
    time_ms = parse_moment_ms(text, now_ms)
    if time_ms is None:
        remedy = "give 2026-01-31T09:30, @EPOCH_MS, or a time before now like -1h or -15m"
        raise CommandError(f"invalid time {text!r}", remedy, os.EX_USAGE)
    return time_ms


def find_topic(client: StoreClient, name: str) -> Topic:
    """The topic `name`, which is no glob. CommandError names the existing topics."""
    topics = client.topics()
    return next((topic for topic in topics if topic.name == name), None) or _none_named("no topic", name, topics)


def tell_new_topic(client: StoreClient, name: str) -> None:
    """Warn on standard error that publishing creates a topic, since its name may be a typing error."""
    if not client.has_topic(name):
        near = difflib.get_close_matches(name, [topic.name for topic in client.topics()], 2)
        guess = f" (did you mean {' or '.join(map(visible, near))}?)" if near else ""
        click.echo(f"mountctl: there is no topic {name!r} yet: the first message makes it{guess}", err=True)


def topics_named(topics: Sequence[Topic], name: str) -> list[Topic]:
    """The topics that a name or glob matches, at least one. CommandError names the existing topics."""
    is_glob = bool(_GLOB.search(name))
    found = [topic for topic in topics if (fnmatchcase(topic.name, name) if is_glob else topic.name == name)]
    return found or _none_named("no topic matches" if is_glob else "no topic", name, topics)


def _none_named(reason: str, name: str, topics: Sequence[Topic]) -> NoReturn:
    known = ", ".join(visible(topic.name) for topic in topics[:10]) or "none yet"
    raise CommandError(f"{reason} {name!r}", f"there are: {known}", os.EX_USAGE)


@dataclass(frozen=True, slots=True)
class Target:
    """A topic, and optionally a queue and a queue offset in it."""

    topic: str
    queue: int | None = None
    offset: int | None = None

    @property
    def plain_path(self) -> str:
        """The corresponding path below a mount point: the file of a message, the text of a queue or a topic."""
        numbers = (str(number) for number in (self.queue, self.offset) if number is not None)
        return "/".join((self.topic, *numbers)) + ".log" * (self.offset is None)


def parse_target(text: str) -> Target:
    """Parse `TOPIC[/QUEUE[/OFFSET]]`, a path below a mount point."""
    topic, *numbers = text.strip("/").split("/")
    if not topic or len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise CommandError(f"{text!r} is not a message path (TOPIC[/QUEUE[/OFFSET]])", exit_code=os.EX_USAGE)
    return Target(topic, *map(int, numbers))


def placed(place: str, words: Iterable[str | None], required: str = "") -> tuple[str, list[str]]:
    """PLACE, and the targets behind it. Paths below a mount point or a store are targets, too: `mq/orders/0 mq/bills`
    is the place mq with orders/0 and bills. UsageError: there is none, and one is `required`, by this name."""
    given = [word for word in words if word is not None]
    above, target = split_path(place)
    if target:
        pairs = [(word, *split_path(word)) for word in given]
        given = [target, *(rest if rest and own == above else word for word, own, rest in pairs)]
    if required and not given:
        raise click.UsageError(f"Missing argument '{required}'.", click.get_current_context())
    return above, given


def names_several(targets: Sequence[Target]) -> bool:
    """Whether the targets may be several topics."""
    return len(targets) > 1 or any(_GLOB.search(target.topic) for target in targets)


def narrowed(topic: Topic, target: Target) -> tuple[Queue, ...]:
    """The queues of `topic` that `target` selects."""
    if target.queue is None:
        return topic.queues
    for queue in topic.queues:
        if queue.number == target.queue:
            return (queue,)
    raise CommandError(f"topic {topic.name} has no queue {target.queue}", f"it has {len(topic.queues)}", os.EX_USAGE)


@dataclass(frozen=True, slots=True)
class Range:
    """Queue offsets [start, end) of a queue."""

    topic: str
    queue: int
    start: int
    end: int

    def only(self, offset: int | None) -> Range:
        """The part of it that is this one offset; all of it for None."""
        if offset is None:
            return self
        return replace(self, start=max(self.start, offset), end=min(self.end, offset + 1))


@dataclass(frozen=True, slots=True)
class Selection:
    """The selecting options: messages from `start` until before `end` (offsets, or times), with one of `tags`, with
    `key`, and for which `where` is true, where these are given."""

    start: str | None = None
    end: str | None = None
    tags: tuple[str, ...] = ()
    key: str | None = None
    where: Where | None = None
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    @property
    def leaves_out(self) -> bool:
        """Whether messages of a range may be left out, the key apart."""
        return bool(self.tags) or self.where is not None

    def takes(self, message: MessageRow) -> bool:
        """Whether the message has one of the tags; it needs its attributes, if there are tags."""
        return not self.tags or message.attributes.get("tags", "") in self.tags

    def has_key(self, message: MessageRow) -> bool:
        """Whether a message, with its attributes, has the key, if there is one."""
        known = (*message.attributes.get("keys", "").split(" "), message.attributes.get("unique_key"))
        return self.key is None or self.key in known

    def narrow(self, store: LocalStore, topic: str, queue: Queue) -> Range:
        """The selected range of a queue."""
        start, end = (
            default if text is None else self._offset(store, topic, queue.number, text)
            for text, default in ((self.start, queue.min_offset), (self.end, queue.max_offset))
        )
        return Range(topic, queue.number, max(start, queue.min_offset), min(end, queue.max_offset))

    def _offset(self, store: LocalStore, topic: str, queue: int, text: str) -> int:
        return int(text) if text.isdecimal() else store.offset_at(topic, queue, parse_time(text, self.now_ms))


def parse_where(text: str | None) -> Where | None:
    """The expression of --where; None for None. CommandError says where it is wrong. A word on the right of a
    comparison, which may have been meant as a text, is named on standard error, unless it is written as `body.word`."""
    try:
        where = None if text is None else Where(text)
    except WhereError as error:
        raise CommandError(f"--where: {error}", "see docs/where.md", os.EX_USAGE) from None
    for word in bare_words(where.expression) if where else ():
        if f"body.{word}" not in (text or ""):
            said = f"{word} is the name of a field; a text stands in quotes: '{word}'"
            click.echo(f"mountctl: --where: {visible(said)}", err=True)
    return where


takes_where = click.option(
    "--where",
    metavar="EXPRESSION",
    help="Only messages for which this is true: 'level = \"error\" and ms > 500'; fields of a JSON body, key, tag, "
    "property.NAME, time, queue, offset, size.",
)


def takes_selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb --from, --until, --tag, --key and --where; its function gets them as `selection`."""

    @functools.wraps(command)
    def with_selection(
        start: str | None, end: str | None, tags: tuple[str, ...], key: str | None, where: str | None, **rest: Any
    ) -> Any:
        selection = Selection(start, end, tags, key, parse_where(where))
        for text in (start, end):
            if text is not None and not text.isdecimal():
                parse_time(text, selection.now_ms)
        return command(selection=selection, **rest)

    for option in (
        takes_where,
        click.option("--key", help="Only messages with exactly this key."),
        click.option("--tag", "tags", multiple=True, help="Only messages with this tag; with several, any of them."),
        click.option("--until", "end", metavar="OFFSET|TIME", help="End before this queue offset or time."),
        click.option(
            "--from",
            "start",
            metavar="OFFSET|TIME",
            help="First queue offset, or a time: 2026-01-31T09:30, @EPOCH_MS, -15m, -1d12h.",
        ),
    ):
        with_selection = option(with_selection)
    return with_selection


def ranges_of(store: LocalStore, targets: Iterable[Target], selection: Selection) -> list[Range]:
    """The selected range of each queue, with its current bounds, in the order of the targets."""
    topics = store.topics()
    found: dict[tuple[str, int], Range] = {}
    for target in targets:
        for topic in topics_named(topics, target.topic):
            for queue in narrowed(topic, target):
                if (topic.name, queue.number) not in found:
                    found[topic.name, queue.number] = selection.narrow(store, topic.name, queue).only(target.offset)
    return list(found.values())


takes_sample = click.option(
    "--sample",
    metavar="N",
    type=click.IntRange(1),
    help="Look only at a sample of N messages, drawn over the queue offsets; standard error says from how many.",
)


def sampled(ranges: list[Range], count: int | None) -> list[Range]:
    """A sample of the messages of the ranges, each as a range, queue by queue; its size is said on standard error. The
    ranges themselves for None."""
    if count is None:
        return ranges
    there = [QueueRange(one.topic, one.queue, one.start, one.end) for one in ranges if one.start < one.end]
    places = {(one.topic, one.queue): number for number, one in enumerate(ranges)}
    found = sorted(drawn(there, count), key=lambda one: (places[one[:2]], one[2]))
    of = plural(sum(one.end - one.start for one in there), "message")
    click.echo(f"mountctl: {len(found):,} of {of} looked at", err=True)
    return [Range(topic, queue, offset, offset + 1) for topic, queue, offset in found]


def messages_in(store: LocalStore, chosen: Range, selection: Selection, attributes: bool) -> Iterator[MessageRow]:
    """Messages of a range with the selected tags for which `where` is true, oldest first; damaged ones are skipped. The
    key is not checked."""
    attributes = attributes or bool(selection.tags)
    if selection.where is not None:
        found = store.matching(chosen.topic, chosen.queue, chosen.start, chosen.end, selection.where)
        offsets = (offset for bodies in found for offset in bodies.offsets.tolist())
        return filter(selection.takes, messages_at(store, chosen, offsets, attributes))
    count = max(chosen.end - chosen.start, 0)
    return filter(selection.takes, store.messages(chosen.topic, chosen.queue, chosen.start, count, attributes))


def messages_at(store: LocalStore, chosen: Range, offsets: Iterator[int], attributes: bool) -> Iterator[MessageRow]:
    """Messages at offsets of a range, which ascend; nearby ones are read together."""
    while some := list(itertools.islice(offsets, READ_TOGETHER)):
        spans = [some] if some[-1] - some[0] < len(some) * FEW else [[offset] for offset in some]
        for span in spans:
            count, wanted = span[-1] - span[0] + 1, set(span)
            read = store.messages(chosen.topic, chosen.queue, span[0], count, attributes)
            yield from (message for message in read if message.offset in wanted)


def messages_with_key(store: LocalStore, ranges: Iterable[Range], selection: Selection) -> list[MessageRow]:
    """Messages of the ranges with the selection's key, oldest first, with their attributes."""
    assert selection.key is not None
    by_queue = {(chosen.topic, chosen.queue): chosen for chosen in ranges}
    found = []
    for topic in dict.fromkeys(topic for topic, _ in by_queue):
        for message in store.with_key(topic, selection.key):
            chosen = by_queue.get((topic, message.queue))
            if chosen and chosen.start <= message.offset < chosen.end and selection.takes(message):
                one = topic, message.queue, message.offset, message.offset + 1
                if selection.where is None or list(store.matching(*one, selection.where)):
                    found.append(message)
    return in_order(found)


def in_order(messages: Iterable[MessageRow]) -> list[MessageRow]:
    """The messages, sorted by physical offset."""
    return sorted(messages, key=attrgetter("physical_offset"))


def newest(store: LocalStore, chosen: Range, selection: Selection, count: int, attributes: bool) -> list[MessageRow]:
    """The newest `count` selected messages of a range, oldest first, read backwards."""
    found: list[MessageRow] = []
    end, step = chosen.end, count if not selection.leaves_out else max(count, _FIRST_STEP)
    while end > chosen.start and len(found) < count:
        start = max(chosen.start, end - step)
        part = Range(chosen.topic, chosen.queue, start, end)
        found[:0] = messages_in(store, part, selection, attributes)
        end, step = start, min(max(step, _FIRST_STEP) * 4, _LARGEST_STEP)
    return found[max(len(found) - count, 0) :]


def in_log_order(
    store: LocalStore, ranges: list[Range], selection: Selection, count: int | None, attributes: bool
) -> Iterable[MessageRow]:
    """The selected messages of the ranges, or the newest `count` of them, by physical offset. All of them are not held
    in memory, unless a key selects them."""
    if selection.key is not None:
        found = messages_with_key(store, ranges, selection)
    elif count is None:
        queues = [messages_in(store, chosen, selection, attributes) for chosen in ranges]
        return heapq.merge(*queues, key=attrgetter("physical_offset"))
    else:
        found = in_order(
            message for chosen in ranges for message in newest(store, chosen, selection, count, attributes)
        )
    return found if count is None else found[max(len(found) - count, 0) :]


def following(
    store: LocalStore,
    look: Callable[[], Iterable[Range]],
    ends: dict[tuple[str, int], int],
    selection: Selection,
    attributes: bool,
) -> Iterator[list[MessageRow]]:
    """Endlessly, the selected messages that were stored since the last look, by physical offset; there may be none.
    `ends` has the next offset of each queue, and is kept up to date; `look` finds the queues that there are now."""
    looked = time.monotonic()
    while True:
        time.sleep(POLL_SECONDS)
        if time.monotonic() - looked > LOOK_SECONDS:
            for chosen in look():
                ends.setdefault((chosen.topic, chosen.queue), chosen.start)
            looked = time.monotonic()
        come: list[MessageRow] = []
        for (topic, queue), start in ends.items():
            end = store.bounds(topic, queue).max_offset
            if end > start:
                new = messages_in(store, Range(topic, queue, start, end), selection, attributes)
                come += (message for message in new if selection.has_key(message))
                ends[topic, queue] = end
        yield in_order(come)

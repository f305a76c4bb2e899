"""mountctl copy: copies messages to another topic or store, or dead letters to their original topics."""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import click

from engine import SCHEDULE_TOPIC, Message
from mountctl.client import MessageRow, StoreClient, Topic
from mountctl.connect import reading, reading_and_writing
from mountctl.errors import CommandError
from mountctl.local_store import LocalStore
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import Show, plural, print_json, progress, throttled, visible
from mountctl.pattern import Pattern
from mountctl.places import find
from mountctl.selection import (
    Range,
    Selection,
    Target,
    messages_in,
    messages_with_key,
    parse_target,
    ranges_of,
    takes_selection,
    topics_named,
)

BATCH = 1_000
SHOW_SECONDS = 0.2
COPIED_FROM = "COPIED_FROM"
"""The property of a copy: TOPIC/QUEUE/OFFSET@STORE_TIME_MS of its original. Later runs skip originals that it names."""
_MARK = re.compile(r"([^/@]+)/(\d{1,10})/(\d{1,19})@(\d{1,19})")
_SYSTEM = re.compile(r"RMQ_SYS_.*|rmq_sys_.*|TRANS_CHECK_MAX_TIME_TOPIC")
_ORIGINS = ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC", "REAL_TOPIC")
_OF_DELIVERY = frozenset(
    (
        *_ORIGINS, "DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID", "REAL_QID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME", "1ST_POP_TIME", "POP_CK", "MIN_OFFSET", "MAX_OFFSET",
    )
)  # fmt: skip
"""Properties about a message's delivery to a group. A redriven message starts without them."""


@click.command("copy", short_help="Copy messages to another topic or store; redrive dead letters.")
@click.argument("place")
@click.argument("source", metavar="TOPIC[/QUEUE]")
@click.argument("to_place")
@click.argument("to_topic", required=False)
@click.option("--match", "text", metavar="PATTERN", help="Only messages whose body matches, as for `mountctl grep`.")
@click.option("--redrive", is_flag=True, help="Send dead letters, retries and delayed messages to their own topics.")
@click.option("-n", "--dry-run", is_flag=True, help="Copy nothing; print the numbers only.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
@takes_selection
@takes_settings
def command(
    place: str, source: str, to_place: str, to_topic: str | None, text: str | None, redrive: bool, dry_run: bool,
    as_json: bool, quiet: bool, selection: Selection, settings: StoreSettings,
) -> int:  # fmt: skip
    """Copy the messages of TOPIC (or a glob) of the store or mount PLACE to TO_PLACE, to a topic of the same name or to
    TO_TOPIC, queue by queue: bodies, keys, tags and properties.

    A copy has its own store time. Its property COPIED_FROM names the original and its store time. Another run, after an
    interruption or for new messages, skips messages that have a copy.

    \b
    Examples:
      mountctl copy /mnt/mq orders /mnt/mq orders-again --from -1h --tag paid
      mountctl copy /mnt/mq '*' /srv/archive
      mountctl copy /mnt/mq %DLQ%billing /mnt/mq --redrive --dry-run
    """
    wanted, target = parse_target(source), None if to_topic is None else parse_target(to_topic)
    if wanted.offset is not None or (target is not None and (target.offset is not None or target.queue is not None)):
        raise CommandError("one message is not copied", "give TOPIC or TOPIC/QUEUE, and TO_TOPIC", os.EX_USAGE)
    pattern = None if text is None else Pattern(text)
    with ExitStack() as stack:
        show = stack.enter_context(progress(quiet or dry_run, counts=True))
        reader, marks_of, writer = _connected(stack, place, to_place, wanted, dry_run, settings)
        same_store = find(place).store == find(to_place).store
        plan = _plan(reader, wanted, target.topic if target else None, selection, redrive, same_store)
        job = _Job(reader, writer, Marks(marks_of), plan, pattern, selection, redrive, throttled(show, SHOW_SECONDS))
        job.run()
    return _tell(job, dry_run, as_json)


def _connected(
    stack: ExitStack, place: str, to_place: str, wanted: Target, dry_run: bool, settings: StoreSettings
) -> tuple[LocalStore, LocalStore, StoreClient | None]:
    """The stores to read messages and copies' marks from, and the client to write to (None for a dry run)."""
    source, target, paths = find(place), find(to_place), [wanted.plain_path]
    is_one = source.store == target.store and source.mount is None
    of_target = settings if is_one else StoreSettings()
    if dry_run:
        reader = stack.enter_context(reading(source, settings, "cat", paths))
        return reader, reader if is_one else stack.enter_context(reading(target, of_target, "cat", paths)), None
    marks_of, writer = stack.enter_context(reading_and_writing(target, of_target, "cat", paths))
    reader = marks_of if is_one else stack.enter_context(reading(source, settings, "cat", paths))
    return reader, marks_of, writer


@dataclass(frozen=True, slots=True)
class _Plan:
    """The ranges to copy; by source topic, its destination topic and its number of queues."""

    ranges: list[Range]
    names: Mapping[str, str]
    queues: Mapping[str, int]


def _plan(
    reader: LocalStore, wanted: Target, to_topic: str | None, selection: Selection, redrive: bool, same_store: bool
) -> _Plan:
    """CommandError: the copy would be pointless."""
    names, queues, chosen = {}, {}, []
    for topic in topics_named(reader.topics(), wanted.topic):
        name = to_topic or topic.name
        if left_out := _left_out(topic, wanted, redrive):
            click.echo(f"mountctl: {visible(topic.name)} is left out: {left_out}", err=True)
        elif same_store and not redrive and name == topic.name:
            remedy = "give another TO_TOPIC, or --redrive"
            raise CommandError(f"{topic.name} would be copied to itself", remedy, os.EX_USAGE)
        else:
            chosen.append(Target(topic.name, wanted.queue))
            names[topic.name], queues[topic.name] = name, len(topic.queues)
    return _Plan(ranges_of(reader, chosen, selection), names, queues)


def _left_out(topic: Topic, wanted: Target, redrive: bool) -> str:
    """The reason for not copying a topic; empty if it is copied."""
    if topic.name == SCHEDULE_TOPIC and not redrive:
        return "--redrive sends delayed messages to their topics"
    if topic.name != wanted.topic and _SYSTEM.fullmatch(topic.name):
        return "a broker uses it internally; to copy it, name it without a glob"
    return ""


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
class _Job:
    """One run of the command."""

    reader: LocalStore
    writer: StoreClient | None
    marks: Marks
    plan: _Plan
    pattern: Pattern | None
    selection: Selection
    redrive: bool
    show: Show
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
            origin = next((properties[name] for name in _ORIGINS if properties.get(name)), None)
            if origin is None or origin == message.topic:
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


def _tell(job: _Job, dry_run: bool, as_json: bool) -> int:
    """Print a summary; returns the exit code. CommandError: messages without a known destination were skipped."""
    count, damaged = sum(job.copied.values()), job.reader.left_out
    if as_json:
        done = {"copied": job.copied, "there": job.there, "damaged": len(damaged), "without_origin": job.without_origin}
        print_json(done)
    else:
        to = ", ".join(f"{visible(topic)} ({number:,})" for topic, number in sorted(job.copied.items()))
        would = "would be copied" if dry_run else "copied"
        there = f"; {job.there:,} copied before" if job.there else ""
        click.echo(f"{plural(count, 'message')} {would}{f': {to}' if to else ''}{there}")
    code = damaged.exit_code()
    if job.without_origin:
        reason = f"{plural(job.without_origin, 'message')} left out: no property names their original topic"
        raise CommandError(reason, "give TO_TOPIC", os.EX_DATAERR)
    return code

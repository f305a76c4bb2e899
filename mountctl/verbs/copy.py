"""mountctl copy: copies messages to another topic or store, or dead letters to their original topics."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack

import click

from engine import SCHEDULE_TOPIC
from mountctl.client import StoreClient, Topic
from mountctl.connect import reading, reading_and_writing
from mountctl.copying import CopyJob, Marks, Plan
from mountctl.errors import CommandError
from mountctl.local_store import LocalStore
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import plural, print_json, progress, throttled, visible
from mountctl.pattern import Pattern
from mountctl.places import find, split_path
from mountctl.selection import Selection, Target, parse_target, ranges_of, takes_selection, topics_named

SHOW_SECONDS = 0.2
_SYSTEM = re.compile(r"RMQ_SYS_.*|rmq_sys_.*|TRANS_CHECK_MAX_TIME_TOPIC")


@click.command("copy", short_help="Copy messages to another topic or store; redrive dead letters.")
@click.argument("place")
@click.argument("source", metavar="TOPIC[/QUEUE]", required=False)
@click.argument("to_place", metavar="TO_PLACE", required=False)
@click.argument("to_topic", required=False)
@click.option("--match", "text", metavar="PATTERN", help="Only messages whose body matches, as for `mountctl grep`.")
@click.option("--redrive", is_flag=True, help="Send dead letters, retries and delayed messages to their own topics.")
@click.option("-n", "--dry-run", is_flag=True, help="Copy nothing; print the numbers only.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
@takes_selection
@takes_settings
def command(
    place: str, source: str | None, to_place: str | None, to_topic: str | None, text: str | None, redrive: bool,
    dry_run: bool, as_json: bool, quiet: bool, selection: Selection, settings: StoreSettings,
) -> int:  # fmt: skip
    """Copy the messages of TOPIC (or a glob) of the store or mount PLACE to TO_PLACE, to a topic of the same name or to
    TO_TOPIC, queue by queue: bodies, keys, tags and properties. A path below PLACE names both: /mnt/mq/orders.

    A copy has its own store time. Its property COPIED_FROM names the original and its store time. Another run, after an
    interruption or for new messages, skips messages that have a copy.

    \b
    Examples:
      mountctl copy /mnt/mq orders /mnt/mq orders-again --from -1h --tag paid
      mountctl copy /mnt/mq '*' /srv/archive
      mountctl copy /mnt/mq %DLQ%billing /mnt/mq --redrive --dry-run
    """
    above, below = split_path(place)
    if below:
        if to_topic is not None:
            raise click.UsageError(f"Got unexpected extra argument ({to_topic})", click.get_current_context())
        place, source, to_place, to_topic = above, below, source, to_place
    if source is None or to_place is None:
        lacking = "TOPIC[/QUEUE]" if source is None else "TO_PLACE"
        raise click.UsageError(f"Missing argument '{lacking}'.", click.get_current_context())
    wanted, target = parse_target(source), None if to_topic is None else parse_target(to_topic)
    if wanted.offset is not None or (target is not None and (target.offset is not None or target.queue is not None)):
        raise CommandError("one message is not copied", "give TOPIC or TOPIC/QUEUE, and TO_TOPIC", os.EX_USAGE)
    pattern = None if text is None else Pattern(text)
    with ExitStack() as stack:
        show = stack.enter_context(progress(quiet or dry_run, counts=True))
        reader, marks_of, writer = _connected(stack, place, to_place, wanted, dry_run, settings)
        same_store = find(place).store == find(to_place).store
        plan = _plan(reader, wanted, target.topic if target else None, selection, redrive, same_store)
        job = CopyJob(reader, writer, Marks(marks_of), plan, pattern, selection, redrive, throttled(show, SHOW_SECONDS))
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


def _plan(
    reader: LocalStore, wanted: Target, to_topic: str | None, selection: Selection, redrive: bool, same_store: bool
) -> Plan:
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
    return Plan(ranges_of(reader, chosen, selection), names, queues)


def _left_out(topic: Topic, wanted: Target, redrive: bool) -> str:
    """The reason for not copying a topic; empty if it is copied."""
    if topic.name == SCHEDULE_TOPIC and not redrive:
        return "--redrive sends delayed messages to their topics"
    if topic.name != wanted.topic and _SYSTEM.fullmatch(topic.name):
        return "a broker uses it internally; to copy it, name it without a glob"
    return ""


def _tell(job: CopyJob, dry_run: bool, as_json: bool) -> int:
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

"""mountctl dlq: lists and prints dead letters, and sends them back to the topics that they come from."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import click

from fsstore.query.hist import QueueRange, times_of
from mountctl.client import MessageRow, Topic
from mountctl.connect import reading, reading_and_writing
from mountctl.copying import DEAD, CopyJob, Marks, Plan, origin_of
from mountctl.errors import CommandError
from mountctl.local_store import LocalStore
from mountctl.options import StoreSettings
from mountctl.output import human_time, plural, print_json_line, print_table, visible
from mountctl.places import find, find_mount
from mountctl.selection import (
    Range,
    Selection,
    Target,
    messages_in,
    messages_with_key,
    narrowed,
    parse_target,
    takes_selection,
)
from mountctl.showing import Printer, takes_format

NO_SETTINGS = StoreSettings()


@click.command("dlq", short_help="Look at dead letters, and send them back.")
@click.argument("place")
@click.argument("group", metavar="[GROUP[/QUEUE[/OFFSET]]]", required=False)
@click.option("--send", is_flag=True, help="Send them to their original topics, unless they were sent before.")
@click.option("-n", "--dry-run", is_flag=True, help="With --send: send nothing; print the numbers only.")
@takes_selection
@takes_format
def command(
    place: str, group: str | None, send: bool, dry_run: bool, selection: Selection, printer: Printer
) -> int:  # fmt: skip
    """List the consumer groups of PLACE that have dead letters. With GROUP print its dead letters, each with its place
    in %DLQ%GROUP, time, original topic, number of retries, keys and body.

    With --send a mount publishes them again in their original topics, for every group of these topics. The dead
    letters stay, and a later run does not send them again.

    \b
    Examples:
      mountctl dlq /mnt/mq
      mountctl dlq /mnt/mq billing --where "amount > 100" --json
      mountctl dlq /mnt/mq billing --key ORDER-7 --send --dry-run
    """
    if group is None:
        if send or selection != Selection(now_ms=selection.now_ms):
            raise CommandError("dead letters are chosen of one group", "name the GROUP", os.EX_USAGE)
        return _list(place, printer)
    if dry_run and not send:
        raise CommandError("--dry-run is an option of --send", "give both", os.EX_USAGE)
    if send and printer.formats:
        raise CommandError("--json and --format print dead letters", "leave them or --send out", os.EX_USAGE)
    wanted = parse_target(DEAD + group.removeprefix(DEAD))
    if send:
        return _send(place, wanted, selection, dry_run)
    with reading(find(place), NO_SETTINGS, "cat", [wanted.plain_path]) as store:
        for message in _chosen(store, _ranges(store, wanted, selection), selection):
            if printer.formats:
                printer.line(message)
            else:
                printer.raw(_line(message))
        printer.flush()
        return store.left_out.exit_code()


def _list(place: str, printer: Printer) -> int:
    if printer.formats and not printer.as_json:
        raise CommandError("--format prints the dead letters of one group", "name the GROUP", os.EX_USAGE)
    with reading(find(place), NO_SETTINGS, "ls", [""]) as store:
        rows = [_about(store, topic) for topic in store.topics() if topic.name.startswith(DEAD)]
    if printer.as_json:
        for group, messages, times in rows:
            oldest, newest = times or (None, None)
            print_json_line({"group": group, "messages": messages, "oldest": oldest, "newest": newest})
    else:
        now_ms = time.time_ns() // 1_000_000
        shown = [
            (group, f"{messages:,}", *([human_time(times[0]), _age(now_ms - times[0])] if times else ["-", "-"]))
            for group, messages, times in rows
        ]
        print_table(("GROUP", "MESSAGES", "OLDEST", "AGE"), shown)
    return 0


def _about(store: LocalStore, topic: Topic) -> tuple[str, int, tuple[int, int] | None]:
    """A group, the number of its dead letters, and the store times of the oldest and newest."""
    ranges = [QueueRange(topic.name, queue.number, queue.min_offset, queue.max_offset) for queue in topic.queues]
    return topic.name.removeprefix(DEAD), topic.messages, times_of(store.store, ranges)


def _age(age_ms: int) -> str:
    minutes = max(age_ms, 0) // 60_000
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h" if minutes < 2_880 else f"{minutes // 1_440} d"


def _ranges(store: LocalStore, wanted: Target, selection: Selection) -> list[Range]:
    """The selected range of each queue of a group's dead letters. CommandError: there are none."""
    topics = {topic.name: topic for topic in store.topics() if topic.name.startswith(DEAD)}
    if wanted.topic not in topics:
        groups = ", ".join(visible(name.removeprefix(DEAD)) for name in topics) or "none"
        reason = f"the group {wanted.topic.removeprefix(DEAD)!r} has no dead letters"
        raise CommandError(reason, f"groups with dead letters: {groups}", os.EX_USAGE)
    queues = narrowed(topics[wanted.topic], wanted)
    found = [selection.narrow(store, wanted.topic, queue).only(wanted.offset) for queue in queues]
    if wanted.offset is not None and found[0].start >= found[0].end:
        raise CommandError(f"{wanted.topic} has no message at offset {wanted.offset}", exit_code=os.EX_NOINPUT)
    return found


def _chosen(store: LocalStore, ranges: list[Range], selection: Selection) -> Iterator[MessageRow]:
    if selection.key is not None:
        yield from messages_with_key(store, ranges, selection)
    else:
        for chosen in ranges:
            yield from messages_in(store, chosen, selection, attributes=True)


def _line(message: MessageRow) -> bytes:
    retries = f"retries {message.attributes.get('reconsume_times', 0)}"
    where = f"{message.queue}/{message.offset}", human_time(message.store_time_ms), origin_of(message) or "?"
    keys = message.attributes.get("keys", "")
    return visible("  ".join(filter(None, (*where, retries, keys)))).encode() + b": " + message.body + b"\n"


def _send(place: str, wanted: Target, selection: Selection, dry_run: bool) -> int:
    """Send the chosen dead letters back, each once. CommandError: no mount of the store can be written."""
    mount = find_mount(place)
    if mount.read_only:
        reason = f"{mount.mountpoint} is read-only, so nothing can be sent back through it"
        raise CommandError(reason, "name a mount that can be written", os.EX_NOPERM)
    there, paths = find(str(mount.mountpoint)), [wanted.plain_path]
    with reading_and_writing(there, NO_SETTINGS, "cat", paths) as (store, writer):
        ranges = _ranges(store, wanted, selection)
        plan = Plan(ranges, {wanted.topic: wanted.topic}, {})
        job = CopyJob(store, None if dry_run else writer, Marks(store), plan, None, selection, redrive=True)
        job.run()
    to = ", ".join(f"{visible(topic)} ({number:,})" for topic, number in sorted(job.copied.items()))
    done = "would be sent back" if dry_run else "sent back"
    before = f"; {job.there:,} sent back before" if job.there else ""
    click.echo(f"{plural(sum(job.copied.values()), 'dead letter')} {done}{f': {to}' if to else ''}{before}")
    code = store.left_out.exit_code()
    if job.without_origin:
        reason = f"{plural(job.without_origin, 'dead letter')} left out: no property names the topic"
        remedy = f"mountctl copy {place} {wanted.topic} {place} TOPIC --redrive sends them to TOPIC"
        raise CommandError(reason, remedy, os.EX_DATAERR)
    return code

"""mountctl cat: prints messages."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

import click

from fsstore.query.where import Where
from mountctl.client import MessageRow
from mountctl.connect import reading
from mountctl.decoding import Decoder, takes_decode
from mountctl.errors import CommandError
from mountctl.frames import Request
from mountctl.hosts import Fleet, request, split_places
from mountctl.local_store import LocalStore
from mountctl.options import StoreSettings, takes_settings
from mountctl.places import find
from mountctl.selection import (
    Range,
    Selection,
    Target,
    messages_in,
    messages_with_key,
    narrowed,
    parse_target,
    placed,
    ranges_of,
    sampled,
    takes_sample,
    takes_selection,
    topics_named,
)
from mountctl.showing import Printer, takes_format


@click.command("cat", short_help="Print messages.")
@click.argument("place")
@click.argument("targets", metavar="TOPIC[/QUEUE[/OFFSET]]...", nargs=-1)
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=0),
    help="At most this many messages of each queue, or, with --key, of the key. (tail -n counts over all queues.)",
)
@takes_sample
@takes_decode
@takes_selection
@takes_format
@takes_settings
def command(
    place: str, targets: tuple[str, ...], count: int | None, sample: int | None, decode: str | None,
    selection: Selection, printer: Printer, settings: StoreSettings,
) -> int:  # fmt: skip
    """Print messages of a store or mount, queue by queue: each body and a newline. With OFFSET: only that body, byte
    for byte.

    A topic may be a glob, in quotes: 'ord*'. A path below PLACE names both: /mnt/mq/orders/0.

    Several places come before the topics: HOST:PLACE is read by ssh, @GROUP is a group in
    ~/.config/fsstore/fleet.toml. Their
    messages come in the order of their store times.

    \b
    Examples:
      mountctl cat /mnt/mq orders/0 --from 100 --count 10
      mountctl cat /srv/store orders --key ORDER-17 --json
      mountctl cat host-a:/mnt/mq host-b:/mnt/mq orders --from -10m
      mountctl cat /mnt/mq orders --sample 100 --json
      mountctl cat /mnt/mq orders --decode 'base64'
      mountctl cat /mnt/mq 'ord*' --from -1h --tag paid --format '%t/%q/%o %k: %b'
    """
    places, words = split_places([place, *targets])
    if not places:
        place, words = placed(place, targets, "TOPIC[/QUEUE[/OFFSET]]...")
    wanted = [parse_target(text) for text in words]
    if len(wanted) > 1 and any(target.offset is not None for target in wanted):
        raise CommandError("one OFFSET stands alone", "give topics and queues, or one message", os.EX_USAGE)
    if sample is not None and (places or count is not None or selection.key is not None):
        raise CommandError("--sample is for a place of this host, without -n and --key", "leave it out", os.EX_USAGE)
    decoder = Decoder(decode)
    if places:
        asked = replace(request("rows", words, selection, settings), count=count, by_queue=True)
        return _print_of_hosts(places, asked, wanted, printer, decoder)
    key = selection.key
    paths = [target.plain_path if key is None else f"{target.topic}/keys/{key}" for target in wanted]
    with reading(find(place), settings, "cat", paths) as store:
        if len(wanted) == 1 and wanted[0].offset is not None:
            for message in decoder.decoded([_one(store, wanted[0], printer.attributes)]):
                printer.alone(message)
            return decoder.exit_code(0)
        ranges = sampled(ranges_of(store, wanted, selection), sample)
        if selection.key is not None:
            for message in decoder.decoded(islice(_with_key(store, ranges, selection), count)):
                printer.line(message)
        else:
            prints_messages = printer.formats or bool(decoder) or bool(selection.tags) or count is not None
            for chosen in ranges:
                if selection.where is not None and not prints_messages:
                    _print_matching(store, chosen, selection.where, printer)
                    continue
                found = islice(messages_in(store, chosen, selection, printer.attributes), count)
                for message in decoder.decoded(found):
                    printer.line(message)
        printer.flush()
        return decoder.exit_code(store.left_out.exit_code())


def _print_matching(store: LocalStore, chosen: Range, where: Where, printer: Printer) -> None:
    """Print bodies as they were found, without reading their messages again."""
    for bodies in store.matching(chosen.topic, chosen.queue, chosen.start, chosen.end, where):
        printer.raw(bodies.lines(range(len(bodies))))


def _print_of_hosts(places: list[str], asked: Request, wanted: list[Target], printer: Printer, decoder: Decoder) -> int:
    is_one = wanted[0].offset is not None
    is_found = not is_one and asked.key is None
    with Fleet(places, replace(asked, attributes=printer.attributes)) as fleet:
        show = printer.alone if is_one and fleet.is_single else printer.line
        for message in decoder.decoded(fleet.rows()):
            show(message)
            is_found = True
        if not is_found and not fleet.exit_code():
            what = f"the key {asked.key!r}" if asked.key is not None else asked.targets[0]
            raise CommandError(f"no place has {what}", exit_code=os.EX_NOINPUT)
        return decoder.exit_code(fleet.exit_code())


def _with_key(store: LocalStore, ranges: list[Range], selection: Selection) -> Iterable[MessageRow]:
    found = messages_with_key(store, ranges, selection)
    if not found:
        reason = f"no message of {', '.join(dict.fromkeys(chosen.topic for chosen in ranges))} has the key"
        raise CommandError(f"{reason} {selection.key!r}", "keys are matched whole", os.EX_NOINPUT)
    return found


def _one(store: LocalStore, target: Target, attributes: bool) -> MessageRow:
    topic = topics_named(store.topics(), target.topic)[0]
    (queue,) = narrowed(topic, target)
    for message in store.messages(topic.name, queue.number, target.offset or 0, 1, attributes):
        if message.offset == target.offset:
            return message
    holds = f"it holds {queue.min_offset} to {queue.max_offset - 1}" if queue.max_offset else "it is empty"
    if queue.min_offset <= (target.offset or 0) < queue.max_offset:
        reason = f"the message at offset {target.offset} of {topic.name}/{queue.number} is damaged"
        raise CommandError(reason, "see mountctl check", os.EX_DATAERR)
    reason = f"{topic.name}/{queue.number} has no message at offset {target.offset}"
    raise CommandError(reason, holds, os.EX_NOINPUT)

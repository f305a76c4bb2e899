"""mountctl tail: prints the newest messages, and with --follow later ones."""

from __future__ import annotations

import heapq
import os
import time
from operator import attrgetter

import click

from mountctl.client import MessageRow
from mountctl.connect import reading
from mountctl.errors import INTERRUPTED, CommandError
from mountctl.local_store import LocalStore
from mountctl.options import StoreSettings, takes_settings
from mountctl.places import find
from mountctl.selection import (
    Range,
    Selection,
    Target,
    in_order,
    messages_in,
    messages_with_key,
    newest,
    parse_target,
    ranges_of,
    takes_selection,
)
from mountctl.showing import Printer, takes_format, tell_damaged

POLL_SECONDS = 0.1
LOOK_SECONDS = 5.0
"""Interval of looking for new topics and queues."""


@click.command("tail", short_help="Print the newest messages, and follow new ones.")
@click.argument("place")
@click.argument("targets", metavar="TOPIC[/QUEUE]...", nargs=-1, required=True)
@click.option("-n", "--count", type=click.IntRange(min=0), help="How many messages; 10, or with --from all.")
@click.option("-f", "--follow", is_flag=True, help="Print new messages, until interrupted.")
@takes_selection
@takes_format
@takes_settings
def command(
    place: str, targets: tuple[str, ...], count: int | None, follow: bool, selection: Selection, printer: Printer,
    settings: StoreSettings,
) -> int:  # fmt: skip
    """Print the newest messages of topics or queues together, in the order in which they were stored.

    A topic may be a glob, in quotes: 'ord*'.

    \b
    Examples:
      mountctl tail /mnt/mq orders -n 3
      mountctl tail -f --json /mnt/mq orders/0
      mountctl tail -f /mnt/mq 'ord*' --from -15m --format '%D %t %k: %b'
    """
    wanted = [parse_target(text) for text in targets]
    if follow and selection.end is not None:
        raise CommandError("--follow has no end", "leave --until out", os.EX_USAGE)
    if count is None:
        count = 10 if selection.start is None else None
    try:
        paths = [target.plain_path for target in wanted]
        with reading(find(place), settings, "tail -f" if follow else "tail", paths, following=follow) as store:
            store.left_out.tell = tell_damaged if follow else None
            ranges = ranges_of(store, wanted, selection)
            _print_newest(store, ranges, selection, count, printer)
            if follow:
                _follow(store, wanted, ranges, selection, printer)
            printer.flush()
            return store.left_out.exit_code()
    except KeyboardInterrupt:
        if not follow:
            raise
        return INTERRUPTED  # the usual end of --follow


def _print_newest(
    store: LocalStore, ranges: list[Range], selection: Selection, count: int | None, printer: Printer
) -> None:
    found: list[MessageRow] = []
    if selection.key is not None:
        found = messages_with_key(store, ranges, selection)
    elif count is None:  # they may not fit into memory
        queues = [messages_in(store, chosen, selection, printer.attributes) for chosen in ranges]
        for message in heapq.merge(*queues, key=attrgetter("physical_offset")):
            printer.line(message)
    else:
        for chosen in ranges:
            found += newest(store, chosen, selection, count, printer.attributes)
    found = in_order(found)
    for message in found if count is None else found[max(len(found) - count, 0) :]:
        printer.line(message)


def _follow(
    store: LocalStore, wanted: list[Target], ranges: list[Range], selection: Selection, printer: Printer
) -> None:
    """Print messages after those ranges until interrupted."""
    ends = {(chosen.topic, chosen.queue): chosen.end for chosen in ranges}
    attributes = printer.attributes or selection.key is not None
    looked = time.monotonic()
    while True:
        printer.flush()
        time.sleep(POLL_SECONDS)
        if time.monotonic() - looked > LOOK_SECONDS:
            for chosen in ranges_of(store, wanted, Selection()):
                ends.setdefault((chosen.topic, chosen.queue), chosen.start)
            looked = time.monotonic()
        come: list[MessageRow] = []
        for (topic, queue), start in ends.items():
            end = store.bounds(topic, queue).max_offset
            if end > start:
                new = messages_in(store, Range(topic, queue, start, end), selection, attributes)
                come += (message for message in new if selection.has_key(message))
                ends[topic, queue] = end
        for message in in_order(come):
            printer.line(message)

"""mountctl tail: prints the newest messages, and with --follow later ones."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from functools import partial

import click

from mountctl.connect import reading
from mountctl.decoding import Decoder, takes_decode
from mountctl.errors import INTERRUPTED, CommandError
from mountctl.frames import Request
from mountctl.hosts import Fleet, request, split_places
from mountctl.options import StoreSettings, takes_settings
from mountctl.places import find
from mountctl.selection import Selection, following, in_log_order, parse_target, placed, ranges_of, takes_selection
from mountctl.showing import Printer, takes_format, tell_left_out


@click.command("tail", short_help="Print the newest messages, and follow new ones.")
@click.argument("place")
@click.argument("targets", metavar="TOPIC[/QUEUE]...", nargs=-1)
@click.option("-n", "--count", type=click.IntRange(min=0), help="Number of messages; default: 10, or all with --from.")
@click.option("-f", "--follow", is_flag=True, help="Print new messages, until interrupted.")
@takes_decode
@takes_selection
@takes_format
@takes_settings
def command(
    place: str, targets: tuple[str, ...], count: int | None, follow: bool, decode: str | None, selection: Selection,
    printer: Printer, settings: StoreSettings,
) -> int:  # fmt: skip
    """Print the newest messages of topics or queues together, in the order in which they were stored.

    A topic may be a glob, in quotes: 'ord*'. A path below PLACE names both: /mnt/mq/orders/0.

    Several places come before the topics: HOST:PLACE is read by ssh, @GROUP is a group in
    ~/.config/fsstore/fleet.toml. If the connection to a followed host is lost, the host is named and asked again.

    \b
    Examples:
      mountctl tail /mnt/mq orders -n 3
      mountctl tail -f --json /mnt/mq orders/0
      mountctl tail -f /mnt/mq 'ord*' --from -15m --format '%D %t %k: %b'
      mountctl tail -f @prod orders
    """
    places, words = split_places([place, *targets])
    if not places:
        place, words = placed(place, targets, "TOPIC[/QUEUE]...")
    wanted = [parse_target(text) for text in words]
    if follow and selection.end is not None:
        raise CommandError("--follow has no end", "leave --until out", os.EX_USAGE)
    if count is None:
        count = 10 if selection.start is None else None
    decoder = Decoder(decode)
    try:
        if places:
            asked = replace(request("rows", words, selection, settings), count=count, follow=follow)
            return _print_of_hosts(places, asked, printer, decoder)
        paths = [target.plain_path for target in wanted]
        with reading(find(place), settings, "tail -f" if follow else "tail", paths, following=follow) as store:
            store.left_out.tell = tell_left_out if follow else None
            ranges = ranges_of(store, wanted, selection)
            attributes = printer.attributes or selection.key is not None
            for message in decoder.decoded(in_log_order(store, ranges, selection, count, attributes)):
                printer.line(message)
            printer.flush()
            if follow:
                ends = {(chosen.topic, chosen.queue): chosen.end for chosen in ranges}
                look = partial(ranges_of, store, wanted, Selection())
                for messages in following(store, look, ends, selection, attributes):
                    for message in decoder.decoded(messages):
                        printer.line(message)
                    printer.flush()
            return decoder.exit_code(store.left_out.exit_code())
    except KeyboardInterrupt:
        if not follow:
            raise
        return INTERRUPTED  # the usual end of --follow


def _print_of_hosts(places: list[str], asked: Request, printer: Printer, decoder: Decoder) -> int:
    attributes = printer.attributes or asked.key is not None
    with Fleet(places, replace(asked, attributes=attributes)) as fleet:
        rows = fleet.rows()
        for message in decoder.decoded(rows if asked.count is None else deque(rows, asked.count)):
            printer.line(message)
        printer.flush()
        for messages in fleet.follow() if asked.follow else ():
            for message in decoder.decoded(messages):
                printer.line(message)
            printer.flush()
        return decoder.exit_code(fleet.exit_code())

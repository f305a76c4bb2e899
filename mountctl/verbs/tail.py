"""mountctl tail: print the newest messages, and those still to come."""

from __future__ import annotations

import time

import click

from mountctl.access import Access, parse_target, queues_of
from mountctl.options import StoreSettings, takes_settings
from mountctl.places import find
from mountctl.reach import reach
from mountctl.verbs.cat import show

POLL_SECONDS = 0.1


@click.command("tail", short_help="Print the newest messages, and those to come.")
@click.argument("place")
@click.argument("target", metavar="TOPIC[/QUEUE]")
@click.option("-n", "--count", default=10, show_default=True, type=click.IntRange(min=0), help="Newest of each queue.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is published, until interrupted.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a message, with all that is known of it.")
@takes_settings
def command(place: str, target: str, count: int, follow: bool, as_json: bool, settings: StoreSettings) -> None:
    """Print the newest messages of a topic or queue, in a store or a mount.

    \b
    Examples:
      mountctl tail /mnt/mq orders
      mountctl tail -f --json /mnt/mq orders/0
    """
    wanted = parse_target(target)
    with reach(find(place), settings, following=follow) as access:
        ends = {}
        for queue in queues_of(access, wanted):
            start = max(queue.min_offset, queue.max_offset - count)
            ends[queue.number] = _show_from(access, wanted.topic, queue.number, start, as_json)
        while follow:
            time.sleep(POLL_SECONDS)
            for number, start in ends.items():
                ends[number] = _show_from(access, wanted.topic, number, start, as_json)


def _show_from(access: Access, topic: str, queue: int, start: int, as_json: bool) -> int:
    """Print what is there from queue offset `start` on; returns where to go on."""
    end = access.bounds(topic, queue).max_offset
    for message in access.messages(topic, queue, start, max(end - start, 0), as_json):
        show(message, as_json, newline=True)
    return max(start, end)

"""mountctl wait: returns when a message arrives."""

from __future__ import annotations

import os
import time

import click

from mountctl.connect import reading
from mountctl.errors import CommandError
from mountctl.options import StoreSettings, takes_settings
from mountctl.places import find
from mountctl.selection import POLL_SECONDS, Target, find_topic, narrowed, parse_target, placed


@click.command("wait", short_help="Return when a message arrives.")
@click.argument("place")
@click.argument("target", metavar="TOPIC[/QUEUE[/OFFSET]]", required=False)
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="End after this time, with exit code 75.")
@takes_settings
def command(place: str, target: str | None, timeout: float | None, settings: StoreSettings) -> None:
    """Return when a topic or queue has a new message, and print its TOPIC/QUEUE/OFFSET. With OFFSET: return when that
    message exists, perhaps at once; so a loop misses none.

    inotify can't replace this: the kernel reports operations on the files of a mount, not new messages.

    \b
    Examples:
      mountctl wait /mnt/mq orders --timeout 1 || echo "no order"
      mountctl wait /mnt/mq orders/0/2
    """
    place, (named, *_) = placed(place, [target], "TOPIC[/QUEUE[/OFFSET]]")
    wanted = parse_target(named)
    give_up = float("inf") if timeout is None else time.monotonic() + timeout
    paths = [Target(wanted.topic, wanted.queue).plain_path]
    with reading(find(place), settings, "tail -n 0 -f", paths, following=True) as store:
        starts = {queue.number: queue.max_offset for queue in narrowed(find_topic(store, wanted.topic), wanted)}
        if wanted.queue is not None and wanted.offset is not None:
            starts[wanted.queue] = wanted.offset
        while not (come := [queue for queue in starts if store.bounds(wanted.topic, queue).max_offset > starts[queue]]):
            if time.monotonic() >= give_up:
                raise CommandError(f"no message came to {named} within {timeout:g} s", exit_code=os.EX_TEMPFAIL)
            time.sleep(POLL_SECONDS)
    for queue in come:
        click.echo(f"{wanted.topic}/{queue}/{starts[queue]}")

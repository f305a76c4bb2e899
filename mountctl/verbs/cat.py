"""mountctl cat: print messages."""

from __future__ import annotations

import os

import click

from mountctl.access import Access, Queue, Shown, Target, parse_target, queues_of
from mountctl.errors import CommandError
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import plural, print_json_line
from mountctl.places import find
from mountctl.reach import reach


@click.command("cat", short_help="Print messages.")
@click.argument("place")
@click.argument("target", metavar="TOPIC[/QUEUE[/OFFSET]]")
@click.option(
    "--from", "start", metavar="OFFSET|TIME", help="First queue offset, or a time: 2026-01-31T09:30, @EPOCH_MS."
)
@click.option("-n", "--count", type=click.IntRange(min=0), help="At most so many messages of each queue.")
@click.option("--key", help="The newest message with this key, instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a message, with all that is known of it.")
@takes_settings
def command(
    place: str,
    target: str,
    start: str | None,
    count: int | None,
    key: str | None,
    as_json: bool,
    settings: StoreSettings,
) -> None:
    """Print messages of a store or mount: each body and a newline; one OFFSET or --key: the body, byte for byte.

    \b
    Examples:
      mountctl cat /mnt/mq orders/0 --from 100 --count 10
      mountctl cat /srv/store orders --key ORDER-17 --json
    """
    wanted = parse_target(target)
    with reach(find(place), settings) as access:
        if key is not None:
            show(_with_key(access, wanted, key), as_json, newline=False)
        elif wanted.offset is not None:
            show(_one(access, wanted, as_json), as_json, newline=False)
        else:
            for queue in queues_of(access, wanted):
                _show_queue(access, wanted.topic, queue, start, count, as_json)


def _with_key(access: Access, target: Target, key: str) -> Shown:
    queues_of(access, target)
    message = access.with_key(target.topic, key)
    if message is None:
        reason = f"no message of {target.topic} has the key {key!r}"
        raise CommandError(reason, "keys are matched whole", os.EX_DATAERR)
    return message


def _one(access: Access, target: Target, attributes: bool) -> Shown:
    (queue,) = queues_of(access, target)
    for message in access.messages(target.topic, queue.number, target.offset or 0, 1, attributes):
        if message.offset == target.offset:
            return message
    reason = f"{target.topic}/{queue.number} has no readable message at offset {target.offset}"
    raise CommandError(reason, f"it holds {queue.min_offset} to {queue.max_offset - 1}", os.EX_DATAERR)


def _show_queue(access: Access, topic: str, queue: Queue, start: str | None, count: int | None, as_json: bool) -> None:
    first = queue.min_offset
    if start is not None:
        asked = int(start) if start.isdecimal() else access.offset_at(topic, queue.number, start)
        first = max(asked, queue.min_offset)
    end = queue.max_offset if count is None else min(first + count, queue.max_offset)
    shown = 0
    for message in access.messages(topic, queue.number, first, max(end - first, 0), as_json):
        show(message, as_json, newline=True)
        shown += 1
    if shown < end - first:
        missing = plural(end - first - shown, "damaged message")
        click.echo(f"mountctl: {topic}/{queue.number}: {missing} left out (see mountctl check)", err=True)


def show(message: Shown, as_json: bool, newline: bool) -> None:
    """Print one message."""
    if as_json:
        print_json_line(message.as_json())
    else:
        click.echo(message.body, nl=newline)

"""mountctl put: publish messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from mountctl.access import Labels, reach
from mountctl.errors import CommandError
from mountctl.places import find
from mountctl.targets import parse_target

CHUNK_BYTES = 1 << 20


@click.command("put", short_help="Publish messages.")
@click.argument("place")
@click.argument("target", metavar="TOPIC[/QUEUE]")
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option("-k", "--key", "keys", multiple=True, help="A key to find the messages by; may be given again.")
@click.option("-t", "--tag", default="", help="The messages' tag.")
@click.option(
    "--file", "files", multiple=True, type=click.Path(path_type=Path, exists=True), help="A file as one message."
)
def command(
    place: str, target: str, messages: tuple[str, ...], keys: tuple[str, ...], tag: str, files: tuple[Path, ...]
) -> None:
    """Publish each MESSAGE, each --file whole, or without either each line of standard input.

    \b
    Examples:
      mountctl put /mnt/mq orders "12 apples" --key ORDER-17 --tag paid
      mountctl put /srv/store orders/0 < orders.txt
    """
    wanted = parse_target(target)
    if wanted.offset is not None:
        raise CommandError(f"{target!r} names one message", "publish to TOPIC or TOPIC/QUEUE", os.EX_USAGE)
    labels = Labels(keys, tag)
    with reach(find(place), writing=True) as access:
        for text in messages:
            access.publish(wanted.topic, wanted.queue, os.fsencode(text), labels)
        for file in files:
            access.publish(wanted.topic, wanted.queue, file.read_bytes(), labels)
        if not messages and not files:
            access.publish_lines(wanted.topic, wanted.queue, _standard_input(), labels)


def _standard_input() -> Iterator[bytes]:
    """Whatever is there, up to a megabyte at a time: a slow writer's lines are not kept waiting for more."""
    while chunk := os.read(sys.stdin.fileno(), CHUNK_BYTES):
        yield chunk

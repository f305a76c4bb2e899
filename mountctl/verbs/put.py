"""mountctl put: publish messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from mountctl.access import Labels, parse_target
from mountctl.errors import CommandError
from mountctl.options import StoreSettings, takes_settings
from mountctl.places import find
from mountctl.reach import reach

CHUNK_BYTES = 1 << 20
STANDARD_INPUT = "-"


@click.command("put", short_help="Publish messages.")
@click.argument("place")
@click.argument("target", metavar="TOPIC[/QUEUE]")
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option("-k", "--key", "keys", multiple=True, help="A key to find the messages by; may be given again.")
@click.option("-t", "--tag", default="", help="The messages' tag.")
@click.option(
    "--file", "files", multiple=True, type=click.Path(path_type=Path, exists=True), help="A file as one message."
)
@takes_settings
def command(
    place: str, target: str, messages: tuple[str, ...], keys: tuple[str, ...], tag: str, files: tuple[Path, ...],
    settings: StoreSettings,
) -> None:  # fmt: skip
    """Publish each MESSAGE, each --file whole, or without either each line of standard input.

    The MESSAGE '-' is standard input as one message. (A message that reads '-' comes from a --file, or as a line.)

    \b
    Examples:
      mountctl put /mnt/mq orders "12 apples" --key ORDER-17 --tag paid
      mountctl put /srv/store orders/0 < orders.txt
      gzip -c report.txt | mountctl put /mnt/mq reports -
    """
    wanted = parse_target(target)
    if wanted.offset is not None:
        raise CommandError(f"{target!r} is the path of one message", "publish to TOPIC or TOPIC/QUEUE", os.EX_USAGE)
    if messages.count(STANDARD_INPUT) > 1:
        raise CommandError("standard input can be read once", "give '-' once", os.EX_USAGE)
    labels = Labels(keys, tag)
    with reach(find(place), settings, writing=True) as access:
        for body in _bodies(messages, files, access.body_limit_bytes()):
            access.publish(wanted.topic, wanted.queue, body, labels)
        if not messages and not files:
            access.publish_lines(wanted.topic, wanted.queue, _chunks(), labels)


def _bodies(messages: tuple[str, ...], files: tuple[Path, ...], limit_bytes: int) -> Iterator[bytes]:
    for text in messages:
        if text == STANDARD_INPUT:
            with open(sys.stdin.fileno(), "rb", closefd=False) as stream:
                yield _whole(stream, "standard input", limit_bytes)
        else:
            yield os.fsencode(text)
    for file in files:
        with file.open("rb") as stream:
            yield _whole(stream, str(file), limit_bytes)


def _whole(stream: BinaryIO, name: str, limit_bytes: int) -> bytes:
    """Everything in `stream`, which may be endless, if that can be a message."""
    body = stream.read(limit_bytes + 1)
    if len(body) > limit_bytes:
        reason = f"{name} is over the limit of {limit_bytes:,} bytes for a message"
        raise CommandError(reason, "publish less, or mount with a larger maxMessageSize", os.EX_DATAERR)
    return body


def _chunks() -> Iterator[bytes]:
    """Standard input, up to a megabyte at a time: a slow writer's lines are not kept waiting for more."""
    while chunk := os.read(sys.stdin.fileno(), CHUNK_BYTES):
        yield chunk

"""mountctl put: publishes messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import click

from engine import IllegalMessageError, Message, MessageTooLargeError, check_message
from fsstore.interface import WHOLE_WRITE_BYTES
from fsstore.jobs.records import Fields, of_line, parts_of
from fsstore.tree.json_messages import parse_json_message
from fsstore.tree.names import AppendOptions
from mountctl.client import Labels, Placed, StoreClient, whole_lines
from mountctl.connect import connect
from mountctl.errors import CommandError
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import plural, print_json_line
from mountctl.places import find, split_path
from mountctl.selection import parse_target, tell_new_topic

STANDARD_INPUT = "-"


@click.command("put", short_help="Publish messages.")
@click.argument("place")
@click.argument("target", metavar="TOPIC[/QUEUE]", required=False)
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option("-k", "--key", "keys", multiple=True, help="A key to find the messages by; may be repeated.")
@click.option("--key-from", "key_field", metavar="FIELD", help="Each message is a JSON object; its key is in FIELD.")
@click.option("-t", "--tag", default="", help="The messages' tag.")
@click.option("-p", "--property", "pairs", multiple=True, metavar="NAME=VALUE", help="A property; may be repeated.")
@click.option(
    "--delay-level", type=click.IntRange(1), help="RocketMQ's delay level for a delivery by a broker: 1 is 1 s."
)
@click.option(
    "--file", "files", multiple=True, type=click.Path(path_type=Path, exists=True), help="A file as one message."
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["raw", "json"]),
    default="raw",
    show_default=True,
    help='json: each is {"body": ..., "keys": [...], "tags": ..., "properties": {...}}, as for append@format=json.',
)
@click.option("-v", "--verbose", is_flag=True, help="Print TOPIC/QUEUE/OFFSET of each message.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
@takes_settings
def command(
    place: str, target: str | None, messages: tuple[str, ...], keys: tuple[str, ...], key_field: str | None, tag: str,
    pairs: tuple[str, ...], delay_level: int | None, files: tuple[Path, ...], kind: str, verbose: bool, as_json: bool,
    settings: StoreSettings,
) -> None:  # fmt: skip
    """Publish each MESSAGE and each --file as one message. Without either, publish each line of standard input.

    The MESSAGE '-' means all of standard input as one message. (To publish a '-', use a --file, or a line.) A path
    below PLACE names both: /mnt/mq/orders.
    On a mount, -v and --json give each message a UNIQ_KEY by which it can be found, as RocketMQ's clients do.

    \b
    Examples:
      mountctl put /mnt/mq orders "12 apples" --key ORDER-17 --tag paid
      mountctl put /srv/store orders/0 < orders.txt
      gzip -c report.txt | mountctl put /mnt/mq reports -
      echo '{"id": "A-1", "sum": 12}' | mountctl put -v /mnt/mq orders --key-from id
    """
    above, below = split_path(place)
    if below:
        place, target, messages = above, below, (() if target is None else (target, *messages))
    elif target is None:
        raise click.UsageError("Missing argument 'TOPIC[/QUEUE]'.", click.get_current_context())
    wanted = parse_target(target)
    if wanted.offset is not None:
        raise CommandError(f"{target!r} is the path of one message", "publish to TOPIC or TOPIC/QUEUE", os.EX_USAGE)
    if messages.count(STANDARD_INPUT) > 1:
        raise CommandError("standard input can be read once", "give '-' once", os.EX_USAGE)
    if keys and key_field:
        raise CommandError("--key and --key-from exclude each other", "give one of them", os.EX_USAGE)
    labels = Labels(keys, tag, _properties(pairs, delay_level))
    told = _tell_json if as_json else _tell if verbose else None
    key_from = _KeyField(key_field) if key_field else None
    with connect(find(place), settings) as client, key_from or nullcontext():
        limit_bytes = client.body_limit_bytes()
        check_message(Message(wanted.topic, b"", labels.keys, labels.tags, labels.properties), limit_bytes)
        tell_new_topic(client, wanted.topic)
        maker = _Maker(wanted.topic, labels, kind == "json", key_from, limit_bytes)
        if messages or files:
            texts = list(maker.made(_texts(messages, limit_bytes)))
            contents = (_whole(file, limit_bytes) for file in files)
            count = len(messages) + len(files)
            with _saying_what_went_in(client, plural(count, "message"), count):
                client.publish(wanted.queue, chain(texts, maker.made(contents)), told)
        else:
            with _saying_what_went_in(client, "standard input"):
                if kind == "raw" and not key_from and not told:
                    client.publish_lines(wanted.topic, wanted.queue, _chunks(), labels)
                else:
                    _publish_records(client, wanted.queue, maker, told)


@contextmanager
def _saying_what_went_in(client: StoreClient, given: str, count: int | None = None) -> Iterator[None]:
    """On an error, print how many messages of `given` were published; `count` is their total, if known."""
    try:
        yield
    except Exception:
        if client.published not in (0, count):
            stored = f"{client.published:,} {'is' if client.published == 1 else 'are'} stored"
            click.echo(f"mountctl: of {given} the first {stored}", err=True)
        raise


def _properties(pairs: tuple[str, ...], delay_level: int | None) -> dict[str, str]:
    properties = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise CommandError(f"invalid property {pair!r}", "give NAME=VALUE", os.EX_USAGE)
        properties[name] = value
    return properties if delay_level is None else {**properties, "DELAY": str(delay_level)}


def _tell(place: Placed) -> None:
    click.echo(f"{place.topic}/{place.queue}/{place.offset}")


def _tell_json(place: Placed) -> None:
    print_json_line(asdict(place))


def _publish_records(
    client: StoreClient, queue: int | None, maker: _Maker, told: Callable[[Placed], None] | None
) -> None:  # fmt: skip
    """Publish each non-empty line of standard input as it arrives."""
    done = 0
    for lines in whole_lines(_chunks()):
        rows = lines.split(b"\n")[:-1]
        client.publish(queue, list(maker.made(rows, done, skip_empty=True)), told)
        done += len(rows)


@dataclass(frozen=True)
class _Maker:
    """Makes messages from bodies, labels and options."""

    topic: str
    labels: Labels
    is_json: bool
    key_from: _KeyField | None
    limit_bytes: int

    def made(self, bodies: Iterable[bytes], first: int = 0, *, skip_empty: bool = False) -> Iterator[Message]:
        """One message per body. WriteError names the body that can't be a message; the messages before it are
        yielded."""
        for number, body in enumerate(bodies, first + 1):
            if skip_empty and not body:
                continue
            try:
                message = self._message(body)
                check_message(message, self.limit_bytes)
            except IllegalMessageError as error:
                raise IllegalMessageError(f"number {number}: {error.reason}") from error
            except MessageTooLargeError as error:
                reason = f"number {number}: {error}"
                raise CommandError(
                    reason, "publish less, or mount with a larger maxMessageSize", os.EX_DATAERR
                ) from error
            yield message

    def _message(self, body: bytes) -> Message:
        labels = self.labels
        keys, tags, properties = labels.keys, labels.tags, dict(labels.properties)
        if self.is_json:
            given = parse_json_message(self.topic, body, AppendOptions(keys=tuple(keys), tags=tags))
            body, keys, tags = bytes(given.body), given.keys, given.tags
            properties |= given.properties
        if self.key_from:
            keys = self.key_from.keys_of(body)
        return Message(self.topic, body, keys, tags, properties)


class _KeyField:
    """The JSON field with a message's key. As a context, it warns at its end of messages without that field."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._messages = 0
        self._keyless = 0

    def keys_of(self, body: bytes) -> list[str]:
        """The keys in a JSON body: none if the field is missing or null. IllegalMessageError."""
        try:
            _, keys, _ = parts_of(*of_line(body, Fields(key=self._name)))
        except ValueError as error:
            raise IllegalMessageError(str(error)) from None
        self._messages += 1
        self._keyless += not keys
        return keys

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._keyless and kind in (None, KeyboardInterrupt):
            lacking = f"{self._keyless:,} of {plural(self._messages, 'message')} have no {self._name!r}"
            click.echo(f"mountctl: {lacking}, and so no key", err=True)


def _texts(messages: tuple[str, ...], limit_bytes: int) -> Iterator[bytes]:
    for text in messages:
        yield _whole(None, limit_bytes) if text == STANDARD_INPUT else os.fsencode(text)


def _whole(file: Path | None, limit_bytes: int) -> bytes:
    """All of `file` or of standard input. CommandError: it exceeds the limit of a body; standard input may be
    endless."""
    with open(file or sys.stdin.fileno(), "rb", closefd=file is not None) as stream:
        body: bytes = stream.read(limit_bytes + 1)
    if len(body) > limit_bytes:
        reason = f"{file or 'standard input'} is over the limit of {limit_bytes:,} bytes for a message"
        raise CommandError(reason, "publish less, or mount with a larger maxMessageSize", os.EX_DATAERR)
    return body


def _chunks() -> Iterator[bytes]:
    """Standard input as it arrives, at most a megabyte at a time."""
    while chunk := os.read(sys.stdin.fileno(), WHOLE_WRITE_BYTES):
        yield chunk

"""Decoding: a command of the user's turns stored bodies into text, one message at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

import click

from fsstore.query.decoding import DecodeError, NoDecoderError, decode
from mountctl.client import MessageRow
from mountctl.errors import INCOMPLETE, CommandError
from mountctl.output import plural, visible

DECODE_SECONDS = 10.0
MOST_DECODED_BYTES = 64 << 20
"""Limits of the command's time and output for one message."""

takes_decode = click.option(
    "--decode",
    metavar="COMMAND",
    help="Run COMMAND in a shell for each message, with the body on standard input; its output replaces the body.",
)


class Decoder:
    """Decodes messages by a command of a shell; by None it leaves them as they are. Those that it can't decode are
    named on standard error, and left out."""

    def __init__(self, command: str | None) -> None:
        self._command = command
        self._failed = 0

    def __bool__(self) -> bool:
        return self._command is not None

    def decoded(self, messages: Iterable[MessageRow]) -> Iterator[MessageRow]:
        """The messages with decoded bodies. CommandError: the command can't be run."""
        if self._command is None:
            yield from messages
            return
        for message in messages:
            body = self._decoded(self._command, (message.topic, message.queue, message.offset), message.body)
            if body is not None:
                yield replace(message, body=body)

    def decoded_bodies(self, rows: Iterable[tuple[str, int, int, bytes]]) -> Iterator[tuple[str, int, int, bytes]]:
        """As `decoded`, for rows of topic, queue, queue offset and body."""
        for topic, queue, offset, stored in rows:
            body = stored if self._command is None else self._decoded(self._command, (topic, queue, offset), stored)
            if body is not None:
                yield topic, queue, offset, body

    def _decoded(self, command: str, slot: tuple[str, int, int], body: bytes) -> bytes | None:
        """None: the command failed, and the message was named."""
        try:
            return decode(command, body, slot, DECODE_SECONDS, MOST_DECODED_BYTES)
        except NoDecoderError as error:
            raise CommandError(f"--decode can't be run: {visible(error.reason)}", exit_code=os.EX_USAGE) from None
        except DecodeError as error:
            self._failed += 1
            place = "/".join(map(str, slot))
            click.echo(visible(f"mountctl: {place} is left out, for --decode failed: {error.reason}"), err=True)
            return None

    def exit_code(self, otherwise: int) -> int:
        """INCOMPLETE, unless `otherwise` is an error, if a message was left out, after their number on standard error;
        else `otherwise`."""
        if not self._failed:
            return otherwise
        click.echo(f"mountctl: {plural(self._failed, 'message')} left out: --decode failed", err=True)
        return max(otherwise, INCOMPLETE)

"""Decoding: a command of the user's turns stored bodies into text, one message at a time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace

import click

from mountctl.client import MessageRow
from mountctl.errors import INCOMPLETE, CommandError
from mountctl.output import plural, visible

DECODE_SECONDS = 10.0
"""Limit of the command's time for one message."""
_NOT_FOUND = (126, 127)
"""Exit codes of a shell that can't run the command."""

takes_decode = click.option(
    "--decode",
    metavar="COMMAND",
    help="Have a shell run COMMAND with each body on its standard input, and take what it prints for the body.",
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
            body, reason = self._run(self._command, message)
            if not reason:
                yield replace(message, body=body)
                continue
            self._failed += 1
            place = f"{message.topic}/{message.queue}/{message.offset}"
            click.echo(visible(f"mountctl: {place} is left out, for --decode failed: {reason}"), err=True)

    def _run(self, command: str, message: MessageRow) -> tuple[bytes, str]:
        """The decoded body, and the reason why there is none."""
        about = {"MQ_TOPIC": message.topic, "MQ_QUEUE": str(message.queue), "MQ_OFFSET": str(message.offset)}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env={**os.environ, **about},
            process_group=0,
        )
        try:
            body, said = process.communicate(message.body, timeout=DECODE_SECONDS)
        except subprocess.TimeoutExpired:
            return b"", f"it took longer than {DECODE_SECONDS:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        words = said.decode(errors="replace").strip().splitlines()
        if process.returncode in _NOT_FOUND:
            raise CommandError(f"--decode can't be run: {visible((words or [command])[0])}", exit_code=os.EX_USAGE)
        reason = f"it ended with {process.returncode}" + (f": {words[0][:200]}" if words else "")
        return body, reason if process.returncode else ""

    def exit_code(self, otherwise: int) -> int:
        """INCOMPLETE, unless `otherwise` is an error, if a message was left out, after their number on standard error;
        else `otherwise`."""
        if not self._failed:
            return otherwise
        click.echo(f"mountctl: {plural(self._failed, 'message')} left out: --decode failed", err=True)
        return max(otherwise, INCOMPLETE)

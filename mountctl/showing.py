r"""Printing of messages: as bodies, JSON, or in a format given by --format.

%B broker   %t topic   %q queue   %o queue offset   %b body   %S its size in bytes   %k keys   %g tag   %m message id
%T store time, epoch ms   %D the same, local   %h properties, NAME=VALUE,...   %{NAME} one   %j JSON   %% a percent
\n \t \r \0 \\ \xHH as in a shell's printf
"""

from __future__ import annotations

import functools
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import click

from mountctl.client import MessageRow
from mountctl.errors import CommandError
from mountctl.output import human_time, json_line, visible

Part: TypeAlias = Callable[[MessageRow], bytes]

_TOKEN = re.compile(r"%\{([^}]*)\}|%(.?)|\\(x[0-9a-fA-F]{2}|.?)|[^%\\]+", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def _attribute(name: str) -> Part:
    return lambda message: message.attributes.get(name, "").encode()


def _properties(message: MessageRow) -> bytes:
    texts = (f"{name}={value}" for name, value in message.properties.items())
    return ",".join(texts).encode()


_DIRECTIVES: dict[str, Part] = {
    "t": lambda message: message.topic.encode(),
    "q": lambda message: b"%d" % message.queue,
    "o": lambda message: b"%d" % message.offset,
    "B": lambda message: message.broker.encode(),
    "b": lambda message: message.body,
    "S": lambda message: b"%d" % len(message.body),
    "k": _attribute("keys"),
    "g": _attribute("tags"),
    "m": _attribute("msg_id"),
    "T": lambda message: b"%d" % message.store_time_ms,
    "D": lambda message: human_time(message.store_time_ms).encode(),
    "h": _properties,
    "j": lambda message: json_line(message.as_json()).encode(),
    "%": lambda message: b"%",
}
_WITHOUT_ATTRIBUTES = frozenset("BtqobS%")


class Format:
    """A parsed --format text. A newline is added to each message, unless the format ends in a newline or NUL."""

    def __init__(self, text: str) -> None:
        """CommandError names the invalid part."""
        self._parts: list[Part] = []
        self.attributes = False
        for match in _TOKEN.finditer(text):
            self._parts.append(self._part(match))
        if not re.search(r"\\[n0]\Z", text):
            self._parts.append(lambda message: b"\n")

    def _part(self, match: re.Match[str]) -> Part:
        name, directive, escape = match.groups()
        if name is not None:
            self.attributes = True
            return _attribute(f"property.{name}")
        if directive is not None:
            if directive not in _DIRECTIVES:
                known = " ".join(f"%{one}" for one in _DIRECTIVES)
                raise CommandError(f"invalid format: no %{directive}", f"there are {known} %{{NAME}}", os.EX_USAGE)
            self.attributes |= directive not in _WITHOUT_ATTRIBUTES
            return _DIRECTIVES[directive]
        if escape is None:
            literal = match[0].encode(errors="surrogateescape")
        elif escape.startswith("x") and len(escape) > 1:
            literal = bytes((int(escape[1:], 16),))
        elif escape in _ESCAPES:
            literal = _ESCAPES[escape]
        else:
            remedy = r"there are \n \t \r \0 \\ \xHH"
            raise CommandError(f"invalid format: no {match[0]}", remedy, os.EX_USAGE)
        return lambda message: literal

    def line(self, message: MessageRow) -> bytes:
        """The output for a message."""
        return b"".join([part(message) for part in self._parts])


class Printer:
    """Prints messages. `attributes`: the messages need their attributes."""

    def __init__(self, as_json: bool, template: str | None) -> None:
        """CommandError: the format is invalid."""
        if as_json and template is not None:
            raise CommandError("--json and --format exclude each other", "give one of them; %j is JSON", os.EX_USAGE)
        self.as_json = as_json
        text = "%j" if as_json else template
        self._format: Format | None = None if text is None else Format(text)
        self.attributes = self._format is not None and self._format.attributes
        out = sys.stdout.buffer
        is_buffered = isinstance(out, io.BufferedIOBase)  # false with PYTHONUNBUFFERED
        self._out = out if is_buffered else io.BufferedWriter(io.FileIO(out.fileno(), "wb", closefd=False))

    @property
    def formats(self) -> bool:
        """Whether the output is more or other than bodies."""
        return self._format is not None

    def line(self, message: MessageRow) -> None:
        """Print one of several messages: its body and a newline, or as the format says. Lines of a body from several
        brokers begin with its broker."""
        if self._format:
            self.raw(self._format.line(message))
        elif message.broker:
            self.raw(led_by(f"{message.broker}:".encode(), message.body))
        else:
            self.raw(message.body + b"\n")

    def alone(self, message: MessageRow) -> None:
        """Print a single message: its body byte for byte (with a newline on a terminal), or as the format says."""
        if self._format:
            self.raw(self._format.line(message))
        else:
            needs_newline = sys.stdout.isatty() and not message.body.endswith(b"\n")
            self.raw(message.body + b"\n" * needs_newline)

    def raw(self, line: bytes | memoryview) -> None:
        """Print bytes unchanged."""
        self._out.write(line)

    def flush(self) -> None:
        """Write buffered output."""
        self._out.flush()


def led_by(lead: bytes, text: bytes) -> bytes:
    """Each line of the text, after `lead`."""
    return lead + text.replace(b"\n", b"\n" + lead) + b"\n"


@contextmanager
def printing(as_json: bool, template: str | None) -> Iterator[Printer]:
    """A printer, flushed at the block's end."""
    printer = Printer(as_json, template)
    yield printer
    printer.flush()


def tell_left_out(sentence: str) -> None:
    """Warn on standard error of messages that are skipped."""
    click.echo(visible(f"mountctl: {sentence}"), err=True)


def takes_format(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb --json and --format; its function gets them as `printer`."""

    @functools.wraps(command)
    def with_printer(as_json: bool, template: str | None, **rest: Any) -> Any:
        with printing(as_json, template) as printer:
            return command(printer=printer, **rest)

    formatted = click.option(
        "--format",
        "template",
        metavar="FORMAT",
        help="Output format: %B broker, %t topic, %q queue, %o offset, %b body, %S its size, %k keys, %g tag, "
        "%m message id, %T store time in ms, %D the same as a date, %h properties, %{NAME} one of them, %j JSON; "
        "\\n, \\t, \\0.",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per message, with all its fields.")
    return as_json(formatted(with_printer))

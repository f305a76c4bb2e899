"""What is made of docstrings and help texts: docs/api.md, the reference of the Python API, and docs/mountctl.1.

    ./run docs

writes both; a test compares them with what would be written.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import click
import numpy as np

import engine
from engine.log.entries import ENTRY
from engine.record.parsed_headers import HEADER
from fsstore import aio, arrow
from mountctl.main import VERBS, cli

PROJECT = Path(__file__).resolve().parents[2]
API, MANUAL = PROJECT / "docs/api.md", PROJECT / "docs/mountctl.1"

MAIN = ("MessageStore", "Queue", "Message", "StoredMessage")
SETTINGS = ("StoreConfig", "OpenMode", "FlushPolicy", "Retention", "FileSizes")
COLUMNS = ("Columns", "ByteColumn", "SliceColumn", "CodedColumn", "Held", "Block", "Bodies", "Outline", "Lists")
ANSWERS = (
    *("PutResult", "PutRange", "QueueBounds", "QueueState", "StoreStats", "RecoveryReport", "IndexState", "Problem"),
    *("ProblemKind", "Deletion", "Host"),
)
EVENTS = ("StoreListener", "Expired", "NewsWatch")
FUNCTIONS = ("check_store", "repair_store", "check_message", "topic_problem", "writer_of")
DEADLINES = ("nonblocking", "within", "WouldBlock")

DTYPES: dict[str, tuple[np.dtype[Any], str, dict[str, str]]] = {
    "HEADER": (
        HEADER,
        "dtype of `headers` and of `Columns.headers`: native byte order, a row a message.",
        {
            "queue_offset": "number of the message in its queue",
            "physical_offset": "byte of the commit log where its record begins",
            "store_size": "bytes of the record",
            "body_size": "bytes of the body; -1: compressed, so not known (`Columns` has decompressed it, and knows)",
            "store_time_ms": "when it was stored: milliseconds since 1970, UTC",
            "sys_flag": "bits: compression, transaction, batch, IPv6 hosts",
            "ok": "whether the record is whole; the other fields mean nothing where it is false",
        },
    ),
    "ENTRY": (
        ENTRY,
        "dtype of `entries`: big-endian, as in the file; `.astype` with a native dtype is faster to count with.",
        {
            "physical_offset": "byte of the commit log where the record begins",
            "size": "bytes of the record; 2147483647: a blank before the first message",
            "tags_code": "hash of the tag, as Java's String.hashCode; of a delayed message, when it is due (ms)",
        },
    ),
}
"""Arrays that methods of the page return: what they are, and what each field means."""


FIELD = re.compile(r"(\w[\w.]*(?:, \w+)*)  +(\S.*)")
"""A line of a docstring's table of fields."""


def documented(thing: Any) -> str:
    """A docstring as Markdown: its examples in fences, its tables of fields as tables."""
    parts = (inspect.getdoc(thing) or "").split("\n\n")
    return "\n\n".join(
        f"```python\n{part}\n\n```" if part.startswith(">>>") else table(part) if FIELD.match(part) else part
        for part in parts
    )


def table(text: str) -> str:
    """A docstring's lines of names and meanings as a table; a line that begins with a space goes on."""
    rows: list[tuple[str, str]] = []
    for line in text.splitlines():
        found = FIELD.fullmatch(line)
        if found:
            rows.append((", ".join(f"`{name}`" for name in found[1].split(", ")), found[2]))
        else:
            names, meaning = rows.pop()
            rows.append((names, f"{meaning} {line.strip()}"))
    return "| field | |\n|---|---|\n" + "\n".join(f"| {names} | {meaning} |" for names, meaning in rows)


def fields_of(name: str) -> Iterator[str]:
    """The paragraphs about the dtype of an array."""
    kind, text, meanings = DTYPES[name]
    assert kind.names is not None
    assert list(kind.names) == list(meanings)
    yield f"### {name}"
    yield text
    rows = (f"| `{field}` | `{kind[field].name}` | {meaning} |" for field, meaning in meanings.items())
    yield "| field | type | |\n|---|---|---|\n" + "\n".join(rows)


def signature(name: str, thing: Any) -> str:
    """How it is called."""
    try:
        shown = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return name
    shown = re.sub(
        r"<[\w -]*(?:function|method) ([\w.<>]+) at 0x\w+>", r"\1", re.sub(r"(: |-> )'([^']*)'", r"\1\2", shown)
    )
    shown = re.sub(r"ForwardRef\('([^']*)'[^)]*\)", r"\1", shown)
    # where a name is defined differs between versions of Python, and a reader imports it from the front door
    shown = re.sub(r"\b(?:engine|pathlib|collections|numpy|typing)(?:\.\w+)*\.(\w+)", r"\1", shown)
    return name + re.sub(r"\((self|cls)(, )?", "(", shown)


def members(kind: type) -> Iterator[tuple[str, str]]:
    """Public members that a class defines itself, with their docstrings."""
    for name in dir(kind) if not hasattr(kind, "__dict__") else list(kind.__dict__):
        thing = inspect.getattr_static(kind, name)
        if name.startswith("_") or not (thing.__doc__ or ""):
            continue
        function = thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing
        if inspect.isfunction(function):
            yield signature(name, function), documented(function)
        elif isinstance(thing, property) or inspect.isgetsetdescriptor(thing) or inspect.ismethoddescriptor(thing):
            yield name, documented(thing)


def reference_of(name: str) -> Iterator[str]:
    """The paragraphs about one name of the engine's."""
    thing = getattr(engine, name)
    yield f"### {name}"
    if isinstance(thing, type) and issubclass(thing, Enum):
        yield documented(thing)
        yield ", ".join(f"`{one.name}`" for one in thing)
        return
    if dataclasses.is_dataclass(thing) or not isinstance(thing, type) or issubclass(thing, tuple) or name == "Message":
        yield f"`{signature(name, thing)}`"
    yield documented(thing)
    if isinstance(thing, type):
        for shown, text in members(thing):
            yield f"**`{shown}`**"
            yield text


def error_tree(kind: type[BaseException], depth: int = 0) -> Iterator[str]:
    """The errors, each below the one that catches it, too."""
    first, *_ = documented(kind).split("\n\n")
    yield f"{'  ' * depth}- `{kind.__name__}`: {' '.join(first.split())}"
    for below in kind.__subclasses__():
        yield from error_tree(below, depth + 1)


def api() -> str:
    """docs/api.md."""
    parts = [
        "# The Python API",
        "Made by `./run docs` from the docstrings; a test runs its examples. A program imports from `engine`, "
        "`fsstore.arrow` and `fsstore.aio` alone; what is not on this page may change ([versions](versions.md)).",
        "Times are milliseconds since 1970 in UTC and end with `_ms`, sizes are bytes, a `queue` is its number in the "
        "topic.",
        documented(engine),
        "## The store and its messages",
        *(part for name in MAIN for part in reference_of(name)),
        "## Arrow",
        f"### {arrow.to_arrow.__name__}",
        f"`{signature('fsstore.arrow.to_arrow', arrow.to_arrow)}`",
        documented(arrow.to_arrow),
        "## Event loops",
        "### follow",
        f"`{signature('fsstore.aio.follow', aio.follow)}`",
        documented(aio.follow),
        "## Columns",
        "Of queries over many messages: arrays of numpy, without an object for each message.",
        *(part for name in COLUMNS for part in reference_of(name)),
        *(part for name in DTYPES for part in fields_of(name)),
        "## How a store is opened",
        *(part for name in SETTINGS for part in reference_of(name)),
        "## What is answered",
        *(part for name in ANSWERS for part in reference_of(name)),
        "## Events",
        *(part for name in EVENTS for part in reference_of(name)),
        "## Calls that take long",
        "Some calls may take long: they decompress, read a disk, sum sizes. On a thread that must not wait, such as an "
        "event loop's, make them within one of these.",
        *(part for name in DEADLINES for part in reference_of(name)),
        "## Functions",
        *(part for name in FUNCTIONS for part in reference_of(name)),
        "## Errors",
        "\n".join(error_tree(engine.StoreError)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def roff(text: str) -> str:
    """Text, so that nothing in it is a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def paragraphs(help_text: str) -> Iterator[str]:
    """A help text: after \\b lines stay lines."""
    for paragraph in inspect.cleandoc(help_text).split("\n\n"):
        if paragraph.startswith("\b"):
            yield f".PP\n.nf\n{roff(paragraph.removeprefix(chr(8)).strip(chr(10)))}\n.fi"
        else:
            yield f".PP\n{roff(' '.join(paragraph.split()))}"


def manual_of(path: str, command: click.Command, parent: click.Context) -> Iterator[str]:
    """The section of a verb, and those of its own verbs."""
    context = click.Context(command, info_name=path.split()[-1], parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f'.SS "{roff(path)} {roff(usage)}"'
    yield from paragraphs(command.help or "")
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            yield f".TP\n.B {roff(record[0])}\n{roff(record[1])}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from manual_of(f"{path} {name}", below, context)


def manual() -> str:
    """docs/mountctl.1."""
    root = click.Context(cli, info_name="mountctl")
    codes = (PROJECT / "docs/operations.md").read_text().partition("| code | meaning |\n|---|---|\n")[2]
    rows = [row.strip("| ").split(" | ") for row in codes.partition("\n\n")[0].splitlines()]
    commands = [(name, cli.get_command(root, name)) for name in VERBS]
    parts = [
        '.TH MOUNTCTL 1 "" fsstore "User Commands"',
        ".SH NAME\nmountctl \\- mount message stores in Apache RocketMQ's format, and look after them",
        ".SH SYNOPSIS\n.B mountctl\n.I VERB\n[OPTIONS] ...",
        ".SH DESCRIPTION",
        *paragraphs(cli.help or ""),
        ".SH VERBS",
        *(part for name, command in commands if command for part in manual_of(f"mountctl {name}", command, root)),
        ".SH EXIT STATUS",
        *(f".TP\n.B {code}\n{roff(meaning.replace('`', ''))}" for code, meaning in rows),
        ".SH SEE ALSO\n.BR mount (8),\n.BR fusermount3 (1)",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write both."""
    API.write_text(api())
    MANUAL.write_text(manual())


if __name__ == "__main__":
    main()

"""Formatting and printing: human sizes and times, JSON, tables, and progress on a terminal."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import click

Show: TypeAlias = Callable[[str, int, int], None]
"""Called with a stage's name, the amount done, and the total."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def human_size(size_bytes: int) -> str:
    """1536 -> '1.5 KiB'."""
    size = float(size_bytes)
    for unit in _UNITS:
        if abs(size) < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def human_time(time_ms: int) -> str:
    """Epoch milliseconds as local time, to the millisecond."""
    return datetime.fromtimestamp(time_ms / 1000).isoformat(sep=" ", timespec="milliseconds")


def human_seconds(seconds: float) -> str:
    """0.25 -> '0.25 s', 3700 -> '1 h 1 min'."""
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min {int(seconds % 60)} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def plural(count: int, noun: str) -> str:
    """3, 'message' -> '3 messages'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def visible(text: str | Path) -> str:
    """`text` with escapes for characters that move a terminal's cursor or hide other text."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in str(text))


def visible_lines(text: str) -> str:
    """As `visible`, with newlines and tabs as they are."""
    return re.sub(r"[^\n\t]+", lambda part: visible(part[0]), text)


def print_line(text: str) -> None:
    """A line on standard output, above a progress bar where there is one."""
    click.echo(text, file=sys.stdout)  # click.echo would look up the stream behind the bar's replacement of sys.stdout


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print_line(_visible_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_json_line(value: Any) -> None:
    """One JSON document on a line of standard output."""
    print_line(json_line(value))


def json_line(value: Any) -> str:
    """One JSON document on one line of standard output."""
    return _visible_json(json.dumps(value, ensure_ascii=False))


def _visible_json(text: str) -> str:
    """The same document, with escapes for invisible characters in its strings."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns as wide as their content needs; numeric columns, except the first, are right-aligned. Names come
    from stores, so cells are printed with escapes for invisible characters."""
    shown = [tuple(map(visible, row)) for row in rows]
    columns = list(zip(titles, *shown, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numbers = [number > 0 and all(cell[:1].isdigit() for cell in column[1:]) for number, column in enumerate(columns)]
    for line in (tuple(titles), *shown):
        cells = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(line, widths, numbers, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


@contextmanager
def progress(quiet: bool = False, *, counts: bool = False) -> Iterator[Show]:
    """A progress bar on standard error during the block; silent unless that is a terminal. The amount done is in bytes,
    or in items with `counts`."""
    if quiet or not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = MofNCompleteColumn() if counts else DownloadColumn(binary_units=True)
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    console = Console(stderr=True)
    # `print_line` prints above the bar if both are on the terminal; piped output goes into the pipe
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty())
    task = bar.add_task("", total=None)

    def show(stage: str, done: int, total: int) -> None:
        bar.update(task, description=stage, completed=done, total=total)
        bar.start()  # at the first call: quick work shows no bar

    try:
        yield show
    finally:
        if bar.live.is_started:  # on a terminal without cursor control, `stop` would print a newline
            bar.stop()


def throttled(show: Show, interval_seconds: float, clock: Callable[[], float] = time.monotonic) -> Show:
    """`show`, limited to one call per interval, and one at the end of each stage."""
    last = float("-inf")

    def shown(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = clock()
        if now - last >= interval_seconds or done >= total:
            last = now
            show(stage, done, total)

    return shown


@contextmanager
def shown() -> Iterator[Any]:
    """A function that shows lines: on a terminal it replaces the last ones."""
    if not sys.stdout.isatty():
        yield lambda lines: click.echo("\n".join([*lines, ""]))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        yield lambda lines: live.update(Text("\n".join(lines), no_wrap=True), refresh=True)

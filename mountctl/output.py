"""How things are shown: human sizes and times, JSON, tables, and progress on a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import click

Show: TypeAlias = Callable[[str, int, int], None]
"""Takes a stage's name, how much of it is done, and how much there is."""

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
    """`text` for a terminal: what would move its cursor, or hide other text, as escapes."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in str(text))


def print_line(text: str) -> None:
    """A line on standard output, above a progress bar where there is one."""
    click.echo(text, file=sys.stdout)  # named, for click looks for the stream behind the one that a bar puts there


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print_line(_visible_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_json_line(value: Any) -> None:
    """One JSON document on a line of standard output."""
    print_line(json_line(value))


def json_line(value: Any) -> str:
    """One JSON document on one line: for streams of them."""
    return _visible_json(json.dumps(value, ensure_ascii=False))


def _visible_json(text: str) -> str:
    """The same document, with escapes for all in its strings that is not visible."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns wide enough for what is in them: text to the left, and to the right what are numbers in each row, but in
    the first column. Names come from stores: no cell reaches a terminal with anything that is not visible."""
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
    """A progress bar on standard error while the block runs; silent when that is not a terminal.

    What is done is bytes, or with `counts` things.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = MofNCompleteColumn() if counts else DownloadColumn(binary_units=True)
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    console = Console(stderr=True)
    # what `print_line` prints meanwhile goes above the bar when both are on the terminal, and into the pipe when it is
    # piped
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty())
    task = bar.add_task("", total=None)

    def show(stage: str, done: int, total: int) -> None:
        bar.update(task, description=stage, completed=done, total=total)
        bar.start()  # at the first call: what is quick shows none

    try:
        yield show
    finally:
        if bar.live.is_started:  # else a newline would be printed where the terminal can do no more
            bar.stop()


def throttled(show: Show, interval_seconds: float, clock: Callable[[], float] = time.monotonic) -> Show:
    """`show`, called at most once an interval (and for each stage's end)."""
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
    """A function that shows lines: in place of the last ones on a terminal, else below them."""
    if not sys.stdout.isatty():
        yield lambda lines: click.echo("\n".join([*lines, ""]))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        yield lambda lines: live.update(Text("\n".join(lines), no_wrap=True), refresh=True)

"""mountctl hist: counts messages by time, topic, tag, queue or the value of a field."""

from __future__ import annotations

import csv
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fsstore.query.expression import WhereError, parse_field
from fsstore.query.hist import OTHERS, Bar, QueueRange, Split, edges_of, fitting_span_ms, histogram, times_of
from fsstore.query.times import parse_span_ms
from mountctl.bar_chart import MOST_SPANS, drawn, require_library
from mountctl.connect import reading
from mountctl.errors import CommandError
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import human_size, human_time, json_line, print_json_line, print_table
from mountctl.places import find
from mountctl.selection import Selection, parse_target, parse_where, placed, ranges_of, takes_where

FEW_SPANS = 60
LABELS: tuple[Split, ...] = ("topic", "queue", "tag")
"""The values of --by other than a span of time."""
NARROW, WIDE = 10, 60
"""Columns of the longest bar."""


@click.command("hist", short_help="Count messages by time, topic, tag, queue or field.")
@click.argument("place")
@click.argument("targets", metavar="[TOPIC[/QUEUE]]...", nargs=-1)
@click.option(
    "--by",
    metavar="SPAN|topic|queue|tag",
    help="A span of time like 30s, 1m, 1d; or topic, queue or tag. Default: a span that makes up to 60 rows, or with "
    "--field the field alone.",
)
@click.option("--field", metavar="NAME", help="Count each value of this JSON field separately: level, user.id.")
@click.option("--from", "start", metavar="OFFSET|TIME", help="First queue offset, or a time as for cat.")
@click.option("--until", "end", metavar="OFFSET|TIME", help="End before this queue offset or time.")
@takes_where
@click.option("--json", "as_json", is_flag=True, help="One JSON object per row.")
@click.option("--csv", "as_csv", is_flag=True, help="Rows as CSV, with a header.")
@click.option(
    "--png",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw the bars into FILE, a picture. Needs matplotlib.",
)
@takes_settings
def command(
    place: str, targets: tuple[str, ...], by: str | None, field: str | None, start: str | None, end: str | None,
    where: str | None, as_json: bool, as_csv: bool, png: Path | None, settings: StoreSettings,
) -> int:  # fmt: skip
    """Show the number of messages of a store or mount, and the bytes of their records in the log, as bars. Without
    TOPIC: of all topics.

    Without --field, --where and --by tag no message is read, and damaged ones are counted, too. At most 10,000 values
    are counted separately; messages with other values are in rows of "(others)", and the exit code is then 4.

    \b
    Examples:
      mountctl hist /mnt/mq orders --by 1m --from -1h
      mountctl hist /mnt/mq --by topic
      mountctl hist /mnt/mq orders --by 1h --field level --where 'ms > 500' --csv
      mountctl hist /mnt/mq orders --by 1m --field level --png orders.png
    """
    if as_json + as_csv + (png is not None) > 1:
        raise CommandError("--json, --csv and --png exclude each other", exit_code=os.EX_USAGE)
    if png is not None:
        require_library()
    span_ms, split = _parsed(by, field)
    by_time = span_ms is not None or split is None
    selection = Selection(start, end, where=parse_where(where))
    place, named = placed(place, targets)
    wanted = [parse_target(target) for target in named or ["*"]]
    with reading(find(place), settings, "wc -l", [target.plain_path for target in wanted]) as store:
        found = ranges_of(store, wanted, selection) if named or store.topics() else []
        ranges = [QueueRange(one.topic, one.queue, one.start, one.end) for one in found if one.start < one.end]
        times = times_of(store.store, ranges) if by_time else None
        edges = _edges(*times, span_ms) if times else []
        if png is not None and len(edges) - 1 > MOST_SPANS:
            reason = f"{len(edges) - 1:,} spans of time are more than the {MOST_SPANS:,} that a picture has room for"
            raise CommandError(reason, "give a longer span, or --from", os.EX_USAGE)
        bars = histogram(store.store, ranges, edges, split, selection.where, store.left_out.noting) if ranges else []
        for one in ranges:
            store.note_expired(*one)
        if any(bar.label == OTHERS for bar in bars):
            store.left_out.limit("there are too many values: those of (others) are counted together")
        code = store.left_out.exit_code()
    label = "" if split is None else str(by) if field is None else field
    if png is not None:
        drawn(bars, edges, label, _text_of, ", ".join(named) or "all topics").savefig(png, format="png")
    elif as_json or as_csv:
        _print_rows(["time"] * by_time + ["value" if field else label] * bool(label), bars, as_csv)
    else:
        _print_bars(["time"] * by_time + [label] * bool(label), bars)
    return code


def _parsed(by: str | None, field: str | None) -> tuple[int | None, Split]:
    """The span in milliseconds, and by what messages are counted apart. CommandError."""
    split: Split = None
    if field is not None:
        try:
            split = parse_field(field)
        except WhereError as error:
            raise CommandError(f"--field: {error}", "see docs/where.md", os.EX_USAGE) from None
    if by is None:
        return None, split
    if by in LABELS:
        if field is not None:
            raise CommandError(f"--field and --by {by} exclude each other", "give --by a span of time", os.EX_USAGE)
        return None, LABELS[LABELS.index(by)]
    span_ms = parse_span_ms(by)
    if not span_ms:
        remedy = "give a span like 30s, 1m, 1d, or topic, queue, tag; --field NAME counts by a field"
        raise CommandError(f"invalid --by {by!r}", remedy, os.EX_USAGE)
    return span_ms, split


def _edges(first_ms: int, last_ms: int, span_ms: int | None) -> list[int]:
    """The edges of spans of time; of a length that fits for None. CommandError: they are too many."""
    try:
        return edges_of(first_ms, last_ms, span_ms or fitting_span_ms(first_ms, last_ms, FEW_SPANS))
    except ValueError as error:
        raise CommandError(str(error), "give a longer span, or --from", os.EX_USAGE) from None


def _print_rows(names: Sequence[str], bars: Sequence[Bar], as_csv: bool) -> None:
    titles = [*names, "messages", "bytes"]
    rows = ([*_cells(names, bar), bar.messages, bar.stored_bytes] for bar in bars)
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(titles)
        writer.writerows(rows)
    else:
        for row in rows:
            print_json_line(dict(zip(titles, row, strict=True)))


def _cells(names: Sequence[str], bar: Bar) -> list[Any]:
    """The time, unless all are one, and the label, if there is one."""
    times = [] if bar.time_ms is None else [bar.time_ms]
    return [*times, *[bar.label] * (len(names) - len(times))]


def _text_of(label: Any) -> str:
    return "" if label is None else label if isinstance(label, str) else json_line(label)


def _print_bars(names: Sequence[str], bars: Sequence[Bar]) -> None:
    most = max((bar.messages for bar in bars), default=0)
    rows = []
    for bar in bars:
        cells = [human_time(bar.time_ms)] if bar.time_ms is not None else []
        cells += [_text_of(bar.label)] * (len(names) - len(cells))
        rows.append([*cells, f"{bar.messages:,}", human_size(bar.stored_bytes)])
    titles = [name.upper() for name in (*names, "messages", "bytes")]
    columns = zip(titles, *rows, strict=True)
    taken = sum(max(map(len, column)) + 2 for column in columns)
    width = min(max(shutil.get_terminal_size().columns - taken, NARROW), WIDE)
    bars_shown = [_blocks(bar.messages * width * 8 // max(most, 1)) for bar in bars]
    print_table([*titles, ""], [[*row, shown] for row, shown in zip(rows, bars_shown, strict=True)])


def _blocks(eighths: int) -> str:
    """A bar of so many eighths of a column."""
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()

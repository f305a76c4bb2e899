"""mountctl fields: tells which fields the JSON bodies of topics have, from a sample."""

from __future__ import annotations

from typing import Any

import click

from fsstore.query.expression import field_text
from fsstore.query.fields import SAMPLE, FieldFacts, Sample, draw
from fsstore.query.hist import QueueRange
from mountctl.connect import reading
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import json_line, plural, print_json, print_table
from mountctl.places import find
from mountctl.selection import Selection, parse_target, placed, ranges_of

FREQUENT = 3
LONGEST = 30
"""Characters of a value in the table."""


@click.command("fields", short_help="Show the fields of JSON bodies.")
@click.argument("place")
@click.argument("targets", metavar="TOPIC[/QUEUE]...", nargs=-1)
@click.option("-n", "--count", type=click.IntRange(1), default=SAMPLE, show_default=True, help="Size of the sample.")
@click.option("--from", "start", metavar="OFFSET|TIME", help="First queue offset, or a time as for cat.")
@click.option("--until", "end", metavar="OFFSET|TIME", help="End before this queue offset or time.")
@click.option("--json", "as_json", is_flag=True, help="Print all as JSON.")
@takes_settings
def command(
    place: str, targets: tuple[str, ...], count: int, start: str | None, end: str | None, as_json: bool,
    settings: StoreSettings,
) -> int:  # fmt: skip
    """Show the fields of bodies that are JSON objects: types, share of the messages that have them, smallest, largest
    and most frequent values. Names are printed as --where takes them.

    The verb looks at a sample, drawn over the queue offsets, and prints its size and the largest error of the shares.
    If the sample had to be cut, at 64 MiB of bodies or at 1,000 fields, standard error says so, and the exit code is
    4.

    \b
    Examples:
      mountctl fields /mnt/mq orders
      mountctl fields /mnt/mq orders --from -1h --json
    """
    place, named = placed(place, targets, "TOPIC[/QUEUE]...")
    wanted = [parse_target(target) for target in named]
    with reading(find(place), settings, "head", [target.plain_path for target in wanted]) as store:
        found = ranges_of(store, wanted, Selection(start, end))
        ranges = [QueueRange(one.topic, one.queue, one.start, one.end) for one in found if one.start < one.end]
        sample = draw(store.store, ranges, count, store.left_out.noting)
        for one in ranges:
            store.note_expired(*one)
        if sample.is_cut:
            store.left_out.limit("the bodies are too large, or their fields too many, to look at all")
        code = store.left_out.exit_code()
    (_print_json if as_json else _print_table)(sample)
    return code


def _print_table(sample: Sample) -> None:
    off = f"; shares may be {sample.margin:.1%} off" if sample.margin else ""
    objects = sample.objects / max(sample.drawn, 1)
    of = f"{sample.drawn:,} of {plural(sample.there, 'message')}"
    click.echo(f"{of} looked at, {objects:.1%} are JSON objects{off}")
    titles = "FIELD", "SHARE", "TYPES", "LEAST", "GREATEST", "FREQUENT"
    print_table(titles, [_row(sample, path, facts) for path, facts in sample.fields.items()])


def _row(sample: Sample, path: tuple[str, ...], facts: FieldFacts) -> list[str]:
    is_text = False not in facts.least  # numbers count where there are both
    least, greatest = (_short(found.get(is_text)) for found in (facts.least, facts.greatest))
    frequent = (f"{_short(value)} {count / sample.drawn:.1%}" for value, count in facts.frequent(FREQUENT))
    share = f"{facts.messages / sample.drawn:.1%}"
    return [field_text(path), share, ", ".join(dict(facts.types.most_common())), least, greatest, ", ".join(frequent)]


def _short(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else json_line(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _print_json(sample: Sample) -> None:
    fields = {
        field_text(path): {
            "messages": facts.messages,
            "types": dict(facts.types),
            "least": list(facts.least.values()),
            "greatest": list(facts.greatest.values()),
            "frequent": [{"value": value, "messages": count} for value, count in facts.frequent(10)],
        }
        for path, facts in sample.fields.items()
    }
    print_json(
        {"messages": sample.there, "sample": sample.drawn, "objects": sample.objects, "margin": sample.margin,
         "is_cut": sample.is_cut, "fields": fields}
    )  # fmt: skip

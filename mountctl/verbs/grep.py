"""mountctl grep: searches messages."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import groupby, islice

import click

from mountctl.client import PARTS, Bodies, MessageRow
from mountctl.connect import reading
from mountctl.errors import FINDINGS, CommandError
from mountctl.local_store import LocalStore
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import visible
from mountctl.pattern import Needed, Pattern
from mountctl.places import find
from mountctl.selection import (
    Range,
    Selection,
    messages_in,
    messages_with_key,
    parse_target,
    ranges_of,
    takes_selection,
)
from mountctl.showing import Printer, takes_format

MATCH, PLACE, PLAIN = "\x1b[1;31m", "\x1b[35m", "\x1b[0m"
READ_TOGETHER = 256
FEW = 8
"""Messages are read as a range if more than one in FEW is wanted."""
SAMPLE = 8_192
"""Number of messages sampled to find the rarest of several texts."""


@dataclass(frozen=True, slots=True)
class Search:
    """A pattern and the `parts` of messages to search; "body" is one of the parts."""

    pattern: Pattern
    invert: bool
    parts: frozenset[str]

    def texts(self, message: MessageRow) -> list[bytes]:
        """The searched texts of a message; parts other than the body need its attributes."""
        texts = [text.encode() for part in sorted(self.parts & PARTS.keys()) for text in PARTS[part](message)]
        return [*texts, message.body] if "body" in self.parts else texts

    def takes(self, message: MessageRow) -> bool:
        """Whether the search selects the message."""
        return any(map(self.pattern.is_in, self.texts(message))) is not self.invert


@click.command("grep", short_help="Search messages.")
@click.argument("place")
@click.argument("text", metavar="PATTERN")
@click.argument("targets", metavar="[TOPIC[/QUEUE]]...", nargs=-1)
@click.option("-F", "--fixed-strings", "fixed", is_flag=True, help="PATTERN is a literal text, no regular expression.")
@click.option("-i", "--ignore-case", "any_case", is_flag=True, help="Ignore case.")
@click.option("-v", "--invert-match", "invert", is_flag=True, help="Select messages that don't match.")
@click.option("-c", "--count", "counting", is_flag=True, help="Print the number of matching messages of each topic.")
@click.option("-l", "--topics", "listing", is_flag=True, help="Print only the topics that have a matching message.")
@click.option("-o", "--only-matching", "only", is_flag=True, help="Print only the matches, one per line.")
@click.option("-m", "--max-count", "most", type=click.IntRange(1), help="The most messages of each topic.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing, and end at the first match.")
@click.option("-H", "--where", is_flag=True, help="Print TOPIC/QUEUE/OFFSET first; default for several topics.")
@click.option(
    "--in", "parts", multiple=True, type=click.Choice(["body", *PARTS]), help="The part to search; default: the body."
)
@click.option("--color", "colour", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@takes_selection
@takes_format
@partial(takes_settings, names=["--option"])
def command(
    place: str, text: str, targets: tuple[str, ...], fixed: bool, any_case: bool, invert: bool, counting: bool,
    listing: bool, only: bool, most: int | None, quiet: bool, where: bool, parts: tuple[str, ...], colour: str,
    selection: Selection, printer: Printer, settings: StoreSettings,
) -> int:  # fmt: skip
    """Print the messages of a store or mount that match PATTERN, a regular expression of Python's. Without TOPIC
    all topics are searched. ^ and $ match at each line of a body.

    The exit code is 0 with a match, 1 without, and greater after an error.

    \b
    Examples:
      mountctl grep /mnt/mq 'order [0-9]' orders
      mountctl grep /srv/store -Fc 'order 7'
      mountctl grep /mnt/mq -i 'ORDER 3|order 4' 'ord*' --from -1h --json
      mountctl grep /mnt/mq '^KEYS=ORDER-' --in properties -o
    """
    search = Search(Pattern(text, fixed=fixed, any_case=any_case), invert, frozenset(parts) or frozenset({"body"}))
    if sum((counting, listing, only, quiet)) > 1:
        raise CommandError("-c, -l, -o and -q exclude each other", "give one of them", os.EX_USAGE)
    if (counting or listing or only) and printer.formats:
        raise CommandError("--json and --format print messages", "leave -c, -l, -o out", os.EX_USAGE)
    wanted = [parse_target(target) for target in targets or ["*"]]
    if any(target.offset is not None for target in wanted):
        raise CommandError("one message is not searched", "give TOPIC or TOPIC/QUEUE", os.EX_USAGE)
    is_coloured = colour == "always" or (colour == "auto" and sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    found = False
    paths = [target.plain_path for target in wanted]
    with reading(find(place), settings, f"grep -P {shlex.quote(text)}", paths) as store:
        ranges = ranges_of(store, wanted, selection) if targets or store.topics() else []
        topics = [(topic, list(own)) for topic, own in groupby(ranges, lambda chosen: chosen.topic)]
        show = _Shower(search, printer, is_coloured, only, where or len(topics) > 1)
        for topic, own in topics:
            few = 1 if listing or quiet else most
            groups = _at_most(_matches(store, own, search, selection, printer.attributes), few)
            if counting:
                count = sum(map(len, groups))
                found |= count > 0
                printer.raw(f"{topic}:{count}\n".encode() if show.where else b"%d\n" % count)
                continue
            for group in groups:
                found |= len(group) > 0
                if quiet and found:
                    return 0
                if listing:
                    printer.raw(f"{topic}\n".encode() * len(group))
                else:
                    show(group)
        printer.flush()
        return store.left_out.exit_code(0 if found else FINDINGS)


@dataclass(frozen=True, slots=True)
class Found:
    """Selected messages of a queue, without attributes."""

    topic: str
    queue: int
    bodies: Bodies
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, some: slice) -> Found:
        return Found(self.topic, self.queue, self.bodies, self.rows[some])

    def __iter__(self) -> Iterator[MessageRow]:
        bodies = self.bodies
        return (MessageRow(self.topic, self.queue, int(bodies.offsets[row]), bodies[row]) for row in self.rows)


Group = Found | list[MessageRow]


def _at_most(groups: Iterator[Group], most: int | None) -> Iterator[Group]:
    """The first `most` of their messages; all for None."""
    for group in groups:
        yield group[:most]
        if most is not None:
            most -= len(group)
            if most <= 0:
                return


def _matches(
    store: LocalStore, ranges: list[Range], search: Search, selection: Selection, attributes: bool
) -> Iterator[Group]:
    """The selected messages of a topic's ranges, in groups."""
    if selection.key is not None:
        yield list(filter(search.takes, messages_with_key(store, ranges, selection)))
        return
    for chosen in ranges:
        if "body" not in search.parts and not search.invert:
            for message in filter(selection.takes, _with_attributes(store, chosen, _with_part(store, chosen, search))):
                if search.takes(message):
                    yield [message]
            continue
        if search.parts != {"body"}:
            for message in filter(search.takes, messages_in(store, chosen, selection, attributes=True)):
                yield [message]
            continue
        found = _with_body(store, chosen, search)
        if attributes or selection.tags:
            offsets = (message.offset for some in found for message in some)
            for message in filter(selection.takes, _with_attributes(store, chosen, offsets)):
                yield [message]
        else:
            yield from found


def _with_part(store: LocalStore, chosen: Range, search: Search) -> Iterator[int]:
    """Offsets of messages of a range with a match in one of the searched parts."""
    parts = (store.texts(chosen.topic, chosen.queue, chosen.start, chosen.end, part) for part in search.parts)
    found = ((int(texts.offsets[row]) for texts in part for row in search.pattern.rows(texts)) for part in parts)
    return (offset for offset, _ in groupby(merge(*found)))


def _with_body(store: LocalStore, chosen: Range, search: Search) -> Iterator[Found]:
    """Messages of a range selected by their bodies. Bodies without any needed text are skipped unread."""
    place = chosen.topic, chosen.queue, chosen.start
    needed = _rarest(store, place, search.pattern.needed) if not search.invert else None
    texts, sure, any_case = (needed.texts, needed.sure, needed.any_case) if needed else ((), 0, False)
    for bodies in store.bodies(*place, chosen.end, texts, any_case):
        rows: Sequence[int]
        if search.invert:
            rows = sorted(set(range(len(bodies))).difference(search.pattern.rows(bodies)))
        elif sure and ((bodies.numbers >= 0) & (bodies.numbers < sure)).all():
            rows = range(len(bodies))
        else:
            rows = search.pattern.rows(bodies)
        yield Found(chosen.topic, chosen.queue, bodies, rows)


def _rarest(store: LocalStore, place: tuple[str, int, int], needed: list[Needed]) -> Needed | None:
    """The element of `needed` with the fewest matches among the first messages of a range."""
    if not needed[1:]:
        return needed[0] if needed else None
    end = place[2] + SAMPLE
    return min(needed, key=lambda one: sum(map(len, store.bodies(*place, end, one.texts, one.any_case))))


def _with_attributes(store: LocalStore, chosen: Range, offsets: Iterator[int]) -> Iterator[MessageRow]:
    """Messages at the offsets, with their attributes; nearby ones are read together."""
    while some := list(islice(offsets, READ_TOGETHER)):
        spans = [some] if some[-1] - some[0] < len(some) * FEW else [[offset] for offset in some]
        for span in spans:
            count, wanted = span[-1] - span[0] + 1, set(span)
            read = store.messages(chosen.topic, chosen.queue, span[0], count, attributes=True)
            yield from (message for message in read if message.offset in wanted)


@dataclass(frozen=True, slots=True)
class _Shower:
    """Prints search results."""

    search: Search
    printer: Printer
    is_coloured: bool
    only: bool
    where: bool

    def __call__(self, group: Group) -> None:
        """Print messages, or their matches."""
        if isinstance(group, Found) and not (self.printer.formats or self.where or self.is_coloured or self.only):
            self.printer.raw(group.bodies.lines(group.rows))
        else:
            for message in group:
                self._show(message)

    def _show(self, message: MessageRow) -> None:
        if self.printer.formats:
            self.printer.line(message)
            return
        place = f"{message.topic}/{message.queue}/{message.offset}" if self.where else ""
        if place and self.is_coloured:
            place = f"{PLACE}{visible(place)}{PLAIN}"
        lead = f"{place}:".encode() if place else b""
        if self.only:
            lines = [match for text in self.search.texts(message) for match in self.search.pattern.matches(text)]
        else:
            lines = [message.body]
        for line in lines:
            paints = self.is_coloured and not self.search.invert
            shown = self.search.pattern.painted(line, MATCH, PLAIN) if paints else line
            self.printer.raw(lead + shown + b"\n")

"""mountctl grep: searches messages."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import click

from fsstore.fleet.places import is_place
from mountctl.client import PARTS, MessageRow
from mountctl.connect import reading
from mountctl.decoding import Decoder, takes_decode
from mountctl.errors import FINDINGS, CommandError
from mountctl.frames import Count, Request, Searched
from mountctl.hosts import Fleet, request, split_places
from mountctl.options import StoreSettings, takes_settings
from mountctl.output import visible
from mountctl.pattern import Pattern
from mountctl.places import find
from mountctl.search import Context, Found, Group, Near, Search, at_most, matches, near
from mountctl.selection import (
    Selection,
    names_several,
    parse_target,
    placed,
    ranges_of,
    sampled,
    takes_sample,
    takes_selection,
)
from mountctl.showing import Printer, led_by, takes_format

MATCH, PLACE, PLAIN = "\x1b[1;31m", "\x1b[35m", "\x1b[0m"


@click.command("grep", short_help="Search messages.")
@click.argument("place")
@click.argument("text", metavar="PATTERN", required=False)
@click.argument("targets", metavar="[TOPIC[/QUEUE]]...", nargs=-1)
@click.option("-e", "--regexp", "given", metavar="PATTERN", help="PATTERN; all other arguments are places and topics.")
@click.option("-F", "--fixed-strings", "fixed", is_flag=True, help="PATTERN is a literal text, no regular expression.")
@click.option("-i", "--ignore-case", "any_case", is_flag=True, help="Ignore case.")
@click.option("-v", "--invert-match", "invert", is_flag=True, help="Select messages that don't match.")
@click.option("-c", "--count", "counting", is_flag=True, help="Print the number of matching messages of each topic.")
@click.option("-l", "--topics", "listing", is_flag=True, help="Print only the topics that have a matching message.")
@click.option("-o", "--only-matching", "only", is_flag=True, help="Print only the matches, one per line.")
@click.option("-m", "--max-count", "most", type=click.IntRange(1), help="At most this many messages of each topic.")
@click.option(
    "-A", "--after-context", "after", metavar="N", type=click.IntRange(0), help="Print N messages after each."
)
@click.option("-B", "--before-context", "before", metavar="N", type=click.IntRange(0), help="Print N messages before.")
@click.option("-C", "--context", "around", metavar="N", type=click.IntRange(0), help="Print N before and N after each.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing, and end at the first match.")
@click.option("-H", "--with-place", is_flag=True, help="Print TOPIC/QUEUE/OFFSET first; default for several topics.")
@click.option(
    "--in", "parts", multiple=True, type=click.Choice(["body", *PARTS]), help="The part to search; default: the body."
)
@click.option("--color", "colour", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@takes_sample
@takes_decode
@takes_selection
@takes_format
@partial(takes_settings, names=["--option"])
def command(
    place: str, text: str | None, targets: tuple[str, ...], given: str | None, fixed: bool, any_case: bool,
    invert: bool, counting: bool, listing: bool, only: bool, most: int | None, after: int | None,
    before: int | None, around: int | None, quiet: bool, with_place: bool, parts: tuple[str, ...], colour: str,
    sample: int | None, decode: str | None, selection: Selection, printer: Printer, settings: StoreSettings,
) -> int:  # fmt: skip
    """Print the messages of a store or mount that match PATTERN, a regular expression of Python's. Without TOPIC
    all topics are searched. ^ and $ match at each line of a body.

    Several places come first: HOST:PLACE is read by ssh, @GROUP is a group in ~/.config/fsstore/fleet.toml. Use -e for
    a PATTERN that looks like a place.

    -A, -B and -C print messages of the same queue near each match, each once, even those that --where, --tag and --key
    leave out. A line of -- separates groups that don't touch. They have no effect with -c, -l, -o and -q.

    The exit code is 0 with a match, 1 without, and greater after an error.

    \b
    Examples:
      mountctl grep /mnt/mq 'order [0-9]' orders
      mountctl grep /srv/store -Fc 'order 7'
      mountctl grep /mnt/mq -i 'ORDER 3|order 4' 'ord*' --from -1h --json
      mountctl grep /mnt/mq -C 3 'order 7' orders
      mountctl grep /mnt/mq '^KEYS=ORDER-' --in properties -o
      mountctl grep @prod -e 'order: [0-9]' orders
    """
    places, pattern, topics = _parted(place, text, targets, given)
    if not places:
        place, topics = placed(place, topics)
    search = Search(Pattern(pattern, fixed=fixed, any_case=any_case), invert, frozenset(parts) or frozenset({"body"}))
    if sum((counting, listing, only, quiet)) > 1:
        raise CommandError("-c, -l, -o and -q exclude each other", "give one of them", os.EX_USAGE)
    if (counting or listing or only) and printer.formats:
        raise CommandError("--json and --format print messages", "leave -c, -l, -o out", os.EX_USAGE)
    wanted = [parse_target(target) for target in topics or ["*"]]
    if any(target.offset is not None for target in wanted):
        raise CommandError("one message is not searched", "give TOPIC or TOPIC/QUEUE", os.EX_USAGE)
    context = Context(*(around or 0 if given is None else given for given in (before, after)))
    shows_near = {before, after, around} != {None} and not (counting or listing or only or quiet)
    if places and shows_near:
        raise CommandError("-A, -B and -C are for a place of this host", "leave them out", os.EX_USAGE)
    decoder = Decoder(decode)
    if decoder and (places or shows_near):
        raise CommandError("--decode is for a place of this host, without -A, -B and -C", "leave it out", os.EX_USAGE)
    if sample is not None and (places or shows_near or selection.key is not None):
        reason = "--sample is for a place of this host, without --key, -A, -B and -C"
        raise CommandError(reason, "leave it out", os.EX_USAGE)
    is_coloured = colour == "always" or (colour == "auto" and sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    if places:
        searched = Searched(pattern, fixed, any_case, invert, tuple(sorted(search.parts)))
        asked = request("counts" if counting or listing or quiet else "rows", topics or ["*"], selection, settings)
        asked = replace(asked, search=searched, count=1 if listing or quiet else most)
        show = _Shower(search, printer, is_coloured, only, with_place or names_several(wanted))
        return _of_hosts(places, asked, show, "" if quiet else "names" if listing else "counts")
    found = False
    paths = [target.plain_path for target in wanted]
    with reading(find(place), settings, f"grep -P {shlex.quote(pattern)}", paths) as store:
        ranges = sampled(ranges_of(store, wanted, selection) if topics or store.topics() else [], sample)
        by_topic = [(topic, list(own)) for topic, own in groupby(ranges, lambda chosen: chosen.topic)]
        show = _Shower(search, printer, is_coloured, only, with_place or len(by_topic) > 1)
        for topic, own in by_topic:
            few = 1 if listing or quiet else most
            groups = at_most(matches(store, own, search, selection, printer.attributes, decoder), few)
            if counting:
                count = sum(map(len, groups))
                found |= count > 0
                printer.raw(f"{topic}:{count}\n".encode() if show.with_place else b"%d\n" % count)
                continue
            if shows_near:
                rows: Iterable[MessageRow] = (message for group in groups for message in group)
                if selection.key is not None:  # found in the order of the log
                    rows = sorted(rows, key=lambda message: (message.queue, message.offset))
                for one in near(store, own, rows, context, printer.attributes):
                    found = True
                    show.near(one)
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
        return decoder.exit_code(store.left_out.exit_code(0 if found else FINDINGS))


def _parted(
    place: str, text: str | None, targets: tuple[str, ...], given: str | None
) -> tuple[list[str], str, list[str]]:
    """The places, if one of them is on another host, the pattern, and the topics. Behind a place of this host a word is
    the pattern, whatever it looks like."""
    words = [place, *([] if text is None else [text]), *targets]
    places, rest = split_places(words) if given is not None or is_place(place) else ([], words)
    rest = rest if places else rest[1:]
    pattern, topics = (given, rest) if given is not None else (rest[0] if rest else None, rest[1:])
    if pattern is None:
        like_place = " (one that looks like a place is given by -e)" if places else ""
        raise click.UsageError(f"Missing argument 'PATTERN'{like_place}.", click.get_current_context())
    return places, pattern, topics


def _of_hosts(places: list[str], asked: Request, show: _Shower, how: str) -> int:
    """Print the rows that were asked for, or of each topic with a match `how`: its "names", "counts", or nothing."""
    found = Counter[str]()
    with Fleet(places, asked) as fleet:
        for message in fleet.rows() if asked.kind == "rows" else ():
            if found[message.topic] != asked.count:
                found[message.topic] += 1
                show([message])
        for host, count in fleet.answers(Count) if asked.kind == "counts" else ():
            found[count.topic] += count.messages
            if not how and count.messages:
                return 0
            words = [
                *([] if fleet.is_single else [host.name]),
                *([count.topic] if show.with_place or how == "names" else []),
            ]
            if how == "counts" or (how == "names" and count.messages):
                words += [str(count.messages)] * (how == "counts")
                show.printer.raw(visible(":".join(words)).encode() + b"\n")
        show.printer.flush()
        fleet.require_targets()
        return fleet.exit_code(0 if found.total() else FINDINGS)


@dataclass(slots=True)
class _Shower:
    """Prints search results."""

    search: Search
    printer: Printer
    is_coloured: bool
    only: bool
    with_place: bool
    _shown: bool = False
    """Whether a message was shown with those near it."""

    def __call__(self, group: Group) -> None:
        """Print messages, or their matches."""
        if isinstance(group, Found) and not (self.printer.formats or self.with_place or self.is_coloured or self.only):
            self.printer.raw(group.bodies.lines(group.rows))
        else:
            for message in group:
                self._show(message)

    def near(self, one: Near) -> None:
        """Print a match, or a message near one, with a line between groups."""
        if one.is_apart and self._shown and not self.printer.formats:
            self.printer.raw(b"--\n")
        self._shown = True
        self._show(one.message, one.is_match)

    def _show(self, message: MessageRow, is_match: bool = True) -> None:
        if self.printer.formats:
            self.printer.line(message)
            return
        place = f"{message.topic}/{message.queue}/{message.offset}" if self.with_place else ""
        place = ":".join(filter(None, (message.broker, place)))
        if place and self.is_coloured:
            place = f"{PLACE}{visible(place)}{PLAIN}"
        lead = f"{place}{':' if is_match else '-'}".encode() if place else b""
        if self.only:
            lines = [match for text in self.search.texts(message) for match in self.search.pattern.matches(text)]
        else:
            lines = [message.body]
        for line in lines:
            paints = self.is_coloured and is_match and not self.search.invert
            shown = self.search.pattern.painted(line, MATCH, PLAIN) if paints else line
            self.printer.raw(led_by(lead, shown) if message.broker else lead + shown + b"\n")

"""Search: the messages that match a pattern, in bodies or other parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from typing import NamedTuple

from mountctl.client import PARTS, Bodies, MessageRow
from mountctl.decoding import Decoder
from mountctl.local_store import LocalStore
from mountctl.pattern import Needed, Pattern
from mountctl.selection import Range, Selection, messages_at, messages_in, messages_with_key

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


def at_most(groups: Iterator[Group], most: int | None) -> Iterator[Group]:
    """The first `most` of their messages; all for None."""
    for group in groups:
        yield group[:most]
        if most is not None:
            most -= len(group)
            if most <= 0:
                return


def matches(
    store: LocalStore, ranges: list[Range], search: Search, selection: Selection, attributes: bool,
    decoder: Decoder | None = None,
) -> Iterator[Group]:  # fmt: skip
    """The selected messages of a topic's ranges, in groups; `decoder` decodes each before it is searched."""
    if decoder:
        for message in filter(search.takes, decoder.decoded(_selected(store, ranges, selection))):
            yield [message]
        return
    if selection.key is not None:
        yield list(filter(search.takes, messages_with_key(store, ranges, selection)))
        return
    for chosen in ranges:
        if selection.where is not None:
            for message in filter(search.takes, messages_in(store, chosen, selection, attributes=True)):
                yield [message]
            continue
        if "body" not in search.parts and not search.invert:
            for message in filter(
                selection.takes, messages_at(store, chosen, _with_part(store, chosen, search), attributes=True)
            ):
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
            for message in filter(selection.takes, messages_at(store, chosen, offsets, attributes=True)):
                yield [message]
        else:
            yield from found


def _selected(store: LocalStore, ranges: list[Range], selection: Selection) -> Iterator[MessageRow]:
    """The selected messages of ranges, with their attributes."""
    if selection.key is not None:
        yield from messages_with_key(store, ranges, selection)
        return
    for chosen in ranges:
        yield from messages_in(store, chosen, selection, attributes=True)


class Context(NamedTuple):
    """The number of messages before and after each match that are shown with it."""

    before: int
    after: int


class Near(NamedTuple):
    """A match, or a message near one. `is_apart`: the queue has messages between it and the one shown before it."""

    message: MessageRow
    is_match: bool
    is_apart: bool


def near(
    store: LocalStore, ranges: list[Range], found: Iterable[MessageRow], context: Context, attributes: bool
) -> Iterator[Near]:
    """The matches that were found in the ranges, and the messages of these ranges near them, each once, queue by queue
    in the order of queue offsets. `found` has the matches in that order."""
    by_queue = {(chosen.topic, chosen.queue): chosen for chosen in ranges}
    for place, own in groupby(found, lambda message: (message.topic, message.queue)):
        spans: dict[int, _Span] = {}
        offsets = _offsets_near(by_queue[place], (message.offset for message in own), context, spans)
        shown = -1
        for message in messages_at(store, by_queue[place], offsets, attributes):
            span = spans.pop(message.offset)
            yield Near(message, span.is_match, span.group != shown)
            shown = span.group


class _Span(NamedTuple):
    """The reason why an offset is shown. Offsets of one `group` have no message between them."""

    group: int
    is_match: bool


def _offsets_near(chosen: Range, matches: Iterator[int], context: Context, spans: dict[int, _Span]) -> Iterator[int]:
    """The offsets of matches and of messages near them, each once; `spans` gets what each is shown for."""
    group = 0
    reached = end = chosen.start  # the messages after the last match are [reached, end)

    def taken(start: int, until: int, is_match: bool = False) -> Iterator[int]:
        for offset in range(start, until):
            spans[offset] = _Span(group, is_match)
            yield offset

    for match in matches:
        if match - context.before > end:
            yield from taken(reached, end)
            reached = match - context.before
            group += 1
        yield from taken(reached, match)
        yield from taken(match, match + 1, is_match=True)
        reached, end = match + 1, min(match + 1 + context.after, chosen.end)
    yield from taken(reached, end)


def _with_part(store: LocalStore, chosen: Range, search: Search) -> Iterator[int]:
    """Offsets of messages of a range with a match in one of the searched parts."""
    parts = (store.texts(chosen.topic, chosen.queue, chosen.start, chosen.end, part) for part in search.parts)
    found = ((int(texts.offsets[row]) for texts in part for row in search.pattern.rows(texts)) for part in parts)
    return (offset for offset, _ in groupby(merge(*found)))


def _with_body(store: LocalStore, chosen: Range, search: Search) -> Iterator[Found]:
    """Messages of a range selected by their bodies. Bodies without any needed text are skipped unread."""
    place = chosen.topic, chosen.queue, chosen.start
    needed = _rarest(store, chosen, search.pattern.needed) if not search.invert else None
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


def _rarest(store: LocalStore, chosen: Range, needed: list[Needed]) -> Needed | None:
    """The element of `needed` with the fewest matches among the first messages of a range."""
    if not needed[1:]:
        return needed[0] if needed else None
    first = chosen.topic, chosen.queue, chosen.start, min(chosen.start + SAMPLE, chosen.end)
    return min(needed, key=lambda one: sum(map(len, store.bodies(*first, one.texts, one.any_case))))

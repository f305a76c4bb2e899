"""Answers the request of a `mountctl` on another host: the frames of what a store here has. It only reads."""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter

from fsstore.query.where import Where
from mountctl.client import MessageRow, Topic
from mountctl.connect import connect, reading
from mountctl.errors import CommandError
from mountctl.frames import Count, End, Following, Frame, Missing, Request, Row, Searched, Status, Topics
from mountctl.local_store import LocalStore
from mountctl.options import StoreSettings
from mountctl.pattern import Pattern
from mountctl.places import Place, find
from mountctl.search import Search, at_most, matches
from mountctl.selection import (
    Range,
    Selection,
    Target,
    following,
    in_log_order,
    messages_in,
    narrowed,
    parse_target,
    ranges_of,
    topics_named,
)
from mountctl.showing import tell_left_out


def answer(request: Request) -> Iterator[Frame]:
    """The frames after Hello. CommandError, StoreError, OSError."""
    if request.kind not in _ANSWERS:
        raise CommandError(f"a request for {request.kind!r} is not known", exit_code=os.EX_USAGE)
    return _ANSWERS[request.kind](find(os.path.expanduser(request.place)), request)


def _topics(place: Place, request: Request) -> Iterator[Frame]:
    with connect(place, StoreSettings(), writing=False) as client:
        yield Topics(tuple(client.topics()))
    yield End(0)


def _status(place: Place, request: Request) -> Iterator[Frame]:
    with connect(place, StoreSettings(), writing=False) as client:
        yield Status(client.status())
    yield End(0)


def _messages(place: Place, request: Request) -> Iterator[Frame]:
    """Rows in the order of the log, or the numbers of those that a search finds."""
    wanted = [parse_target(text) for text in request.targets]
    where = None if request.where is None else Where(request.where)  # the asking host has parsed it
    selection = Selection(request.start, request.end, request.tags, request.key, where)
    paths = [target.plain_path for target in wanted]
    with reading(place, StoreSettings(), "cat", paths, following=request.follow) as store:
        store.left_out.tell = tell_left_out if request.follow else None
        known = _known(store.topics(), wanted)
        yield Missing(tuple(text for text, target in zip(request.targets, wanted, strict=True) if target not in known))
        ranges = ranges_of(store, known, selection)
        if request.kind == "counts":
            yield from _counts(store, ranges, selection, request)
        elif request.ends is None:
            yield from map(Row, _rows(store, ranges, selection, request))
        if request.follow:
            yield from _followed(store, wanted, ranges, selection, request)
        yield End(store.left_out.exit_code())


_ANSWERS: dict[str, Callable[[Place, Request], Iterator[Frame]]] = {
    "rows": _messages,
    "counts": _messages,
    "topics": _topics,
    "status": _status,
}


def _known(topics: Sequence[Topic], targets: Iterable[Target]) -> list[Target]:
    """The targets of which there are topics and queues."""

    def is_known(target: Target) -> bool:
        try:
            for topic in topics_named(topics, target.topic):
                narrowed(topic, target)
        except CommandError:
            return False
        return True

    return list(filter(is_known, targets))


def _rows(store: LocalStore, ranges: list[Range], selection: Selection, request: Request) -> Iterable[MessageRow]:
    if request.search is not None:
        return _found(store, ranges, selection, request.search, request.count)
    if not request.by_queue or selection.key is not None:
        newest = None if request.by_queue else request.count
        found = in_log_order(store, ranges, selection, newest, request.attributes)
        return islice(found, request.count if request.by_queue else None)
    queues = (messages_in(store, chosen, selection, request.attributes) for chosen in ranges)
    return heapq.merge(*(islice(queue, request.count) for queue in queues), key=attrgetter("physical_offset"))


def _found(
    store: LocalStore, ranges: list[Range], selection: Selection, searched: Searched, most: int | None
) -> Iterator[MessageRow]:
    """The messages that a search finds, with their attributes; the first `most` of each topic."""
    search, counts = _search_of(searched), Counter[str]()

    def found_in(chosen: Range) -> Iterator[MessageRow]:
        for group in matches(store, [chosen], search, selection, attributes=True):
            for message in group:
                if counts[chosen.topic] == most:
                    return
                yield message

    for message in heapq.merge(*map(found_in, ranges), key=attrgetter("physical_offset")):
        if counts[message.topic] != most:
            counts[message.topic] += 1
            yield message


def _counts(store: LocalStore, ranges: list[Range], selection: Selection, request: Request) -> Iterator[Frame]:
    assert request.search is not None
    search = _search_of(request.search)
    for topic, own in groupby(ranges, lambda chosen: chosen.topic):
        groups = at_most(matches(store, list(own), search, selection, attributes=False), request.count)
        yield Count(topic, sum(map(len, groups)))


def _search_of(searched: Searched) -> Search:
    pattern = Pattern(searched.text, fixed=searched.fixed, any_case=searched.any_case)
    return Search(pattern, searched.invert, frozenset(searched.parts))


def _followed(
    store: LocalStore, wanted: list[Target], ranges: list[Range], selection: Selection, request: Request
) -> Iterator[Frame]:
    """Messages after the ranges, or after the request's ends, as they come; new topics from their beginning."""

    def look() -> list[Range]:
        return ranges_of(store, _known(store.topics(), wanted), Selection())

    ends = {(chosen.topic, chosen.queue): chosen.end for chosen in ranges}
    if (sent := request.ends) is not None:
        ends = {(one.topic, one.queue): sent.get(one.topic, {}).get(one.queue, one.start) for one in look()}
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, queue), end in ends.items():
        by_topic.setdefault(topic, {})[queue] = end
    yield Following(by_topic)
    for messages in following(store, look, ends, selection, request.attributes):
        if messages:
            yield from map(Row, messages)
            yield Following({})

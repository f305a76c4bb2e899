"""Questions of one server's page to another server, with answers in JSON: both ends of them.

/page/data/topics?find=…      topics whose names contain a text, and the state of store and mount
/page/data/messages?…         messages of a selection, newest first
/page/data/counts?…           how many of its messages were stored in each of some spans of time

Another server's answer has these types and bounds, or it is none. Its texts may be anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
import numpy as np

from engine import MessageStore
from fsstore.query.hist import QueueRange, borders_of, times_of
from fsstore.serve.connection import Answer
from fsstore.serve.page.body import preview_of
from fsstore.serve.page.chart import MOST_BARS, MOST_LOOKUPS
from fsstore.serve.page.messages import PAGE_ROWS, newest
from fsstore.serve.page.overview import PAGE_TOPICS, MountState, topics_page
from fsstore.serve.page.rendering import SAFE
from fsstore.serve.page.search import Search
from fsstore.serve.page.selection import MAX_OFFSET, FormError, Parameters, Selection, number_in
from fsstore.serve.tree import PathError, ServedTree

DATA = b"/page/data/"

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)]
Time = Annotated[int, msgspec.Meta(ge=-MAX_OFFSET, le=MAX_OFFSET)]
"""Epoch milliseconds."""
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class TopicData(msgspec.Struct, frozen=True):
    """As TopicFacts."""

    topic: str
    queues: Count
    messages: Count
    stored_bytes: Count
    is_exact: bool
    oldest_ms: Time | None
    newest_ms: Time | None
    per_second: Rate


class StoreData(msgspec.Struct, frozen=True):
    """Some of the `total` topics, by name; what the mount says of itself, for people."""

    topics: Annotated[list[TopicData], msgspec.Meta(max_length=PAGE_TOPICS)]
    total: Count
    hidden: Count
    facts: dict[str, str]
    problems: list[str]


class RowData(msgspec.Struct, frozen=True):
    """As Row; `preview` is text."""

    queue: Count
    offset: Count
    physical_offset: Count
    time_ms: Time | None
    body_size: Count | None
    keys: list[str]
    tags: str
    preview: str
    problem: str


class MessagesData(msgspec.Struct, frozen=True):
    """As Listed; store times of the first and the last message of the selection's topic, queue and times, which no
    search narrows. None: it has none."""

    rows: Annotated[list[RowData], msgspec.Meta(max_length=PAGE_ROWS)]
    before: Count | None
    looked_at: Count
    is_cut: bool
    damaged: Count
    first_ms: Time | None
    last_ms: Time | None


class CountsData(msgspec.Struct, frozen=True):
    """Messages of each span of time; None: there are too many queues to look into."""

    counts: Annotated[list[Count], msgspec.Meta(max_length=MOST_BARS)] | None


class OwnData:
    """The answers for the store beside the server. Errors of all: FormError, PathError, MountGoneError, StoreError,
    OSError."""

    def __init__(self, tree: ServedTree, state: Callable[[], MountState]) -> None:
        self._tree = tree
        self._state = state

    def topics(self, store: MessageStore, parameters: Parameters) -> StoreData:
        page, state = topics_page(store, parameters), self._state()
        topics = [TopicData(**{**one._asdict(), "topic": _plain(one.topic)}) for one in page.topics]
        facts = {name: _plain(value) for name, value in state.facts}
        return StoreData(topics, page.total, page.hidden, facts, [*map(_plain, state.problems)])

    def messages(self, store: MessageStore, parameters: Parameters) -> MessagesData:
        selection = Selection.of(parameters)
        ranges = _ranges(selection, store)
        found = newest(Search(store, self._tree, selection), ranges)
        rows = [
            RowData(
                one.queue, one.offset, one.physical_offset, one.time_ms, one.body_size, [*map(_plain, one.keys)],
                _plain(one.tags), _plain(preview_of(one.preview)), _plain(one.problem),
            )
            for one in found.rows
        ]  # fmt: skip
        times = times_of(store, ranges) or (None, None)
        return MessagesData(rows, found.before, found.looked_at, found.is_cut, found.damaged, *times)

    def counts(self, store: MessageStore, parameters: Parameters) -> CountsData:
        begin_ms, span_ms, number = (number_in(parameters, name) or 0 for name in ("begin", "span", "spans"))
        if not 0 < number <= MOST_BARS or not span_ms or begin_ms + number * span_ms > MAX_OFFSET:
            raise PathError(400, f"begin, span and spans are up to {MOST_BARS} spans of time")
        ranges = _ranges(Selection.of(parameters), store)
        if len(ranges) * number > MOST_LOOKUPS:
            return CountsData(None)
        edges = [begin_ms + at * span_ms for at in range(number + 1)]
        counts = np.zeros(number, np.int64)
        for one in ranges:
            borders = borders_of(store, one, edges).clip(one.start, one.end).tolist()
            counts += np.diff([one.start, *borders, one.end])
        return CountsData(counts.tolist())

    def find(self, name: str, store: MessageStore, parameters: Parameters) -> StoreData | MessagesData | CountsData:
        """The data of this name."""
        match name:
            case "topics":
                return self.topics(store, parameters)
            case "messages":
                return self.messages(store, parameters)
            case "counts":
                return self.counts(store, parameters)
        raise PathError(404, "there is no such data")

    def answer(self, path: bytes, store: MessageStore, parameters: Parameters) -> Answer:
        """The answer to another server."""
        try:
            content = msgspec.json.encode(
                self.find(path.removeprefix(DATA).decode("ascii", "replace"), store, parameters)
            )
        except FormError as error:
            raise PathError(400, f"{error.name}: {error}") from None
        headers = [*SAFE, ("Content-Type", "application/json"), ("Cache-Control", "no-store")]
        return Answer(200, headers, body=content)


def _ranges(selection: Selection, store: MessageStore) -> list[QueueRange]:
    """As `Selection.ranges`; none of a topic that is at other brokers alone."""
    try:
        return selection.ranges(store)
    except PathError as error:
        if error.status != 404:
            raise
        return []


def _plain(text: str) -> str:
    """The text as JSON can have it: what is no UTF-8 in a name is lost."""
    return text.encode("utf-8", "replace").decode()

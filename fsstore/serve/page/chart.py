"""The histogram of a selection: how many messages were stored when, from the index of times, as bars that are links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine import MessageStore
from fsstore.query.hist import Array, QueueRange, borders_of, edges_of, fitting_span_ms, times_of
from fsstore.serve.page.positions import positions_in
from fsstore.serve.page.search import Search
from fsstore.serve.page.selection import Selection

MOST_BARS = 60
MOST_LOOKUPS = 2_000
"""Look-ups in the index of times for one chart; each takes some 50 µs."""
FEWEST_BARS = 12
MOST_SEARCHED, MOST_SEARCHED_BYTES = 20_000, 64 << 20
"""Messages, and bytes of their records, in which a search looks for the chart's sake."""
HEIGHT, WIDTH = 100, 900


@dataclass(frozen=True, slots=True)
class Bar:
    """Messages stored in [begin_ms, end_ms): all, and those that the search finds (None: not counted). `link` leads to
    them."""

    begin_ms: int
    end_ms: int
    messages: int
    matches: int | None
    link: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars, in order, of `span_ms` each, and the links that move the view: `wider`, `earlier` and `later`."""

    bars: Sequence[Bar]
    span_ms: int
    wider: str
    earlier: str
    later: str

    @property
    def most(self) -> int:
        return max(bar.messages for bar in self.bars)

    @property
    def messages(self) -> int:
        return sum(bar.messages for bar in self.bars)

    @property
    def matches(self) -> int | None:
        """Number of the messages that the search finds; None: not counted."""
        found = [bar.matches for bar in self.bars if bar.matches is not None]
        return sum(found) if found else None

    def height(self, count: int) -> float:
        """The height of a bar for so many messages; a few can be seen, too."""
        return max(count * HEIGHT / self.most, 1.5) if count else 0


def chart_of(search: Search, ranges: Sequence[QueueRange]) -> Chart | None:
    """The chart of all messages of the ranges; None: there are none, too many queues, or a time that is in no calendar.
    Errors as Search."""
    store, selection = search.store, search.selection
    most_bars = min(MOST_LOOKUPS // max(len(ranges), 1), MOST_BARS)
    times = times_of(store, ranges) if most_bars >= FEWEST_BARS else None
    if times is None:
        return None
    span_ms = fitting_span_ms(*times, most_bars)
    try:
        edges = edges_of(*times, span_ms)
    except ValueError:
        return None
    borders = [borders_of(store, chosen, edges) for chosen in ranges]
    ends = (
        [one.start, *border.clip(one.start, one.end).tolist(), one.end]
        for one, border in zip(ranges, borders, strict=True)
    )
    counts = np.sum([np.diff(every) for every in ends], axis=0).tolist()
    is_counted = selection.is_search and _is_little(store, ranges)
    matches = _matches(ranges, borders, search) if is_counted else [None] * len(counts)
    bars = [
        Bar(begin, end, count, found, _between(selection, begin, end))
        for begin, end, count, found in zip(edges, edges[1:], counts, matches, strict=False)
    ]
    begin, end = edges[0], edges[-1]
    width = end - begin
    return Chart(
        bars,
        span_ms,
        _between(selection, begin - width, end + width),
        _between(selection, begin - width, begin),
        _between(selection, end, end + width),
    )


def _is_little(store: MessageStore, ranges: Sequence[QueueRange]) -> bool:
    """Whether all messages of the ranges can be searched for the chart's sake."""
    if sum(one.end - one.start for one in ranges) > MOST_SEARCHED:
        return False
    return sum(int(positions_in(store, one)["size"].sum()) for one in ranges) <= MOST_SEARCHED_BYTES


def _matches(ranges: Sequence[QueueRange], borders: Sequence[Array], search: Search) -> list[int]:
    found = np.zeros(len(borders[0]) + 1, np.int64)
    for chosen, border in zip(ranges, borders, strict=True):
        for _, offsets in search.pieces([chosen]):
            found += np.bincount(np.searchsorted(border, offsets, side="right"), minlength=len(found))
    return found.tolist()


def _between(selection: Selection, begin_ms: int, end_ms: int) -> str:
    return selection.link(since=f"@{max(begin_ms, 0)}", until=f"@{end_ms}", before=None)

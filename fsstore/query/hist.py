"""Histograms: how many messages, and bytes of the log, by time, topic, queue, tag or the value of a field.

The index of times gives the queue offsets at the edges of spans of time. Without tags, values and `where` no message is
read: offsets say how many there are, and consume queues have the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice, repeat
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from engine import MessageStore
from fsstore.query.expression import Field
from fsstore.query.json_fields import FieldReader
from fsstore.query.where import Damaged, Where, blocks, texts_of

Array = np.ndarray[Any, Any]
Split: TypeAlias = Literal["topic", "queue", "tag"] | Field | None
"""By what the messages of a span of time are counted apart."""

SPANS_MS = tuple(
    number * unit_ms
    for unit_ms, numbers in ((1_000, (1, 5, 15)), (60_000, (1, 5, 15)), (3_600_000, (1, 6)), (86_400_000, (1, 7, 28)))
    for number in numbers
)
"""Spans of time to choose from where none is given."""
MOST_SPANS = 10_000
MOST_LABELS = 10_000
OTHERS = "(others)"
"""The label of messages whose own would be one too many."""
_ENTRIES_TOGETHER = 1 << 20
_FEW_PLACES = 1 << 16
_TOLD_APART = {str, int, type(None)}
"""Types of which no two have equal values: most labels are of these."""
_LAST = 64


class QueueRange(NamedTuple):
    """Queue offsets [start, end) of a queue."""

    topic: str
    queue: int
    start: int
    end: int


class Bar(NamedTuple):
    """Messages of one span of time with one label: the span's begin in epoch milliseconds (None: all times), the topic,
    queue, tag or value (None: none), their number, and the bytes of their records in the log."""

    time_ms: int | None
    label: Any
    messages: int
    stored_bytes: int


def times_of(store: MessageStore, ranges: Iterable[QueueRange]) -> tuple[int, int] | None:
    """The first and the last store time in milliseconds of the ranges; None without messages."""
    found: list[int] = []
    for topic, queue, start, end in ranges:
        found += [message.store_time_ms for message in islice(store.read(topic, queue, start, end - start), 1)]
        begin = end
        while begin > start and found:
            begin, until = max(begin - _LAST, start), begin
            last = [message.store_time_ms for message in store.read(topic, queue, begin, until - begin)]
            if last:
                found.append(last[-1])
                break
    return (min(found), max(found)) if found else None


def fitting_span_ms(first_ms: int, last_ms: int, most: int) -> int:
    """The shortest of SPANS_MS of which at most `most` hold both times, or a multiple of the longest."""
    apart_ms, longest_ms = last_ms - first_ms, SPANS_MS[-1]
    return next((one for one in SPANS_MS if apart_ms // one < most), longest_ms * (apart_ms // (longest_ms * most) + 1))


def edges_of(first_ms: int, last_ms: int, span_ms: int) -> list[int]:
    """The edges of spans that hold both times: multiples of the span since a local midnight, with the zone's offset at
    the first time. ValueError: they are more than MOST_SPANS, or the first time is in no calendar."""
    try:
        offset = datetime.fromtimestamp(first_ms / 1000).astimezone().utcoffset()
    except (OverflowError, OSError) as error:
        raise ValueError(f"{first_ms:,} ms is in no calendar") from error
    shift_ms = 0 if offset is None else int(offset.total_seconds() * 1000)
    begin_ms = (first_ms + shift_ms) // span_ms * span_ms - shift_ms
    count = (last_ms - begin_ms) // span_ms + 1
    if count > MOST_SPANS:
        raise ValueError(f"{count:,} spans of time are more than {MOST_SPANS:,}")
    return [begin_ms + number * span_ms for number in range(count + 1)]


def borders_of(store: MessageStore, chosen: QueueRange, edges: Sequence[int]) -> Array:
    """The queue offsets at which the spans of a range begin, int64 (n - 2,) for n edges: the first one begins with the
    range. TopicNotFoundError."""
    return np.array([store.offset_at(chosen.topic, chosen.queue, edge) for edge in edges[1:-1]], np.int64)


def histogram(
    store: MessageStore, ranges: Iterable[QueueRange], edges: Sequence[int], split: Split, where: Where | None,
    noting: Callable[[str, int], Damaged],
) -> list[Bar]:  # fmt: skip
    """Count the messages of the ranges for which `where` is true. `edges` of spans are epoch milliseconds; empty: all
    times are one. Bars come by time, and the largest first; spans without messages have one of 0. What `noting`
    returns for a queue gets the messages that are skipped because they are damaged. TopicNotFoundError."""
    counts = _Counts(max(len(edges) - 1, 1))
    for chosen in ranges:
        borders = borders_of(store, chosen, edges)
        for offsets, labels in _labelled(store, chosen, split, where, noting(chosen.topic, chosen.queue)):
            if len(offsets):
                spans = np.searchsorted(borders, offsets, side="right")
                counts.add(spans, _stored_sizes(store, chosen, offsets), labels)
    return counts.bars(edges)


def _labelled(
    store: MessageStore, chosen: QueueRange, split: Split, where: Where | None, damaged: Damaged
) -> Iterator[tuple[Array, Iterable[Any]]]:
    """Queue offsets of the messages, int64 (n,), and their labels."""
    topic, queue, start, end = chosen
    if split == "tag":
        for block in blocks(store, topic, queue, start, end, damaged):
            rows = np.arange(len(block)) if where is None else np.flatnonzero(where.mask(store, queue, block))
            yield block.queue_offset[rows], texts_of(block.properties.value(b"TAGS").take(rows))
    elif isinstance(split, Field):
        fields = FieldReader([split.path])
        held = store.holding(topic, queue, start, end - start, [], damaged=damaged)
        every = ((one.offsets, one.bodies) for one in held)
        for offsets, bodies in every if where is None else where.matching(store, *chosen, damaged):
            (values,) = fields.values(bodies)
            yield offsets, values if set(map(type, values)) <= _TOLD_APART else map(_label_of, values)
    else:
        label = {"topic": topic, "queue": f"{topic}/{queue}"}.get(split or "")
        all_of_them = (
            np.arange(begin, min(begin + _ENTRIES_TOGETHER, end)) for begin in range(start, end, _ENTRIES_TOGETHER)
        )
        found = (offsets for offsets, _ in where.matching(store, *chosen, damaged)) if where else all_of_them
        yield from ((offsets, repeat(label, len(offsets))) for offsets in found)


def _label_of(value: Any) -> Any:
    return "{...}" if isinstance(value, dict) else "[...]" if isinstance(value, list) else value


def _stored_sizes(store: MessageStore, chosen: QueueRange, offsets: Array) -> Array:
    """Bytes of the records at ascending queue offsets: int64 (n,)."""
    first, last = int(offsets[0]), int(offsets[-1])
    sizes = np.zeros(last - first + 1, np.int64)
    entries = store.entries(chosen.topic, chosen.queue, first, len(sizes))  # retention may have taken the first ones
    sizes[len(sizes) - len(entries) :] = entries["size"]
    return np.asarray(sizes[offsets - first])


class _Counts:
    """Messages and bytes by span of time and label."""

    def __init__(self, spans: int) -> None:
        self._spans = spans
        self._codes: dict[tuple[bool, Any], int] = {}
        self._counts: dict[tuple[int, int], tuple[int, int]] = {}

    def add(self, spans: Array, sizes: Array, labels: Iterable[Any]) -> None:
        places = self._codes_of(labels, len(spans)) * self._spans + spans
        if len(self._codes) * self._spans <= _FEW_PLACES:
            messages, stored = np.bincount(places), np.bincount(places, sizes)
            keys = np.flatnonzero(messages)
            messages, stored = messages[keys], stored[keys]
        else:
            keys, rows, messages = np.unique(places, return_inverse=True, return_counts=True)
            stored = np.bincount(rows, sizes)
        for key, count, stored_bytes in zip(keys.tolist(), messages.tolist(), stored.tolist(), strict=True):
            place = key % self._spans, key // self._spans
            before = self._counts.get(place, (0, 0))
            self._counts[place] = before[0] + count, before[1] + int(stored_bytes)

    def _codes_of(self, labels: Iterable[Any], count: int) -> Array:
        """The code of each label: int64 (count,)."""
        if isinstance(labels, repeat):
            return np.full(count, self._code(next(labels)), np.int64)
        labels = list(labels)
        if set(map(type, labels)) <= _TOLD_APART:
            codes = {label: self._code(label) for label in dict.fromkeys(labels)}
            return np.fromiter(map(codes.__getitem__, labels), np.int64, count)
        return np.fromiter(map(self._code, labels), np.int64, count)

    def _code(self, label: Any) -> int:
        key = isinstance(label, bool), label  # true is 1 otherwise
        code = self._codes.get(key)
        if code is None:
            key = key if len(self._codes) < MOST_LABELS else (False, OTHERS)
            code = self._codes.setdefault(key, len(self._codes))
        return code

    def bars(self, edges: Sequence[int]) -> list[Bar]:
        labels = [label for _, label in self._codes]
        times: Sequence[int | None] = edges[:-1] or [None]
        bars = [Bar(times[span], labels[code], *counts) for (span, code), counts in self._counts.items()]
        if edges:
            bars += [Bar(times[span], None, 0, 0) for span in set(range(self._spans)) - {at for at, _ in self._counts}]
        return sorted(bars, key=lambda bar: (bar.time_ms or 0, -bar.messages, str(bar.label)))

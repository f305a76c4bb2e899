"""Fields of bodies that are JSON objects, from a sample drawn over the queue offsets: types, shares, values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine import MessageStore
from fsstore.query.hist import QueueRange
from fsstore.query.json_fields import FieldReader
from fsstore.query.sample import drawn
from fsstore.query.where import Damaged

SAMPLE = 10_000
MOST_BYTES = 64 << 20
"""Limit of all bodies of a sample together."""
MOST_FIELDS = 1_000
DEEPEST = 8
_LONGEST = 100
"""Longer texts are not among frequent values."""
_TYPES = {str: "text", int: "integer", float: "decimal", bool: "boolean", type(None): "null", dict: "object"}
_CERTAIN = 1.96
"""Standard deviations to both sides that hold 95 % of a normal distribution."""


@dataclass(slots=True)
class FieldFacts:
    """A field of the sample's bodies: how many have it with each type, its least and greatest number and text, and its
    values with how often each comes."""

    types: Counter[str] = field(default_factory=Counter)
    least: dict[bool, Any] = field(default_factory=dict)
    greatest: dict[bool, Any] = field(default_factory=dict)
    values: Counter[Any] = field(default_factory=Counter)

    def add(self, value: Any) -> None:
        """Look at the field's value in one more body."""
        self.types[_TYPES.get(type(value), "array")] += 1
        if isinstance(value, dict | list) or value is None:
            return
        if not isinstance(value, bool):
            kind = isinstance(value, str)
            self.least[kind] = min(self.least.get(kind, value), value)
            self.greatest[kind] = max(self.greatest.get(kind, value), value)
        if not isinstance(value, str) or len(value) <= _LONGEST:
            self.values[isinstance(value, bool), value] += 1  # true is 1 otherwise

    @property
    def messages(self) -> int:
        """Number of the sample's messages that have the field."""
        return self.types.total()

    def frequent(self, most: int) -> list[tuple[Any, int]]:
        """The most frequent values, with how often each comes; none that comes once."""
        return [(value, count) for (_, value), count in self.values.most_common(most) if count > 1]


@dataclass(slots=True)
class Sample:
    """Messages of a topic: of `there` messages `drawn` were looked at, and `objects` of these were JSON objects.
    `is_cut` says that bodies were too many bytes, or fields too many, to look at all."""

    there: int
    drawn: int = 0
    objects: int = 0
    is_cut: bool = False
    fields: dict[tuple[str, ...], FieldFacts] = field(default_factory=dict)

    @property
    def margin(self) -> float:
        """A share is wrong by more than this in at most one of twenty samples; 0 if all messages were looked at."""
        if self.drawn in (0, self.there):
            return 0.0
        return _CERTAIN * float((0.25 / self.drawn * (1 - self.drawn / self.there)) ** 0.5)

    def add(self, value: Any) -> None:
        """Look at one more body: its value, or NO_JSON."""
        self.drawn += 1
        if isinstance(value, dict):
            self.objects += 1
            self._add_fields((), value)

    def _add_fields(self, path: tuple[str, ...], value: dict[str, Any]) -> None:
        for name, inner in value.items():
            own = (*path, name)
            if own not in self.fields and len(self.fields) >= MOST_FIELDS:
                self.is_cut = True
                continue
            self.fields.setdefault(own, FieldFacts()).add(inner)
            if isinstance(inner, dict) and len(own) < DEEPEST:
                self._add_fields(own, inner)


def draw(
    store: MessageStore, ranges: Sequence[QueueRange], count: int, noting: Callable[[str, int], Damaged]
) -> Sample:
    """Look at `count` messages of the ranges, or at all if they are no more: one of each of so many equal parts of the
    queue offsets. The same ranges give the same sample. What `noting` returns for a queue gets damaged ones, which are
    skipped. TopicNotFoundError."""
    there = sum(chosen.end - chosen.start for chosen in ranges)
    sample, reader, read_bytes = Sample(there), FieldReader([()]), 0
    for topic, queue, offset in drawn(ranges, count):
        for message in store.read(topic, queue, offset, 1, noting(topic, queue)):
            body = message.copy_body()
            read_bytes += len(body)
            if read_bytes > MOST_BYTES and sample.drawn:
                sample.is_cut = True
                return sample
            sample.add(reader.decoded(body))
    return sample

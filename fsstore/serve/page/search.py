"""Searches the messages of a selection: by key, by a text in their bodies, by an expression.

Keys are those of the mount's `keys/`, because its daemon knows the newest ones. A search for texts and expressions
looks at pieces of the queues, the newest first, until it has enough or has looked for SEARCH_S. Then it says how far it
came, and the next page goes on there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from engine import MessageStore
from fsstore.query.expression import WhereError
from fsstore.query.hist import QueueRange
from fsstore.query.where import Where
from fsstore.serve.page.positions import (
    POSITION,
    Array,
    fitting,
    newest_first,
    physical_at,
    positions_at,
)
from fsstore.serve.page.selection import FormError, Selection
from fsstore.serve.tree import PathError, ServedTree
from fsstore.tree.names import MATCHES_SUFFIX, encode_key, parse_match, to_name

SEARCH_S = 1.0
FIRST_PIECE, LARGEST_PIECE = 1_024, 65_536
PIECE_BYTES = 32 << 20
MOST_OF_KEY = 10_000
"""Messages with a key that are looked at."""


@dataclass(slots=True)
class Damage:
    """Counts damaged messages, which are skipped."""

    count: int = 0

    def note(self, _offset: int) -> None:
        """Takes the queue offset of one."""
        self.count += 1


@dataclass(frozen=True, slots=True)
class Matches:
    """Matches newest first, POSITION (n,). Older ones, if any, are before the physical offset `before`; None: all was
    looked at. `looked_at`: the number of messages that this took."""

    positions: Array
    before: int | None
    looked_at: int


class Search:
    """The search for the messages of one selection; it finds all if there is nothing to search for. Blocks. Errors:
    FormError, PathError, StoreError, OSError."""

    def __init__(self, store: MessageStore, tree: ServedTree, selection: Selection) -> None:
        """FormError: the expression is none."""
        self.store = store
        self.selection = selection
        self._text = selection.text.encode("utf-8", "surrogateescape")
        self._where = where_of(selection.where)
        self._of_key = _with_key(tree, selection) if selection.key else None
        self.damage = Damage()

    @property
    def is_cut(self) -> bool:
        """Whether more messages have the key than are looked at."""
        return self._of_key is not None and sum(map(len, self._of_key.values())) >= MOST_OF_KEY

    def newest(self, ranges: Sequence[QueueRange], count: int) -> Matches:
        """At least `count` of the newest matches in the ranges, if there are so many and time does not run out."""
        if self._of_key is not None:
            found = [positions_at(self.store, one, self.offsets(one)) for one in ranges]
            return Matches(newest_first(found), None, sum(map(len, self._of_key.values())))
        return self._by_pieces(ranges, count)

    def offsets(self, chosen: QueueRange) -> Array:
        """The ascending queue offsets of the matches in a range, int64 (n,)."""
        if self._of_key is None:
            return self._tested(chosen)
        known = self._of_key.get(chosen.queue, np.empty(0, np.int64))
        inside: Array = known[(known >= chosen.start) & (known < chosen.end)]
        if self._where is None and not self._text:
            return inside
        tested = (self._tested(chosen._replace(start=offset, end=offset + 1)) for offset in inside.tolist())
        return np.concatenate([np.empty(0, np.int64), *tested])

    def pieces(self, ranges: Sequence[QueueRange]) -> Iterator[tuple[QueueRange, Array]]:
        """The ranges in pieces that take little time each, oldest first, with the offsets of their matches."""
        for chosen in ranges:
            start = chosen.start
            while start < chosen.end:
                piece = chosen._replace(start=start, end=min(start + LARGEST_PIECE, chosen.end))
                count = fitting(self.store, piece, PIECE_BYTES, from_end=False)
                piece = piece._replace(end=start + count)
                yield piece, self.offsets(piece)
                start = piece.end

    def _tested(self, chosen: QueueRange) -> Array:
        store, damaged = self.store, self.damage.note
        topic, queue, start, end = chosen
        found = np.arange(start, end)
        if self._text:
            held = store.holding(topic, queue, start, end - start, [self._text], damaged=damaged)
            found = np.concatenate([np.empty(0, np.int64), *(one.offsets for one in held)])
        if self._where is not None and len(found):
            matching = self._where.matching(store, topic, queue, int(found[0]), int(found[-1]) + 1, damaged)
            found = np.intersect1d(found, np.concatenate([np.empty(0, np.int64), *(one for one, _ in matching)]))
        return found

    def _by_pieces(self, ranges: Sequence[QueueRange], count: int) -> Matches:
        left = {one.queue: one for one in ranges}
        newest = {one.queue: physical_at(self.store, one, one.end - 1) for one in ranges}
        found, piece, looked_at, until_s = np.empty(0, POSITION), FIRST_PIECE, 0, time.monotonic() + SEARCH_S
        oldest = max(newest.values(), default=-1)  # all behind it was looked at
        while newest:
            chosen = left[max(newest, key=newest.__getitem__)]
            part = chosen._replace(start=max(chosen.start, chosen.end - piece))
            part = part._replace(start=part.end - fitting(self.store, part, PIECE_BYTES, from_end=True))
            found = newest_first([found, positions_at(self.store, part, self.offsets(part))])
            looked_at += part.end - part.start
            piece = min(piece * 2, LARGEST_PIECE)
            left[chosen.queue] = chosen._replace(end=part.start)
            if part.start > chosen.start:
                newest[chosen.queue] = physical_at(self.store, chosen, part.start - 1)
            else:
                del newest[chosen.queue]
            oldest = max(newest.values(), default=-1)
            if time.monotonic() > until_s or int((found["physical_offset"] > oldest).sum()) >= count:
                break
        return Matches(found[found["physical_offset"] > oldest], oldest + 1 if newest else None, looked_at)


def where_of(text: str) -> Where | None:
    """The expression of a selection; None: it has none. FormError."""
    try:
        return Where(text) if text else None
    except WhereError as error:
        raise FormError("where", error.reason, error.position) from None


def _with_key(tree: ServedTree, selection: Selection) -> dict[int, Any]:
    """Queue offsets, ascending, of the messages with the selection's key, by queue."""
    name = encode_key(selection.key)
    if name is None:
        return {}
    found: dict[int, list[int]] = {}
    try:
        names = tree.names((to_name(selection.topic), b"keys", name + MATCHES_SUFFIX))
        for match in filter(None, map(parse_match, islice(names, MOST_OF_KEY))):
            found.setdefault(match[0], []).append(match[1])
    except PathError as error:
        if error.status != 404:
            raise
    return {queue: np.unique(np.array(offsets, np.int64)) for queue, offsets in found.items()}

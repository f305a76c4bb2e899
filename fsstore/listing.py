"""Listings: resumable from any position, stable while messages come, and for messages without an object a message.

A position says where a listing goes on, and keeps its meaning for the life of the handle. In a queue it is arithmetic
on the queue offset; elsewhere it counts names of the snapshot that was taken when the listing began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from engine import MessageStore, StoreError
from fsstore.inodes import MESSAGE
from fsstore.interface import Attributes, DirectoryEntry, FilesystemError, MessageColumns

Array = np.ndarray[Any, Any]

OFFSET_DIGITS = 20
_NS_PER_MS = 1_000_000


class Listing(Protocol):
    """An open directory."""

    def read(self, position: int, limit: int) -> MessageColumns | list[DirectoryEntry]:
        """Up to `limit` entries after `position`; an empty list at the end. Position 0 begins anew."""
        ...


class Described(Protocol):
    """A directory that knows its names."""

    def names(self) -> Sequence[bytes]: ...

    def describe(self, name: bytes) -> Attributes: ...


class NamesListing:
    """The names of a directory as they were when the listing began; what is gone meanwhile is left out."""

    def __init__(self, directory: Described) -> None:
        self._directory = directory
        self._names: Sequence[bytes] = ()

    def read(self, position: int, limit: int) -> list[DirectoryEntry]:
        """Up to `limit` entries after `position`."""
        if position == 0:
            self._names = self._directory.names()
        entries: list[DirectoryEntry] = []
        while not entries and position < len(self._names):
            names = self._names[position : position + limit]
            entries = list(self._entries(names, position))
            position += len(names)
        return entries

    def _entries(self, names: Sequence[bytes], position: int) -> list[DirectoryEntry]:
        entries = []
        for next_position, name in enumerate(names, position + 1):
            try:
                entries.append(DirectoryEntry(name, self._directory.describe(name), next_position))
            except (FilesystemError, StoreError):  # gone, or not to be had: a listing shows what there is
                continue
        return entries


class QueueListing:
    """A queue: `append`, then its messages. Position 1 is after `append`, n + 2 after the message at offset n."""

    def __init__(
        self, store: MessageStore, topic: str, queue: int, template: Attributes, append: Callable[[], Attributes]
    ) -> None:
        self._store = store
        self._topic = topic
        self._queue = queue
        self._template = template
        self._append = append
        self._end = 0

    def read(self, position: int, limit: int) -> MessageColumns | list[DirectoryEntry]:
        """Up to `limit` entries after `position`."""
        if position == 0:
            self._end = self._store.bounds(self._topic, self._queue).max_offset
            return [DirectoryEntry(b"append", self._append(), 1)]
        start = max(position - 1, self._store.bounds(self._topic, self._queue).min_offset)
        if start >= self._end:
            return []
        headers = self._store.headers(self._topic, self._queue, start, min(limit, self._end - start))
        return self._columns(start, headers) if len(headers) else []

    def _columns(self, start: int, headers: Array) -> MessageColumns:
        offsets = np.arange(start, start + len(headers), dtype=np.int64)
        sizes, readable = headers["body_size"].astype(np.int64), headers["ok"].copy()
        for row in np.flatnonzero((sizes < 0) & readable).tolist():
            self._measure(int(headers["physical_offset"][row]), sizes, readable, row)
        sizes[~readable] = 0
        return MessageColumns(
            offset_names(offsets),
            headers["physical_offset"].astype(np.int64) | MESSAGE,
            sizes,
            headers["store_time_ms"].astype(np.int64) * _NS_PER_MS,
            readable,
            offsets + 2,
            self._template,
        )

    def _measure(self, physical_offset: int, sizes: Array, readable: Array, row: int) -> None:
        """Fill in the size of a compressed body, which only decompressing tells."""
        try:
            sizes[row] = self._store.at(physical_offset).body_size
        except StoreError:
            readable[row] = False


def offset_names(offsets: Array) -> Array:
    """Listed names (S20, shape (n,)) of queue offsets (int64, shape (n,), ascending, not negative)."""
    digits = np.full((len(offsets), OFFSET_DIGITS), ord("0"), dtype=np.uint8)
    rest = offsets
    for column in range(OFFSET_DIGITS - 1, -1, -1):
        if not len(rest) or rest[-1] == 0:
            break
        rest, last_digit = np.divmod(rest, 10)
        digits[:, column] += last_digit.astype(np.uint8)
    return digits.view(f"S{OFFSET_DIGITS}").reshape(-1)

"""Listings: resumable at any position, stable while messages are added, and without an object per message.

A position is valid while the handle is open. In a queue it is computed from the queue offset; elsewhere it counts
names of the snapshot that was taken when the listing began.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from engine import MessageStore, Queue, StoreError
from fsstore.interface import (
    NS_PER_MS,
    SLICE_S,
    Array,
    Attributes,
    DirectoryEntry,
    FilesystemError,
    ListedNames,
    MessageColumns,
    MessageNames,
    SlowWork,
    WorkKind,
)
from fsstore.tree.deferred import deferred
from fsstore.tree.inodes import MESSAGE, ComputedInodes
from fsstore.tree.memory_budget import Holding, MemoryBudget, Purpose

Batch: TypeAlias = MessageColumns | MessageNames | ListedNames | list[DirectoryEntry]

NAME_BYTES = 96
"""Memory for a name, about."""
MOST_DESCRIBED = 256
"""Names that one request looks up at most, some 10 µs each: the kernel may ask for a mebibyte of them."""
DESCRIBING_S = 0.002
"""Seconds after which a request looks up no more names: a stream that has to be measured takes longer."""
OFFSET_DIGITS = 20
MOST_ROWS_AHEAD = 4096


class Listing:
    """An open directory."""

    def read(self, position: int, limit: int, *, with_attributes: bool) -> Batch:
        """Up to `limit` entries after `position`; an empty list at the end. Position 0 starts again.

        Where there may be very many, they are returned as names alone unless `with_attributes`.
        """
        raise NotImplementedError

    def resume(self) -> None:
        """Continue at the next read: the last server had opened it."""

    def release(self) -> None:
        """Free the handle's resources."""


class Described(Protocol):
    """A directory that can list its names."""

    def names(self) -> Sequence[bytes]: ...

    def describe(self, name: bytes) -> Attributes: ...


class NamesListing(Listing):
    """The names of a directory when the listing began, without those that were removed since."""

    def __init__(self, directory: Described, memory: MemoryBudget) -> None:
        self._directory = directory
        self._memory = Holding(memory, Purpose.LISTINGS)
        self._names: Sequence[bytes] = ()
        self._resumes = False

    def read(self, position: int, limit: int, *, with_attributes: bool = True) -> Batch:
        """Up to `limit` entries after `position`. Errors as `_begin`."""
        self._begin(position)
        return describe_some(self._directory.describe, self._names, position, limit)[0]

    def _begin(self, position: int) -> None:
        """Collect the names, if the listing begins. SlowWork while a thread collects them; ENOBUFS: they are too many
        for the memory that is left."""
        if position == 0 or self._resumes:
            names = self._collected()
            self._memory.resize(self._bytes_of(names))
            self._names, self._resumes = names, False

    def resume(self) -> None:
        self._resumes = True

    def release(self) -> None:
        self._memory.resize(0)

    def _collected(self) -> Sequence[bytes]:
        """All names. SlowWork."""
        return deferred(self._directory.names, self)

    def _bytes_of(self, names: Sequence[bytes]) -> int:
        return NAME_BYTES * len(names)


class QueueListing(Listing):
    """A queue: `append`, then its messages. Position 1 is behind `append`, n + 2 behind the message at offset n."""

    def __init__(
        self,
        store: MessageStore,
        queue: Queue,
        inodes: ComputedInodes,
        template: Attributes,
        append: Callable[[], Attributes],
    ) -> None:
        self._store = store
        self._inodes = inodes
        self._queue = queue
        self._template = template
        self._append = append
        self._end = 0
        self._rows_ahead = 0
        self._ahead_start = 0
        self._ahead: MessageColumns | MessageNames | None = None
        self._measured: dict[int, int] = {}

    def read(self, position: int, limit: int, *, with_attributes: bool = True) -> Batch:
        """Up to `limit` entries after `position`; messages are MessageNames unless `with_attributes`."""
        bounds = self._queue.bounds()
        if self._end < 0:
            self._end = bounds.max_offset
        if position == 0:
            self._end, self._ahead, self._rows_ahead = bounds.max_offset, None, 0
            return [DirectoryEntry(b"append", self._append(), 1)]
        start = max(position - 1, bounds.min_offset)
        if start >= self._end:
            return []
        skip = start - self._ahead_start
        wanted = MessageColumns if with_attributes else MessageNames
        if type(self._ahead) is not wanted or not 0 <= skip < len(self._ahead.names):
            self._ahead = self._read_ahead(start, limit, with_attributes)
            self._ahead_start, skip = start, 0
        return self._ahead.rows(skip, skip + limit) if len(self._ahead.names) else []

    def resume(self) -> None:
        self._end = -1

    def _read_ahead(self, start: int, limit: int, with_attributes: bool) -> MessageColumns | MessageNames:
        """Messages from `start` on, more each time: a reader that continues wants them all, `ls | head` does not."""
        self._rows_ahead = min(max(limit, 2 * self._rows_ahead), MOST_ROWS_AHEAD)
        count = min(self._rows_ahead, self._end - start)
        if with_attributes:
            return self._columns(start, self._queue.headers(start, count))
        return self._names_alone(start, count)

    def _names_alone(self, start: int, count: int) -> MessageNames:
        entries = self._queue.entries(start, count)
        offsets_in_log = entries["physical_offset"]
        if len(entries) < count or (offsets_in_log[1:] == offsets_in_log[:-1]).any():
            # retention has removed entries, or messages of a batch share one: each offset has a header in both cases
            entries = self._queue.headers(start, count)
        offsets = np.arange(start, start + len(entries), dtype=np.int64)
        return MessageNames(offset_names(offsets), self._inodes_of(entries), offsets + 2, self._template)

    def _columns(self, start: int, headers: Array) -> MessageColumns:
        """The messages of `headers` up to the first whose body size is unknown. SlowWork if that is the first one."""
        sizes, readable = headers["body_size"].astype(np.int64), headers["ok"].copy()
        compressed = np.flatnonzero((sizes < 0) & readable)
        known = self._fill_in(compressed, headers["physical_offset"], sizes, readable)
        headers, sizes, readable = headers[:known], sizes[:known], readable[:known]
        offsets = np.arange(start, start + known, dtype=np.int64)
        sizes[~readable] = 0
        return MessageColumns(
            offset_names(offsets),
            self._inodes_of(headers),
            sizes,
            headers["store_time_ms"].astype(np.int64) * NS_PER_MS,
            readable,
            offsets + 2,
            self._template,
        )

    def _inodes_of(self, rows: Array) -> Array:
        return rows["physical_offset"].astype(np.int64) + self._inodes.begin | MESSAGE

    def _fill_in(self, compressed: Array, physical_offsets: Array, sizes: Array, readable: Array) -> int:
        """Fill in the sizes of compressed bodies, which need decompressing; returns the number of complete rows."""
        wanted = physical_offsets[compressed].tolist()
        for row in compressed.tolist():
            size = self._measured.get(int(physical_offsets[row]))
            if size is None:
                if row:
                    return int(row)
                raise SlowWork(lambda: self._measure(wanted), WorkKind.DECOMPRESSING)
            sizes[row], readable[row] = size, size >= 0
        return len(sizes)

    def _measure(self, physical_offsets: Sequence[int]) -> None:
        """Measure compressed bodies: the first one, and more of them for SLICE_S."""
        measured: dict[int, int] = {}
        until_s = time.monotonic() + SLICE_S
        for physical_offset in physical_offsets:
            measured[physical_offset] = self._size_of_body(physical_offset)
            if time.monotonic() >= until_s:
                break
        self._measured = measured

    def _size_of_body(self, physical_offset: int) -> int:
        """Bytes of a body; -1 if it can't be read."""
        store = self._store
        try:
            message = store.at(physical_offset)
            known = store.known_body_size(message)
            return len(store.body_of(message)) if known is None else known
        except StoreError:
            return -1


def describe_some(
    describe: Callable[[bytes], Attributes], names: Sequence[bytes], position: int, limit: int
) -> tuple[list[DirectoryEntry], int]:
    """Up to `limit` and MOST_DESCRIBED entries after `position`, none only at the end; and their number of names."""
    limit = min(limit, MOST_DESCRIBED)
    entries: list[DirectoryEntry] = []
    begin = position
    while not entries and position < len(names):
        entries, passed = _described(describe, names[position : position + limit], position)
        position += passed
    return entries, position - begin


def _described(
    describe: Callable[[bytes], Attributes], names: Sequence[bytes], position: int
) -> tuple[list[DirectoryEntry], int]:
    """As `describe_some`, for about DESCRIBING_S."""
    entries, passed = list[DirectoryEntry](), 0
    until_s = time.monotonic() + DESCRIBING_S
    for passed, name in enumerate(names, 1):
        try:
            entries.append(DirectoryEntry(name, describe(name), position + passed))
        except (FilesystemError, StoreError):  # removed, or unreadable: a listing shows the others
            continue
        if time.monotonic() >= until_s:
            break
    return entries, passed


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

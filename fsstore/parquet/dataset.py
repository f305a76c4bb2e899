"""The dataset of `@parquet/`: its files, their sizes and their bytes.

Thread safety: any thread.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from engine import (
    DamagedRecordError,
    ExpiredMessageError,
    KnownRange,
    MessageNotFoundError,
    MessageStore,
    OpenMode,
    ReadError,
    StoreError,
    TopicNotFoundError,
    check_deadline,
)
from fsstore.interface import FilesystemError
from fsstore.options import ParquetOptions
from fsstore.parquet.cache import Recent
from fsstore.parquet.file_map import FileMap, chunk_index, map_file
from fsstore.parquet.format import SCHEMA
from fsstore.parquet.kept import Kept, decode, encode, known_range
from fsstore.parquet.layout import Layout, RangeKey, RowGroup, measure, range_key
from fsstore.parquet.pages import Chunk
from fsstore.parquet.row_groups import BoundError, RowGroupColumns, outline_columns, read_columns
from fsstore.parquet.segments import QueueSegments, Segment

QUICK_MESSAGES = 20_000
QUICK_BYTES = 4 << 20
"""A thread reads the headers of a range with more messages or bytes than this."""

_KEPT_LAYOUTS = 65_536
_KEPT_SHOWN = 65_536
"""Files that are remembered; a stream reads new ones with each batch, as long as the mount exists."""
_EIGHTHS_OF_MAPS, _EIGHTHS_OF_COLUMNS = 1, 3
"""Parts of the memory; chunks have the rest. Without a map, all messages of a file must be read again."""
_CHUNK_ENTRY_BYTES = 2 << 10
"""Memory of a kept chunk in addition to its bytes, about: its objects and key, and unused room after it."""

LEAST_OUTLINED = 4096
"""A footer is made of the outlines of row groups with at least as many messages; of shorter ones, columns are read and
kept."""
_TAIL_BYTES = 128 << 10
"""A reader that begins within as many bytes of a file's end asks for the footer: it may want no columns."""

LEAST_KEPT = 1024
"""A map is kept for later mounts if the file has at least as many messages; it takes some 2 KB."""

_LOCKS = 64
_MEASURING_THREADS = 2
"""Threads of one listing; numpy releases the interpreter's lock most of the time."""


class ChunkKey(NamedTuple):
    """A chunk: its file, the number of messages left out of it, and the chunk's number in the file's map."""

    file: RangeKey
    left_out: int
    number: int


class FirstSeen(NamedTuple):
    """A file when its footer was first read: a hash of its sizes, and the number of messages left out."""

    sizes: int
    left_out: int


class Dataset:
    """The files of one mount."""

    def __init__(self, store: MessageStore, options: ParquetOptions) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._segments: dict[tuple[str, int], QueueSegments] = {}
        self._layouts: Recent[RangeKey, Layout] = Recent(_KEPT_LAYOUTS)
        eighth_bytes = options.memory_bytes // 8
        maps_bytes, columns_bytes = eighth_bytes * _EIGHTHS_OF_MAPS, eighth_bytes * _EIGHTHS_OF_COLUMNS
        self._chunks: Recent[ChunkKey, memoryview] = Recent(options.memory_bytes - maps_bytes - columns_bytes)
        self._maps: Recent[RangeKey, FileMap] = Recent(maps_bytes)
        self._columns: Recent[tuple[RangeKey, int], RowGroupColumns] = Recent(columns_bytes)
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._rendering = threading.BoundedSemaphore(os.cpu_count() or 1)
        self._shown: Recent[RangeKey, FirstSeen] = Recent(_KEPT_SHOWN)
        self._damaged: dict[KnownRange, int] = {}
        """How often messages of a range turned out to be damaged after its footer was read."""
        file_bytes = store.sizes.commit_log_bytes
        self._ahead_begin = self._ahead_end = store.physical_end // file_bytes * file_bytes
        """Physical offsets of the files of the log that `look_ahead` was about last."""
        self._ahead: Iterator[None] = iter(())
        self._is_ending = False
        self.rendered_files = 0
        self.rendered_chunks = 0

    # names and sizes

    def unchanged_segments(self, topic: str, queue: int) -> tuple[Segment, ...] | None:
        """The last result of `segments`, the same object, if nothing has changed since. TopicNotFoundError."""
        return self._queue(topic, queue).unchanged()

    def segments(self, topic: str, queue: int) -> tuple[Segment, ...]:
        """The files of a queue, oldest first, each measured. TopicNotFoundError; WouldBlock on a nonblocking thread
        where much must be measured, or decompressed."""
        known, bounds = self._queue(topic, queue), self._store.bounds(topic, queue)
        if not self._takes_little(topic, queue, max(known.measured_end, bounds.min_offset), bounds.max_offset):
            check_deadline()
        segments, layouts = known.now(), known.layouts
        unknown = [segment for segment in segments if segment[:2] not in layouts]
        for segment, layout in zip(unknown, self._measured(topic, queue, unknown), strict=True):
            if layout is not None and not segment.is_tail:
                layouts[segment.begin, segment.end] = layout
        return segments

    def layouts(self, topic: str, queue: int) -> Mapping[tuple[int, int], Layout]:
        """Known layouts of whole segments, by [begin, end)."""
        return self._queue(topic, queue).layouts

    def _measured(self, topic: str, queue: int, segments: Sequence[Segment]) -> Iterator[Layout | None]:
        """The layout of each segment; if they are many, several are measured at a time."""
        kept = partial(self._measure_listed, self._kept_layout, topic, queue)
        measure = partial(self._measure_listed, self.measure, topic, queue)
        if sum(segment.end - segment.begin for segment in segments) <= QUICK_MESSAGES:
            yield from map(measure, segments)
            return
        with ThreadPoolExecutor(_MEASURING_THREADS) as threads:
            for found in [kept(segment) or threads.submit(measure, segment) for segment in segments]:
                yield found.result() if isinstance(found, Future) else found

    def key(self, topic: str, queue: int, begin: int, end: int) -> RangeKey:
        """The range as it is now. Errors as `range_key`."""
        key = range_key(self._store, topic, queue, begin, end)
        damaged = self._damaged.get(known_range(key), 0) if self._damaged else 0
        return replace(key, damaged=damaged) if damaged else key

    def is_outdated(self, key: RangeKey) -> bool:
        """Whether messages of the range turned out to be damaged after its footer was read."""
        return self._damaged.get(known_range(key), 0) != key.damaged

    def _measure_listed(
        self, measure: Callable[[RangeKey], Layout | None], topic: str, queue: int, segment: Segment
    ) -> Layout | None:
        if self._is_ending:
            raise FilesystemError(errno.ENOTCONN, "unmounted while a long queue was listed")
        try:
            return measure(self.key(topic, queue, segment.begin, segment.end))
        except (ExpiredMessageError, MessageNotFoundError):
            return None  # expired meanwhile: the listing leaves it out, too

    def listed_layout(self, topic: str, queue: int, begin: int, end: int) -> Layout:
        """The layout of a range that `segments` has just returned. ExpiredMessageError, MessageNotFoundError."""
        layout = self._queue(topic, queue).layouts.get((begin, end))
        return layout or self.measure(self.key(topic, queue, begin, end))

    def _takes_little(self, topic: str, queue: int, begin: int, end: int) -> bool:
        if end - begin > QUICK_MESSAGES:
            return False
        return int(self._store.entries(topic, queue, begin, end - begin)["size"].sum()) <= QUICK_BYTES

    def measure(self, key: RangeKey) -> Layout:
        """The layout of a range. ExpiredMessageError; WouldBlock as `segments`."""
        with self._lock:
            layout = self._layouts.get(key)
        if layout is None:
            if not self._takes_little(key.topic, key.queue, key.begin, key.end):
                check_deadline()
            layout = self._kept_layout(key) or measure(self._store, key)
            with self._lock:
                self._layouts.put(key, layout, 1)
        return layout

    def _kept_layout(self, key: RangeKey) -> Layout | None:
        """The layout of a range whose map is kept; the map is in memory now."""
        kept = self._kept(key)
        if kept is None:
            return None
        shown = FirstSeen(hash(kept.map.sizes), kept.map.left_out)
        with self._lock:
            self._layouts.put(key, kept.layout, 1)
            if self._shown.get(key) in (None, shown):
                self._shown.put(key, shown, 1)
                self._maps.put(key, kept.map, kept.map.kept_bytes)
        return kept.layout

    def _kept(self, key: RangeKey) -> Kept | None:
        """Layout and map of a range whose messages were read before, perhaps by an earlier mount."""
        content = self._store.known_ranges.content(known_range(key))
        return None if content is None else decode(key, content)

    def _keep(self, layout: Layout, found: FileMap) -> None:
        """Keep the map of a whole segment for later mounts."""
        key = layout.key
        if found.left_out or key.end - key.begin < LEAST_KEPT:
            return
        if (key.begin, key.end) in self._queue(key.topic, key.queue).layouts:
            self._store.known_ranges.keep(known_range(key), encode(Kept(layout, found)))

    def _queue(self, topic: str, queue: int) -> QueueSegments:
        with self._lock:
            known = self._segments.get((topic, queue))
            if known is None:
                known = self._segments[topic, queue] = QueueSegments(self._store, topic, queue)
            return known

    # bytes

    def known_map(self, layout: Layout) -> FileMap | None:
        """The map of a file whose messages were read recently, else None."""
        with self._lock:
            return self._maps.get(layout.key)

    def map(self, layout: Layout, position: int = 0) -> FileMap:
        """The map of a file, whose messages are read for it; a reader is at that `position`. FilesystemError EIO: they
        have expired or changed."""
        with self._working_on(layout.key):
            return self.known_map(layout) or self._map(layout, position)

    def peek(self, layout: Layout, found: FileMap, number: int) -> list[memoryview] | None:
        """The pieces of a chunk in the file's map, if it is in memory or encoding it takes no longer than a copy."""
        key = ChunkKey(layout.key, found.left_out, number)
        kept = self._known_chunk(key)
        if kept is None:
            row_group, column = chunk_index(number)
            columns = self._known_columns(layout, found, row_group)
            chunk = None if columns is None else columns.chunks[SCHEMA.in_file[column].name]
            if chunk is None or not chunk.is_quick:
                return None
            [kept] = self._encode(chunk)
            self._keep_chunk(key, kept)
        return [kept]

    def fetch(self, layout: Layout, found: FileMap, number: int) -> list[memoryview]:
        """The pieces of a chunk, which is rendered if it is not kept. FilesystemError as `map`."""
        key = ChunkKey(layout.key, found.left_out, number)
        with self._working_on(layout.key):
            if (kept := self._known_chunk(key)) is not None:
                return [kept]
            chunk = self._chunk(layout, found, number)
            pieces = self._encode(chunk)
            if chunk.copied is None:
                self._keep_chunk(key, *pieces)
            return pieces

    def _known_chunk(self, key: ChunkKey) -> memoryview | None:
        with self._lock:
            return self._chunks.get(key)

    def _keep_chunk(self, key: ChunkKey, chunk: memoryview) -> None:
        with self._lock:
            self._chunks.put(key, chunk, len(chunk) + _CHUNK_ENTRY_BYTES)

    @contextmanager
    def _working_on(self, key: RangeKey) -> Iterator[None]:
        try:
            with self._locks[hash(key) % _LOCKS], self._rendering:
                yield
        except (BoundError, DamagedRecordError) as error:
            self._forget(key)
            raise FilesystemError(errno.EIO, str(error)) from None
        except (ReadError, TopicNotFoundError) as error:
            raise FilesystemError(errno.EIO, str(error)) from None

    def _forget(self, key: RangeKey) -> None:
        """Messages of the range are not as its footer says, which the kernel may have: the name gets another file."""
        known = known_range(key)
        self._store.known_ranges.forget(known)
        with self._lock:
            if not self.is_outdated(key):
                self._damaged[known] = key.damaged + 1
            self._layouts.take(key)
            self._maps.take(key)
        self._queue(key.topic, key.queue).forget(key.begin, key.end)

    def _map(self, layout: Layout, position: int) -> FileMap:
        kept = self._kept(layout.key)
        if kept is not None and kept.layout == layout:
            found = kept.map
        else:
            read = self._read if position < layout.size - _TAIL_BYTES else self._sizes
            found = map_file(layout, (read(layout, index) for index in range(len(layout.row_groups))))
            self._keep(layout, found)
            with self._lock:
                self.rendered_files += 1
        shown = FirstSeen(hash(found.sizes), found.left_out)
        with self._lock:
            if self._shown.get(layout.key) not in (None, shown):  # the kernel may have cached the old bytes
                raise BoundError(f"messages of {layout.key} have changed since they were first read")
            self._shown.put(layout.key, shown, 1)
            self._maps.put(layout.key, found, found.kept_bytes)
        return found

    def _chunk(self, layout: Layout, found: FileMap, number: int) -> Chunk:
        row_group, column = chunk_index(number)
        columns = self._known_columns(layout, found, row_group) or self._read(layout, row_group)
        if columns.sizes != found.sizes[row_group]:
            raise self._difference(layout, layout.row_groups[row_group])
        return columns.chunks[SCHEMA.in_file[column].name]

    def _difference(self, layout: Layout, row_group: RowGroup) -> BoundError | DamagedRecordError:
        """The error that names the first message that is damaged since the footer was made."""
        topic, queue, begin = layout.key.topic, layout.key.queue, row_group.begin
        blocks = self._store.blocks(topic, queue, begin, row_group.messages)
        good = {queue_offset for block in blocks for queue_offset in block.queue_offset.tolist()}
        first = next((number for number in range(begin, row_group.end) if number not in good), None)
        entries = [] if first is None else self._store.entries(topic, queue, first, 1)["physical_offset"].tolist()
        if not entries:
            return BoundError(f"messages of {topic}/{queue} from {begin} on are others than when the footer was made")
        return DamagedRecordError(entries[0], f"message {first} of {topic}/{queue} was good when the footer was made")

    def _known_columns(self, layout: Layout, found: FileMap, row_group: int) -> RowGroupColumns | None:
        """A row group that was read recently, with the sizes in the map; else None."""
        with self._lock:
            columns = self._columns.get((layout.key, row_group))
        return columns if columns is not None and columns.sizes == found.sizes[row_group] else None

    def _encode(self, chunk: Chunk) -> list[memoryview]:
        pieces = [chunk.encode()] if chunk.copied is None else chunk.pieces(chunk.copied)
        with self._lock:
            self.rendered_chunks += 1
        return pieces

    def _sizes(self, layout: Layout, index: int) -> RowGroupColumns:
        """A row group for the footer: perhaps its chunks can't be encoded."""
        row_group = layout.row_groups[index]
        if row_group.messages >= LEAST_OUTLINED:
            outlined = outline_columns(self._store, layout.key, row_group)
            if outlined is not None:
                return outlined
        return self._read(layout, index)

    def _read(self, layout: Layout, index: int) -> RowGroupColumns:
        columns = read_columns(self._store, layout.key, layout.row_groups[index])
        with self._lock:
            self._columns.put((layout.key, index), columns, columns.kept_bytes)
        return columns

    def look_ahead(self, seconds: float) -> bool:
        """Make footers of segments in files of the log that this process has filled, and keep them for the first count,
        for about `seconds`. Returns whether none is left."""
        until_s = time.monotonic() + seconds
        while True:
            for _ in self._ahead:
                if time.monotonic() >= until_s:
                    return False
            file_bytes = self._store.sizes.commit_log_bytes
            end = self._store.durable_end // file_bytes * file_bytes
            if self._store.mode is not OpenMode.WRITE or end <= self._ahead_end:
                return True
            self._ahead = self._footers(self._ahead_begin, end)  # the last files had tails, which are whole now
            self._ahead_begin, self._ahead_end = self._ahead_end, end

    def _footers(self, begin: int, end: int) -> Iterator[None]:
        """Make the footers of whole segments with records at [begin, end), one a step."""
        for topic, queue in self._store.queues_since(begin):
            with suppress(StoreError, FilesystemError):  # it goes meanwhile; or its readers will see the error
                known = self._queue(topic, queue)
                for segment in reversed(known.now()):
                    key = self.key(topic, queue, segment.begin, segment.end)
                    if key.last_physical < begin:
                        break
                    if not segment.is_tail and key.first_physical < end and key.end - key.begin >= LEAST_KEPT:
                        layout = known.layouts[segment[:2]] = self.measure(key)
                        self.map(layout, layout.size)
                        yield
            yield  # there may be many queues without a whole segment

    def status(self) -> dict[str, object]:
        """Figures for `@store/status.json`."""
        with self._lock:
            shown = [(key, file.left_out) for key, file in self._shown.kept() if file.left_out]
        return {
            "rendered_files": self.rendered_files,
            "rendered_chunks": self.rendered_chunks,
            "left_out_messages": sum(left_out for key, left_out in shown if not self._has_expired(key)),
            "memory_bytes": self._chunks.kept_bytes + self._maps.kept_bytes + self._columns.kept_bytes,
        }

    def _has_expired(self, key: RangeKey) -> bool:
        """Whether a range's first message has expired, or its topic was deleted."""
        try:
            return self._store.bounds(key.topic, key.queue).min_offset > key.begin
        except TopicNotFoundError:
            return True

    def forget_queue(self, topic: str, queue: int) -> None:
        with self._lock:
            self._segments.pop((topic, queue), None)
        self._forget_shown(lambda key: (key.topic, key.queue) == (topic, queue))

    def forget_all_but(self, topics: Collection[str]) -> None:
        """Forget all about other topics than `topics`."""
        with self._lock:
            for topic, queue in [known for known in self._segments if known[0] not in topics]:
                del self._segments[topic, queue]
        self._forget_shown(lambda key: key.topic not in topics)

    def _forget_shown(self, is_gone: Callable[[RangeKey], bool]) -> None:
        with self._lock:
            for key, _ in self._shown.kept():
                if is_gone(key):
                    self._shown.take(key)

    def ending(self) -> None:
        """The mount ends: a listing in a thread fails at its next file (FilesystemError ENOTCONN)."""
        self._is_ending = True

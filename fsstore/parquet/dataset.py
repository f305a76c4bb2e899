"""The dataset behind `@parquet/`: which files there are, how long they are, and their bytes.

Thread safety: any thread. Names and sizes come from here to the filesystem's thread where they are known already;
`measure` and `fetch` are what a thread does when they are not.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Collection, Mapping
from importlib.util import find_spec

from engine import ExpiredMessageError, MessageNotFoundError, MessageStore, OpenMode, RetiredFileError
from fsstore.interface import FilesystemError
from fsstore.parquet.cache import ChunkCache, DiskChunks, Recent
from fsstore.parquet.layout import Layout, RangeKey, measure, range_key
from fsstore.parquet.options import ParquetOptions
from fsstore.parquet.segments import QueueSegments, Segment

QUICK_MESSAGES = 20_000
QUICK_BYTES = 4 << 20
"""Of a range with more messages or bytes than this, the headers are read in a thread."""

_KEPT_LAYOUTS = 65_536
_FOOTER_SHARE = 8  # footers get an eighth of the memory: without one, a whole file has to be rendered again
_LOCKS = 64


def is_available() -> bool:
    """Whether pyarrow is installed; finds out without loading it."""
    return find_spec("pyarrow") is not None


class Dataset:
    """The files of one mount."""

    def __init__(self, store: MessageStore, options: ParquetOptions) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._segments: dict[tuple[str, int], QueueSegments] = {}
        self._layouts: Recent[RangeKey, Layout] = Recent(_KEPT_LAYOUTS, lambda _key, _layout: None)
        directory = options.directory
        if directory is None and store.mode is OpenMode.WRITE:
            directory = store.path / "fsstore" / "parquet"
        disk = DiskChunks(directory, options.disk_bytes) if directory is not None and options.disk_bytes else None
        footer_bytes = options.memory_bytes // _FOOTER_SHARE
        self._chunks = ChunkCache(options.memory_bytes - footer_bytes, disk)
        self._footers = ChunkCache(footer_bytes, None)
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._rendering = threading.BoundedSemaphore(os.cpu_count() or 1)
        self._left_out: dict[RangeKey, int] = {}
        self.rendered_files = 0
        self.rendered_row_groups = 0

    # names and sizes

    def unchanged_segments(self, topic: str, queue: int) -> tuple[Segment, ...] | None:
        """What `segments` gave last time, the same object, if nothing has changed since. TopicNotFoundError."""
        return self._queue(topic, queue).unchanged()

    def segments(self, topic: str, queue: int) -> tuple[Segment, ...]:
        """The files of a queue, oldest first, each measured. TopicNotFoundError."""
        known = self._queue(topic, queue)
        segments, layouts = known.now(), known.layouts
        for begin, end, is_tail in segments:
            if (begin, end) not in layouts:
                layout = self._measure_listed(topic, queue, begin, end)
                if layout is not None and not is_tail:
                    layouts[begin, end] = layout
        return segments

    def layouts(self, topic: str, queue: int) -> Mapping[tuple[int, int], Layout]:
        """Those of whole segments that are known, by [begin, end)."""
        return self._queue(topic, queue).layouts

    def _measure_listed(self, topic: str, queue: int, begin: int, end: int) -> Layout | None:
        try:
            return self.measure(range_key(self._store, topic, queue, begin, end))
        except (ExpiredMessageError, MessageNotFoundError):
            return None  # gone meanwhile: the listing leaves it out, too

    def listed_layout(self, topic: str, queue: int, begin: int, end: int) -> Layout:
        """The layout of a range that `segments` gave a moment ago. ExpiredMessageError, MessageNotFoundError."""
        layout = self._queue(topic, queue).layouts.get((begin, end))
        return layout or self.measure(range_key(self._store, topic, queue, begin, end))

    def is_quick(self, topic: str, queue: int) -> bool:
        """Whether `segments` has little to measure."""
        bounds = self._store.bounds(topic, queue)
        known = max(self._queue(topic, queue).known_end, bounds.min_offset)
        return self._takes_little(topic, queue, known, bounds.max_offset)

    def _takes_little(self, topic: str, queue: int, begin: int, end: int) -> bool:
        if end - begin > QUICK_MESSAGES:
            return False
        return int(self._store.entries(topic, queue, begin, end - begin)["size"].sum()) <= QUICK_BYTES

    def find(self, topic: str, queue: int, begin: int, end: int) -> RangeKey:
        """A range that is there. ExpiredMessageError, MessageNotFoundError, TopicNotFoundError."""
        return range_key(self._store, topic, queue, begin, end)

    def known_layout(self, key: RangeKey) -> Layout | None:
        """A layout, measured now where that is quick; None: `measure` it in a thread."""
        with self._lock:
            layout = self._layouts.get(key)
        if layout is None and self._takes_little(key.topic, key.queue, key.begin, key.end):
            layout = self.measure(key)
        return layout

    def measure(self, key: RangeKey) -> Layout:
        """The layout of a range. ExpiredMessageError."""
        with self._lock:
            layout = self._layouts.get(key)
        if layout is None:
            layout = measure(self._store, key)
            with self._lock:
                self._layouts.put(key, layout, 1)
        return layout

    def _queue(self, topic: str, queue: int) -> QueueSegments:
        with self._lock:
            known = self._segments.get((topic, queue))
            if known is None:
                known = self._segments[topic, queue] = QueueSegments(self._store, topic, queue)
            return known

    # bytes

    def peek(self, layout: Layout, index: int) -> bytes | None:
        """A part of a file (a row group, or the footer) that is in memory."""
        return self._cache(layout, index).peek((layout.key, index))

    def fetch(self, layout: Layout, index: int) -> bytes:
        """A part of a file, rendered when it is nowhere. FilesystemError EIO: its first message is gone, or the
        records have changed."""
        from fsstore.parquet.render import BoundError

        with self._locks[hash(layout.key) % _LOCKS]:
            part = self._cache(layout, index).find((layout.key, index))
            if part is not None:
                return part
            try:
                with self._rendering:
                    return self._render(layout, index)
            except (ExpiredMessageError, MessageNotFoundError, RetiredFileError, BoundError) as error:
                raise FilesystemError(errno.EIO, str(error)) from None

    def _render(self, layout: Layout, index: int) -> bytes:
        """Render a file, or only a row group of one whose footer is known."""
        from fsstore.parquet.render import render, render_row_group

        if self._footers.find((layout.key, layout.footer_index)) is not None:
            wanted = render_row_group(self._store, layout, index)
            self._keep(layout, index, wanted)
            return wanted
        found = {}

        def keep(number: int, row_group: bytes) -> None:
            self._keep(layout, number, row_group)
            if number == index:
                found[index] = row_group

        footer, left_out = render(self._store, layout, keep)
        self._footers.put((layout.key, layout.footer_index), footer)
        with self._lock:
            self.rendered_files += 1
            if left_out:
                self._left_out[layout.key] = left_out
        return found.get(index, footer)

    def _keep(self, layout: Layout, index: int, row_group: bytes) -> None:
        self._chunks.put((layout.key, index), row_group)
        with self._lock:
            self.rendered_row_groups += 1

    def _cache(self, layout: Layout, index: int) -> ChunkCache:
        return self._footers if index == layout.footer_index else self._chunks

    def status(self) -> dict[str, object]:
        """Figures for `@store/status.json`."""
        with self._lock:
            left_out = sum(self._left_out.values())
        return {
            "available": True,
            "rendered_files": self.rendered_files,
            "rendered_row_groups": self.rendered_row_groups,
            "left_out_messages": left_out,
            "memory_bytes": self._chunks.memory_bytes + self._footers.memory_bytes,
            "disk_bytes": self._chunks.disk_bytes,
        }

    def expired(self, topic: str, queue: int, new_min: int) -> None:
        """Forget what was left out of files that are gone."""
        with self._lock:
            for key in [key for key in self._left_out if (key.topic, key.queue) == (topic, queue)]:
                if key.begin < new_min:
                    del self._left_out[key]

    def forget_all_but(self, topics: Collection[str]) -> None:
        """Forget what is known of other topics than `topics`."""
        with self._lock:
            for topic, queue in [known for known in self._segments if known[0] not in topics]:
                del self._segments[topic, queue]
            for key in [key for key in self._left_out if key.topic not in topics]:
                del self._left_out[key]

    def close(self) -> None:
        """Let go of everything that is kept."""
        self._chunks.close()
        self._footers.close()

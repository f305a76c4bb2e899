"""`@parquet/` in the tree: topics and queues as partitions, ranges as files, and handles on them."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from engine import Expired, MessageStore, OpenMode, StoreError, WouldBlock, nonblocking
from fsstore.interface import (
    CACHED,
    Attributes,
    Data,
    FilesystemError,
    Opened,
    OpenedDirectory,
    Pieces,
    SlowWork,
    WorkKind,
)
from fsstore.parquet.cached_names import CachedNames
from fsstore.parquet.dataset import Dataset
from fsstore.parquet.file_map import FileMap
from fsstore.parquet.layout import MAGIC, Layout, RangeKey
from fsstore.parquet.names import (
    SEGMENT_MESSAGES,
    parse_queue_partition,
    parse_segment,
    parse_topic_partition,
    queue_partition,
    segment_name,
    topic_partition,
)
from fsstore.parquet.segments import Segment
from fsstore.tree.deferred import deferred
from fsstore.tree.inodes import InodeTable, Maker, NodeKey
from fsstore.tree.listing import Listing
from fsstore.tree.memory_budget import MemoryBudget, Purpose
from fsstore.tree.names import can_be_name, from_name
from fsstore.tree.nodes import Context, Directory, Node, OpenFile, not_found
from fsstore.tree.streams import newest_store_time_ms

_MAGIC = memoryview(MAGIC)
_ZEROS = memoryview(bytes(1 << 20))


class DatasetDirectory(Directory):
    """The directory `@parquet/`, with a directory for each topic."""

    def __init__(self, context: Context, dataset: Dataset) -> None:
        super().__init__(context)
        self._dataset = dataset
        context.inodes.makers += [
            Maker(TopicPartition, lambda key: TopicPartition(context, dataset, key.topic or "")),
            Maker(QueuePartition, self._partition_again),
            Maker(RangeFile, self._file_again, lambda fields: RangeKey(*fields)),
        ]

    def lookup(self, name: bytes) -> Attributes:
        topic = parse_topic_partition(name)
        if topic is None or not self._context.store.has_topic(topic):
            return self._context.absence(name)
        key = NodeKey(TopicPartition, topic)
        node = self._context.inodes.named(key, lambda: TopicPartition(self._context, self._dataset, topic))
        return node.attributes()

    def names(self) -> Sequence[bytes]:
        return sorted(filter(can_be_name, map(topic_partition, self._context.store.topics())))

    def _partition_again(self, key: NodeKey) -> QueuePartition:
        """A queue's directory whose inode was taken over. ESTALE: the queue was deleted."""
        topic, queue = key.topic or "", key.queue or 0
        if not self._context.store.has_queue(topic, queue):
            raise FilesystemError(errno.ESTALE)
        return QueuePartition(self._context, self._dataset, topic, queue)

    def _file_again(self, key: NodeKey) -> RangeFile:
        """A file whose inode was taken over. SlowWork while it is measured; ESTALE: it has expired or changed."""
        dataset, listed = self._dataset, key.detail
        assert isinstance(listed, RangeKey)
        try:
            if dataset.key(listed.topic, listed.queue, listed.begin, listed.end) != listed:
                raise FilesystemError(errno.ESTALE)
        except StoreError:
            raise FilesystemError(errno.ESTALE) from None
        return RangeFile(self._context, dataset, deferred(lambda: dataset.measure(listed), (dataset, listed)))


class TopicPartition(Directory):
    """`topic=…/`: a directory for each queue."""

    def __init__(self, context: Context, dataset: Dataset, topic: str) -> None:
        super().__init__(context)
        self._dataset = dataset
        self._topic = topic

    @property
    def path(self) -> str:
        return f"@parquet/{from_name(topic_partition(self._topic))}"

    def lookup(self, name: bytes) -> Attributes:
        queue = parse_queue_partition(name)
        if queue is None or not self._context.store.has_queue(self._topic, queue):
            return self._context.absence(name)
        return self._context.inodes.named(
            NodeKey(QueuePartition, self._topic, queue),
            lambda: QueuePartition(self._context, self._dataset, self._topic, queue),
        ).attributes()

    def names(self) -> Sequence[bytes]:
        return [queue_partition(queue) for queue in self._context.store.queues(self._topic)]


class QueuePartition(Directory):
    """`queue=N/`: the files of a queue. Any existing range can be looked up, listed or not."""

    def __init__(self, context: Context, dataset: Dataset, topic: str, queue: int) -> None:
        super().__init__(context)
        self._dataset = dataset
        self._topic = topic
        self._queue = queue
        self._messages = context.store.queue(topic, queue)
        self._listed: dict[bytes, RangeFile] = {}
        """Files of whole segments from the last listing, so that they need not be looked up again."""
        self._cached = CachedNames(self, context.memory, context.inodes.are_valid)

    @property
    def path(self) -> str:
        return partition_path(self._topic, self._queue)

    def attributes(self) -> Attributes:
        newest_ms = newest_store_time_ms(self._messages)
        return self._context.attribute_factory.directory(self.inode, mtime_ms=newest_ms)

    def lookup(self, name: bytes) -> Attributes:
        key = self._find(name)
        if key is None:
            return self._context.absence(name)
        layout = deferred(lambda: self._dataset.measure(key), (self._dataset, key))
        return self._file(layout, is_made_up=name not in self._listed).attributes()

    def describe(self, name: bytes) -> Attributes:
        file = self._listed.get(name)
        if file is None or file.inode not in self._context.inodes.nodes:  # forgotten by the kernel, or expired
            file = self._listed[name] = self._listed_file(name)
        return file.attributes()

    def _listed_file(self, name: bytes) -> RangeFile:
        found = parse_segment(name)
        if found is None:
            raise not_found()
        dataset, topic, queue = self._dataset, self._topic, self._queue
        layout = deferred(lambda: dataset.listed_layout(topic, queue, *found), (self, name), WorkKind.DECOMPRESSING)
        if has_expired(self._context.store, layout.key):  # the kernel would not be notified a second time
            raise not_found()
        return self._file(layout)

    def opendir(self) -> tuple[Listing, OpenedDirectory]:
        """The kernel may cache the names if it may cache attributes for long, too. Otherwise it would ask for each file
        of a cached listing, while our listing returns all attributes at once."""
        if self._context.store.mode is OpenMode.FOLLOW:
            return super().opendir()
        try:
            with nonblocking():
                dataset, topic, queue = self._dataset, self._topic, self._queue
                segments = dataset.unchanged_segments(topic, queue) or dataset.segments(topic, queue)
        except WouldBlock:
            return self._cached.open_beside()
        return self._cached.open(segments, lambda: self._names_of(segments))

    def names(self) -> Sequence[bytes]:
        return self._names_of(self._dataset.segments(self._topic, self._queue))

    def _names_of(self, segments: Sequence[Segment]) -> Sequence[bytes]:
        names = [segment_name(begin, end, is_tail=is_tail) for begin, end, is_tail in segments]
        self._listed = self._still_known(names, segments)
        return names

    def _still_known(self, names: Sequence[bytes], segments: Sequence[Segment]) -> dict[bytes, RangeFile]:
        known, layouts = self._listed, self._dataset.layouts(self._topic, self._queue)
        found = {}
        for name, segment in zip(names, segments, strict=True):
            file = known.get(name)
            if file is not None and file.layout is layouts.get(segment[:2]):  # else it is of an earlier queue
                found[name] = file
        return found

    def _find(self, name: bytes) -> RangeKey | None:
        found = parse_segment(name)
        if found is None or found.end - found.begin > SEGMENT_MESSAGES:
            return None
        return self._dataset.key(self._topic, self._queue, found.begin, found.end)

    def _file(self, layout: Layout, *, is_made_up: bool = False) -> RangeFile:
        key = NodeKey(RangeFile, self._topic, self._queue, layout.key)
        if layout.key.damaged:  # what the kernel has of the file is older than the damage
            before = replace(layout.key, damaged=layout.key.damaged - 1)
            self._context.inodes.invalidate_named(key._replace(detail=before))
        make = partial(RangeFile, self._context, self._dataset, layout)
        file = self._context.inodes.named(key, make, is_made_up=is_made_up)
        assert isinstance(file, RangeFile)
        return file


class RangeFile(Node):
    """A file with the queue offsets [begin, end). It never changes."""

    def __init__(self, context: Context, dataset: Dataset, layout: Layout) -> None:
        self._context = context
        self._dataset = dataset
        self.layout = layout
        self._attributes: Attributes | None = None

    @property
    def path(self) -> str:
        key = self.layout.key
        return f"{partition_path(key.topic, key.queue)}/{from_name(segment_name(key.begin, key.end))}"

    def attributes(self) -> Attributes:
        known = self._attributes
        if known is None:
            known = self._context.attribute_factory.unchanging(self.inode, self.layout.size, self.layout.mtime_ms)
            self._attributes = known
        return known

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise self._context.refusal()
        if has_expired(self._context.store, self.layout.key) or self._dataset.is_outdated(self.layout.key):
            raise FilesystemError(errno.ESTALE)  # the kernel looks up the path again and finds that it does not exist
        return OpenRange(self._dataset, self.layout, self._context.memory), CACHED


def partition_path(topic: str, queue: int) -> str:
    return f"@parquet/{from_name(topic_partition(topic))}/{from_name(queue_partition(queue))}"


def has_expired(store: MessageStore, key: RangeKey) -> bool:
    """Whether a range's first message has expired."""
    return store.bounds(key.topic, key.queue).min_offset > key.begin


class OpenRange(OpenFile):
    """An open file. Chunks that are not rendered yet are slow work, and are kept until the next ones: so a long chunk
    that is read in pieces is rendered once, however little the cache keeps.

    Thread safety: `read` on the filesystem's thread, while threads do the slow work of other reads, one after the
    other. So shared objects are replaced, never changed.
    """

    __slots__ = ("_dataset", "_fetched", "_layout", "_map", "_memory", "_preparing")

    def __init__(self, dataset: Dataset, layout: Layout, memory: MemoryBudget) -> None:
        self._dataset = dataset
        self._layout = layout
        self._memory = memory
        self._map: FileMap | None = None
        self._fetched: dict[int, list[memoryview]] = {}
        self._preparing = threading.Lock()

    def read(self, position: int, size: int) -> Data:
        end = min(position + size, self._layout.size)
        if position >= end:
            return b""
        found = self._map = self._map or self._dataset.known_map(self._layout)
        if found is None:
            raise SlowWork(lambda: self._prepare(position, end))
        parts = [(0, [_MAGIC])]
        for number in found.chunks(position, end):
            pieces = self._chunk(found, number)
            if pieces is None:
                raise SlowWork(lambda: self._prepare(position, end))
            parts.append((int(found.starts[number]), pieces))
        parts.append((self._layout.size - len(found.footer), [memoryview(found.footer)]))
        return Pieces(list(cut(position, end, parts)))

    def _chunk(self, found: FileMap, number: int) -> list[memoryview] | None:
        return self._fetched.get(number) or self._dataset.peek(self._layout, found, number)

    def _prepare(self, position: int, end: int) -> None:
        """Get the map and the chunks that a `read` of these bytes needs."""
        with self._preparing:
            found = self._map = self._map or self._dataset.map(self._layout, position)
            self._fetched = {
                number: self._chunk(found, number) or self._dataset.fetch(self._layout, found, number)
                for number in found.chunks(position, end)
            }
            self._memory.keep(id(self), Purpose.PARQUET, sum(map(len, chain(*self._fetched.values()))), self._evict)

    def _evict(self) -> None:
        self._fetched = {}

    def release(self) -> None:
        self._memory.keep(id(self), Purpose.PARQUET, 0, self._evict)


def invalidate_expired_files(inodes: InodeTable[Node], expired: Expired) -> list[int]:
    """Inodes of files whose first message has expired; they are stale from now on."""

    def is_gone(name: NodeKey) -> bool:
        return isinstance(name.detail, RangeKey) and name.detail.begin < expired.new_min

    return inodes.invalidate(is_gone, (expired.topic, expired.queue))


def cut(position: int, end: int, parts: Sequence[tuple[int, Sequence[memoryview]]]) -> Iterator[memoryview]:
    """Bytes [position, end): of parts, each where it starts and its pieces, in order; zeros between them."""
    for start, pieces in parts:
        for piece in pieces:
            if start < end and position < start + len(piece):
                yield from _zeros(start - position)
                yield piece[max(position - start, 0) : end - start]
                position = min(start + len(piece), end)
            start += len(piece)
    yield from _zeros(end - position)


def _zeros(count: int) -> Iterator[memoryview]:
    while count > 0:
        yield _ZEROS[:count]
        count -= len(_ZEROS)

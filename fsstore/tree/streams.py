"""`<queue>.log` and `<topic>.log`: a queue, or a topic in the order of the log, as one growing text. The engine
measures and reads it; this module has its files and handles.

A file belongs to (queue or topic, first offset): a handle keeps its positions when retention moves the beginning, and
a new look-up gets a new file that begins at the new first message. Each has two files with inodes of their own:

    StreamFile      of a stream that grows: the kernel sends each read, and asks for the size whenever it has changed
    IdleStream      of an idle stream: the kernel caches its bytes

    look-up ──► no message for IDLE_S, and the kernel has the exact size ──► IdleStream, else StreamFile
    grown   ──► StreamFile: its attributes are dropped from the kernel's cache
            ──► IdleStream: its size is outdated; the kernel is notified in steps (`fsstore.fuse.notify.SizeNotifier`)

A topic of which no queue was asked for yet is measured without opening any: the stream is made when the file is read.
A listing of the root measures these, and the kernel keeps such a name for a second, so that `ls -l` looks none of them
up. Such a file is a StreamFile, whose attributes are dropped at once when it grows. It refuses to be opened (ESTALE).
The kernel then looks up the name, which may lead to an IdleStream.

The kernel keeps the last page of a file with zeros after the end. A reader that has this page while the kernel learns
a larger size would get those zeros. So a growing stream is not cached, and the kernel learns the size of an idle
stream in steps (`IdleStream.tell`).

Both files show one inode number, so programs that compare an open file with its name see one file. The kernel looks up
the name each time, so a stat by path shows the exact size. Only a handle that was opened on an idle stream, and stays
open, shows new bytes a step later.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from engine import ExpiredMessageError, MessageStore, OpenMode, Queue, QueueStream, StoreError, WouldBlock, nonblocking
from fsstore.interface import (
    CACHED,
    NS_PER_MS,
    SLICE_S,
    UNCACHED,
    Attributes,
    FilesystemError,
    Opened,
    SlowWork,
    WorkKind,
)
from fsstore.tree.attributes import BRIEF_S
from fsstore.tree.inodes import Maker, NodeKey, shown_stream_inode
from fsstore.tree.memory_budget import Purpose
from fsstore.tree.nodes import Context, Node, OpenFile

NOTIFYING_S = 0.01
"""Seconds for which a request waits in a thread while the kernel is notified of a size, before other work runs."""


class Origin(NamedTuple):
    """The source of a stream: a queue, or a whole topic (`queue` is None)."""

    store: MessageStore
    topic: str
    queue: Queue | None

    @property
    def key(self) -> tuple[str, int | None]:
        return self.topic, None if self.queue is None else self.queue.queue

    def stream(self) -> QueueStream:
        """The stream as it begins now. TopicNotFoundError; SlowWork while a topic's queues are merged."""
        store, topic = self.store, self.topic
        try:
            with nonblocking():
                return self.waited_stream()
        except WouldBlock:
            merged = store.topic_queue(topic)
        raise SlowWork(lambda: merged.merge_until(time.monotonic() + SLICE_S), WorkKind.DECOMPRESSING)

    def waited_stream(self) -> QueueStream:
        """As `stream`, which is merged here. WouldBlock on a nonblocking thread."""
        return self.store.topic_stream(self.topic) if self.queue is None else self.queue.stream()

    def seen(self) -> Seen:
        """The stream as it is now. Errors as `stream`."""
        at_rest = self.store.text_at_rest(self.topic) if self.queue is None else None
        if at_rest is not None:
            return Seen(at_rest.first_offset, at_rest.newest_store_time_ms, at_rest.bytes)
        stream = self.stream()
        return Seen(stream.first_offset, self.newest_store_time_ms(), None, stream)

    def newest_store_time_ms(self) -> int | None:
        """Store time of the newest message; None: there is none, or it can't be read."""
        if self.queue is not None:
            return newest_store_time_ms(self.queue)
        merged = self.store.topic_queue(self.topic)
        newest = merged.entries(merged.max_offset - 1, 1) if merged.min_offset < merged.max_offset else ()
        try:
            for row in newest:
                return self.store.get(self.topic, int(row["queue_id"]), int(row["queue_offset"])).store_time_ms
        except StoreError:
            pass
        return None


_SETTLED = threading.Event()
_SETTLED.set()


class Seen(NamedTuple):
    """A stream at one moment."""

    first_offset: int
    newest_ms: int | None
    """Store time of the newest message; None: there is none, or it can't be read."""
    bytes: int | None
    """None: it must be measured."""
    stream: QueueStream | None = None
    """None: it can be made when it is read."""


class StreamFile(Node):
    """The stream of a queue or a topic from one first message on, while it grows."""

    _opened = UNCACHED

    def __init__(self, context: Context, origin: Origin, seen: Seen, answered: Answered) -> None:
        """`answered` is called whenever a size is returned to the kernel."""
        self.origin = origin
        self._context = context
        self._first_offset = seen.first_offset
        self._made = seen.stream
        self._answered = answered
        self._shown_inode = shown_stream_inode(*origin.key, seen.first_offset)
        self.shown: tuple[tuple[int, ...], Attributes] | None = None
        """The topic's state (`MessageStore.state_of_topic`) in which the kernel knew the exact size, and the
        attributes shown then, to a listing or, for an idle stream, to a look-up."""
        self.was_looked_up = False
        """Whether a look-up led to it: it can be opened."""

    @property
    def _stream(self) -> QueueStream:
        """SlowWork as `Origin.stream`; ESTALE: its first messages have expired before it was read."""
        return self._made or self._begun(self.origin.stream())

    def _begun(self, stream: QueueStream) -> QueueStream:
        if not stream.begins_as(self._first_offset):
            raise FilesystemError(errno.ESTALE)
        self._made = stream
        return stream

    @property
    def path(self) -> str:
        topic, queue_id = self.origin.key
        return f"{topic}.log" if queue_id is None else f"{topic}/{queue_id}.log"

    @property
    def is_summed(self) -> bool:
        """Whether its size is known without slow work."""
        return quick_size(self._stream) is not None

    def attributes(self) -> Attributes:
        if self._made is None:
            seen = self.origin.seen()
            if seen.bytes is not None and seen.first_offset == self._first_offset:
                return self.described(seen.newest_ms, seen.bytes)
        else:
            quick_size(self._made)  # merges what is new of a topic, so that the time below is no older than the size
        return self.described(self.origin.newest_store_time_ms())

    def described(self, newest_ms: int | None, size: int | None = None) -> Attributes:
        """As `attributes`, with the store time of the newest message and perhaps the present size given."""
        size = size_of(self._stream) if size is None else size
        self._answered(self, size)
        return self._context.attribute_factory.stream(self.inode, self._shown_inode, size, newest_ms)

    def undescribed(self) -> Attributes:
        """Attributes for a listing while the size is unknown. The kernel does not cache them."""
        return self._context.attribute_factory.stream(self.inode, self._shown_inode, 0, None)._replace(attr_timeout=0)

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise self._context.refusal("a .log shows messages: write lines to append in the topic or the queue")
        if not self.was_looked_up:
            raise FilesystemError(errno.ESTALE)
        return OpenStream(self._stream, self._context), self._opened


class IdleStream(StreamFile):
    """An idle stream. It shows only the size that the kernel knows, which never exceeds the cached bytes.

    Thread safety: `size` and `tell` from a thread, one caller at a time, while requests are answered.
    """

    _opened = CACHED

    def __init__(
        self,
        context: Context,
        origin: Origin,
        seen: Seen,
        answered: Answered,
        size: int,
    ) -> None:
        """`size` is the present size of the stream."""
        super().__init__(context, origin, seen, answered)
        self.known_bytes = size
        """The size that the kernel knows."""
        self._known_ms = seen.newest_ms
        """Store time of the newest message in that size."""
        self._is_settled = _SETTLED

    @property
    def size(self) -> int:
        """Present bytes of the stream; may take long. `known_bytes` if it can't be made any more, because its topic or
        its first messages are gone."""
        with suppress(FilesystemError, StoreError):
            return (self._made or self._begun(self.origin.waited_stream())).size
        return self.known_bytes

    @property
    def is_exact(self) -> bool:
        """Whether the kernel knows the present size. False if computing it would take long."""
        return self.is_known(quick_size(self._stream))

    def is_known(self, size: int | None) -> bool:
        """Whether the kernel knows that size."""
        return size == self.known_bytes and self._is_settled.is_set()

    def tell(self, size: int, notify: Callable[[int], bool]) -> None:
        """Set a larger size in the kernel by `notify(size)`, which may wait for a reader that waits for us; False from
        it: the kernel does not know the file.

        Meanwhile no size is answered: the kernel would take the old one for a newer one.
        """
        self._is_settled = threading.Event()
        # noted before: after a restart, a size that shrinks would be worse than one that is set too early
        self._context.inodes.note(self.inode, size)
        try:
            if notify(size):
                self.known_bytes = size
        finally:
            self._is_settled.set()

    def described(self, newest_ms: int | None, size: int | None = None) -> Attributes:
        if not self._is_settled.is_set():
            raise SlowWork(lambda: self._is_settled.wait(NOTIFYING_S), WorkKind.WAITING)
        self._answered(self, size)
        if size is None and self._made is not None:
            size = quick_size(self._made)
        if size == self.known_bytes:  # a newer time with the old size would be a change for a program that polls both
            self._known_ms = newest_ms
        size = self.known_bytes
        self._context.inodes.note(self.inode, size)
        return self._context.attribute_factory.stream(self.inode, self._shown_inode, size, self._known_ms, is_idle=True)


class OpenStream(OpenFile):
    """An open stream; reading expired bytes is EIO."""

    __slots__ = ("_memory", "_reader", "_stream")

    def __init__(self, stream: QueueStream, context: Context) -> None:
        self._stream = stream
        self._memory = context.memory
        # a reader of its own: one that is shared would lose its position between two handles
        self._reader = stream.reader(context.background)

    def read(self, position: int, size: int) -> bytes | memoryview:
        reader = self._reader
        try:
            with nonblocking():
                found = reader.read(position, size)
        except WouldBlock:
            size_of(self._stream)  # SlowWork if even the size is unknown
            raise SlowWork(lambda: reader.prepare(position, size, SLICE_S), WorkKind.DECOMPRESSING) from None
        except ExpiredMessageError:
            raise FilesystemError(errno.EIO) from None
        self._memory.keep(id(self), Purpose.STREAMS, reader.kept_bytes, reader.let_go)
        return found

    def release(self) -> None:
        self._memory.keep(id(self), Purpose.STREAMS, 0, self._reader.let_go)


def quick_size(stream: QueueStream) -> int | None:
    """Bytes of a stream, if that is quickly known: few messages are new, and none of them is compressed; else None."""
    with suppress(WouldBlock), nonblocking():
        return stream.size
    return None


def size_of(stream: QueueStream) -> int:
    """Bytes of a stream. SlowWork, perhaps repeatedly, while many messages are measured."""
    size = quick_size(stream)
    if size is None:
        raise SlowWork(lambda: stream.sum_for(SLICE_S), WorkKind.DECOMPRESSING if stream.decompresses else WorkKind.ANY)
    return size


def newest_store_time_ms(queue: Queue) -> int | None:
    """Store time of the queue's newest message; None: there is none, or it can't be read."""
    try:
        at_rest = queue.at_rest()
        if at_rest is not None:
            return at_rest.newest_store_time_ms
        bounds = queue.bounds()
        if bounds.min_offset == bounds.max_offset:
            return None
        return queue.get(bounds.max_offset - 1).store_time_ms
    except StoreError:
        return None


IDLE_S = 10
"""Age of the newest message from which on a stream is idle."""


_NONE: frozenset[StreamFile] = frozenset()

Answered = Callable[[StreamFile, int | None], None]
"""Called with a file whose size is answered, and its present size, if that is known."""


class StreamTable:
    """The streams of one mount. Thread safety: one thread."""

    def __init__(self, context: Context) -> None:
        self.on_outdated: Callable[[], None] = lambda: None
        """Called when `take_outdated` has something to return."""
        self._context = context
        self._answered: dict[tuple[str, int | None], set[StreamFile]] = {}
        self._outdated: set[IdleStream] = set()
        self._updating: set[IdleStream] = set()
        context.inodes.makers += [Maker(StreamFile, self._again), Maker(IdleStream, self._again)]

    def _again(self, key: NodeKey) -> StreamFile:
        """Make a stream again whose number was taken over, with the size that the kernel knows. ESTALE: its first
        messages have expired. SlowWork as `Origin.stream`."""
        assert key.topic is not None
        store = self._context.store
        try:
            origin = Origin(store, key.topic, None if key.queue is None else store.queue(key.topic, key.queue))
            seen = origin.seen()
            if seen.first_offset != key.detail:
                seen = seen._replace(stream=seen.stream or origin.stream())
        except StoreError:
            raise FilesystemError(errno.ESTALE) from None
        if seen.stream is not None and not (isinstance(key.detail, int) and seen.stream.begins_as(key.detail)):
            raise FilesystemError(errno.ESTALE)
        if key.kind is StreamFile:
            file = StreamFile(self._context, origin, seen, self._was_answered)
        else:
            known_bytes = self._context.inodes.noted(self._context.inodes.find(key))
            file = IdleStream(self._context, origin, seen, self._was_answered, known_bytes)
        file.was_looked_up = True
        return file

    def look_up(self, topic: str, queue: Queue | None) -> Attributes:
        """Attributes of a stream as it begins now. SlowWork while its size is computed."""
        state = self._context.store.state_of_topic(topic)
        known = self._shown_in(IdleStream, state, (topic, None if queue is None else queue.queue))
        if known is not None:
            return known
        file, seen = self._file(Origin(self._context.store, topic, queue))
        file.was_looked_up = True
        found = file.described(seen.newest_ms, seen.bytes)
        if isinstance(file, IdleStream) and not (seen.stream is not None and seen.stream.is_refused):
            file.shown = state, found
        return found

    def _shown_in(
        self, kind: type[StreamFile], state: tuple[int, ...], key: tuple[str, int | None]
    ) -> Attributes | None:
        """The attributes shown for a stream in that state of its topic, if it has not grown since."""
        shown = (file.shown for file in self._known(kind, key))
        return next((found[1] for found in shown if found is not None and found[0] == state), None)

    def _known(self, kind: type[StreamFile], key: tuple[str, int | None]) -> Iterator[StreamFile]:
        """The files of that kind whose size was answered, if they have not grown since."""
        nodes = self._context.inodes.nodes
        return (file for file in self._answered.get(key, _NONE) if type(file) is kind and nodes.get(file.inode) is file)

    def listed_topic(self, topic: str) -> Attributes | None:
        """Attributes of a topic's stream for a listing, if they are known without opening a queue. None: the kernel has
        to look it up. It has to, too, where it may have pages of an idle stream: another file would take its name."""
        store, key = self._context.store, (topic, None)
        state, is_final, shown = store.state_of_topic(topic), store.mode is OpenMode.READ_ONLY, None
        if key in self._answered:
            if not is_final and any(self._known(IdleStream, key)):
                return None
            shown = self._shown_in(IdleStream if is_final else StreamFile, state, key)
        if shown is None:
            at_rest = store.text_at_rest(topic)
            if at_rest is None:
                return None
            seen = Seen(at_rest.first_offset, at_rest.newest_store_time_ms, at_rest.bytes)
            origin = Origin(store, topic, None)
            file = self._idle(origin, seen, at_rest.bytes) if is_final else self._growing(origin, seen, while_open=True)
            file.was_looked_up |= is_final
            shown = file.described(seen.newest_ms, seen.bytes)
            file.shown = state, shown
        return shown._replace(entry_timeout=BRIEF_S)

    def expired(self, topic: str) -> list[int]:
        """Inodes to invalidate after messages of a topic have expired: the kernel may have the name of a stream that
        was listed. (The name of any other is looked up each time.)"""
        return [file.inode for file in self._known(StreamFile, (topic, None)) if not file.was_looked_up]

    def listed(self, topic: str, queue: Queue) -> Attributes:
        """Attributes of a queue's stream for a listing, without slow work: a size that takes long is left to a later
        stat. A queue at rest stays closed, and its stream is listed by its name only."""
        at_rest = queue.at_rest()
        if at_rest is not None:
            shown_inode = shown_stream_inode(topic, queue.queue, at_rest.min_offset)
            return self._context.attribute_factory.name_of_file(shown_inode)
        file, seen = self._file(Origin(self._context.store, topic, queue))
        return file.described(seen.newest_ms) if file.is_summed else file.undescribed()

    def shown_inode(self, topic: str, queue: Queue | None) -> int:
        """The number that stat shows for a stream as it begins now."""
        if queue is None:
            return shown_stream_inode(topic, None, 0)
        return shown_stream_inode(topic, queue.queue, queue.bounds().min_offset)

    def _file(self, origin: Origin) -> tuple[StreamFile, Seen]:
        """The file to show, and the stream as it is now, measured if that is quick and the stream is idle."""
        seen = origin.seen()
        if self._is_idle(origin, seen.newest_ms):
            if seen.stream is not None:
                seen = seen._replace(bytes=quick_size(seen.stream))
            if seen.bytes is not None:
                idle = self._idle(origin, seen, seen.bytes)
                if idle.is_known(seen.bytes):
                    return idle, seen
                self._note_outdated(idle)
        return self._growing(origin, seen), seen

    def _growing(self, origin: Origin, seen: Seen, *, while_open: bool = False) -> StreamFile:
        """The file of a stream that grows; `while_open` as in `InodeTable.named`."""
        key = NodeKey(StreamFile, *origin.key, seen.first_offset)
        node = self._context.inodes.named(
            key, lambda: StreamFile(self._context, origin, seen, self._was_answered), while_open=while_open
        )
        assert isinstance(node, StreamFile)
        return node

    def _is_idle(self, origin: Origin, newest_ms: int | None) -> bool:
        mode = self._context.store.mode
        if mode is OpenMode.READ_ONLY:
            return True
        if mode is OpenMode.FOLLOW and origin.queue is None:  # new messages are shown at a refresh, without a notice
            return False
        return newest_ms is not None and self._context.clock_ns() >= (newest_ms + IDLE_S * 1_000) * NS_PER_MS

    def _idle(self, origin: Origin, seen: Seen, size: int) -> IdleStream:
        """The file of an idle stream. If the kernel knows none, it is a new one, which needs no notice."""
        node = self._named_idle(origin, seen, size)
        if not node.is_known(size) and self._context.inodes.drop_unknown(node.inode):
            node = self._named_idle(origin, seen, size)
        return node

    def _named_idle(self, origin: Origin, seen: Seen, size: int) -> IdleStream:
        node = self._context.inodes.named(
            NodeKey(IdleStream, *origin.key, seen.first_offset),
            lambda: IdleStream(self._context, origin, seen, self._was_answered, size),
        )
        assert isinstance(node, IdleStream)
        return node

    def grown(self, topic: str, queue: int) -> list[int]:
        """Inodes to invalidate: those whose exact size was answered since the last call."""
        answered = self._answered
        files = answered.pop((topic, queue), _NONE) | answered.pop((topic, None), _NONE) if answered else _NONE
        if not files:
            return []
        idle = {file for file in files if isinstance(file, IdleStream)}
        for file in idle:
            self._note_outdated(file)
        return sorted(file.inode for file in files - idle)

    def take_outdated(self) -> list[IdleStream]:
        """Idle streams that grew since the last call beyond the size that the kernel knows; call `updated` for each."""
        taken, self._outdated = self._outdated, set()
        self._updating |= taken
        return list(taken)

    def updated(self, stream: IdleStream) -> None:
        """Note that a step is done. Bytes that were added since its beginning are for the next step."""
        self._updating.discard(stream)

    def _was_answered(self, file: StreamFile, size: int | None) -> None:
        self._answered.setdefault(file.origin.key, set()).add(file)
        if isinstance(file, IdleStream) and not (file.is_exact if size is None else file.is_known(size)):
            self._note_outdated(file)

    def _note_outdated(self, stream: IdleStream) -> None:
        if stream not in self._updating:
            self._outdated.add(stream)
            self.on_outdated()

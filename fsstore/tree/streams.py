"""`<queue>.log`: a queue as one growing text. The engine sums and reads it; here are its files and their handles.

A file stands for (queue, first offset): a handle keeps its positions when retention moves the queue's beginning, and a
new look-up gets a new file that begins at the new first message. There are two of it, with inodes of their own, and
which one a look-up gives is for `streamtable` to say:

    StreamFile      of a stream that grows: the kernel asks for each read, and for the size whenever that has changed
    RestingStream   of a stream that has come to rest: the kernel caches its bytes

The kernel keeps the last page of a file with zeros behind the end. Were it told a larger size while a reader has that
page in its hands, the reader would be given those zeros. That is why what grows is not cached, and why the kernel hears
of what came to a stream at rest in steps (`RestingStream.tell`).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from engine import ExpiredMessageError, QueueStream, StoreError, TakesLongError, in_haste
from fsstore.interface import SLICE_S, Attributes, FilesystemError, Kind, Opened, SlowWork
from fsstore.tree.inodes import shown_stream_inode
from fsstore.tree.memory import Purpose
from fsstore.tree.nodes import Context, Node, OpenFile

QUICK_SUM_MESSAGES = 2_000
"""More messages than this are summed in a thread: about a millisecond's work."""

TELLING_S = 0.01
"""How long a request waits in a thread, before it makes room for others, while the kernel is told a size."""

_CACHED = Opened(0, False, True, None)
_UNCACHED = Opened(0, True, False, None)


@dataclass(frozen=True, slots=True)
class StreamName:
    """What a StreamFile is known by in the inode table."""

    topic: str
    queue: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class RestingName(StreamName):
    """What a RestingStream is known by in the inode table; never equal to a StreamName."""


class StreamFile(Node):
    """A queue's stream from one first message on, as it grows."""

    def __init__(
        self, context: Context, name: StreamName, stream: QueueStream, answered: Callable[[StreamFile], None]
    ) -> None:
        """`answered` is told whenever a size is given away."""
        self.name = name
        self._context = context
        self._stream = stream
        self._answered = answered
        self._shown_inode = shown_stream_inode(name.topic, name.queue, name.first_offset)

    @property
    def is_summed(self) -> bool:
        """Whether its size is quickly known."""
        return quick_size(self._stream) is not None

    def attributes(self) -> Attributes:
        return self.described(newest_store_time_ms(self._context, self.name.topic, self.name.queue))

    def described(self, newest_ms: int | None) -> Attributes:
        """As `attributes`, for one who knows when the newest message was stored."""
        size = quick_size(self._stream)
        if size is None:
            raise summing(self._stream)
        self._answered(self)
        return self._context.appearance.growing_stream(self.inode, self._shown_inode, size, newest_ms)

    def undescribed(self) -> Attributes:
        """What a listing says as long as the size is not known."""
        return self._context.appearance.unsummed_stream(self.inode, self._shown_inode)

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise self._context.refusal()
        return OpenStream(self._stream, self._context), self._opened()

    def _opened(self) -> Opened:
        return _UNCACHED


class RestingStream(StreamFile):
    """The same at rest. Only what its kernel was told of is shown, so that a size never runs ahead of cached bytes.

    Thread safety: `size` and `tell` from a thread, of one caller at a time, while requests are answered.
    """

    def __init__(
        self, context: Context, name: StreamName, stream: QueueStream, answered: Callable[[StreamFile], None], size: int
    ) -> None:
        """`size` is that of the stream now."""
        super().__init__(context, name, stream, answered)
        self.told_bytes = size
        """The size that the kernel knows."""
        self._is_settled = threading.Event()
        self._is_settled.set()

    @property
    def size(self) -> int:
        """Bytes in the stream now; may take long."""
        return self._stream.size

    @property
    def is_exact(self) -> bool:
        """Whether the kernel knows all there is. False where finding that out would take long."""
        return self._is_settled.is_set() and quick_size(self._stream) == self.told_bytes

    def tell(self, size: int, told: Callable[[int], bool]) -> None:
        """Have the kernel know a larger size, by `told(size)`, which may have to wait for a reader whom we are about to
        answer; False: it doesn't know the file.

        Meanwhile no size is answered: the kernel would take the old one for a newer one.
        """
        self._is_settled.clear()
        try:
            if told(size):
                self.told_bytes = size
        finally:
            self._is_settled.set()

    def described(self, newest_ms: int | None) -> Attributes:
        if not self._is_settled.is_set():
            raise SlowWork(lambda: self._is_settled.wait(TELLING_S))
        self._answered(self)
        return self._context.appearance.resting_stream(self.inode, self._shown_inode, self.told_bytes, newest_ms)

    def _opened(self) -> Opened:
        return _CACHED


class OpenStream(OpenFile):
    """An open stream; bytes that have expired since are EIO."""

    __slots__ = ("_memory", "_reader", "_stream")

    def __init__(self, stream: QueueStream, context: Context) -> None:
        self._stream = stream
        self._memory = context.memory
        self._reader = stream.reader(
            context.background
        )  # its own: two who read at once, each further on, don't get in each other's way

    def read(self, position: int, size: int) -> bytes | memoryview:
        reader = self._reader
        if self._stream.unsummed > QUICK_SUM_MESSAGES:
            raise summing(self._stream)
        try:
            with in_haste():
                found = reader.read(position, size)
        except TakesLongError:
            raise SlowWork(lambda: reader.prepare(position, size, SLICE_S), Kind.DECOMPRESSING) from None
        except ExpiredMessageError:
            raise FilesystemError(errno.EIO) from None
        self._memory.keep(id(self), Purpose.STREAMS, reader.kept_bytes, reader.let_go)
        return found

    def release(self) -> None:
        self._memory.keep(id(self), Purpose.STREAMS, 0, self._reader.let_go)


def quick_size(stream: QueueStream) -> int | None:
    """Bytes in a stream, where that is quickly known: few messages are new, and none of them is compressed."""
    if stream.unsummed > QUICK_SUM_MESSAGES:
        return None
    try:
        with in_haste():
            return stream.size
    except TakesLongError:
        return None


def summing(stream: QueueStream) -> SlowWork:
    """Work after which more of a stream is summed; it may have to be done again."""
    return SlowWork(lambda: stream.sum_for(SLICE_S), Kind.DECOMPRESSING)


def newest_store_time_ms(context: Context, topic: str, queue: int) -> int | None:
    """When the queue's newest message was stored; None when there is none, or it cannot be read."""
    try:
        bounds = context.store.bounds(topic, queue)
        if bounds.min_offset == bounds.max_offset:
            return None
        return context.store.get(topic, queue, bounds.max_offset - 1).store_time_ms
    except StoreError:
        return None

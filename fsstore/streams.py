"""`<queue>.log`: a queue as one growing text. The engine sums and reads it; here are its inode and its handles.

The inode stands for (queue, first offset): a handle keeps its positions when retention moves the queue's beginning, and
a new look-up gets a new inode that begins at the new first message.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from engine import ExpiredMessageError, OpenMode, QueueStream, StoreError
from fsstore.interface import Attributes, FilesystemError, Opened, SlowWork
from fsstore.nodes import Context, Node, OpenFile

QUICK_SUM_MESSAGES = 20_000
"""More messages than this are summed in a thread: about ten milliseconds' work."""

_AT_REST = Opened(0, False, True, None)

# The kernel keeps the last page of a file with zeros behind the end. When another process's stat tells it a larger
# size at that moment, a reader is given those zeros; so what may grow is read past its cache.
_GROWING = Opened(0, True, False, None)


@dataclass(frozen=True, slots=True)
class StreamName:
    """What a StreamFile is known by in the inode table."""

    topic: str
    queue: int
    first_offset: int


class StreamFile(Node):
    """A queue's stream from one first message on."""

    def __init__(
        self, context: Context, name: StreamName, stream: QueueStream, answered: Callable[[int], None]
    ) -> None:
        """`answered` is told the inode whenever a size is given away."""
        self._context = context
        self._name = name
        self._stream = stream
        self._answered = answered

    def attributes(self) -> Attributes:
        stream = self._stream
        if stream.unsummed > QUICK_SUM_MESSAGES:
            raise SlowWork(lambda: stream.size)
        self._answered(self.inode)
        return self._context.appearance.stream(self.inode, stream.size, self._newest_ms())

    def listed_attributes(self) -> Attributes:
        """As `attributes`, but never slow: a size that would take long is left for the stat that follows."""
        if self._stream.unsummed > QUICK_SUM_MESSAGES:
            return self._context.appearance.unsummed_stream(self.inode)
        return self.attributes()

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise self._context.refusal()
        at_rest = self._context.store.mode is OpenMode.READ_ONLY
        return OpenStream(self._stream, self._context.background), _AT_REST if at_rest else _GROWING

    def _newest_ms(self) -> int | None:
        return newest_store_time_ms(self._context, self._name.topic, self._name.queue)


class OpenStream(OpenFile):
    """An open stream; bytes that have expired since are EIO."""

    __slots__ = ("_reader", "_stream")

    def __init__(self, stream: QueueStream, background: Executor) -> None:
        self._stream = stream
        self._reader = stream.reader(
            background
        )  # its own: two who read at once, each further on, don't get in each other's way

    def read(self, position: int, size: int) -> bytes | memoryview:
        stream = self._stream
        if stream.unsummed > QUICK_SUM_MESSAGES:
            raise SlowWork(lambda: stream.size)
        try:
            return self._reader.read(position, size)
        except ExpiredMessageError:
            raise FilesystemError(errno.EIO) from None


def newest_store_time_ms(context: Context, topic: str, queue: int) -> int | None:
    """When the queue's newest message was stored; None when there is none, or it cannot be read."""
    try:
        bounds = context.store.bounds(topic, queue)
        if bounds.min_offset == bounds.max_offset:
            return None
        return context.store.get(topic, queue, bounds.max_offset - 1).store_time_ms
    except StoreError:
        return None

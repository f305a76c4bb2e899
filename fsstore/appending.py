"""`append`: bytes written to it become messages, framed by handle, all of a request or nothing of it.

frame=line     each line a message; the unterminated last one at fsync and close
frame=write    each write request a message
frame=file     everything until fsync or close one message
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from engine import IllegalMessageError, Message, MessageStore, MessageTooLargeError, Stored
from fsstore.framing import LineFramer, json_line_limit_bytes, parse_json_lines, parse_json_message
from fsstore.interface import (
    NOTHING_TO_WAIT_FOR,
    WHOLE_WRITE_BYTES,
    Attributes,
    FilesystemError,
    Opened,
)
from fsstore.names import AppendOptions, BodyFormat, Frame
from fsstore.nodes import Context, Node, OpenFile

_OPENED = Opened(0, True, False, None)


class AppendFile(Node):
    """An `append` name with its options, of a topic or (`queue` given) of one of its queues."""

    shown_inode: int = 0
    """What stat says instead of `inode`, where it is not 0."""

    def __init__(self, context: Context, topic: str, queue: int | None, options: AppendOptions) -> None:
        self._context = context
        self._topic = topic
        self._queue = queue
        self._options = options
        self._generation = context.store.topics_generation
        self._open_handles = 0

    def attributes(self) -> Attributes:
        writable = not self._context.read_only
        return self._context.appearance.append(self.inode, self.shown_inode, writable=writable)

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        if flags & os.O_ACCMODE == os.O_RDONLY:
            self._open_handles += 1
            return EmptyHandle(self._released), _OPENED
        self._context.must_be_writable()
        store = self._context.store
        sync = store.sync_flush or bool(flags & (os.O_SYNC | os.O_DSYNC))
        publisher = Publisher(store, self._topic, self._queue, self._options, self._generation)
        self._open_handles += 1
        return _HANDLES[self._options.frame](publisher, sync, self._released), _OPENED

    def _released(self) -> None:
        """Let the inode go with its last handle: no path leads to it again, but a kernel may know it for days."""
        self._open_handles -= 1
        if not self._open_handles:
            self._context.inodes.let_go(self.inode)

    @property
    def ignores_setattr(self) -> bool:
        return not self._context.read_only


class EmptyHandle(OpenFile):
    """An `append` that is open for reading: empty."""

    __slots__ = ("_released",)

    def __init__(self, released: Callable[[], None]) -> None:
        self._released = released

    def release(self) -> None:
        self._released()


class Publisher:
    """Puts framed bytes into one topic or queue, as its options say; ENOENT when that was deleted meanwhile."""

    __slots__ = ("_generation", "_is_json", "_options", "_queue", "_topic", "line_limit_bytes", "store")

    def __init__(
        self, store: MessageStore, topic: str, queue: int | None, options: AppendOptions, generation: int
    ) -> None:
        """`generation` is the store's of when the topic was there."""
        self.store = store
        self._topic = topic
        self._queue = queue
        self._options = options
        self._generation = generation
        self._is_json = options.format is BodyFormat.JSON
        limit = store.config.max_message_bytes
        self.line_limit_bytes = json_line_limit_bytes(limit) if self._is_json else limit
        """Longest frame that can be a message."""

    def one(self, frame: bytes) -> int:
        """Publish one message; the physical offset after it."""
        self._must_exist()
        options = self._options
        if self._is_json:
            message = parse_json_message(self._topic, frame, options)
        else:
            message = Message(self._topic, frame, options.keys, options.tags)
        return self.store.put(message, self._queue).physical_end

    def lines(self, lines: Sequence[bytes], stored: Stored | None) -> int:
        """Publish whole lines, all or none; the physical offset after them, 0 when all were empty."""
        self._must_exist()
        options = self._options
        if not self._is_json:
            keys, tags = options.keys, options.tags
            put = self.store.put_lines(self._topic, lines, self._queue, keys=keys, tags=tags, stored=stored)
            return put.physical_end if put.count else 0
        messages = parse_json_lines(self._topic, lines, options)
        return self.store.put_batch(messages, self._queue).physical_end if messages else 0

    def _must_exist(self) -> None:
        """TopicNotFoundError for a topic that was deleted while this was open: a put would make it again."""
        generation = self.store.topics_generation
        if generation != self._generation:
            self.store.queues(self._topic)
            self._generation = generation


class AppendHandle(OpenFile):
    """What all framings share: what a handle owes its writer.

    A frame over the message limit is dropped, and the handle answers EFBIG until closed: what follows would be its
    tail. A malformed frame is dropped (EINVAL). Any other failure takes nothing: the same request can be tried again.
    """

    __slots__ = ("_is_broken", "_physical_end", "_publisher", "_released", "_sync")

    def __init__(self, publisher: Publisher, sync: bool, released: Callable[[], None]) -> None:
        """`sync`: each write is answered when its messages are on disk. `released` is called at the end."""
        self._publisher = publisher
        self._sync = sync
        self._released = released
        self._physical_end = 0
        self._is_broken = False

    def write(self, data: bytes, stored: Stored | None = None) -> int:
        if self._is_broken:
            raise FilesystemError(errno.EFBIG)
        try:
            end = self._take(data, None if self._sync else stored)
        except MessageTooLargeError:
            self._drop()
            self._is_broken = self._breaks
            raise
        except IllegalMessageError:
            self._drop()
            raise
        if not end:
            return NOTHING_TO_WAIT_FOR
        self._physical_end = end
        return end if self._sync else NOTHING_TO_WAIT_FOR

    def flush(self) -> int:
        if self._is_broken:
            raise FilesystemError(errno.EFBIG)
        try:
            end = self._publish_rest()
        except (MessageTooLargeError, IllegalMessageError):
            self._drop()
            raise
        self._physical_end = end or self._physical_end
        self._report_lost()
        return self._physical_end if self._sync else NOTHING_TO_WAIT_FOR

    def release(self) -> None:
        self._released()

    def _report_lost(self) -> None:
        """EIO when the disk has refused what this handle wrote: nobody else may tell its writer."""
        store = self._publisher.store
        failure = store.flush_failure
        if failure is not None and self._physical_end > store.durable_end:
            raise failure

    @property
    def _breaks(self) -> bool:
        """Whether a frame that is too long makes the rest of the handle's bytes meaningless."""
        return True

    def _take(self, data: bytes, stored: Stored | None) -> int:
        """Publish what `data` completes, then keep the rest; the physical offset after it, 0 for nothing."""
        raise NotImplementedError

    def _publish_rest(self) -> int:
        """Publish what was kept, then keep nothing; as `_take`."""
        return 0

    def _drop(self) -> None:
        """Forget what was kept."""


class LineHandle(AppendHandle):
    """frame=line."""

    __slots__ = ("_framer",)

    def __init__(self, publisher: Publisher, sync: bool, released: Callable[[], None]) -> None:
        super().__init__(publisher, sync, released)
        self._framer = LineFramer(publisher.line_limit_bytes)

    def _take(self, data: bytes, stored: Stored | None) -> int:
        framer = self._framer
        size = len(data)
        if not framer.pending and data.find(b"\n") == size - 1 > 0:  # one whole line: what a shell's echo writes
            return self._publisher.one(data[:-1])
        lines = framer.lines_with(data)
        end = self._publisher.lines(lines, stored) if lines else 0
        framer.keep_rest_of(data)
        return end

    @property
    def is_unfinished(self) -> bool:
        return bool(self._framer.pending)

    def _publish_rest(self) -> int:
        pending = self._framer.pending
        end = self._publisher.one(bytes(pending)) if pending else 0
        self._framer.drop()
        return end

    def _drop(self) -> None:
        self._framer.drop()


class WriteHandle(AppendHandle):
    """frame=write. A request longer than any whole write(2) may be a piece of one: refused."""

    __slots__ = ()

    def _take(self, data: bytes, stored: Stored | None) -> int:
        if len(data) > WHOLE_WRITE_BYTES:
            raise MessageTooLargeError("write", len(data), WHOLE_WRITE_BYTES)
        return self._publisher.one(data)

    @property
    def _breaks(self) -> bool:
        return False


class FileHandle(AppendHandle):
    """frame=file. A handle that nothing was written to publishes nothing: `touch` opens and closes."""

    __slots__ = ("_body",)

    def __init__(self, publisher: Publisher, sync: bool, released: Callable[[], None]) -> None:
        super().__init__(publisher, sync, released)
        self._body = bytearray()

    def _take(self, data: bytes, stored: Stored | None) -> int:
        size, limit = len(self._body) + len(data), self._publisher.line_limit_bytes
        if size > limit:
            raise MessageTooLargeError("file", size, limit)
        self._body += data
        return 0

    @property
    def is_unfinished(self) -> bool:
        return bool(self._body)

    def _publish_rest(self) -> int:
        end = self._publisher.one(bytes(self._body)) if self._body else 0
        self._drop()
        return end

    def _drop(self) -> None:
        self._body = bytearray()


_HANDLES: dict[Frame, type[AppendHandle]] = {
    Frame.LINE: LineHandle,
    Frame.WRITE: WriteHandle,
    Frame.FILE: FileHandle,
}

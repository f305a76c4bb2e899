"""`append`: bytes written to it become messages, framed by handle. All messages of a request are stored, or none.

frame=line     each line is a message; the unterminated last one at fsync and close
frame=write    each write request is a message
frame=file     all bytes until fsync or close are one message

Writes through O_APPEND follow one another. Without O_APPEND, a handle is a file that begins empty: with frame=file its
bytes can be changed until they are published; with the other frames they are published at once, and writes must be
sequential.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable

from engine import IllegalMessageError, MessageTooLargeError, Queue, StoreError
from fsstore.handover.handles import KEPT_BYTES, HandleState
from fsstore.interface import (
    AT_END,
    NO_OWNER,
    NOTHING_TO_WAIT_FOR,
    UNCACHED,
    WHOLE_WRITE_BYTES,
    Attributes,
    FilesystemError,
    Opened,
    SlowWork,
)
from fsstore.tree.limited_log import LIMITED_LOG
from fsstore.tree.names import APPEND, AppendOptions, Frame, from_name
from fsstore.tree.nodes import Context, Node, OpenFile
from fsstore.tree.publishing import LineFramer, Publisher, lines_in

log = logging.getLogger(__name__)

SPARE_BYTES = 512
"""Memory that a handle keeps for the rest of a line, whose size changes with each write, until it is closed."""
_IS_PUBLISHED = "the file is a message already and can't be changed: open another one"


class StillRefusedError(FilesystemError):
    """A later error of a handle that can't recover. Its reason was reported with the first error."""


class AppendFile(Node):
    """An `append` name with its options, of a topic or (`queue` given) of one of its queues."""

    shown_inode: int = 0
    """The inode number that stat shows instead of `inode`; 0: no other."""

    name: bytes = APPEND
    """The name that was looked up."""

    def __init__(self, context: Context, topic: str, queue: Queue | None, options: AppendOptions) -> None:
        self._context = context
        self._topic = topic
        self._queue = queue
        self._options = options
        self._handles: list[EmptyHandle | AppendHandle] = []

    @property
    def path(self) -> str:
        folder = self._topic if self._queue is None else f"{self._topic}/{self._queue.queue}"
        return f"{folder}/{from_name(self.name)}"

    def attributes(self) -> Attributes:
        """A stat by name is always empty, because each look-up makes an inode without handles."""
        writable = not self._context.read_only and self._context.store.is_writable(self._topic)
        size = max((handle.size for handle in self._handles), default=0)
        return self._context.attribute_factory.append(self.inode, self.shown_inode, size, writable=writable)

    def open(self, flags: int) -> tuple[OpenFile, Opened]:
        handle = EmptyHandle(self._released) if flags & os.O_ACCMODE == os.O_RDONLY else self._opened_to_write(flags)
        self._handles.append(handle)
        return handle, UNCACHED

    def _opened_to_write(self, flags: int) -> AppendHandle:
        self._context.must_be_writable()
        store = self._context.store
        store.require_writable(self._topic)
        sync = store.sync_flush or bool(flags & (os.O_SYNC | os.O_DSYNC))
        publisher = Publisher(self._context, self._topic, self._queue, self._options, self)
        handle = _HANDLES[self._options.frame](publisher, sync, self._released)
        handle.appends = bool(flags & os.O_APPEND)
        return handle

    def _released(self, handle: EmptyHandle | AppendHandle) -> None:
        """Drop the inode with its last handle: no path leads to it, and the kernel might keep it for days."""
        self._handles.remove(handle)
        if not self._handles:
            self._context.inodes.drop(self.inode)

    @property
    def ignores_setattr(self) -> bool:
        return not self._context.read_only


class EmptyHandle(OpenFile):
    """An `append` that is open for reading; it is empty."""

    __slots__ = ("_released",)

    size = 0

    def __init__(self, released: Callable[[EmptyHandle], None]) -> None:
        self._released = released

    def release(self) -> None:
        self._released(self)


class AppendHandle(OpenFile):
    """Errors and unpublished bytes of a handle, for all framings.

    A frame over the message limit is dropped, and the handle answers EFBIG until it is closed: the next bytes would be
    the frame's tail. A write at any other position than the end is refused likewise (ESPIPE) if the bytes before it are
    published. A malformed frame is dropped (EINVAL). Any other failure changes nothing, so the same request can be
    repeated, also after ENOBUFS for an unfinished frame. Until the request is repeated, the bytes before it are an
    incomplete message: they are not published, and a close reports it.

    Unpublished bytes wait for a close by the process that wrote last. Another process may have inherited the
    descriptor, as each child process does until exec."""

    __slots__ = (
        "_cut_by",
        "_is_refused",
        "_physical_end",
        "_publisher",
        "_refusal",
        "_refused_lines",
        "_released",
        "_sync",
        "_writer",
        "appends",
    )

    def __init__(self, publisher: Publisher, sync: bool, released: Callable[[AppendHandle], None]) -> None:
        """`sync`: a write is answered when its messages are on disk. `released` is called at the end."""
        self.appends = True
        """Whether the open file has O_APPEND, as far as known."""
        self._publisher = publisher
        self._sync = sync
        self._released = released
        self._physical_end = 0
        self._refused_lines = (0, 0)
        self._refusal = 0  # errno of all further requests, after an error from which the handle can't recover
        self._writer = NO_OWNER
        self._is_refused = False  # whether the last flush failed: then its writer got the error
        self._cut_by = 0  # errno of the last write, if it was refused

    @property
    def size(self) -> int:
        """Size of the file as its writer sees it; 0 with O_APPEND."""
        return 0 if self.appends else self._end

    def write(self, position: int, data: bytes, owner: int = NO_OWNER) -> int:
        if self._refusal:
            self._must_make_sense()
        self.appends = position == AT_END
        try:
            end = self._take(position, data)
        except (StoreError, OSError) as error:
            self._blame(self._frames_in(data), error)
            if not isinstance(error, MessageTooLargeError | IllegalMessageError):
                raise
            self._drop()
            self._publisher.complain(error)
            if isinstance(error, MessageTooLargeError) and self._breaks:
                self._refusal = errno.EFBIG
            raise
        self._writer = owner
        self._is_refused = False
        self._cut_by = 0
        if not end:
            return NOTHING_TO_WAIT_FOR
        self._physical_end = end
        return end if self._sync else NOTHING_TO_WAIT_FOR

    def write_refused(self, number: int) -> None:
        self._cut_by = number

    def flush(self, owner: int = NO_OWNER) -> int:
        self._must_make_sense()
        if NO_OWNER in (owner, self._writer) or owner == self._writer:
            self._is_refused = True
            if self._cut_by and self.is_unfinished:
                raise StillRefusedError(self._cut_by, "a write was refused: the bytes before it are half a message")
            try:
                end = self._publish_rest()
            except (StoreError, OSError) as error:
                self._blame(1, error)
                if not isinstance(error, MessageTooLargeError | IllegalMessageError):
                    raise
                self._drop()
                self._publisher.complain(error)
                raise
            self._is_refused = False
            self._physical_end = end or self._physical_end
        self._report_lost()
        return self._physical_end if self._sync else NOTHING_TO_WAIT_FOR

    @property
    def published_to(self) -> str:
        return self._publisher.path

    @property
    def refused_lines(self) -> str:
        first, last = self._refused_lines
        if not first:
            return ""
        return str(first) if first == last else f"{first}-{last}"

    def _blame(self, frames: int, error: Exception) -> None:
        """Note which of the next `frames` caused an error. Malformed frames count: they are not repeated."""
        publisher = self._publisher
        begin, blamed, publisher.blamed = publisher.frames, publisher.blamed, 0
        self._refused_lines = (begin + blamed,) * 2 if blamed else (begin + 1, begin + frames)
        if isinstance(error, MessageTooLargeError | IllegalMessageError):
            publisher.frames += frames

    def _frames_in(self, data: bytes) -> int:
        """Number of frames that a failing request completes or drops."""
        return 1

    @property
    def is_synced(self) -> bool:
        """Whether each write waits for the disk."""
        return self._sync

    def unpublished(self, *, whole: bool = False) -> HandleState | None:
        if not self.is_unfinished and not self._refusal and not self._published:
            return None
        kept = bytes(self._begun) if whole or len(self._begun) <= KEPT_BYTES else b""
        size = len(self._begun)
        return HandleState(kept, size, self._writer, self._refusal, self._is_refused, self._published, self._cut_by)

    def resume(self, state: HandleState | None) -> None:
        """Restore a state. A handle that lost bytes answers EIO: the next bytes would be their tail."""
        if state is None:
            return
        self._writer, self._refusal, self._is_refused = state.owner, state.refusal, state.is_refused
        self._cut_by = state.cut_by
        if state.is_lost:
            self._refusal = errno.EIO
            self._publisher.lost(state.size)
        else:
            self._publisher.memory.inherit(len(state.data))
            self._begun.extend(state.data)

    def was_published(self) -> None:
        if self._refusal == errno.EIO:
            self._refusal = 0

    @property
    def _begun(self) -> bytearray:
        """The unpublished line or body."""
        return bytearray()

    @property
    def _published(self) -> int:
        """Bytes of the body that were published."""
        return 0

    def release(self) -> None:
        if self.is_unfinished and not self._is_refused and not self._cut_by:
            try:
                self._publish_rest()
            except (StoreError, OSError) as error:
                text = f"a process ended without closing its file, and the rest is not published: {error}"
                LIMITED_LOG.log_once(log, logging.WARNING, (self.release.__qualname__, type(error)), text)
                self._publisher.note_refusal(text)
        self.abandon()

    def abandon(self) -> None:
        self._publisher.release()
        self._released(self)

    def _must_make_sense(self) -> None:
        if self._refusal == errno.EIO:
            raise FilesystemError(errno.EIO, "the daemon died with unpublished bytes: every call fails until a close")
        if self._refusal:
            raise StillRefusedError(self._refusal, "every call fails until a close, after an earlier error")

    def _refuse_from_now(self, number: int, reason: str) -> FilesystemError:
        """Refuse all further requests: none can be right after this one. Returns the error."""
        self._drop()
        self._refusal = number
        return FilesystemError(number, reason)

    def _report_lost(self) -> None:
        """EIO if the disk refused bytes of this handle: its writer gets the error in no other way."""
        store = self._publisher.store
        failure = store.flush_failure
        if failure is not None and self._physical_end > store.durable_end:
            self._refused_lines = (0, 0)
            raise failure

    @property
    def _end(self) -> int:
        """Position after the last byte."""
        raise NotImplementedError

    @property
    def _breaks(self) -> bool:
        """Whether a too long frame makes all further bytes of the handle invalid."""
        return True

    def _take(self, position: int, data: bytes) -> int:
        """Publish all frames that `data` completes, and keep the rest; the physical offset after them, 0 for none."""
        raise NotImplementedError

    def _publish_rest(self) -> int:
        """Publish the kept bytes; as `_take`."""
        return 0

    def _drop(self) -> None:
        """Drop the kept bytes."""


class PassingHandle(AppendHandle):
    """A handle that publishes its bytes at once, so that writes must be sequential."""

    __slots__ = ("_next",)

    def __init__(self, publisher: Publisher, sync: bool, released: Callable[[AppendHandle], None]) -> None:
        super().__init__(publisher, sync, released)
        self._next: tuple[int, ...] = (0,)  # positions at which the next write may begin

    def truncate(self, size: int) -> None:
        """Accepts 0, with which log rotation begins anew, and the present size. EINVAL for any other size: it would
        make a hole, or cut published bytes."""
        if self.appends or size == self._end:
            return
        self._must_make_sense()
        if size:
            raise self._refuse_from_now(errno.EINVAL, f"can't be cut to {size:,} bytes: they are published")
        self._drop()
        self._next = (0, *self._next[-1:])  # a writer that does not seek continues at its position

    @property
    def _end(self) -> int:
        return self._next[0] if self._next else 0

    def resume(self, state: HandleState | None) -> None:
        super().resume(state)
        self._next = ()  # unknown until the next write

    def _take(self, position: int, data: bytes) -> int:
        if position == AT_END:
            position = self._next[-1] if self._next else 0
        elif self._next and position not in self._next:
            text = f"a write begins at {position:,}, but the last one ended at {self._end:,}: write in order, or append"
            raise self._refuse_from_now(errno.ESPIPE, text)
        end = self._take_next(data)
        self._next = (position + len(data),)
        return end

    def _take_next(self, data: bytes) -> int:
        """As `_take`, for data at the right position."""
        raise NotImplementedError


class LineHandle(PassingHandle):
    """frame=line."""

    __slots__ = ("_framer",)

    def __init__(self, publisher: Publisher, sync: bool, released: Callable[[AppendHandle], None]) -> None:
        super().__init__(publisher, sync, released)
        self._framer = LineFramer(publisher.line_limit_bytes)

    def _take_next(self, data: bytes) -> int:
        framer, publisher = self._framer, self._publisher
        size = len(data)
        if not framer.pending and data.find(b"\n") == size - 1 > 0:  # one whole line, as a shell's echo writes it
            return publisher.one(data[:-1], size)
        memory = publisher.memory
        try:
            rest_bytes = framer.rest_bytes_with(data)
        except MessageTooLargeError:
            publisher.blamed = lines_in(data) + 1
            raise
        memory.resize(max(memory.size, rest_bytes))
        try:
            end = publisher.lines_of(framer, data)
            framer.keep_rest_of(data)
        except SlowWork:
            raise  # keep the memory for the rest
        except BaseException:
            memory.resize(len(framer.pending))
            raise
        if memory.size - len(framer.pending) > SPARE_BYTES:
            memory.resize(len(framer.pending))
        return end

    @property
    def is_unfinished(self) -> bool:
        return bool(self._framer.pending)

    @property
    def _begun(self) -> bytearray:
        return self._framer.pending

    def _publish_rest(self) -> int:
        pending = self._framer.pending
        end = self._publisher.one(pending) if pending else 0
        self._drop()
        return end

    def _frames_in(self, data: bytes) -> int:
        return max(lines_in(data), 1)

    def _drop(self) -> None:
        self._framer.drop()
        self._publisher.memory.resize(0)


class WriteHandle(PassingHandle):
    """frame=write. A request longer than any whole write(2) may be a part of one, and is refused."""

    __slots__ = ()

    def _take_next(self, data: bytes) -> int:
        if len(data) > WHOLE_WRITE_BYTES:
            raise MessageTooLargeError("write", len(data), WHOLE_WRITE_BYTES)
        return self._publisher.one(data, len(data))

    @property
    def _breaks(self) -> bool:
        return False


class FileHandle(AppendHandle):
    """frame=file. An empty file publishes nothing, because `touch` opens and closes one.

    A published file can't be changed (EPERM). With O_APPEND, further bytes begin another file.
    """

    __slots__ = ("_body", "_lost_bytes", "_published_bytes")

    def __init__(self, publisher: Publisher, sync: bool, released: Callable[[AppendHandle], None]) -> None:
        super().__init__(publisher, sync, released)
        self._body = bytearray()
        self._published_bytes = 0
        self._lost_bytes = 0

    def read(self, position: int, size: int) -> bytes:
        """The bytes written so far, for a writer that also reads; ESTALE once they are a message."""
        if self.appends:
            return b""
        if self._published_bytes:
            raise FilesystemError(errno.ESTALE)
        return bytes(self._body[position : position + size])

    def truncate(self, size: int) -> None:
        self._must_make_sense()
        if size == self._end:
            return
        kept = size - self._published_bytes
        if kept < 0 or (self._published_bytes and not self.appends):
            raise FilesystemError(errno.EPERM, _IS_PUBLISHED)
        try:
            self._must_fit(kept)
        except MessageTooLargeError as error:
            raise self._refuse_from_now(errno.EFBIG, str(error)) from None
        self._publisher.memory.resize(kept)
        del self._body[kept:]
        self._body.extend(bytes(kept - len(self._body)))

    @property
    def _end(self) -> int:
        return self._published_bytes + len(self._body)

    def _take(self, position: int, data: bytes) -> int:
        body = self._body
        if position == AT_END:
            position = len(body)
        elif self._published_bytes:
            raise FilesystemError(errno.EPERM, _IS_PUBLISHED)
        end = position + len(data)
        self._must_fit(end)
        self._publisher.memory.resize(max(end, len(body)))
        if position > len(body):
            body.extend(bytes(position - len(body)))
        body[position:end] = data
        return 0

    def _must_fit(self, size: int) -> None:
        limit = self._publisher.line_limit_bytes
        if size > limit:
            raise MessageTooLargeError("file", size, limit)

    @property
    def is_unfinished(self) -> bool:
        return bool(self._body)

    @property
    def _begun(self) -> bytearray:
        return self._body

    @property
    def _published(self) -> int:
        return self._published_bytes

    def resume(self, state: HandleState | None) -> None:
        super().resume(state)
        if state is not None:
            self._published_bytes = state.published_bytes
            self._lost_bytes = state.size if state.is_lost else 0

    def was_published(self) -> None:
        super().was_published()
        self._published_bytes += self._lost_bytes
        self._lost_bytes = 0

    def _publish_rest(self) -> int:
        end = self._publisher.one(self._body) if self._body else 0
        self._drop()
        return end

    def _drop(self) -> None:
        self._published_bytes += len(self._body)
        self._body = bytearray()
        self._publisher.memory.resize(0)


_HANDLES: dict[Frame, type[AppendHandle]] = {
    Frame.LINE: LineHandle,
    Frame.WRITE: WriteHandle,
    Frame.FILE: FileHandle,
}

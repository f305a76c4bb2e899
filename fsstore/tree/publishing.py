"""Publishing: framed bytes become messages. All messages of a request are stored, or none.

A request of lines is taken in two steps, so that a refused one changes nothing: `LineFramer.text_with` returns the
lines that it would complete, and `keep_rest_of` takes it once they are stored.

Long puts are done in a thread. The number of bytes and lines tells beforehand how long a put takes on the request
loop's thread: puts of up to some 5 ms are done there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import ParamSpec, TypeVar

import numpy as np

from engine import (
    IllegalMessageError,
    Message,
    MessageTooLargeError,
    Queue,
    StoreError,
    TopicNotFoundError,
    check_message,
    split_text,
    uncollected,
)
from fsstore.interface import WorkKind
from fsstore.tree.deferred import in_thread
from fsstore.tree.json_messages import free_slowly, json_line_limit_bytes, parse_json_lines, parse_json_message
from fsstore.tree.limited_log import LIMITED_LOG
from fsstore.tree.memory_budget import Holding, Purpose
from fsstore.tree.names import AppendOptions, BodyFormat
from fsstore.tree.nodes import Context, Node

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

LONG_BYTES = 5 << 18
LONG_LINES = 12_000
"""1 MiB of lines of 100 bytes, as a program with a buffer writes them, is still done on the loop's thread."""
LONG_JSON_BYTES = 1 << 16
LONG_JSON_LINES = 256
_NEWLINE = ord("\n")

_SLICE_BYTES = 1 << 18


class LineFramer:
    """Cuts the bytes of one handle into lines, and keeps the last one until its newline comes."""

    __slots__ = ("_limit_bytes", "pending")

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes`: the longest line without its newline."""
        self._limit_bytes = limit_bytes
        self.pending = bytearray()
        """The line without a newline yet."""

    def rest_bytes_with(self, data: bytes) -> int:
        """Length of the unfinished line after `data`. MessageTooLargeError."""
        end = data.rfind(b"\n") + 1
        rest_bytes = len(data) - end if end else len(self.pending) + len(data)
        if rest_bytes > self._limit_bytes:
            raise MessageTooLargeError("line", rest_bytes, self._limit_bytes)
        return rest_bytes

    def text_with(self, data: bytes) -> bytes:
        """The lines that `data` completes, newlines included."""
        lines = data[: data.rfind(b"\n") + 1]
        return b"".join((*slices_of(self.pending), lines)) if lines and self.pending else lines

    def lines_with(self, data: bytes) -> list[bytes]:
        """The same, line by line."""
        lines = split_text(data[: data.rfind(b"\n") + 1])
        if lines and self.pending:
            lines[0] = b"".join((*slices_of(self.pending), lines[0]))
        return lines

    def completed_bytes_with(self, data: bytes) -> int:
        """Length of these lines, newlines included."""
        end = data.rfind(b"\n") + 1
        return end + len(self.pending) if end else 0

    def keep_rest_of(self, data: bytes) -> None:
        """Take `data` after its lines were stored: keep the bytes behind the last newline."""
        end = data.rfind(b"\n") + 1
        if end:
            self.pending.clear()
        if end < len(data):
            self.pending += memoryview(data)[end:]

    def drop(self) -> None:
        self.pending = bytearray()


def slices_of(buffer: bytearray) -> Iterator[bytes]:
    """Copies of slices of `buffer`: `join` releases the interpreter for bytes, but not for a `bytearray`."""
    for start in range(0, len(buffer), _SLICE_BYTES):
        yield bytes(buffer[start : start + _SLICE_BYTES])


def lines_in(text: bytes) -> int:
    """Number of newlines in a text."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == _NEWLINE))  # `count` takes up to five times as long


class Publisher:
    """Puts framed bytes into one topic or queue with given options; ENOENT if it was deleted meanwhile.

    A long put is done in a thread, while no other request for the handle is taken. So is any put during another long
    one, which may hold the log's lock: the request loop never waits for it.
    """

    __slots__ = (
        "_caller",
        "_callers",
        "_file",
        "_is_done",
        "_is_json",
        "_is_long",
        "_long_bytes",
        "_long_puts",
        "_options",
        "_queue",
        "_refusals",
        "_survival",
        "_topic",
        "_waiting",
        "blamed",
        "frames",
        "line_limit_bytes",
        "memory",
        "store",
    )

    def __init__(
        self,
        context: Context,
        topic: str,
        queue: Queue | None,
        options: AppendOptions,
        file: Node,
    ) -> None:
        """Without `queue`, the queues of the topic take turns. `file` is the open file."""
        self._file = file
        self.frames = 0
        """Lines or other frames that were handled."""
        self.blamed = 0
        """The line of the failed request that caused the error, from 1; 0: unknown."""
        self.store = context.store
        self.memory = Holding(context.memory, Purpose.MESSAGES_BEGUN)
        """Memory for unpublished bytes."""
        self._waiting = Holding(context.memory, Purpose.PUBLISHING)
        self._long_puts = context.long_puts
        self._survival = context.survival
        self._refusals = context.refusals
        self._callers = context.callers
        self._caller = context.callers.present
        self._is_done = False  # in a thread, for a request that is not repeated yet
        self._topic = topic
        self._queue = queue
        self._options = options
        self._is_json = options.format is BodyFormat.JSON
        self._is_long = False
        self._long_bytes = LONG_JSON_BYTES if self._is_json else LONG_BYTES
        limit = self.store.config.max_message_bytes
        self.line_limit_bytes = json_line_limit_bytes(limit) if self._is_json else limit
        """The longest frame that can be a message."""

    def one(self, frame: bytes | bytearray, request_bytes: int = 0) -> int:
        """Publish a message, of which the request has `request_bytes`; the physical offset after it. As
        `_in_thread`."""
        if self._survival.stored_until:
            return self._survival.stored_until
        is_long = len(frame) > self._long_bytes
        if is_long or self._is_done or self._long_puts.is_under_way:
            return self._in_thread(lambda: self._one(frame), request_bytes, is_long=is_long)
        return self._one(frame)

    def lines_of(self, framer: LineFramer, request: bytes) -> int:
        """Publish the lines that a request completes, all or none; the physical offset after them, or 0. As
        `_in_thread`."""
        size = framer.completed_bytes_with(request)
        if not size:
            return 0
        if self._survival.stored_until:
            return self._survival.stored_until
        count = lines_in(request)
        is_long = size > self._long_bytes or count > (LONG_JSON_LINES if self._is_json else LONG_LINES)
        if is_long or self._is_done or self._long_puts.is_under_way:
            put = partial(self._lines_of, framer, request, count)
            return self._in_thread(put, len(request), is_long=is_long)
        return self._lines_of(framer, request, count)

    def _lines_of(self, framer: LineFramer, request: bytes, count: int) -> int:
        if self._queue is None:
            self._must_exist()
        if self._is_json:
            lines = framer.lines_with(request)
            try:
                end = self._json_lines(lines)
            finally:
                free_slowly(lines)
        else:
            end = self._text(framer.text_with(request))
        self.frames += count
        return end

    def _in_thread(self, put: Callable[[], int], request_bytes: int, *, is_long: bool) -> int:
        """As `put`, which a thread does while nothing else changes the handle. ENOBUFS: there is no memory to keep a
        waiting request of that size."""
        self._waiting.resize(0 if self._is_done else 2 * request_bytes)  # the loop has a copy too
        self._is_done = False
        kind = WorkKind.PUBLISHING if is_long else WorkKind.PUBLISHING_LITTLE
        return in_thread(partial(self._do, put, is_long), self, kind)

    def _do(self, put: Callable[[], int], is_long: bool) -> int:
        self._is_long = is_long
        try:
            with uncollected() if is_long else nullcontext():
                return put()
        finally:
            self._is_long, self._is_done = False, True

    def _stored(self, put: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """The result of `put`, which takes the log's lock. Work before it does not count as a long put."""
        if not self._is_long:
            return put(*arguments, **options)
        with self._long_puts.under_way():
            return put(*arguments, **options)

    def complain(self, error: StoreError) -> None:
        """Log why a request published nothing: its writer gets only an errno."""
        target = self._target
        text = f"refused a write to append of {target}: {error}"
        LIMITED_LOG.log_once(log, logging.WARNING, (self.complain.__qualname__, target, type(error)), text)

    def lost(self, size: int) -> None:
        """Log that unpublished bytes were lost with the last server."""
        target = self._target
        text = f"{size:,} bytes written to append of {target} were not published when the daemon died: they are lost"
        LIMITED_LOG.log_once(log, logging.WARNING, (self.lost.__qualname__, target), text)

    @property
    def path(self) -> str:
        return self._file.path

    def note_refusal(self, reason: str) -> None:
        """Note why nothing was published, if no request gets the error."""
        self._refusals.note(self._caller.user, 0, self.path, str(self.frames + 1), 0, reason)

    @property
    def _target(self) -> str:
        return self._topic if self._queue is None else f"{self._topic}/{self._queue.queue}"

    def release(self) -> None:
        """Free the memory of a closed handle."""
        self.memory.resize(0)
        self._waiting.resize(0)

    def _one(self, frame: bytes | bytearray) -> int:
        options, queue = self._options, self._queue
        body = frame if isinstance(frame, bytes) else b"".join(slices_of(frame))
        if self._is_json:
            message = parse_json_message(self._topic, body, options)
        else:
            message = Message(self._topic, body, options.keys, options.tags)
        if queue is not None:
            put = self._stored(queue.put, message)
        else:
            self._must_exist()
            put = self._stored(self.store.put, message)
        self.frames += 1
        self._callers.published(self._caller, 1, len(body))
        return put.physical_end

    def _text(self, lines: bytes) -> int:
        options, queue = self._options, self._queue
        keys, tags = options.keys, options.tags
        try:
            if queue is not None:
                put = self._stored(queue.put_lines, lines, keys=keys, tags=tags)
            else:
                put = self._stored(self.store.put_lines, self._topic, lines, keys=keys, tags=tags)
        except MessageTooLargeError:
            limit = self.store.config.max_message_bytes
            self.blamed = next((row for row, line in enumerate(split_text(lines), 1) if len(line) - 1 > limit), 0)
            raise
        self._callers.published(self._caller, put.count, len(lines))
        return put.physical_end if put.count else 0

    def _json_lines(self, lines: Sequence[bytes]) -> int:
        queue = self._queue
        messages = parse_json_lines(self._topic, lines, self._options, self._blame)
        if not messages:
            return 0
        try:
            put = self._stored((self.store if queue is None else queue).put_batch, messages)
            self._callers.published(self._caller, len(messages), sum(map(len, lines)))
            return put.physical_end
        except (IllegalMessageError, MessageTooLargeError):
            self._blame_one_of(messages, lines)
            raise
        finally:
            free_slowly(messages)

    def _blame(self, number: int) -> None:
        self.blamed = number

    def _blame_one_of(self, messages: Sequence[Message], lines: Sequence[bytes]) -> None:
        """Raise the error of the first message that is invalid by itself, with its number."""
        with_text = (number for number, line in enumerate(lines, 1) if line != b"\n")
        for number, (message, self.blamed) in enumerate(zip(messages, with_text, strict=True), 1):
            try:
                check_message(message, self.store.config.max_message_bytes)
            except IllegalMessageError as error:
                raise IllegalMessageError(f"message {number} of {len(messages)}: {error.reason}") from error
        self.blamed = 0

    def _must_exist(self) -> None:
        """TopicNotFoundError if the topic was deleted meanwhile: the store's puts would make it again."""
        if not self.store.has_topic(self._topic):
            raise TopicNotFoundError(self._topic)

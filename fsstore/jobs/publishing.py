"""Publishing many lines of JSON through the `append` files of a mount, exactly once or at least once."""

from __future__ import annotations

import errno
import os
import secrets
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from fsstore.interface import WHOLE_WRITE_BYTES
from fsstore.jobs.mount import bounds, while_gone
from fsstore.jobs.once import MARK_BYTES, Batch, left_out

_SAID_BY_THE_MOUNT = frozenset((errno.EINVAL, errno.EFBIG))


def make_topic(root: str, topic: str) -> None:
    """Make a topic if it does not exist. OSError."""
    if topic not in bounds(root):
        os.makedirs(Path(root) / topic, exist_ok=True)


def publish_lines(root: str, topic: str, lines: Iterable[bytes]) -> int:
    """Publish lines of JSON; returns their number."""
    numbers = count()
    with BulkAppend(root, topic) as append:
        for line in lines:
            append.add(line)
            next(numbers)
    return next(numbers)


def publish_once(batch: Batch, task: int, lines: Iterable[bytes], *, is_repeated: bool) -> int:
    """Publish those of a task's lines of JSON that the topic does not have yet; returns the number of all lines. A
    repeated batch has one task, whose lines other tasks may have published."""
    numbers = count()
    with batch.only_try(task):
        own = [write for write in batch.writes() if is_repeated or write.task == task]
        is_there = left_out(batch.root, own)
        with BulkAppend(batch.root, batch.topic, batch, task) as append:
            for line in lines:
                if not is_there(line):
                    append.add(line)
                next(numbers)
    return next(numbers)


def why_refused(root: str) -> str:
    """The reason why this process's last write was refused, from `@store/refusals`; empty: not known."""
    lines = (Path(root) / "@store/refusals").read_text().splitlines()
    own = [words[5] for line in lines if len(words := line.split(" ", 5)) == 6 and words[1] == str(os.getpid())]
    return own[-1] if own else ""


class BulkAppend:
    """Publishes lines in large writes to a topic's queues in turn. A write is repeated after a restart of the
    daemon."""

    def __init__(self, root: str, topic: str, batch: Batch | None = None, task: int = 0) -> None:
        """With `batch`, whose task this is, a write that may have been published is not repeated."""
        self._root = root
        self._batch = batch
        self._task = task
        names = while_gone(root, lambda: os.listdir(os.path.join(root, topic)))
        queues = sorted((name for name in names if name.isdecimal()), key=int)
        self._paths = deque(os.path.join(root, topic, queue, "append@format=json") for queue in queues)
        self._paths.rotate(-task)
        self._descriptors: dict[str, int] = {}
        self._waiting: list[bytes] = []
        self._waiting_bytes = MARK_BYTES

    def __enter__(self) -> BulkAppend:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        try:
            if kind is None:
                self._send()
                while_gone(self._root, self._sync)
        finally:
            self._close()

    def add(self, line: bytes) -> None:
        """Publish a line without its newline, with the next write."""
        if self._waiting_bytes + len(line) + 1 > WHOLE_WRITE_BYTES:
            self._send()
        self._waiting.append(line)
        self._waiting_bytes += len(line) + 1

    def _send(self) -> None:
        """Send a write, which is published as a whole or not at all."""
        if self._waiting:
            lines, name = self._waiting, secrets.token_hex(8)
            if self._batch is not None:
                lines = self._batch.marked(lines, self._task, name)
            text, tries = b"\n".join([*lines, b""]), count()

            def write() -> None:
                if not (next(tries) and self._is_published(name)):
                    self._write(text)

            while_gone(self._root, write)
            self._paths.rotate(-1)
            self._waiting.clear()
            self._waiting_bytes = MARK_BYTES

    def _is_published(self, name: str) -> bool:
        """Whether a failed write is published: the daemon may have died before its answer."""
        return self._batch is not None and any(write.name == name for write in self._batch.writes())

    def _write(self, text: bytes) -> None:
        try:
            if len(text) > WHOLE_WRITE_BYTES:  # a single line that is too long for one write: the close publishes it
                with open(f"{self._paths[0]},frame=file", "wb") as file:
                    file.write(text)
                return
            descriptor = self._open()
            rest = memoryview(text)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError as error:
            self._close()
            if error.errno in _SAID_BY_THE_MOUNT:
                reason = why_refused(self._root) or "@store/refusals says why"
                raise OSError(error.errno, f"{error.strerror}: {reason}", self._paths[0]) from None
            raise

    def _sync(self) -> None:
        """Wait until all earlier lines are on disk, in all queues."""
        try:
            os.fsync(self._open())
        except OSError:
            self._close()
            raise

    def _open(self) -> int:
        """The descriptor of the queue whose turn it is."""
        path = self._paths[0]
        if path not in self._descriptors:
            self._descriptors[path] = os.open(path, os.O_WRONLY)
        return self._descriptors[path]

    def _close(self) -> None:
        while self._descriptors:
            _, descriptor = self._descriptors.popitem()
            with suppress(OSError):  # write and fsync have reported all errors
                os.close(descriptor)

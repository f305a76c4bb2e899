"""Lines for `@store/accesslog`: while it is read, each handler is wrapped in one that times and describes requests.

    no reader      handlers.by_opcode has the handlers themselves: the log costs nothing
    a reader       it has wrapped ones; the relay notes requests for pyfuse3; the thread that syncs the log notes
                   writers that wait for the disk

A read that finds no line is answered later: when lines have been written, when its reader is interrupted (EINTR), when
the mount ends (an empty answer). Requests for the log itself are not logged.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import NamedTuple

import trio

from fsstore.core import Filesystem
from fsstore.fuse import protocol as wire
from fsstore.fuse.protocol import ARGUMENTS, HANDLE, RANGE, REQUEST, Opcode, RareOpcode
from fsstore.fuse.session import Channel, Handler
from fsstore.handover.requests import RESENT
from fsstore.interface import FilesystemError
from fsstore.tree.refusals import escaped, time_text

BATCH_S = 0.05
"""Seconds for which lines are collected for a waiting reader."""
MOST_PATH_CHARACTERS = 1_000
MOST_INTERRUPTED = 256
"""Last interrupted requests that are remembered: a read of the log may still be queued."""
_READ_FLAGS = Struct("=32xI")
"""Flags of the open file in a read request, after handle, position and size."""
_NAMED = {
    *(Opcode.LOOKUP, Opcode.MKDIR, Opcode.CREATE, RareOpcode.MKNOD, Opcode.UNLINK, Opcode.RMDIR),
    *(RareOpcode.SYMLINK, Opcode.RENAME, Opcode.RENAME2, RareOpcode.LINK),
}
"""Operations on a name below the inode."""
_NAME_BEGIN: dict[int, int] = {
    Opcode.MKDIR: 8,
    RareOpcode.MKNOD: 16,
    Opcode.CREATE: 16,
    Opcode.RENAME: 8,
    Opcode.RENAME2: 16,
    RareOpcode.LINK: 8,
}
"""Bytes of arguments before the name."""


class LoggedRequest(NamedTuple):
    """A request that was not answered yet."""

    began_s: float
    time_ns: int
    uid: int
    gid: int
    pid: int
    operation: str
    path: str
    position: int | None
    size: int | None

    def line(self, number: int, seconds: float) -> bytes:
        """The line of a request that was answered with errno `number` (0: success)."""
        result = errno.errorcode.get(number, str(number)) if number else "OK"
        position = "-" if self.position is None else self.position
        size = "-" if self.size is None else self.size
        path = escaped(self.path, MOST_PATH_CHARACTERS).replace(" ", "\\x20")
        caller = f"{self.uid} {self.gid} {self.pid}"
        time_shown = time_text(self.time_ns)
        return f"{time_shown} {caller} {self.operation} {path} {position} {size} {result} {seconds:.6f}\n".encode()


class RequestLog:
    """Writes the log of one mount. Construct it in `trio.run`. Thread safety: trio's thread, but for `waiting`'s
    result."""

    def __init__(self, core: Filesystem, channel: Channel, handlers: dict[int, Handler]) -> None:
        """`handlers`, by opcode, are wrapped while the log is read."""
        self._core = core
        self._channel = channel
        self._handlers = handlers
        self._plain: dict[int, Handler] = {}
        self._begun: dict[int, LoggedRequest] = {}
        self._parked: dict[int, tuple[int, int]] = {}  # `unique` of a read -> handle, size
        self._interrupted: deque[int] = deque(maxlen=MOST_INTERRUPTED)
        self._answered_s = 0.0
        self._arrived = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.get_ident()
        core.access_log.on_change = self._changed
        self._changed()

    def _changed(self) -> None:
        """The log was opened or closed."""
        is_read = self._core.access_log.is_read
        if is_read and not self._plain:
            self._plain = dict(self._handlers)
            self._handlers.update({opcode: self._logged(opcode, self._plain[opcode]) for opcode in self._plain})
            self._handlers[Opcode.INTERRUPT] = self._interrupt
        elif not is_read and self._plain:
            self._handlers.update(self._plain)
            self._plain = {}
            self._begun.clear()

    # requests

    def _logged(self, opcode: int, handler: Handler) -> Handler:
        own = self._read_own if opcode == Opcode.READ else handler

        def logged(unique: int, inode: int, request: memoryview) -> None:
            if inode == self._core.access_log_inode:
                own(unique, inode, request)
                return
            self.begin(request)
            handler(unique, inode, request)  # after SlowWork it is called again; `failed` handles other errors
            self.answered(unique, 0)

        logged.__name__ = handler.__name__
        return logged

    def begin(self, request: bytes | memoryview) -> None:
        """Note a request before it is answered. It may be noted already."""
        _, opcode, unique, inode = REQUEST.unpack_from(request)
        if self._plain and unique not in self._begun:
            uid, gid, pid = wire.CALLER.unpack_from(request, wire.CALLER_BEGIN)
            path = below(self._core.path_of(inode), opcode, request)
            position, size = _range_of(opcode, request)
            name = wire.operation_name(opcode)
            began_s, time_ns = time.perf_counter(), time.time_ns()
            self._begun[unique] = LoggedRequest(began_s, time_ns, uid, gid, pid, name, path, position, size)

    def answered(self, unique: int, number: int) -> None:
        """Log a request that was answered with errno `number` (0: success)."""
        entry = self._begun.pop(unique, None)
        if entry is not None:
            self._add(entry, number)

    def failed(self, number: int, request: memoryview) -> None:
        """Log a request that failed, in its handler or in slow work."""
        self.answered(REQUEST.unpack_from(request)[2], number)

    def waiting(self, unique: int) -> Callable[[int], None] | None:
        """The function to call with the errno when a request that waits for the disk is answered, from any thread."""
        entry = self._begun.pop(unique, None)
        return None if entry is None else partial(self._add, entry)

    # lines

    def _add(self, entry: LoggedRequest, number: int) -> None:
        now_s = time.perf_counter()
        self._core.access_log.add(entry.line(number, now_s - entry.began_s))
        if not self._parked:
            return
        if threading.get_ident() != self._thread:
            self._token.run_sync_soon(self._wake, idempotent=True)
        elif now_s - self._answered_s >= BATCH_S:  # a loop that is never idle gives trio no turn
            self._answer_readers()
        else:
            self._wake()

    def _wake(self) -> None:
        self._arrived.set()

    async def run(self, is_left: Callable[[], bool]) -> None:
        """Answer waiting readers until cancelled. Then their reads get an empty answer, unless another server takes
        over: the kernel sends it the reads again."""
        try:
            while True:
                await self._arrived.wait()
                await trio.sleep(BATCH_S)
                self._arrived = trio.Event()
                self._answer_readers()
        finally:
            if not is_left():
                for unique in self._parked:
                    self._channel.send(wire.header(unique, 0))

    def _answer_readers(self) -> None:
        self._answered_s = time.perf_counter()
        for unique, (handle, size) in list(self._parked.items()):
            lines = self._core.read(handle, 0, size)
            if lines:
                del self._parked[unique]
                self._channel.send_with(wire.header(unique, len(lines)), lines)

    # the log's own requests

    def _read_own(self, unique: int, _: int, request: memoryview) -> None:
        handle, position, size = RANGE.unpack_from(request, ARGUMENTS)
        lines = self._core.read(handle, position, size)
        if lines:
            self._channel.send_with(wire.header(unique, len(lines)), lines)
        elif _READ_FLAGS.unpack_from(request, ARGUMENTS)[0] & os.O_NONBLOCK:
            raise FilesystemError(errno.EAGAIN)
        elif unique & ~RESENT in self._interrupted:
            raise FilesystemError(errno.EINTR)
        else:
            self._parked[unique] = handle, size

    def _interrupt(self, _: int, __: int, request: memoryview) -> None:
        """Answer a waiting reader that got a signal; its read may still be queued."""
        (interrupted,) = HANDLE.unpack_from(request, ARGUMENTS)
        self._interrupted.append(interrupted & ~RESENT)
        for unique in [unique for unique in self._parked if unique & ~RESENT == interrupted & ~RESENT]:
            del self._parked[unique]
            self._channel.send(wire.failed(unique, errno.EINTR))


def below(path: str, opcode: int, request: bytes | memoryview) -> str:
    """The path of a request: that of its inode, or of a name in that directory."""
    if opcode not in _NAMED:
        return path
    begin = ARGUMENTS + _NAME_BEGIN.get(opcode, 0)
    name = os.fsdecode(bytes(request[begin:]).split(b"\0", 1)[0])
    return name if path == "/" else f"{path}/{name}"


def _range_of(opcode: int, request: bytes | memoryview) -> tuple[int | None, int | None]:
    """Position and size of a request; a write through O_APPEND has no position."""
    if opcode == Opcode.WRITE:
        _, position, size, _, _, flags = wire.WRITE.unpack_from(request, ARGUMENTS)
        return None if flags & os.O_APPEND else position, size
    if opcode in (Opcode.READ, Opcode.READDIR, Opcode.READDIRPLUS):
        _, position, size = RANGE.unpack_from(request, ARGUMENTS)
        return position, size
    return None, None

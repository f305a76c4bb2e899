"""The descriptor over which the kernel asks and is answered, from mounting to unmounting.

fusermount3 mounts (it may, for everyone) and hands the descriptor over. A reply and a notice are each one write.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import trio

from fsstore.fuse import protocol as wire
from fsstore.options import MountError

_UNMOUNTED = (errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED)
_TRY_AGAIN = (errno.ENOENT, errno.EINTR, errno.EAGAIN)
"""The request was taken back before it was read, or there was none."""

LOOKS = 40
"""How often to look for a request before going to sleep for one: some 30 µs. Who has been answered often asks again
within that time, and a processor that went to sleep meanwhile, a virtual one above all, wakes up later than that."""


class Channel:
    """A mounted file system's connection. Thread safety: `receive` and `wait` on one thread; replies and notices from
    any thread, those of other threads by `send_late`."""

    def __init__(self, descriptor: int, mountpoint: Path) -> None:
        """Takes the descriptor over, and has it never block: a request may be taken back between being seen and being
        read, and the loop has more to do than to wait for the next one."""
        os.set_blocking(descriptor, False)
        self.mountpoint = mountpoint
        self._descriptor = descriptor
        self._buffer = bytearray(wire.LARGEST_REQUEST_BYTES)
        self._view = memoryview(self._buffer)
        self._buffers = [self._buffer]
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._ending = threading.Lock()
        self._is_open = True
        self.is_mounted = True
        """False once the kernel has said that the mount is gone."""

    @classmethod
    def mount(cls, mountpoint: Path, options: Iterable[bytes]) -> Channel:
        """Mount, with options as after `-o`. MountError with what fusermount3 said."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [b"fusermount3", b"-o", b",".join(options), b"--", os.fsencode(mountpoint)]
            try:
                helper = subprocess.run(
                    command,
                    check=False,
                    env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                )
            except OSError as error:
                raise MountError(mountpoint, f"fusermount3: {error}") from error
            said = helper.stderr.decode(errors="replace").strip()
            if helper.returncode:
                raise MountError(mountpoint, said or f"fusermount3 ended with {helper.returncode}")
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        return cls(descriptors[0], mountpoint)

    # requests

    def is_ready(self, wait_ms: int) -> bool:
        """Whether a request has come, or comes within `wait_ms`, or the mount is gone."""
        poll = self._poll.poll
        for _ in range(LOOKS if wait_ms else 0):
            if poll(0):
                return True
        return bool(poll(wait_ms))

    async def wait(self) -> None:
        """Return when `is_ready`, in trio's own time."""
        await trio.lowlevel.wait_readable(self._descriptor)

    def receive(self) -> memoryview | None:
        """The next request, valid until the next call; None when there is none, or `is_mounted` has become False."""
        try:
            size = os.readv(self._descriptor, self._buffers)
        except OSError as error:
            if error.errno in _UNMOUNTED:
                self.is_mounted = False
                return None
            if error.errno in _TRY_AGAIN:
                return None
            raise
        return self._view[:size]

    # replies and notices

    def send(self, reply: bytes) -> None:
        """Answer a request. One that was taken back meanwhile, or whose mount is gone, has nobody who would hear it."""
        try:
            os.write(self._descriptor, reply)
        except (FileNotFoundError, ConnectionAbortedError):
            return  # `suppress` would cost half as much as the reply

    def send_with(self, head: bytes, data: bytes | memoryview) -> None:
        """As `send`, for a reply in two pieces: `data` is not copied on our side."""
        try:
            os.writev(self._descriptor, (head, data))
        except (FileNotFoundError, ConnectionAbortedError):
            return

    def send_late(self, reply: bytes) -> None:
        """As `send`, from any thread, also after the end."""
        with self._ending:
            if self._is_open:
                with suppress(OSError):
                    os.write(self._descriptor, reply)

    def drop_attributes(self, inode: int) -> None:
        """Have the kernel ask again for an inode's attributes, if it knows it. Takes no lock that a reader may hold."""
        with suppress(OSError):
            os.write(self._descriptor, wire.attributes_changed(inode))

    def push(self, inode: int, body: bytes) -> bool:
        """Put the first bytes of an inode into the kernel's cache; False when it does not know the inode, or can't."""
        try:
            os.writev(self._descriptor, (wire.data_of(inode, 0, len(body)), body))
        except OSError:
            return False
        return True

    def drop_data(self, inode: int, position: int) -> None:
        """Have the kernel ask again for an inode's bytes from `position` on. Waits for whoever is reading them, so for
        us: in a thread."""
        with suppress(OSError):
            os.write(self._descriptor, wire.data_changed(inode, position))

    def extend(self, inode: int, size: int, last: bytes) -> bool:
        """Have the kernel know that an inode has `size` bytes now, of which `last` is the last one; False when it does
        not know the inode. In a thread, as `drop_data`."""
        try:
            os.writev(self._descriptor, (wire.data_of(inode, size - 1, 1), last))
        except FileNotFoundError:
            return False
        except OSError:
            return True  # no memory for the byte, or no mount any more: it has taken the size
        return True

    # the end

    def close(self) -> None:
        """Let the kernel fail what is still asked; unmount if nobody did yet."""
        with self._ending:
            self._is_open = False
            gone = not self.is_mounted or any(event & select.POLLERR for _, event in self._poll.poll(0))
            os.close(self._descriptor)
        if not gone:
            subprocess.run(["fusermount3", "-u", "-q", "-z", "--", self.mountpoint], check=False, capture_output=True)

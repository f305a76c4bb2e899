"""A server's link to the keeper of its mount, which outlives it (mountctl/keeper.py)."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from enum import Enum

from fsstore.handover.memory import Handover

RELEASE_SECONDS = 5.0
"""Time within which a keeper has to close /dev/fuse."""
LARGEST_MESSAGE_BYTES = 1024
"""Bytes of a message with its reason, at most."""


class KeeperMessage(Enum):
    """Messages between a keeper and its servers, over a pair of sockets."""

    KEEP = b"keep"
    """Server: hold this descriptor, so that the mount outlives me."""
    RELEASE = b"release"
    """Server: close the descriptor."""
    RELEASED = b"released"
    LEAVE = b"leave"
    """Keeper: close the store and end; the next server is prepared."""
    PREPARED = b"prepared"
    """Next server: my program and options are loaded and valid."""
    GO = b"go"
    """Keeper: the last server has ended, take over."""
    TAKEN = b"taken"
    """Next server: I have /dev/fuse and take over."""
    REFUSED = b"refused"
    """Next server, with a space and the reason: I can't take over, and end."""
    SERVING = b"serving"
    """Server: the mount answers."""


class Keeper:
    """A server's link to its keeper. `inherited` is the /dev/fuse descriptor of a mount to take over."""

    def __init__(self, memory: Handover, link: socket.socket, inherited: int | None = None) -> None:
        self.memory = memory
        self.inherited = inherited
        self.pid = os.getppid()
        self.is_left = False
        """Whether this server leaves the mount to the next one."""
        self._link = link

    def fileno(self) -> int:
        """The descriptor, which is readable when a message of the keeper waits."""
        return self._link.fileno()

    def receive(self) -> KeeperMessage | None:
        """The keeper's next message. None: it has ended, or the socket's deadline has passed."""
        with suppress(OSError, ValueError):
            return KeeperMessage(self._link.recv(16))
        return None

    def send(self, message: KeeperMessage) -> None:
        """Send a message, unless the keeper has ended."""
        with suppress(OSError):
            self._link.send(message.value)

    def keep(self, descriptor: int) -> None:
        """Have the keeper hold the descriptor too: from now on the mount outlives this process."""
        with suppress(OSError):
            socket.send_fds(self._link, [KeeperMessage.KEEP.value], [descriptor])

    def release(self) -> None:
        """Have the keeper close the descriptor, so that the mount ends with ours. Returns when it has, or after
        RELEASE_SECONDS: a keeper that was stopped closes it when it is continued."""
        self.send(KeeperMessage.RELEASE)
        deadline = time.monotonic() + RELEASE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            self._link.settimeout(left)
            if self.receive() in (KeeperMessage.RELEASED, None):  # any other message asks this server to leave
                break

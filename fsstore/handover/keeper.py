"""A server's link to the keeper of its mount, which outlives it (mountctl/keeper.py)."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from enum import Enum

from fsstore.handover.memory import Handover

RELEASE_SECONDS = 5.0
"""How long a keeper may take to let /dev/fuse go."""
LARGEST_MESSAGE_BYTES = 1024
"""Of a message with a reason."""


class KeeperMessage(Enum):
    """What a keeper and its servers say to each other, over a pair of sockets."""

    KEEP = b"keep"
    """The server: hold this descriptor, so that the mount outlives me."""
    RELEASE = b"release"
    """The server: hold it no longer."""
    RELEASED = b"released"
    LEAVE = b"leave"
    """The keeper: close the store and end; the next server is prepared."""
    PREPARED = b"prepared"
    """The next server: all is loaded, and its options make sense."""
    GO = b"go"
    """The keeper: the last server has ended, take over."""
    TAKEN = b"taken"
    """The next server: I have got /dev/fuse, and take over."""
    REFUSED = b"refused"
    """The next server, with a space and the reason: I can't take over, and end."""
    SERVING = b"serving"
    """The server: the mount answers."""


class Keeper:
    """A server's link to its keeper. `inherited` is the /dev/fuse descriptor of a mount that is to be served on."""

    def __init__(self, memory: Handover, link: socket.socket, inherited: int | None = None) -> None:
        self.memory = memory
        self.inherited = inherited
        self.pid = os.getppid()
        self.is_left = False
        """Whether this server leaves the mount to the next one."""
        self._link = link

    def fileno(self) -> int:
        """Readable when the keeper says something."""
        return self._link.fileno()

    def hear(self) -> KeeperMessage | None:
        """What it says; None: nothing more, for it is gone (or has taken too long, where there is a deadline)."""
        with suppress(OSError, ValueError):
            return KeeperMessage(self._link.recv(16))
        return None

    def tell(self, message: KeeperMessage) -> None:
        """Tell it, if it is there."""
        with suppress(OSError):
            self._link.send(message.value)

    def keep(self, descriptor: int) -> None:
        """Have the keeper hold the descriptor, too: from now on the mount outlives this process."""
        with suppress(OSError):
            socket.send_fds(self._link, [KeeperMessage.KEEP.value], [descriptor])

    def release(self) -> None:
        """Have it hold the descriptor no longer: the mount ends with ours. Returns when that is so, or when the keeper
        takes longer than RELEASE_SECONDS: it is stopped, and lets go when it goes on."""
        self.tell(KeeperMessage.RELEASE)
        deadline = time.monotonic() + RELEASE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            self._link.settimeout(left)
            if self.hear() in (KeeperMessage.RELEASED, None):  # else it has asked us to leave
                break

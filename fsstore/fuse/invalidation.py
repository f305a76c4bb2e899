"""What happens in the store, told to the kernel: sizes that grew, messages and topics that are gone.

    store (any thread) ──appended──► queue of changes ──► Filesystem.grown ──► Channel.drop_attributes
                       ──expired, queue_gone, topics_changed──► Expiry (expiry.py) ──► the same

Sizes of streams are answered with a long timeout, and the kernel is told at the first change after an answer. For our
own writers that happens inside the write's handler, before the write returns; for everything else as soon as trio's
thread gets to it. Attributes alone: having the kernel drop *data* inside a handler can wait for a page whose read
waits for us.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from engine import Expired, StoreListener
from fsstore.core import Filesystem
from fsstore.fuse.channel import Channel
from fsstore.fuse.expiry import Expiry

log = logging.getLogger(__name__)


class Invalidation(StoreListener):
    """Listens to the store and forgets what the kernel believed. Construct it on trio's thread, inside `trio.run`.

    Thread safety: the listener's methods from any thread; `tell_kernel` on trio's thread.
    """

    def __init__(self, core: Filesystem, channel: Channel, expiry: Expiry) -> None:
        self._core = core
        self._channel = channel
        self._expiry = expiry
        self._token = trio.lowlevel.current_trio_token()
        self._trio_thread = threading.get_ident()
        self._grown: deque[tuple[str, int]] = deque()

    def appended(self, topic: str, queue: int) -> None:
        """Note that a queue grew; a handler of ours tells the kernel itself, before it answers."""
        self._grown.append((topic, queue))
        if threading.get_ident() != self._trio_thread:
            self._on_trio(self.tell_kernel)

    def expired(self, expired: Expired) -> None:
        """Have the kernel ask again about messages that are gone."""
        self._on_trio(self._expiry.queue_expired, expired)

    def queue_gone(self, topic: str, queue: int) -> None:
        """Have the kernel ask again about all that was in a queue."""
        self._on_trio(self._expiry.queue_gone, topic, queue)

    def topics_changed(self) -> None:
        """Have the kernel ask again about topics and queues that went."""
        self._on_trio(self._expiry.topics_changed)

    def log_rewritten(self, physical_end: int) -> None:
        """Have the core forget what it answered, before anything of the other log is shown."""
        log.warning("the log was rewritten, or came anew: what was shown of it is gone, and it is read anew")
        if threading.get_ident() == self._trio_thread:
            self._expiry.log_rewritten(physical_end)
            return
        with suppress(trio.RunFinishedError):
            trio.from_thread.run_sync(self._expiry.log_rewritten, physical_end, trio_token=self._token)

    def growing(self, topic: str, queues: Sequence[int]) -> None:
        """Drop the attributes of queues that are about to grow: nothing is answered until they have."""
        self._grown.extend((topic, queue) for queue in queues)
        self.tell_kernel()

    def tell_kernel(self) -> None:
        """Drop the kernel's attributes of everything that grew since they were answered."""
        grown = self._grown
        while grown:
            for inode in self._core.grown(*grown.popleft()):
                self._channel.drop_attributes(inode)

    def _on_trio(self, call: Callable[..., None], *arguments: object) -> None:
        with suppress(trio.RunFinishedError):  # the mount has ended: nobody is left to tell
            self._token.run_sync_soon(call, *arguments, idempotent=not arguments)

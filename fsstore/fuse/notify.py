"""Notices to the kernel: they invalidate cached attributes and data, and put data into the kernel's cache.

store (any thread) ──appended──► Invalidation ──► Channel.drop_attributes        sizes that grew
                   ──expired, queue_gone, topics_changed──► Expiry ──► the same  messages and topics that were removed
an idle stream that grew        ──► SizeNotifier ──► Channel.drop_data, extend   its new size, and its last page
a small message that is opened  ──► OpenBodies ──► Channel.push                  its body
"""

from __future__ import annotations

import itertools
import logging
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import trio

from engine import STREAM_SEPARATOR, Expired, StoreListener
from fsstore.core import Filesystem
from fsstore.fuse.session import Channel
from fsstore.tree.streams import IdleStream, StreamTable

log = logging.getLogger(__name__)


class Invalidation(StoreListener):
    """Listens to the store and invalidates the kernel's caches. Construct it on trio's thread, inside `trio.run`.

    Sizes of streams are answered with a long timeout, and the kernel is notified of the first change after an answer.
    For our own writers that happens inside the write's handler, before the write returns; for other changes as soon as
    trio's thread runs. Only attributes are dropped: dropping *data* inside a handler can wait for a page whose read
    waits for us.

    Thread safety: the listener's methods from any thread; `notify_kernel` on trio's thread.
    """

    def __init__(self, core: Filesystem, channel: Channel, expiry: Expiry) -> None:
        self._core = core
        self._channel = channel
        self._expiry = expiry
        self._token = trio.lowlevel.current_trio_token()
        self._trio_thread = threading.get_ident()
        self._grown: deque[tuple[str, int]] = deque()

    def appended(self, topic: str, queue: int) -> None:
        """Note that a queue grew. Our own handlers notify the kernel themselves, before they answer."""
        self._grown.append((topic, queue))
        if threading.get_ident() != self._trio_thread:
            self._on_trio(self.notify_kernel)

    def expired(self, expired: Expired) -> None:
        """Invalidate messages that expired."""
        self._on_trio(self._expiry.queue_expired, expired)

    def queue_gone(self, topic: str, queue: int) -> None:
        """Invalidate a queue that was removed, and all below it."""
        self._on_trio(self._expiry.queue_gone, topic, queue)

    def topics_changed(self) -> None:
        """Invalidate topics and queues that were removed."""
        self._on_trio(self._expiry.topics_changed)

    def log_rewritten(self, physical_end: int) -> None:
        """Have the core forget its answers before any message of the new log is shown."""
        log.warning("the log was rewritten or recreated: everything shown before is invalidated and read again")
        if threading.get_ident() == self._trio_thread:
            self._expiry.log_rewritten(physical_end)
            return
        with suppress(trio.RunFinishedError):
            trio.from_thread.run_sync(self._expiry.log_rewritten, physical_end, trio_token=self._token)

    def notify_kernel(self) -> None:
        """Drop the kernel's attributes of all streams that grew after they were answered."""
        grown = self._grown
        while grown:
            for inode in self._core.streams.grown(*grown.popleft()):
                self._channel.drop_attributes(inode)

    def _on_trio(self, call: Callable[..., None], *arguments: object) -> None:
        with suppress(trio.RunFinishedError):  # the mount has ended, and the kernel's caches with it
            self._token.run_sync_soon(call, *arguments, idempotent=not arguments)


BATCH_INODES = 2_000
"""Inodes of one call of the thread; the core lists the next ones between two calls."""


class Expiry:
    """Invalidates inodes that were removed: messages that retention deleted, topics that were deleted.

    A file of the commit log may hold a million messages, so a thread does it, a batch at a time. A body stays in the
    kernel's cache while it is open, but can't be opened again. FUSE_NOTIFY_INC_EPOCH is no shorter way: it has the
    kernel look up every name of the mount again, and leaves the attributes of open files. Thread safety: trio's thread
    only.
    """

    def __init__(self, core: Filesystem, channel: Channel) -> None:
        self._core = core
        self._channel = channel
        self._open = True
        self._send, self._receive = trio.open_memory_channel[Iterable[int]](float("inf"))

    def queue_expired(self, expired: Expired) -> None:
        """Invalidate messages that expired."""
        if self._open:
            self._send.send_nowait(self._core.expired(expired))

    def queue_gone(self, topic: str, queue: int) -> None:
        """Invalidate a queue that was deleted, and may have been made again."""
        if self._open:
            self._send.send_nowait(self._core.queue_gone(topic, queue))

    def topics_changed(self) -> None:
        """Invalidate topics and queues that were deleted."""
        if self._open:
            self._send.send_nowait(self._core.topics_changed())

    def log_rewritten(self, physical_end: int) -> None:
        """Another log replaced the one that was shown. On return the core answers nothing of the old one."""
        if self._open:
            self._send.send_nowait(self._core.log_rewritten(physical_end))

    def close(self) -> None:
        """Let `run` end after the present batch; the kernel is about to drop all caches."""
        self._open = False
        self._send.close()

    async def run(self) -> None:
        """Notify the kernel until `close`."""
        with suppress(trio.ClosedResourceError, trio.EndOfChannel):
            async for inodes in self._receive:
                await self._notify(iter(inodes))

    async def _notify(self, inodes: Iterator[int]) -> None:
        while self._open and (batch := list(itertools.islice(inodes, BATCH_INODES))):
            await trio.to_thread.run_sync(self._drop, batch)

    def _drop(self, inodes: list[int]) -> None:
        for inode in inodes:
            self._channel.drop_attributes(inode)


CALM_S = 0.1
"""Wait before a step begins."""

GRACE_S = 1
"""Wait between its two notices."""

LOOK_AGAIN_S = 0.01
"""Interval of checks whether a request for the file is still unanswered."""

LAST_BYTE = bytes([STREAM_SEPARATOR])


class SizeNotifier:
    """Notifies the kernel of new sizes of streams whose bytes it caches, in steps of two notices.

        size noted ─► the page with the end known so far is dropped ──GRACE_S──► the new size, with its last byte

    A reader of that page after the first notice gets it anew, with all bytes up to the noted size. A reader that had
    the page before the notice has copied its bytes long before the second one: between taking a page and looking at the
    file's size, a reader in the kernel does nothing that waits. So no reader sees the zeros after the old end. The size
    is sent with a byte (the newline that ends the last message), not as an attribute, because the kernel drops all
    cached pages of a file whose size changes in its attributes.

    Both notices may wait for a page whose reader waits for us. So threads write them while requests are answered, and
    requests are answered until the last notice is sent. A daemon that is killed while a notice waits could not end, nor
    could the reader: so a notice is not begun while a request for that file is unanswered, nor right after the size was
    noted, when readers come for the end.

    Thread safety: trio's thread only.
    """

    def __init__(self, streams: StreamTable, channel: Channel, holds: Callable[[int], bool]) -> None:
        """`holds(inode)`: whether a slow request for it is unanswered."""
        self._streams = streams
        self._channel = channel
        self._holds = holds
        self._woken = trio.Event()
        self._running = trio.CancelScope()
        self._ended = trio.Event()
        streams.on_outdated = self._wake

    def _wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Notify the kernel until `close`, then until the present notice is sent."""
        try:
            with self._running:
                await self._run()
        finally:
            self._ended.set()

    async def close(self) -> None:
        """End `run`, and return when it has ended: serve requests until then."""
        self._running.cancel()
        await self._ended.wait()

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                await self._woken.wait()
                self._woken = trio.Event()
                for stream in self._streams.take_outdated():
                    nursery.start_soon(self._step, stream)

    async def _step(self, stream: IdleStream) -> None:
        await trio.sleep(CALM_S)
        size = await trio.to_thread.run_sync(lambda: stream.size)
        if size > stream.known_bytes:
            await self._notify(stream, lambda stream: self._channel.drop_data(stream.inode, stream.known_bytes))
            await trio.sleep(GRACE_S)
            await self._notify(stream, lambda stream: self._tell(stream, size))
        self._streams.updated(stream)
        self._channel.drop_attributes(stream.inode)  # the next look-up finds bytes that were added meanwhile

    async def _notify(self, stream: IdleStream, notice: Callable[[IdleStream], None]) -> None:
        while self._holds(stream.inode):
            await trio.sleep(LOOK_AGAIN_S)
        await trio.to_thread.run_sync(notice, stream)

    def _tell(self, stream: IdleStream, size: int) -> None:
        stream.tell(size, lambda end: self._channel.extend(stream.inode, end, LAST_BYTE))


PUSHED_INODES = 65_521
"""Slots of the table of pushed inodes: a prime, because records begin at similar distances."""


class OpenBodies:
    """Puts small bodies into the kernel's cache at `open`, so that reading them costs no request.

    It does so only when no other handle is open on the inode. Otherwise the kernel may hold the page locked for a read
    that waits for us, while we would wait for the page. So opens and releases are counted.

    Thread safety: the request loop's thread only.
    """

    def __init__(self, push: Callable[[int, bytes], bool]) -> None:
        """`push(inode, body)` puts a body into the kernel's cache; False: the kernel refused it."""
        self._push = push
        self._inode_of: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._pushed = array("Q", bytes(8 * PUSHED_INODES))
        """At `inode % PUSHED_INODES`: the newest inode of those that share the slot. So a body may be pushed twice."""

    def opened(self, inode: int, handle: int, body: bytes | None) -> None:
        """Count an open before it is answered, and push `body`, the whole of a small file."""
        others = self._open.get(inode, 0)
        if body and not others:
            slot = inode % PUSHED_INODES
            if self._pushed[slot] != inode and self._push(inode, body):
                self._pushed[slot] = inode
        self._inode_of[handle] = inode
        self._open[inode] = others + 1

    def released(self, handle: int) -> None:
        inode = self._inode_of.pop(handle, None)
        if inode is None:
            return
        left = self._open[inode] - 1
        if left:
            self._open[inode] = left
        else:
            del self._open[inode]

    def forget(self, inode: int) -> None:
        """The kernel dropped the inode and its cached body."""
        slot = inode % PUSHED_INODES
        if self._pushed[slot] == inode:
            self._pushed[slot] = 0

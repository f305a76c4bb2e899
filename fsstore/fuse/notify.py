"""Notices to the kernel: what it has cached and is to ask for again, and what we put into its cache.

store (any thread) ──appended──► Invalidation ──► Channel.drop_attributes        sizes that grew
                   ──expired, queue_gone, topics_changed──► Expiry ──► the same  messages and topics that are gone
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
    """Listens to the store and drops what the kernel has cached. Construct it on trio's thread, inside `trio.run`.

    Sizes of streams are answered with a long timeout, and the kernel is notified at the first change after an answer.
    For our own writers that happens inside the write's handler, before the write returns; for everything else as soon
    as trio's thread gets to it. Attributes alone: having the kernel drop *data* inside a handler can wait for a page
    whose read waits for us.

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
        """Note that a queue grew; a handler of ours notifies the kernel itself, before it answers."""
        self._grown.append((topic, queue))
        if threading.get_ident() != self._trio_thread:
            self._on_trio(self.notify_kernel)

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
        log.warning("the log was rewritten or recreated: what was shown of it is stale, and it is read again")
        if threading.get_ident() == self._trio_thread:
            self._expiry.log_rewritten(physical_end)
            return
        with suppress(trio.RunFinishedError):
            trio.from_thread.run_sync(self._expiry.log_rewritten, physical_end, trio_token=self._token)

    def notify_kernel(self) -> None:
        """Drop the kernel's attributes of everything that grew since they were answered."""
        grown = self._grown
        while grown:
            for inode in self._core.streams.grown(*grown.popleft()):
                self._channel.drop_attributes(inode)

    def _on_trio(self, call: Callable[..., None], *arguments: object) -> None:
        with suppress(trio.RunFinishedError):  # the mount has ended: nobody is left to notify
            self._token.run_sync_soon(call, *arguments, idempotent=not arguments)


BATCH_INODES = 2_000
"""Inodes of one call of the thread; the core makes the next ones between two calls."""


class Expiry:
    """Has the kernel ask again about what is gone: messages that retention removed, topics that were deleted.

    A file of the commit log may hold a million messages, so it happens in a thread, a batch at a time. Bodies stay in
    the kernel's cache as long as somebody has them open; nobody new gets to them. FUSE_NOTIFY_INC_EPOCH is no shorter
    way: it has the kernel look up every name of the mount anew, and leaves the attributes of what is open. Thread
    safety: trio's thread only.
    """

    def __init__(self, core: Filesystem, channel: Channel) -> None:
        self._core = core
        self._channel = channel
        self._open = True
        self._send, self._receive = trio.open_memory_channel[Iterable[int]](float("inf"))

    def queue_expired(self, expired: Expired) -> None:
        """Messages are gone."""
        if self._open:
            self._send.send_nowait(self._core.expired(expired))

    def queue_gone(self, topic: str, queue: int) -> None:
        """A queue was deleted, and may have been recreated."""
        if self._open:
            self._send.send_nowait(self._core.queue_gone(topic, queue))

    def topics_changed(self) -> None:
        """Topics or queues may have gone."""
        if self._open:
            self._send.send_nowait(self._core.topics_changed())

    def log_rewritten(self, physical_end: int) -> None:
        """Another log came in place of the one that was shown: when this returns, nothing of that is answered."""
        if self._open:
            self._send.send_nowait(self._core.log_rewritten(physical_end))

    def close(self) -> None:
        """Let `run` end after the batch under way; the kernel is about to forget everything."""
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
"""Before a step begins."""

GRACE_S = 1
"""Between its two notices."""

LOOK_AGAIN_S = 0.01
"""How soon to look again whether we still have a request for the file in hand."""

LAST_BYTE = bytes([STREAM_SEPARATOR])


class SizeNotifier:
    """Notifies the kernel of the new sizes of streams whose bytes it caches, a step at a time, each of two notices.

        size noted ─► the page that holds the end known so far, dropped ──GRACE_S──► the new size, with its last byte

    Whoever reads that page from the first notice on gets it again, with all that there was when the size was noted.
    Whoever had it in hand before the notice has copied what it wanted from it long before the second one: between
    taking a page and looking at the file's size, a reader in the kernel does nothing that waits. So nobody sees the
    zeros that stood after the old end. The size comes with a byte (the newline that ends the last message), not as an
    attribute, because the kernel would throw away all that it caches of a file whose size changes in its attributes.

    Both notices may wait for a page whose reader waits for us. So they are written by threads while requests are
    answered, and the requests go on until the last notice is through. A daemon that is killed while a notice waits
    could not end, nor could the reader: so a notice is not begun while we have a request for that file in hand, nor
    right after its size was noted, when its readers come for the end.

    Thread safety: trio's thread only.
    """

    def __init__(self, streams: StreamTable, channel: Channel, holds: Callable[[int], bool]) -> None:
        """`holds(inode)`: whether a request for it was received and takes long to be answered."""
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
        """Notify the kernel until `close`, and then until the notice that is being written is through."""
        try:
            with self._running:
                await self._run()
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Have `run` end, and return when it has: requests are to be served until then."""
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
            await self._notify(stream, self._drop_end)
            await trio.sleep(GRACE_S)
            await self._notify(stream, lambda stream: self._tell(stream, size))
        self._streams.updated(stream)
        self._channel.drop_attributes(stream.inode)  # whoever asks now finds out what came meanwhile

    async def _notify(self, stream: IdleStream, notice: Callable[[IdleStream], None]) -> None:
        while self._holds(stream.inode):
            await trio.sleep(LOOK_AGAIN_S)
        await trio.to_thread.run_sync(notice, stream)

    def _drop_end(self, stream: IdleStream) -> None:
        self._channel.drop_data(stream.inode, stream.known_bytes)

    def _tell(self, stream: IdleStream, size: int) -> None:
        stream.tell(size, lambda end: self._channel.extend(stream.inode, end, LAST_BYTE))


PUSHED_INODES = 65_521
"""Slots in the memory of pushed inodes: a prime, because records begin at like distances."""


class OpenBodies:
    """Puts small bodies into the kernel's cache at `open`, so that reading them costs no request.

    Only when no other handle is open on the inode: otherwise the kernel may hold that page locked for a read that waits
    for us, while we would wait for the page. So opens and releases are counted.

    Thread safety: the request loop's thread only.
    """

    def __init__(self, push: Callable[[int, bytes], bool]) -> None:
        """`push(inode, body)` puts a body into the kernel's cache; False: it would not have it."""
        self._push = push
        self._inode_of: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._pushed = array("Q", bytes(8 * PUSHED_INODES))
        """At `inode % PUSHED_INODES` the newest one of those that share the slot: a body may be pushed twice."""

    def opened(self, inode: int, handle: int, body: bytes | None) -> None:
        """A handle is about to be answered; `body` is the whole of the file when it is small."""
        others = self._open.get(inode, 0)
        if body and not others:
            slot = inode % PUSHED_INODES
            if self._pushed[slot] != inode and self._push(inode, body):
                self._pushed[slot] = inode
        self._inode_of[handle] = inode
        self._open[inode] = others + 1

    def released(self, handle: int) -> None:
        """A handle is closed."""
        inode = self._inode_of.pop(handle, None)
        if inode is None:
            return
        left = self._open[inode] - 1
        if left:
            self._open[inode] = left
        else:
            del self._open[inode]

    def forget(self, inode: int) -> None:
        """The kernel dropped the inode, its cached body with it."""
        slot = inode % PUSHED_INODES
        if self._pushed[slot] == inode:
            self._pushed[slot] = 0

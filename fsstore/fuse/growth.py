"""The kernel learns how long the streams have become whose bytes it caches, a step at a time, each of two notices.

    size noted ─► the page that holds the end known so far, dropped ──GRACE_S──► the new size, with its last byte

Whoever reads that page from the first notice on gets it anew, with all that there was when the size was noted. Whoever
had it in hand before the notice has copied what it wanted from it long before the second one: between taking a page and
looking at the file's size, a reader in the kernel does nothing that waits. So nobody sees the zeros that stood behind
the old end. The size comes with a byte (the newline that ends the last message), not as an attribute, because the
kernel would throw away all that it caches of a file whose size changes in its attributes.

Both notices may wait for a page whose reader waits for us. So they are written by threads while requests are answered,
and the requests go on until the last notice is through. A daemon that is killed while a notice waits could not end, nor
could the reader: so a notice is not begun while we have a request for that file in hand, nor right after its size was
told, when its readers come for the end.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from fsstore.core import Filesystem
from fsstore.fuse.channel import Channel
from fsstore.tree.streams import RestingStream

CALM_S = 0.1
"""Before a step begins."""

GRACE_S = 1
"""Between its two notices."""

LOOK_AGAIN_S = 0.01
"""How soon to look again whether we still have a request for the file in hand."""

LAST_BYTE = b"\n"


class Growth:
    """Takes what fell behind from the core, and tells the kernel. Thread safety: trio's thread only."""

    def __init__(self, core: Filesystem, channel: Channel, holds: Callable[[int], bool]) -> None:
        """`holds(inode)`: whether a request for it was received and takes long to be answered."""
        self._core = core
        self._channel = channel
        self._holds = holds
        self._woken = trio.Event()
        core.on_streams_behind(self._wake)

    def _wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Tell the kernel until cancelled, and then until the notice that is being written is through."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._woken.wait()
                self._woken = trio.Event()
                for stream in self._core.streams_behind():
                    nursery.start_soon(self._step, stream)

    async def _step(self, stream: RestingStream) -> None:
        await trio.sleep(CALM_S)
        size = await trio.to_thread.run_sync(lambda: stream.size)
        if size > stream.told_bytes:
            await self._notify(stream, self._drop_end)
            await trio.sleep(GRACE_S)
            await self._notify(stream, lambda stream: self._tell(stream, size))
        self._core.stream_caught_up(stream)
        self._channel.drop_attributes(stream.inode)  # whoever asks now finds out what came meanwhile

    async def _notify(self, stream: RestingStream, notice: Callable[[RestingStream], None]) -> None:
        while self._holds(stream.inode):
            await trio.sleep(LOOK_AGAIN_S)
        await trio.to_thread.run_sync(notice, stream)

    def _drop_end(self, stream: RestingStream) -> None:
        self._channel.drop_data(stream.inode, stream.told_bytes)

    def _tell(self, stream: RestingStream, size: int) -> None:
        stream.tell(size, lambda end: self._channel.extend(stream.inode, end, LAST_BYTE))

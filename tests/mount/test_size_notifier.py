"""The steps of a notification of a size to the kernel: their order, the pauses between them, their end. No kernel."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import cast

import trio
import trio.testing

from fsstore.fuse.notify import SizeNotifier
from fsstore.fuse.session import Channel
from fsstore.tree.streams import IdleStream, StreamTable

INODE = 7


class FakeStream:
    """A stream of twenty bytes, of which the kernel knows ten."""

    inode = INODE
    known_bytes = 10
    size = 20

    def tell(self, size: int, told: Callable[[int], bool]) -> None:
        if told(size):
            self.known_bytes = size


class FakeStreams:
    """Has one stream that grew."""

    def __init__(self) -> None:
        self.stream = FakeStream()
        self.is_updated = trio.Event()
        self._outdated = [cast(IdleStream, self.stream)]

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "on_outdated":
            cast(Callable[[], None], value)()

    def take_outdated(self) -> list[IdleStream]:
        taken, self._outdated = self._outdated, []
        return taken

    def updated(self, _: IdleStream) -> None:
        self.is_updated.set()


class RecordingChannel:
    """Notes each notice and when it was given; dropping waits until `pages_are_free`."""

    def __init__(self) -> None:
        self.notices: list[tuple[str, int, int]] = []
        self.times_s: list[float] = []
        self.is_dropping = trio.Event()
        self.pages_are_free = threading.Event()
        self.pages_are_free.set()

    def drop_data(self, inode: int, position: int) -> None:
        self._note("drop", inode, position)
        trio.from_thread.run_sync(self.is_dropping.set)
        assert self.pages_are_free.wait(60)

    def extend(self, inode: int, size: int, last: bytes) -> bool:
        assert last == b"\n"
        self._note("extend", inode, size)
        return True

    def drop_attributes(self, inode: int) -> None:
        self.notices.append(("attributes", inode, 0))

    def _note(self, notice: str, inode: int, number: int) -> None:
        self.notices.append((notice, inode, number))
        self.times_s.append(trio.from_thread.run_sync(trio.current_time))


async def tell(
    streams: FakeStreams, channel: RecordingChannel, holds: Callable[[int], bool] = lambda inode: False
) -> None:
    """Notify the kernel until it knows the size."""
    sizes = SizeNotifier(cast(StreamTable, streams), cast(Channel, channel), holds)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sizes.run)
        await streams.is_updated.wait()
        nursery.cancel_scope.cancel()


def run(main: Callable[[], Awaitable[None]]) -> None:
    """In a time that passes only when all threads wait for it."""
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_old_end_is_dropped_a_grace_before_the_new_size_is_told() -> None:
    streams, channel = FakeStreams(), RecordingChannel()
    run(lambda: tell(streams, channel))
    assert channel.notices == [("drop", INODE, 10), ("extend", INODE, 20), ("attributes", INODE, 0)]
    assert channel.times_s[1] - channel.times_s[0] >= 1
    assert streams.stream.known_bytes == 20


def test_a_stream_that_did_not_grow_is_only_asked_for_again() -> None:
    streams, channel = FakeStreams(), RecordingChannel()
    streams.stream.size = 10
    run(lambda: tell(streams, channel))
    assert channel.notices == [("attributes", INODE, 0)]


def test_no_notice_is_begun_while_a_request_for_the_file_is_in_hand() -> None:
    streams, channel, seen = FakeStreams(), RecordingChannel(), []
    answers = [True, True, False, True, False]

    def holds(inode: int) -> bool:
        seen.append((inode, len(channel.notices)))
        return answers[len(seen) - 1]

    run(lambda: tell(streams, channel, holds))
    assert seen == [(INODE, 0)] * 3 + [(INODE, 1)] * 2


def test_closing_waits_for_a_notice_that_is_being_written() -> None:
    streams, channel, closed = FakeStreams(), RecordingChannel(), trio.Event()
    channel.pages_are_free.clear()

    async def close(sizes: SizeNotifier) -> None:
        await sizes.close()
        closed.set()

    async def main() -> None:
        sizes = SizeNotifier(cast(StreamTable, streams), cast(Channel, channel), lambda inode: False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sizes.run)
            await channel.is_dropping.wait()
            nursery.start_soon(close, sizes)
            await trio.testing.wait_all_tasks_blocked()
            assert not closed.is_set()
            channel.pages_are_free.set()

    trio.run(main)
    assert closed.is_set()


def test_the_end_waits_for_a_notice_that_is_being_written() -> None:
    streams, channel, ended = FakeStreams(), RecordingChannel(), trio.Event()
    channel.pages_are_free.clear()

    async def until_cancelled(scope: trio.CancelScope) -> None:
        with scope:
            await tell(streams, channel)
        ended.set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(until_cancelled, scope)
            await channel.is_dropping.wait()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert not ended.is_set()
            channel.pages_are_free.set()

    trio.run(main)
    assert ended.is_set()

"""The steps in which the kernel is told of growth: their order, what lies between them, and how they end. No kernel."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import cast

import trio
import trio.testing

from fsstore.core import Filesystem
from fsstore.fuse.notify import SizeNotifier
from fsstore.fuse.session import Channel
from fsstore.tree.streams import RestingStream

INODE = 7


class FakeStream:
    """A stream that the kernel was told ten bytes of, of twenty."""

    inode = INODE
    told_bytes = 10
    size = 20

    def tell(self, size: int, told: Callable[[int], bool]) -> None:
        if told(size):
            self.told_bytes = size


class FakeCore:
    """Has one stream that fell behind."""

    def __init__(self) -> None:
        self.stream = FakeStream()
        self.caught_up = trio.Event()
        self._behind = [cast(RestingStream, self.stream)]

    def on_streams_behind(self, listener: Callable[[], None]) -> None:
        listener()

    def streams_behind(self) -> list[RestingStream]:
        taken, self._behind = self._behind, []
        return taken

    def stream_caught_up(self, _: RestingStream) -> None:
        self.caught_up.set()


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


async def tell(core: FakeCore, channel: RecordingChannel, holds: Callable[[int], bool] = lambda inode: False) -> None:
    """Tell the kernel until the stream has caught up."""
    sizes = SizeNotifier(cast(Filesystem, core), cast(Channel, channel), holds)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sizes.run)
        await core.caught_up.wait()
        nursery.cancel_scope.cancel()


def run(main: Callable[[], Awaitable[None]]) -> None:
    """In a time that passes only when everybody waits for it."""
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_old_end_is_dropped_a_grace_before_the_new_size_is_told() -> None:
    core, channel = FakeCore(), RecordingChannel()
    run(lambda: tell(core, channel))
    assert channel.notices == [("drop", INODE, 10), ("extend", INODE, 20), ("attributes", INODE, 0)]
    assert channel.times_s[1] - channel.times_s[0] >= 1
    assert core.stream.told_bytes == 20


def test_a_stream_that_did_not_grow_is_only_asked_for_again() -> None:
    core, channel = FakeCore(), RecordingChannel()
    core.stream.size = 10
    run(lambda: tell(core, channel))
    assert channel.notices == [("attributes", INODE, 0)]


def test_no_notice_is_begun_while_a_request_for_the_file_is_in_hand() -> None:
    core, channel, seen = FakeCore(), RecordingChannel(), []
    answers = [True, True, False, True, False]

    def holds(inode: int) -> bool:
        seen.append((inode, len(channel.notices)))
        return answers[len(seen) - 1]

    run(lambda: tell(core, channel, holds))
    assert seen == [(INODE, 0)] * 3 + [(INODE, 1)] * 2


def test_the_end_waits_for_a_notice_that_is_being_written() -> None:
    core, channel, ended = FakeCore(), RecordingChannel(), trio.Event()
    channel.pages_are_free.clear()

    async def until_cancelled(scope: trio.CancelScope) -> None:
        with scope:
            await tell(core, channel)
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

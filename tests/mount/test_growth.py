"""The steps in which the kernel is told of growth: their order, what lies between them, and how they end. No kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import trio
import trio.testing

from fsstore.channel import Channel
from fsstore.core import Filesystem
from fsstore.growth import Growth
from fsstore.streams import RestingStream

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
        self._behind = [cast(RestingStream, self.stream)]
        self.caught_up = 0

    def on_streams_behind(self, listener: Callable[[], None]) -> None:
        listener()

    def streams_behind(self) -> list[RestingStream]:
        taken, self._behind = self._behind, []
        return taken

    def stream_caught_up(self, _: RestingStream) -> None:
        self.caught_up += 1


class RecordingChannel:
    """Notes each notice and when it was given; dropping waits until `pages_are_free`."""

    def __init__(self) -> None:
        self.notices: list[tuple[str, int, int]] = []
        self.times_s: list[float] = []
        self.pages_are_free = threading.Event()
        self.pages_are_free.set()

    def drop_data(self, inode: int, position: int) -> None:
        self._note("drop", inode, position)
        assert self.pages_are_free.wait(60)

    def extend(self, inode: int, size: int, last: bytes) -> bool:
        assert last == b"\n"
        self._note("extend", inode, size)
        return True

    def drop_attributes(self, inode: int) -> None:
        self._note("attributes", inode, 0)

    def _note(self, notice: str, inode: int, number: int) -> None:
        self.notices.append((notice, inode, number))
        now = trio.current_time if trio.lowlevel.in_trio_run() else lambda: trio.from_thread.run_sync(trio.current_time)
        self.times_s.append(now())


def growth(core: FakeCore, channel: RecordingChannel, holds: Callable[[int], bool] = lambda inode: False) -> Growth:
    return Growth(cast(Filesystem, core), cast(Channel, channel), holds)


async def run_until(true: Callable[[], bool], run: Growth) -> None:
    """Run until something is so, and then to the end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.run)
        while not true():
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


def test_the_old_end_is_dropped_a_grace_before_the_new_size_is_told() -> None:
    core, channel = FakeCore(), RecordingChannel()

    async def main() -> None:
        await run_until(lambda: core.caught_up == 1 and len(channel.notices) == 3, growth(core, channel))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert channel.notices == [("drop", INODE, 10), ("extend", INODE, 20), ("attributes", INODE, 0)]
    assert channel.times_s[1] - channel.times_s[0] >= 1
    assert core.stream.told_bytes == 20


def test_a_stream_that_did_not_grow_is_only_asked_for_again() -> None:
    core, channel = FakeCore(), RecordingChannel()
    core.stream.size = 10

    async def main() -> None:
        await run_until(lambda: len(channel.notices) == 1, growth(core, channel))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert channel.notices == [("attributes", INODE, 0)]


def test_no_notice_is_begun_while_a_request_for_the_file_is_in_hand() -> None:
    core, channel, looks = FakeCore(), RecordingChannel(), [0]

    def holds(inode: int) -> bool:
        assert inode == INODE
        looks[0] += 1
        assert channel.notices == []
        return looks[0] < 5

    async def main() -> None:
        await run_until(lambda: bool(channel.notices), growth(core, channel, holds))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert looks == [5]


def test_the_end_waits_for_a_notice_that_is_being_written() -> None:
    core, channel = FakeCore(), RecordingChannel()
    channel.pages_are_free.clear()
    ended_early = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_until, lambda: bool(channel.notices), growth(core, channel))
            await trio.testing.wait_all_tasks_blocked(0.05)
            ended_early.append(not nursery.child_tasks)
            channel.pages_are_free.set()

    trio.run(main)
    assert ended_early == [False]
    assert channel.notices == [("drop", INODE, 10)]

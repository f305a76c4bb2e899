"""The request loop over a scripted channel: its answers, and the effects of slow work. No kernel."""

from __future__ import annotations

import errno
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
import trio

from engine import WouldBlock, check_deadline
from fsstore.accounts import Accounts
from fsstore.fuse.protocol import Opcode, done, failed
from fsstore.fuse.rare import Relay
from fsstore.fuse.session import (
    BURST_REQUESTS,
    CROWD_REQUESTS,
    LINGER_MS,
    LOOKS,
    PAUSES,
    Channel,
    Handler,
    RequestLoop,
)
from fsstore.fuse.turns import CROWD, MOST_BYTES, MOST_REQUESTS, RequestQueue
from fsstore.handover.requests import RESENT
from fsstore.interface import FilesystemError, SlowWork, WorkKind
from fsstore.tree.memory_budget import MemoryBudget, Purpose
from fsstore.tree.metrics import SAMPLE_OF

OWNER = 10
KNOWN = 999
"""An opcode that the handler under test is for."""


class ScriptedChannel:
    """Brings requests one after the other; ends when so many replies were sent."""

    def __init__(self, requests: list[tuple[int, ...]], replies: int) -> None:
        """Each an opcode, its number, then its inode if that is not 1, and its user if that is not OWNER."""
        self._requests: list[bytes] = []
        for some in requests:
            self.add(some)
        self._left = replies
        self.replies: list[bytes] = []
        self.waits_ms: list[int] = []
        self.had_one = False

    def add(self, some: tuple[int, ...]) -> None:
        """Have one more come, as those of `requests`."""
        self._requests.append(struct.pack("=IIQQI12x", 40, *some, *(1, OWNER)[len(some) - 2 :]))

    @property
    def is_mounted(self) -> bool:
        return len(self.replies) < self._left

    def is_ready(self, wait_ms: int) -> bool:
        self.waits_ms.append(wait_ms)
        self.had_one = bool(self._requests)
        return self.had_one

    async def wait(self) -> None:
        await trio.sleep(0.001)

    def receive(self, into: int = 0) -> memoryview | None:
        return memoryview(self._requests.pop(0)) if self._requests else None

    def send(self, reply: bytes) -> None:
        self.replies.append(reply)


class ScriptedPoll:
    """A poll object of a descriptor that has a request once it was asked `until` times in a row; None: never."""

    def __init__(self) -> None:
        self.until: int | None = None
        self.looks = 0
        self.sleeps = 0
        self._asked = 0

    def register(self, *_: int) -> None:
        self._asked = 0

    def poll(self, wait_ms: int) -> list[tuple[int, int]]:
        self.looks += wait_ms == 0
        self.sleeps += wait_ms > 0
        self._asked += 1
        if self._asked != self.until and wait_ms == 0:
            return []
        self._asked = 0
        return [(0, 1)] if self.until else []


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Channel, ScriptedPoll]]:
    """A channel, and what it polls."""
    poll = ScriptedPoll()
    monkeypatch.setattr(select, "poll", lambda: poll)
    descriptor, other = os.pipe()
    yield Channel(descriptor, Path("/unmounted")), poll
    os.close(descriptor)
    os.close(other)


class NoRelay:
    """pyfuse3 is asked nothing here."""

    waiting = 0


def request(inode: int, user: int, size: int) -> bytes:
    return struct.pack("=IIQQI12x", 40 + size, KNOWN, 1, inode, user) + bytes(size)


def request_queue() -> tuple[RequestQueue, MemoryBudget]:
    memory = MemoryBudget()
    return RequestQueue(memory), memory


def serve(
    channel: ScriptedChannel,
    handle: Callable[[int], None],
    opcode: int = KNOWN,
    *,
    max_slow: int = 2,
    ending: Callable[[], None] = lambda: None,
) -> list[bytes]:
    """The replies to a channel's requests; `handle(unique)` is the handler."""

    def handler(unique: int, _: int, __: memoryview) -> None:
        handle(unique)

    loop = RequestLoop(
        cast(Channel, channel),
        {opcode: handler},
        cast(Relay, NoRelay()),
        max_slow,
        ending,
        Accounts(OWNER),
        MemoryBudget(),
    )
    trio.run(loop.run)
    return channel.replies


def loop_over(channel: ScriptedChannel, handle: Callable[[int], None]) -> RequestLoop:
    """A loop with two opcodes, `handle(unique)` for both."""

    def handler(unique: int, _: int, __: memoryview) -> None:
        handle(unique)

    handlers: dict[int, Handler] = {KNOWN: handler, KNOWN + 1: handler}
    return RequestLoop(
        cast(Channel, channel), handlers, cast(Relay, NoRelay()), 2, lambda: None, Accounts(OWNER), MemoryBudget()
    )


def test_the_loop_looks_for_a_request_before_it_sleeps_and_knows_whether_one_had_come(
    polled: tuple[Channel, ScriptedPoll],
) -> None:
    channel, poll = polled
    for until, had_one, sleeps in ((1, True, 0), (3, False, 0), (LOOKS, False, 0), (None, False, 1)):
        poll.until, poll.sleeps = until, 0
        assert channel.is_ready(LINGER_MS) is (until is not None)
        assert (channel.had_one, poll.sleeps) == (had_one, sleeps)


class PatientChannel(ScriptedChannel):
    """Brings each request a millisecond after it was waited for, as a program does that asks again and again."""

    def is_ready(self, wait_ms: int) -> bool:
        time.sleep(0.001)
        return True


def test_a_program_that_asks_every_few_milliseconds_leaves_trio_its_turns() -> None:
    channel = PatientChannel([(KNOWN, number) for number in range(60)], 60)
    answered = [0]

    async def other() -> None:
        while answered[-1] < 60:
            await trio.lowlevel.checkpoint()
            answered.append(len(channel.replies))

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop_over(channel, lambda unique: channel.send(done(unique))).run)
            nursery.start_soon(other)

    trio.run(run)
    assert max(later - earlier for earlier, later in pairwise(answered)) <= 5


def test_slow_work_is_done_in_threads_until_there_is_no_more_and_then_answered_once() -> None:
    channel = ScriptedChannel([(KNOWN, 7), (KNOWN, 8)], 2)
    done_work: list[int] = []

    def handle(unique: int) -> None:
        if unique == 7 and len(done_work) < 2:
            raise SlowWork(lambda: done_work.append(len(done_work)))
        channel.send(done(unique))

    assert sorted(serve(channel, handle)) == sorted([done(7), done(8)])
    assert done_work == [0, 1]


def test_a_call_that_would_block_the_loop_is_made_after_its_work_in_a_thread() -> None:
    channel = ScriptedChannel([(KNOWN, 7), (KNOWN, 8), (KNOWN, 9)], 3)
    is_answered, workers = threading.Event(), list[int]()

    def work() -> None:
        check_deadline()  # a thread has time
        workers.append(threading.get_ident())
        is_answered.wait(30)

    def handle(unique: int) -> None:
        with pytest.raises(WouldBlock):
            check_deadline()
        if unique == 7 and not workers:
            raise WouldBlock(work)
        if unique == 9:
            is_answered.set()
            raise WouldBlock  # a defect: a call without work, which no thread makes
        channel.send(done(unique))

    assert sorted(serve(channel, handle)) == sorted([done(7), done(8), failed(9, errno.EIO)])
    assert workers != [threading.get_ident()]
    check_deadline()


def test_requests_for_an_inode_wait_while_something_is_published_through_it() -> None:
    """In their order, each with a turn of its own if it wants one; those for other inodes go on."""
    channel = ScriptedChannel([(KNOWN, 1), (KNOWN, 2), (KNOWN, 3), (KNOWN, 4), (KNOWN, 5, 99)], 5)
    asked: list[int] = []
    other = threading.Event()

    def handle(unique: int) -> None:
        asked.append(unique)
        if unique in (1, 3) and asked.count(unique) == 1:
            raise SlowWork(lambda: other.wait(30), WorkKind.PUBLISHING)
        channel.send(done(unique))
        if unique == 5:
            other.set()

    assert serve(channel, handle) == [done(5), done(1), done(2), done(3), done(4)]
    assert asked == [1, 5, 1, 2, 3, 3, 4]


def test_handlers_know_whose_request_they_answer_also_after_slow_work() -> None:
    channel = ScriptedChannel([(KNOWN, 7, 1, 1001), (KNOWN, 8, 2, 1002)], 2)
    callers: list[tuple[int, int]] = []
    is_done = threading.Event()

    def handle(unique: int) -> None:
        callers.append((unique, loop._accounts.caller))
        if callers.count((7, 1001)) == 1 and unique == 7:
            raise SlowWork(lambda: is_done.wait(30))
        channel.send(done(unique))
        is_done.set()

    loop = loop_over(channel, handle)
    trio.run(loop.run)
    assert callers == [(7, 1001), (8, 1002), (7, 1001)]


@pytest.mark.parametrize(
    ("kinds", "noted"),
    [([WorkKind.ANY, WorkKind.WAITING], [(0,), (0, 7), (7,)]), ([WorkKind.PUBLISHING_LITTLE], [(0,), (7,)])],
)
def test_what_a_thread_works_on_is_noted_and_what_it_waits_for_is_not(
    kinds: list[WorkKind], noted: list[tuple[int, ...]]
) -> None:
    """By the loop's thread first, then by those for slow work. Short publications wait for the log's lock, too."""
    channel = ScriptedChannel([(KNOWN, 7)], 1)
    seen: set[tuple[int, ...]] = set()

    def note() -> None:
        seen.add((loop.working[0], *(one for one in loop.working[2:] if one)))

    def handle(unique: int) -> None:
        note()
        if kinds:
            raise SlowWork(note, kinds.pop(0))
        channel.send(done(unique))

    loop = loop_over(channel, handle)
    trio.run(loop.run)
    assert sorted(seen) == noted


def test_what_servers_died_of_is_answered_by_another_handler() -> None:
    channel = ScriptedChannel([(KNOWN, 7 | RESENT), (KNOWN, 8 | RESENT)], 2)
    asked: list[int] = []

    def handle(unique: int) -> None:
        asked.append(unique & ~RESENT)
        channel.send(done(unique))

    def refuse(unique: int, _: int, __: memoryview) -> None:
        raise FilesystemError(errno.EIO)

    loop = loop_over(channel, handle)
    loop.poisoned = {7: refuse}
    trio.run(loop.run)
    assert asked == [8]
    assert channel.replies[0] == failed(7 | RESENT, errno.EIO)


FIRST = range(101, 101 + CROWD_REQUESTS)
"""Requests that are answered as they come: only then is it known that many wait."""


def answers(requests: list[tuple[int, ...]]) -> list[int]:
    """The order in which requests of a crowd are answered, without FIRST, which come before them."""
    first: list[tuple[int, ...]] = [(KNOWN, unique, unique, 1001) for unique in FIRST]
    channel = ScriptedChannel([*first, *requests], len(first) + len(requests))
    replies = serve(channel, lambda unique: channel.send(done(unique & ~RESENT)))
    order = [struct.unpack_from("=IiQ", reply)[2] for reply in replies]
    assert order[: len(FIRST)] == list(FIRST)
    return order[len(FIRST) :]


def test_requests_that_wait_are_answered_by_user_in_turn_and_each_users_in_order() -> None:
    requests = [(KNOWN, unique, unique, 1001) for unique in range(1, 5)]
    others = [(KNOWN, 5, 5, 1002), (KNOWN, 6, 6, 1002), (KNOWN, 7, 7, 1003)]
    assert answers([*requests, *others]) == [1, 5, 7, 2, 6, 3, 4]


def test_what_another_server_left_unanswered_takes_turns_too() -> None:
    requests = [(KNOWN, unique | RESENT, unique, 1001) for unique in (1, 2, 3)]
    assert answers([*requests, (KNOWN, 4, 4, 1002), (KNOWN, 5, 5, 1001)]) == [1, 4, 2, 3, 5]


@pytest.mark.parametrize(
    ("user", "opcode", "pauses"),
    [(1002, KNOWN, True), (1001, KNOWN, False), (0, int(Opcode.RELEASE), False)],
    ids=["another user", "the same user", "the kernel"],
)
def test_the_answers_to_a_crowd_leave_processors_to_the_other_users(
    monkeypatch: pytest.MonkeyPatch, user: int, opcode: int, pauses: bool
) -> None:
    """With pauses while another user asks, too; RELEASE is sent in the name of root, which does not count as another
    user."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    count = 3 * CROWD
    crowd = [(KNOWN, unique, unique, 1001) for unique in range(1, count)]
    channel = ScriptedChannel([*crowd, (opcode, count, count, user)], count)
    loop = loop_over(channel, lambda unique: channel.send(done(unique)))
    loop._handlers[opcode] = loop._handlers[KNOWN]
    loop._user = 1001
    trio.run(loop.run)
    assert bool(slept) is pauses
    assert len(slept) <= count / BURST_REQUESTS * PAUSES


def test_another_users_request_that_comes_in_a_pause_is_answered_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the next answers to the crowd, and not at the pause's end."""
    count = 3 * CROWD
    first = [(KNOWN, 1, 1, 1002)]
    crowd = [(KNOWN, unique, unique, 1001) for unique in range(2, count)]
    channel = ScriptedChannel([*first, *crowd], count)
    answered_at_sleep: list[int] = []

    def sleep(_: float) -> None:
        if not answered_at_sleep:
            channel.add((KNOWN, count, count, 1002))
        answered_at_sleep.append(len(channel.replies))

    monkeypatch.setattr(time, "sleep", sleep)
    replies = serve(channel, lambda unique: channel.send(done(unique)))
    order = [struct.unpack_from("=IiQ", reply)[2] for reply in replies]
    assert order.index(count) == answered_at_sleep[0]
    assert answered_at_sleep[1] == answered_at_sleep[0] + 1


def test_what_waits_is_bounded_in_requests_and_bytes_and_counted() -> None:
    queue, memory = request_queue()
    assert not queue
    queue.add(request(1, 1001, 3 << 20))
    queue.add(request(2, 1001, 0))
    assert memory.used[Purpose.REQUESTS] == 3 << 20
    assert queue.holds(2)
    assert not queue.holds(3)
    while queue.has_room:
        queue.add(request(1, 1001, 1 << 20))
    assert memory.used[Purpose.REQUESTS] == MOST_BYTES
    while queue.take():
        pass
    assert queue.has_room
    assert memory.used[Purpose.REQUESTS] == 0
    for _ in range(MOST_REQUESTS):
        queue.add(request(1, 1001, 0))
    assert not queue.has_room


def test_slow_work_of_one_user_leaves_threads_to_others() -> None:
    channel = ScriptedChannel([(KNOWN, unique, unique, 1001) for unique in range(10, 50)], 41)
    has_come, begun = threading.Event(), list[int]()

    def handle(unique: int) -> None:
        if unique == 49 and 9 not in begun:
            channel.add((KNOWN, 9, 9, 1002))
        if unique not in begun:
            raise SlowWork(lambda: work(unique))
        channel.send(done(unique))

    def work(unique: int) -> None:
        begun.append(unique)
        if unique == 9:
            has_come.set()
        assert has_come.wait(30)  # those of 1001 keep their threads until 1002 has got one

    assert sorted(serve(channel, handle, max_slow=16)) == sorted(map(done, range(9, 50)))


def test_slow_work_that_waits_for_the_one_thread_of_its_kind_is_done_by_user_in_turn() -> None:
    requests = [(KNOWN, unique, unique, 1001) for unique in range(1, 6)]
    channel = ScriptedChannel([*requests, (KNOWN, 9, 9, 1002)], 6)
    over, begun = threading.Event(), list[int]()

    def handle(unique: int) -> None:
        if unique not in begun:
            if unique == 9:
                over.set()
            raise SlowWork(lambda: work(unique), WorkKind.PUBLISHING)
        channel.send(done(unique))

    def work(unique: int) -> None:
        begun.append(unique)
        assert over.wait(30)

    serve(channel, handle)
    assert begun.index(9) <= 2


def test_slow_work_that_fails_is_answered_with_its_errno() -> None:
    channel = ScriptedChannel([(KNOWN, 7)], 1)

    def fail() -> None:
        raise FilesystemError(errno.ENOSPC)

    def handle(_: int) -> None:
        raise SlowWork(fail)

    assert serve(channel, handle) == [struct.pack("=IiQ", 16, -errno.ENOSPC, 7)]


def test_a_request_that_fails_behind_its_slow_work_is_answered_and_the_next_one_too() -> None:
    channel = ScriptedChannel([(KNOWN, 7)], 2)
    asked: list[int] = []
    waits_ms: list[int] = []

    def handle(unique: int) -> None:
        asked.append(unique)
        if len(asked) == 1:
            channel.waits_ms.clear()
            raise SlowWork(lambda: None)
        if unique == 7:
            waits_ms.extend(channel.waits_ms)
            channel.add((KNOWN, 8))
            raise FilesystemError(errno.ESTALE)
        channel.send(done(unique))

    assert serve(channel, handle) == [struct.pack("=IiQ", 16, -errno.ESTALE, 7), done(8)]
    assert LINGER_MS not in waits_ms  # while the work was under way, the loop did not wait in place


def test_slow_work_is_hurried_when_no_more_requests_are_taken() -> None:
    channel = ScriptedChannel([(KNOWN, 7), (KNOWN, 8)], 1)
    ending = threading.Event()

    def give_up() -> None:
        assert ending.wait(30)
        raise FilesystemError(errno.ENOTCONN)

    def handle(unique: int) -> None:
        if unique == 7:
            raise SlowWork(give_up)
        channel.send(done(unique))

    assert serve(channel, handle, ending=ending.set) == [done(8), struct.pack("=IiQ", 16, -errno.ENOTCONN, 7)]


def test_a_failed_forget_hears_no_answer() -> None:
    channel = ScriptedChannel([(Opcode.FORGET, 7), (Opcode.FORGET, 8)], 1)

    def handle(unique: int) -> None:
        if unique == 7:
            raise FilesystemError(errno.ENOENT)
        channel.send(done(unique))

    assert serve(channel, handle, Opcode.FORGET) == [done(8)]


def test_requests_are_counted_and_one_in_so_many_is_timed() -> None:
    count = 2 * SAMPLE_OF + 1
    channel = ScriptedChannel([(KNOWN, unique) for unique in range(count)], count)
    loop = loop_over(channel, lambda unique: channel.send(done(unique)))
    trio.run(loop.run)
    assert loop.figures.counts == {KNOWN: count}
    assert sum(loop.figures.times[KNOWN].counts) == 3


def test_a_request_is_timed_until_its_slow_work_is_done_and_not_when_it_fails() -> None:
    channel = ScriptedChannel([(KNOWN, 7), (KNOWN + 1, 8)], 2)
    asked: list[int] = []

    def handle(unique: int) -> None:
        asked.append(unique)
        if unique == 7 and len(asked) == 1:
            raise SlowWork(lambda: time.sleep(0.05))
        if unique == 8:
            raise FilesystemError(errno.ENOENT)
        channel.send(done(unique))

    loop = loop_over(channel, handle)
    trio.run(loop.run)
    assert loop.figures.counts == {KNOWN: 1, KNOWN + 1: 1}
    assert loop.figures.times[KNOWN].seconds >= 0.05
    assert KNOWN + 1 not in loop.figures.times

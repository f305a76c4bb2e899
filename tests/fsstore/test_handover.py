"""The shared memory that a killed server leaves to the next one: each `again` is what that finds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from fsstore.handover import (
    HANDLES,
    KEPT_BYTES,
    QUICK_KILL_NS,
    RESENT,
    HandleEntry,
    HandleState,
    Handover,
    HandoverError,
    NodeText,
)

TEXT = NodeText("TopicDirectory", "orders", None, None)


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = Handover.create()
    yield descriptor
    os.close(descriptor)


def test_what_was_agreed_with_the_kernel_is_there(memory: int) -> None:
    first = Handover(memory)
    assert first.agreed is None
    first.agree(b"request", b"reply")
    first.take_over()
    first.computed_begin = 1 << 40
    again = Handover(memory)
    assert (again.agreed, again.restarts, again.computed_begin) == ((b"request", b"reply"), 1, 1 << 40)


def test_the_first_answer_is_known_until_the_death_is_noted(memory: int) -> None:
    first = Handover(memory)
    assert not Handover.has_answered(memory)
    first.answered(time.monotonic_ns())
    assert Handover.has_answered(memory)
    Handover.note_death(memory, signal.SIGSEGV)
    assert not Handover.has_answered(memory)


@pytest.mark.parametrize(
    ("signals", "are_refused"),
    [
        ((signal.SIGSEGV,), False),
        ((signal.SIGSEGV, signal.SIGBUS), True),
        ((signal.SIGKILL, signal.SIGKILL), False),
        ((signal.SIGKILL, signal.SIGKILL, signal.SIGKILL), True),
        ((signal.SIGKILL, signal.SIGSEGV, signal.SIGKILL, signal.SIGKILL), False),
        ((signal.SIGSEGV, signal.SIGTERM, signal.SIGSEGV), False),
    ],
)
def test_what_servers_die_of_is_refused(memory: int, signals: tuple[int, ...], are_refused: bool) -> None:
    for number in signals:
        server = Handover(memory)
        assert not server.poisoned()
        server.working[0], server.working[5] = 1234, 4321
        server.answered(time.monotonic_ns())
        Handover.note_death(memory, number)
    assert set(Handover(memory).poisoned()) == ({1234, 4321} if are_refused else set())


def test_only_what_is_worked_on_at_each_death_is_refused(memory: int) -> None:
    for unique in (10, 12, 10):
        server = Handover(memory)
        server.working[0], server.working[1] = unique, 99
        Handover.note_death(memory, signal.SIGABRT)
    assert set(Handover(memory).poisoned()) == {99}


def test_a_server_that_served_for_long_is_not_killed_by_a_request(memory: int) -> None:
    for _ in range(3):
        server = Handover(memory)
        server.working[0] = 10
        server.answered(time.monotonic_ns() - 2 * QUICK_KILL_NS)
        Handover.note_death(memory, signal.SIGKILL)
    assert not Handover(memory).poisoned()


def test_memory_of_another_version_is_refused(memory: int) -> None:
    os.pwrite(memory, b"\7", 8)
    with pytest.raises(HandoverError, match="another version"):
        Handover(memory)
    os.ftruncate(memory, 100)
    with pytest.raises(HandoverError, match="another size"):
        Handover(memory)


def test_numbers_and_their_look_ups_are_there_and_never_given_again(memory: int) -> None:
    first = Handover(memory)
    first.nodes.add(7, TEXT, is_named=True)
    first.nodes.add(8, NodeText("AppendFile", "\udcff", 3, ("append@tags=a", 5)), is_named=False)
    first.nodes.add(9, TEXT, is_named=True)
    first.nodes.count(7, 2)
    first.nodes.set_extra(7, 1234)
    first.nodes.drop(9)
    again = Handover(memory)
    assert list(again.nodes.all()) == [
        (7, TEXT, True, 2),
        (8, NodeText("AppendFile", "\udcff", 3, ("append@tags=a", 5)), False, 0),
    ]
    assert (again.nodes.extra(7), again.nodes.extra(8), again.nodes.next_number) == (1234, 0, 10)


def test_handles_are_there_and_never_given_again(memory: int) -> None:
    first = Handover(memory)
    first.handles.add(1, 10, os.O_WRONLY)
    first.handles.add(2, 11, 0, is_directory=True)
    first.handles.add(3, 12, 0)
    first.handles.drop(3)
    again = Handover(memory)
    found = [(1, HandleEntry(10, os.O_WRONLY, False)), (2, HandleEntry(11, 0, True))]
    assert (list(again.handles.all()), again.handles.last) == (found, 3)


def test_more_handles_than_there_is_room_for_are_not_noted(memory: int) -> None:
    first = Handover(memory)
    for handle in range(1, HANDLES + 3):
        first.handles.add(handle, 1, 0)
    first.handles.drop(5)
    first.handles.add(HANDLES + 9, 1, 0)
    assert len(list(Handover(memory).handles.all())) == HANDLES


def test_what_a_handle_holds_is_there_with_the_request_that_left_it(memory: int) -> None:
    first = Handover(memory)
    first.handles.add(1, 10, 0)
    for data in (b"be", b"begun" * 1_000, b"begun"):
        first.handles.save(1, HandleState(data, len(data), 77, 0, True, 9), 1234, 0)
    again = Handover(memory)
    assert again.handles.state(1) == HandleState(b"begun", 5, 77, 0, True, 9)
    assert (again.handles.outcome(1, 1234), again.handles.outcome(1, 1235)) == (0, None)
    again.handles.save(1, None, 1236, 22)
    assert again.handles.outcome(1, 1236) == 22
    again.handles.save(1, None, 1238, 0)
    assert (again.handles.state(1), again.handles.has_state(1)) == (None, False)


def test_what_is_too_long_is_known_to_be_lost(memory: int) -> None:
    first = Handover(memory)
    first.handles.add(1, 10, 0)
    for size in (KEPT_BYTES + 1, 1 << 22):
        first.handles.save(1, HandleState(b"", size), 2, 0)
    state = Handover(memory).handles.state(1)
    assert state is not None
    assert (state.is_lost, state.size) == (True, 1 << 22)


def test_freed_memory_is_used_again(memory: int) -> None:
    first = Handover(memory)
    first.handles.add(1, 10, 0)
    for number in range(20_000):
        first.handles.save(1, HandleState(b"x" * 50_000, 50_000), number, 0)
        first.nodes.add(number + 1, TEXT, is_named=False)
        first.nodes.drop(number + 1)
    assert os.fstat(memory).st_blocks * 512 < 1 << 20


def test_only_what_lies_before_the_recovered_end_is_stored(memory: int) -> None:
    first = Handover(memory)
    for unique, physical_offset in ((2, None), (4, 100), (6, 200)):
        slot = first.requests.begin(unique)
        first.requests.enter(slot)
        if physical_offset is not None:
            first.requests.placing(physical_offset)
    first.requests.begin(8)
    first.requests.done(8, 300)
    again = Handover(memory).requests
    again.settle(200)
    slots = {unique: again.begin(unique | RESENT) for unique in (2, 4, 6, 8)}
    assert [again.is_stored(slots[unique]) for unique in (2, 4, 6, 8)] == [False, True, False, False]
    assert [again.done_until(slots[unique]) for unique in (2, 8)] == [None, 300]
    assert again.was_begun(2)
    assert not again.was_begun(10)


def test_what_was_answered_is_dropped_with_the_first_request_that_is_not_sent_again(memory: int) -> None:
    first = Handover(memory).requests
    for unique in (2, 4):
        first.begin(unique)
    again = Handover(memory).requests
    again.begin(2 | RESENT)
    assert sorted(again.slots) == [2, 4]
    again.begin(6)
    assert sorted(again.slots) == [2, 6]
    assert sorted(Handover(memory).requests.slots) == [2, 6]
    again.free(2 | RESENT)
    assert sorted(Handover(memory).requests.slots) == [6]

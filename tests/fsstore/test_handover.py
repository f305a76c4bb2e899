"""The shared memory that a killed server leaves to the next one: each `again` is what that finds."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from fsstore.handover import records
from fsstore.handover.handles import KEPT_BYTES, HandleEntry, HandleState
from fsstore.handover.layout import RECORD_BYTES, REQUESTS, SEGMENT_BYTES, HandoverError
from fsstore.handover.memory import QUICK_KILL_NS, Handover, StoreNote
from fsstore.handover.nodes import NodeText
from fsstore.handover.records import LEAST_CHARGED_BYTES, SPARE_BYTES, Records
from fsstore.handover.requests import RESENT, UNCOUNTED_REQUESTS
from fsstore.handover.shares import QUANTUM_BYTES
from fsstore.tree.figures import handover_figures

HANDOVER = Path(records.__file__).parent
ANN, BOB = 1001, 1002
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
    with pytest.raises(HandoverError, match="another version"):
        Handover(memory)


def test_numbers_and_their_look_ups_are_there_and_never_given_again(memory: int) -> None:
    first = Handover(memory)
    first.nodes.add(7, TEXT, is_named=True, user=ANN)
    first.nodes.add(8, NodeText("AppendFile", "\udcff", 3, ("append@tags=a", 5)), is_named=False)
    first.nodes.add(9, TEXT, is_named=True)
    first.nodes.count(7, 2)
    first.nodes.set_extra(7, 1234)
    first.nodes.drop(9)
    again = Handover(memory)
    assert list(again.nodes.all()) == [
        (7, TEXT, True, 2, ANN),
        (8, NodeText("AppendFile", "\udcff", 3, ("append@tags=a", 5)), False, 0, None),
    ]
    assert (again.nodes.extra(7), again.nodes.extra(8), again.nodes.next_number) == (1234, 0, 10)


def test_handles_are_there_and_never_given_again(memory: int) -> None:
    first = Handover(memory)
    first.handles.add(1, 10, os.O_WRONLY, ANN)
    first.handles.add(2, 11, 0, BOB, is_directory=True)
    first.handles.add(3, 12, 0, ANN)
    first.handles.drop(3)
    again = Handover(memory)
    found = [(1, HandleEntry(10, os.O_WRONLY, False, ANN)), (2, HandleEntry(11, 0, True, BOB))]
    assert (list(again.handles.all()), again.handles.last) == (found, 3)


def test_what_a_handle_holds_is_there_with_the_request_that_left_it(memory: int) -> None:
    first = Handover(memory)
    first.handles.add(1, 10, 0, ANN)
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
    first.handles.add(1, 10, 0, ANN)
    for size in (KEPT_BYTES + 1, 1 << 22):
        first.handles.save(1, HandleState(b"", size), 2, 0)
    state = Handover(memory).handles.state(1)
    assert state is not None
    assert (state.is_lost, state.size) == (True, 1 << 22)


def test_what_is_dead_takes_little_memory(memory: int) -> None:
    first = Handover(memory)
    begun = 40
    for handle in range(1, begun + 1):
        first.handles.add(handle, 10, 0, ANN)
    for size in range(64, KEPT_BYTES, 640):
        for handle in range(1, begun + 1):
            first.handles.save(handle, HandleState(b"x" * size, size), size, 0)
            first.nodes.add(100 + handle, TEXT, is_named=False)
            first.nodes.drop(100 + handle)
    bound = 2 * begun * KEPT_BYTES + SPARE_BYTES + 2 * SEGMENT_BYTES
    assert first.records.live_bytes <= begun * (KEPT_BYTES + 2 * RECORD_BYTES)
    assert first.records.used_bytes <= bound
    assert os.fstat(memory).st_blocks * 512 <= bound + (1 << 20)
    for handle in range(1, begun + 1):
        assert Handover(memory).handles.state(handle) == HandleState(b"x" * size, size)
        first.handles.drop(handle)
    assert (first.records.live_bytes, first.records.used_bytes) == (0, SEGMENT_BYTES)


def test_a_record_may_be_longer_than_a_segment(memory: int) -> None:
    first = Handover(memory)
    text = bytes(range(256)) * (3 * SEGMENT_BYTES // 256) + b"end"
    for handle in (1, 2):
        first.handles.add(handle, 10, 0, ANN)
        first.handles.save(handle, HandleState(text, len(text)), 7, 0)
    first.handles.add(3, 10, 0, ANN)
    again = Handover(memory)
    assert [again.handles.state(handle) for handle in (1, 2, 3)] == [HandleState(text, len(text))] * 2 + [None]
    for handle in (1, 2):
        again.handles.drop(handle)
    assert again.records.used_bytes == 0


class Few:
    """Shares of so many bytes, or requests, a user."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken: dict[int, int] = {}

    def take(self, user: int, size: int) -> None:
        if self.taken.get(user, 0) + size > self.limit:
            raise OSError(errno.ENOBUFS, "no share")
        self.inherit(user, size)

    def give(self, user: int, size: int) -> None:
        self.inherit(user, -size)

    def inherit(self, user: int, size: int) -> None:
        self.taken[user] = self.taken.get(user, 0) + size


def test_what_finds_no_room_is_lost_by_its_own_handle_and_nothing_else_is(memory: int) -> None:
    first, shares = Handover(memory), Few(5 * QUANTUM_BYTES)
    first.ledger.share_out(shares)
    for handle, user in ((1, ANN), (2, ANN), (3, BOB)):
        first.handles.add(handle, 10, 0, user)
        first.handles.save(handle, HandleState(b"begun", 5), 7, 0)
    long = HandleState(b"x" * 3 * QUANTUM_BYTES, 3 * QUANTUM_BYTES, published_bytes=4)
    for handle in (1, 2, 3):
        first.handles.save(handle, long, 9, 0)
    assert first.handles.lost == {2}
    assert handover_figures(first).handles_lost == 1
    found = [Handover(memory).handles.state(handle) for handle in (1, 2, 3)]
    assert found == [long, HandleState(b"", len(long.data), published_bytes=4), long]
    first.handles.save(1, None, 11, 0)
    first.handles.save(2, HandleState(b"short", 5), 13, 0)
    assert Handover(memory).handles.state(2) == HandleState(b"short", 5)
    for handle in (1, 2, 3):
        first.handles.drop(handle)
    assert max(shares.taken.values()) <= 2 * QUANTUM_BYTES


def test_a_server_that_leaves_notes_also_what_is_beyond_a_share(memory: int) -> None:
    first = Handover(memory)
    first.ledger.share_out(Few(QUANTUM_BYTES))
    first.handles.add(1, 10, 0, ANN)
    state = HandleState(b"x" * (1 << 20), 1 << 20)
    first.handles.save(1, state, 7, 0)
    first.handles.save_whole(1, state)
    again, shares = Handover(memory), Few(0)
    again.ledger.share_out(shares)
    assert again.handles.state(1) == state
    assert shares.taken[ANN] > 1 << 20
    again.handles.save(1, None, 9, 0)
    assert shares.taken[ANN] <= 2 * QUANTUM_BYTES


def test_who_opens_more_than_a_share_is_refused_and_others_are_not(memory: int) -> None:
    first = Handover(memory)
    first.ledger.share_out(Few(4 * QUANTUM_BYTES))
    most = 4 * QUANTUM_BYTES // (LEAST_CHARGED_BYTES + RECORD_BYTES)
    for handle in range(1, most + 1):
        first.handles.add(handle, 10, 0, ANN)
    with pytest.raises(OSError, match="no share"):
        first.handles.add(most + 1, 10, 0, ANN)
    first.handles.add(most + 2, 10, 0, BOB)
    assert len(list(Handover(memory).handles.all())) == most + 1
    for handle in range(1, most + 1):
        first.handles.drop(handle)
    first.handles.add(most + 3, 10, 0, ANN)


class KilledError(Exception):
    """In place of a kill -9."""


@contextmanager
def killed_at(line: int) -> Iterator[None]:
    """Kill what runs there when so many lines of the shared memory's module have run."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if Path(frame.f_code.co_filename).parent != HANDOVER:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise KilledError
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def test_a_server_killed_anywhere_leaves_what_was_or_what_is_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SEGMENT_BYTES", 4096)
    monkeypatch.setattr(records, "SPARE_BYTES", 0)
    moved: list[int] = []
    compact = Records._compact

    def compact_and_count(records: Records) -> None:
        moved.append(1)
        compact(records)

    monkeypatch.setattr(Records, "_compact", compact_and_count)
    holding = [HandleState(b"%03d" % number * number, 3 * number) for number in range(200)]
    line, is_over = 0, False
    while not is_over:
        memory = Handover.create()
        server = Handover(memory)
        for handle in range(1, 121):
            server.handles.add(handle, 10, 0, ANN)
            server.handles.save(handle, holding[handle], handle, 0)
        kept = range(6, 121, 6)
        for handle in set(range(1, 121)) - set(kept):
            server.handles.drop(handle)
        expected = {handle: server.handles.state(handle) for handle in kept}
        number, moved[:] = 0, []
        try:
            with killed_at(line):
                for number in [*range(60, 120, 6)] * 3:
                    server.handles.save(number, holding[number + 1], number, 0)
                    expected[number] = holding[number + 1]
            is_over = True
        except KilledError:
            line += 3
        again = Handover(memory)
        found = {handle: again.handles.state(handle) for handle in kept}
        assert found.pop(number) in (expected.pop(number), holding[number + 1])
        assert found == expected
        os.close(memory)
    assert len(moved) > 1


def test_who_has_many_requests_unanswered_is_refused_and_others_are_not(memory: int) -> None:
    first, shares = Handover(memory).requests, Few(100)
    first.share_out(shares)
    for number in range(UNCOUNTED_REQUESTS + 100):
        first.begin(2 * number + 2, ANN)
    with pytest.raises(OSError, match="no share"):
        first.begin(10_000, ANN)
    slot = first.begin(10_002, BOB)
    first.enter(slot)
    first.placing(4711)
    first.begin(10_004)
    again, inherited = Handover(memory).requests, Few(0)
    again.share_out(inherited)
    again.settle(9999)
    assert again.is_stored(again.begin(10_002 | RESENT, BOB))
    assert inherited.taken == {ANN: 100, BOB: 1}
    for unique in list(again.slots):
        again.free(unique)
    assert set(inherited.taken.values()) == {0}


def test_no_request_is_begun_without_a_slot(memory: int) -> None:
    first = Handover(memory).requests
    for number in range(1, REQUESTS + 1):
        first.begin(2 * number)
    with pytest.raises(OSError, match="too many requests"):
        first.begin(1 << 20)
    assert len(first.slots) == len(Handover(memory).requests.slots)
    first.free(2)
    first.begin(2)


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
    again.arrived(2 | RESENT)
    assert sorted(again.slots) == [2, 4]
    again.arrived(6)
    again.begin(6)
    assert sorted(again.slots) == [2, 6]
    assert again.begin(2 | RESENT) == again.slots[2]
    assert sorted(Handover(memory).requests.slots) == [2, 6]
    again.free(2 | RESENT)
    assert sorted(Handover(memory).requests.slots) == [6]


def test_what_is_known_of_the_store_is_the_last_that_was_noted(memory: int) -> None:
    first = Handover(memory)
    assert first.store == StoreNote()
    notes = [StoreNote("name", 1 << 63), StoreNote("name", 7, "ünreadable\0" * 10_000, 3), StoreNote("other", 8)]
    for note in notes:
        first.store = note
        found = Handover(memory).store
        assert found == note._replace(failure=note.failure[: len(found.failure)])
        assert bool(found.failure) == bool(note.failure)
    first.agree(b"request", b"reply")
    first.answered(1)
    assert Handover(memory).store == notes[-1]

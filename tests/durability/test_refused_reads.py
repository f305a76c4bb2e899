"""A page that the disk refuses costs only its own data: each kind of file, each mode, while the store runs and
before."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import (
    FileSizes,
    Message,
    MessageStore,
    OpenMode,
    ReadError,
    RefusedReadError,
    Retention,
    WouldBlock,
    back_up,
    check_store,
    nonblocking,
    repair_store,
)
from engine.derived.remade import Made
from engine.errors import REFUSED_PAGE
from engine.open.quarantine import quarantine
from engine.open.remake import LogEntries
from tests.durability.faultfs import FaultyDisk, Rule, faulty_disk
from tests.engine.storetools import SMALL
from tests.mount.harness import mounted, refused_with

CONFIG = replace(
    SMALL, sizes=FileSizes(commit_log_bytes=1 << 20, consume_queue_entries=2048, index_slots=1000, index_entries=4000)
)
COUNT = 300
LOG, QUEUE, INDEX = "/store/commitlog/*", "/store/consumequeue/T/0/*", "/store/index/2*"
MODES = pytest.mark.parametrize("mode", list(OpenMode))
READ_LATE = pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.FOLLOW])
"""Modes whose opening leaves pages of a short queue unread."""


def body_of(number: int) -> bytes:
    return b"%06d" % number * 150


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    """A disk with a store of COUNT messages in T/0, closed."""
    (tmp_path / "backing").mkdir()
    with faulty_disk(tmp_path / "backing", tmp_path / "disk") as found:
        with MessageStore.open(found.root / "store", CONFIG, create=True) as store:
            for number in range(COUNT):
                store.put(Message("T", body_of(number), [f"key-{number}", "all"]), 0)
        yield found


def opened(disk: FaultyDisk, mode: OpenMode) -> MessageStore:
    return MessageStore.open(disk.root / "store", replace(CONFIG, mode=mode))


def in_page(store: MessageStore, position: int) -> set[int]:
    """The messages with a byte in the page of the log that `position` is in."""
    first = position // 4096 * 4096
    messages = [store.get("T", 0, number) for number in range(COUNT)]
    return {one.queue_offset for one in messages if one.physical_offset < first + 4096 and one.physical_end > first}


def unread(store: MessageStore, kind: type[ReadError] = RefusedReadError) -> set[int]:
    """The messages that can't be read one by one; the others are right."""
    found = set()
    for number in range(COUNT):
        try:
            assert bytes(store.get("T", 0, number).body) == body_of(number)
        except kind:
            found.add(number)
    return found


def required_everywhere(store: MessageStore, lost: set[int], log_files: int = 1) -> None:
    """All messages but `lost` are readable by number, in a run, as columns, by key and by text; the lost ones are
    errors."""
    kept = [number for number in range(COUNT) if number not in lost]
    assert unread(store) == lost
    assert [message.queue_offset for message in store.read("T", 0, 0)][: len(kept)] == kept
    columns = store.columns("T", 0, 0, COUNT)
    whole = np.flatnonzero(columns.headers["ok"]).tolist()
    assert [columns.bodies[row] for row in whole] == [body_of(number) for number in kept]
    blocks = [len(block) for block in store.blocks("T", 0, 0, COUNT)]
    assert (len(blocks), sum(blocks)) == (log_files, len(kept))
    assert [message.queue_offset for message in store.query("T", "all", limit=1000)] == kept[::-1]
    for number in (*lost, kept[0], kept[-1]):
        found = [message.queue_offset for message in store.query("T", f"key-{number}", limit=2)]
        assert found == ([] if number in lost else [number])
    held = [held.offsets.tolist() for held in store.queue("T", 0).holding(0, COUNT, [b"00"])]
    assert [number for some in held for number in some] == [number for number in kept if b"00" in body_of(number)]
    stream = store.stream("T", 0)
    assert bytes(stream.read(0, stream.size)) == b"".join(body_of(number) + b"\n" for number in kept)


@MODES
@pytest.mark.parametrize("position", [0, 98 * 1024, 250 * 1024])
def test_a_page_of_the_log_costs_the_messages_in_it(disk: FaultyDisk, mode: OpenMode, position: int) -> None:
    with opened(disk, mode) as store:
        lost = in_page(store, position)
        disk.inject(Rule("read", LOG, first=position, end=position + 1))
        required_everywhere(store, lost)
        with pytest.raises(RefusedReadError) as error:
            store.get("T", 0, min(lost))
        assert error.value.path.parent.name == "commitlog"
        assert error.value.position // 4096 == position // 4096
        assert str(error.value.path) in str(error.value)
        assert store.stats().damaged_places == len(lost)
        disk.heal()
        assert unread(store) == set()  # a disk that reads again is believed


@MODES
@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_page_of_a_queue_costs_no_message(disk: FaultyDisk, mode: OpenMode, page: int, is_late: bool) -> None:
    rule = Rule("read", QUEUE, first=page * 4096, end=page * 4096 + 1)
    if not is_late:
        disk.inject(rule)
    with opened(disk, mode) as store:
        if is_late:
            store.get("T", 0, 0)
            disk.inject(rule)
        before = store.stats().refused_pages
        required_everywhere(store, set())
        if is_late and mode is OpenMode.WRITE:  # others may have looked at the page before
            assert store.stats().refused_pages > before
        bounds = store.bounds("T", 0)
        assert (bounds.min_offset, bounds.max_offset) == (0, COUNT)
        disk.heal()
        required_everywhere(store, set())


@MODES
@pytest.mark.parametrize("is_late", [False, True])
def test_a_whole_queue_that_is_refused_is_made_again_from_the_log(
    disk: FaultyDisk, mode: OpenMode, is_late: bool
) -> None:
    if not is_late:
        disk.inject(Rule("read", QUEUE))
    with opened(disk, mode) as store:
        if is_late:
            store.get("T", 0, 0)
            disk.inject(Rule("read", QUEUE))
        required_everywhere(store, set())


def test_a_nonblocking_thread_waits_for_no_other_that_reads_entries_from_the_log(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, done, read = threading.Event(), threading.Event(), LogEntries.__call__

    def slow(*arguments: Any) -> Made:
        begun.set()
        done.wait(10)
        return read(*arguments)

    with opened(disk, OpenMode.WRITE) as store:
        store.get("T", 0, 0)
        disk.inject(Rule("read", QUEUE))
        monkeypatch.setattr(LogEntries, "__call__", slow)
        other = threading.Thread(target=store.get, args=("T", 0, 7))
        other.start()
        try:
            assert begun.wait(10)
            with pytest.raises(WouldBlock), nonblocking():
                store.get("T", 0, 8)
        finally:
            done.set()
            other.join()
        with nonblocking():  # they are read once
            assert bytes(store.get("T", 0, 8).body) == body_of(8)


@READ_LATE
def test_a_nonblocking_thread_reads_not_much_of_the_log(disk: FaultyDisk, mode: OpenMode) -> None:
    with opened(disk, mode) as store:
        store.bounds("T", 0)
        disk.inject(Rule("read", QUEUE))
        with pytest.raises(WouldBlock) as blocked, nonblocking():
            store.get("T", 0, 8)
        blocked.value.work()
        with nonblocking():
            assert unread(store) == set()


def test_the_work_of_a_call_that_would_block_says_why_it_fails(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(disk, OpenMode.WRITE) as store:
        store.bounds("T", 0)
        disk.inject(Rule("read", QUEUE))
        with pytest.raises(WouldBlock) as blocked, nonblocking():
            store.get("T", 0, 8)
        read = LogEntries.__call__
        monkeypatch.setattr(LogEntries, "__call__", lambda *part: os.read(-1, 1) and read(*part))
        with pytest.raises(OSError, match="Bad file descriptor"):
            blocked.value.work()
        with pytest.raises(RefusedReadError):
            store.get("T", 0, 8)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_follower_knows_of_the_newest_messages_that_are_refused(disk: FaultyDisk, is_late: bool) -> None:
    with opened(disk, OpenMode.READ_ONLY) as store:
        end = store.physical_end
        lost = in_page(store, end - 10)
    rule = Rule("read", LOG, first=end - 10, end=end)
    if not is_late:
        disk.inject(rule)
    with opened(disk, OpenMode.FOLLOW) as store:
        disk.inject(rule)
        store.refresh()
        assert store.physical_end == end
        required_everywhere(store, lost)
        disk.heal()
        store.refresh()
        assert unread(store) == set()


def test_a_follower_goes_on_behind_a_page_that_is_refused(disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.open.follower.STUCK_SECONDS", 0.0)
    with opened(disk, OpenMode.FOLLOW) as store:
        end = store.physical_end
        lost = in_page(store, end - 10)
        disk.inject(Rule("read", LOG, first=end - 10, end=end))
        with killed(disk, OpenMode.WRITE) as writer:
            put(writer, b"behind")
            store.refresh()
            assert store.physical_end == writer.physical_end
            assert bytes(store.get("T", 0, COUNT).body) == b"behind"
            assert unread(store) == lost


def test_a_follower_tries_each_page_of_a_queue_that_is_refused_a_few_times(disk: FaultyDisk) -> None:
    """A disk may take seconds to refuse one."""
    assert CONFIG.sizes is not None
    entries, pages = 32_768, 160
    config = replace(CONFIG, sizes=replace(CONFIG.sizes, consume_queue_entries=entries))
    with MessageStore.open(disk.root / "large", config, create=True) as store:
        for number in range(COUNT):
            store.put(Message("T", body_of(number)), 0)
    disk.inject(Rule("read", "/large/consumequeue/*"))
    before = disk.struck
    with MessageStore.open(disk.root / "large", replace(config, mode=OpenMode.FOLLOW)) as store:
        assert store.get("T", 0, COUNT - 1).queue_offset == COUNT - 1
    assert pages <= disk.struck - before < 20 * pages


@pytest.mark.parametrize("page", [0, 1])
def test_a_follower_sees_what_is_put_into_a_queue_that_it_can_not_read(disk: FaultyDisk, page: int) -> None:
    refused = Rule("read", QUEUE, first=page * 4096, end=(page + 1) * 4096)
    with opened(disk, OpenMode.WRITE) as writer:
        writer.get("T", 0, 0)
        disk.inject(refused)
        with opened(disk, OpenMode.FOLLOW) as store:
            assert unread(store) == set()
            disk.heal()
            for number in range(COUNT, COUNT + 20):
                put(writer, body_of(number))
            disk.inject(refused)
            store.refresh()
            assert store.bounds("T", 0).max_offset == COUNT + 20
            assert bytes(store.get("T", 0, COUNT + 19).body) == body_of(COUNT + 19)


@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.FOLLOW])
@pytest.mark.parametrize("page", [0, 1])
def test_neighbours_of_entries_that_are_refused_are_read_in_each_way(
    disk: FaultyDisk, mode: OpenMode, page: int
) -> None:
    with opened(disk, mode) as store:
        end = store.bounds("T", 0).max_offset
        log_page = (8 + page * 50) * 4096  # the log does not give this page either
        disk.inject(
            Rule("read", QUEUE, first=page * 4096, end=page * 4096 + 1),
            Rule("read", LOG, first=log_page, end=log_page + 1),
        )
        lost = unread(store)
        assert lost
        kept = [number for number in range(end) if number not in lost]
        assert [int(entry["size"]) == 0 for entry in store.entries("T", 0, 0, end)] == [
            number in lost for number in range(end)
        ]
        assert np.flatnonzero(store.headers("T", 0, 0, end)["ok"]).tolist() == kept
        assert np.flatnonzero(store.record_sizes("T", 0, 0, end)[0]).tolist() == kept
        blocks = store.blocks("T", 0, 0, end)
        assert [number for block in blocks for number in block.queue_offset.tolist()] == kept
        assert sum(block.damaged for block in blocks) == len(lost)
        passed: list[int] = []
        assert [message.queue_offset for message in store.read("T", 0, 0, damaged=passed.append)] == kept
        assert passed == sorted(lost)
        passed.clear()
        held = [held.offsets.tolist() for held in store.holding("T", 0, 0, end, [], damaged=passed.append)]
        assert [number for some in held for number in some] == kept
        assert passed == sorted(lost)


def test_figures_are_told_over_a_queue_that_is_refused(disk: FaultyDisk) -> None:
    disk.inject(Rule("read", QUEUE, end=1))
    with opened(disk, OpenMode.READ_ONLY) as store:
        assert store.stats().topics == 1


@MODES
def test_a_page_of_the_index_costs_queries_alone(disk: FaultyDisk, mode: OpenMode) -> None:
    with opened(disk, mode) as store:
        assert list(store.query("T", "key-7"))
        before = store.stats().refused_pages
        disk.inject(Rule("read", INDEX, end=1))
        with pytest.raises(RefusedReadError, match="index"):
            store.query("T", "key-8")
        assert store.stats().refused_pages > before
        assert unread(store) == set()
        disk.heal()
        assert [message.queue_offset for message in store.query("T", "key-8")] == [8]


def put(store: MessageStore, body: bytes) -> None:
    store.put(Message("T", body), 0)


def put_batch(store: MessageStore, body: bytes) -> None:
    store.put_batch([Message("T", body), Message("T", body)], 0)


@pytest.mark.parametrize("pattern", [LOG, QUEUE])
@pytest.mark.parametrize("put", [put, put_batch])
def test_nothing_is_acknowledged_on_a_page_that_is_refused(
    disk: FaultyDisk, pattern: str, put: Callable[[MessageStore, bytes], None]
) -> None:
    with opened(disk, OpenMode.WRITE) as store:
        assert store.bounds("T", 0).max_offset == COUNT
        end = store.physical_end if pattern == LOG else COUNT * 20
        disk.inject(Rule("read", pattern, first=end // 4096 * 4096, end=end + 1))
        for _ in range(3):
            with pytest.raises(RefusedReadError):
                put(store, b"x" * 100)
        assert store.bounds("T", 0).max_offset == COUNT
        disk.heal()
        put(store, b"y" * 100)
        assert bytes(store.get("T", 0, COUNT).body) == b"y" * 100
        with suppress(RefusedReadError):
            store.close()
    with opened(disk, OpenMode.READ_ONLY) as store:
        assert unread(store) == set()
        assert bytes(store.get("T", 0, COUNT).body) == b"y" * 100


def killed(disk: FaultyDisk, mode: OpenMode) -> MessageStore:
    """The store, opened after its process died without a word."""
    (disk.root / "store" / "abort").touch()
    for mark in ("recovery-point", "coverage"):
        (disk.root / "store" / "fsstore" / mark).unlink(missing_ok=True)
    return opened(disk, mode)


@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.READ_ONLY])
def test_the_log_ends_before_no_page_that_is_refused(disk: FaultyDisk, mode: OpenMode) -> None:
    with opened(disk, OpenMode.READ_ONLY) as store:
        end, lost = store.physical_end, in_page(store, store.physical_end - 10)
    shutil.rmtree(disk.root / "store" / "consumequeue")  # which would tell
    shutil.rmtree(disk.root / "store" / "fsstore")
    (disk.root / "store" / "abort").touch()
    disk.inject(Rule("read", LOG, first=end - 10, end=end))
    with opened(disk, mode) as store:
        assert store.physical_end >= end
        assert store.bounds("T", 0).max_offset == COUNT - len(lost)
        if mode is OpenMode.WRITE:
            store.put(Message("other", b"behind"), 0)
    disk.heal()
    shutil.rmtree(disk.root / "store" / "consumequeue", ignore_errors=True)
    (disk.root / "store" / "abort").touch()
    with opened(disk, OpenMode.READ_ONLY) as store:
        assert {number for number in range(COUNT) if bytes(store.get("T", 0, number).body) != body_of(number)} == set()


def crashed(disk: FaultyDisk) -> Path:
    """A copy of the open store: as its process leaves it that dies. The first messages are behind a recovery point."""
    with opened(disk, OpenMode.WRITE) as store:
        store.flush()
        for number in range(COUNT, 2 * COUNT):
            store.put(Message("T", body_of(number), [f"key-{number}"]), 0)
        shutil.copytree(disk.root / "store", disk.root / "crashed", symlinks=True)
    shutil.rmtree(disk.root / "store")
    (disk.root / "crashed").rename(disk.root / "store")
    return disk.root / "store"


def required_again(store: MessageStore, puts: int) -> None:
    """All messages have their numbers and their keys."""
    assert store.bounds("T", 0).max_offset == 2 * COUNT + puts
    assert [bytes(message.body) for message in store.read("T", 0, 0)] == [
        *map(body_of, range(2 * COUNT)),
        *[b"beside"] * puts,
    ]
    for number in range(2 * COUNT):
        assert [message.queue_offset for message in store.query("T", f"key-{number}")] == [number]


@pytest.mark.parametrize("position", [98 * 1024, 400 * 1024, -10])
@pytest.mark.parametrize("later", [OpenMode.WRITE, OpenMode.READ_ONLY])
def test_a_page_that_recovery_could_not_read_costs_nothing_when_the_disk_is_well(
    disk: FaultyDisk, later: OpenMode, position: int
) -> None:
    path = crashed(disk)
    with opened(disk, OpenMode.READ_ONLY) as store:
        first = position if position > 0 else store.physical_end + position
    disk.inject(Rule("read", LOG, first=first, end=first + 1))
    for puts in (1, 2):  # the second opening meets marks of the first
        with opened(disk, OpenMode.WRITE) as store:
            store.put(Message("T", b"beside"), 0)
            assert store.bounds("T", 0).max_offset == 2 * COUNT + puts
            with pytest.raises(RefusedReadError):
                [store.get("T", 0, number) for number in range(2 * COUNT)]
    disk.heal()
    with opened(disk, later) as store:
        required_again(store, 2)
    with opened(disk, OpenMode.WRITE) as store:
        required_again(store, 2)
    assert list(check_store(path, config=CONFIG)) == []


@pytest.mark.parametrize("position", [400 * 1024, -10])
@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.READ_ONLY])
def test_a_page_that_recovery_could_not_read_is_read_as_soon_as_the_disk_is_well(
    disk: FaultyDisk, mode: OpenMode, position: int
) -> None:
    crashed(disk)
    with opened(disk, OpenMode.READ_ONLY) as store:
        first = position if position > 0 else store.physical_end + position
    disk.inject(Rule("read", LOG, first=first, end=first + 1))
    with opened(disk, mode) as store:
        disk.heal()
        assert [bytes(store.get("T", 0, number).body) for number in range(2 * COUNT)] == [
            *map(body_of, range(2 * COUNT))
        ]


@pytest.mark.parametrize("puts", [0, 1])
def test_a_page_after_the_end_that_is_refused_is_no_damage_when_the_disk_is_well(disk: FaultyDisk, puts: int) -> None:
    path = crashed(disk)
    with opened(disk, OpenMode.READ_ONLY) as store:
        first = store.physical_end // 4096 * 4096 + 4096
    disk.inject(Rule("read", LOG, first=first, end=first + 1))
    with opened(disk, OpenMode.WRITE) as store:
        for _ in range(puts):
            store.put(Message("T", b"beside"), 0)
    disk.heal()
    with opened(disk, OpenMode.WRITE) as store:
        required_again(store, puts)
        assert store.recovery.damaged == ()
    assert list(check_store(path, config=CONFIG)) == []


@MODES
@pytest.mark.parametrize("page", [0, 1])
def test_a_queue_that_is_refused_takes_no_other_with_it(disk: FaultyDisk, mode: OpenMode, page: int) -> None:
    with opened(disk, OpenMode.WRITE) as store:
        store.put(Message("other", b"there"), 0)
    disk.inject(Rule("read", QUEUE, first=page * 4096, end=page * 4096 + 1))
    with opened(disk, mode) as store:
        assert bytes(store.get("other", 0, 0).body) == b"there"
        assert unread(store) == set()
        assert store.stats().topics == 2
        assert store.stats().messages == COUNT + 1
        disk.heal()
        required_everywhere(store, set())
        assert store.stats().messages == COUNT + 1


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.READ_ONLY])
def test_an_index_that_is_refused_while_a_store_recovers_is_made_again(
    disk: FaultyDisk, mode: OpenMode, page: int
) -> None:
    path, position = crashed(disk), page * 4096  # slots are in the header's page, entries in the other one
    disk.inject(Rule("read", INDEX, first=position, end=position + 1))
    found = [problem for problem in check_store(path, config=CONFIG) if problem.path.startswith("index/")]
    assert [(one.position // 4096 * 4096, one.text) for one in found][:1] == [(position, REFUSED_PAGE)]
    with opened(disk, mode) as store:
        required_again(store, 0)
    disk.heal()
    with opened(disk, OpenMode.WRITE) as store:
        required_again(store, 0)
    assert list(check_store(path, config=CONFIG)) == []


@pytest.mark.parametrize("pattern", [QUEUE, INDEX])
@pytest.mark.parametrize("page", [0, 1])
def test_repair_moves_away_what_it_makes_again(disk: FaultyDisk, pattern: str, page: int) -> None:
    path = disk.root / "store"
    disk.inject(Rule("read", pattern, first=page * 4096, end=page * 4096 + 1))
    said = list(repair_store(path, config=CONFIG))
    assert any("fsstore/damaged/" in sentence for sentence in said)
    assert len([one for one in (path / "fsstore/damaged").rglob("*") if one.is_file()]) == 1
    assert list(repair_store(path, config=CONFIG)) == []
    with opened(disk, OpenMode.READ_ONLY) as store:
        required_everywhere(store, set())


@pytest.mark.parametrize("position", [0, 98 * 1024, 292 * 1024])
def test_repair_and_backup_go_round_a_page_of_the_log(disk: FaultyDisk, tmp_path: Path, position: int) -> None:
    path = disk.root / "store"
    with opened(disk, OpenMode.READ_ONLY) as store:
        lost = in_page(store, position)
        end = store.physical_end
    disk.inject(Rule("read", LOG, first=position, end=position + 1))
    found = [problem for problem in check_store(path, config=CONFIG) if problem.path.startswith("commitlog")]
    assert len(found) == 1
    first, damaged_bytes = found[0].position, 6000
    assert first <= position < first + damaged_bytes
    said = list(repair_store(path, config=CONFIG))
    assert any("the disk refuses to read them" in sentence for sentence in said)
    done = back_up(path, tmp_path / "copy", config=CONFIG)
    assert (done.refused, done.missing > 0) == (("commitlog/" + "0" * 20,), position + 4096 >= end)
    assert done.damaged == (not done.missing)
    with MessageStore.open(tmp_path / "copy", replace(CONFIG, mode=OpenMode.READ_ONLY)) as copy:
        assert unread(copy, ReadError) == lost
    with opened(disk, OpenMode.READ_ONLY) as store:
        assert unread(store, ReadError) == lost
    disk.heal()
    list(repair_store(path, config=CONFIG))
    with opened(disk, OpenMode.READ_ONLY) as store:
        assert unread(store) == set()  # no unreadable page was overwritten
    if done.missing:
        assert back_up(path, tmp_path / "copy", config=CONFIG).refused == ()
        with MessageStore.open(tmp_path / "copy", replace(CONFIG, mode=OpenMode.READ_ONLY)) as copy:
            assert unread(copy, ReadError) == set()


def test_a_backup_names_a_queue_whose_numbers_alone_are_known(disk: FaultyDisk, tmp_path: Path) -> None:
    keep = Retention(max_bytes=2 << 20, clean_forcibly=False, clean_interval_ms=3_600_000, delete_pause_ms=0)
    with MessageStore.open(disk.root / "expired", replace(CONFIG, retention=keep), create=True) as store:
        store.put(Message("gone", b"old"), 0)
        store.put_batch([Message("T", b"x" * 1000)] * 900, 0)
        store.put_batch([Message("T", b"x" * 1000)] * 900, 0)
        store.put_batch([Message("T", b"x" * 1000)] * 900, 0)
        while store.clean():
            pass
        assert store.stats().min_physical_offset > 0
    queue = "/expired/consumequeue/gone/0/*"
    disk.inject(Rule("read", queue))
    assert back_up(disk.root / "expired", tmp_path / "copy", config=CONFIG).left_out == ("consumequeue/gone/0",)


@pytest.mark.parametrize("page", [0, 1])
def test_a_queue_that_is_refused_is_made_again(disk: FaultyDisk, page: int) -> None:
    path = disk.root / "store"
    disk.inject(Rule("read", QUEUE, first=page * 4096, end=page * 4096 + 1))
    found = [problem for problem in check_store(path, config=CONFIG) if "refuses" in problem.text]
    assert [(one.path.split("/")[:3], one.position) for one in found] == [(["consumequeue", "T", "0"], page * 4096)]
    with killed(disk, OpenMode.READ_ONLY) as store:
        required_everywhere(store, set())
    with killed(disk, OpenMode.WRITE) as store:
        required_everywhere(store, set())
        assert "to make it again from the log" in " ".join(store.recovery.notes)
    assert list((path / "fsstore" / "damaged" / "consumequeue" / "T" / "0").iterdir())
    assert list(check_store(path, config=CONFIG)) == []


def test_an_opening_names_each_file_of_its_own_that_it_could_not_read(disk: FaultyDisk) -> None:
    with opened(disk, OpenMode.WRITE):
        pass
    disk.inject(Rule("read", "/store/fsstore/*.json"))
    with opened(disk, OpenMode.WRITE) as store:
        required_everywhere(store, set())
        unread = [note for note in store.recovery.notes if "can't be read, and is written anew" in note]
        assert [note.split()[0] for note in unread] == ["fsstore/clean.json", "fsstore/coverage.json"]
    with opened(disk, OpenMode.WRITE) as store:
        assert not store.recovery.notes


@MODES
def test_an_opening_says_that_deleted_topics_may_be_there_again(disk: FaultyDisk, mode: OpenMode) -> None:
    with opened(disk, OpenMode.WRITE) as store:
        store.put(Message("deleted", b"gone"), 0)
        store.delete_topic("deleted")
    disk.inject(Rule("read", "/store/fsstore/deleted.json"))
    with opened(disk, mode) as store:
        said = [note for note in store.recovery.notes if note.startswith("fsstore/deleted.json can't be read")]
        assert said == [
            "fsstore/deleted.json can't be read: topics that were deleted may be there again: Input/output error"
        ]
        required_everywhere(store, set())


def test_a_file_that_is_refused_again_and_again_ends_the_opening(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.inject(Rule("read", QUEUE, end=1))

    def moved(*arguments: Any) -> Path:
        where = quarantine(*arguments)
        disk.inject(Rule("read", QUEUE, end=1))  # the new file, too
        return where

    monkeypatch.setattr("engine.open.quarantine.quarantine", moved)
    with pytest.raises(RefusedReadError, match="consumequeue"), killed(disk, OpenMode.WRITE):
        pass
    disk.heal()
    with opened(disk, OpenMode.WRITE) as store:
        required_everywhere(store, set())


@MODES
def test_a_mount_over_a_queue_that_is_refused_serves_all(disk: FaultyDisk, tmp_path: Path, mode: OpenMode) -> None:
    with opened(disk, OpenMode.WRITE) as store:
        store.put(Message("other", b"there"), 0)
    disk.inject(Rule("read", QUEUE, first=4096, end=4097))  # where the queue ends
    with mounted(tmp_path, store=disk.root / "store", config={"mode": mode.name}) as mount:
        assert (mount.root / "other" / "0" / f"{0:020d}").read_bytes() == b"there"
        assert (mount.root / "T" / "0" / f"{COUNT - 1:020d}").read_bytes() == body_of(COUNT - 1)
        assert mount.status()["topics"]["T"]["queues"]["0"] == {"min_offset": 0, "max_offset": COUNT}


@READ_LATE
def test_a_mount_serves_a_queue_that_is_refused_later(disk: FaultyDisk, tmp_path: Path, mode: OpenMode) -> None:
    """A thread reads the entries from the log; then the request is handled again."""
    with mounted(tmp_path, store=disk.root / "store", config={"mode": mode.name}) as mount:
        queue = mount.root / "T" / "0"
        assert queue.stat().st_size == 0
        disk.inject(Rule("read", QUEUE))
        for number in (8, 7, COUNT - 1):
            assert (queue / f"{number:020d}").read_bytes() == body_of(number)
        assert sum(entry.stat().st_size for entry in os.scandir(queue)) == COUNT * len(body_of(0))
        assert (mount.root / "T" / "0.log").read_bytes().count(b"\n") == COUNT


@MODES
def test_a_mount_lives_on_and_says_why(disk: FaultyDisk, tmp_path: Path, mode: OpenMode) -> None:
    with opened(disk, OpenMode.READ_ONLY) as store:
        lost = in_page(store, 98 * 1024)
    with mounted(tmp_path, store=disk.root / "store", config={"mode": mode.name}) as mount:
        disk.inject(Rule("read", LOG, first=98 * 1024, end=98 * 1024 + 1))
        queue = mount.root / "T" / "0"
        for number in range(min(lost) - 2, max(lost) + 3):
            if number in lost:
                assert refused_with((queue / f"{number:020d}").read_bytes) == errno.EIO
            else:
                assert (queue / f"{number:020d}").read_bytes() == body_of(number)
        assert (mount.root / "T" / "0.log").read_bytes().count(b"\n") == COUNT - len(lost)
        assert len(list(os.scandir(queue))) >= COUNT
        assert mount.daemon.poll() is None
        assert mount.status()["stats"]["damaged_places"] == len(lost)
        disk.heal()
        assert (queue / f"{min(lost):020d}").read_bytes() == body_of(min(lost))


TEXT_LINES = 2_500
"""More than two blocks of an offset index."""


def text_of(store: MessageStore, of_topic: bool) -> bytes:
    stream = store.topic_stream("S") if of_topic else store.stream("S", 0)
    return bytes(stream.read(0, stream.size))


@pytest.mark.parametrize("of_topic", [False, True], ids=["queue", "topic"])
def test_a_text_that_was_summed_while_a_page_was_refused_is_whole_once_it_is_read_again(
    disk: FaultyDisk, of_topic: bool
) -> None:
    lines = [b"%06d" % number for number in range(TEXT_LINES)]
    with opened(disk, OpenMode.WRITE) as store:
        for line in lines:
            store.put(Message("S", line), 0)
        middle = int(store.entries("S", 0, 1_500, 1)["physical_offset"][0])
    shutil.rmtree(disk.root / "store" / "fsstore" / "sums", ignore_errors=True)
    whole = b"".join(line + b"\n" for line in lines)
    with opened(disk, OpenMode.WRITE) as store:
        disk.inject(Rule("read", LOG, first=middle, end=middle + 1))
        cut = text_of(store, of_topic)
        assert set(cut.split()) < set(lines)
        assert len(set(lines) - set(cut.split())) < 300
        stream = store.topic_stream("S") if of_topic else store.stream("S", 0)
        disk.heal()
        assert bytes(stream.read(0, stream.size)) == cut
    with opened(disk, OpenMode.WRITE) as store:
        assert text_of(store, of_topic) == whole, "after the next opening"
        disk.inject(Rule("read", LOG, first=middle, end=middle + 1))
    shutil.rmtree(disk.root / "store" / "fsstore" / "sums", ignore_errors=True)
    with opened(disk, OpenMode.READ_ONLY) as store:
        assert text_of(store, of_topic) == cut
        disk.heal()
        store.sum_streams(60)
        assert text_of(store, of_topic) == whole, "at the next look"

"""A file that the disk refuses to open costs only its own data, and is named: each kind of file, each mode."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from engine import (
    FileSizes,
    Message,
    MessageStore,
    OpenMode,
    ReadError,
    RefusedReadError,
    back_up,
    check_store,
    repair_store,
)
from engine.errors import REFUSED_FILE
from tests.durability.faultfs import FaultyDisk, Rule, faulty_disk
from tests.durability.test_refused_reads import COUNT, body_of, required_everywhere, unread
from tests.engine.storetools import SMALL
from tests.mount.harness import mounted, until

FILE_BYTES = 128 << 10
LOG_FILES = 3
SIZES = FileSizes(FILE_BYTES, consume_queue_entries=2048, index_slots=1000, index_entries=4000)
CONFIG = replace(SMALL, sizes=SIZES)
MODES = pytest.mark.parametrize("mode", list(OpenMode))
QUEUE, LOG = "/store/consumequeue/T/0/*", "/store/commitlog/*"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    """A disk with a store of COUNT messages in T/0, in three files of the log, closed; and as it was left by a process
    that died before: `killed`."""
    (tmp_path / "backing").mkdir()
    with faulty_disk(tmp_path / "backing", tmp_path / "disk") as found:
        with MessageStore.open(found.root / "store", CONFIG, create=True) as store:
            for number in range(COUNT):
                store.put(Message("T", body_of(number), [f"key-{number}", "all"]), 0)
                if number == COUNT // 2:
                    store.flush()
            shutil.copytree(found.root / "store", found.root / "killed")
        yield found


def opened(disk: FaultyDisk, mode: OpenMode) -> MessageStore:
    return MessageStore.open(disk.root / "store", replace(CONFIG, mode=mode))


def log_file(number: int) -> str:
    """A pattern for the path of a file of the log."""
    return f"/store/commitlog/{number * FILE_BYTES:020d}"


def unopened(pattern: str, times: int | None = None, after: int = 0) -> list[Rule]:
    return [Rule(call, pattern, after=after, times=times) for call in ("open", "open_write")]


def in_file(store: MessageStore, number: int) -> set[int]:
    """The messages in a file of the log."""
    messages = [store.get("T", 0, queue_offset) for queue_offset in range(COUNT)]
    return {one.queue_offset for one in messages if one.physical_offset // FILE_BYTES == number}


@MODES
@pytest.mark.parametrize("number", [0, 1])
def test_a_log_file_costs_the_messages_in_it(disk: FaultyDisk, mode: OpenMode, number: int) -> None:
    with opened(disk, OpenMode.READ_ONLY) as store:
        lost = in_file(store, number)
    disk.inject(*unopened(log_file(number)))
    with opened(disk, mode) as store:
        required_everywhere(store, lost, LOG_FILES)
        with pytest.raises(RefusedReadError) as error:
            store.get("T", 0, min(lost))
        assert error.value.path.name == Path(log_file(number)).name
        assert error.value.reason == REFUSED_FILE
        disk.heal()
        assert unread(store) == set()


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("call", ["open", "open_write"])
@pytest.mark.parametrize("number", [2, 3], ids=["newest", "ready"])
def test_nothing_is_cut_off_a_log_of_which_a_file_is_refused_once(
    disk: FaultyDisk, number: int, call: str, after: int
) -> None:
    shutil.rmtree(disk.root / "store")
    (disk.root / "killed").rename(disk.root / "store")
    disk.inject(Rule(call, log_file(number), after=after, times=1))
    with suppress(OSError, RefusedReadError):
        opened(disk, OpenMode.WRITE).close()
    disk.heal()
    with opened(disk, OpenMode.WRITE) as store:
        assert store.bounds("T", 0).max_offset == COUNT
        required_everywhere(store, set(), LOG_FILES)
    assert list(check_store(disk.root / "store", config=CONFIG)) == []


def test_check_repair_and_backup_go_round_a_log_file(disk: FaultyDisk, tmp_path: Path) -> None:
    path = disk.root / "store"
    with opened(disk, OpenMode.READ_ONLY) as store:
        lost = in_file(store, 1)
    disk.inject(*unopened(log_file(1)))
    found = [problem for problem in check_store(path, config=CONFIG) if problem.path.startswith("commitlog")]
    assert [(problem.path, REFUSED_FILE in problem.text) for problem in found] == [(log_file(1)[7:], True)]
    with pytest.raises(OSError, match=Path(log_file(1)).name):  # nothing can be written there
        list(repair_store(path, config=CONFIG))
    assert back_up(path, tmp_path / "copy", config=CONFIG).refused == (log_file(1)[7:],)
    with MessageStore.open(tmp_path / "copy", replace(CONFIG, mode=OpenMode.READ_ONLY)) as copy:
        assert unread(copy, ReadError) == lost
    disk.heal()
    list(repair_store(path, config=CONFIG))
    with opened(disk, OpenMode.READ_ONLY) as store:
        required_everywhere(store, set(), LOG_FILES)


@pytest.mark.parametrize("pattern", [QUEUE, "/store/index/2*"])
def test_repair_moves_away_what_it_makes_again(disk: FaultyDisk, pattern: str) -> None:
    path = disk.root / "store"
    disk.inject(*unopened(pattern))
    assert any("fsstore/damaged/" in sentence for sentence in repair_store(path, config=CONFIG))
    with opened(disk, OpenMode.READ_ONLY) as store:
        required_everywhere(store, set(), LOG_FILES)


@MODES
def test_an_index_file_costs_queries_alone(disk: FaultyDisk, mode: OpenMode) -> None:
    disk.inject(*unopened("/store/index/2*"))
    with opened(disk, mode) as store:
        assert unread(store) == set()
        store.refresh()  # a follower derives keys then
        with pytest.raises(RefusedReadError) if mode is OpenMode.READ_ONLY else nullcontext():
            assert [message.queue_offset for message in store.query("T", "key-7")] == [7]


@MODES
def test_a_queue_costs_no_message(disk: FaultyDisk, mode: OpenMode) -> None:
    disk.inject(*unopened(QUEUE))
    with opened(disk, mode) as store:
        required_everywhere(store, set(), LOG_FILES)


@pytest.mark.parametrize("rules", [[Rule("read", LOG)], unopened(LOG)], ids=["read", "open"])
def test_a_follower_without_queues_says_where_the_log_is_refused(disk: FaultyDisk, rules: list[Rule]) -> None:
    shutil.rmtree(disk.root / "store/consumequeue")  # no queue leads past it
    disk.inject(*rules)
    with opened(disk, OpenMode.FOLLOW) as store:
        [sentence] = store.stats().not_shown
        assert sentence.startswith(f"the log from physical offset 0 on: {disk.root}{log_file(0)} can't be read")
        disk.heal()
        until("the queues are derived", lambda: store.refresh() and store.stats().messages == COUNT)
        assert store.stats().not_shown == ()
        assert unread(store) == set()


def test_a_follower_says_that_it_can_not_look_behind_the_log(disk: FaultyDisk, tmp_path: Path) -> None:
    with mounted(tmp_path, store=disk.root / "store", config={"mode": "FOLLOW"}) as mount:

        def not_shown() -> list[str]:
            found: list[str] = mount.status()["stats"]["not_shown"]
            return found

        assert not_shown() == []
        disk.inject(Rule("read", LOG))
        until("status says so", not_shown)
        [sentence] = not_shown()
        assert f"{log_file(2)} can't be read" in sentence
        until("the log says so", lambda: sentence in mount.log.read_text())
        disk.heal()
        until("it looks again", lambda: not not_shown())

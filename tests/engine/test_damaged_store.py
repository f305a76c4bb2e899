"""Two damages together, or one in a rarely read part: it costs only the messages that it hit."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from engine import (
    Message,
    MessageStore,
    OpenMode,
    ReadError,
    StoreConfig,
    check_store,
    repair_store,
)
from engine.log.entries import ENTRY_STRUCT
from tests.engine.storetools import SMALL, contents, killed, opened

MODES = (OpenMode.WRITE, OpenMode.READ_ONLY)
COUNT = 300
QUEUES = 3


def body_of(number: int) -> bytes:
    return b"body-%d" % number


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 messages in three queues of four files each; no mark of ours, as if RocketMQ had written it."""
    path = tmp_path_factory.mktemp("damaged") / "store"
    with opened(path) as store:
        for number in range(COUNT):
            store.put(Message("T", body_of(number), [f"key-{number}"]), number % QUEUES)
    shutil.rmtree(path / "fsstore")
    return path


@pytest.fixture
def spoiled(whole: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    shutil.copytree(whole, tmp_path / "store")
    return tmp_path / "store"


def queue_file(path: Path, queue: int, number: int) -> Path:
    return sorted((path / "consumequeue" / "T" / str(queue)).iterdir())[number]


def place_of(path: Path, number: int) -> int:
    """Physical offset of message `number`."""
    files = sorted((path / "consumequeue" / "T" / str(number % QUEUES)).iterdir())
    entries = b"".join(file.read_bytes() for file in files)
    return int(ENTRY_STRUCT.unpack_from(entries, number // QUEUES * ENTRY_STRUCT.size)[0])


def change(file: Path, position: int, content: bytes) -> None:
    old = file.read_bytes()
    file.write_bytes(old[:position] + content + old[position + len(content) :])


def change_record(path: Path, number: int, position: int, content: bytes) -> None:
    """Write `content` over bytes of message `number`'s record."""
    file_bytes = SMALL.sizes.commit_log_bytes if SMALL.sizes else 0
    place = place_of(path, number)
    change(path / "commitlog" / f"{place - place % file_bytes:020d}", place % file_bytes + position, content)


def flip_body(path: Path, number: int) -> None:
    change_record(path, number, 90, b"\xff")


def lost_of(path: Path, mode: OpenMode = OpenMode.READ_ONLY) -> set[int]:
    """The messages that can't be read."""
    lost = set()
    with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
        for number in range(COUNT):
            try:
                assert bytes(store.get("T", number % QUEUES, number // QUEUES).body) == body_of(number)
            except ReadError:
                lost.add(number)
    return lost


def require_repaired(path: Path, lost: Collection[int]) -> None:
    """One repair is enough, and costs nothing but the messages `lost`."""
    assert list(repair_store(path))
    assert [str(problem) for problem in check_store(path)] == []
    assert list(repair_store(path)) == []
    assert lost_of(path) == set(lost)


# consume queues


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_record_behind_damage_is_found_though_its_queues_file_is_gone(spoiled: Path, mode: OpenMode) -> None:
    change_record(spoiled, 10, 0, bytes(4))  # its size
    change_record(spoiled, 10, 84, bytes(4))  # and that of its body: nothing tells where it ends
    queue_file(spoiled, 11 % QUEUES, 0).unlink()
    assert lost_of(spoiled, mode) == {10}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("length", [21, 300, 639])
def test_a_queue_file_that_was_cut_is_made_again_however_old_it_is(
    spoiled: Path, length: int, number: int, mode: OpenMode
) -> None:
    file = queue_file(spoiled, 1, number)
    file.write_bytes(file.read_bytes()[:length])
    before = contents(spoiled)
    assert lost_of(spoiled, mode) == set()
    if mode is OpenMode.READ_ONLY:
        assert contents(spoiled) == before
    else:
        assert list(check_store(spoiled)) == []


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("marks", ["marks", "no marks"])
def test_a_file_of_the_log_in_place_of_a_queue_file_costs_only_what_was_in_the_log(
    tmp_path: Path, marks: str, mode: OpenMode
) -> None:
    with opened(tmp_path / "store") as store:
        for number in range(COUNT):
            store.put(Message("T", body_of(number)), number % QUEUES)
    if marks == "no marks":
        shutil.rmtree(tmp_path / "store" / "fsstore")
    file = queue_file(tmp_path / "store", 0, 0)
    file.write_bytes((tmp_path / "store" / "commitlog" / ("0" * 20)).read_bytes())
    assert lost_of(tmp_path / "store", mode) == set()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_an_entry_that_claims_the_records_behind_it_hides_no_missing_ones(spoiled: Path, mode: OpenMode) -> None:
    file = queue_file(spoiled, 1, 1)
    change(file, 5 * 20 + 8, b"\x01")  # the size of entry 37 is over 16 MiB
    change(file, 12 * 20, b"\x01")  # and entry 44 leads far behind the log's end: there the queue seems to end
    assert lost_of(spoiled, mode) == set()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_queue_that_begins_with_garbage_is_not_taken_for_a_deleted_one(spoiled: Path, mode: OpenMode) -> None:
    file = queue_file(spoiled, 0, 0)
    file.write_bytes(b"\xff" * file.stat().st_size)
    change(queue_file(spoiled, 1, 1), 12 * 20, b"\x01")
    assert lost_of(spoiled, mode) == set()


def test_read_only_a_deleted_topic_that_was_made_again_has_only_its_new_messages(tmp_path: Path) -> None:
    with killed(tmp_path / "store", tmp_path / "crashed") as store:
        for number in range(9):
            store.put(Message("T", b"old-%d" % number), 0)
        store.flush()
        shutil.copytree(tmp_path / "store" / "consumequeue", tmp_path / "before")
        store.delete_topic("T")
        store.put(Message("T", b"new"), 0)
        store.flush()
    shutil.rmtree(tmp_path / "crashed" / "consumequeue")
    shutil.copytree(tmp_path / "before", tmp_path / "crashed" / "consumequeue")  # the deletion never reached the disk
    with MessageStore.open(tmp_path / "crashed", replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        assert [bytes(message.body) for message in store.read("T", 0, 0)] == [b"new"]


# numbers that no checksum covers


def test_a_filler_for_a_number_without_a_record_never_leads_past_the_next_record(spoiled: Path) -> None:
    for number in (1, 2, 20):
        flip_body(spoiled, number)
    change_record(spoiled, 6, 12, b"\0\2\0\0")  # now it is of queue 131072, so queue 0 lacks number 2
    shutil.rmtree(spoiled / "consumequeue")  # its entry would show it damaged
    require_repaired(spoiled, {1, 2, 6, 20})


def test_a_filler_for_the_first_number_of_a_queue_leads_to_the_record_behind_it(spoiled: Path) -> None:
    change_record(spoiled, 0, 12, b"\0\2\0\0")
    (spoiled / "abort").touch()
    (spoiled / "checkpoint").unlink()  # so the whole log is read
    assert lost_of(spoiled, OpenMode.WRITE) == {0}
    assert list(check_store(spoiled)) == []
    filler, following = ENTRY_STRUCT.iter_unpack(queue_file(spoiled, 0, 0).read_bytes()[: 2 * ENTRY_STRUCT.size])
    assert filler == following


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_record_whose_predecessor_went_to_another_queue_stays_where_it_is(tmp_path: Path, mode: OpenMode) -> None:
    path = tmp_path / "crashed"
    with killed(tmp_path / "store", path) as store:
        for number in range(9):
            store.put(Message("T", body_of(number)), 0)
    shutil.rmtree(path / "fsstore")
    change_record(path, 7 * QUEUES, 88 + len(body_of(7)) + 1, b"U")  # the topic of the last message but one
    with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
        assert bytes(store.get("T", 0, 8).body) == body_of(8)


def test_a_number_that_its_queues_entry_has_is_right_however_many_are_missing_before_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in range(3):
            store.put(Message("T", body_of(number)), 0)
    change_record(tmp_path, 0, 12, b"\0\2\0\0")  # two that stand in other queues now, where their numbers fit
    change_record(tmp_path, QUEUES, 12, b"\0\4\0\0")
    assert list(repair_store(tmp_path))
    assert list(check_store(tmp_path)) == []
    with opened(tmp_path) as store:
        assert bytes(store.get("T", 0, 2).body) == body_of(2)


@pytest.mark.parametrize("is_repaired", [False, True])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_record_that_seems_to_be_of_another_queue_takes_no_number_there(
    tmp_path: Path, mode: OpenMode, is_repaired: bool
) -> None:
    with opened(tmp_path) as store:
        for queue in range(2):
            store.put(Message("T", body_of(queue)), queue)
    shutil.rmtree(tmp_path / "fsstore")
    change_record(tmp_path, 1, 15, b"\0")  # of queue 0 now, which has a message of its number
    if is_repaired:
        assert list(repair_store(tmp_path))
        assert list(check_store(tmp_path)) == []
    with MessageStore.open(tmp_path, replace(SMALL, mode=mode)) as store:
        assert bytes(store.get("T", 0, 0).body) == body_of(0)
        assert (store.bounds("T", 0).max_offset, store.bounds("T", 1).max_offset) == (1, 1)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("topic", [b"/", b"\0", b"."], ids=["another folder's", "none", "the folder itself"])
def test_a_topic_that_no_folder_can_have_has_no_queue(tmp_path: Path, topic: bytes, mode: OpenMode) -> None:
    path = tmp_path / "crashed"
    with killed(tmp_path / "store", path) as store:
        for number in range(9):
            store.put(Message("T", body_of(number)), 0)
    shutil.rmtree(path / "fsstore")
    change_record(path, 0, 88 + len(body_of(0)) + 1, topic)
    with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
        assert store.topics() == ["T"]
        assert [bytes(store.get("T", 0, number).body) for number in range(1, 9)] == [
            body_of(number) for number in range(1, 9)
        ]


def misnumber(path: Path, number: int) -> None:
    """Number a record two further than it is, behind a loss that would explain it, and end the run behind it."""
    flip_body(path, number - 3 * QUEUES)
    change_record(path, number, 20, struct.pack(">q", number // QUEUES + 2))
    flip_body(path, number + 1)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_number_that_is_believed_for_want_of_records_before_it_can_be_taken_back(
    spoiled: Path, mode: OpenMode
) -> None:
    misnumber(spoiled, 294)
    assert lost_of(spoiled, mode) == {285, 294, 295}


def test_a_number_that_was_taken_back_takes_one_repair(spoiled: Path) -> None:
    misnumber(spoiled, 294)
    assert any("its queue offset 100 does not follow" in problem.text for problem in check_store(spoiled))
    require_repaired(spoiled, {285, 294, 295})


def test_a_queue_whose_first_file_was_set_aside_is_numbered_from_the_log(spoiled: Path) -> None:
    flip_body(spoiled, 3)
    file = queue_file(spoiled, 0, 0)
    file.write_bytes(file.read_bytes() + bytes(100))
    require_repaired(spoiled, {3})


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_store_time_far_in_the_future_makes_no_stale_tail_of_what_follows(spoiled: Path, mode: OpenMode) -> None:
    change_record(spoiled, 150, 58, b"\xff")
    flip_body(spoiled, 151)
    assert lost_of(spoiled, mode) == {151}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_store_time_somewhat_late_costs_nothing_in_a_log_that_went_on(tmp_path: Path, mode: OpenMode) -> None:
    times = iter(range(1_700_000_000_000, 1_800_000_000_000, 100))
    with killed(tmp_path / "store", tmp_path / "crashed", replace(SMALL, clock=lambda: next(times))) as store:
        places = [store.put(Message("T", body_of(number)), 0).physical_offset for number in range(50)]
    path = tmp_path / "crashed"
    shutil.rmtree(path / "fsstore")
    log = path / "commitlog" / ("0" * 20)
    late = struct.unpack_from(">q", log.read_bytes(), places[20] + 56)[0] + 2_000
    change(log, places[20] + 56, struct.pack(">q", late))
    change(log, places[21] + 90, b"\xff")
    with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
        assert [bytes(store.get("T", 0, number).body) for number in range(22, 50)] == [
            body_of(number) for number in range(22, 50)
        ]


# the log


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_log_files_that_are_all_too_long_are_read_by_the_sizes_the_store_was_made_with(
    spoiled: Path, mode: OpenMode
) -> None:
    for file in (spoiled / "commitlog").iterdir():
        file.write_bytes(file.read_bytes() + bytes(100))
    assert lost_of(spoiled, mode) == set()


def test_zeros_at_the_logs_beginning_are_no_batch_that_was_never_published(tmp_path: Path) -> None:
    """A power cut: the log's second page reached the disk, and the queue's entries; its first page did not."""
    with killed(tmp_path / "store", tmp_path / "crashed") as store:
        bodies = [b"%03d" % number * 100 for number in range(18)]
        store.put_batch([Message("T", body, [f"K{number}"]) for number, body in enumerate(bodies)], 0)
    path = tmp_path / "crashed"
    shutil.rmtree(path / "fsstore")
    change(path / "commitlog" / ("0" * 20), 0, bytes(4096))
    assert not any("lead to no record" in problem.text for problem in check_store(path))
    with MessageStore.open(path, SMALL) as store:
        assert [problem.text for problem in store.check() if problem.path.startswith(("consumequeue", "index"))] == []
        assert bytes(store.get("T", 0, 17).body) == bodies[17]
    assert list(repair_store(path))
    assert list(check_store(path)) == []


# settings


@pytest.mark.parametrize(
    "backup", [None, b"", b'{"topicConfigTable": [', b"\xff"], ids=["none", "empty", "cut", "noise"]
)
def test_topics_that_nobody_can_understand_stop_neither_reading_nor_writing(
    spoiled: Path, backup: bytes | None
) -> None:
    damaged = {"topics.json": b"\xac\x00", "topics.json.bak": backup}
    for name, content in damaged.items():
        (spoiled / "config" / name).unlink(missing_ok=True)
        if content is not None:
            (spoiled / "config" / name).write_bytes(content)
    assert lost_of(spoiled) == set()
    with MessageStore.open(spoiled, SMALL) as store:
        assert store.topics() == ["T"]
        assert any("topics.json" in note for note in store.recovery.notes)
        store.put(Message("another", b"x"), 0)
    kept = {file.name: file.read_bytes() for file in (spoiled / "fsstore" / "damaged" / "config").iterdir()}
    assert kept == {name: content for name, content in damaged.items() if content is not None}
    with MessageStore.open(spoiled, StoreConfig(flush=SMALL.flush)) as store:
        assert store.topics() == ["T", "another"]
        assert not any("topics.json" in note for note in store.recovery.notes)
    assert lost_of(spoiled) == set()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("numbers", [1, 2])
def test_a_newest_record_that_went_to_a_longer_queue_hides_no_message_of_it(
    tmp_path: Path, mode: OpenMode, numbers: int
) -> None:
    """Alone it says that the queue begins again at 0, as where a broker has lost its files; two would prove it."""
    path = tmp_path / "crashed"
    with killed(tmp_path / "store", path) as store:
        for number in range(30):
            store.put(Message("T", body_of(number)), 0)
        places = [store.put(Message("T", b"of another queue"), 1).physical_offset for _ in range(numbers)]
    for kept_beside in ("fsstore", "consumequeue", "checkpoint"):
        shutil.rmtree(path / kept_beside, ignore_errors=True)
    (path / "checkpoint").unlink(missing_ok=True)
    file_bytes = SMALL.sizes.commit_log_bytes if SMALL.sizes else 0
    newest = places[0]
    change(path / "commitlog" / f"{newest - newest % file_bytes:020d}", newest % file_bytes + 12, bytes(4))
    with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
        assert [bytes(message.body) for message in store.read("T", 0, 0, 30)] == [body_of(n) for n in range(30)]

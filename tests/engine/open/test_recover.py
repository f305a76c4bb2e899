"""Recovery: the effects of a crash, a power cut or a careless user on a store, one by one, and of the next opening."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count, product
from pathlib import Path

import pytest

from engine import (
    DamagedRecordError,
    Message,
    MessageStore,
    OpenMode,
    ReadError,
    RecoveryProgress,
    StoreConfig,
    check_store,
)
from tests.engine.storetools import SMALL, SMALL_SIZES, bodies, contents, killed, nothing_left_open, opened
from tests.golden import golden

MODES = (OpenMode.WRITE, OpenMode.READ_ONLY)


def fill(store: MessageStore, count: int = 300) -> None:
    """Messages in several queues and files, with keys."""
    for number in range(count):
        store.put(Message("T", b"body-%d" % number, [f"key-{number}", "all"]), number % 3)


def require_filled(store: MessageStore, count: int = 300, lost: frozenset[int] = frozenset()) -> None:
    """All messages of `fill` are there, under their numbers, but for those lost, which read as damaged."""
    for number in range(count):
        queue, queue_offset = number % 3, number // 3
        if number in lost:
            with pytest.raises(DamagedRecordError):
                store.get("T", queue, queue_offset)
            continue
        assert bytes(store.get("T", queue, queue_offset).body) == b"body-%d" % number
        found = store.query("T", f"key-{number}")
        assert [(one.queue, one.queue_offset) for one in found] == [(queue, queue_offset)]
    assert [store.bounds("T", queue).max_offset for queue in range(3)] == [
        -(-(count - queue) // 3) for queue in range(3)
    ]


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a process that died: 300 messages, the first 200 of them flushed."""
    folder = tmp_path_factory.mktemp("recovery")
    with killed(folder / "store", folder / "crashed") as store:
        fill(store, 200)
        store.flush()
        for number in range(200, 300):
            store.put(Message("T", b"body-%d" % number, [f"key-{number}", "all"]), number % 3)
    return folder / "crashed"


@pytest.fixture(scope="module")
def closed_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same messages, closed cleanly."""
    path = tmp_path_factory.mktemp("recovery") / "store"
    with opened(path) as store:
        fill(store)
    return path


@pytest.fixture
def crashed(left_behind: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged, of a dead process's store."""
    shutil.copytree(left_behind, tmp_path / "crashed")
    return tmp_path / "crashed"


@pytest.fixture
def closed(closed_before: Path, tmp_path: Path) -> Path:
    """A copy to spoil of a store that was closed."""
    shutil.copytree(closed_before, tmp_path / "closed")
    return tmp_path / "closed"


def bare(path: Path) -> None:
    """Leave no mark of ours: as if RocketMQ had written the store."""
    shutil.rmtree(path / "fsstore", ignore_errors=True)


def log_file(path: Path, number: int = -1) -> Path:
    """A file of the commit log that holds records."""
    files = [file for file in sorted((path / "commitlog").iterdir()) if any(file.read_bytes()[:8])]
    return files[number]


def last_queue_file(path: Path, queue: int = 0) -> Path:
    return max((path / "consumequeue" / "T" / str(queue)).iterdir())


def lose(path: Path, *names: str) -> None:
    """Remove files and folders of the store, if they are there."""
    for name in names:
        for found in path.glob(name):
            if found.is_dir():
                shutil.rmtree(found)
            else:
                found.unlink()


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


LOSSES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda path: None,
    "all consume queues": lambda path: lose(path, "consumequeue"),
    "one consume queue": lambda path: lose(path, "consumequeue/T/1"),
    "a queue's first file": lambda path: min((path / "consumequeue" / "T" / "0").iterdir()).unlink(),
    "a queue's newest file": lambda path: last_queue_file(path).unlink(),
    "a queue's newest entries": lambda path: zero(last_queue_file(path)),
    "the whole index": lambda path: lose(path, "index"),
    "the newest index file": lambda path: max((path / "index").iterdir()).unlink(),
    "the oldest index file": lambda path: min((path / "index").iterdir()).unlink(),
    "an index file's bytes": lambda path: zero(max((path / "index").iterdir())),
    "the checkpoint": lambda path: lose(path, "checkpoint"),
    "everything derived": lambda path: lose(path, "consumequeue", "index"),
    "the topics": lambda path: lose(path, "config/*"),
}


@pytest.mark.parametrize("marks", ["with marks", "without marks"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_derived_is_made_again_after_a_crash(crashed: Path, loss: str, mode: OpenMode, marks: str) -> None:
    if marks == "without marks":
        bare(crashed)
    LOSSES[loss](crashed)
    before = contents(crashed)
    with MessageStore.open(crashed, replace(SMALL, mode=mode)) as store:
        assert not store.recovery.clean
        require_filled(store)
        assert list(store.check()) == []
    if mode is OpenMode.READ_ONLY:
        assert contents(crashed) == before
    else:
        assert list(check_store(crashed)) == []


@pytest.mark.parametrize("marks", ["with marks", "without marks"])
@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_derived_is_made_again_after_a_clean_close(closed: Path, loss: str, marks: str) -> None:
    path = closed
    if marks == "without marks":
        bare(path)
    LOSSES[loss](path)
    with opened(path) as store:
        require_filled(store)


def test_a_clean_store_opens_without_reading_a_record(closed: Path) -> None:
    for mode in MODES:
        with MessageStore.open(closed, replace(SMALL, mode=mode)) as store:
            assert store.recovery.clean
            assert (store.recovery.scanned_bytes, store.recovery.rebuilt) == (0, ())
            require_filled(store)


def test_a_crash_costs_reading_only_what_came_after_the_last_mark(crashed: Path) -> None:
    with opened(crashed) as store:
        assert store.recovery.scanned_messages == 100
        assert store.recovery.rebuilt == ()


def test_a_store_that_somebody_else_wrote_since_is_looked_over(crashed: Path) -> None:
    with opened(crashed):
        pass
    (crashed / "lock").write_bytes(b"lock")  # what every broker does when it starts
    with opened(crashed) as store:
        assert store.recovery.scanned_messages > 0
        require_filled(store)


def keyless(path: Path, keyed: int) -> Path:
    """What a dead broker left of 300 messages, stored a second apart and flushed, of which only number `keyed` has a
    key: without our marks."""
    seconds = count(1_700_000_000)
    with killed(path, path.with_name("left"), replace(SMALL, clock=lambda: next(seconds) * 1000)) as store:
        store.create_topic("T", 1)
        for number in range(300):
            store.put(Message("T", b"body-%d" % number, ["k"] if number == keyed else []), 0)
        store.flush()
    bare(path.with_name("left"))
    return path.with_name("left")


@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.READ_ONLY])
@pytest.mark.parametrize("loss", ["nothing", "the whole index"])
def test_a_log_without_keys_is_read_from_where_rocketmq_would(tmp_path: Path, loss: str, mode: OpenMode) -> None:
    left = keyless(tmp_path / "store", keyed=-1)
    LOSSES[loss](left)
    with opened(left, mode=mode) as store:
        assert 0 < store.recovery.scanned_bytes < 2 * SMALL_SIZES.commit_log_bytes < store.physical_end
        assert store.recovery.rebuilt == ()
        assert bodies(store, "T", 0) == [b"body-%d" % number for number in range(300)]


@pytest.mark.parametrize("keyed", [0, 100, 299])
@pytest.mark.parametrize("loss", ["nothing", "the whole index", "an index file's bytes"])
def test_a_single_key_that_the_index_lost_is_found_again(tmp_path: Path, loss: str, keyed: int) -> None:
    left = keyless(tmp_path / "store", keyed)
    LOSSES[loss](left)
    with opened(left) as store:
        assert [message.body for message in store.query("T", "k")] == [b"body-%d" % keyed]


@pytest.mark.parametrize("fitting", [79, 80, 81, 82])
def test_keys_that_a_rebuild_had_not_reached_are_found(tmp_path: Path, fitting: int) -> None:
    """A process that makes the index again is killed when one file is full, perhaps between a record's keys; and
    retention took a log file since the recovery point."""
    sizes = replace(SMALL_SIZES, index_entries=fitting + 1)
    with killed(tmp_path / "store", tmp_path / "left", replace(SMALL, sizes=sizes)) as store:
        for number in range(40):
            store.put(Message("T", b"body" * 100, [f"key-{number}-{key}" for key in range(3)]), 0)
        store.flush()
    left = tmp_path / "left"
    for path in (*sorted((left / "index").iterdir())[1:], min((left / "commitlog").iterdir())):
        path.unlink()
    with opened(left, replace(SMALL, sizes=sizes)) as store:
        kept = range(store.bounds("T", 0).min_offset, 40)
        assert 0 < len(kept) < 40
        for number, key in product(kept, range(3)):
            assert [one.queue_offset for one in store.query("T", f"key-{number}-{key}")] == [number]
        assert list(store.check()) == []


def test_recovery_tells_how_far_it_is(crashed: Path) -> None:
    bare(crashed)
    heard: list[RecoveryProgress] = []
    with opened(crashed, progress=heard.append) as store:
        assert [one.done_bytes for one in heard] == sorted(one.done_bytes for one in heard)
        assert heard[-1].done_bytes == store.physical_end
        assert all(one.done_bytes <= one.total_bytes for one in heard)


def test_recovering_twice_changes_nothing_more(crashed: Path) -> None:
    for _ in range(2):
        bare(crashed)
        (crashed / "abort").touch()
        with opened(crashed) as store:
            require_filled(store)
        names = ("commitlog", "consumequeue")
        found = {name: content for name, content in contents(crashed).items() if name.startswith(names)}
    with opened(crashed):
        pass
    assert {name: content for name, content in contents(crashed).items() if name.startswith(names)} == found


# tails


def newest_record(path: Path) -> tuple[Path, int, int]:
    """File, position and size of the newest record."""
    with MessageStore.open(path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        newest = max(
            (one for queue in range(3) for one in store.read("T", queue, 0)), key=lambda one: one.physical_offset
        )
        file_bytes = store.sizes.commit_log_bytes
        place, size = newest.physical_offset, newest.store_size
    return path / "commitlog" / f"{place - place % file_bytes:020d}", place % file_bytes, size


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("marks", ["with marks", "without marks"])
@pytest.mark.parametrize("kept", [0, 1, 7, 40, 90])
def test_a_torn_record_is_cut_and_its_bytes_never_come_back(
    crashed: Path, kept: int, marks: str, mode: OpenMode
) -> None:
    file, position, size = newest_record(crashed)
    if marks == "without marks":
        bare(crashed)
    content = bytearray(file.read_bytes())
    content[position + kept : position + size] = bytes(size - kept)
    file.write_bytes(content)
    with MessageStore.open(crashed, replace(SMALL, mode=mode)) as store:
        require_filled(store, 299)
        assert store.recovery.damaged == ()
        assert list(store.check()) == []
    if mode is OpenMode.WRITE:
        assert not any(file.read_bytes()[position:])
        with opened(crashed) as store:
            store.put(Message("T", b"body-299", ["key-299", "all"]), 299 % 3)
            require_filled(store)


def test_records_of_an_earlier_life_of_the_log_do_not_come_back(tmp_path: Path) -> None:
    """A process dies; another writer, as RocketMQ does, goes on over the old bytes without clearing them, and dies."""
    with killed(tmp_path / "first", tmp_path / "old") as store:
        for number in range(40):
            store.put(Message("T", b"old-%02d" % number), number % 2)
    with killed(tmp_path / "second", tmp_path / "new") as store:
        for number in range(20):
            store.put(Message("T", b"new-%02d" % number), number % 3)
    old, new = (tmp_path / name / "commitlog" / ("0" * 20) for name in ("old", "new"))
    mixed = bytearray(old.read_bytes())
    content = new.read_bytes()
    end = len(content.rstrip(b"\0"))
    mixed[:end] = content[:end]
    new.write_bytes(mixed)
    bare(tmp_path / "new")
    with opened(tmp_path / "new") as store:
        found = sorted(body for queue in range(3) for body in bodies(store, "T", queue))
        assert found == [b"new-%02d" % number for number in range(20)]
        assert store.recovery.cut_bytes > 0
    assert len((tmp_path / "new" / "commitlog" / ("0" * 20)).read_bytes().rstrip(b"\0")) == end


def test_a_queue_behind_the_log_is_cut_to_it(crashed: Path) -> None:
    file = log_file(crashed)
    bare(crashed)
    zero(file)
    with opened(crashed) as store:
        kept = store.stats().messages
        assert 0 < kept < 300
        require_filled(store, kept)
        put = store.put(Message("T", b"body-%d" % kept, [f"key-{kept}", "all"]), kept % 3)
        assert put.queue_offset == kept // 3
        require_filled(store, kept + 1)


# damage


def place_of(path: Path, number: int) -> tuple[Path, int, int]:
    """File, position and size of message `number` of `fill`."""
    with MessageStore.open(path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        message = store.get("T", number % 3, number // 3)
        file_bytes = store.sizes.commit_log_bytes
        place, size = message.physical_offset, message.store_size
    return path / "commitlog" / f"{place - place % file_bytes:020d}", place % file_bytes, size


FIELDS = {
    "size": 0,
    "magic": 4,
    "crc": 8,
    "queue offset": 27,
    "queue offset far off": 20,
    "physical offset": 35,
    "body length": 87,
    "body": 90,
}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("number", [150, 260], ids=["before the mark", "behind the mark"])
@pytest.mark.parametrize("field", FIELDS)
def test_damage_in_the_middle_costs_the_damaged_record_alone(
    crashed: Path, field: str, number: int, mode: OpenMode
) -> None:
    file, position, _ = place_of(crashed, number)
    content = bytearray(file.read_bytes())
    content[position + FIELDS[field]] ^= 0x40
    file.write_bytes(content)
    for lost_too in ("nothing", "all consume queues"):
        copy = crashed.with_name(f"copy-{lost_too.replace(' ', '-')}")
        shutil.copytree(crashed, copy)
        LOSSES[lost_too](copy)
        if lost_too != "nothing":
            bare(copy)
        with MessageStore.open(copy, replace(SMALL, mode=mode)) as store:
            with pytest.raises(ReadError):
                store.get("T", number % 3, number // 3)
            for other in set(range(300)) - {number}:
                assert bytes(store.get("T", other % 3, other // 3).body) == b"body-%d" % other
            put = store.put(Message("T", b"on"), 0) if mode is OpenMode.WRITE else None
            assert put is None or bytes(store.get("T", 0, put.queue_offset).body) == b"on"
        problems = list(check_store(copy)) if mode is OpenMode.WRITE else []
        assert mode is OpenMode.READ_ONLY or problems, "check reports the damage"


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_zeroed_page_in_the_middle_costs_the_records_in_it(crashed: Path, mode: OpenMode) -> None:
    bare(crashed)
    file = log_file(crashed, 1)
    content = bytearray(file.read_bytes())
    content[4096:] = bytes(4096)
    file.write_bytes(content)
    with MessageStore.open(crashed, replace(SMALL, mode=mode)) as store:
        read = {}
        for number in range(300):
            try:
                read[number] = bytes(store.get("T", number % 3, number // 3).body)
            except DamagedRecordError:
                continue
        assert 200 < len(read) < 300
        assert all(body == b"body-%d" % number for number, body in read.items())
        assert store.recovery.damaged


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", ["missing", "short", "empty", "foreign beside it"])
@pytest.mark.parametrize("marks", ["with marks", "without marks"])
def test_a_log_file_that_is_not_whole_costs_its_own_records(
    crashed: Path, kind: str, marks: str, mode: OpenMode
) -> None:
    if marks == "without marks":
        bare(crashed)
    file = log_file(crashed, 1)
    if kind == "missing":
        file.unlink()
    elif kind == "foreign beside it":
        (file.parent / "notes.txt").write_bytes(b"x")
    else:
        file.write_bytes(file.read_bytes()[: 3000 if kind == "short" else 0])
    with nothing_left_open(), MessageStore.open(crashed, replace(SMALL, mode=mode)) as store:
        read = 0
        for number in range(300):
            try:
                assert bytes(store.get("T", number % 3, number // 3).body) == b"body-%d" % number
                read += 1
            except ReadError:
                continue
        assert read == 300 if kind == "foreign beside it" else 200 < read < 300
        if mode is OpenMode.WRITE:
            put = store.put(Message("T", b"on"), 0)
            assert put.queue_offset == 100
            assert bytes(store.get("T", 0, 100).body) == b"on"
    assert list(check_store(crashed)) != []


def test_garbage_behind_the_newest_record_is_cut(crashed: Path) -> None:
    file, position, size = newest_record(crashed)
    content = bytearray(file.read_bytes())
    content[position + size :] = bytes(range(256)) * 32
    content = content[: file.stat().st_size]
    file.write_bytes(content)
    with opened(crashed) as store:
        require_filled(store)
        assert store.recovery.cut_bytes > 0
        assert store.recovery.damaged == ()


def test_a_body_that_holds_a_record_is_not_taken_for_one(tmp_path: Path) -> None:
    with killed(tmp_path / "store", tmp_path / "crashed") as store:
        inner = bytes(store.at(store.put(Message("T", b"inner"), 0).physical_offset).record)
        store.put(Message("T", inner * 3), 0)
        store.put(Message("T", b"last"), 0)
    bare(tmp_path / "crashed")
    file = tmp_path / "crashed" / "commitlog" / ("0" * 20)
    content = bytearray(file.read_bytes())
    content[len(inner) + 8] ^= 1  # the CRC of the second record
    file.write_bytes(content)
    with opened_with_damage(tmp_path / "crashed") as store:
        assert bodies(store, "T", 0) == [b"inner", b"last"]


def opened_with_damage(path: Path) -> MessageStore:
    return MessageStore.open(path, SMALL)


def test_a_queue_that_rocketmq_numbered_anew_keeps_its_new_numbers(tmp_path: Path) -> None:
    """RocketMQ loses a queue's files and begins again at 0: the log then has two records for each number."""
    path = tmp_path / "store"
    with opened(path) as store:
        fill(store, 60)
    shutil.rmtree(path / "consumequeue" / "T" / "1")
    bare(path)
    renumber = replace(SMALL)
    with MessageStore.open(path, renumber) as store:
        store.delete_topic("T")
        for number in range(10):
            store.put(Message("T", b"anew-%d" % number), 1)
    (path / "fsstore" / "deleted.json").unlink()  # what a broker would not have
    bare(path)
    shutil.rmtree(path / "consumequeue")
    with opened(path) as store:
        assert bodies(store, "T", 1) == [b"anew-%d" % number for number in range(10)]
        assert store.bounds("T", 0).max_offset == 20


# golden stores


@pytest.mark.parametrize("name", ["basic", "rolled", "crash", "txn", "ipv6", "batch", "delay", "retention"])
@pytest.mark.parametrize("loss", ["all consume queues", "the whole index", "everything derived"])
def test_what_rocketmq_derived_comes_out_of_its_log_byte_for_byte(tmp_path: Path, name: str, loss: str) -> None:
    given = golden(name, tmp_path)
    with MessageStore.open(given.path):
        pass
    before = contents(given.path)
    bare(given.path)
    LOSSES[loss](given.path)
    with MessageStore.open(given.path, StoreConfig(sizes=given.sizes)) as store:
        assert list(store.check()) == []
        for line in given.messages:
            assert store.get(line["topic"], line["queueId"], line["cqOffset"]).physical_offset == line["physicalOffset"]
    assert list(check_store(given.path)) == []
    if name != "retention":  # expired entries can't be made again
        after = contents(given.path)
        queues = [name for name in before if name.startswith("consumequeue")]
        assert {name: after[name] for name in queues} == {name: before[name] for name in queues}

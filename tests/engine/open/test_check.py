"""check finds every damage that the format can show, and repair repairs what it can."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import (
    CheckProgress,
    IllegalMessageError,
    Message,
    MessageStore,
    NotAStoreError,
    OpenMode,
    Problem,
    ProblemKind,
    ReadError,
    StoreConfig,
    StoreLockedError,
    check_store,
    repair_store,
)
from engine.derived.index_file import IndexFile
from engine.record.hashes import index_hash
from tests.engine.records import encoder, keyed
from tests.engine.storetools import (
    SMALL,
    SMALL_SIZES,
    HastyDisk,
    contents,
    killed,
    nothing_left_open,
    opened,
    require_clean,
)
from tests.golden import NAMES, golden

pytestmark = pytest.mark.usefixtures("hasty_disk")

Array = np.ndarray[Any, Any]

COUNT = 300


def fill(path: Path) -> Path:
    """A store with messages in several queues and files, with keys and tags."""
    with opened(path) as store:
        for number in range(COUNT):
            store.put(Message("T", b"body-%d" % number, [f"key-{number}"], "tag"), number % 3)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("check") / "store")


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    shutil.copytree(whole, tmp_path / "store")
    return tmp_path / "store"


def flip(path: Path, position: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= bit
    path.write_bytes(content)


def log_file(store: Path, number: int) -> Path:
    return sorted((store / "commitlog").iterdir())[number]


def queue_file(store: Path, queue: int, number: int) -> Path:
    return sorted((store / "consumequeue" / "T" / str(queue)).iterdir())[number]


def index_file(store: Path, number: int) -> Path:
    return sorted((store / "index").iterdir())[number]


def first_entry(store: Path) -> int:
    """Position of the first entry of an index file."""
    with MessageStore.open(store, StoreConfig(mode=OpenMode.READ_ONLY)) as opened_store:
        return 40 + 4 * opened_store.sizes.index_slots + 20


DAMAGE: dict[str, tuple[ProblemKind, str, Callable[[Path], object]]] = {
    "a record's size": (ProblemKind.BAD_RECORD, "commitlog", lambda store: flip(log_file(store, 1), 3)),
    "a record's magic": (ProblemKind.BAD_RECORD, "commitlog", lambda store: flip(log_file(store, 1), 4)),
    "a record's CRC": (ProblemKind.BAD_RECORD, "commitlog", lambda store: flip(log_file(store, 1), 9)),
    "a queue offset": (ProblemKind.BAD_RECORD, "commitlog", lambda store: flip(log_file(store, 1), 27)),
    "a queue id": (ProblemKind.BAD_RECORD, "commitlog", lambda store: flip(log_file(store, 1), 15, 8)),
    "a physical offset": (ProblemKind.BAD_RECORD, "commitlog", lambda store: flip(log_file(store, 1), 35)),
    "a body": (ProblemKind.BAD_RECORD, "commitlog", lambda store: flip(log_file(store, 1), 89)),
    "a missing log file": (ProblemKind.MISSING_FILE, "commitlog", lambda store: log_file(store, 1).unlink()),
    "a short log file": (
        ProblemKind.WRONG_SIZE,
        "commitlog",
        lambda store: log_file(store, 1).write_bytes(log_file(store, 1).read_bytes()[:5000]),
    ),
    "an empty log file": (ProblemKind.WRONG_SIZE, "commitlog", lambda store: log_file(store, 1).write_bytes(b"")),
    "a foreign file in the log": (
        ProblemKind.FOREIGN_FILE,
        "commitlog/notes",
        lambda store: (store / "commitlog" / "notes").write_bytes(b"x"),
    ),
    "bytes behind the newest record": (
        ProblemKind.STALE_TAIL,
        "commitlog",
        lambda store: flip(log_file(store, -1), -1),
    ),
    "an entry's place": (ProblemKind.CONSUME_QUEUE, "consumequeue/T/1", lambda store: flip(queue_file(store, 1, 1), 7)),
    "an entry's size": (ProblemKind.CONSUME_QUEUE, "consumequeue/T/1", lambda store: flip(queue_file(store, 1, 1), 11)),
    "an entry's tags": (ProblemKind.CONSUME_QUEUE, "consumequeue/T/1", lambda store: flip(queue_file(store, 1, 1), 19)),
    "the sign of an entry's tags": (
        ProblemKind.CONSUME_QUEUE,
        "consumequeue/T/1",
        lambda store: flip(queue_file(store, 1, 1), 12, 0x80),
    ),
    "a newest entry": (
        ProblemKind.CONSUME_QUEUE,
        "consumequeue/T/1",
        lambda store: queue_file(store, 1, -1).write_bytes(bytes(640)),
    ),
    "an entry behind the newest": (
        ProblemKind.CONSUME_QUEUE,
        "consumequeue/T/1",
        lambda store: flip(queue_file(store, 1, -1), -3),
    ),
    "a missing queue": (
        ProblemKind.CONSUME_QUEUE,
        "consumequeue/T/2",
        lambda store: shutil.rmtree(store / "consumequeue" / "T" / "2"),
    ),
    "a missing queue file": (
        ProblemKind.CONSUME_QUEUE,
        "consumequeue/T/0",
        lambda store: queue_file(store, 0, 1).unlink(),
    ),
    "an index hash": (ProblemKind.INDEX, "index", lambda store: flip(index_file(store, 1), first_entry(store) + 3)),
    "an index place": (ProblemKind.INDEX, "index", lambda store: flip(index_file(store, 1), first_entry(store) + 11)),
    "an index time": (ProblemKind.INDEX, "index", lambda store: flip(index_file(store, 1), first_entry(store) + 34)),
    "an index chain": (ProblemKind.INDEX, "index", lambda store: flip(index_file(store, 1), first_entry(store) + 19)),
    "an index slot": (ProblemKind.INDEX, "index", lambda store: flip(index_file(store, 1), 43)),
    "an index count": (ProblemKind.INDEX, "index", lambda store: flip(index_file(store, 1), 39)),
    "an index header": (ProblemKind.INDEX, "index", lambda store: flip(index_file(store, 1), 31)),
    "a missing index file": (ProblemKind.INDEX, "index", lambda store: index_file(store, 1).unlink()),
    "a checkpoint": (ProblemKind.CHECKPOINT, "checkpoint", lambda store: flip(store / "checkpoint", 1)),
    "a cut checkpoint": (ProblemKind.CHECKPOINT, "checkpoint", lambda store: (store / "checkpoint").write_bytes(b"")),
    "the topics": (
        ProblemKind.CONFIG,
        "config/topics.json",
        lambda store: [file.write_text("{oops") for file in (store / "config").glob("topics.json*")],
    ),
    "the sizes": (
        ProblemKind.CONFIG,
        "config/sizes.json",
        lambda store: [file.write_text("{oops") for file in (store / "config").glob("sizes.json*")],
    ),
    "the recovery point": (
        ProblemKind.DERIVED,
        "fsstore/coverage.json",
        lambda store: (store / "fsstore" / "coverage.json").write_text("{oops"),
    ),
}


def readable(store: Path) -> set[int]:
    """Numbers of messages that read as they were put."""
    found = set()
    with MessageStore.open(store, StoreConfig(mode=OpenMode.READ_ONLY)) as opened_store:
        for number in range(COUNT):
            try:
                message = opened_store.get("T", number % 3, number // 3)
            except ReadError:
                continue
            assert bytes(message.body) == b"body-%d" % number
            found.add(number)
    return found


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_damage_is_reported_where_it_is_and_check_writes_nothing(store: Path, damage: str) -> None:
    kind, path, spoil = DAMAGE[damage]
    spoil(store)
    before = contents(store)
    with nothing_left_open():
        problems = list(check_store(store))
    assert any(problem.kind is kind and problem.path.startswith(path) for problem in problems), list(map(str, problems))
    assert contents(store) == before


@pytest.mark.parametrize("damage", DAMAGE)
def test_repair_mends_what_can_be_mended_and_loses_no_good_message(store: Path, damage: str) -> None:
    DAMAGE[damage][2](store)
    good = readable(store)
    assert len(good) >= 200
    with nothing_left_open():
        said = list(repair_store(store))
    assert [line for line in said if line.startswith("not repaired")] == []
    assert readable(store) >= good
    assert list(check_store(store)) == []
    before = contents(store)
    assert list(repair_store(store)) == []
    assert contents(store) == before
    with MessageStore.open(store, SMALL) as mended:
        put = mended.put(Message("T", b"on"), 1)
        assert bytes(mended.get("T", 1, put.queue_offset).body) == b"on"


def test_a_whole_store_has_no_problem_and_repair_leaves_it_alone(store: Path) -> None:
    before = contents(store)
    heard: list[CheckProgress] = []
    assert list(check_store(store, heard.append)) == []
    assert list(repair_store(store)) == []
    assert contents(store) == before
    assert heard[-1].done_bytes > 0
    assert all(one.done_bytes <= one.total_bytes for one in heard)


def test_repair_of_a_store_that_was_not_closed_recovers_it(store: Path) -> None:
    (store / "abort").touch()
    assert list(repair_store(store)) == []
    assert not (store / "abort").exists()
    assert readable(store) == set(range(COUNT))


MANY_KEYS = replace(SMALL, sizes=replace(SMALL_SIZES, index_entries=4000))


def killed_with_keys_in_memory(folder: Path) -> None:
    """A store at `killed` with 40 keys, of which 20 are in the index file."""
    with killed(folder / "store", folder / "killed", MANY_KEYS) as store:
        store.put_batch([Message("T", b"x", keys=[f"K{number}"]) for number in range(20)], 0)
        store.flush()
        store.put_batch([Message("T", b"x", keys=[f"K{number}"]) for number in range(20, 40)], 0)


def test_keys_that_a_dead_writer_had_in_memory_are_no_finding(tmp_path: Path) -> None:
    killed_with_keys_in_memory(tmp_path)
    require_clean(check_store(tmp_path / "killed"))
    with MessageStore.open(tmp_path / "killed", MANY_KEYS) as store:
        assert [len(list(store.query("T", f"K{number}"))) for number in range(40)] == [1] * 40
        [path] = (tmp_path / "killed/index").iterdir()
    (tmp_path / "killed/abort").touch()  # of keys that are in the files each is looked for
    with path.open("r+b") as file:
        file.seek(-(4000 - 5) * 20, 2)
        file.write(bytes(4))
    assert {problem.kind for problem in check_store(tmp_path / "killed")} == {ProblemKind.INDEX}


def test_a_wrong_time_is_found_beside_keys_that_a_dead_writer_had_in_memory(tmp_path: Path) -> None:
    killed_with_keys_in_memory(tmp_path)
    [path] = (tmp_path / "killed/index").iterdir()
    with path.open("r+b") as file:
        file.seek(-(4000 - 5) * 20 + 12, 2)
        file.write(b"\0\0\1\0")
    assert [problem.text for problem in check_store(tmp_path / "killed")] == [
        "1 entries from number 5 on have a wrong time"
    ]
    assert "removed the index, to make it again from the log" in list(repair_store(tmp_path / "killed"))
    require_clean(check_store(tmp_path / "killed"))


def test_damaged_bytes_are_kept_and_framed_so_that_the_log_reads_through(store: Path) -> None:
    file = log_file(store, 1)
    original = file.read_bytes()
    spoiled = bytearray(original)
    spoiled[1000:1500] = bytes(range(250)) * 2
    file.write_bytes(spoiled)
    said = list(repair_store(store))
    (kept,) = (store / "fsstore" / "damaged").iterdir()
    start, end = (int(part) % 8192 for part in kept.name.split("-"))
    assert start <= 1000
    assert end >= 1500
    assert kept.read_bytes() == bytes(spoiled[start:end])
    assert str(kept.relative_to(store)) in said[0]
    mended = file.read_bytes()
    assert (mended[:start], mended[end:]) == (original[:start], original[end:])


def test_a_repair_that_was_stopped_is_finished_by_the_next(store: Path) -> None:
    for damage in ("a body", "an entry's place", "an index hash", "a missing log file"):
        DAMAGE[damage][2](store)
    good = readable(store)
    for stop_after in range(1, 4):
        steps = repair_store(store)
        for _ in range(stop_after):
            next(steps, None)
        steps.close()  # type: ignore[attr-defined]
        assert readable(store) >= good
    list(repair_store(store))
    assert list(check_store(store)) == []
    assert readable(store) >= good


def test_a_live_writer_is_the_only_finding(store: Path) -> None:
    with MessageStore.open(store, SMALL):
        script = "import sys; from engine import check_store; print(*[p.kind.name for p in check_store(sys.argv[1])])"
        command = [sys.executable, "-c", script, str(store)]
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert found.stdout.split() == ["LIVE_WRITER"]
        with pytest.raises(StoreLockedError):
            list(repair_store(store))


def test_nothing_is_no_store(tmp_path: Path) -> None:
    for verb in (check_store, repair_store):
        with pytest.raises(NotAStoreError):
            list(verb(tmp_path / "nothing"))


def test_a_problem_reads_like_a_sentence() -> None:
    problem = Problem(ProblemKind.INDEX, "index/20261121020304764", 40, "1 slots lead to a wrong entry")
    assert str(problem) == "index: index/20261121020304764 at byte 40: 1 slots lead to a wrong entry"


@pytest.mark.parametrize("name", NAMES)
def test_stores_that_rocketmq_closed_have_no_problem(name: str, tmp_path: Path) -> None:
    given = golden(name, tmp_path)
    path = given.recovered if name == "crash" else given.path
    assert [str(problem) for problem in check_store(path)] == []


def test_the_key_of_tags_that_rocketmq_5_adds_is_no_problem(tmp_path: Path) -> None:
    """Since 5.4 a record also gets the key T#TAGS in the index, behind its others."""
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as store:
        index = store._parts.index
        for number in range(200):
            keys = [f"key-{number}"] if number % 3 else []
            tags = f"tag-{number % 7}" if number % 2 else ""
            put = store.put(Message("T", b"x", keys, tags), number % 2)
            if tags:
                index.settle()
                index.flush()
                index.memtable.last = put.physical_offset - 1
                index.put(keyed("T", [f"T#{tags}"]), put.physical_offset, put.store_time_ms)
                assert index_hash("T", f"T#{tags}") >= 0
        store.flush()
        assert [str(problem) for problem in store.check()] == []
        assert len(store.query("T", "T#tag-1")) == 0
    assert [str(problem) for problem in check_store(path)] == []


class PublishingDisk(HastyDisk):
    """Has `publish` called while something waits for the disk."""

    publish: Callable[[], object] = staticmethod(lambda: None)

    def sync(self, descriptor: int, path: Path) -> None:
        self.publish()


def test_a_check_leaves_out_what_comes_while_it_flushes(store: Path) -> None:
    disk = PublishingDisk()
    with MessageStore.open(store, replace(SMALL, disk=disk)) as busy:
        busy.put(Message("T", b"one", ["one"]), 0)
        disk.publish = lambda: busy.put(Message("T", b"more", ["more"]), 1)
        assert list(busy.check()) == []
        disk.publish = PublishingDisk.publish
        assert busy.query("T", "more")


def test_a_check_sees_an_index_file_between_two_writes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageStore.open(store, SMALL) as busy, ThreadPoolExecutor(1) as thread:
        index, records = busy._parts.index, IndexFile.records
        writes: list[Future[None]] = []

        def write() -> None:
            busy.put(Message("T", b"more", [f"more-{len(writes)}"]), 1)
            index.settle()

        def records_meanwhile(file: IndexFile) -> Array:
            if file is index.files[-1]:
                writes.append(thread.submit(write))
                wait(writes, timeout=0.1)  # it has to wait for the lock
            return records(file)

        problems = busy.check()
        monkeypatch.setattr(IndexFile, "records", records_meanwhile)
        assert list(map(str, problems)) == []
        assert wait(writes, timeout=10).not_done == set()
        assert len(writes) > 0


@pytest.mark.parametrize("next_file", ["none", "empty", "whole"])
def test_a_log_that_ends_with_a_full_file_is_whole(tmp_path: Path, next_file: str) -> None:
    """The record that would have begun the next file was refused; a power cut may take that file's size, or its
    name."""
    border = 8192
    with killed(tmp_path / "store", tmp_path / "left") as store:
        while store.physical_end < border - 400:
            store.put(Message("T", b"x" * 100), 0)
        planted = encoder.encode(Message("T", b"body" * 100), 0, 1)
        planted.place(0, border + 88, 1)
        with pytest.raises(IllegalMessageError):
            store.put(Message("T", bytes(planted.buffer)), 0)
        store.flush()
        assert store.physical_end == store.durable_end == border
    last = tmp_path / "left" / "commitlog" / f"{border:020d}"
    assert last.stat().st_size == border
    if next_file == "none":
        last.unlink()
    elif next_file == "empty":
        os.truncate(last, 0)
    with MessageStore.open(tmp_path / "left", SMALL) as store:
        assert store.physical_end == border
        require_clean(store.check())
        assert store.put(Message("T", b"next"), 0).physical_offset == border
        require_clean(store.check())
    require_clean(check_store(tmp_path / "left"))


def test_a_check_of_an_open_store_leaves_out_what_comes_meanwhile(store: Path) -> None:
    with MessageStore.open(store, replace(SMALL)) as busy:
        problems = busy.check()
        for number in range(100):
            busy.put(Message("T", b"more", [f"more-{number}"]), number % 3)
        assert list(problems) == []
        assert list(busy.check()) == []

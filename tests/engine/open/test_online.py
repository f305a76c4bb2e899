"""A store is checked beside its writer: damage is found, and messages that come or go meanwhile are no findings."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine import (
    CheckNote,
    CheckProgress,
    Message,
    MessageStore,
    ProblemKind,
    Retention,
    StoreBusyError,
    StoreConfig,
    check_online,
)
from engine.settings import notes
from tests.engine.storetools import SMALL, HastyDisk, require_clean

BESIDE = StoreConfig(disk=HastyDisk())
KEPT = Retention(max_bytes=2 * 8192, clean_forcibly=False, clean_interval_ms=3_600_000, delete_pause_ms=0)
COUNT = 200
HOSTILE_SECONDS = 3.0
"""So much of writing, of which a check takes a fifth of a second or so."""

HOSTILE = """
import random, sys, time
from engine import FileSizes, FlushPolicy, Message, MessageStore, Retention, StoreConfig
from tests.engine.storetools import SMALL_SIZES, HastyDisk

path, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
chance, end, number = random.Random(seed), time.monotonic() + seconds, 0
policy = FlushPolicy(consume_queue_interval_ms=1, consume_queue_least_pages=0, consume_queue_thorough_interval_ms=1)
kept = Retention(max_bytes=320 << 10, clean_interval_ms=1, delete_pause_ms=0, clean_forcibly=False, disk_warn_ratio=1)
config = StoreConfig(sizes=SMALL_SIZES, flush=policy, disk=HastyDisk(), retention=kept)
with MessageStore.open(path, config, create=True) as store:
    print("open", flush=True)
    while time.monotonic() < end:
        number, topic, what = number + 1, f"T{chance.randrange(6)}", chance.random()
        if what < 0.01 and topic in store.topics():
            store.delete_topic(topic)
        elif what < 0.5:
            keys = [f"key-{number}", f"often-{number % 7}"]
            store.put(Message(topic, b"x" * chance.randrange(1, 900), keys, "tag"))
        else:
            lines = b"".join(b"line %d\\n" % line for line in range(chance.randrange(1, 40)))
            store.put_lines(topic, lines, None, keys=["a"])
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """One that is open, with messages in several files, all of it on disk."""
    with MessageStore.open(tmp_path / "store", replace(SMALL, retention=None), create=True) as opened:
        fill(opened, "T")
        opened.flush()
        yield opened


def fill(store: MessageStore, topic: str) -> None:
    for number in range(COUNT):
        store.put(Message(topic, b"body-%d" % number * 20, [f"key-{number}"], "tag"), number % 3)


def kinds(store: MessageStore, progress: Callable[[CheckProgress], None] | None = None) -> set[ProblemKind]:
    return {problem.kind for problem in check_online(store.path, store.flush, progress, BESIDE).problems}


def spoil(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0x40]))


def test_a_store_in_use_is_checked_to_what_is_on_disk(store: MessageStore) -> None:
    found = check_online(store.path, store.flush, None, BESIDE)
    assert (found.begin, found.end, found.problems) == (0, store.physical_end, ())


@pytest.mark.parametrize(
    ("file", "position", "kind"),
    [
        ("commitlog/*", 200, ProblemKind.BAD_RECORD),
        ("consumequeue/T/1/*", 27, ProblemKind.CONSUME_QUEUE),
        ("index/*", 40 + 4 * 17 + 20 * 5 + 5, ProblemKind.INDEX),
        ("index/*", 40 + 1, ProblemKind.INDEX),
    ],
)
def test_damage_is_found_while_the_store_is_written(
    store: MessageStore, file: str, position: int, kind: ProblemKind
) -> None:
    spoil(min(store.path.glob(file)), position)
    assert kind in kinds(store)


def test_a_slot_of_the_index_file_that_is_written_is_checked(store: MessageStore) -> None:
    spoil(max(store.path.glob("index/*")), 40 + 1)
    assert kinds(store) == {ProblemKind.INDEX}


def once(act: Callable[[], object], stage: str) -> Callable[[CheckProgress], None]:
    """Do it when a check tells for the first time that it is at that stage."""
    is_done = False

    def progress(now: CheckProgress) -> None:
        nonlocal is_done
        if now.stage == stage and not is_done:
            is_done = True
            act()

    return progress


@pytest.mark.parametrize("stage", ["reading records", "comparing queues and index"])
def test_a_topic_that_is_deleted_and_made_again_meanwhile_is_no_finding(store: MessageStore, stage: str) -> None:
    def again() -> None:
        store.delete_topic("T")
        fill(store, "T")
        store.flush()

    assert kinds(store, once(again, stage)) == set()


@pytest.mark.parametrize("stage", ["reading records", "comparing queues and index"])
def test_what_retention_takes_meanwhile_is_no_finding(tmp_path: Path, stage: str) -> None:
    with MessageStore.open(tmp_path / "store", replace(SMALL, retention=KEPT), create=True) as store:
        fill(store, "T")
        store.flush()

        def expire() -> None:
            fill(store, "U")
            while store.clean():
                pass
            store.flush()

        found = check_online(store.path, store.flush, once(expire, stage), BESIDE)
        assert store.stats().min_physical_offset > 0
        assert found.problems == ()


def test_damage_after_what_retention_took_is_still_found(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", replace(SMALL, retention=KEPT), create=True) as store:
        fill(store, "T")
        store.flush()
        files = sorted(store.path.glob("commitlog/*"))
        spoil(files[-2], 200)
        spoil(files[0], 200)
        found = check_online(store.path, store.flush, once(store.clean, "reading records"), BESIDE)
        assert {(one.kind, Path(one.path).name) for one in found.problems if one.kind is ProblemKind.BAD_RECORD} == {
            (ProblemKind.BAD_RECORD, files[-2].name)
        }


def test_hostile_writing_is_no_finding(tmp_path: Path) -> None:
    """Another process writes, expires and deletes topics as fast as it can."""
    path = tmp_path / "store"
    words = [sys.executable, "-c", HOSTILE, str(path), "7", str(HOSTILE_SECONDS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        checks = 0
        while writer.poll() is None:
            slow = 0.002 * (checks % 2)  # every other check is overtaken by retention
            try:
                found = check_online(path, lambda: None, lambda _, slow=slow: time.sleep(slow), BESIDE)  # type: ignore[misc]
            except StoreBusyError:
                continue  # overtaken each time, and says so
            if writer.poll() is None:
                require_clean(found.problems)
                checks += 1
    assert writer.returncode == 0
    assert checks > 0


def test_a_check_is_noted_for_the_stores_status(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.open.online.NOTE_MS", 0)
    assert store.last_check() is None
    seen: list[CheckNote | None] = []
    spoil(min(store.path.glob("commitlog/*")), 200)
    check_online(store.path, store.flush, lambda _: seen.append(store.last_check()), BESIDE)
    now_ms = store.config.clock()
    assert {note.state(now_ms) for note in seen if note is not None} == {"running"}
    assert seen[0] is not None
    assert seen[0].state(now_ms + notes.SILENT_MS + 1000) == "interrupted"
    note = store.last_check()
    assert note is not None
    assert (note.state(now_ms), note.done_bytes) == ("ended", note.total_bytes)
    assert note.findings > 0
    assert "bad record" in note.first[0]


def test_a_check_that_somebody_interrupts_is_not_running(store: MessageStore) -> None:
    def interrupt(_: CheckProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_online(store.path, store.flush, interrupt, BESIDE)
    note = store.last_check()
    assert note is not None
    assert note.state(store.config.clock()) == "interrupted"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"first": 3, "begun_ms": -1}', '{"begun_ms": 1e99, "first": []}'])
def test_a_note_that_nobody_wrote_is_none(store: MessageStore, text: str) -> None:
    (store.path / "fsstore/check.json").write_text(text)
    assert store.last_check() is None


def test_a_writer_that_tells_nothing_is_an_error(store: MessageStore) -> None:
    mark = store.path / "fsstore/coverage.json"
    with pytest.raises(StoreBusyError):
        check_online(store.path, lambda: mark.unlink(missing_ok=True), None, BESIDE)


def test_a_mark_that_can_not_be_read_keeps_no_check(store: MessageStore) -> None:
    store.put(Message("T", b"newest"), 0)
    mark = store.path / "fsstore/coverage.json"

    def flush() -> None:
        store.flush()
        mark.write_bytes(b"{")

    found = check_online(store.path, flush, None, BESIDE)
    assert (found.begin, found.end) == (0, store.physical_end)
    assert [(problem.kind, problem.path) for problem in found.problems] == [
        (ProblemKind.DERIVED, "fsstore/coverage.json")
    ]

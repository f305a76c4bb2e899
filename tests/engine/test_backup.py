"""A backup is the store as it was, however the store is in use, and however a run of it ends."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine import (
    BackupError,
    Message,
    MessageStore,
    OpenMode,
    ProblemKind,
    Retention,
    StoreBusyError,
    StoreConfig,
    UnsupportedStoreError,
    back_up,
    backup,
    check_store,
    repair_store,
    restore,
)
from engine.files.paths import read_file
from tests.engine.light_queues import naming, put_as_broker
from tests.engine.open.test_online import HOSTILE, spoil
from tests.engine.storetools import SMALL, HastyDisk, killed, require_clean
from tests.golden import golden

BESIDE = StoreConfig(disk=HastyDisk())
KEPT = Retention(max_bytes=2 * 8192, clean_forcibly=False, clean_interval_ms=3_600_000, delete_pause_ms=0)
Held = dict[str, dict[int, list[tuple[int, bytes, tuple[str, ...]]]]]
"""Queue offset, body and keys of each message, by topic and queue."""


def held(path: Path) -> Held:
    with MessageStore.open(path, replace(BESIDE, mode=OpenMode.READ_ONLY)) as store:
        return {
            topic: {
                queue: [(one.queue_offset, bytes(one.body), tuple(one.keys)) for one in store.read(topic, queue, 0)]
                for queue in queues
            }
            for topic, queues in store.queues_by_topic().items()
        }


def fill(store: MessageStore, topic: str, count: int = 60) -> None:
    for number in range(count):
        store.put(Message(topic, b"%d of " % number * 30, [f"key-{number}"], "tag"), number % 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store of several files."""
    with MessageStore.open(tmp_path / "store", SMALL, create=True) as store:
        fill(store, "T")
        fill(store, "gone")
    return tmp_path / "store"


@pytest.fixture
def copy(path: Path, tmp_path: Path) -> Path:
    """A backup of it."""
    back_up(path, tmp_path / "copy", None, BESIDE)
    return tmp_path / "copy"


def require_equal(copy: Path, path: Path) -> None:
    require_clean(check_store(copy))
    assert held(copy) == held(path)
    with MessageStore.open(copy, replace(BESIDE, mode=OpenMode.READ_ONLY)) as store:
        assert store.recovery.scanned_bytes == 0, "it was not closed"
        newest = store.bounds("T", 0).max_offset - 1
        key = store.get("T", 0, newest).keys[0]
        assert newest in {one.queue_offset for one in store.query("T", key)}


def log_files(store: Path) -> dict[str, tuple[int, int]]:
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in (store / "commitlog").iterdir()}


def test_a_backup_is_a_store_that_equals_the_first(path: Path, copy: Path) -> None:
    require_equal(copy, path)
    assert copy.stat().st_mode & 0o777 == 0o700


def test_a_second_run_copies_what_is_new(path: Path, copy: Path) -> None:
    before = log_files(copy)
    with MessageStore.open(path, SMALL) as store:
        fill(store, "U")
        store.delete_topic("gone")
        end = store.physical_end
        store.flush()
        done = back_up(path, copy, None, BESIDE)  # while it is open
        fill(store, "U", 3)
    assert (done.begin, done.start, done.end) == (0, len(before) * 8192 - 8192 + done.start % 8192, end)
    assert [name for name, stamp in before.items() if log_files(copy)[name] != stamp] == [max(before)]
    assert sorted(held(copy)) == ["T", "U"]
    require_clean(check_store(copy))
    again = back_up(path, copy, None, BESIDE)
    assert again.start == end
    assert back_up(path, copy, None, BESIDE).start == again.end
    require_equal(copy, path)


def test_what_retention_took_goes_from_the_backup_and_numbers_stay(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    with MessageStore.open(path, replace(SMALL, retention=KEPT), create=True) as store:
        fill(store, "early", 9)
        store.flush()
        back_up(path, copy, None, BESIDE)
        for _ in range(4):
            fill(store, "T")
            store.flush()
            back_up(path, copy, None, BESIDE)
        while store.clean():
            pass
        begin = store.stats().min_physical_offset
        assert store.bounds("early", 0).max_offset == store.bounds("early", 0).min_offset == 3
        store.flush()
        assert back_up(path, copy, None, BESIDE).begin == begin > 0
        assert back_up(path, tmp_path / "new", None, BESIDE).begin == begin
    for one in (copy, tmp_path / "new"):
        assert min(log_files(one)) == f"{begin:020d}"
        require_equal(one, path)
        with MessageStore.open(one, SMALL) as store:
            assert store.put(Message("early", b"next"), 0).queue_offset == 3


class FailingDisk(HastyDisk):
    """Fails from the n-th call on, as if its process had died."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def _call(self) -> None:
        self.calls -= 1
        if self.calls < 0:
            raise OSError(5, "no more")

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        self._call()
        super().allocate(descriptor, path, start, size_bytes)

    def sync(self, descriptor: int, path: Path) -> None:
        self._call()

    def sync_directory(self, path: Path) -> None:
        self._call()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_that_is_cut_short_leaves_the_backup_good(path: Path, copy: Path, tmp_path: Path, is_first: bool) -> None:
    before, was = held(path), tmp_path / "was"
    shutil.copytree(copy, was)
    with MessageStore.open(path, SMALL) as store:
        fill(store, "U")
        fill(store, "T")
    after = held(path)
    for calls in range(0, 200, 13):
        target = tmp_path / f"try-{calls}"
        if not is_first:
            shutil.copytree(was, target)
        try:
            back_up(path, target, None, replace(BESIDE, disk=FailingDisk(calls)))
            break
        except Exception:
            if not is_first:
                found = {problem.kind for problem in check_store(target)}
                assert found <= {
                    ProblemKind.BACKUP,
                    ProblemKind.STALE_TAIL,
                    ProblemKind.CONSUME_QUEUE,
                    ProblemKind.INDEX,
                }
                kept = held(target)
                for topic, queues in before.items():
                    for queue, messages in queues.items():
                        assert kept[topic][queue][: len(messages)] == messages
                        assert kept[topic][queue] == after[topic][queue][: len(kept[topic][queue])]
            back_up(path, target, None, BESIDE)
            require_equal(target, path)
    assert calls > 36


def test_a_run_that_did_not_end_is_a_finding(path: Path, copy: Path) -> None:
    note = copy / "fsstore/backup.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"is_complete": False}))
    (problem,) = check_store(copy)
    assert problem.kind is ProblemKind.BACKUP
    back_up(path, copy, None, BESIDE)
    require_equal(copy, path)


def test_damage_is_in_the_backup_and_told(path: Path, tmp_path: Path) -> None:
    spoil(min((path / "commitlog").iterdir()), 200)
    done = back_up(path, tmp_path / "copy", None, BESIDE)
    assert done.damaged == 1
    assert ProblemKind.BAD_RECORD in {one.kind for one in check_store(tmp_path / "copy")}


def refusal(path: Path, copy: Path) -> str:
    before = held(copy) if (copy / "commitlog").is_dir() else {}
    with pytest.raises(BackupError) as refused:
        back_up(path, copy, None, BESIDE)
    if before:
        assert held(copy) == before
    return str(refused.value)


def test_what_is_no_backup_of_the_store_is_left_alone(path: Path, copy: Path, tmp_path: Path) -> None:
    assert "lies in the store" in refusal(path, path / "config/copy")
    assert "lies in the store" in refusal(path, path)
    (tmp_path / "full/fsstore").mkdir(parents=True)
    (tmp_path / "full/fsstore/mine").write_text("something")
    assert "not empty" in refusal(path, tmp_path / "full")
    with MessageStore.open(tmp_path / "other", SMALL, create=True) as other:
        fill(other, "O", 300)
    assert "newest message differs" in refusal(tmp_path / "other", copy)
    with MessageStore.open(tmp_path / "short", SMALL, create=True) as other:
        fill(other, "O", 3)
    assert "reaches to physical offset" in refusal(tmp_path / "short", copy)
    spoil(min((path / "commitlog").iterdir()), 200)
    assert list(repair_store(path, None, BESIDE))
    assert "as after a repair" in refusal(path, copy)
    with MessageStore.open(copy, SMALL) as written:
        fill(written, "T", 1)
    assert "written to since" in refusal(path, copy)


def test_a_gap_that_retention_made_is_refused(path: Path, copy: Path) -> None:
    with MessageStore.open(path, replace(SMALL, retention=KEPT)) as store:
        fill(store, "T", 200)
        while store.clean():
            pass
    assert "is gone" in refusal(path, copy)


def test_a_touched_file_is_compared_and_no_reason_to_refuse(path: Path, copy: Path) -> None:
    os.utime(min((path / "commitlog").iterdir()))
    back_up(path, copy, None, BESIDE)


def test_a_store_that_was_not_closed_is_copied_to_its_last_record(tmp_path: Path) -> None:
    with killed(tmp_path / "store", tmp_path / "dead") as store:
        fill(store, "T")
    back_up(tmp_path / "dead", tmp_path / "copy", None, BESIDE)
    require_equal(tmp_path / "copy", tmp_path / "store")


def test_the_stores_own_retention_takes_nothing_from_the_backup(path: Path, tmp_path: Path) -> None:
    (path / "config/retention.json").write_text('{"maxBytes": 1, "cleanResourceInterval": 1}')
    back_up(path, tmp_path / "copy", None, BESIDE)
    assert held(tmp_path / "copy") == held(path)
    assert (tmp_path / "copy/config/retention.json").exists()


def test_multi_dispatch_is_found_in_the_queues(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as store:
        for _ in range(9):
            put_as_broker(store, naming("more"), 0)
    assert len(held(path)["more"][0]) == 9
    back_up(path, tmp_path / "copy", None, BESIDE)
    assert held(tmp_path / "copy") == held(path)


@pytest.mark.parametrize("name", ["basic", "rolled", "retention", "delay"])
def test_a_brokers_store_is_copied(tmp_path: Path, name: str) -> None:
    path = golden(name, tmp_path / "golden").path
    back_up(path, tmp_path / "copy", None, BESIDE)
    assert held(tmp_path / "copy") == held(path)
    require_clean(check_store(tmp_path / "copy"))


def test_what_can_not_be_written_here_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "store/dledger-n0/data").mkdir(parents=True)
    with pytest.raises(UnsupportedStoreError, match="DLedger"):
        back_up(tmp_path / "store", tmp_path / "copy", None, BESIDE)


def test_a_deletion_that_retention_forgets_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as store:
        fill(store, "T", 5)
        store.delete_topic("T")
        fill(store, "T", 3)
    read = backup._Run._settings

    def forgotten(run: backup._Run, paths: tuple[Path, ...]) -> dict[str, bytes]:
        (path / "fsstore/deleted.json").write_text('{"topics": {}}')
        return read(run, paths)

    expected = held(path)
    monkeypatch.setattr(backup._Run, "_settings", forgotten)
    back_up(path, tmp_path / "copy", None, BESIDE)
    assert held(tmp_path / "copy") == expected
    require_clean(check_store(tmp_path / "copy"))


def test_settings_that_the_disk_refuses_are_left_out_and_told(
    path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Path, most_bytes: int) -> bytes:
        if file == path / "config" / "topics.json":
            raise OSError(errno.EIO, "refused", str(file))
        return read_file(file, most_bytes)

    before = (copy / "config" / "topics.json").read_bytes()
    monkeypatch.setattr(backup, "read_file", refuse)
    assert back_up(path, copy, None, BESIDE).left_out == ("config/topics.json",)
    assert (copy / "config" / "topics.json").read_bytes() == before
    require_clean(check_store(copy))


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Path]:
    """A store that another process writes, expires and deletes topics of, as fast as it can."""
    words = [sys.executable, "-c", HOSTILE, str(tmp_path / "store"), "3", "1000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        yield tmp_path / "store"
        writer.kill()


def test_a_store_in_hostile_use_is_copied(busy: Path, tmp_path: Path) -> None:
    copied, last_s = 0, time.monotonic() + 30
    for number in itertools.count():
        copy = tmp_path / f"copy-{number // 2}"
        try:
            done = back_up(busy, copy, None, BESIDE)
        except (StoreBusyError, BackupError):
            pass  # retention was faster
        else:
            copied += done.end - done.start
            require_clean(check_store(copy))
        if (number >= 3 and copied) or time.monotonic() > last_s:
            break
    assert copied > 0


def test_a_backup_becomes_a_store_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restored store holds what its backup holds, an interrupted run goes on, and nothing is written over."""
    store, copy, made = (tmp_path / name for name in ("store", "copy", "made"))
    with MessageStore.open(store, SMALL, create=True) as source:
        fill(source, "t")
        source.commit_offset("g", "t", 0, 7)
    back_up(store, copy)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(backup._Run, "_copy_settings", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            restore(copy, made)
    done = restore(copy, made)
    assert (done.messages, done.damaged) == (60, 0)
    assert held(made) == held(store)
    with MessageStore.open(made) as restored:
        assert restored.consumer_offsets() == {"g": {"t": {0: 7}}}
        restored.put(Message("t", b"more"), 0)
    require_clean(check_store(made))
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(BackupError, match="it is not empty and not a backup"):
        restore(copy, made)
    with pytest.raises(BackupError, match="no backup run has finished there"):
        restore(store, tmp_path / "x")
    back_up(made, tmp_path / "second")
    with pytest.raises(BackupError, match="it is a backup of its own"):
        restore(copy, tmp_path / "second")

"""Retention: deletions, their times, and the removal of everything which leads to deleted messages."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from engine import (
    ConfigFileError,
    DiskSpace,
    Expired,
    ExpiredMessageError,
    Message,
    MessageNotFoundError,
    MessageStore,
    OpenMode,
    ReadOnlyStoreError,
    Retention,
    StoreConfig,
    StoreFullError,
    StoreListener,
    check_store,
    with_broker_conf,
    with_options,
)
from engine.derived.consume_queue import ConsumeQueue
from engine.derived.consume_queues import ConsumeQueues
from engine.derived.deleted_topics import DeletedTopics
from engine.files.disk import Disk
from engine.files.mapped_file import MappedFile
from engine.write import retention as retention_module
from tests.engine.storetools import SMALL, SMALL_SIZES, HastyDisk, contents, nothing_left_open, require_clean

HOUR_MS = 3_600_000
DISK_BYTES = 1_000_000_000
FILE_BYTES = SMALL_SIZES.commit_log_bytes
RARELY = Retention(clean_interval_ms=HOUR_MS, delete_pause_ms=0, delete_when_hours=())
"""Rounds are called by hand; nothing goes unless a test says more."""


class World:
    """A clock and a disk that a test turns."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.used = 0.1

    def clock(self) -> int:
        return self.now_ms

    def disk_use(self, path: Path) -> DiskSpace:
        return DiskSpace(1, round(self.used * DISK_BYTES), DISK_BYTES)


class OneAtATime(Disk):
    """Counts concurrent syncs of a file."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def sync(self, descriptor: int, path: Path) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.001)
        self.now -= 1


class Ear(StoreListener):
    """Notes expired messages."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int, int]] = []

    def expired(self, expired: Expired) -> None:
        self.heard.append((expired.topic, expired.queue, expired.old_min, expired.new_min))


@pytest.fixture
def world() -> World:
    return World()


@contextmanager
def cleaned(path: Path, world: World, retention: Retention | None, **changes: Any) -> Iterator[MessageStore]:
    config = replace(SMALL, retention=retention, clock=world.clock, **changes)
    with MessageStore.open(path, config, disk_use=world.disk_use, create=True) as store:
        yield store
        if retention is None or retention.clean_interval_ms > 1:  # what goes during a check shows up in it
            require_clean(store.check())
    require_clean(check_store(path))


def fill(store: MessageStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.put(Message("T", b"body-%d" % number, [f"key-{number}", "all"]), number % 3)


def age_log_files(path: Path, world: World, hours: float) -> None:
    """Let all log files be last written so many hours ago."""
    for file in (path / "commitlog").iterdir():
        written = (world.now_ms - hours * HOUR_MS) / 1000
        os.utime(file, (written, written))


def log_files(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "commitlog").iterdir() if any(file.read_bytes()[:8]))


def require_rest(store: MessageStore, count: int) -> None:
    """Messages at or after the log's begin are all readable, and earlier ones are gone, in every way of reading."""
    begin = store.stats().min_physical_offset
    present = 0
    for number in range(count):
        queue, queue_offset = number % 3, number // 3
        bounds = store.bounds("T", queue)
        if queue_offset >= bounds.min_offset:
            message = store.get("T", queue, queue_offset)
            assert bytes(message.body) == b"body-%d" % number
            assert message.physical_offset >= begin
            assert [one.physical_offset for one in store.query("T", f"key-{number}")] == [message.physical_offset]
            present += 1
        else:
            with pytest.raises(ExpiredMessageError):
                store.get("T", queue, queue_offset)
            assert store.query("T", f"key-{number}") == []
            assert store.newest_with_key("T", f"key-{number}") is None
    assert len(store.query("T", "all", 10_000)) == present == store.stats().messages
    assert present > 0


def test_nothing_ever_goes_unless_it_is_asked_for(tmp_path: Path, world: World) -> None:
    with cleaned(tmp_path / "store", world, None) as store:
        fill(store, 0, 300)
        age_log_files(tmp_path / "store", world, 10_000)
        world.used = 0.99
        assert store.clean() == 0
        assert store.read_only_reason is None
        assert store.bounds("T", 0).min_offset == 0


def test_files_over_the_age_go_at_their_hour_and_never_the_newest(tmp_path: Path, world: World) -> None:
    path = tmp_path / "store"
    hour = time.localtime(world.now_ms / 1000).tm_hour
    retention = replace(RARELY, max_age_hours=72, delete_when_hours=(hour,))
    with cleaned(path, world, retention) as store:
        fill(store, 0, 300)
        age_log_files(path, world, 71)
        assert store.clean() == 0
        age_log_files(path, world, 73)
        world.now_ms += HOUR_MS
        assert store.clean() == 0, "it is not the hour"
        world.now_ms -= HOUR_MS
        before = log_files(path)
        assert store.clean() == len(before) - 1
        assert log_files(path) == before[-1:]
        require_rest(store, 300)
        assert store.clean() == 0


def test_old_files_go_at_any_hour_when_the_disk_fills(tmp_path: Path, world: World) -> None:
    path = tmp_path / "store"
    with cleaned(path, world, replace(RARELY, max_age_hours=72, disk_use_ratio=0.75)) as store:
        fill(store, 0, 300)
        age_log_files(path, world, 73)
        assert store.clean() == 0
        world.used = 0.76
        assert store.clean() > 0


def test_the_oldest_files_go_while_the_log_is_longer_than_asked_for(tmp_path: Path, world: World) -> None:
    path = tmp_path / "store"
    with cleaned(path, world, replace(RARELY, max_bytes=20_000)) as store:
        fill(store, 0, 300)
        assert store.clean() > 0
        stats = store.stats()
        assert stats.physical_end - stats.min_physical_offset <= 20_000
        assert stats.physical_end - stats.min_physical_offset > 20_000 - 8192
        require_rest(store, 300)


def test_a_filling_disk_costs_the_oldest_files_whatever_their_age(tmp_path: Path, world: World) -> None:
    with cleaned(tmp_path / "store", world, replace(RARELY, disk_clean_ratio=0.85, delete_batch_files=2)) as store:
        fill(store, 0, 300)
        world.used = 0.84
        assert store.clean() == 0
        world.used = 0.86
        assert store.clean() == 2
        require_rest(store, 300)


class SmallDisk(World):
    """A disk of DISK_FILES log files' size, filled by other data, except for the log's share."""

    DISK_FILES = 100

    def __init__(self, store: Path, other_files: int) -> None:
        super().__init__()
        self.other_files = other_files
        self.store = store

    def disk_use(self, path: Path) -> DiskSpace:
        of_log = len(list((self.store / "commitlog").glob("0*")))
        return DiskSpace(1, (self.other_files + of_log) * FILE_BYTES, self.DISK_FILES * FILE_BYTES)


def test_a_limit_of_the_disk_takes_no_more_files_than_bring_it_below(tmp_path: Path) -> None:
    path = tmp_path / "store"
    world = SmallDisk(path, 0)
    with cleaned(path, world, replace(RARELY, disk_clean_ratio=0.85), preallocate=False) as store:
        fill(store, 0, 300)
        files = len(log_files(path))
        assert files >= 4
        world.other_files = 85 - files + 2  # two files over the limit
        planned = store.plan_retention(store.retention)
        assert [(one.files, one.reason) for one in planned.deletions] == [
            (2, "the disk is over 85% (diskSpaceCleanForciblyRatio)")
        ]
        assert (planned.disk_use, planned.disk_use_after) == (0.87, 0.85)
        assert store.clean() == 2, "ten might go in a round"
        assert len(log_files(path)) == files - 2
        assert store.clean() == 0
        require_rest(store, 300)


def test_entries_that_go_while_a_file_is_deleted_stop_no_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    world = SmallDisk(path, 0)
    with cleaned(path, world, replace(RARELY, disk_clean_ratio=0.85), preallocate=False) as store:
        fill(store, 0, 300)
        world.other_files = 85 - len(log_files(path)) + 2
        monkeypatch.setattr(ConsumeQueue, "physical_offsets", lambda queue, start, end: np.empty(0, np.int64))
        assert store.clean() == 2


def test_space_that_a_reader_still_holds_costs_no_further_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    world = SmallDisk(path, 0)

    class Held(SmallDisk):
        """Where a deleted file that is held takes its space on."""

        def disk_use(self, of: Path) -> DiskSpace:
            used = (self.other_files + files) * FILE_BYTES
            return DiskSpace(1, used, self.DISK_FILES * FILE_BYTES)

    held_world = Held(path, 0)
    with cleaned(path, world, None, preallocate=False) as store:
        fill(store, 0, 300)
        files = len(log_files(path))
    held_world.other_files = 85 - files + 1
    retention = replace(RARELY, disk_clean_ratio=0.85, forced_destroy_interval_ms=1 << 40)
    with cleaned(path, held_world, retention, preallocate=False) as store:
        with store.hold(0):
            assert [store.clean() for _ in range(3)] == [1, 0, 0]
        require_rest(store, 300)


def test_only_limits_of_the_disk_that_were_named_delete(tmp_path: Path, world: World) -> None:
    path = tmp_path / "store"
    asked = with_options(StoreConfig(), {"maxBytes": "1G", "fileReservedTime": 72, "deleteWhen": "04;05"})
    assert asked.retention is not None
    hour = time.localtime(world.now_ms / 1000).tm_hour
    retention = replace(asked.retention, clean_interval_ms=HOUR_MS, delete_when_hours=((hour + 2) % 24,))
    with cleaned(path, world, retention) as store:
        fill(store, 0, 300)
        age_log_files(path, world, 73)
        world.used = 1.0
        assert store.clean() == 0
        planned = store.plan_retention(store.retention)
        assert planned.deletions == ()
        assert planned.waiting_files == len(log_files(path)) - 1, "they go at their hour"


def test_a_brokers_own_conf_brings_a_brokers_limits_of_the_disk() -> None:
    broker = with_broker_conf(StoreConfig(), {"fileReservedTime": "48"}).retention
    assert broker is not None
    assert (broker.disk_use_ratio, broker.disk_clean_ratio) == (0.75, 0.85)
    assert with_broker_conf(StoreConfig(), {"brokerName": "x"}).retention is None
    named = with_options(StoreConfig(), {"fileReservedTime": "48"}).retention
    assert named is not None
    assert (named.disk_use_ratio, named.disk_clean_ratio) == (None, None)


def test_what_is_kept_is_never_less_than_was_asked(tmp_path: Path, world: World) -> None:
    """`maxBytes` on a full disk: the newest whole files that fit into it stay."""
    path = tmp_path / "store"
    with cleaned(path, world, replace(RARELY, max_bytes=3 * FILE_BYTES)) as store:
        fill(store, 0, 300)
        world.used = 1.0
        planned = store.plan_retention(store.retention)
        while store.clean():
            pass
        assert len(log_files(path)) == 3 == planned.kept_files
        assert store.plan_retention(store.retention).deletions == ()
        require_rest(store, 300)


def test_each_deletion_is_told_with_its_messages_times_and_reason(
    tmp_path: Path, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    with cleaned(path, world, None) as store:
        for number in range(300):
            world.now_ms += 1_000
            fill(store, number, 1)
        files = len(log_files(path))
    with cleaned(path, world, replace(RARELY, max_bytes=(files - 2) * FILE_BYTES)) as store:
        stored = [store.get("T", number % 3, number // 3).store_time_ms for number in range(300)]
        (planned,) = store.plan_retention(store.retention).deletions
        with caplog.at_level("INFO", "engine"):
            assert store.clean() == 2
        gone = 300 - store.stats().messages
        assert (planned.files, planned.bytes, planned.messages) == (2, 2 * FILE_BYTES, gone)
        assert (planned.oldest_ms, planned.newest_ms) == (stored[0], stored[gone - 1])
        stats = store.stats()
        assert (stats.expired_files, stats.expired_messages, stats.expired_bytes) == (2, gone, 2 * FILE_BYTES)
        assert stats.last_deletion is not None
        assert stats.last_deletion.newest_ms == stored[gone - 1]
        told = [record.getMessage() for record in caplog.records if "retention deleted" in record.getMessage()]
        assert len(told) == 2
        assert all("1 file of the log, 8,192 bytes, with" in line and "(maxBytes)" in line for line in told)


def test_writers_go_on_within_a_second_of_there_being_room(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cleaned(tmp_path / "store", world, RARELY) as store:
        fill(store, 0, 10)
        world.used = 0.91
        store.clean()
        with pytest.raises(ReadOnlyStoreError, match="91%"):
            store.put(Message("T", b"x"))
        world.used = 0.5  # no round comes for an hour
        monkeypatch.setattr(retention_module, "LOOK_AGAIN_SECONDS", 0.0)
        fill(store, 10, 1)
        assert store.read_only_reason is None


def test_a_disk_without_room_is_looked_at_once_a_second_at_most(tmp_path: Path, world: World) -> None:
    looks = [0]

    def disk_use(path: Path) -> DiskSpace:
        looks[0] += 1
        return world.disk_use(path)

    config = replace(SMALL, retention=RARELY, clock=world.clock)
    with MessageStore.open(tmp_path / "store", config, disk_use=disk_use, create=True) as store:
        fill(store, 0, 1)
        world.used = 0.91
        store.clean()
        before, began_s = looks[0], time.monotonic()
        for _ in range(200):
            with pytest.raises(ReadOnlyStoreError):
                store.put(Message("T", b"x"))
        assert looks[0] - before <= 2 * (2 + time.monotonic() - began_s)  # two paths a look
        world.used = 0.1
        store.clean()


def test_writers_go_on_as_soon_as_a_file_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "LOOK_AGAIN_SECONDS", 3_600.0)
    path = tmp_path / "store"
    world = SmallDisk(path, 0)
    with cleaned(path, world, replace(RARELY, max_bytes=1, delete_batch_files=1), preallocate=False) as store:
        fill(store, 0, 300)
        world.other_files = 92 - len(log_files(path))
        store.clean()
        assert store.read_only_reason == "the disk is 91% full, over 90%"
        store.clean()
        assert store.read_only_reason is None
        fill(store, 300, 1)


def test_closing_ends_a_round_that_pauses_between_files(tmp_path: Path, world: World) -> None:
    path = tmp_path / "store"
    gone = threading.Event()

    class Bell(StoreListener):
        def expired(self, expired: Expired) -> None:
            gone.set()

    slow = replace(RARELY, max_bytes=1, clean_interval_ms=1, delete_pause_ms=600_000)
    store = MessageStore.open(path, replace(SMALL, retention=slow, clock=world.clock), create=True)
    store.subscribe(Bell())
    store.put_lines("T", [b"%d\n" % number for number in range(400)], 0)
    assert store.bounds("T", 0).min_offset >= 0
    assert gone.wait(60)
    began_s = time.monotonic()
    store.close()
    assert time.monotonic() - began_s < 30, "it would pause for ten minutes"
    assert len(log_files(path)) > 1


def test_a_round_lets_a_put_make_its_next_file(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing a file of a gigabyte takes a disk its time: no put waits for it."""
    removing, go_on = threading.Event(), threading.Event()
    retire = MappedFile.retire

    def slowly(file: MappedFile) -> None:
        if file.path.parent.name == "commitlog" and threading.current_thread() is cleaning:
            removing.set()
            assert go_on.wait(60)
        retire(file)

    monkeypatch.setattr(MappedFile, "retire", slowly)
    with cleaned(tmp_path / "store", world, replace(RARELY, max_bytes=1, delete_batch_files=1)) as store:
        fill(store, 0, 300)
        cleaning = threading.Thread(target=store.clean)
        cleaning.start()
        assert removing.wait(60)
        publishing = threading.Thread(target=fill, args=(store, 300, 300))  # rolls the log and the queues
        publishing.start()
        publishing.join(60)
        is_done = not publishing.is_alive()
        go_on.set()
        cleaning.join()
        publishing.join()
        assert is_done
        require_rest(store, 600)


def test_a_plan_deletes_nothing_and_says_the_same_of_a_store_that_is_only_read(tmp_path: Path, world: World) -> None:
    path = tmp_path / "store"
    with cleaned(path, world, None) as store:
        fill(store, 0, 300)
    asked = replace(RARELY, max_bytes=2 * FILE_BYTES)
    before = contents(path)
    plans = []
    for mode in (OpenMode.READ_ONLY, OpenMode.FOLLOW):
        config = replace(SMALL, mode=mode, clock=world.clock)
        with MessageStore.open(path, config, disk_use=world.disk_use) as store:
            store.refresh()
            plans.append(store.plan_retention(asked))
            assert store.plan_retention(None).deletions == ()
    assert contents(path) == before
    assert plans[0] == plans[1]
    with cleaned(path, world, asked) as store:
        assert store.clean() == plans[0].deletions[0].files


def test_what_is_proposed_brings_the_disk_below_with_as_few_files_as_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    world = SmallDisk(path, 0)
    with cleaned(path, world, None, preallocate=False) as store:
        fill(store, 0, 300)
        files = len(log_files(path))
        assert store.plan_retention(None).proposed_max_bytes is None, "there is room"
        world.other_files = 100 - files
        proposed = store.plan_retention(None).proposed_max_bytes
        world.other_files = 1_000
        assert store.plan_retention(None).proposed_max_bytes is None, "the log is not what fills the disk"
    assert proposed is None, "eleven files would have to go"
    world.other_files = 91 - files
    with cleaned(path, world, None, preallocate=False) as store:
        proposed = store.plan_retention(None).proposed_max_bytes
        assert proposed == (files - 2) * FILE_BYTES, "one over the limit, and room for the next one"
        planned = store.plan_retention(Retention(max_bytes=proposed))
        assert [one.files for one in planned.deletions] == [2]
        assert planned.proposed_max_bytes is None


def test_a_store_whose_own_disk_is_full_loses_one_file_of_another_disk_a_round(tmp_path: Path) -> None:
    """Derived data of the file is deleted with it, and is on the full disk: the next round sees the effect."""
    store, log = tmp_path / "store", tmp_path / "log"

    def disk_use(path: Path) -> DiskSpace:
        return DiskSpace(1, 90, 100) if path == store else DiskSpace(2, 10, 100)

    retention = replace(RARELY, disk_clean_ratio=0.85)
    config = replace(SMALL, retention=retention, commit_log_paths=(log,))
    with MessageStore.open(store, config, disk_use=disk_use, create=True) as opened:
        fill(opened, 0, 300)
        assert [opened.clean(), opened.clean()] == [1, 1]


def test_that_there_is_no_space_is_told_until_there_is(tmp_path: Path, world: World) -> None:
    class Full(HastyDisk):
        is_full = False

        def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().allocate(descriptor, path, start, size_bytes)

    disk = Full()
    with cleaned(tmp_path / "store", world, None, disk=disk, preallocate=False) as store:
        fill(store, 0, 3)
        assert store.stats().no_space_reason is None
        disk.is_full = True
        with patch("engine.write.writer.disk_space", return_value=(1_000, 100_000)):
            with pytest.raises(StoreFullError):
                fill(store, 3, 300)
            reason = store.stats().no_space_reason
            assert reason is not None
            assert "8,192 bytes" in reason
            assert "commitlog" in reason
        disk.is_full = False
        assert store.stats().no_space_reason is None, "the disk has room again"
        count = sum(store.bounds("T", queue).max_offset for queue in range(3))
        fill(store, count, 100)


def test_a_filling_disk_costs_nothing_when_that_is_forbidden(tmp_path: Path, world: World) -> None:
    retention = replace(RARELY, disk_clean_ratio=0.85, clean_forcibly=False)
    with cleaned(tmp_path / "store", world, retention) as store:
        fill(store, 0, 300)
        world.used = 0.89
        assert store.clean() == 0


def test_over_the_warn_ratio_writes_are_refused_until_there_is_space(tmp_path: Path, world: World) -> None:
    with cleaned(tmp_path / "store", world, RARELY) as store:
        fill(store, 0, 10)
        world.used = 0.91
        store.clean()
        with pytest.raises(ReadOnlyStoreError, match="91%"):
            store.put(Message("T", b"x"))
        assert store.read_only_reason == "the disk is 91% full, over 90%"
        assert bytes(store.get("T", 0, 0).body) == b"body-0"
        world.used = 0.89
        store.clean()
        assert store.read_only_reason is None
        fill(store, 10, 1)


def test_queues_index_and_listeners_follow(tmp_path: Path, world: World) -> None:
    path, ear = tmp_path / "store", Ear()
    with cleaned(path, world, replace(RARELY, max_bytes=9000)) as store:
        store.subscribe(ear)
        fill(store, 0, 300)
        store.flush()
        minimums = [store.bounds("T", queue).min_offset for queue in range(3)]
        assert minimums == [0, 0, 0]
        queue_files = len(list((path / "consumequeue").rglob("0*")))
        index_files = len(list((path / "index").iterdir()))
        store.clean()
        now = [store.bounds("T", queue).min_offset for queue in range(3)]
        for queue in range(3):
            steps = [(old_min, new_min) for _, heard_queue, old_min, new_min in ear.heard if heard_queue == queue]
            assert [steps[0][0], *(new_min for _, new_min in steps)][-1] == now[queue]
            assert [old_min for old_min, _ in steps] == [0, *(new_min for _, new_min in steps[:-1])]
        assert len(list((path / "consumequeue").rglob("0*"))) < queue_files
        assert len(list((path / "index").iterdir())) < index_files
        require_rest(store, 300)
    for mode in (OpenMode.WRITE, OpenMode.READ_ONLY):
        with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
            assert [store.bounds("T", queue).min_offset for queue in range(3)] == now
            require_rest(store, 300)


def test_a_queue_whose_messages_are_all_gone_keeps_its_numbers(tmp_path: Path, world: World) -> None:
    path = tmp_path / "store"
    with cleaned(path, world, replace(RARELY, max_bytes=9000)) as store:
        store.put_lines("quiet", b"once\n" * 10, 0)
        fill(store, 0, 300)
        store.clean()
        assert store.bounds("quiet", 0).min_offset == store.bounds("quiet", 0).max_offset == 10
        with pytest.raises(ExpiredMessageError):
            store.get("quiet", 0, 9)
        with pytest.raises(MessageNotFoundError):
            store.get("quiet", 0, 10)
    (path / "fsstore" / "clean.json").unlink()
    (path / "fsstore" / "coverage.json").unlink()
    with cleaned(path, world, None) as store:
        assert store.put(Message("quiet", b"again"), 0).queue_offset == 10


def test_a_held_file_stays_readable_until_it_is_released(tmp_path: Path, world: World) -> None:
    with nothing_left_open(), cleaned(tmp_path / "store", world, replace(RARELY, max_bytes=9000)) as store:
        fill(store, 0, 300)
        hold = store.hold(store.get("T", 0, 0).physical_offset)
        store.clean()
        assert bytes(hold.view(0, 8)) != bytes(8)
        with pytest.raises(ExpiredMessageError):
            store.at(0)
        hold.release()
        hold.release()
        with pytest.raises(ExpiredMessageError):
            store.hold(0)


def test_a_held_file_is_forced_away_after_the_interval(tmp_path: Path, world: World) -> None:
    retention = replace(RARELY, max_bytes=9000, forced_destroy_interval_ms=120_000)
    with cleaned(tmp_path / "store", world, retention) as store:
        fill(store, 0, 300)
        message = store.get("T", 0, 0)
        with store.hold(0) as hold:
            store.clean()
            world.now_ms += 119_000
            store.clean()
            assert len(hold.view(0, 8)) == 8
            world.now_ms += 2_000
            store.clean()
            with pytest.raises(Exception, match="deleted"):
                hold.view(0, 8)
        assert bytes(message.body) == b"body-0", "what was handed out stays"


def test_a_stream_keeps_its_first_message_and_expires_under_its_reader(tmp_path: Path, world: World) -> None:
    with cleaned(tmp_path / "store", world, replace(RARELY, max_bytes=9000)) as store:
        fill(store, 0, 300)
        stream = store.stream("T", 0)
        size = stream.size
        store.clean()
        assert (stream.first_offset, stream.size) == (0, size)
        with pytest.raises(ExpiredMessageError):
            stream.read(0, 10)
        assert bytes(stream.read(size - 9, 9)) == b"body-297\n"
        assert store.stream("T", 0).first_offset == store.bounds("T", 0).min_offset


def test_arrays_begin_where_the_queue_does_and_bodies_of_earlier_blocks_have_expired(
    tmp_path: Path, world: World
) -> None:
    with cleaned(tmp_path / "store", world, replace(RARELY, max_bytes=9000)) as store:
        fill(store, 0, 300)
        earlier = store.blocks("T", 0, 0, 100)
        store.clean()
        begin = store.bounds("T", 0).min_offset
        assert begin > 2
        assert len(store.record_sizes("T", 0, 2, 98)[0]) == 100 - begin
        [*gone, last] = earlier
        for block in gone:
            with pytest.raises(ExpiredMessageError):
                store.bodies(block.bodies)
        assert store.blocks("T", 0, 2, 98)[-1].queue_offset.tolist() == last.queue_offset.tolist()
        assert store.bodies(last.bodies)[len(last) - 1] == b"body-297"


def test_retention_runs_by_itself_and_stops_with_the_store(tmp_path: Path, world: World) -> None:
    retention = replace(RARELY, max_bytes=9000, clean_interval_ms=1)
    gone = threading.Event()

    class Bell(StoreListener):
        def expired(self, expired: Expired) -> None:
            gone.set()

    with nothing_left_open(), cleaned(tmp_path / "store", world, retention) as store:
        store.subscribe(Bell())
        fill(store, 0, 3)
        assert store.bounds("T", 0).min_offset == 0  # who asked is told when that changes
        fill(store, 3, 600)
        assert gone.wait(60)


def test_the_store_itself_can_ask_for_retention(tmp_path: Path, world: World) -> None:
    path = tmp_path / "store"
    with cleaned(path, world, None) as store:
        fill(store, 0, 300)
    (path / "config" / "retention.json").write_text(json.dumps({"maxBytes": 9000}))
    with cleaned(path, world, None) as store:
        assert store.clean() > 0
        require_rest(store, 300)


def test_what_the_store_asks_for_is_read_again(tmp_path: Path, world: World) -> None:
    asked = tmp_path / "config/retention.json"
    with cleaned(tmp_path, world, None) as store:
        fill(store, 0, 300)
        files = len(log_files(tmp_path))
        asked.write_text('{"maxBytes": 1, "deleteFileBatchMax": 2, "diskSpaceWarningLevelRatio": 50}')
        assert store.reread_retention() is not None
        world.used = 0.6
        assert store.clean() == 2
        assert store.read_only_reason is not None
        asked.write_text('{"maxBytes": "much"}')
        with pytest.raises(ConfigFileError):
            store.reread_retention()
        assert store.clean() == 2
        asked.unlink()
        assert store.reread_retention() is None
        assert store.clean() == 0
        assert store.read_only_reason is None
        assert store.stats().expired_files == 4
        assert len(log_files(tmp_path)) == files - 4


def test_a_retention_that_was_chosen_at_opening_stays(tmp_path: Path, world: World) -> None:
    chosen = Retention(max_age_hours=72)
    with cleaned(tmp_path, world, chosen) as store:
        (tmp_path / "config/retention.json").write_text('{"fileReservedTime": 1}')
        assert store.reread_retention() == chosen


def test_reading_a_store_never_applies_its_retention(tmp_path: Path, world: World) -> None:
    path = tmp_path / "store"
    with cleaned(path, world, None) as store:
        fill(store, 0, 300)
    (path / "config" / "retention.json").write_text(json.dumps({"maxBytes": 9000}))
    before = contents(path)
    for mode in (OpenMode.READ_ONLY, OpenMode.FOLLOW):
        with MessageStore.open(path, StoreConfig(mode=mode)) as store:
            assert store.clean() == 0
    assert contents(path) == before


def test_a_round_that_is_asked_for_waits_for_the_one_under_way(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    expire, under_way, most = ConsumeQueues.expire, [0], [0]

    def slowly(queues: ConsumeQueues, min_physical_offset: int) -> list[Expired]:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        time.sleep(0.01)
        try:
            return expire(queues, min_physical_offset)
        finally:
            under_way[0] -= 1

    monkeypatch.setattr(ConsumeQueues, "expire", slowly)
    with cleaned(tmp_path / "store", world, replace(RARELY, max_bytes=16_000)) as store:
        store.put_lines("T", b"line of some length\n" * 2000, 0)
        threads = [threading.Thread(target=store.clean) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.bounds("T", 0).min_offset > 0
    assert most == [1]


def test_topics_are_deleted_while_retention_forgets_others(tmp_path: Path) -> None:
    path, disk = tmp_path / "deleted.json", OneAtATime()
    deleted = DeletedTopics(path, disk)
    for number in range(20):
        deleted.add(f"old-{number}", number + 1)

    def forget() -> None:
        for min_physical_offset in range(21):
            deleted.forget_before(min_physical_offset)

    forgetting = threading.Thread(target=forget)
    forgetting.start()
    for number in range(20):
        deleted.add(f"new-{number}", 1000 + number)
    forgetting.join()
    assert disk.most == 1
    assert DeletedTopics(path, disk).until("new-0") == 1000
    assert json.loads(path.read_bytes()) == {"topics": {f"new-{number}": 1000 + number for number in range(20)}}


def test_writers_and_readers_go_on_while_files_go(tmp_path: Path, world: World) -> None:
    retention = replace(RARELY, max_bytes=20_000, clean_interval_ms=1)
    with cleaned(tmp_path / "store", world, retention) as store:
        wrong: list[object] = []
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                for queue in range(3):
                    bounds = store.bounds("T", queue)
                    try:
                        message = store.get("T", queue, bounds.min_offset)
                        if bytes(message.body) != b"body-%d" % (message.queue_offset * 3 + queue):
                            wrong.append(message)
                    except (ExpiredMessageError, MessageNotFoundError):
                        continue
                    except Exception as error:
                        wrong.append(error)
                        return

        store.create_topic("T", 3)
        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        fill(store, 0, 1500)
        done.set()
        for reader in readers:
            reader.join()
        assert wrong == []


def test_a_crash_after_retention_finds_the_store_as_it_was(tmp_path: Path, world: World) -> None:
    path, left = tmp_path / "store", tmp_path / "left"
    with cleaned(path, world, replace(RARELY, max_bytes=9000)) as store:
        fill(store, 0, 300)
        store.clean()
        fill(store, 300, 50)
        shutil.copytree(path, left)
    with cleaned(left, world, None) as store:
        assert not store.recovery.clean
        assert store.recovery.rebuilt == ()
        require_rest(store, 350)

"""Retention: what goes, when, and that everything which leads into the log follows."""

from __future__ import annotations

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

import pytest

from engine import (
    ConfigFileError,
    Expired,
    ExpiredMessageError,
    Message,
    MessageNotFoundError,
    MessageStore,
    OpenMode,
    ReadOnlyStoreError,
    Retention,
    StoreConfig,
    StoreListener,
    check_store,
)
from engine.files.disk import Disk
from engine.log.consume_queues import ConsumeQueues
from engine.log.deleted_topics import DeletedTopics
from tests.engine.storetools import SMALL, contents, nothing_left_open, require_clean

HOUR_MS = 3_600_000
RARELY = Retention(clean_interval_ms=HOUR_MS, delete_pause_ms=0, delete_when_hours=())
"""Rounds are called by hand; nothing goes unless a test says more."""


class World:
    """A clock and a disk that a test turns."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.used = 0.1

    def clock(self) -> int:
        return self.now_ms

    def disk_use(self, path: Path) -> float:
        return self.used


class OneAtATime(Disk):
    """Counts who syncs a file at the same time."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def sync(self, descriptor: int, path: Path) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.001)
        self.now -= 1


class Ear(StoreListener):
    """Remembers what expired."""

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
    """What is at or behind the log's begin is all there, what was before is gone, by every way to it."""
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
    with cleaned(path, world, replace(RARELY, max_age_hours=72)) as store:
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
    with cleaned(tmp_path / "store", world, replace(RARELY, delete_batch_files=2)) as store:
        fill(store, 0, 300)
        world.used = 0.84
        assert store.clean() == 0
        world.used = 0.86
        assert store.clean() == 2
        require_rest(store, 300)


def test_a_filling_disk_costs_nothing_when_that_is_forbidden(tmp_path: Path, world: World) -> None:
    with cleaned(tmp_path / "store", world, replace(RARELY, clean_forcibly=False)) as store:
        fill(store, 0, 300)
        world.used = 0.89
        assert store.clean() == 0


def test_over_the_warn_ratio_writes_are_refused_until_there_is_space(tmp_path: Path, world: World) -> None:
    with cleaned(tmp_path / "store", world, replace(RARELY, clean_forcibly=False)) as store:
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

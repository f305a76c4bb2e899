"""MessageStore: opening, topics, publishing, reading, closing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine import (
    BROKER_SIZES,
    EMBEDDED_SIZES,
    ExpiredMessageError,
    FlushFailedError,
    FlushPolicy,
    IllegalMessageError,
    IllegalTopicError,
    Message,
    MessageNotFoundError,
    MessageStore,
    MessageTooLargeError,
    NotAStoreError,
    OpenMode,
    ReadOnlyStoreError,
    StoreClosedError,
    StoreConfig,
    StoreError,
    StoreFullError,
    StoreListener,
    StoreLockedError,
    TopicExistsError,
    TopicNotFoundError,
    UnsupportedStoreError,
)
from engine.durable import Disk
from tests.engine.storetools import QUIET, SMALL, SMALL_SIZES, bodies, contents, nothing_left_open, opened

# opening


def test_a_new_store_with_one_topic_takes_less_than_100_mib_of_real_space(tmp_path: Path) -> None:
    with opened(tmp_path / "store", StoreConfig()) as store:
        store.put(Message("orders", b"hello", keys=["K"]))
        assert store.sizes == EMBEDDED_SIZES
    files = [file for file in (tmp_path / "store").rglob("*") if file.is_file()]
    assert sum(file.stat().st_blocks * 512 for file in files) < 100 << 20
    assert all(file.stat().st_blocks * 512 >= file.stat().st_size for file in files if "commitlog" in str(file))


def test_opening_and_closing_leaves_no_descriptor_and_no_thread(tmp_path: Path) -> None:
    with opened(tmp_path / "warm"):
        pass
    with nothing_left_open():
        for mode in (OpenMode.WRITE, OpenMode.READ_ONLY, OpenMode.FOLLOW):
            with MessageStore.open(tmp_path / "store", replace(SMALL, mode=mode)) as store:
                if mode is OpenMode.WRITE:
                    store.put_lines("orders", b"line\n" * 500, keys=["K"])
                assert store.stats().messages == 500
                assert bytes(store.get("orders", 0, 0).body) == b"line"


@pytest.mark.parametrize("mode", [OpenMode.READ_ONLY, OpenMode.FOLLOW])
def test_only_a_writer_makes_a_store(tmp_path: Path, mode: OpenMode) -> None:
    with pytest.raises(NotAStoreError):
        MessageStore.open(tmp_path / "nothing", StoreConfig(mode=mode))
    assert not (tmp_path / "nothing").exists()


def test_a_folder_of_something_else_is_not_taken_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(NotAStoreError, match="holiday"):
        MessageStore.open(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_file_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(NotAStoreError):
        MessageStore.open(tmp_path / "file")


def test_a_second_writer_learns_the_pid_of_the_first(tmp_path: Path) -> None:
    with opened(tmp_path / "store"):
        script = (
            "import sys; from engine import *\n"
            "try: MessageStore.open(sys.argv[1], StoreConfig(mode=OpenMode[sys.argv[2]]))\n"
            "except StoreLockedError as error: print(error.pid)"
        )
        for mode in ("WRITE", "READ_ONLY"):
            command = [sys.executable, "-c", script, str(tmp_path / "store"), mode]
            found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
            assert int(found.stdout) == os.getpid()


def test_a_store_is_locked_within_its_process_too(tmp_path: Path) -> None:
    with opened(tmp_path / "store"), pytest.raises(StoreLockedError):
        MessageStore.open(tmp_path / "store", SMALL)


UNREAD: dict[str, Callable[[Path], object]] = {
    "DLedger": lambda path: (path / "dledger-n0" / "data").mkdir(parents=True),
    "RocksDB": lambda path: (path / "consumequeue" / "CURRENT").write_bytes(b"MANIFEST-000001\n"),
    "batch": lambda path: touch(path / "batchconsumequeue" / "T" / "0" / ("0" * 20)),
    "compaction": lambda path: touch(path / "compaction" / "compactionLog" / "T" / "0" / ("0" * 20)),
    "extension": lambda path: touch(path / "consumequeue_ext" / "T" / "0" / ("0" * 20)),
    "several paths": lambda path: [
        (path / "commitlog" / f"{8192 * number:020d}").write_bytes(bytes(8192)) for number in (2, 4, 6)
    ],
    "BatchCQ": lambda path: (path / "config" / "topics.json").write_text(
        json.dumps({"topicConfigTable": {"T": {"topicName": "T", "attributes": {"queue.type": "BatchCQ"}}}})
    ),
}


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")


@pytest.mark.parametrize("mode", list(OpenMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", UNREAD)
def test_what_is_not_read_is_refused_by_name_and_left_alone(tmp_path: Path, kind: str, mode: OpenMode) -> None:
    with opened(tmp_path / "store") as store:
        store.put(Message("T", b"x"))
    UNREAD[kind](tmp_path / "store")
    before = contents(tmp_path / "store")
    with nothing_left_open(), pytest.raises(UnsupportedStoreError):
        MessageStore.open(tmp_path / "store", StoreConfig(mode=mode))
    assert contents(tmp_path / "store") == before


def test_what_a_plain_broker_of_version_5_leaves_beside_its_log_is_no_reason_to_refuse(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.put(Message("T", b"x"))
    for name in ("abort.bak", "rocksdbstore/CURRENT", "compaction/position-checkpoint", "timerwheel", "timerlog/0"):
        file = tmp_path / "store" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x")
    with opened(tmp_path / "store") as store:
        assert bodies(store, "T", 0) == [b"x"]
        assert store.recovery.clean


def test_sizes_asked_for_make_a_new_store_and_do_not_change_an_old_one(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.put(Message("T", b"x", keys=["K"]))
        assert store.sizes == SMALL_SIZES
    with opened(tmp_path / "store", sizes=BROKER_SIZES) as store:
        assert store.sizes == SMALL_SIZES
    (tmp_path / "store" / "config" / "sizes.json").unlink()
    with opened(tmp_path / "store", sizes=None) as store:
        assert (store.sizes.commit_log_bytes, store.sizes.consume_queue_entries) == (8192, 32)
        assert store.newest_with_key("T", "K") is not None


def test_read_only_writes_nothing_and_refuses_every_change(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.put(Message("T", b"x"))
    before = contents(tmp_path / "store")
    with MessageStore.open(tmp_path / "store", StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        changes: list[Callable[[], object]] = [
            lambda: store.put(Message("T", b"y")),
            lambda: store.put_lines("T", b"y\n"),
            lambda: store.put_batch([Message("T", b"y")]),
            lambda: store.create_topic("U"),
            lambda: store.grow_topic("T", 9),
            lambda: store.delete_topic("T"),
        ]
        for change in changes:
            with pytest.raises(ReadOnlyStoreError):
                change()
        assert store.read_only_reason == "it was opened read-only"
        store.flush()
    assert contents(tmp_path / "store") == before


# topics


def test_topics_are_made_grown_and_listed(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        generation = store.topics_generation
        store.create_topic("orders", 2)
        assert store.topics_generation != generation
        assert (store.topics(), store.queues("orders")) == (["orders"], [0, 1])
        store.grow_topic("orders", 5)
        store.grow_topic("orders", 3)
        assert store.queues("orders") == [0, 1, 2, 3, 4]
        assert store.has_queue("orders", 4)
        assert not store.has_queue("orders", 5)
        assert not store.has_queue("others", 0)
        with pytest.raises(TopicExistsError):
            store.create_topic("orders")
        with pytest.raises(IllegalTopicError):
            store.create_topic("no/topic")
        for missing in (
            lambda: store.queues("none"),
            lambda: store.grow_topic("none", 2),
            lambda: store.bounds("none", 0),
        ):
            with pytest.raises(TopicNotFoundError):
                missing()
    with opened(tmp_path / "store") as store:
        assert store.queues("orders") == [0, 1, 2, 3, 4]


def test_topics_that_have_only_queues_or_only_a_name_are_shown(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.create_topic("named", 1)
        store.put(Message("written", b"x"), 0)
    for file in (tmp_path / "store" / "config").glob("topics.json*"):
        file.unlink()
    with opened(tmp_path / "store") as store:
        assert store.topics() == ["written"]
        store.create_topic("named", 1)
        assert store.topics() == ["named", "written"]
        assert store.bounds("named", 0).max_offset == 0
        with pytest.raises(TopicExistsError):
            store.create_topic("written")


def test_a_deleted_topic_stays_deleted_when_everything_is_rebuilt_from_the_log(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        store.put_lines("gone", b"old\n" * 100, 0, keys=["K"])
        store.put_lines("kept", b"line\n" * 100, 0)
        store.delete_topic("gone")
        assert store.topics() == ["kept"]
        assert store.query("gone", "K") == []
        assert store.newest_with_key("gone", "K") is None
        with pytest.raises(TopicNotFoundError):
            store.get("gone", 0, 0)
        with pytest.raises(TopicNotFoundError):
            store.delete_topic("gone")
    lose_derived(path)
    with opened(path) as store:
        assert store.topics() == ["kept"]
        assert len(bodies(store, "kept", 0)) == 100
        store.put(Message("gone", b"new", keys=["K"]), 0)
        assert bodies(store, "gone", 0) == [b"new"]
        assert [bytes(message.body) for message in store.query("gone", "K")] == [b"new"]
    lose_derived(path)
    with opened(path) as store:
        assert bodies(store, "gone", 0) == [b"new"]
        assert [bytes(message.body) for message in store.query("gone", "K")] == [b"new"]


def lose_derived(path: Path) -> None:
    """Lose everything that can be made again from the log."""
    shutil.rmtree(path / "consumequeue")
    shutil.rmtree(path / "index")
    (path / "fsstore" / "coverage.json").unlink()


# publishing


def test_a_message_is_read_back_as_it_was_put(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        put = store.put(Message("T", "grüße".encode(), ["K1", "K2"], "paid", {"city": "Köln"}, flag=7), 2)
        message = store.get("T", 2, put.queue_offset)
        assert bytes(message.body).decode() == "grüße"
        assert (message.keys, message.tags, message.flag) == (["K1", "K2"], "paid", 7)
        assert message.properties == {"KEYS": "K1 K2", "TAGS": "paid", "city": "Köln"}
        assert (message.msg_id, message.store_size) == (put.msg_id, put.store_size)
        assert store.at(put.physical_offset).queue_offset == put.queue_offset
        assert store.physical_end == put.physical_end


def test_messages_without_a_queue_take_the_queues_in_turn(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.create_topic("T", 3)
        puts = [store.put(Message("T", b"x")).queue for _ in range(4)]
        assert puts == [0, 1, 2, 0]
        lines = store.put_lines("T", b"a\nb\nc\nd\n")
        assert (lines.queue, lines.count) == (1, 4)
        assert [bodies(store, "T", queue) for queue in range(3)] == [
            [b"x", b"x", b"c"],
            [b"x", b"a", b"d"],
            [b"x", b"b"],
        ]
        batch = store.put_batch([Message("T", b"e", ["K"]), Message("T", b"f", ["K"])])
        assert (batch.queue, batch.queue_offset) == (2, 2)
        assert [bytes(message.body) for message in store.query("T", "K")] == [b"f", b"e"]


def test_lines_are_messages_without_their_newline_and_empty_ones_are_skipped(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        put = store.put_lines("T", b"\none\n\n\ntwo\r\n\xff\n", 0, keys=["K"], tags="t", properties={"p": "v"})
        assert put.count == 3
        assert bodies(store, "T", 0) == [b"one", b"two\r", b"\xff"]
        assert store.get("T", 0, 2).properties == {"KEYS": "K", "TAGS": "t", "p": "v"}
        nothing = store.put_lines("T", b"\n\n", 0)
        assert (nothing.count, nothing.physical_offset) == (0, nothing.physical_end)
        with pytest.raises(IllegalMessageError):
            store.put_lines("T", b"no newline", 0)


def test_a_batch_larger_than_a_file_is_stored_whole(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        text = b"".join(b"%05d" % number + b"x" * 200 + b"\n" for number in range(300))
        put = store.put_lines("T", text)
        assert put.count == 300
        found = sorted(body for queue in range(4) for body in bodies(store, "T", queue))
        assert b"".join(body + b"\n" for body in found) == text
        assert store.stats().commit_log_files > 10


def test_what_cannot_be_stored_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "store", max_message_bytes=5000) as store:
        store.create_topic("T", 1)
        refused: list[tuple[type[StoreError], Callable[[], object]]] = [
            (MessageTooLargeError, lambda: store.put(Message("T", b"x" * 5001))),
            (MessageTooLargeError, lambda: store.put(Message("T", b"x", properties={"p": "v" * 32768}))),
            (MessageTooLargeError, lambda: store.put_lines("T", b"ok\n" + b"x" * 5001 + b"\n")),
            (MessageTooLargeError, lambda: store.put_batch([Message("T", b"ok"), Message("T", b"x" * 5001)])),
            (IllegalMessageError, lambda: store.put(Message("no/topic", b"x"))),
            (IllegalMessageError, lambda: store.put(Message("T", b"x", properties={"p": "a\x01b"}))),
            (IllegalMessageError, lambda: store.put_batch([Message("T", b"x"), Message("U", b"x")])),
            (TopicNotFoundError, lambda: store.put(Message("T", b"x"), 1)),
            (TopicNotFoundError, lambda: store.put_lines("T", b"x\n", 1)),
        ]
        for error, put in refused:
            with pytest.raises(error):
                put()
        assert store.physical_end == 0
        assert store.bounds("T", 0).max_offset == 0
        assert store.topics() == ["T"]


def test_a_record_longer_than_a_file_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        with pytest.raises(MessageTooLargeError):
            store.put(Message("T", b"x" * 8192))
        with pytest.raises(MessageTooLargeError):
            store.put_lines("T", b"ok\n" + b"x" * 8192 + b"\n")
        assert store.physical_end == 0


class FullDisk(Disk):
    """Has no space while `is_full`."""

    def __init__(self) -> None:
        self.is_full = False

    def allocate(self, descriptor: int, path: Path, size_bytes: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        super().allocate(descriptor, path, size_bytes)


def fill(store: MessageStore, stored: int) -> int:
    """Put messages until the disk is full; how many there are then."""
    while True:
        try:
            store.put(Message("T", b"%d" % stored, keys=["K"]), stored % 2)
        except StoreFullError:
            return stored
        stored += 1


def test_a_full_disk_refuses_a_put_whole_and_writing_goes_on_when_there_is_space(tmp_path: Path) -> None:
    disk = FullDisk()
    with opened(tmp_path / "store", disk=disk, preallocate=False) as store:
        stored = 0
        for turn in range(6):
            disk.is_full = True
            stored = fill(store, stored)
            with pytest.raises(StoreFullError):
                store.put_lines("T", b"x" * 100 + b"\n" * 1 + b"line\n" * 2000, 0)
            before = store.physical_end
            disk.is_full = False
            store.put(Message("T", b"%d" % stored, keys=["K"]), stored % 2)
            stored += 1
            assert store.physical_end > before
            assert store.stats().messages == stored, turn
        assert stored > 100
        assert len(store.query("T", "K", 10_000)) == stored


def test_delayed_messages_are_stored_in_the_schedule(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        put = store.put(Message("T", b"later", properties={"DELAY": "3"}), 1)
        assert (put.topic, put.queue) == ("SCHEDULE_TOPIC_XXXX", 2)
        message = store.get("SCHEDULE_TOPIC_XXXX", 2, 0)
        assert message.properties == {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "1"}
        (entry,) = store.entries("SCHEDULE_TOPIC_XXXX", 2, 0, 1)
        assert entry["tags_code"] == message.store_time_ms + 10_000
        many = store.put_lines("T", b"a\nb\n", 1, properties={"DELAY": "1"})
        assert (many.topic, many.count) == ("SCHEDULE_TOPIC_XXXX", 2)
        assert store.bounds("T", 1).max_offset == 0


def test_multi_dispatched_messages_stand_in_every_queue_they_name(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        for number in range(3):
            body = b"%d" % number
            store.put(Message("T", body, properties={"INNER_MULTI_DISPATCH": "%LMQ%a,other"}), 1)
            store.put(Message("other", b"own"), 1)
    for lost in ("", "consumequeue"):
        if lost:
            lose_derived(path)
        with opened(path) as store:
            assert bodies(store, "%LMQ%a", 0) == [b"0", b"1", b"2"]
            assert bodies(store, "other", 1) == [b"0", b"own", b"1", b"own", b"2", b"own"]
            assert store.headers("other", 1, 0, 6)["ok"].all()
            assert store.get("T", 1, 2).properties["INNER_MULTI_QUEUE_OFFSET"] == "2,4"


def test_prepared_and_rolled_back_transactions_take_no_place_in_their_queue(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        for flag in (0x4, 0xC, 0x8, 0):
            store.put(Message("T", b"%d" % flag, keys=["K"], sys_flag=flag), 0)
        assert bodies(store, "T", 0) == [b"8", b"0"]
        assert [bytes(message.body) for message in store.query("T", "K")] == [b"0", b"8", b"4"]
        store.put(Message("T", b"prepared", keys=["K"], sys_flag=0x4), 0)
        newest = store.newest_with_key("T", "K")
        assert newest is not None
        assert bytes(newest.body) == b"0"


def test_concurrent_writers_lose_and_mix_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.create_topic("T", 2)

        def write(writer: int) -> None:
            for number in range(100):
                line = b"%d-%d" % (writer, number)
                if number % 3:
                    store.put(Message("T", line), number % 2)
                else:
                    store.put_lines("T", line + b"\n", number % 2)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [body for queue in range(2) for body in bodies(store, "T", queue)]
        assert sorted(found) == sorted(b"%d-%d" % (writer, number) for writer in range(8) for number in range(100))
        for queue in range(2):
            for writer in range(8):
                numbers = [
                    int(body.split(b"-")[1]) for body in bodies(store, "T", queue) if body.startswith(b"%d-" % writer)
                ]
                assert numbers == sorted(numbers)


# durability


def test_waiting_makes_what_was_put_durable(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        put = store.put(Message("T", b"x"))
        assert store.durable_end <= put.physical_offset
        store.wait_durable(put.physical_end)
        assert store.durable_end >= put.physical_end
        answers: list[StoreError | None] = []
        answered = threading.Event()
        end = store.put_lines("T", b"y\n").physical_end

        def done(error: StoreError | None) -> None:
            answers.append(error)
            answered.set()

        store.request_durable(end, done)
        assert answered.wait(60)
        assert answers == [None]


class FailingDisk(Disk):
    """Fails every sync of a log file while `fails`."""

    def __init__(self) -> None:
        self.fails = False

    def sync(self, descriptor: int, path: Path) -> None:
        if self.fails and "commitlog" in path.parts:
            raise OSError(errno.EIO, "input/output error")
        super().sync(descriptor, path)


def test_a_failed_flush_is_final_and_the_next_opening_recovers(tmp_path: Path) -> None:
    disk = FailingDisk()
    store = MessageStore.open(tmp_path / "store", replace(SMALL, disk=disk))
    put = store.put(Message("T", b"x"), 0)
    disk.fails = True
    with pytest.raises(FlushFailedError):
        store.wait_durable(put.physical_end)
    disk.fails = False
    with pytest.raises(FlushFailedError):
        store.wait_durable(put.physical_end)
    with pytest.raises(ReadOnlyStoreError, match="flush"):
        store.put(Message("T", b"y"), 0)
    assert store.read_only_reason is not None
    assert isinstance(store.flush_failure, FlushFailedError)
    assert bodies(store, "T", 0) == [b"x"]
    with pytest.raises(FlushFailedError):
        store.close()
    store.close()
    assert (tmp_path / "store" / "abort").exists()
    with opened(tmp_path / "store") as again:
        assert not again.recovery.clean
        assert bodies(again, "T", 0) == [b"x"]


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.put(Message("T", b"x"), 0)
    with pytest.raises(StoreClosedError):
        store.put(Message("T", b"y"), 0)
    store.close()
    assert not (tmp_path / "store" / "abort").exists()
    assert (tmp_path / "store" / "fsstore" / "clean.json").exists()


def test_a_transient_pool_shows_messages_when_they_are_committed(tmp_path: Path) -> None:
    slow = replace(QUIET, commit_interval_ms=3_600_000)
    with opened(tmp_path / "store", transient_pool_buffers=2, flush=slow) as store:
        heard: list[tuple[str, int]] = []

        class Ear(StoreListener):
            def appended(self, topic: str, queue: int) -> None:
                heard.append((topic, queue))

        store.subscribe(Ear())
        puts = [store.put(Message("T", b"%d" % number, keys=["K"]), 0) for number in range(20)]
        assert [put.queue_offset for put in puts] == list(range(20))
        assert (store.bounds("T", 0).max_offset, heard) == (0, [])
        with pytest.raises(MessageNotFoundError):
            store.get("T", 0, 0)
        store.flush()
        assert bodies(store, "T", 0) == [b"%d" % number for number in range(20)]
        assert heard == [("T", 0)] * 20
        store.put_lines("T", b"line\n" * 400)
        store.flush()
        assert store.stats().messages == 420
    with opened(tmp_path / "store") as store:
        assert store.stats().messages == 420


def test_a_topic_is_deleted_with_what_a_transient_pool_still_holds_of_it(tmp_path: Path) -> None:
    slow = replace(QUIET, commit_interval_ms=3_600_000)
    with opened(tmp_path / "store", transient_pool_buffers=2, flush=slow) as store:
        for number in range(10):
            store.put(Message("T", b"%d" % number), 0)
        store.delete_topic("T")
        store.put(Message("T", b"anew"), 0)
        store.flush()
        assert bodies(store, "T", 0) == [b"anew"]


def test_a_transient_pool_commits_by_itself(tmp_path: Path) -> None:
    policy = FlushPolicy(commit_interval_ms=1, commit_thorough_interval_ms=1)
    with opened(tmp_path / "store", transient_pool_buffers=2, flush=policy) as store:
        shown = threading.Event()

        class Ear(StoreListener):
            def appended(self, topic: str, queue: int) -> None:
                shown.set()

        store.subscribe(Ear())
        store.put(Message("T", b"x"), 0)
        assert shown.wait(60)
        assert bodies(store, "T", 0) == [b"x"]


# reading


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        put = store.put(Message("T", b"x"), 0)
        for queue_offset in (-1, 1, 1 << 60):
            with pytest.raises(MessageNotFoundError):
                store.get("T", 0, queue_offset)
        with pytest.raises(TopicNotFoundError):
            store.get("T", 9, 0)
        for physical_offset in (put.physical_end, -5, 1 << 60):
            with pytest.raises((MessageNotFoundError, ExpiredMessageError)):
                store.at(physical_offset)
        assert store.newest_with_key("T", "none") is None
        assert store.query("none", "none") == []
        assert len(store.headers("T", 1, 0, 5)) == 0
        assert len(store.columns("T", 1, 0, 5)) == 0


def test_newest_keys_are_those_of_the_newest_messages(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        for number in range(100):
            store.put(Message("T", b"x", [f"key-{number:03d}", "all"]), number % 4)
        assert store.newest_keys("T", 3) == ["all", "key-097", "key-098", "key-099"]
        assert len(store.newest_keys("T")) == 101
        store.create_topic("empty")
        assert store.newest_keys("empty") == []


def test_the_newest_message_with_a_key_is_found_as_soon_as_it_is_put(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        for number in range(200):
            put = store.put(Message("T", b"%d" % number, ["same"]), number % 4)
            newest = store.newest_with_key("T", "same")
            assert newest is not None
            assert newest.physical_offset == put.physical_offset


def test_consumer_offsets_are_what_a_broker_noted(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        offsets = tmp_path / "store" / "config" / "consumerOffset.json"
        offsets.write_text('{\n\t"offsetTable":{\n\t\t"T@g":{0:250,1:251\n\t\t}\n\t}\n}')
        assert store.consumer_offsets() == {"g": {"T": {0: 250, 1: 251}}}


def test_listeners_hear_of_messages_and_topics_until_they_leave(tmp_path: Path) -> None:
    heard: list[tuple[object, ...]] = []

    class Ear(StoreListener):
        def appended(self, topic: str, queue: int) -> None:
            heard.append((topic, queue))

        def expired(self, topic: str, queue: int, old_min: int, new_min: int) -> None:
            heard.append((topic, queue, old_min, new_min))

        def topics_changed(self) -> None:
            heard.append(("topics",))

    with opened(tmp_path / "store") as store:
        leave = store.subscribe(Ear())
        store.create_topic("T", 1)
        store.put(Message("T", b"x"))
        store.delete_topic("T")
        assert heard == [("topics",), ("T", 0), ("topics",), ("T", 0, 0, 1)]
        leave()
        store.put(Message("T", b"x"))
        assert len(heard) == 4

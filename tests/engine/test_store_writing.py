"""MessageStore: publishing, and its data on disk."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine import (
    FlushFailedError,
    FlushPolicy,
    IllegalMessageError,
    Message,
    MessageNotFoundError,
    MessageStore,
    MessageTooLargeError,
    ReadOnlyStoreError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreListener,
    TopicNotFoundError,
)
from engine.files.disk import Disk
from tests.engine.storetools import QUIET, SMALL, bodies, opened

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

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        super().allocate(descriptor, path, start, size_bytes)


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
    store = MessageStore.open(tmp_path / "store", replace(SMALL, disk=disk), create=True)
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

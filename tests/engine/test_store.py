"""MessageStore: opening, topics, reading, listening."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine import (
    BROKER_SIZES,
    EMBEDDED_SIZES,
    Block,
    Expired,
    ExpiredMessageError,
    IllegalTopicError,
    Message,
    MessageNotFoundError,
    MessageStore,
    MissingLogError,
    NotAStoreError,
    OpenMode,
    ReadOnlyStoreError,
    StoreConfig,
    StoreListener,
    StoreLockedError,
    TopicExistsError,
    TopicNotFoundError,
    UnsupportedStoreError,
    WouldBlock,
    check_store,
    nonblocking,
    repair_store,
)
from engine.derived.index import Index
from tests.engine.storetools import SMALL, SMALL_SIZES, bodies, contents, lose_derived, nothing_left_open, opened

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
            config = replace(SMALL, mode=mode)
            with MessageStore.open(tmp_path / "store", config, create=mode is OpenMode.WRITE) as store:
                if mode is OpenMode.WRITE:
                    store.put_lines("orders", b"line\n" * 500, keys=["K"])
                assert store.stats().messages == 500
                assert bytes(store.get("orders", 0, 0).body) == b"line"


@pytest.mark.parametrize("mode", OpenMode)
def test_a_store_is_made_only_when_that_is_asked_for(tmp_path: Path, mode: OpenMode) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(
            NotAStoreError, match=r"nothing is there: make a store with `mountctl init`, or create=True"
        ):
            MessageStore.open(path, replace(SMALL, mode=mode))
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):  # one that is there is opened
        with MessageStore.open(tmp_path / "store", SMALL, create=True) as store:
            store.put(Message("orders", b"x"), 0)
    with MessageStore.open(tmp_path / "store", replace(SMALL, mode=mode)) as store:
        assert store.stats().messages == 2


@pytest.mark.parametrize("mode", [OpenMode.READ_ONLY, OpenMode.FOLLOW])
def test_who_only_reads_makes_no_store(tmp_path: Path, mode: OpenMode) -> None:
    opened_before = tmp_path / "store"
    MessageStore.open(opened_before, SMALL, create=True).close()
    for path in (tmp_path / "nothing", opened_before):
        with pytest.raises(ValueError, match=rf"create=True goes with OpenMode.WRITE: {mode} makes no store"):
            MessageStore.open(path, replace(SMALL, mode=mode), create=True)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_folder_of_something_else_is_not_taken_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(NotAStoreError, match="holiday"):
        MessageStore.open(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["holiday.jpg"]
    for name in ("@parquet", "@store"):  # as a mount shows it
        (tmp_path / "mnt" / name).mkdir(parents=True)
    with pytest.raises(NotAStoreError, match="it is a mount point: name the directory of the store"):
        MessageStore.open(tmp_path / "mnt")


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
    "DLedger behind an older log": lambda path: (path / "dledger-n0" / "data").mkdir(parents=True),
}
UNWRITTEN: dict[str, Callable[[Path], object]] = {
    "RocksDB apart": lambda path: touch(path / "consumequeue_rocksdb" / "CURRENT"),
    "RocksDB": lambda path: (path / "consumequeue" / "CURRENT").write_bytes(b"MANIFEST-000001\n"),
    "batch": lambda path: touch(path / "batchconsumequeue" / "T" / "0" / ("0" * 20)),
    "compaction": lambda path: touch(path / "compaction" / "compactionLog" / "T" / "0" / ("0" * 20)),
    "extension": lambda path: touch(path / "consumequeue_ext" / "T" / "0" / ("0" * 20)),
    "BatchCQ": lambda path: (path / "config" / "topics.json").write_text(
        json.dumps({"topicConfigTable": {"T": {"topicName": "T", "attributes": {"queue.type": "BatchCQ"}}}})
    ),
    "COMPACTION": lambda path: (path / "config" / "topics.json").write_text(
        json.dumps({"topicConfigTable": {"T": {"topicName": "T", "attributes": {"cleanup.policy": "COMPACTION"}}}})
    ),
}
"""Settings of the log that readers understand, but a writer can't maintain."""


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")


def store_of_kind(path: Path, kind: Callable[[Path], object]) -> Path:
    with opened(path) as store:
        store.put(Message("T", b"x"), 0)
    kind(path)
    return path


@pytest.mark.parametrize("mode", list(OpenMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", UNREAD)
def test_what_is_not_read_is_refused_by_name_and_left_alone(tmp_path: Path, kind: str, mode: OpenMode) -> None:
    path = store_of_kind(tmp_path / "store", UNREAD[kind])
    before = contents(path)
    with nothing_left_open(), pytest.raises(UnsupportedStoreError):
        MessageStore.open(path, StoreConfig(mode=mode))
    assert contents(path) == before


@pytest.mark.parametrize("mode", list(OpenMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", UNWRITTEN)
def test_what_a_writer_could_not_keep_up_is_read_and_left_alone(tmp_path: Path, kind: str, mode: OpenMode) -> None:
    path = store_of_kind(tmp_path / "store", UNWRITTEN[kind])
    before = contents(path)
    if mode is OpenMode.WRITE:
        with nothing_left_open(), pytest.raises(UnsupportedStoreError, match="--read-only or --follow"):
            MessageStore.open(path, StoreConfig(mode=mode))
    else:
        with nothing_left_open(), MessageStore.open(path, StoreConfig(mode=mode)) as store:
            assert [bytes(message.body) for message in store.read("T", 0, 0)] == [b"x"]
    assert contents(path) == before


def use_in_any_way(path: Path) -> dict[str, Callable[[], object]]:
    """Each way to look at or change the store at `path`."""
    ways: dict[str, Callable[[], object]] = {
        mode.value: lambda mode=mode: MessageStore.open(path, replace(SMALL, mode=mode)).close()  # type: ignore[misc]
        for mode in OpenMode
    }
    return ways | {"check": lambda: list(check_store(path)), "repair": lambda: list(repair_store(path))}


@pytest.mark.parametrize("evidence", ["consumequeue/T/0", "checkpoint"])
@pytest.mark.parametrize("folder", ["no folder", "an empty folder"])
def test_a_store_whose_log_is_elsewhere_is_refused_and_left_alone(tmp_path: Path, evidence: str, folder: str) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        store.put(Message("T", b"x", ["K"]), 0)
    (path / "commitlog").rename(tmp_path / "elsewhere")
    if folder == "an empty folder":
        (path / "commitlog").mkdir()
    if evidence == "checkpoint":
        shutil.rmtree(path / "consumequeue")
    before = contents(path)
    for way in use_in_any_way(path).values():
        with nothing_left_open(), pytest.raises(MissingLogError, match="storePathCommitLog") as refusal:
            way()
        assert refusal.value.evidence == evidence
        assert contents(path) == before


def test_a_store_that_has_no_log_yet_opens_in_every_way(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        store.create_topic("T")
    shutil.rmtree(path / "commitlog")
    (path / "consumequeue" / "T" / "0").mkdir(parents=True)
    (path / "consumequeue" / "T" / "0" / ("0" * 20)).write_bytes(bytes(640))  # ready, and nothing in it
    for way in use_in_any_way(path).values():
        way()


def test_a_store_whose_messages_have_all_expired_opens_in_every_way(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        store.put_lines("T", b"line\n" * 300, 0)
        count = store.bounds("T", 0).max_offset
    files = sorted((path / "commitlog").iterdir())
    (path / "commitlog" / f"{int(files[-1].name) + 8192:020d}").write_bytes(bytes(8192))
    for file in files:
        file.unlink()
    for way in use_in_any_way(path).values():
        way()
    with opened(path) as store:
        assert store.put(Message("T", b"next"), 0).queue_offset == count


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
        store.create_topic("orders", 2)
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
        assert store.blocks("T", 1, 0, 5) == store.blocks("T", 0, 1, 5) == []
        for nothing in (store.record_sizes("T", 1, 0, 5), store.record_sizes("T", 0, 1, 5)):
            assert [(column.dtype, len(column)) for column in nothing] == [("int64", 0)] * 2
        for read in (store.blocks, store.record_sizes):
            with pytest.raises(TopicNotFoundError):
                read("T", 9, 0, 1)


def block_bodies(store: MessageStore, blocks: list[Block]) -> list[bytes]:
    """The bodies of all messages in these blocks."""
    columns = [store.bodies(block.bodies) for block in blocks]
    return [column[row] for column in columns for row in range(len(column))]


@pytest.mark.parametrize(("start", "count"), [(0, 1_000), (-5, 25), (13, 31), (49, 1), (50, 9)])
def test_sizes_and_blocks_go_on_from_file_to_file(tmp_path: Path, start: int, count: int) -> None:
    with opened(tmp_path / "store") as store:
        sent = [b"%d" % number * (number * 7) for number in range(50)]
        puts = [store.put(Message("T", body), 0) for body in sent]
        wanted = slice(max(start, 0), max(start + count, 0))
        store_sizes, body_sizes = store.record_sizes("T", 0, start, count)
        assert store_sizes.tolist() == [put.store_size for put in puts[wanted]]
        assert body_sizes.tolist() == [len(body) for body in sent[wanted]]
        assert store.stats().read_messages == 0
        blocks = store.blocks("T", 0, start, count)
        assert store.stats().read_messages == len(sent[wanted])
        assert block_bodies(store, blocks) == sent[wanted]
        files = [block.bodies.log_file for block in blocks]
        assert files == sorted({put.physical_offset // 8192 * 8192 for put in puts[wanted]})
        assert [offset for block in blocks for offset in block.queue_offset] == list(range(50))[wanted]


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


def test_the_newest_messages_of_so_many_keys_are_remembered_until_the_log_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    candidates = Index.candidates

    def noted(index: Index, topic: str, key: str, min_physical_offset: int = 0) -> Iterator[int]:
        looked_up.append(key)
        return candidates(index, topic, key, min_physical_offset)

    monkeypatch.setattr(Index, "candidates", noted)
    monkeypatch.setattr("engine.read.reader.REMEMBERED_KEYS", 3)

    def ask(store: MessageStore, *keys: str) -> list[str]:
        looked_up.clear()
        for key in keys:
            found = store.newest_with_key("T", key)
            assert (bytes(found.body) if found else b"none") == key.encode()
        return list(looked_up)

    with opened(tmp_path / "store") as store:
        for key in ("a", "b", "c", "d"):
            store.put(Message("T", key.encode(), [key]), 0)
        assert ask(store, "a", "none", "b") == ["a", "none", "b"]
        assert ask(store, "a", "none", "b") == []
        assert ask(store, "c", "c") == ["c", "c"]  # no room
        for grow in (Message("T", b"x"), Message("T", b"a", ["a"])):
            store.put(grow, 0)
            assert ask(store, "c", "d", "a", "c", "d", "a") == ["c", "d", "a"]  # what was known before made room


def test_consumer_offsets_are_what_a_broker_noted(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        offsets = tmp_path / "store" / "config" / "consumerOffset.json"
        offsets.write_text('{\n\t"offsetTable":{\n\t\t"T@g":{0:250,1:251\n\t\t}\n\t}\n}')
        with pytest.raises(WouldBlock), nonblocking():
            store.consumer_offsets()
        assert store.consumer_offsets() == {"g": {"T": {0: 250, 1: 251}}}
        with nonblocking():  # they are read once
            assert store.consumer_offsets() == {"g": {"T": {0: 250, 1: 251}}}
        offsets.write_text('{"offsetTable":{"T@g":{0:2500}}}')
        with pytest.raises(WouldBlock), nonblocking():
            store.consumer_offsets()
        assert store.consumer_offsets() == {"g": {"T": {0: 2500}}}


def test_listeners_hear_of_messages_and_topics_until_they_leave(tmp_path: Path) -> None:
    heard: list[tuple[object, ...]] = []

    class Ear(StoreListener):
        def appended(self, topic: str, queue: int) -> None:
            heard.append((topic, queue))

        def expired(self, expired: Expired) -> None:
            heard.append((expired.topic, expired.queue, expired.old_min, expired.new_min))

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

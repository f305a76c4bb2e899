"""Kinds of brokers' stores whose queues are no files of ours to read: shown from the log, and never written to."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine import Message, MessageStore, OpenMode, Retention, StoreConfig, UnsupportedStoreError, check_store
from engine.derived.derived import Losses
from engine.derived.queues_from_log import QueuesFromLog
from engine.errors import DamagedRecordError, ReadError, StoreFullError
from engine.log.entries import ENTRY, LAST_EXTENSION_CODE
from engine.record.hashes import java_hash
from engine.record.kernel.encode import encode_properties
from engine.record.record import RecordEncoder
from engine.record.scan import ScannedRecords
from engine.repair import repair_store
from tests.engine.storetools import SMALL, HastyDisk, bodies, nothing_left_open, require_clean
from tests.engine.test_store_follow import Ear, refreshed
from tests.golden55 import Golden55, expected, golden55, seen

NAMES = ("rsep", "bcq", "compact", "ext")
DERIVED = {
    "rsep": "a RocksDB consume queue (consumequeue_rocksdb/CURRENT)",
    "bcq": "a batch consume queue (topic va-bcq)",
}
COMPACTED = "va-compact"
"""The client was given copies of its messages, which the broker keeps beside its log."""

FOLLOW = replace(SMALL, mode=OpenMode.FOLLOW)
WAYS = ("read-only", "follow", "follow in a cache")


@contextmanager
def looked_at(path: Path, way: str, cache: Path) -> Iterator[MessageStore]:
    """The store as a reader opens it; below it nothing changes, and nothing stays in the cache."""
    mode = OpenMode.READ_ONLY if way == "read-only" else OpenMode.FOLLOW
    config = StoreConfig(mode=mode, cache=cache if way == "follow in a cache" else None)
    before = state(path)
    with nothing_left_open(), MessageStore.open(path, config) as store:
        yield store
    assert state(path) == before
    assert not cache.exists() or not list(cache.iterdir())


def state(path: Path) -> dict[str, tuple[int, int, int]]:
    """A fingerprint of a file below `path`: some are sparse, of hundreds of megabytes."""
    found = {str(file.relative_to(path)): file.lstat() for file in path.rglob("*")}
    return {name: (one.st_ino, one.st_size, one.st_mtime_ns) for name, one in found.items()}


def require_same(store: MessageStore, given: Golden55) -> None:
    """Each message that the client pulled is in the store, the same in all that it said, and found by its keys."""
    for line in given.messages:
        message = store.get(line["qt"], line["q"], line["qo"])
        said, found = expected(line), seen(message)
        if line["qt"] == COMPACTED:
            said |= {name: found[name] for name in ("po", "id")}
        assert found == said
        assert message.keys
        for key in [*message.keys, line["props"]["UNIQ_KEY"]]:
            assert message.physical_offset in [one.physical_offset for one in store.query(line["qt"], key, 10_000)], key
    for (topic, queue), (least, most) in given.queues.items():
        bounds = store.bounds(topic, queue)
        assert (bounds.min_offset, bounds.max_offset) == (least, most)
        assert len(list(store.read(topic, queue, 0))) == most
    assert store.stats().messages == len(given.messages)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_as_the_brokers_client_pulled_it(name: str, way: str, tmp_path: Path) -> None:
    given = golden55(name, tmp_path)
    with looked_at(given.path, way, tmp_path / "cache") as store:
        require_same(store, given)
        require_clean(store.check())
        stats = store.stats()
        assert stats.queues_derived == DERIVED.get(name)
        made = "rebuilt" if name == "bcq" else "in use"
        assert stats.index == ("derived" if name in DERIVED and way != "read-only" else made)


@pytest.mark.parametrize("way", WAYS)
def test_offsets_of_groups_are_shown_where_they_are_in_json(way: str, tmp_path: Path) -> None:
    given = golden55("bcq", tmp_path)
    stored = {"offsetTable": {"va-bcq@readers": {0: 7, 3: 71}}}
    (given.path / "config" / "consumerOffset.json").write_text(json.dumps(stored))
    with looked_at(given.path, way, tmp_path / "cache") as store:
        assert store.consumer_offsets() == {"readers": {"va-bcq": {0: 7, 3: 71}}}
        assert store.not_shown == ()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_shown_is_said(way: str, tmp_path: Path) -> None:
    given = golden55("rsep", tmp_path)
    with looked_at(given.path, way, tmp_path / "cache") as store:
        said = store.stats().not_shown
        assert [text.split()[0] for text in said] == [
            "config/consumerOffsets",
            "config/subscriptionGroups",
            "config/topics",
        ]
        assert "offsets of consumer groups are not shown" in said[0]
    given = golden55("compact", tmp_path)
    with looked_at(given.path, way, tmp_path / "cache") as store:
        [text] = store.stats().not_shown
        assert "va-compact is a compaction topic" in text


@pytest.mark.parametrize("name", NAMES)
def test_who_would_write_is_refused_by_name_and_told_what_to_do(name: str, tmp_path: Path) -> None:
    given = golden55(name, tmp_path)
    words = {
        **DERIVED,
        "compact": "a compaction topic (va-compact)",
        "ext": "a consume queue with extension files (consumequeue_ext)",
    }
    before = state(given.path)
    ways: list[Callable[[], object]] = [
        lambda: MessageStore.open(given.path),
        lambda: list(check_store(given.path)),
        lambda: list(repair_store(given.path)),
    ]
    for way in ways:
        with nothing_left_open(), pytest.raises(UnsupportedStoreError) as refusal:
            way()
        assert words[name] in str(refusal.value)
        assert "--read-only or --follow" in str(refusal.value)
        assert state(given.path) == before


@pytest.mark.parametrize("way", WAYS)
def test_tags_codes_that_lead_into_an_extension_are_the_records_own(way: str, tmp_path: Path) -> None:
    given = golden55("ext", tmp_path)
    stored = np.fromfile(given.path / "consumequeue" / "va-ext" / "0" / ("0" * 20), ENTRY, 10)
    assert (stored["tags_code"] <= LAST_EXTENSION_CODE).all()
    with looked_at(given.path, way, tmp_path / "cache") as store:
        for (topic, queue), (_, end) in given.queues.items():
            lines = [line for line in given.messages if (line["qt"], line["q"]) == (topic, queue)]
            told = [(line["po"], line["size"], java_hash(line["props"]["TAGS"])) for line in lines]
            assert store.entries(topic, queue, 0, end).tolist() == told


# beside a broker: a log that grows, and no queue that leads to it


def rocksdb(path: Path) -> None:
    """Have the store at `path` keep its queues in RocksDB."""
    (path / "consumequeue_rocksdb").mkdir(parents=True)
    (path / "consumequeue_rocksdb" / "CURRENT").write_bytes(b"MANIFEST-000005\n")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[MessageStore]:
    """Writes the log that `followed` leads to."""
    config = replace(SMALL, preallocate=False, retention=Retention(max_bytes=4 * 8192, delete_pause_ms=0))
    with MessageStore.open(tmp_path / "writer", config, create=True) as store:
        yield store


@pytest.fixture
def followed(tmp_path: Path, writer: MessageStore) -> Path:
    """A store with the writer's log, and queues in RocksDB."""
    path = tmp_path / "store"
    rocksdb(path)
    (path / "commitlog").symlink_to(writer.path / "commitlog")
    return path


@pytest.fixture(params=["in memory", "in a cache"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> StoreConfig:
    return replace(FOLLOW, cache=tmp_path / "cache" if request.param == "in a cache" else None)


def test_messages_topics_keys_and_new_files_show(writer: MessageStore, followed: Path, config: StoreConfig) -> None:
    ear = Ear()
    with MessageStore.open(followed, config) as follower:
        follower.subscribe(ear)
        for number in range(300):
            writer.put(Message(f"T{number % 3}", b"%d" % number, [f"K{number}"], "tag"), number % 2)
            if number % 50 == 0:
                refreshed(follower)
        refreshed(follower)
        for topic in writer.topics():
            for queue in range(2):
                assert bodies(follower, topic, queue) == bodies(writer, topic, queue)
                assert follower.entries(topic, queue, 0, 300).tolist() == writer.entries(topic, queue, 0, 300).tolist()
        for number in range(300):
            found = follower.newest_with_key(f"T{number % 3}", f"K{number}")
            assert found is not None
            assert bytes(found.body) == b"%d" % number
        require_clean(follower.check())
    assert {one for one in ear.heard if one[0] == "appended"} == {
        ("appended", f"T{topic}", queue) for topic in range(3) for queue in range(2)
    }
    assert ("topics",) in ear.heard
    assert not any(one[0] == "rewritten" for one in ear.heard)


def test_keys_are_found_where_the_broker_keeps_them_in_rocksdb_alone(
    writer: MessageStore, followed: Path, config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.open.follower.INDEX_SECONDS", 0.0)
    shutil.rmtree(followed / "consumequeue_rocksdb")
    (followed / "consumequeue").symlink_to(writer.path / "consumequeue")
    places = [writer.put(Message("T", b"%d" % number, [f"K{number}"]), 0).physical_offset for number in range(200)]
    with (writer.path / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(places[20] + 89)
        file.write(b"\xff")
    with MessageStore.open(followed, config) as follower:
        refreshed(follower)
        assert follower.queues_derived is None
        for number in range(200, 300):
            writer.put(Message("T", b"%d" % number, [f"K{number}"]), 0)
            refreshed(follower)
        assert follower.stats().index == "derived"
        assert str(follower.stats().index_reason).endswith("has no index file, as where a broker keeps keys in RocksDB")
        for number in set(range(300)) - {20}:
            found = follower.newest_with_key("T", f"K{number}")
            assert found is not None
            assert bytes(found.body) == b"%d" % number
        writer.flush()
        shutil.copytree(writer.path / "index", followed / "index")
        refreshed(follower)
        writer.put(Message("T", b"300", ["K300"]), 0)
        refreshed(follower)
        assert follower.stats().index == "in use"
        assert bodies(follower, "T", 0) == [b"%d" % number for number in range(301) if number != 20]
        found = follower.newest_with_key("T", "K7")
        assert found is not None
        assert bytes(found.body) == b"7"
    assert not config.cache or not list(config.cache.iterdir())


@pytest.mark.parametrize("has_keys", [True, False])
def test_keys_are_found_where_the_broker_left_the_index_files_that_it_had(
    writer: MessageStore, followed: Path, config: StoreConfig, monkeypatch: pytest.MonkeyPatch, has_keys: bool
) -> None:
    monkeypatch.setattr("engine.open.missing_keys.BEHIND_SECONDS", 0.0)
    shutil.rmtree(followed / "consumequeue_rocksdb")
    (followed / "consumequeue").symlink_to(writer.path / "consumequeue")
    for number in range(100):
        writer.put(Message("T", b"%d" % number, [f"K{number}"]), 0)
    writer.flush()
    shutil.copytree(writer.path / "index", followed / "index")
    with MessageStore.open(followed, config) as follower:
        for number in range(100, 300):
            writer.put(Message("T", b"%d" % number, [f"K{number}"] if has_keys else []), 0)
            if number % 50 == 0:
                refreshed(follower)
        refreshed(follower)
        follower.refresh()
        assert follower.stats().index == ("derived" if has_keys else "in use")
        assert not has_keys or "has no keys behind" in str(follower.stats().index_reason)
        for number in range(300 if has_keys else 100):
            found = follower.newest_with_key("T", f"K{number}")
            assert found is not None
            assert bytes(found.body) == b"%d" % number
    assert not config.cache or not list(config.cache.glob("*"))


def test_a_follower_that_came_before_the_store_was_made_derives(
    writer: MessageStore, tmp_path: Path, config: StoreConfig
) -> None:
    path = tmp_path / "store"
    (path / "config").mkdir(parents=True)
    with MessageStore.open(path, replace(config, sizes=None)) as follower:
        refreshed(follower)
        assert follower.queues_derived is None
        (path / "commitlog").symlink_to(writer.path / "commitlog")
        writer.put_lines("T", b"line\n" * 500, 0)
        refreshed(follower)
        rocksdb(path)
        refreshed(follower)
        assert follower.queues_derived == DERIVED["rsep"]
        assert bodies(follower, "T", 0) == [b"line"] * 500
        assert follower.sizes.commit_log_bytes == 8192


def test_what_retention_takes_goes(writer: MessageStore, followed: Path, config: StoreConfig) -> None:
    ear = Ear()
    with MessageStore.open(followed, config) as follower:
        follower.subscribe(ear)
        for round_ in range(8):
            for number in range(100):
                writer.put(Message("T", b"%d" % number * 20, [f"K{round_}"]), 0)
            refreshed(follower)
            assert follower.bounds("T", 0).min_offset == 0 or round_
            writer.clean()
            refreshed(follower)
            assert follower.bounds("T", 0) == writer.bounds("T", 0)
        assert follower.bounds("T", 0).min_offset > 400
        assert follower.query("T", "K0") == []
        assert follower.query("T", "K7") != []
    assert [one for one in ear.heard if one[0] == "expired"]


def test_retention_that_overtakes_a_follower_is_passed(
    writer: MessageStore, followed: Path, config: StoreConfig
) -> None:
    with MessageStore.open(followed, config) as follower:
        writer.put_lines("T", b"first\n" * 100, 0)
        refreshed(follower)
        for _ in range(20):
            writer.put_lines("T", b"line\n" * 100, 0)
        writer.clean()
        refreshed(follower)
        assert follower.bounds("T", 0) == writer.bounds("T", 0)
        assert bodies(follower, "T", 0) == bodies(writer, "T", 0)


def test_a_record_that_is_written_just_now_is_waited_for(
    writer: MessageStore, followed: Path, config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.open.scratch_index.LOOK_SECONDS", 0.0)
    writer.put(Message("T", b"whole"), 0)
    torn = writer.put(Message("T", b"torn" * 10), 0)
    writer.put(Message("T", b"next"), 0)
    with (writer.path / "commitlog" / ("0" * 20)).open("r+b", buffering=0) as file:
        record = os.pread(file.fileno(), torn.store_size, torn.physical_offset)
        for kept in (0, 8, 40, 100):
            os.pwrite(file.fileno(), record[:kept].ljust(len(record), b"\0"), torn.physical_offset)
            with MessageStore.open(followed, config) as follower:
                for _ in range(10):
                    follower.refresh()
                assert bodies(follower, "T", 0) == [b"whole"]
                os.pwrite(file.fileno(), record, torn.physical_offset)
                refreshed(follower)
                assert bodies(follower, "T", 0) == [b"whole", b"torn" * 10, b"next"]


def test_damage_is_passed_and_reads_as_an_error(
    writer: MessageStore, followed: Path, config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.open.scratch_index.SETTLED_SECONDS", 0.0)
    monkeypatch.setattr("engine.open.scratch_index.LOOK_SECONDS", 0.0)
    places = [writer.put(Message("T", b"%d" % number * 30), 0) for number in range(200)]
    with writer.path.joinpath("commitlog", "0" * 20).open("r+b") as file:
        file.seek(places[20].physical_offset + 95)
        file.write(b"\xff" * 10)
    newest = places[198]
    start = newest.physical_offset - newest.physical_offset % 8192
    with (writer.path / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(newest.physical_offset - start + 95)
        file.write(b"\xff" * 10)
    with MessageStore.open(followed, config) as follower:
        refreshed(follower)
        assert follower.bounds("T", 0) == writer.bounds("T", 0)
        for number in range(200):
            if number in (20, 198):
                with pytest.raises(ReadError):
                    follower.get("T", 0, number)
            else:
                assert bytes(follower.get("T", 0, number).body) == b"%d" % number * 30


def test_another_log_in_its_place_is_shown_instead(followed: Path, writer: MessageStore, config: StoreConfig) -> None:
    writer.put_lines("T", b"old\n" * 300, 0)
    other = followed.parent / "other"
    with MessageStore.open(other, SMALL, create=True) as made:
        made.put_lines("U", b"new\n" * 10, 0)
    ear = Ear()
    with MessageStore.open(followed, config) as follower:
        follower.subscribe(ear)
        assert bodies(follower, "T", 0) == [b"old"] * 300
        (followed / "commitlog").unlink()
        (followed / "commitlog").symlink_to(other / "commitlog")
        refreshed(follower)
        assert follower.topics() == ["U"]
        assert bodies(follower, "U", 0) == [b"new"] * 10
        assert follower.queues_derived is not None
    assert any(one[0] == "rewritten" for one in ear.heard)


def test_a_full_cache_is_told_and_nothing_is_left_out_afterwards(
    writer: MessageStore, followed: Path, tmp_path: Path
) -> None:
    disk = FullDisk()
    with MessageStore.open(followed, replace(FOLLOW, cache=tmp_path / "cache", disk=disk)) as follower:
        writer.put(Message("T", b"0", ["K0"]), 0)
        refreshed(follower)
        disk.is_full = True
        for number in range(1, 100):
            writer.put(Message(f"T{number}", b"%d" % number, [f"K{number}"]), 0)
        for _ in range(3):
            with pytest.raises(StoreFullError):
                follower.refresh()
        disk.is_full = False
        refreshed(follower)
        for number in range(1, 100):
            assert bodies(follower, f"T{number}", 0) == [b"%d" % number]
            assert follower.newest_with_key(f"T{number}", f"K{number}") is not None


class FullDisk(HastyDisk):
    """Has no space while it `is_full`."""

    is_full = False

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device", str(path))
        super().allocate(descriptor, path, start, size_bytes)


# queues in RocksDB and in files


def both(path: Path) -> None:
    """Have a store with queues in files keep them in RocksDB, too."""
    (path / "consumequeue" / "CURRENT").write_bytes(b"MANIFEST-000005\n")


def test_files_that_lead_to_every_record_are_used_beside_rocksdb(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer:
        writer.put_lines("T", b"line\n" * 300, 0)
        writer.flush()
        both(path)
        with MessageStore.open(path, FOLLOW) as follower:
            assert (follower.queues_derived, follower.index_state.state) == (None, "in use")
            writer.put_lines("T", b"more\n" * 300, 0)
            writer.flush()
            refreshed(follower)
            assert follower.queues_derived is None
            assert bodies(follower, "T", 0) == [b"line"] * 300 + [b"more"] * 300
    with MessageStore.open(path, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        assert store.queues_derived is None
        assert bodies(store, "T", 0) == [b"line"] * 300 + [b"more"] * 300


def test_files_that_a_broker_left_behind_are_not_believed_beside_rocksdb(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer:
        writer.put_lines("T", b"line\n" * 300, 0)
        writer.flush()
        shutil.copytree(path / "consumequeue", tmp_path / "old")
        writer.put_lines("T", b"more\n" * 300, 0)
        writer.put(Message("U", b"other", ["K"]), 0)
    shutil.rmtree(path / "consumequeue")
    (tmp_path / "old").rename(path / "consumequeue")
    both(path)
    for mode in (OpenMode.READ_ONLY, OpenMode.FOLLOW):
        with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
            for _ in range(20):
                store.refresh()
            assert bodies(store, "T", 0) == [b"line"] * 300 + [b"more"] * 300
            assert bodies(store, "U", 0) == [b"other"]
            assert store.newest_with_key("U", "K") is not None


def test_topics_that_only_old_settings_leave_out_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer:
        writer.put(Message("T", b"1"), 0)
    (path / "fsstore" / "clean.json").unlink()
    with MessageStore.open(path, SMALL) as writer:
        writer.put(Message("T", b"2"), 0)
        writer.put(Message("U", b"new"), 0)
    shutil.rmtree(path / "fsstore")
    shutil.rmtree(path / "consumequeue" / "U")
    table = json.loads((path / "config" / "topics.json").read_text())
    del table["topicConfigTable"]["U"]
    (path / "config" / "topics.json").write_text(json.dumps(table))
    both(path)
    (path / "config" / "topics").mkdir()
    (path / "config" / "topics" / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    for mode in (OpenMode.READ_ONLY, OpenMode.FOLLOW):
        with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
            for _ in range(20):
                store.refresh()
            assert bodies(store, "U", 0) == [b"new"]


# a broker's own store that grows


class Broker:
    """Appends to the log of a store as its broker would, and to nothing else."""

    def __init__(self, path: Path, end: int) -> None:
        self._file = path / "commitlog" / ("0" * 20)
        self.end = end
        self._encoder = RecordEncoder(StoreConfig().store_host, 1 << 20)

    def put(self, message: Message, queue_id: int, queue_offset: int) -> None:
        """Append a record."""
        record = self._encoder.encode(message, queue_id, now_ms=1_795_400_000_000)
        record.place(queue_offset, self.end, 1_795_400_000_000)
        with self._file.open("r+b") as file:
            file.seek(self.end)
            file.write(record.buffer)
        self.end += len(record.buffer)


@pytest.mark.parametrize("name", sorted(DERIVED))
def test_what_a_broker_appends_shows_and_its_keys_are_found(name: str, tmp_path: Path, config: StoreConfig) -> None:
    given = golden55(name, tmp_path)
    topic = f"va-{name}"
    if name == "bcq":
        topics_json(given.path, lambda table: table.__setitem__("later", {**table[topic], "topicName": "later"}))
    with MessageStore.open(given.path, config) as store:
        broker = Broker(given.path, store.physical_end)
        first = store.bounds(topic, 1).max_offset
        for number in range(50):
            broker.put(Message(topic, b"new %d" % number, [f"new-{number}"], "T"), 1, first + number)
            broker.put(Message("later", b"%d" % number, [f"K{number}"]), 0, number)
            refreshed(store)
            assert bytes(store.get(topic, 1, first + number).body) == b"new %d" % number
            found = store.newest_with_key("later", f"K{number}")
            assert found is not None
            assert found.queue_offset == number
        assert store.bounds(topic, 1).max_offset == first + 50
        for line in given.messages:
            assert seen(store.get(line["qt"], line["q"], line["qo"])) == expected(line)


def topics_json(path: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    """Change the table of topics as a broker does."""
    file = path / "config" / "topics.json"
    content = json.loads(file.read_text())
    change(content["topicConfigTable"])
    file.with_suffix(".new").write_text(json.dumps(content))
    file.with_suffix(".new").replace(file)


def wrapped(items: list[Message], first: int, **changes: Any) -> Message:
    """A batch as a broker keeps it: one record."""
    body = b""
    for item in items:
        properties = encode_properties(item.keys, item.tags, item.properties)
        head = struct.pack(">iiiii", 22 + len(item.body) + len(properties), 0, 0, item.flag, len(item.body))
        body += head + bytes(item.body) + len(properties).to_bytes(2, "big") + properties
    inner = {"INNER_NUM": str(len(items)), "INNER_BASE": str(first), "UNIQ_KEY": f"batch-{first}"}
    return msgspec.structs.replace(Message("va-bcq", body, properties=inner, sys_flag=0xC0), **changes)


def batches(count: int, first: int) -> list[list[Message]]:
    """Batches of one to five messages, numbered from `first` on."""
    numbers, made = itertools.count(first), []
    for batch in range(count):
        some = itertools.islice(numbers, 1 + batch % 5)
        made.append(
            [
                Message("va-bcq", b"body-%d" % one * (one % 3), [f"I{one}", "all"], "t", {"n": f"{one}"}, one)
                for one in some
            ]
        )
    return made


def require_inner(store: MessageStore, sent: list[Message], first: int, place: Callable[[int], int]) -> None:
    """Each message of a batch is one, the same in every way of reading."""
    end = first + len(sent)
    shown = [store.get("va-bcq", 0, at) for at in range(first, end)]
    for number, (message, item) in enumerate(zip(shown, sent, strict=True), first):
        assert bytes(message.body) == item.body
        assert (message.queue_offset, message.flag, message.sys_flag) == (number, item.flag, 0xC0)
        assert (message.keys, message.tags, message.properties["n"]) == (list(item.keys), "t", str(number))
        assert message.physical_offset == place(number)
        assert (message.topic, message.queue, message.reconsume_times) == ("va-bcq", 0, 0)
        again = store.at(message.place)
        assert (again.queue_offset, bytes(again.body)) == (number, item.body)
        found = store.newest_with_key("va-bcq", f"I{number}")
        assert found is not None
        assert (found.queue_offset, bytes(found.body)) == (number, item.body)
        assert [one.tolist() for one in store.key_slots("va-bcq", f"I{number}") if len(one)] == [[[0, number]]]
    assert len({message.place for message in shown}) == len(shown)
    wanted = [bytes(item.body) for item in sent]
    assert [bytes(message.body) for message in store.read("va-bcq", 0, first)] == wanted
    columns = store.columns("va-bcq", 0, first, len(sent))
    assert [bytes(columns.bodies[row]) for row in range(len(columns))] == wanted
    held = list(store.holding("va-bcq", 0, first, len(sent), [b"body-"]))
    assert [one.bodies[row] for one in held for row in range(len(one.bodies))] == list(filter(None, wanted))
    headers = store.headers("va-bcq", 0, first, len(sent))
    assert headers["ok"].all()
    assert headers["physical_offset"].tolist() == [message.place for message in shown]
    assert headers["body_size"].tolist() == [len(body) for body in wanted]
    assert store.record_sizes("va-bcq", 0, first, len(sent))[1].tolist() == [len(body) for body in wanted]
    [block] = store.blocks("va-bcq", 0, first, len(sent))
    assert block.flag.tolist() == [item.flag for item in sent]
    assert [bytes(store.bodies(block.bodies)[row]) for row in range(len(block))] == wanted
    text = bytes(store.stream("va-bcq", 0).read(0, 1 << 24))
    assert text.endswith(b"".join(body + b"\n" for body in wanted))
    assert {item.keys[0] for item in sent} <= set(store.newest_keys("va-bcq", 10_000))
    assert len(store.query("va-bcq", "all", 1_000)) == len(sent)
    assert store.query("va-bcq", f"batch-{first}") == []


@pytest.mark.parametrize("way", WAYS)
def test_messages_of_a_batch_in_one_record_are_messages(way: str, tmp_path: Path) -> None:
    given = golden55("bcq", tmp_path)
    with MessageStore.open(given.path, replace(FOLLOW, sizes=None)) as store:
        broker, first = Broker(given.path, store.physical_end), store.bounds("va-bcq", 0).max_offset
    made = batches(40, first)
    places: dict[int, int] = {}
    start = first
    for batch in made:
        place = broker.end
        broker.put(wrapped(batch, start), 0, start)
        places |= dict.fromkeys(range(start, start + len(batch)), place)
        start += len(batch)
    with looked_at(given.path, way, tmp_path / "cache") as store:
        assert store.bounds("va-bcq", 0).max_offset == start
        assert store.recovery.damaged == ()
        require_inner(store, [item for batch in made for item in batch], first, places.__getitem__)
        for line in given.messages:
            assert seen(store.get(line["qt"], line["q"], line["qo"])) == expected(line)
        require_clean(store.check())
        assert store.stats().damaged_places == 0


BAD: dict[str, tuple[Callable[[Message], dict[str, Any]], str]] = {
    "too few": (lambda one: {"body": one.body[:-30]}, "no message begins"),
    "more": (lambda one: {"body": bytes(one.body) * 2}, "holds '3' messages, and holds 6"),
    "a size": (lambda one: {"body": b"\x7f" + bytes(one.body[1:])}, "no message begins at byte 0 of its body"),
    "a body's size": (lambda one: {"body": bytes(one.body[:16]) + b"\xff" + one.body[17:]}, "no message begins"),
    "nothing": (lambda one: {"body": b""}, "and holds 0"),
    "compressed": (lambda one: {"body": zlib.compress(one.body), "sys_flag": 0xC1}, "compressed, which is not read"),
    "another base": (lambda one: {"properties": {**one.properties, "INNER_BASE": "7"}}, "begins at '7'"),
    "no count": (lambda one: {"properties": {**one.properties, "INNER_NUM": "many"}}, "holds 'many' messages"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_batch_that_says_something_else_than_it_holds_is_an_error_with_the_reason(bad: str, tmp_path: Path) -> None:
    given = golden55("bcq", tmp_path)
    with MessageStore.open(given.path, replace(FOLLOW, sizes=None)) as store:
        broker, first = Broker(given.path, store.physical_end), store.bounds("va-bcq", 0).max_offset
    good = wrapped(batches(3, first)[2], first)
    broker.put(msgspec.structs.replace(good, **BAD[bad][0](good)), 0, first)
    with looked_at(given.path, "follow", tmp_path / "cache") as store:
        end = store.bounds("va-bcq", 0).max_offset
        assert end in (first + 1, first + 3)
        for number in range(first, end):
            with pytest.raises(DamagedRecordError, match=BAD[bad][1]):
                store.get("va-bcq", 0, number)
        assert not store.headers("va-bcq", 0, first, end - first)["ok"].any()
        assert len(bodies(store, "va-bcq", 0)) == first
        assert sum(block.damaged for block in store.blocks("va-bcq", 0, first, 9)) == end - first
        for line in given.messages:
            assert seen(store.get(line["qt"], line["q"], line["qo"])) == expected(line)


def test_a_batch_that_nothing_bears_out_takes_no_number(writer: MessageStore, followed: Path) -> None:
    forged = {"INNER_NUM": "3000", "INNER_BASE": "1"}
    writer.put(Message("T", b"0"), 0)
    writer.put(Message("T", b"1", properties=forged, sys_flag=0xC0), 0)
    others = [b"%d" % number for number in range(50) if number != 1]
    with MessageStore.open(followed, FOLLOW) as follower:
        for number in range(2, 50):
            writer.put(Message("T", b"%d" % number), 0)
            refreshed(follower)
            assert bytes(follower.get("T", 0, number).body) == b"%d" % number
        assert bodies(follower, "T", 0) == others
    with MessageStore.open(followed, FOLLOW) as follower:
        assert bodies(follower, "T", 0) == others


def test_a_topic_that_the_broker_deleted_goes(tmp_path: Path, config: StoreConfig) -> None:
    given = golden55("bcq", tmp_path)
    ear = Ear()
    with MessageStore.open(given.path, config) as store:
        store.subscribe(ear)
        shutil.rmtree(given.path / "consumequeue" / "vb-bcq")
        topics_json(given.path, lambda table: table.pop("vb-bcq"))
        refreshed(store)
        assert "vb-bcq" not in store.topics()
        assert "va-bcq" in store.topics()
    assert {one for one in ear.heard if one[0] == "gone"} == {("gone", "vb-bcq", queue) for queue in range(4)}
    with MessageStore.open(given.path, config) as store:
        assert "vb-bcq" not in store.topics()


def test_an_ordinary_store_that_gets_a_batch_topic_is_followed_on(tmp_path: Path, config: StoreConfig) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer, MessageStore.open(path, config) as follower:
        writer.put_lines("T", b"line\n" * 300, 0)
        writer.flush()
        refreshed(follower)
        assert follower.queues_derived is None
        attributes = {"queue.type": "BatchCQ"}
        entry = {"topicName": "B", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "attributes": attributes}
        topics_json(path, lambda table: table.__setitem__("B", entry))
        refreshed(follower)
        assert follower.queues_derived == "a batch consume queue (topic B)"
        writer.put_lines("T", b"more\n" * 300, 0)
        refreshed(follower)
        assert bodies(follower, "T", 0) == [b"line"] * 300 + [b"more"] * 300


def test_what_an_entry_leads_to_can_be_read_at_once(
    writer: MessageStore, followed: Path, config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch, read = QueuesFromLog.put_scanned, []
    with MessageStore.open(followed, config) as follower:

        def dispatched(self: QueuesFromLog, scanned: ScannedRecords, losses: Losses) -> list[tuple[str, int]]:
            fed = dispatch(self, scanned, losses)
            for topic, queue in fed:
                read.append(bytes(follower.get(topic, queue, follower.bounds(topic, queue).max_offset - 1).body))
            return fed

        monkeypatch.setattr(QueuesFromLog, "put_scanned", dispatched)
        for number in range(100):
            writer.put(Message("T", b"%d" % number * 20), 0)
            follower.refresh()
    assert read == [b"%d" % number * 20 for number in range(100)]


def test_readers_go_on_while_queues_are_derived(writer: MessageStore, followed: Path, config: StoreConfig) -> None:
    failures: list[BaseException] = []
    stop = threading.Event()
    with MessageStore.open(followed, config) as follower:

        def read() -> None:
            try:
                while not stop.is_set():
                    for message in follower.read("T", 0, 0) if "T" in follower.topics() else ():
                        assert message.queue_offset == int(bytes(message.body))
            except BaseException as error:
                failures.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(300):
            writer.put(Message("T", b"%d" % number), 0)
            follower.refresh()
        stop.set()
        reader.join()
    assert not failures

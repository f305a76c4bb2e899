"""Following: a reader beside a writer sees whole messages soon, and changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine import (
    BROKER_SIZES,
    EMBEDDED_SIZES,
    Expired,
    ExpiredMessageError,
    FileSizes,
    Message,
    MessageStore,
    NoDescriptorError,
    OpenMode,
    ReadError,
    Retention,
    StoreListener,
    UnsupportedStoreError,
)
from engine.derived.consume_queue import ConsumeQueue
from engine.derived.consume_queues import ConsumeQueues
from engine.open.follower import Follower
from engine.record.scan import ScannedRecords, scan_records
from tests.engine.storetools import SMALL, HastyDisk, bodies, nothing_left_open

FOLLOW = replace(SMALL, mode=OpenMode.FOLLOW)


class Ear(StoreListener):
    """Remembers everything."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []
        self.physical_offsets: list[int] = []

    def appended(self, topic: str, queue: int) -> None:
        self.heard.append(("appended", topic, queue))

    def expired(self, expired: Expired) -> None:
        self.heard.append(("expired", expired.topic, expired.queue, expired.old_min, expired.new_min))
        self.physical_offsets += expired.physical_offsets.tolist()

    def queue_gone(self, topic: str, queue: int) -> None:
        self.heard.append(("gone", topic, queue))

    def topics_changed(self) -> None:
        self.heard.append(("topics",))

    def log_rewritten(self, physical_end: int) -> None:
        self.heard.append(("rewritten", physical_end))


def refreshed(follower: MessageStore) -> MessageStore:
    """The follower after it has taken in all there is."""
    for _ in range(1000):
        if not follower.refresh():
            return follower
    raise AssertionError("refresh never comes to an end")


def test_a_follower_sees_messages_topics_queues_and_new_files(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer, MessageStore.open(path, FOLLOW) as follower:
        assert follower.topics() == []
        writer.put(Message("T", b"first", ["K"]), 0)
        assert follower.topics() == []
        refreshed(follower)
        assert bodies(follower, "T", 0) == [b"first"]
        text = b"".join(b"line-%d\n" % number for number in range(2000))
        writer.put_lines("T", text, 1)
        writer.create_topic("U", 7)
        refreshed(follower)
        assert b"".join(body + b"\n" for body in bodies(follower, "T", 1)) == text
        assert (follower.topics(), len(follower.queues("U"))) == (["T", "U"], 7)
        stream = follower.stream("T", 1)
        assert bytes(stream.read(0, len(text))) == text
        writer.put(Message("U", b"late"), 6)
        writer.put_lines("T", b"more\n", 1)
        refreshed(follower)
        assert bodies(follower, "U", 6) == [b"late"]
        assert bytes(stream.read(len(text), 100)) == b"more\n"


def test_a_follower_finds_keys_once_the_writer_settled_them(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer, MessageStore.open(path, FOLLOW) as follower:
        for number in range(200):
            writer.put(Message("T", b"%d" % number, [f"key-{number}", "all"]), number % 4)
        writer.flush()
        refreshed(follower)
        assert len(follower.query("T", "all", 1000)) == 200
        newest = follower.newest_with_key("T", "all")
        assert newest is not None
        assert bytes(newest.body) == b"199"
        writer.put(Message("T", b"200", ["all"]), 0)
        writer.flush()
        refreshed(follower)
        newest = follower.newest_with_key("T", "all")
        assert newest is not None
        assert bytes(newest.body) == b"200"


def test_nothing_new_is_nothing_changed_and_a_refresh_then_opens_no_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, replace(SMALL, preallocate=False), create=True) as writer:
        writer.put_lines("T", b"line\n" * 500, 0)
        with MessageStore.open(path, FOLLOW) as follower:
            refreshed(follower)
            for file in path.rglob("*"):
                os.utime(file, (1_600_000_000, 1_600_000_000))
            refreshed(follower)
            before = len(os.listdir("/proc/self/fd"))
            assert [follower.refresh() for _ in range(100)] == [False] * 100
            assert len(os.listdir("/proc/self/fd")) == before


def test_a_half_written_record_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer:
        writer.put(Message("T", b"whole"), 0)
        end = writer.put(Message("T", b"torn" * 10), 0)
    file = path / "commitlog" / ("0" * 20)
    content = file.read_bytes()
    shutil.rmtree(path / "consumequeue")
    for kept in range(0, end.store_size, 7):
        file.write_bytes(content[: end.physical_offset + kept].ljust(len(content), b"\0"))
        with MessageStore.open(path, FOLLOW) as follower:
            assert follower.physical_end == end.physical_offset
            file.write_bytes(content)
            refreshed(follower)
            assert follower.physical_end == end.physical_end


def test_an_entry_that_leads_into_the_unwritten_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer:
        puts = [writer.put(Message("T", b"%d" % number), 0) for number in range(10)]
    file = path / "commitlog" / ("0" * 20)
    content = file.read_bytes()
    file.write_bytes(content[: puts[7].physical_offset].ljust(len(content), b"\0"))
    with MessageStore.open(path, FOLLOW) as follower:
        assert bodies(follower, "T", 0) == [b"%d" % number for number in range(7)]
        assert follower.bounds("T", 0).max_offset == 7
        file.write_bytes(content)
        refreshed(follower)
        assert follower.bounds("T", 0).max_offset == 10


def test_a_follower_passes_damage_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer:
        puts = [writer.put(Message("T", b"body-%d" % number), 0) for number in range(20)]
        writer.flush()
        file = path / "commitlog" / ("0" * 20)
        with file.open("r+b") as log:
            log.seek(puts[5].physical_offset + 90)
            log.write(b"?")
        with MessageStore.open(path, FOLLOW) as follower:
            assert follower.bounds("T", 0).max_offset == 20
            with pytest.raises(ReadError):
                follower.get("T", 0, 5)
            assert len(bodies(follower, "T", 0)) == 19
            writer.put(Message("T", b"on"), 0)
            refreshed(follower)
            assert bodies(follower, "T", 0)[-1] == b"on"


def test_expired_files_and_deleted_topics_go_for_the_follower_too(tmp_path: Path) -> None:
    path = tmp_path / "store"
    retention = Retention(max_bytes=9000, clean_interval_ms=3_600_000, delete_pause_ms=0)
    ear = Ear()
    with (
        nothing_left_open(),
        MessageStore.open(path, replace(SMALL, retention=retention), create=True) as writer,
        MessageStore.open(path, FOLLOW) as follower,
    ):
        writer.put_lines("T", b"line of some length\n" * 500, 0, keys=["K"])
        writer.put(Message("gone", b"x"), 0)
        refreshed(follower)
        assert follower.bounds("T", 0).min_offset == 0
        follower.subscribe(ear)
        places = [message.physical_offset for message in follower.read("T", 0, 0)]
        writer.clean()
        writer.delete_topic("gone")
        refreshed(follower)
        bounds = writer.bounds("T", 0)
        assert bounds.min_offset > 0
        assert follower.bounds("T", 0) == bounds
        with pytest.raises(ExpiredMessageError):
            follower.get("T", 0, 0)
        assert ("expired", "T", 0, 0, bounds.min_offset) in ear.heard
        assert ear.physical_offsets == places[: bounds.min_offset]
        assert ("topics",) in ear.heard
        assert follower.topics() == ["T"]


@pytest.mark.parametrize(("before", "after"), [(100, 10), (10, 100), (1500, 1500)])
def test_a_topic_that_was_made_anew_between_two_looks_shows_nothing_of_the_old_one(
    tmp_path: Path, before: int, after: int
) -> None:
    path, ear = tmp_path / "store", Ear()
    with MessageStore.open(path, SMALL, create=True) as writer, MessageStore.open(path, FOLLOW) as follower:
        writer.put_lines("T", b"an old line\n" * before, 0)
        refreshed(follower)
        assert follower.stream("T", 0).size == before * 12
        follower.subscribe(ear)
        writer.delete_topic("T")
        writer.create_topic("T")
        text = b"new\n" * after
        writer.put_lines("T", text, 0)
        refreshed(follower)
        assert ("gone", "T", 0) in ear.heard
        assert follower.bounds("T", 0) == writer.bounds("T", 0)
        assert b"".join(body + b"\n" for body in bodies(follower, "T", 0)) == text
        assert bytes(follower.stream("T", 0).read(0, 1 << 20)) == text


def test_what_a_look_that_failed_had_found_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ear = tmp_path / "store", Ear()
    retention = Retention(max_bytes=9000, clean_interval_ms=3_600_000, delete_pause_ms=0)
    with (
        MessageStore.open(path, replace(SMALL, retention=retention), create=True) as writer,
        MessageStore.open(path, FOLLOW) as follower,
    ):
        for queue in (0, 1):
            writer.put_lines("T", b"line of some length\n" * 300, queue)
        refreshed(follower)
        assert [follower.bounds("T", queue).min_offset for queue in (0, 1)] == [0, 0]
        follower.subscribe(ear)
        writer.clean()
        for file in path.rglob("*"):
            os.utime(file, (1_600_000_000, 1_600_000_000))  # no directory looks as if it were changing

        def no_descriptor(queue: ConsumeQueue, _: int) -> int:
            raise NoDescriptorError(queue.files.directory)

        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueue, "expire", no_descriptor)
            with pytest.raises(NoDescriptorError):
                follower.refresh()
        refreshed(follower)
        bounds = [writer.bounds("T", queue) for queue in (0, 1)]
        assert [follower.bounds("T", queue) for queue in (0, 1)] == bounds
        for queue in (0, 1):
            assert ("expired", "T", queue, 0, bounds[queue].min_offset) in ear.heard


def test_what_was_found_before_a_look_failed_is_shown_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ear = tmp_path / "store", Ear()
    with MessageStore.open(path, SMALL, create=True) as writer:
        writer.put(Message("T", b"before"), 0)
        with MessageStore.open(path, FOLLOW) as follower:
            assert follower.bounds("T", 0).max_offset == 1
            follower.subscribe(ear)
            writer.put_lines("T", b"line of some length\n" * 60, 0)
            writer.put(Message("U", b"new"), 0)
            end = writer.physical_end

            def failing(*arguments: Any, **options: Any) -> Iterator[ScannedRecords]:
                yield from scan_records(*arguments, **options)
                raise NoDescriptorError(path)

            with monkeypatch.context() as patch:
                patch.setattr("engine.open.follower.scan_records", failing)
                with pytest.raises(NoDescriptorError):
                    follower.refresh()
            refreshed(follower)
            assert (follower.physical_end, follower.bounds("T", 0).max_offset) == (end, 61)
            assert follower.topics() == ["T", "U"]
            assert {("appended", "T", 0), ("topics",)} <= set(ear.heard)


def test_a_topic_that_came_is_told_though_a_queue_could_not_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ear = tmp_path / "store", Ear()
    with MessageStore.open(path, SMALL, create=True) as writer:
        writer.put(Message("T", b"before"), 0)
        with MessageStore.open(path, FOLLOW) as follower:
            assert follower.bounds("T", 0).max_offset == 1
            writer.create_topic("U", 1)
            refreshed(follower)
            follower.subscribe(ear)
            writer.put(Message("U", b"new"), 0)

            def no_descriptor(queue: ConsumeQueue, _: int) -> bool:
                raise NoDescriptorError(queue.files.directory)

            with monkeypatch.context() as patch:
                patch.setattr(ConsumeQueue, "refresh", no_descriptor)
                with pytest.raises(NoDescriptorError):
                    follower.refresh()
            refreshed(follower)
            assert ("topics",) in ear.heard


def test_what_expired_is_told_though_the_queues_files_went_before_the_log_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ear = tmp_path / "store", Ear()
    retention = Retention(max_bytes=9000, clean_interval_ms=3_600_000, delete_pause_ms=0)
    with (
        MessageStore.open(path, replace(SMALL, retention=retention), create=True) as writer,
        MessageStore.open(path, FOLLOW) as follower,
    ):
        writer.put_lines("T", b"line of some length\n" * 300, 0)
        refreshed(follower)
        assert follower.bounds("T", 0).min_offset == 0
        follower.subscribe(ear)
        writer.put_lines("T", b"more\n", 0)

        def cleaned_first(queues: ConsumeQueues, *arguments: Any) -> list[tuple[str, int]]:
            writer.clean()
            return look(queues, *arguments)

        look = ConsumeQueues.refresh
        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueues, "refresh", cleaned_first)
            follower.refresh()
        refreshed(follower)
        bounds = writer.bounds("T", 0)
        assert bounds.min_offset > 32
        assert follower.bounds("T", 0) == bounds
        assert ("expired", "T", 0, 0, bounds.min_offset) in ear.heard


def test_a_file_that_came_while_the_store_was_opened_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"

    def begun_late(follower: Follower) -> None:
        writer.put_lines("T", b"line of some length\n" * 200, 0)
        for file in path.rglob("*"):
            os.utime(file, (1_600_000_000, 1_600_000_000))  # no directory looks as if it were changing
        begin(follower)

    begin = Follower.begin
    with MessageStore.open(path, replace(SMALL, preallocate=False), create=True) as writer:
        writer.put(Message("T", b"before"), 0)
        monkeypatch.setattr(Follower, "begin", begun_late)
        with MessageStore.open(path, FOLLOW) as follower:
            refreshed(follower)
            assert follower.physical_end == writer.physical_end
            assert len(bodies(follower, "T", 0)) == 201


def test_a_follower_tells_its_listeners_what_came(tmp_path: Path) -> None:
    path, ear = tmp_path / "store", Ear()
    with MessageStore.open(path, SMALL, create=True) as writer:
        writer.put(Message("T", b"before"), 0)
        with MessageStore.open(path, FOLLOW) as follower:
            follower.bounds("T", 0)
            follower.subscribe(ear)
            writer.put(Message("T", b"after"), 0)
            refreshed(follower)
            assert ("appended", "T", 0) in ear.heard
            writer.create_topic("U")
            refreshed(follower)
            assert ("topics",) in ear.heard


def test_a_follower_stays_when_the_writer_is_restarted_and_cuts_its_tail(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer:
        writer.put_lines("T", b"line\n" * 100, 0)
        with MessageStore.open(path, FOLLOW) as follower:
            assert len(bodies(follower, "T", 0)) == 100
            writer.close()
            with MessageStore.open(path, SMALL) as again:
                again.put_lines("T", b"line\n" * 300, 0)
                refreshed(follower)
                assert len(bodies(follower, "T", 0)) == 400
            assert follower.log_generation == 0


def test_one_refresh_ends_soon_however_much_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.open.follower.REFRESH_BYTES", 4096)
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer, MessageStore.open(path, FOLLOW) as follower:
        writer.put_lines("T", b"line\n" * 2000, 0)
        ends = [follower.physical_end]
        while follower.refresh():
            ends.append(follower.physical_end)
        steps = [after - before for before, after in pairwise(ends)]
        assert max(steps) <= 2 * 4096 + 100
        assert ends[-1] == writer.physical_end
        assert len(bodies(follower, "T", 0)) == 2000


# another log in place of the one that was shown


def emptied(path: Path) -> None:
    for member in path.iterdir():
        shutil.rmtree(member) if member.is_dir() else member.unlink()


def lines_store(path: Path, line: bytes, count: int, topic: str = "T") -> None:
    with MessageStore.open(path, SMALL, create=True) as writer:
        writer.put(Message(topic, line, ["K"]), 0)
        writer.put_lines(topic, (line + b"\n") * (count - 1), 0)


def overwritten(path: Path, other: Path) -> None:
    """Every file of `other` written over the one of its name, which stays the same file."""
    for source in other.rglob("*"):
        target = path / source.relative_to(other)
        if source.is_file() and target.is_file():
            with target.open("r+b") as file:
                file.write(source.read_bytes())


@pytest.mark.parametrize("count", [50, 300])
def test_a_log_with_other_records_in_the_same_places_is_another_log(tmp_path: Path, count: int) -> None:
    path, other, ear = tmp_path / "store", tmp_path / "other", Ear()
    lines_store(path, b"old", count)
    lines_store(other, b"new", count)
    with MessageStore.open(path, FOLLOW) as follower:
        assert bodies(follower, "T", 0) == [b"old"] * count
        stream, end = follower.stream("T", 0), follower.physical_end
        assert stream.size == 4 * count
        follower.subscribe(ear)
        overwritten(path, other)
        refreshed(follower)
        assert ear.heard[:2] == [("rewritten", end), ("gone", "T", 0)]
        assert follower.log_generation == 1
        assert bodies(follower, "T", 0) == [b"new"] * count
        assert bytes(follower.stream("T", 0).read(0, 1 << 20)) == b"new\n" * count
        message = follower.newest_with_key("T", "K")
        assert message is not None
        assert bytes(message.body) == b"new"
        with pytest.raises(ReadError):
            stream.read(0, 4)


@pytest.mark.parametrize(("before", "after"), [(300, 20), (20, 300), (300, 300)])
def test_a_store_made_anew_is_followed_from_its_begin(tmp_path: Path, before: int, after: int) -> None:
    path = tmp_path / "store"
    lines_store(path, b"old", before)
    with MessageStore.open(path, SMALL) as writer:
        writer.delete_topic("T")  # and what is noted of that says nothing of the log that comes
        writer.put_lines("T", b"old\n" * before, 0)
    with MessageStore.open(path, FOLLOW) as follower:
        assert len(bodies(follower, "T", 0)) == before
        emptied(path)
        refreshed(follower)
        assert (follower.topics(), follower.physical_end) == ([], 0)
        lines_store(path, b"new", after)
        refreshed(follower)
        assert bodies(follower, "T", 0) == [b"new"] * after
        assert bytes(follower.at(0).body) == b"new"
        with MessageStore.open(path, SMALL) as writer:
            writer.put(Message("U", b"later"), 0)
            refreshed(follower)
            assert bodies(follower, "U", 0) == [b"later"]


def test_a_log_that_is_cut_shows_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "store"
    lines_store(path, b"line", 300)
    with MessageStore.open(path, FOLLOW) as follower:
        cut = follower.get("T", 0, 100).physical_offset
        for file in sorted((path / "commitlog").iterdir()):
            begin = int(file.name)
            if begin > cut:
                file.unlink()
            elif cut < begin + 8192:
                kept = file.read_bytes()[: cut - begin]
                file.write_bytes(kept.ljust(8192, b"\0"))
        queue = path / "consumequeue" / "T" / "0"
        for file in queue.iterdir():
            kept = file.read_bytes()[: max(100 * 20 - int(file.name), 0)]
            file.write_bytes(kept.ljust(640, b"\0"))
        refreshed(follower)
        assert (follower.log_generation, follower.physical_end) == (1, cut)
        assert len(bodies(follower, "T", 0)) == 100


def test_other_file_sizes_come_with_another_log(tmp_path: Path) -> None:
    path = tmp_path / "store"
    lines_store(path, b"old", 300)
    sizes = FileSizes(commit_log_bytes=1 << 15, consume_queue_entries=100, index_slots=7, index_entries=30)
    with MessageStore.open(path, FOLLOW) as follower:
        emptied(path)
        with MessageStore.open(path, replace(SMALL, sizes=sizes), create=True) as writer:
            for number in range(1000):
                writer.put(Message("T", b"%d" % number, [f"K{number}"]), 0)
            writer.flush()
            refreshed(follower)
            assert follower.sizes == sizes
            assert bodies(follower, "T", 0) == [b"%d" % number for number in range(1000)]
            message = follower.newest_with_key("T", "K999")
            assert message is not None
            assert message.queue_offset == 999


def test_a_store_that_is_not_read_comes_in_its_place_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    lines_store(path, b"old", 10)
    with MessageStore.open(path, FOLLOW) as follower:
        emptied(path)
        (path / "dledger-n0").mkdir()
        (path / "commitlog").mkdir()
        for _ in range(2):
            with pytest.raises(UnsupportedStoreError, match="DLedger"):
                follower.refresh()
            assert follower.topics() == []
        (path / "dledger-n0").rmdir()
        lines_store(path, b"new", 10)
        refreshed(follower)
        assert bodies(follower, "T", 0) == [b"new"] * 10


# sizes that no file told when the follower came


class SparseDisk(HastyDisk):
    """Files of a broker's size without their space."""

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        """Nothing."""


FOUR_MIB = replace(BROKER_SIZES, commit_log_bytes=4 << 20)


@pytest.mark.parametrize("sizes", [BROKER_SIZES, FOUR_MIB, EMBEDDED_SIZES, SMALL.sizes], ids=str)
@pytest.mark.parametrize("looks", ["before each file", "afterwards"])
def test_a_follower_that_came_before_the_first_file_takes_its_size(
    tmp_path: Path, sizes: FileSizes, looks: str
) -> None:
    path = tmp_path / "store"
    (path / "config").mkdir(parents=True)
    (path / "abort").touch()
    writing = replace(SMALL, sizes=sizes, disk=SparseDisk(), preallocate=False)
    with (
        MessageStore.open(path, replace(FOLLOW, sizes=None)) as follower,
        MessageStore.open(path, writing) as writer,
    ):
        (path / "config" / "sizes.json").unlink()  # a broker has none
        count = 20_000 if sizes.commit_log_bytes <= 4 << 20 else 200_000
        text = b"".join(b"line %d %s\n" % (number, b"x" * 200) for number in range(count))
        for chunk in [text[:1000], text[1000:]] if looks == "before each file" else [text]:
            writer.put_lines("T", chunk[: chunk.rindex(b"\n") + 1], 0)
            if looks == "before each file":
                refreshed(follower)
        expected = writer.bounds("T", 0)
        writer.put(Message("T", b"tagged", ["K"]), 1)
        writer.flush()
        refreshed(follower)
        assert follower.bounds("T", 0) == expected
        assert follower.bounds("T", 1).max_offset == 1
        found = follower.newest_with_key("T", "K")
        assert found is not None
        assert bytes(found.body) == b"tagged"
        log_bytes, entries = follower.sizes.commit_log_bytes, follower.sizes.consume_queue_entries
        assert (log_bytes, entries) == (sizes.commit_log_bytes, sizes.consume_queue_entries)
        assert follower.sizes.index_bytes == sizes.index_bytes


def keyed_store(path: Path) -> Path:
    with MessageStore.open(path, SMALL, create=True) as writer:
        for number in range(10):
            writer.put(Message("T", b"%d" % number, [f"K{number}"]), 0)
    (path / "config" / "sizes.json").unlink()
    return path


def test_a_follower_says_that_there_is_no_index_until_there_is_one(tmp_path: Path) -> None:
    path = keyed_store(tmp_path / "store")
    (path / "index").rename(tmp_path / "index")
    with MessageStore.open(path, replace(FOLLOW, sizes=None)) as follower:
        assert follower.index_state.state == "none"
        assert "RocksDB" in str(follower.index_state.reason)
        assert follower.newest_with_key("T", "K3") is None
        assert follower.stats().index == "none"
        (tmp_path / "index").rename(path / "index")
        refreshed(follower)
        assert follower.index_state == ("in use", None)
        found = follower.newest_with_key("T", "K3")
        assert found is not None
        assert bytes(found.body) == b"3"


@pytest.mark.parametrize("lost", [slice(0, 1), slice(0, -1), slice(1, 2)], ids=["first", "all but newest", "middle"])
def test_keys_are_found_that_lie_before_the_index_files_or_between_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: slice
) -> None:
    """Index files that a broker deleted when it was killed, and did not read again."""
    monkeypatch.setattr("engine.open.missing_keys.BEHIND_SECONDS", 0.0)
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer:
        for _ in range(10):
            writer.put(Message("T", b"without a key"), 0)
        for number in range(300):
            writer.put(Message("T", b"%d" % number, [f"K{number}"]), 0)
    files = sorted((path / "index").iterdir())
    assert len(files) >= 4
    with MessageStore.open(path, FOLLOW) as follower:
        refreshed(follower)
        assert follower.index_state.state == "in use", "keys are where they should be: records without any come first"
    for file in files[lost]:
        file.unlink()
    with MessageStore.open(path, FOLLOW) as follower:
        for _ in range(3):
            refreshed(follower)
        assert follower.index_state.state == "derived"
        assert "no keys from " in str(follower.index_state.reason)
        for number in range(300):
            found = follower.newest_with_key("T", f"K{number}")
            assert found is not None
            assert bytes(found.body) == b"%d" % number


def test_a_follower_tells_that_topics_went_and_not_that_they_came(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as writer, MessageStore.open(path, FOLLOW) as follower:
        writer.create_topics({"named": 4, "written": 1})
        refreshed(follower)
        removed = follower.topics_removed
        writer.create_topic("new", 1)
        writer.grow_topic("named", 8)
        writer.put(Message("written", b"x"))
        refreshed(follower)
        assert (follower.topics(), len(follower.queues("named"))) == (["named", "new", "written"], 8)
        assert follower.topics_removed == removed
        for topic in ("named", "written"):
            writer.delete_topic(topic)
            refreshed(follower)
            assert follower.topics_removed > removed
            removed = follower.topics_removed
        assert follower.topics() == ["new"]


@pytest.mark.parametrize("in_place", [True, False], ids=["topics.json written over", "topics.json made anew"])
def test_a_topic_that_its_broker_deletes_while_nothing_is_written_goes(tmp_path: Path, in_place: bool) -> None:
    """As 4.9 does it: topics.json first, as a new file, then the queues' folders; the topic's own folder stays."""
    path, ear = tmp_path / "store", Ear()
    with MessageStore.open(path, SMALL, create=True) as writer:
        for topic in ("plain", "doomed"):
            writer.create_topic(topic, 2)
            for number in range(10):
                writer.put(Message(topic, b"%d" % number), number % 2)
    topics = path / "config/topics.json"
    table = json.loads(topics.read_text())
    with MessageStore.open(path, FOLLOW) as follower:
        follower.subscribe(ear)
        refreshed(follower)
        time.sleep(0.15)  # longer than a change may hide behind the one before it
        refreshed(follower)
        assert bodies(follower, "doomed", 0) == [b"0", b"2", b"4", b"6", b"8"]
        del table["topicConfigTable"]["doomed"]
        written = topics if in_place else topics.with_suffix(".tmp")
        written.write_text(json.dumps(table))
        written.replace(topics)
        refreshed(follower)
        assert "doomed" in follower.topics(), "its queues are still there"
        for queue in "01":
            shutil.rmtree(path / "consumequeue/doomed" / queue)
        refreshed(follower)
        assert follower.topics() == ["plain"]
        assert {one for one in ear.heard if one[0] == "gone"} == {("gone", "doomed", 0)}
        assert bodies(follower, "plain", 1) == [b"1", b"3", b"5", b"7", b"9"]


def test_queues_are_derived_where_a_store_has_none_and_given_up_when_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that was copied or replicated alone."""
    path, bare = keyed_store(tmp_path / "store"), tmp_path / "bare"
    shutil.copytree(path / "commitlog", bare / "commitlog")
    shutil.copytree(path / "config", bare / "config")
    with MessageStore.open(path, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        expected = bodies(store, "T", 0)
    with MessageStore.open(bare, FOLLOW) as follower:
        refreshed(follower)
        assert follower.queues_derived is None, "its writer may be about to make them"
        monkeypatch.setattr("engine.open.follower.QUEUES_SECONDS", 0.0)
        refreshed(follower)
        assert follower.queues_derived == "no consume queue as a file"
        assert bodies(follower, "T", 0) == expected
        assert follower.newest_with_key("T", "K3") is not None
        (bare / "config/note").touch()  # a change that says nothing of queues
        refreshed(follower)
        assert follower.queues_derived == "no consume queue as a file"
        monkeypatch.setattr("engine.open.follower.QUEUES_SECONDS", 60.0)
        shutil.copytree(path / "consumequeue", bare / "consumequeue")
        refreshed(follower)
        assert follower.queues_derived is None
        assert bodies(follower, "T", 0) == expected


def test_a_follower_says_that_an_index_is_not_proved_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.open.follower.PROOF_SECONDS", 0.0)
    path = keyed_store(tmp_path / "store")
    [index] = (path / "index").iterdir()
    whole = index.read_bytes()
    index.write_bytes(whole[:40] + bytes(len(whole) - 40))
    with MessageStore.open(path, replace(FOLLOW, sizes=None)) as follower:
        refreshed(follower)
        assert follower.index_state.state == "not proved"
        assert "maxHashSlotNum" in str(follower.index_state.reason)
        index.write_bytes(whole)
        with MessageStore.open(path, SMALL) as writer:
            (path / "config" / "sizes.json").unlink()
            writer.put(Message("T", b"10", ["K10"]), 0)
            writer.flush()
            refreshed(follower)
            assert follower.index_state == ("in use", None)
            found = follower.newest_with_key("T", "K10")
            assert found is not None
            assert bytes(found.body) == b"10"


def test_a_store_opened_alone_says_that_its_index_was_made_again(tmp_path: Path) -> None:
    path = keyed_store(tmp_path / "store")
    [index] = (path / "index").iterdir()
    index.write_bytes(index.read_bytes()[:40] + b"x" * 1000)
    with MessageStore.open(path, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        assert (store.index_state.state, store.stats().index) == ("rebuilt", "rebuilt")
        assert store.index_state.reason
        assert store.newest_with_key("T", "K3") is not None

"""A store while topics are deleted, and files of ours go missing."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Expired, Message, MessageStore, OpenMode, StoreListener, check_store, repair_store
from engine.files.disk import TEMPORARY_SUFFIX
from tests.engine.storetools import QUIET, SMALL, HastyDisk, bodies, killed, opened, require_clean


class WhileDeleting(StoreListener):
    """Brings everything to disk while a topic is being deleted."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def expired(self, expired: Expired) -> None:
        """Called before the marks forget the topic."""
        self._store.flush()


def publish_after_flush(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread publishes between delete_topic's flush and its deletion."""
    flush = store.flush

    def flush_then_publish() -> None:
        flush()
        monkeypatch.undo()
        store.put(Message("gone", b"just in time"), 0)

    monkeypatch.setattr(store, "flush", flush_then_publish)


def broker_store(path: Path, *, living_last: bool = True) -> Path:
    """A store as a broker leaves it that deleted the topic `gone`, and was then stopped."""
    with MessageStore.open(path, SMALL, create=True) as store:
        order = ("gone", "living") if living_last else ("living", "gone")
        for topic in order * 20:
            store.put(Message(topic, b"a line of some length" * 8, ["K"]), 0)
    table = json.loads((path / "config" / "topics.json").read_bytes())
    del table["topicConfigTable"]["gone"]
    (path / "config" / "topics.json").write_text(json.dumps(table))
    for backup in (path / "config").glob("*.bak"):
        backup.unlink()
    shutil.rmtree(path / "consumequeue" / "gone")
    shutil.rmtree(path / "fsstore")
    return path


@pytest.mark.parametrize("living_last", [True, False])
def test_a_topic_that_a_broker_deleted_stays_deleted(tmp_path: Path, living_last: bool) -> None:
    path = broker_store(tmp_path / "store", living_last=living_last)
    require_clean(check_store(path))
    with MessageStore.open(path, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        assert store.topics() == ["living"]
        assert any("topic gone" in note for note in store.recovery.notes)
        assert store.query("gone", "K") == []
    with killed(path, tmp_path / "killed") as store:
        assert (store.topics(), len(bodies(store, "living", 0))) == (["living"], 20)
        require_clean(store.check())
        store.put(Message("gone", b"anew"), 0)
        assert bodies(store, "gone", 0) == [b"anew"]
    for left in (path, tmp_path / "killed"):
        with opened(left) as store:
            assert bodies(store, "gone", 0) == [b"anew"]


def test_a_repair_does_not_bring_back_what_a_broker_deleted(tmp_path: Path) -> None:
    path = broker_store(tmp_path / "store")
    for file in (path / "consumequeue" / "living" / "0").iterdir():
        file.write_bytes(bytes(640))
    assert any("topic gone was deleted" in done for done in repair_store(path))
    with opened(path) as store:
        assert (store.topics(), len(bodies(store, "living", 0))) == (["living"], 20)


def test_a_topic_that_only_lost_something_comes_back(tmp_path: Path) -> None:
    def crashed(path: Path) -> None:
        (path / "abort").touch()

    def lost_all_queues(path: Path) -> None:
        shutil.rmtree(path / "consumequeue")

    def lost_the_table(path: Path) -> None:
        (path / "config" / "topics.json").unlink()

    for lose in (crashed, lost_all_queues, lost_the_table):
        path = broker_store(tmp_path / lose.__name__)
        lose(path)
        with opened(path) as store:
            assert store.topics() == ["gone", "living"], lose.__name__
            assert len(bodies(store, "gone", 0)) == 20


def test_a_topic_that_the_table_or_a_queue_knows_is_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as store:
        for topic in ("in both", "in the table", "in a queue"):
            store.create_topic(topic.replace(" ", "_"))
            store.put(Message(topic.replace(" ", "_"), b"x"), 0)
    table = json.loads((path / "config" / "topics.json").read_bytes())
    del table["topicConfigTable"]["in_a_queue"]
    (path / "config" / "topics.json").write_text(json.dumps(table))
    shutil.rmtree(path / "consumequeue" / "in_the_table")
    shutil.rmtree(path / "fsstore")
    with opened(path) as store:
        assert [bodies(store, topic, 0) for topic in store.topics()] == [[b"x"]] * 3


def test_a_flush_while_a_topic_is_deleted_does_not_bring_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as store:
        store.put(Message("gone", b"message"), 0)
        store.subscribe(WhileDeleting(store))
        publish_after_flush(store, monkeypatch)
        store.delete_topic("gone")
        assert store.topics() == []


def test_a_topic_that_is_written_while_it_is_deleted_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = replace(QUIET, commit_interval_ms=3_600_000)
    with opened(tmp_path / "store", transient_pool_buffers=2, flush=policy) as store:
        store.put(Message("gone", b"message"), 0)
        publish_after_flush(store, monkeypatch)
        store.delete_topic("gone")
        store.put(Message("gone", b"anew"), 0)
        store.flush()
        assert store.read_only_reason is None
        assert bodies(store, "gone", 0) == [b"anew"]


def test_a_store_whose_lock_file_somebody_removed_is_flushed_closed_and_opened_again(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL, create=True) as store:
        store.put(Message("orders", b"one"), 0)
        (tmp_path / "store" / "lock").unlink()
        store.flush()
        store.put(Message("orders", b"two"), 0)
    with opened(tmp_path / "store") as store:
        assert bodies(store, "orders", 0) == [b"one", b"two"]


class WatchedDisk(HastyDisk):
    """Has `meanwhile` called while one thread waits for the disk."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] = lambda: None
        self.thread = 0

    def sync(self, descriptor: int, path: Path) -> None:
        if threading.get_ident() == self.thread:
            self.meanwhile()

    def sync_directory(self, path: Path) -> None:
        if threading.get_ident() == self.thread:
            self.meanwhile()


def test_publishers_go_on_while_a_deletion_waits_for_the_disk(tmp_path: Path) -> None:
    disk = WatchedDisk()
    with opened(tmp_path / "store", disk=disk) as store:
        store.create_topic("gone", 2)
        store.put(Message("gone", b"message"), 0)
        store.put(Message("stays", b"0"), 0)
        published: list[int] = []

        def publish() -> None:
            with ThreadPoolExecutor(1) as thread:
                put = thread.submit(store.put, Message("stays", b"another"), 0)
                published.append(put.result(10).physical_end)

        disk.meanwhile, disk.thread = publish, threading.get_ident()
        store.delete_topic("gone")
        disk.thread = 0
        assert len(published) >= 4, "a deletion syncs its note, the topics and the queues"
        assert store.topics() == ["stays"]
        assert store.bounds("stays", 0).max_offset == 1 + len(published)


def test_what_is_published_to_a_topic_while_its_deletion_waits_for_the_disk_goes_with_it(tmp_path: Path) -> None:
    disk = WatchedDisk()
    with opened(tmp_path / "store", disk=disk) as store:
        store.create_topic("gone", 2)
        store.put(Message("gone", b"before"), 0)

        def publish_once() -> None:
            disk.meanwhile = lambda: None
            with ThreadPoolExecutor(1) as thread:
                thread.submit(store.put, Message("gone", b"meanwhile"), 0).result(10)

        disk.meanwhile, disk.thread = publish_once, threading.get_ident()
        store.delete_topic("gone")
        disk.thread = 0
        assert store.topics() == []
        store.put(Message("gone", b"anew"), 0)
        assert bodies(store, "gone", 0) == [b"anew"]


class RefusingDisk(HastyDisk):
    """Refuses calls by their number, from `armed` on; a directory's names are there all the same."""

    def __init__(self, refused: range) -> None:
        self._refused = refused
        self.calls = -1
        self.has_refused = False

    def arm(self) -> None:
        """Begin to count."""
        self.calls = 0

    def _call(self) -> None:
        if self.calls < 0:
            return
        self.calls += 1
        if self.calls - 1 in self._refused:
            self.has_refused = True
            raise OSError(errno.ENOSPC, "No space left on device")

    def sync_directory(self, path: Path) -> None:
        self._call()

    def sync(self, descriptor: int, path: Path) -> None:
        if path.suffix == TEMPORARY_SUFFIX:  # a file of settings, or a note: what flushes the log is another matter
            self._call()


def delete_on(path: Path, disk: RefusingDisk) -> bool:
    """Make two topics of three queues on `disk`, and delete one; whether that was said to be done."""
    with MessageStore.open(path, replace(SMALL, disk=disk), create=True) as store:
        for topic in ("gone", "stays"):
            store.create_topic(topic, 3)
            store.put_batch([Message(topic, b"%d" % number) for number in range(4)], 1)
        store.flush()
        disk.arm()
        try:
            store.delete_topic("gone")
        except OSError:
            return False
        finally:
            disk.calls = -1
        return True


@pytest.mark.parametrize("count", [1, 1_000], ids=["once", "from then on"])
def test_a_deletion_that_the_disk_refuses_leaves_the_topic_whole_or_nothing_of_it(tmp_path: Path, count: int) -> None:
    expected, seen = [b"0", b"1", b"2", b"3"], set()
    for first in range(100):
        path, disk = tmp_path / f"store-{first}", RefusingDisk(range(first, first + count))
        is_done = delete_on(path, disk)
        with MessageStore.open(path, SMALL) as store:
            assert (store.queues("stays"), bodies(store, "stays", 1)) == ([0, 1, 2], expected)
            if "gone" not in store.topics():
                seen.add("deleted")
            elif bodies(store, "gone", 1):
                assert not is_done
                assert (store.queues("gone"), bodies(store, "gone", 1)) == ([0, 1, 2], expected)
                seen.add("whole")
            else:
                assert not is_done
                seen.add("empty")
            require_clean(store.check())
        if not disk.has_refused:
            break
    assert not disk.has_refused
    assert {"whole", "deleted"} <= seen

"""What goes on in a store while topics are deleted, and files of ours go missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Expired, Message, MessageStore, StoreListener
from tests.engine.storetools import QUIET, SMALL, HastyDisk, bodies, opened


class WhileDeleting(StoreListener):
    """Brings everything to disk while a topic is being deleted."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def expired(self, expired: Expired) -> None:
        """Called before the marks forget the topic."""
        self._store.flush()


def publish_after_flush(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody publishes between delete_topic's flush and its deletion."""
    flush = store.flush

    def flush_then_publish() -> None:
        flush()
        monkeypatch.undo()
        store.put(Message("gone", b"just in time"), 0)

    monkeypatch.setattr(store, "flush", flush_then_publish)


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
    with MessageStore.open(tmp_path / "store", SMALL) as store:
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

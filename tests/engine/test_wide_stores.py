"""Stores of many queues: what is done for the queues that changed, and for all of them."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from engine import FlushFailedError, Message, MessageStore
from engine.derived.consume_queues import MANY_FILES
from engine.files.disk import Disk
from engine.files.file_queue import FileQueue, Unflushed
from tests.engine.storetools import SMALL, HastyDisk, bodies, opened

WIDTHS = (10, 1_000)


class CountingDisk(HastyDisk):
    """Counts the syncs of the files and folders of consume queues, and those of the whole filesystem."""

    def __init__(self, *, syncs_all: bool = True) -> None:
        self.calls = Counter[str]()
        self.refused: set[str] = set()
        """What fails: a name of `calls`, or the topic of a queue."""
        self._syncs_all = syncs_all

    def sync(self, descriptor: int, path: Path) -> None:
        if "consumequeue" in path.parts:
            self._call("file", path)

    def sync_directory(self, path: Path) -> None:
        if "consumequeue" in path.parts:
            self._call("folder", path)

    def sync_filesystem(self, descriptor: int, path: Path) -> bool:
        self._call("filesystem", path)
        return self._syncs_all

    def _call(self, what: str, path: Path) -> None:
        self.calls[what] += 1
        if self.refused.intersection((what, *path.parts)):
            raise OSError(errno.EIO, "input/output error", str(path))


def fill(store: MessageStore, queues: int, topic: str = "T") -> None:
    """A message in each queue of a new topic."""
    store.create_topic(topic, queues)
    for queue in range(queues):
        store.put(Message(topic, b"%d" % queue), queue)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a flush looked at the files of each queue, by its folder's name."""
    calls = Counter[str]()
    unflushed = FileQueue.unflushed

    def counting(files: FileQueue, least_pages: int = 0) -> Unflushed:
        calls[files.directory.name] += 1
        return unflushed(files, least_pages)

    monkeypatch.setattr(FileQueue, "unflushed", counting)
    return calls


@pytest.mark.parametrize("queues", WIDTHS)
def test_a_flush_looks_at_the_queues_that_changed(tmp_path: Path, queues: int, looked_at: Counter[str]) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        fill(store, queues)
        store.flush()
        looked_at.clear()
        store.put(Message("T", b"more"), 7)
        store.flush()
        store.flush()
        assert looked_at == {"7": 1}


@pytest.mark.parametrize("queues", WIDTHS)
def test_new_files_of_many_queues_are_brought_to_disk_at_once(tmp_path: Path, queues: int) -> None:
    disk = CountingDisk()
    with MessageStore.open(tmp_path, replace(SMALL, disk=disk), create=True) as store:
        fill(store, queues)
        disk.calls.clear()
        store.flush()
        found = {queue.files.flushed_offset for queue in store._parts.queues.opened()}
        assert found == {20}
    one_by_one = {"file": queues, "folder": 2 * queues + 1}
    assert disk.calls == ({"filesystem": 1} if queues > MANY_FILES else one_by_one)


@pytest.mark.parametrize("why", ["unable", "failing"])
def test_many_files_are_synced_one_by_one_where_no_sync_of_all_tells_enough(tmp_path: Path, why: str) -> None:
    disk, queues = CountingDisk(syncs_all=why == "failing"), MANY_FILES + 1
    with MessageStore.open(tmp_path, replace(SMALL, disk=disk), create=True) as store:
        fill(store, queues)
        disk.calls.clear()
        disk.refused = {"filesystem"}
        store.flush()
        assert (disk.calls["filesystem"], disk.calls["file"]) == (1, queues)
        assert store.flush_failure is None  # another program's file failed


def test_a_write_that_failed_is_told_though_all_files_were_synced_at_once(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = MessageStore.open(tmp_path, replace(SMALL, disk=disk), create=True)
    fill(store, MANY_FILES + 1)
    fill(store, 1, "bad")
    disk.refused = {"filesystem", "bad"}
    with pytest.raises(FlushFailedError):
        store.flush()
    disk.refused = set()
    with pytest.raises(FlushFailedError):
        store.flush()
    with pytest.raises(FlushFailedError):
        store.close()


def test_a_file_whose_sync_failed_is_not_healed_by_a_sync_of_all(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = MessageStore.open(tmp_path, replace(SMALL, disk=disk), create=True)
    fill(store, 1, "bad")
    (queue,) = store._parts.queues.opened()
    disk.refused = {"bad"}
    assert queue.files.last is not None
    assert not queue.files.last.evict()  # it syncs first
    disk.refused = set()
    fill(store, MANY_FILES + 1)
    with pytest.raises(FlushFailedError):
        store.flush()
    assert disk.calls["filesystem"] == 1
    with pytest.raises(FlushFailedError):
        store.close()


def test_the_filesystem_of_a_store_is_synced_or_known_to_be_unable(tmp_path: Path) -> None:
    with opened(tmp_path, replace(SMALL, disk=Disk())) as store:
        fill(store, MANY_FILES + 1)
        store.flush()
        assert {queue.files.flushed_offset for queue in store._parts.queues.opened()} == {20}
    with opened(tmp_path) as store:
        assert bodies(store, "T", MANY_FILES) == [b"%d" % MANY_FILES]

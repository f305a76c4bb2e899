"""Retention hides messages before it deletes them, and tells of it when no way leads to them any more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine import Expired, ExpiredMessageError, Message, MessageStore, Retention, StoreListener, check_store
from engine.files.file_queue import FileQueue
from engine.files.mapped_file import MappedFile
from tests.engine.storetools import SMALL, killed, require_clean

OLDEST = f"{0:020d}"


class Watcher(StoreListener):
    """Notes the remaining parts of the store when a queue has lost its first messages."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.heard: list[Expired] = []

    def expired(self, expired: Expired) -> None:
        """Nothing leads to expired messages: no queue, no physical offset, no file."""
        self.heard.append(expired)
        assert self._store.bounds("t", 0).min_offset == expired.new_min
        assert not (self._store.path / "commitlog" / OLDEST).exists()
        for physical_offset in expired.physical_offsets.tolist():
            with pytest.raises(ExpiredMessageError):
                self._store.at(physical_offset)


def test_queues_move_on_before_the_file_goes_and_listeners_hear_of_it_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(SMALL, retention=Retention(max_bytes=8192, clean_interval_ms=3_600_000, delete_pause_ms=0))
    with MessageStore.open(tmp_path, config, create=True) as store:
        places = [store.put(Message("t", b"x" * 1_000), 0).physical_offset for _ in range(12)]
        assert store.bounds("t", 0).min_offset == 0
        watcher = Watcher(store)
        store.subscribe(watcher)
        bounds = []
        retire_first = FileQueue.retire_first

        def note_bounds(files: FileQueue, now_ms: int) -> MappedFile | None:
            bounds.append(store.bounds("t", 0).min_offset)
            return retire_first(files, now_ms)

        monkeypatch.setattr(FileQueue, "retire_first", note_bounds)
        assert store.clean() == 1
        (expired,) = watcher.heard
        assert bounds[0] == expired.new_min > 0
        assert expired.physical_offsets.tolist() == places[: expired.new_min]
        assert store.stream("t", 0).first_offset == expired.new_min


@pytest.mark.parametrize("later", [1_100, 60], ids=["some keys are left", "all are gone"])
def test_a_power_cut_after_files_of_the_log_went_leaves_no_torn_keys(tmp_path: Path, later: int) -> None:
    """Keys of expired messages are in index files that would be deleted next: any page of these may be missing."""
    left = tmp_path / "left"
    with killed(tmp_path / "store", left) as store:
        for number in range(100):
            store.put(Message("t", b"old", [f"old-{number}"]), 0)
        store.flush()
        begin = store.physical_end // 8192 * 8192 + 8192
        for number in range(later):
            store.put(Message("t", b"x" * 200, [f"new-{number}"]), 0)
    for log in (left / "commitlog").iterdir():
        if int(log.name) < begin:
            log.unlink()
    oldest = min((left / "index").iterdir())
    with oldest.open("r+b") as file:
        file.seek(600)
        file.write(bytes(900))
    with MessageStore.open(left, SMALL) as store:
        require_clean(store.check())
        assert [bytes(message.body) for message in store.query("t", f"new-{later - 1}")] == [b"x" * 200]
        assert store.query("t", "old-99") == []
    require_clean(check_store(left))

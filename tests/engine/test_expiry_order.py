"""Retention hides messages before it deletes them: nobody may be led to a file that is gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine import Message, MessageStore, Retention, StoreListener
from tests.engine.storetools import SMALL

OLDEST = f"{0:020d}"


class Watcher(StoreListener):
    """Notes what of the store is there when a queue loses its first messages."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.seen: list[tuple[int, int, bool]] = []

    def expired(self, topic: str, queue: int, old_min: int, new_min: int) -> None:
        """Remember the new bound, the store's, and whether the oldest file is still there."""
        oldest = self._store.path / "commitlog" / OLDEST
        self.seen.append((new_min, self._store.bounds(topic, queue).min_offset, oldest.exists()))


def test_queues_move_on_before_the_file_goes(tmp_path: Path) -> None:
    config = replace(SMALL, retention=Retention(max_bytes=8192, clean_interval_ms=3_600_000, delete_pause_ms=0))
    with MessageStore.open(tmp_path, config) as store:
        for _ in range(12):
            store.put(Message("t", b"x" * 1_000), 0)
        assert store.bounds("t", 0).min_offset == 0
        watcher = Watcher(store)
        store.subscribe(watcher)
        assert store.clean() == 1
        (new_min, bound, there) = watcher.seen[0]
        assert new_min == bound > 0
        assert there
        assert not (tmp_path / "commitlog" / OLDEST).exists()
        assert store.stream("t", 0).first_offset == new_min

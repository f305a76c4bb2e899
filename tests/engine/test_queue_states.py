"""What is in each queue, found without opening it where possible."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message, MessageStore, OpenMode, QueueState, Retention, StoreConfig
from engine.derived.consume_queues import ConsumeQueues
from engine.files.mapped_file import Access
from engine.files.paths import hold_folder
from tests.engine.storetools import SMALL, SMALL_SIZES, opened

FILE_ENTRIES = SMALL_SIZES.consume_queue_entries


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with queues of all sorts: of one file, of several, of none, of which messages have expired, and of which
    a file begins with entries for no message."""
    path = tmp_path_factory.mktemp("store")
    retention = Retention(max_bytes=2 * SMALL_SIZES.commit_log_bytes, delete_pause_ms=0, delete_batch_files=99)
    with opened(path) as store:
        store.create_topic("few", 2)
        for topic, count in (("gone", 3), ("few", 3), ("several", 3 * FILE_ENTRIES), ("late", 200), ("few", 1)):
            store.put_batch([Message(topic, b"x" * 99)] * count, 1)
        store._require_write_side().cleaner.apply(retention)
        store.clean()
        assert [store.bounds(topic, 1).count for topic in ("gone", "few", "several")] == [0, 1, 0]
        store.put_batch([Message("full", b"x")] * FILE_ENTRIES, 0)
        store.put_batch([Message("new", b"x")] * 3, 0)
        store.put_batch([Message("two-files", b"x")] * (FILE_ENTRIES + 1), 0)
        (path / "consumequeue" / "few" / "7").mkdir()
    shutil.rmtree(path / "consumequeue" / "late")
    with opened(path) as store:
        assert store.bounds("late", 1).min_offset > 0
    return path


def in_each(store: MessageStore) -> list[QueueState]:
    """By the queues themselves."""
    found = []
    for topic, queues in store.queues_by_topic().items():
        for queue in queues:
            bounds, folder = store.bounds(topic, queue), store.path / "consumequeue" / topic / str(queue)
            files = len(list(folder.iterdir())) if folder.exists() else 0
            found.append(QueueState(topic, queue, bounds.min_offset, bounds.max_offset, files))
    return found


@pytest.mark.parametrize("is_clean", [True, False], ids=["after a clean end", "after a kill"])
@pytest.mark.parametrize("mode", OpenMode)
def test_the_states_are_those_of_the_queues(stored: Path, tmp_path: Path, mode: OpenMode, is_clean: bool) -> None:
    path = shutil.copytree(stored, tmp_path / "copy", copy_function=shutil.copy2)
    if not is_clean:
        (path / "fsstore" / "clean.json").unlink()
    with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
        store.refresh()
        states = store.queue_states()
        assert states == in_each(store) == store.queue_states()
        assert {state.files for state in states}
        assert store.stats().messages == sum(state.messages for state in states)
        assert store.stats().consume_queue_files == sum(state.files for state in states)


def test_the_states_of_some_topics_are_those_among_all(stored: Path) -> None:
    with MessageStore.open(stored, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        every = store.queue_states()
        some = ["two-files", "nothing", "few"]
        assert store.queue_states(some) == [one for topic in some for one in every if one.topic == topic]
        assert {one.topic for one in store.queue_states(some)} == {"two-files", "few"}
        assert store.queue_states([]) == []


@pytest.mark.parametrize("mode", OpenMode)
def test_no_queue_stays_open_for_its_state(stored: Path, tmp_path: Path, mode: OpenMode) -> None:
    path = shutil.copytree(stored, tmp_path / "copy", copy_function=shutil.copy2)
    with MessageStore.open(path, StoreConfig(mode=mode)) as store:
        store.refresh()
        assert store.queue_states()
        assert store.stats().messages
        assert store._parts.queues.opened() == []


def test_a_state_is_found_once_until_its_queue_changes(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copytree(stored, tmp_path / "copy", copy_function=shutil.copy2)
    find, found = ConsumeQueues._state_of_closed, []

    def noting(queues: ConsumeQueues, key: tuple[str, int]) -> QueueState:
        found.append(key)
        return find(queues, key)

    monkeypatch.setattr(ConsumeQueues, "_state_of_closed", noting)
    with MessageStore.open(path, SMALL) as store:
        first = store.queue_states()
        found.clear()
        assert store.queue_states() == first
        store.put(Message("new", b"x"), 0)
        store.delete_topic("two-files")
        assert found == []
        store.put(Message("two-files", b"x"), 0)
        changed = {("new", 0, 4), ("two-files", 0, 1)}
        assert {(topic, queue, end) for topic, queue, _, end, *_ in store.queue_states()} >= changed
        assert found == []
        retention = Retention(max_bytes=SMALL_SIZES.commit_log_bytes, delete_pause_ms=0, delete_batch_files=99)
        store.put_batch([Message("much", b"x" * 999)] * 1000, 0)
        store._require_write_side().cleaner.apply(retention)
        store.clean()
        assert store.queue_states() == in_each(store)
        assert ("few", 1) in found


def test_the_queues_of_a_store_that_was_moved_away_are_not_shown_empty(tmp_path: Path) -> None:
    path, moved = tmp_path / "store", tmp_path / "moved"
    with opened(path) as store:
        store.put(Message("orders", b"x"), 0)
    end_hold = hold_folder(path)
    queues = ConsumeQueues(path / "consumequeue", SMALL_SIZES.consume_queue_bytes, Access.WRITE)
    queues.load()
    path.rename(moved)
    with pytest.raises(OSError, match="moved away"):
        queues.get("orders", 0)
    assert "moved away" in str(queues.state("orders", 0).refused)
    moved.rename(path)
    queue = queues.get("orders", 0)
    assert queue is not None
    assert queue.max_offset == 1
    queues.close()
    end_hold()

"""What is told of a queue that stays closed: where it begins, and the age of its newest message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message, MessageStore, OpenMode, QueueAtRest, TopicNotFoundError
from tests.engine.storetools import SMALL, opened

MESSAGES = 3


def fill(path: Path) -> None:
    with opened(path) as store:
        for _ in range(MESSAGES):
            for queue in (0, 1):
                store.put(Message("orders", b"body"), queue)


def as_opened(store: MessageStore, queue_id: int) -> QueueAtRest:
    queue = store.queue("orders", queue_id)
    bounds = queue.bounds()
    return QueueAtRest(bounds.min_offset, queue.get(bounds.max_offset - 1).store_time_ms)


@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.READ_ONLY])
def test_it_is_told_of_the_closed_queue(tmp_path: Path, mode: OpenMode) -> None:
    fill(tmp_path)
    with opened(tmp_path, replace(SMALL, mode=mode)) as store:
        found = [store.queue("orders", queue_id).at_rest() for queue_id in (0, 1)]
        assert store._parts.queues.opened() == []
        assert found == [as_opened(store, 0), as_opened(store, 1)]


def lose_file(store: MessageStore) -> None:
    next((store.path / "consumequeue/orders/0").iterdir()).unlink()


def change_newest(store: MessageStore, entry: bytes) -> None:
    with next((store.path / "consumequeue/orders/0").iterdir()).open("r+b") as changed:
        changed.seek(20 * (MESSAGES - 1))
        changed.write(entry)


WORKS: dict[str, Callable[[MessageStore], object]] = {
    "it is open": lambda store: store.get("orders", 0, 0),
    "a message came": lambda store: store.put(Message("orders", b"new"), 0),
    "its file is lost": lose_file,
    "the newest entry leads to another message": lambda store: change_newest(store, bytes(8)),
    "the newest entry leads nowhere": lambda store: change_newest(store, b"\x7f" * 8),
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_it_is_not_told_when(tmp_path: Path, work: Callable[[MessageStore], object]) -> None:
    fill(tmp_path)
    with MessageStore.open(tmp_path, SMALL) as store:
        queue = store.queue("orders", 0)
        assert queue.at_rest() is not None
        work(store)
        assert queue.at_rest() is None


def test_a_queue_without_messages_is_not_made_for_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("orders", 1)
        assert store.queue("orders", 0).at_rest() == QueueAtRest(0, None)
        assert store._parts.queues.ids() == {}


def test_the_queue_of_a_deleted_topic_is_not_found(tmp_path: Path) -> None:
    fill(tmp_path)
    with opened(tmp_path) as store:
        queue = store.queue("orders", 0)
        store.delete_topic("orders")
        with pytest.raises(TopicNotFoundError):
            queue.at_rest()

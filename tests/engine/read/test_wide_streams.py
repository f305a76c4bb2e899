"""Streams in a store of many topics: a call does as much work as in a store of few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from engine import Message, MessageStore, OpenMode
from tests.engine.storetools import SMALL, opened
from tests.steps import require_flat, steps

FEW, MANY = 10, 100


def steps_in(path: Path, topics: int, work: Callable[[MessageStore, str], object]) -> int:
    """Steps of `work` with one topic, in a store where the streams of many others were asked for."""
    with opened(path / str(topics)) as store:
        for number in range(topics):
            store.put(Message(f"topic-{number}", b"body"), 0)
        store.sum_streams(60)
        for number in range(2, topics):
            assert store.topic_stream(f"topic-{number}").size == store.stream(f"topic-{number}", 0).size == 5
        store.sum_streams(60)
        work(store, "topic-0")  # what is done once is done now
        return steps(lambda: work(store, "topic-1"))


def grow(store: MessageStore, topic: str) -> None:
    store.put(Message(topic, b"more"), 0)
    assert store.sum_streams(60)


WORKS: dict[str, Callable[[MessageStore, str], object]] = {
    "a topic's stream": lambda store, topic: store.topic_stream(topic).size,
    "a queue's stream": lambda store, topic: store.stream(topic, 0).size,
    "all streams, idle": lambda store, _: store.sum_streams(60),
    "all streams, after a message": grow,
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_it_takes_as_much_work_among_many_topics(tmp_path: Path, work: Callable[[MessageStore, str], object]) -> None:
    require_flat(steps_in(tmp_path, FEW, work), steps_in(tmp_path, MANY, work))


def test_a_stream_of_few_messages_has_no_file(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path) as store:
            store.put(Message("orders", b"body"), 0)
            assert store.sum_streams(60)
            assert store.stream("orders", 0).size == store.topic_stream("orders").size
    assert not (tmp_path / "fsstore" / "sums").exists()


@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.READ_ONLY])
def test_after_a_clean_close_no_short_queue_is_looked_at(tmp_path: Path, mode: OpenMode) -> None:
    with opened(tmp_path) as store:
        for number in range(FEW):
            store.put(Message(f"topic-{number}", b"body"), 0)
    with MessageStore.open(tmp_path, replace(SMALL, mode=mode)) as store:
        with patch("os.listdir") as listdir:
            assert store.sum_streams(60)
        listdir.assert_not_called()
        assert not store._parts.queues.opened()

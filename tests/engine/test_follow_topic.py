"""Messages as they come: from this process, from another one, from new queues, until the store is closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from engine import Message, MessageStore, OpenMode, StoredMessage, TopicNotFoundError
from tests.engine.storetools import SMALL, opened

FOLLOW = replace(SMALL, mode=OpenMode.FOLLOW)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with opened(tmp_path / "store") as store:
        store.create_topic("orders", 2)
        yield store


def put(store: MessageStore, *bodies: str, queue: int | None = None) -> None:
    for body in bodies:
        store.put(Message("orders", body.encode()), queue)


def bodies(messages: Iterator[StoredMessage], count: int) -> list[str]:
    return [bytes(message.body).decode() for message in islice(messages, count)]


def test_what_comes_after_the_call_is_given_in_the_order_of_the_log(store: MessageStore) -> None:
    put(store, "before")
    news = store.follow("orders")
    put(store, "a", "b", "c", "d", "e")
    assert bodies(news, 5) == ["a", "b", "c", "d", "e"]
    put(store, "f")
    assert bodies(news, 1) == ["f"]


def test_it_begins_at_an_offset_and_keeps_to_a_queue(store: MessageStore) -> None:
    for number in range(100):
        put(store, str(number), queue=number % 2)
    assert bodies(store.follow("orders", start=0), 100) == [str(number) for number in range(100)]
    assert bodies(store.follow("orders", 1, start=48), 2) == ["97", "99"]
    with pytest.raises(TopicNotFoundError):
        store.follow("nosuch")
    with pytest.raises(TopicNotFoundError):
        store.follow("orders", 7)


def test_a_follower_gets_what_another_store_publishes_and_queues_that_are_new(
    store: MessageStore, tmp_path: Path
) -> None:
    put(store, "old", queue=0)
    with MessageStore.open(tmp_path / "store", FOLLOW) as follower:
        news = follower.follow("orders", poll_ms=1)
        got: list[str] = []
        thread = threading.Thread(target=lambda: got.extend(bodies(news, 3)), daemon=True)
        thread.start()
        put(store, "a", queue=1)
        store.grow_topic("orders", 3)
        put(store, "b", queue=2)
        put(store, "c", queue=0)
        thread.join(30)
        assert sorted(got) == ["a", "b", "c"]


def test_a_damaged_message_is_named_once(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL, create=True) as store:
        store.create_topic("orders", 2)
        for number in range(80):
            put(store, f"body {number}", queue=number % 2)
        lost = [store.get("orders", number % 2, number // 2) for number in (5, 60)]
        with (tmp_path / "store/commitlog" / f"{0:020d}").open("r+b") as log:
            for message in lost:
                log.seek(message.physical_offset)
                log.seek(message.physical_offset + log.read(200).index(b"body"))
                log.write(b"b0dy")
        passed: list[tuple[int, int]] = []
        news = store.follow("orders", start=0, damaged=lambda *place: passed.append(place))
        assert bodies(news, 78) == [f"body {number}" for number in range(80) if number not in (5, 60)]
        assert sorted(passed) == [(0, 30), (1, 2)]


def test_it_ends_with_the_store_and_with_the_topic(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        put(store, "x")
        news, doomed = store.follow("orders", start=0), store.follow("orders", start=0)
        assert bodies(news, 1) == bodies(doomed, 1) == ["x"]
        store.delete_topic("orders")
        with pytest.raises(TopicNotFoundError):
            next(doomed)
    assert list(news) == []


def test_what_a_store_and_a_queue_print(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        assert repr(store) == f"<MessageStore '{tmp_path}/s', write>"
        store.create_topic("orders", 1)
        assert repr(store.queue("orders", 0)) == "<Queue orders/0>"
    assert repr(store).endswith(", closed>")


def test_a_timeout_is_none_and_the_follower_goes_on(store: MessageStore) -> None:
    store.put(Message("orders", b"0"), queue=0)
    news = store.follow("orders", start=0, timeout=0.02)
    first = next(news)
    assert first is not None
    assert bytes(first.body) == b"0"
    began = time.monotonic()
    assert [next(news), next(news)] == [None, None]
    assert 0.04 <= time.monotonic() - began < 20
    store.put(Message("orders", b"1"), queue=0)
    second = next(one for one in news if one is not None)
    assert bytes(second.body) == b"1"
    assert next(store.follow("orders", timeout=0)) is None

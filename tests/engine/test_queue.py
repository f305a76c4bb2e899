"""Queue: the object that `MessageStore.queue` returns acts as the store's calls, also after the queue's deletion."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from engine import (
    ExpiredMessageError,
    IllegalMessageError,
    Message,
    MessageNotFoundError,
    MessageStore,
    OpenMode,
    Queue,
    QueueBounds,
    ReadOnlyStoreError,
    StoreClosedError,
    StoreError,
    TopicNotFoundError,
)
from engine.derived.consume_queues import ConsumeQueues
from engine.record.header import INNER_BATCH, NEEDS_UNWRAPPING
from tests.engine.storetools import SMALL, opened

FOLLOW = replace(SMALL, mode=OpenMode.FOLLOW)
COUNT = 100
SYS_FLAG_AT = 36


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with opened(tmp_path / "store") as store:
        store.create_topic("orders", 2)
        yield store


@pytest.fixture
def queue(store: MessageStore) -> Queue:
    return store.queue("orders", 0)


def bodies(queue: Queue) -> list[bytes]:
    """Of all its messages."""
    return [bytes(message.body) for message in queue.read(0)]


def text(queue: Queue) -> bytes:
    """The whole stream."""
    stream = queue.stream()
    return bytes(stream.read(0, stream.size))


def test_flags_of_a_batch_alone_make_no_batch(tmp_path: Path) -> None:
    """A damaged or foreign record may have both flags and still hold one message: all ways of reading agree on it."""
    with opened(tmp_path / "other") as store:
        store.create_topic("orders", 1)
        put = store.put(Message("orders", b"the body"), 0)
        physical_offset = put.physical_offset
    [log] = (tmp_path / "other" / "commitlog").iterdir()
    with log.open("r+b") as file:
        file.seek(physical_offset + SYS_FLAG_AT)
        file.write((INNER_BATCH | NEEDS_UNWRAPPING).to_bytes(4, "big"))
    with opened(tmp_path / "other") as store:
        queue = store.queue("orders", 0)
        assert [sizes.tolist() for sizes in queue.record_sizes(0, 1)] == [[put.store_size], [len(b"the body")]]
        assert queue.headers(0, 1)["store_size"].tolist() == [put.store_size]
        assert bodies(queue) == [b"the body"]
        assert text(queue) == b"the body\n"


def outcome(call: Callable[[], object]) -> tuple[type[StoreError], str]:
    """The error that a call raises, and its text."""
    with pytest.raises(StoreError) as raised:
        call()
    return raised.type, str(raised.value)


# the same as the store's calls


def test_what_was_put_by_either_is_read_by_both(store: MessageStore, queue: Queue) -> None:
    assert queue.bounds() == QueueBounds(0, 0)
    assert queue.put(Message("orders", b"a")).queue_offset == 0
    assert store.put(Message("orders", b"b"), 0).queue_offset == 1
    assert queue.put_batch([Message("orders", b"c"), Message("orders", b"d")]).queue_offset == 2
    assert queue.put_lines(b"e\nf\n", keys=["K"], tags="T").queue_offset == 4
    store.put(Message("orders", b"another queue's"), 1)
    assert bodies(queue) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert [bytes(message.body) for message in store.read("orders", 0, 0)] == bodies(queue)
    assert store.bounds("orders", 0) == queue.bounds() == QueueBounds(0, 6)
    assert (queue.get(5).keys, queue.get(5).tags) == (["K"], "T")
    assert text(queue) == b"a\nb\nc\nd\ne\nf\n"


def test_each_way_to_read_gives_the_same_messages(store: MessageStore, queue: Queue) -> None:
    for number in range(COUNT):
        store.put(Message("orders", b"line %d" % number), 0)
    known = [queue.get(queue_offset) for queue_offset in range(COUNT)]
    for start, count in [(0, COUNT), (7, 20), (COUNT - 1, 5), (COUNT, 5)]:
        wanted = known[start : start + count]
        physical_offsets = [message.physical_offset for message in wanted]
        assert queue.entries(start, count)["physical_offset"].tolist() == physical_offsets
        assert queue.headers(start, count)["physical_offset"].tolist() == physical_offsets
        assert [message.physical_offset for message in queue.read(start, count)] == physical_offsets
        sizes, body_sizes = queue.record_sizes(start, count)
        assert sizes.tolist() == [message.store_size for message in wanted]
        assert body_sizes.tolist() == [message.body_size for message in wanted]
        offsets = [message.queue_offset for message in wanted]
        assert queue.columns(start, count).headers["queue_offset"].tolist() == offsets
        assert [one for block in queue.blocks(start, count) for one in block.queue_offset.tolist()] == offsets
    when_ms = known[50].store_time_ms
    first = next(message.queue_offset for message in known if message.store_time_ms >= when_ms)
    assert queue.offset_at(when_ms) == store.offset_at("orders", 0, when_ms) == first


def test_what_is_not_there_is_refused_in_the_same_words(store: MessageStore, queue: Queue) -> None:
    queue.put(Message("orders", b"a"))
    for queue_offset in (-1, 1):
        found = outcome(partial(queue.get, queue_offset))
        assert found == outcome(partial(store.get, "orders", 0, queue_offset))
        assert found[0] is MessageNotFoundError
    for topic, queue_id in [("orders", 2), ("others", 0)]:
        found = outcome(partial(store.queue, topic, queue_id))
        assert found == outcome(partial(store.bounds, topic, queue_id))
        assert found[0] is TopicNotFoundError


def test_what_expired_is_refused_in_the_same_words(store: MessageStore, queue: Queue) -> None:
    queue.put_lines(b"%s\n" % (b"x" * 500) * COUNT)
    store._parts.queues.expire(store._log.files.files[1].start)
    assert queue.bounds() == store.bounds("orders", 0)
    assert outcome(lambda: queue.get(0)) == outcome(lambda: store.get("orders", 0, 0))
    with pytest.raises(ExpiredMessageError):
        queue.get(0)


def test_a_message_of_another_topic_is_refused_and_not_stored(store: MessageStore, queue: Queue) -> None:
    store.create_topic("others", 1)
    with pytest.raises(IllegalMessageError):
        queue.put(Message("others", b"a"))
    with pytest.raises(IllegalMessageError):
        queue.put_batch([Message("others", b"a")])
    assert store.bounds("others", 0) == queue.bounds() == QueueBounds(0, 0)


def test_a_message_that_is_delayed_goes_where_the_store_sends_it(store: MessageStore, queue: Queue) -> None:
    assert queue.put(Message("orders", b"later", properties={"DELAY": "2"})).topic == "SCHEDULE_TOPIC_XXXX"
    queue.put(Message("orders", b"now"))
    queue.put_lines(b"later, too\n", properties={"DELAY": "2"})
    assert bodies(queue) == [b"now"]


# looked up once


def test_a_queue_is_looked_up_once(store: MessageStore, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.put(Message("orders", b"a"))
    queue.bounds()

    def refuse(*_: object) -> None:
        raise AssertionError("looked up again")

    for name in ("get", "get_or_create"):
        monkeypatch.setattr(ConsumeQueues, name, refuse)
    queue.put(Message("orders", b"b"))
    queue.put_lines(b"c\nd\n")
    queue.put_batch([Message("orders", b"e")])
    assert queue.get(0).queue_offset == 0
    assert bodies(queue) == [b"a", b"b", b"c", b"d", b"e"]
    assert text(queue) == b"a\nb\nc\nd\ne\n"


def test_names_that_are_only_tried_are_not_kept(store: MessageStore) -> None:
    for number in range(10):
        with pytest.raises(TopicNotFoundError):
            store.get(f"no-{number}", 0, 0)
    store.put(Message("orders", b"a"), 0)
    store.get("orders", 0, 0)
    assert {topic: list(queues) for topic, queues in store._queues.items()} == {"orders": [0]}
    store.delete_topic("orders")
    assert not store._queues


# deleted, recreated


def test_a_deleted_queue_refuses_everything_and_makes_nothing(store: MessageStore, queue: Queue) -> None:
    queue.put(Message("orders", b"a"))
    store.delete_topic("orders")
    calls: list[Callable[[], object]] = [
        lambda: queue.put(Message("orders", b"b")),
        lambda: queue.put_batch([Message("orders", b"b")]),
        lambda: queue.put_lines(b"b\n"),
        queue.bounds,
        lambda: queue.get(0),
        lambda: queue.read(0),
        queue.stream,
        lambda: queue.headers(0, 1),
    ]
    gone = outcome(lambda: store.bounds("orders", 0))
    for call in calls:
        assert outcome(call) == gone
    assert gone[0] is TopicNotFoundError
    assert store.topics() == []


def test_a_recreated_queue_is_another_one_to_whoever_holds_it(store: MessageStore, queue: Queue) -> None:
    queue.put_lines(b"old\nold, too\n")
    store.delete_topic("orders")
    store.create_topic("orders", 1)
    assert queue.bounds() == QueueBounds(0, 0)
    with pytest.raises(MessageNotFoundError):
        queue.get(0)
    queue.put(Message("orders", b"new"))
    assert bodies(queue) == [b"new"]
    assert text(queue) == text(store.queue("orders", 0)) == b"new\n"
    store.delete_topic("orders")
    store.put_lines("orders", b"put again\n", 0)
    assert bodies(queue) == [b"put again"]


def test_a_queue_that_goes_while_lines_are_put_into_it_is_made_again_as_by_the_stores_put(
    store: MessageStore, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put(Message("orders", b"old"))
    assert store._writer is not None
    now_ms = store.config.clock()

    def deleting() -> int:
        if store.has_queue("orders", 0):
            store.delete_topic("orders")
        return now_ms

    monkeypatch.setattr(store._writer, "_config", replace(store.config, clock=deleting))
    queue.put_lines(b"new\n")
    assert bodies(queue) == bodies(store.queue("orders", 0)) == [b"new"]


# followers, read-only and closed stores


def test_a_followers_queue_follows_its_writer(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL, create=True) as writer:
        writer.put(Message("orders", b"a"), 0)
        with MessageStore.open(tmp_path / "store", FOLLOW) as follower:
            follower.refresh()
            queue = follower.queue("orders", 0)
            assert bodies(queue) == [b"a"]
            writer.put(Message("orders", b"b"), 0)
            assert follower.refresh()
            assert bodies(queue) == [b"a", b"b"]
            assert text(queue) == b"a\nb\n"
            assert outcome(lambda: queue.put(Message("orders", b"c"))) == outcome(
                lambda: follower.put(Message("orders", b"c"), 0)
            )
            writer.delete_topic("orders")
            assert follower.refresh()
            for call in (queue.bounds, queue.stream, lambda: queue.get(0)):
                assert outcome(call)[0] is TopicNotFoundError
            writer.put(Message("orders", b"new"), 0)
            assert follower.refresh()
            assert bodies(queue) == bodies(follower.queue("orders", 0)) == [b"new"]


def test_a_read_only_stores_queue_is_read_and_not_written(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL, create=True) as writer:
        writer.put(Message("orders", b"a"), 0)
    with MessageStore.open(tmp_path / "store", replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        queue = store.queue("orders", 0)
        assert bodies(queue) == [b"a"]
        calls: list[Callable[[], object]] = [
            lambda: queue.put(Message("orders", b"b")),
            lambda: queue.put_batch([Message("orders", b"b")]),
            lambda: queue.put_lines(b"b\n"),
        ]
        for call in calls:
            with pytest.raises(ReadOnlyStoreError):
                call()
        assert bodies(queue) == [b"a"]


def test_a_closed_stores_queue_refuses_as_the_store_does(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL, create=True) as store:
        store.put(Message("orders", b"a"), 0)
        queue = store.queue("orders", 0)
        queue.get(0)
    calls: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (lambda: queue.put(Message("orders", b"b")), lambda: store.put(Message("orders", b"b"), 0)),
        (lambda: queue.put_lines(b"b\n"), lambda: store.put_lines("orders", b"b\n", 0)),
    ]
    for ours, theirs in calls:
        assert outcome(ours) == outcome(theirs)
        assert outcome(ours)[0] is StoreClosedError
    found = outcome(lambda: queue.get(0))
    store._queues.clear()
    assert found == outcome(lambda: store.get("orders", 0, 0))
    assert queue.bounds() == store.bounds("orders", 0)


def test_messages_that_hold_one_of_several_texts_are_found(store: MessageStore) -> None:
    for number in range(300):
        store.put(Message("orders", b"number %d" % number, tags="needle" if number == 7 else ""), queue=0)
        store.put(Message("other", b"number 250"), queue=0)
    store.put(Message("orders", zlib.compress(b"a packed needle"), sys_flag=0x1 | 0x300), queue=0)
    store.put(Message("orders", zlib.compress(b"nothing of it"), sys_flag=0x1 | 0x300), queue=0)
    store.put(Message("orders", b""), queue=0)
    assert store.stats().commit_log_files > 1

    def held(start: int, count: int, *texts: bytes, any_case: bool = False) -> list[tuple[int, int, bytes]]:
        found = list(store.holding("orders", 0, start, count, texts, any_case))
        bodies = [one.bodies[row] for one in found for row in range(len(one.bodies))]
        offsets = [offset for one in found for offset in one.offsets.tolist()]
        return list(zip(offsets, [text for one in found for text in one.numbers.tolist()], bodies, strict=True))

    expected = [(number, 0, b"number %d" % number) for number in (25, *range(250, 260))]
    assert held(0, 1000, b"number 25") == expected
    assert held(26, 230, b"NUMBER 25", any_case=True) == expected[1:7]
    assert held(0, 1000, b"NUMBER 25") == []
    assert held(0, 1000, b"needle") == [(300, 0, b"a packed needle")]
    assert [found[:2] for found in held(0, 1000, b"er 299", b"ber 29")] == [
        *((one, 1) for one in (29, *range(290, 299))),
        (299, 0),
    ]
    assert held(298, 10) == [
        (298, 0, b"number 298"), (299, 0, b"number 299"), (300, 0, b"a packed needle"), (301, 0, b"nothing of it"),
        (302, 0, b""),
    ]  # fmt: skip
    assert held(400, 10, b"number") == []
    with pytest.raises(TopicNotFoundError):
        list(store.holding("none", 0, 0, 10, [b"number"]))

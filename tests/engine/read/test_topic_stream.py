"""A topic as one text in the order of the log, compared with the put messages, while others put, read, expire,
follow."""

from __future__ import annotations

import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Message, MessageStore, OpenMode, Retention
from engine.deadline import WouldBlock, nonblocking
from engine.derived.consume_queue import ConsumeQueue
from engine.errors import ExpiredMessageError, TopicNotFoundError
from engine.log.entries import Entries
from engine.read import topic_queue
from engine.read.offset_index import BLOCK_MESSAGES, QUICK_SUM_MESSAGES
from tests.engine.storetools import SMALL, opened

ALL = 1 << 24


def text_of(store: MessageStore, topic: str = "t") -> bytes:
    stream = store.topic_stream(topic)
    text = bytes(stream.read(0, ALL))
    assert stream.size == len(text)
    return text


put_one = st.tuples(st.sampled_from(["t", "other"]), st.integers(0, 3), st.binary(max_size=60), st.booleans())
put_lines = st.tuples(st.just("t"), st.integers(1, 9))


@settings(max_examples=30, deadline=None)
@given(st.lists(put_one | put_lines, max_size=40), st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 900))))
def test_it_is_what_was_put_in_that_order_in_any_range(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int, bytes, bool] | tuple[str, int]],
    ranges: list[tuple[int, int]],
) -> None:
    expected = b""
    path = tmp_path_factory.mktemp("topic")
    with opened(path) as store:
        store.create_topic("t", 4)
        for number, step in enumerate(steps):
            if len(step) == 2:
                lines = [b"%d-%d\n" % (number, line) for line in range(step[1])]
                store.put_lines("t", lines)
                expected += b"".join(lines)
            else:
                topic, queue, body, packs = step
                packed = zlib.compress(body) if packs else body
                store.put(Message(topic, packed, sys_flag=int(packs)), queue)
                expected += body + b"\n" if topic == "t" else b""
            if number % 7 == 0:
                assert text_of(store) == expected
        assert text_of(store) == expected
        stream = store.topic_stream("t")
        for position, length in ranges:
            assert stream.read(position, length) == expected[position : position + length]
    with MessageStore.open(path, replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        assert text_of(store) == expected


def many(store: MessageStore, count: int, start: int = 0) -> bytes:
    """Lines in batches over four queues, with other topics' messages between them."""
    text = b""
    for number in range(start, start + count, 60):
        lines = [b"message %d\n" % line for line in range(number, min(number + 60, start + count))]
        store.put_lines("t", lines)
        store.put(Message("other", b"o"))
        text += b"".join(lines)
    return text


def test_many_messages_are_merged_window_by_window_and_held_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_queue, "WINDOW_ROWS", 100)
    monkeypatch.setattr(topic_queue, "ROWS_IN_MEMORY", 150)
    with opened(tmp_path, cache=tmp_path / "not/made/yet") as store:
        store.create_topic("t", 4)
        text = many(store, 3_000)
        assert text_of(store) == text
        text += many(store, 333, 3_000)
        assert text_of(store) == text
        assert bytes(store.topic_stream("t").read(20_000, 30)) == text[20_000:20_030]


def test_what_was_summed_is_not_summed_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", 4)
        text = many(store, 3 * BLOCK_MESSAGES + 5)
        assert text_of(store) == text
    with opened(tmp_path) as store:
        assert store.topic_stream("t").unsummed == 5
        assert text_of(store) == text


def test_it_begins_at_the_first_message_that_is_left_and_its_sums_stay(tmp_path: Path) -> None:
    retention = Retention(max_bytes=250_000, clean_interval_ms=3_600_000, delete_pause_ms=0)
    with opened(tmp_path, retention=retention) as store:
        store.create_topic("t", 4)
        text = many(store, 5 * BLOCK_MESSAGES)
        before = store.topic_stream("t")
        assert before.size == len(text)
        assert store.clean() > 1
        left = text_of(store)
        assert text.endswith(left)
        assert len(left) < len(text)
        assert store.topic_stream("t").first_offset > before.first_offset
        with pytest.raises(ExpiredMessageError):
            before.read(0, 10)
        assert before.read(len(text) - 100, 100) == text[-100:]
        assert not store.topic_stream("t").begins_as(before.first_offset)
    with opened(tmp_path) as store:
        assert store.topic_stream("t").unsummed < BLOCK_MESSAGES
        assert text_of(store) == left


def test_a_damaged_message_is_left_out(tmp_path: Path) -> None:
    with opened(tmp_path / "good") as store:
        store.create_topic("t", 4)
        puts = [store.put(Message("t", b"body %d" % number)) for number in range(9)]
    shutil.copytree(tmp_path / "good", tmp_path / "bad")
    log = tmp_path / "bad" / "commitlog" / f"{0:020d}"
    raw = bytearray(log.read_bytes())
    raw[raw.index(b"body 4", puts[4].physical_offset)] ^= 1
    log.write_bytes(raw)
    with MessageStore.open(tmp_path / "bad", SMALL) as store:
        assert text_of(store) == b"".join(b"body %d\n" % number for number in range(9) if number != 4)


def test_a_topic_that_was_made_again_has_its_new_messages_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put(Message("t", b"old"))
        assert text_of(store) == b"old\n"
        store.delete_topic("t")
        with pytest.raises(TopicNotFoundError):
            store.topic_stream("t")
        store.create_topic("t", 2)
        empty = store.topic_stream("t")
        assert empty.size == 0
        unborn = empty.first_offset
        store.grow_topic("t", 4)
        store.put(Message("t", b"new"), 3)
        assert text_of(store) == b"new\n"
        assert bytes(empty.read(0, 9)) == b"new\n"
        assert empty.first_offset == store.topic_stream("t").first_offset != unborn
        assert store.topic_stream("t").begins_as(unborn)


def test_an_empty_stream_begins_with_what_came_first_until_that_expired(tmp_path: Path) -> None:
    retention = Retention(max_bytes=250_000, clean_interval_ms=3_600_000, delete_pause_ms=0)

    def retire(store: MessageStore) -> None:
        for _ in range(60):
            store.put(Message("other", b"x" * 5_000))
        assert store.clean() > 0
        while store.clean():
            pass

    with opened(tmp_path, retention=retention) as store:
        store.create_topic("t", 4)
        for queue in range(3):
            store.put(Message("t", b"old"), queue)
        retire(store)
        unborn = store.topic_stream("t").first_offset
        assert unborn < 0
        retire(store)
        assert store.topic_stream("t").first_offset == unborn
    with opened(tmp_path, retention=retention) as store:
        assert store.topic_stream("t").begins_as(unborn)
        store.put(Message("t", b"new"), 1)
    with opened(tmp_path, retention=retention) as store:
        assert text_of(store) == b"new\n"
        assert store.topic_stream("t").begins_as(unborn)
        retire(store)
        assert not store.topic_stream("t").begins_as(unborn)


def test_a_follower_has_the_same_order(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", 4)
        text = many(store, 500)
        with MessageStore.open(tmp_path, replace(SMALL, mode=OpenMode.FOLLOW)) as follower:
            assert text_of(follower) == text
            for step in range(10):
                text += many(store, 70, 1_000 * step)
                follower.refresh()
                assert text.startswith(text_of(follower))
            follower.refresh()
            assert text_of(follower) == text


def test_half_of_a_run_is_not_merged_while_it_is_dealt_to_the_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", 4)
        text, append = many(store, 60), ConsumeQueue.append
        assert text_of(store) == text

        def append_and_look(queue: ConsumeQueue, queue_offset: int, entries: Entries) -> int:
            appended = append(queue, queue_offset, entries)
            assert text_of(store) == text
            return appended

        monkeypatch.setattr(ConsumeQueue, "append", append_and_look)
        lines = [b"line %d\n" % line for line in range(60)]
        store.put_lines("t", lines)
        assert text_of(store) == text + b"".join(lines)


def test_what_is_not_merged_yet_takes_long_where_many_queues_must_be_opened(tmp_path: Path) -> None:
    count = topic_queue.QUICK_QUEUES + 1
    with opened(tmp_path) as store:
        store.create_topic("t", count)
        for queue in range(count):
            store.put(Message("t", b"x"), queue)
    with opened(tmp_path) as store:
        with nonblocking(), pytest.raises(WouldBlock):
            store.topic_stream("t")
        assert store.topic_queue("t").unmerged > 1 << 20
        assert store.topic_queue("t").merge_until()
        assert store.topic_queue("t").unmerged == 0
        with nonblocking():
            assert store.topic_stream("t").size == 2 * count


def test_messages_that_have_expired_do_not_make_a_merge_long(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put_lines("t", b"line\n" * 2 * QUICK_SUM_MESSAGES, 0)
        store._require_write_side().cleaner.apply(Retention(max_bytes=1, delete_pause_ms=0, delete_batch_files=1000))
        store.clean()
        left = store.bounds("t", 0).count
        assert 0 < left < QUICK_SUM_MESSAGES
    with opened(tmp_path) as store, nonblocking():
        assert store.topic_stream("t").size == left * len("line\n")


@pytest.mark.parametrize("mode", [OpenMode.WRITE, OpenMode.READ_ONLY])
def test_a_topic_of_few_queues_is_merged_at_once(tmp_path: Path, mode: OpenMode) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", topic_queue.QUICK_QUEUES)
        for queue in range(topic_queue.QUICK_QUEUES):
            store.put(Message("t", b"x"), queue)
    with opened(tmp_path, mode=mode) as store, nonblocking():
        assert store.topic_stream("t").size == 2 * topic_queue.QUICK_QUEUES

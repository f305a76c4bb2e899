"""Offsets of the data source `fsstore`: the options' meanings, and the messages between two offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsstore.fleet.sources import Slot
from fsstore.jobs.mount import Bounds, QueueRange, cut
from fsstore.spark import DataLossError, SourceOptionError
from fsstore.spark.offsets import (
    NOTHING,
    Position,
    Positions,
    Queues,
    StreamOffset,
    Written,
    ends,
    limited,
    limited_bytes,
    parsed,
    parsed_offset,
    part_of,
    resolve,
    resolve_times,
    shares,
    written,
    written_offset,
)
from fsstore.spark.source import chosen

BOUNDS = {"orders": {0: (10, 20), 1: (0, 5)}, "bills": {0: (0, 0)}}
QUEUES = st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(50, 10_000)), min_size=1)


def test_names_and_patterns_choose_topics() -> None:
    assert set(chosen(BOUNDS, "orders, absent", None)) == {"orders"}
    assert set(chosen(BOUNDS, None, "o.*|b")) == {"orders"}
    assert chosen(BOUNDS, None, None) == BOUNDS


@pytest.mark.parametrize(("subscribe", "pattern"), [("orders", "orders"), (None, "(")])
def test_what_chooses_no_topics_is_refused(subscribe: str | None, pattern: str | None) -> None:
    with pytest.raises(SourceOptionError):
        chosen(BOUNDS, subscribe, pattern)


@pytest.mark.parametrize(
    ("option", "text", "queues"),
    [
        ("startingOffsets", "earliest", {0: 10, 1: 0}),
        ("startingOffsets", "LATEST", {0: 20, 1: 5}),
        ("startingOffsets", '{"orders": {"0": 17}}', {0: 17, 1: 0}),
        ("startingOffsets", '{"orders": {"0": -2, "1": -1}}', {0: 10, 1: 5}),
        ("endingOffsets", '{"orders": {"1": 3}}', {0: 20, 1: 3}),
    ],
)
def test_offsets_are_written_as_for_kafka(option: str, text: str, queues: dict[int, int]) -> None:
    assert resolve(option, text, BOUNDS)["orders"] == queues


@pytest.mark.parametrize("text", ["newest", "[]", '{"orders": 7}', '{"orders": {"0": -3}}', '{"orders": {"0": "1"}}'])
def test_offsets_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(SourceOptionError):
        resolve("startingOffsets", text, BOUNDS)


def queues_of(bounds: Bounds, first_places: dict[tuple[str, int], int] | None = None) -> Queues:
    """Queues whose messages lie 100 bytes apart, from their first place on, which is 0."""
    firsts = first_places or {}

    def physical_offset(slot: Slot) -> int | None:
        oldest, end = bounds.get(slot.topic, {}).get(slot.queue, (0, 0))
        return firsts.get(slot[:2], 0) + 100 * slot.queue_offset if oldest <= slot.queue_offset < end else None

    return Queues(bounds, lambda slots: {slot: physical_offset(slot) for slot in slots})


def read(queues: Queues, start: Positions, end: Positions, *, fail_on_data_loss: bool = True) -> list[QueueRange]:
    return [part for part, _ in queues.plan(start, end, fail_on_data_loss=fail_on_data_loss)]


def test_a_queue_that_came_later_is_read_from_its_beginning() -> None:
    queues = queues_of(BOUNDS)
    found = read(queues, {"orders": {0: Position(12)}}, queues.located(ends(BOUNDS)))
    assert found == [QueueRange("orders", 0, 12, 20), QueueRange("orders", 1, 0, 5)]


@pytest.mark.parametrize(
    ("start", "end", "words", "left"),
    [
        ({"orders": {0: Position(3)}}, {"orders": {0: Position(15)}}, "expired", [QueueRange("orders", 0, 10, 15)]),
        ({"orders": {1: Position(30)}}, {"orders": {1: Position(5)}}, "made again", [QueueRange("orders", 1, 0, 5)]),
        ({"gone": {0: Position(3)}}, {"gone": {0: Position(9)}}, "was deleted", []),
        ({}, {"orders": {1: Position(9)}}, "made again", []),
    ],
)
def test_messages_that_are_gone_fail_unless_that_is_allowed(
    start: Positions, end: Positions, words: str, left: list[QueueRange]
) -> None:
    with pytest.raises(DataLossError, match=words):
        read(queues_of(BOUNDS), start, end)
    assert read(queues_of(BOUNDS), start, end, fail_on_data_loss=False) == left


@pytest.mark.parametrize("count", [0, 50, 100, 150])
def test_a_topic_that_was_made_again_fails_or_is_read_from_its_start(count: int) -> None:
    start = queues_of({"orders": {0: (0, 100)}}).located({"orders": {0: 100}})
    bounds = {"orders": {0: (0, count)}}
    queues = queues_of(bounds, {("orders", 0): 1_000_000})
    end = queues.located(ends(bounds), start)
    with pytest.raises(DataLossError, match="orders/0"):
        read(queues, start, end)
    assert read(queues, start, end, fail_on_data_loss=False) == ([QueueRange("orders", 0, 0, count)] if count else [])
    assert not read(queues, end, queues.located(ends(bounds), end)), "and then it goes on from there"


def test_a_batch_that_was_planned_before_its_topic_was_made_again_has_nothing_of_the_new_one() -> None:
    old = queues_of({"orders": {0: (0, 100)}})
    start, end = old.located({"orders": {0: 50}}), old.located({"orders": {0: 100}})
    bounds = {"orders": {0: (0, 150)}}
    queues = queues_of(bounds, {("orders", 0): 1_000_000})
    with pytest.raises(DataLossError, match="made again"):
        read(queues, start, end)
    assert read(queues, start, end, fail_on_data_loss=False) == []
    later = queues.located(ends(bounds), end)
    assert read(queues, end, later, fail_on_data_loss=False) == [QueueRange("orders", 0, 0, 150)]


def test_a_queue_that_its_writer_cut_is_not_read_again_from_its_start() -> None:
    start = queues_of({"orders": {0: (0, 100)}}).located({"orders": {0: 100}})
    bounds = {"orders": {0: (0, 90)}}
    queues = queues_of(bounds)
    end = queues.located(ends(bounds), start)
    with pytest.raises(DataLossError, match="cut"):
        read(queues, start, end)
    assert read(queues, start, end, fail_on_data_loss=False) == []


def test_offsets_of_a_checkpoint_are_read_with_places_and_without() -> None:
    kept: Written = {"orders": {"0": "20@1900", "1": 0}}
    assert parsed(kept) == {"orders": {0: Position(20, 1900), 1: Position(0)}}
    assert written(parsed(kept)) == kept
    before = parsed({"orders": {"0": 12, "1": 5}})
    assert read(queues_of(BOUNDS), before, queues_of(BOUNDS).located(ends(BOUNDS), before)) == [
        QueueRange("orders", 0, 12, 20)
    ]


def test_a_topic_that_has_gone_stays_where_it_was() -> None:
    gone = {"gone": {0: Position(3, 17)}}
    assert queues_of(BOUNDS).located(ends(BOUNDS), gone) == gone | queues_of(BOUNDS).located(ends(BOUNDS))


@given(QUEUES, st.integers(1, 100_000))
def test_a_limit_is_kept_and_everything_is_read_in_the_end(queues: dict[int, tuple[int, int]], most: int) -> None:
    bounds = {"orders": queues}
    there, end = queues_of(bounds), ends(bounds)
    start = there.located(resolve("startingOffsets", "earliest", bounds))
    for _ in range(10_000):
        stop = there.located(limited(end, there.waiting(start, end), most), start)
        found = read(there, start, stop)
        assert 0 <= sum(part.end - part.begin for part in found) <= most
        if stop == there.located(end):
            return
        assert found
        start = stop
        most *= 2
    raise AssertionError("it never ends")


@given(QUEUES, st.integers(1, 1 << 20))
def test_a_limit_of_bytes_is_kept_but_for_a_message_a_queue(queues: dict[int, tuple[int, int]], most: int) -> None:
    bounds = {"orders": queues}
    there, end = queues_of(bounds), ends(bounds)

    def size_of(part: QueueRange) -> int:  # of messages that are longer the later they come
        return 500 + sum(range(part.begin, part.end))

    start = there.located(resolve("startingOffsets", "earliest", bounds))
    waiting = there.waiting(start, end)
    found = there.waiting(start, limited_bytes(end, waiting, most, size_of))
    assert [part[:3] for part in found] == [part[:3] for part in waiting], "each goes on"
    assert all(size_of(part) <= most or part.end == part.begin + 1 for part in found)


def test_a_limit_of_bytes_that_one_queue_does_not_need_is_for_the_others() -> None:
    waiting = [QueueRange("orders", 0, 0, 10), QueueRange("orders", 1, 0, 200_000)]
    end = {"orders": {0: 10, 1: 200_000}}
    limits = limited_bytes(end, waiting, 150_010, lambda part: part.end - part.begin)
    assert limits == {"orders": {0: 10, 1: 150_000}}


def test_times_say_where_queues_begin() -> None:
    def offset_at(topic: str, queue: int, time_ms: int) -> int | None:
        return 10 + time_ms if queue == 0 and time_ms < 10 else None

    assert resolve_times({"orders": {0: 3}}, BOUNDS, offset_at, latest=False)["orders"] == {0: 13, 1: 0}
    assert resolve_times(7, BOUNDS, offset_at, latest=True)["orders"] == {0: 17, 1: 5}
    with pytest.raises(SourceOptionError, match="orders/1"):
        resolve_times(7, BOUNDS, offset_at, latest=False)


@given(st.integers(0, 200_000), st.integers(0, 200_000))
def test_pieces_of_a_range_are_the_range(begin: int, size: int) -> None:
    pieces = list(cut(QueueRange("orders", 0, begin, begin + size)))
    covered = [offset for piece in pieces for offset in (piece.begin, piece.end)]
    assert covered == sorted(covered)
    assert sum(piece.end - piece.begin for piece in pieces) == size
    assert all(piece.begin // 65_536 == (piece.end - 1) // 65_536 for piece in pieces)


def test_an_offset_of_several_brokers_has_a_level_more() -> None:
    read = {"a": {"orders": {0: Position(20, 1900)}}, "b": {}}
    offset = StreamOffset(read, {"b2": "b"})
    stored = {"a": {"orders": {"0": "20@1900"}}, "b": {}, "b2": "b"}
    assert written_offset(offset, None) == stored
    assert parsed_offset(stored, None, ["a", "b", "b2"]) == offset
    assert parsed_offset({"a": {}}, None, ["a", "b"]) == StreamOffset({"a": {}})
    assert parsed_offset({}, None, ["a", "b"]) == NOTHING


def test_an_offset_of_one_store_is_that_of_the_only_place() -> None:
    kept: Written = {"orders": {"0": "20@1900"}}
    positions = {"orders": {0: Position(20, 1900)}}
    assert parsed_offset(kept, "/mnt/a", ["/mnt/a"]) == StreamOffset({"/mnt/a": positions})
    assert written_offset(StreamOffset({"/mnt/a": positions}), "/mnt/a") == kept
    assert parsed_offset(kept, None, ["a"]) == StreamOffset({"a": positions})
    assert parsed_offset({}, None, ["a"]) == StreamOffset({"a": {}}), "topics that come later are read from the start"
    with pytest.raises(SourceOptionError, match="does not say which"):
        parsed_offset(kept, None, ["a", "b"])
    with pytest.raises(SourceOptionError, match="positions of a, b"):
        parsed_offset({"a": {}, "b": {}}, "/mnt/a", ["/mnt/a"])


def test_offsets_in_options_are_by_broker() -> None:
    text = '{"a": {"orders": {"0": 17}}}'
    found = [resolve("startingOffsets", part_of("startingOffsets", text, one, ["a", "b"]), BOUNDS) for one in "ab"]
    assert [one["orders"] for one in found] == [{0: 17, 1: 0}, {0: 10, 1: 0}]
    assert part_of("startingOffsets", "latest", "a", ["a"]) == "latest"
    for other in ('{"orders": {"0": 17}}', '["a"]'):
        with pytest.raises(SourceOptionError, match="an object for each broker"):
            part_of("startingOffsets", other, "a", ["a", "b"])


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10_000), min_size=1), st.integers(1, 20_000))
def test_a_limit_is_shared_by_what_waits(waiting: dict[str, int], most: int) -> None:
    found = shares(waiting, most)
    assert sum(found.values()) <= most
    assert all(found[broker] <= size for broker, size in waiting.items())
    if sum(waiting.values()) <= most:
        assert found == waiting
    assert not any(waiting.values()) or max(found.values()) > 0

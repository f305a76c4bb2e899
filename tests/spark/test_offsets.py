"""Offsets of the data source `fsstore`: what the options mean, and what is read between two offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsstore.spark import DataLossError, SourceOptionError
from fsstore.spark.mount import Range, cut
from fsstore.spark.source import chosen, ends, limited, merged, ranges, resolve

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
        ("startingOffsets", "earliest", {"0": 10, "1": 0}),
        ("startingOffsets", "LATEST", {"0": 20, "1": 5}),
        ("startingOffsets", '{"orders": {"0": 17}}', {"0": 17, "1": 0}),
        ("startingOffsets", '{"orders": {"0": -2, "1": -1}}', {"0": 10, "1": 5}),
        ("endingOffsets", '{"orders": {"1": 3}}', {"0": 20, "1": 3}),
    ],
)
def test_offsets_are_written_as_for_kafka(option: str, text: str, queues: dict[str, int]) -> None:
    assert resolve(option, text, BOUNDS)["orders"] == queues


@pytest.mark.parametrize("text", ["newest", "[]", '{"orders": 7}', '{"orders": {"0": -3}}', '{"orders": {"0": "1"}}'])
def test_offsets_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(SourceOptionError):
        resolve("startingOffsets", text, BOUNDS)


def test_a_queue_that_came_later_is_read_from_its_beginning() -> None:
    start = {"orders": {"0": 12}}
    found = ranges(start, ends(BOUNDS), BOUNDS, fail_on_data_loss=True)
    assert found == [Range("orders", 0, 12, 20), Range("orders", 1, 0, 5)]


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [
        ({"orders": {"0": 3}}, {"orders": {"0": 15}}, [Range("orders", 0, 10, 15)]),  # expired
        ({"orders": {"1": 30}}, {"orders": {"1": 5}}, []),  # made anew
        ({"gone": {"0": 3}}, {"gone": {"0": 9}}, []),  # deleted
    ],
)
def test_messages_that_are_gone_fail_unless_that_is_allowed(
    start: dict[str, dict[str, int]], end: dict[str, dict[str, int]], left: list[Range]
) -> None:
    with pytest.raises(DataLossError):
        ranges(start, end, BOUNDS, fail_on_data_loss=True)
    assert ranges(start, end, BOUNDS, fail_on_data_loss=False) == left


def test_a_topic_that_has_gone_stays_where_it_was() -> None:
    assert merged({"gone": {"0": 3}, "orders": {"0": 1}}, ends(BOUNDS)) == {"gone": {"0": 3}, **ends(BOUNDS)}


@given(QUEUES, st.integers(1, 100_000))
def test_a_limit_is_kept_and_everything_is_read_in_the_end(queues: dict[int, tuple[int, int]], most: int) -> None:
    bounds = {"orders": queues}
    start, end = resolve("startingOffsets", "earliest", bounds), ends(bounds)
    for _ in range(10_000):
        stop = limited(start, end, bounds, most)
        found = ranges(start, stop, bounds, fail_on_data_loss=True)
        assert 0 <= sum(part.end - part.begin for part in found) <= most
        if stop == end:
            return
        assert found
        start = stop
        most *= 2
    raise AssertionError("it never ends")


@given(st.integers(0, 200_000), st.integers(0, 200_000))
def test_pieces_of_a_range_are_the_range(begin: int, size: int) -> None:
    pieces = list(cut(Range("orders", 0, begin, begin + size)))
    covered = [offset for piece in pieces for offset in (piece.begin, piece.end)]
    assert covered == sorted(covered)
    assert sum(piece.end - piece.begin for piece in pieces) == size
    assert all(piece.begin // 65_536 == (piece.end - 1) // 65_536 for piece in pieces)

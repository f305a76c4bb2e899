"""Further places of a multi-dispatched message."""

from __future__ import annotations

import pytest

from engine.record.multi_dispatch import Slot, queue_names, secondary_slots, slot_queue_id


def test_light_queues_have_only_queue_0() -> None:
    assert slot_queue_id("%LMQ%one", 5) == 0
    assert slot_queue_id("other", 5) == 5


def test_names_and_offsets_of_a_record_make_its_further_queues() -> None:
    properties = {"INNER_MULTI_DISPATCH": "%LMQ%one,other", "INNER_MULTI_QUEUE_OFFSET": "7,0"}
    assert queue_names(properties) == ["%LMQ%one", "other"]
    assert secondary_slots(properties, 5) == [Slot("%LMQ%one", 0, 7), Slot("other", 5, 0)]


@pytest.mark.parametrize(
    ("names", "offsets"),
    [("", ""), ("a", ""), ("a,b", "1"), ("", "1"), ("a/b", "1"), ("..", "1"), ("a", "x"), ("a", "-1"), ("a", "9" * 20)],
)
def test_names_that_match_no_offset_or_no_directory_are_skipped(names: str, offsets: str) -> None:
    assert secondary_slots({"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}, 0) == []

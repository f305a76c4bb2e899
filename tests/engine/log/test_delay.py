"""Delay levels, and the rewriting of a delayed message."""

from __future__ import annotations

import pytest

from engine.log.delay import SCHEDULE_TOPIC, DelayLevels, scheduled, tags_code
from engine.record.message import Message

LEVELS = DelayLevels.parse()


def test_levels_are_parsed_with_their_units() -> None:
    assert len(LEVELS.delays_ms) == 18
    assert (LEVELS.delays_ms[0], LEVELS.delays_ms[4], LEVELS.delays_ms[17]) == (1_000, 60_000, 7_200_000)
    assert DelayLevels.parse("2d 3h").delays_ms == (172_800_000, 10_800_000)
    for wrong in ("1x", "s", "1", "1s,2s"):
        with pytest.raises(ValueError, match="delay levels"):
            DelayLevels.parse(wrong)


def test_a_message_is_due_its_delay_after_it_was_stored() -> None:
    assert LEVELS.due_ms(3, 1_700_000_000_123) == 0x18BCFE58F8B
    assert LEVELS.due_ms(19, 100) == 1_100
    assert LEVELS.due_ms(0, 100) == 1_100


@pytest.mark.parametrize(("wanted", "level"), [("1", 1), ("18", 18), ("99", 18)])
def test_a_delayed_message_is_stored_in_the_schedules_topic(wanted: str, level: int) -> None:
    message = Message("orders", b"x", ["k"], "TagA", {"a": "b", "DELAY": wanted}, flag=5)
    stored, queue_id = scheduled(message, 7, LEVELS)
    assert (stored.topic, queue_id, stored.flag, stored.tags, stored.keys) == (
        SCHEDULE_TOPIC,
        level - 1,
        5,
        "TagA",
        ["k"],
    )
    assert stored.properties == {"a": "b", "DELAY": str(level), "REAL_TOPIC": "orders", "REAL_QID": "7"}
    assert message.topic == "orders"


@pytest.mark.parametrize(
    ("properties", "sys_flag"),
    [({}, 0), ({"DELAY": "0"}, 0), ({"DELAY": "-1"}, 0), ({"DELAY": "3"}, 4), ({"DELAY": "3"}, 12)],
)
def test_other_messages_are_stored_as_they_are(properties: dict[str, str], sys_flag: int) -> None:
    message = Message("orders", b"x", properties=properties, sys_flag=sys_flag)
    assert scheduled(message, 7, LEVELS) == (message, 7)


def test_the_tags_code_is_the_due_time_in_the_schedules_topic_alone() -> None:
    properties = {"TAGS": "TagA", "DELAY": "3"}
    assert tags_code(SCHEDULE_TOPIC, properties, 1_000, LEVELS) == 11_000
    assert tags_code("orders", properties, 1_000, LEVELS) == 2_598_919
    assert tags_code(SCHEDULE_TOPIC, {"TAGS": "TagA"}, 1_000, LEVELS) == 2_598_919
    assert tags_code("orders", {}, 1_000, LEVELS) == 0

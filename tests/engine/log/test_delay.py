"""Delay levels, and the rewriting of a delayed message."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine import MessageStore, OptionError, StoreConfig, check_store, with_broker_conf, with_options
from engine.log.delay import SCHEDULE_TOPIC, scheduled, tags_code
from engine.record.message import Message
from engine.settings.delay_levels import DEFAULT_LEVELS, DelayLevels
from tests.engine.storetools import SMALL, require_clean

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


def test_levels_as_text_are_the_same_levels() -> None:
    assert str(LEVELS) == DEFAULT_LEVELS
    assert DelayLevels.parse(str(DelayLevels.parse("90s 36h 2d"))) == DelayLevels.parse("90s 36h 2d")


def test_a_schedule_that_is_derived_again_has_the_levels_of_its_broker(tmp_path: Path) -> None:
    path = tmp_path / "store"
    theirs = with_broker_conf(SMALL, {"messageDelayLevel": "7m 8h"})
    with MessageStore.open(path, theirs, create=True) as store:
        stored = store.put(Message("orders", b"later", properties={"DELAY": "2"}))
        due = store.entries(SCHEDULE_TOPIC, 1, 0, 1)["tags_code"].tolist()
        assert due == [stored.store_time_ms + 8 * 3_600_000]
    require_clean(check_store(path, None, theirs))
    wrong = [str(problem) for problem in check_store(path, None, SMALL)]
    assert any(SCHEDULE_TOPIC in line for line in wrong), "by RocketMQ's own levels it is due at another time"
    shutil.rmtree(path / "consumequeue")
    (path / "fsstore/clean.json").unlink()
    with MessageStore.open(path, theirs) as store:
        assert store.entries(SCHEDULE_TOPIC, 1, 0, 1)["tags_code"].tolist() == due
    require_clean(check_store(path, None, theirs))


@pytest.mark.parametrize("wrong", ["", "1x", "1s,2s", "99999999999s"])
def test_levels_that_are_none_are_refused(wrong: str) -> None:
    with pytest.raises(OptionError, match="messageDelayLevel"):
        with_options(StoreConfig(), {"messageDelayLevel": wrong})

"""The short form of tests.durability.wide."""

from __future__ import annotations

from pathlib import Path

from tests.durability.wide import FILLED_QUEUES, Wide, drill


def test_a_wide_store_goes_through_all_drills(tmp_path: Path) -> None:
    wide = Wide(tmp_path, topics=150, kills=2, images=2)
    assert drill(wide) == []
    assert wide.figures["lost"] == wide.figures["lost in a cut"] == 0
    assert wide.figures["acknowledged"] != 0
    assert wide.figures["required"] != 0
    assert 0 < wide.figures["first_messages_taken"] < FILLED_QUEUES

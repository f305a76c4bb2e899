"""The short form of tests.durability.hostile."""

from __future__ import annotations

from pathlib import Path

from tests.durability.hostile import attack_stores

CASES = 150


def test_a_hostile_publisher_costs_others_nothing(tmp_path: Path) -> None:
    tally = attack_stores(tmp_path, CASES, 2)
    assert tally.findings == []
    assert tally.cases == CASES
    assert tally.missed() == []
    assert tally.messages_required > 10 * CASES
    assert tally.hostile_messages > CASES

"""The short form of tests.durability.hostile."""

from __future__ import annotations

from pathlib import Path

from tests.durability.hostile import TRACES, Choice, attack_stores

CASES = 150


def test_a_hostile_publisher_costs_others_nothing(tmp_path: Path) -> None:
    choice = Choice()
    tally = attack_stores(tmp_path, CASES, 2, choice)
    assert tally.findings == []
    assert tally.cases == CASES
    assert set(tally.ends) == set(choice.ends)
    assert set(tally.traces) == set(TRACES)
    assert set(tally.looks) == set(choice.looks)
    assert set(tally.damages) == {damage.__name__ for damage in choice.damages}
    assert tally.messages_required > 10 * CASES
    assert tally.hostile_messages > CASES
    assert tally.hostile_messages_refused > 0

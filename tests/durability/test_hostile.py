"""The short form of tests.durability.hostile."""

from __future__ import annotations

from pathlib import Path

from tests.durability.hostile import DAMAGES, TRACES, Choice, attack_stores, cut

CASES = 150


def test_a_hostile_publisher_costs_others_nothing(tmp_path: Path) -> None:
    damages = tuple(damage for damage in DAMAGES if damage is not cut)
    choice = Choice(damages=damages)
    tally = attack_stores(tmp_path, CASES, 1, choice)
    assert tally.findings == []
    assert tally.cases == CASES
    assert set(tally.ends) == set(choice.ends)
    assert set(tally.traces) == set(TRACES)
    assert set(tally.looks) == set(choice.looks)
    assert set(tally.damages) == {damage.__name__ for damage in damages}
    assert tally.messages_required > 10 * CASES
    assert tally.hostile_messages > CASES
    assert tally.hostile_messages_refused > 0

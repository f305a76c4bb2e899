"""The short form of tests.durability.hostile."""

from __future__ import annotations

from pathlib import Path

from tests.durability.hostile import (
    DAMAGES,
    TRACES,
    Choice,
    attack_stores,
    flip_in_head,
    flip_in_place,
    flip_in_tail,
)

CASES = 150


def test_a_hostile_publisher_costs_others_nothing(tmp_path: Path) -> None:
    # open: a message whose own word was hit is shown by its entry, and is not in an index that a recovery made anew
    open_kinds = (flip_in_head, flip_in_tail, flip_in_place)
    choice = Choice(damages=[damage for damage in DAMAGES if damage not in open_kinds])
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

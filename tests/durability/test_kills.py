"""The short form of tests.durability.kills, and proof that it would notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.durability.kills import run
from tests.durability.ledger import Contents, Ledger, Request

QUEUE = ("orders", 0)
SENT = [Request("orders", [(1, 1), (1, 2)]), Request("orders", [(1, 3)])]


def test_ten_kills_lose_nothing(tmp_path: Path) -> None:
    rounds = run(tmp_path, kills=10, seed=20)
    assert rounds.wrong == []
    assert rounds.tally.acknowledged > 500
    assert rounds.rolled_files > 10
    assert rounds.attacks > 0  # how many is the load's to say
    assert rounds.tally.torn_requests == 0


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([(1, 1), (1, 3)], "lost"),
        ([(1, 2), (1, 1), (1, 3)], "comes after"),
        ([(1, 1), (1, 2), (1, 3), (1, 3)], "is in"),
        ([(1, 1), (1, 2), (1, 3), (9, 9)], "nobody published"),
    ],
)
def test_a_ledger_notices(messages: list[tuple[int, int]], complaint: str) -> None:
    assert complaint in " ".join(Ledger().settle(SENT, [], {QUEUE: Contents(0, messages)}))


def test_a_ledger_wants_what_it_saw_where_it_was() -> None:
    ledger = Ledger()
    assert ledger.settle(SENT, [], {QUEUE: Contents(0, [(1, 1), (1, 2), (1, 3)])}) == []
    assert ledger.settle([], [], {QUEUE: Contents(1, [(1, 2), (1, 3)])}) == []
    assert ledger.settle([], [], {QUEUE: Contents(1, [(1, 3)])}) != []
    assert ledger.settle([], [], {QUEUE: Contents(0, [(1, 1), (1, 2)])}) != []

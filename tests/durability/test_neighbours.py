"""The short form: each attack for a moment. No user takes more than a share, and another user meets no error."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from fsstore.accounts import SHARES
from tests.durability.neighbours import ATTACKER, ATTACKS, Seen, Times, used_beside

SHARED = ("names", "held_bytes", "handover_bytes", "unanswered", "descriptors", "staged_files")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes other users")
def test_no_attack_takes_more_than_a_share() -> None:
    with tempfile.TemporaryDirectory(prefix="neighbours-") as folder:  # the way to pytest's own is closed to others
        beside = used_beside(Path(folder), list(ATTACKS), seconds=0.5, scale=0.02)
    for attack, accounts in beside.items():
        for resource in SHARED:
            its = accounts[resource]
            assert its["largest"] <= its["limit"] // SHARES, (attack, resource)
    assert beside["names"]["names"]["largest_user"] == ATTACKER
    assert beside["lines"]["held_bytes"]["largest_user"] == ATTACKER
    assert beside["drops"]["descriptors"]["largest_user"] == ATTACKER
    assert beside["drops"]["staged_files"]["largest_user"] == ATTACKER


def times(p99: float) -> Times:
    return Times(p99 / 2, p99, p99 * 2, 1000)


def seen(p99: float, outside: float) -> Seen:
    return Seen({"cat": times(p99), "write": times(p99)}, {"cat": times(outside), "write": times(outside)})


def test_an_attack_that_makes_another_user_wait_is_noticed() -> None:
    quiet = seen(0.3, 0.01)
    assert seen(3.0, 0.01).findings("hog", quiet) == []
    assert seen(2.0, 0.01).findings("hog", seen(0.1, 0.01)) == []
    assert seen(8.9, 3.0).findings("hog", quiet) == []
    assert seen(3.1, 0.01).findings("hog", quiet) == [
        "beside hog, p99 of cat was 3.1 ms, not 3.0 ms",
        "beside hog, p99 of write was 3.1 ms, not 3.0 ms",
    ]

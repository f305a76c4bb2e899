"""The short form of tests.durability.replication, and proof that it would notice."""

from __future__ import annotations

from pathlib import Path

from tests.durability.replication import SIZES, log_bytes, run


def test_a_dozen_kills_of_both_ends_lose_nothing_and_mix_nothing(tmp_path: Path) -> None:
    rounds = run(tmp_path, kills=12, seed=3)
    assert rounds.wrong == []
    assert rounds.messages > 200


def test_a_log_that_differs_is_noticed(tmp_path: Path) -> None:
    rounds = run(tmp_path, kills=1, seed=4)
    assert rounds.wrong == []
    end = rounds._end
    with (rounds.copy / "commitlog" / f"{(end - 1) // SIZES.commit_log_bytes * SIZES.commit_log_bytes:020d}").open(
        "r+b"
    ) as file:
        file.seek((end - 1) % SIZES.commit_log_bytes)
        file.write(bytes([log_bytes(rounds.copy, end - 1, end)[0] ^ 1]))
    rounds._compared = 0
    rounds._compare()
    assert "the logs differ" in rounds.wrong[0]

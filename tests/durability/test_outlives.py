"""The short form of tests.durability.outlives."""

from __future__ import annotations

from pathlib import Path

from tests.durability.outlives import run


def test_six_kills_are_noticed_by_nobody(tmp_path: Path) -> None:
    result = run(tmp_path, kills=6, seed=6, every_s=0.6)
    assert result.seen.errors == []
    assert result.wrong == []
    assert result.kills == 6
    assert result.messages > 1_000
    assert result.seen.reads > 1_000


def test_four_planned_restarts_are_noticed_by_nobody(tmp_path: Path) -> None:
    result = run(tmp_path, kills=4, seed=7, every_s=0.3, planned=True)
    assert result.seen.errors == []
    assert result.wrong == []
    assert len(result.unserved) == result.kills == 4
    assert result.messages > 1_000

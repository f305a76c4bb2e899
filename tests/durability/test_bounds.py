"""The short form: the worst clients for some seconds, and the daemon stays within its budget."""

from __future__ import annotations

from pathlib import Path

from tests.durability.bounds import run


def test_the_worst_clients_together_stay_within_the_budget(tmp_path: Path) -> None:
    report = run(tmp_path, seconds=10, scale=0.1, alone=())
    assert report.findings(timed=False) == []

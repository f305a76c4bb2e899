"""The short form: the worst clients for some seconds, and the daemon stays within its budget."""

from __future__ import annotations

from pathlib import Path

from tests.durability.bounds import FEWEST_READS, Report, Times, run


def test_the_worst_clients_together_stay_within_the_budget(tmp_path: Path) -> None:
    report = run(tmp_path, seconds=6, scale=0.1, alone=(), tell=print)
    assert report.findings(timed=False) == []


def times(p99: float) -> Times:
    return Times(p99 / 2, p99, p99 * 2, FEWEST_READS)


def test_a_client_that_makes_a_small_reader_wait_is_noticed() -> None:
    report = Report(100, times(0.1), times(0.2), {"harmless": times(9.9), "hog": times(10.1)}, times(500), {})
    assert report.findings(timed=True) == ["beside hog, p99 of a small read was 10.1 ms, not 10.0 ms"]
    assert Report(100, times(3), times(2), {"hog": times(29)}, times(500), {}).findings(timed=True) == []
    assert Report(1 << 30, times(3), times(2), {}, times(500), {}).findings(timed=True) == [
        "the daemon took 1024 MiB, not 930 MiB"
    ]

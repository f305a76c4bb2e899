"""The short form of tests.durability.soak, and proof that it would notice growth."""

from __future__ import annotations

from pathlib import Path

from tests.durability.soak import Limits, Sample, rises, soak

SHORT = Limits(private_kib=6_144, descriptors=40, threads=6, maps=60)
"""In seconds a daemon is still warming up: caches fill, the first log files expire."""


def test_eight_seconds_of_load_leave_no_complaint(tmp_path: Path) -> None:
    report = soak(tmp_path, 8, 12, SHORT, warm_up=0.5)
    assert report.findings() == []
    assert report.published > 1_000
    assert report.read > 50
    assert report.small_reads.reads > 100
    assert report.cpu_share > 0


def test_a_daemon_that_grows_is_noticed() -> None:
    grown = [Sample(float(second), 30_000 + 100 * second, 60_000, 50, 7, 350) for second in range(60)]
    found = rises(grown, warm_up=0.25)
    assert 4_000 < found["private_kib"] < 5_000
    assert abs(found["descriptors"]) < 1

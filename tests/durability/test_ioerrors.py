"""The short form of tests.durability.ioerrors."""

from __future__ import annotations

from pathlib import Path

from tests.durability.ioerrors import real_failure, sweep


def test_whatever_call_fails_everybody_hears_and_nothing_durable_is_lost(tmp_path: Path) -> None:
    found = sweep(tmp_path, most=400, step=5)
    assert found.wrong == []
    assert found.failed_calls["sync: commitlog"]
    assert len(found.failed_calls) >= 6
    assert found.errors["put: ReadOnlyStoreError"]
    assert found.durable > 100


def test_what_the_kernel_could_not_write_is_told_to_its_writer(tmp_path: Path) -> None:
    said = real_failure(tmp_path)
    if str(said["real"]).startswith("not possible"):
        return
    assert said["fsync_said"] == "EIO"
    assert said["later_write_said"] == "EROFS"
    assert "failed" in str(said["status_reason"])
    assert int(str(said["readable_after"])) >= int(str(said["durable_before"])) > 0

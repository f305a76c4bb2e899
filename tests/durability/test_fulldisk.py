"""The short form of tests.durability.fulldisk."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.mount.harness import REPOSITORY


def test_three_full_disks_lose_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.durability.fulldisk", "--rounds", "3", "--only-print"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    figures = json.loads(done.stdout)
    assert figures["rounds"] == 3
    assert figures["kills_when_full"] == 1
    assert figures["acknowledged"] > 500
    assert set(figures["refused_with_enospc"]) == {"lines", "synced", "file"}
    assert figures["lost"] == figures["refused_but_there"] == 0

"""mountctl profile: requests by operation, from the access log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mountctl.output import print_table
from mountctl.verbs.profile import Profile
from tests.mountctl.conftest import Site, eventually, mountctl, succeed

LINES = [
    *(f"2026-11-24T01:02:03.456Z 0 0 9 read orders/0.log 0 131072 OK 0.{micros:06d}" for micros in range(1, 101)),
    "2026-11-24T01:02:03.456Z 0 0 9 lookup no\\x20name - - ENOENT 1.500000",
    "# 12 lines were dropped: their reader is too slow",
    "# 30 lines were dropped: their reader is too slow",
]


@pytest.fixture
def profile() -> Profile:
    made = Profile()
    for line in LINES:
        made.take(line.encode())
    return made


def test_figures_are_by_operation_the_dearest_first(profile: Profile) -> None:
    figures = profile.as_json()
    assert list(figures) == ["lookup", "read"]
    assert figures["read"] == {
        "count": 100, "errors": 0, "mean": 0.0000505, "p50": 0.00005, "p99": 0.000099, "total": 0.00505
    }  # fmt: skip
    assert figures["lookup"] == {"count": 1, "errors": 1, "mean": 1.5, "p50": 1.5, "p99": 1.5, "total": 1.5}
    assert profile.dropped == 42


def test_the_table_has_words_to_the_left_and_numbers_to_the_right(
    profile: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(("OPERATION", "COUNT"), (row[:2] for row in profile.rows()))
    assert capsys.readouterr().out == "OPERATION  COUNT\nlookup         1\nread         100\n"
    assert next(iter(profile.rows())) == ("lookup", "1", "1", "1,500.000", "1,500.000", "1,500.000", "1,500.000")


@contextmanager
def load(root: Path) -> Iterator[None]:
    """Use the mount repeatedly."""
    over = threading.Event()

    def use() -> None:
        while not over.is_set():
            (root / "none").exists()
            descriptor = os.open(root / "orders/0/append", os.O_WRONLY)
            os.write(descriptor, b"a line\n")
            os.close(descriptor)
            time.sleep(0.01)

    user = threading.Thread(target=use)
    user.start()
    try:
        yield
    finally:
        over.set()
        user.join()


@pytest.fixture
def mounted(site: Site) -> Site:
    site.mounted()
    (site.mountpoint / "orders").mkdir()
    return site


def profiled(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: its threads would compete with the mount's in this one."""
    command = [sys.executable, "-m", "mountctl", "profile", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_a_mount_is_asked_meanwhile(mounted: Site) -> None:
    with load(mounted.mountpoint):
        shown = json.loads(profiled(mounted.mountpoint, "--seconds", "1", "--json").stdout)
        table = profiled(mounted.store, "--seconds", "1").stdout
    assert 1 <= shown["seconds"] < 30
    assert shown["dropped"] == 0
    wrote, looked = shown["operations"]["write"], shown["operations"]["lookup"]
    assert wrote["count"] > 3
    assert wrote["errors"] == 0
    assert 0 < wrote["p50"] <= wrote["p99"]
    assert wrote["total"] == pytest.approx(wrote["mean"] * wrote["count"], rel=0.01)
    assert 0 < looked["errors"] < looked["count"]
    lines = table.splitlines()
    assert lines[0].split() == ["OPERATION", "COUNT", "ERRORS", "MEAN", "P50", "P99", "TOTAL"]
    assert any(line.startswith("write ") for line in lines)
    assert "times in milliseconds" in lines[-1]


def reads_log(pid: int) -> bool:
    with suppress(OSError):  # it closes what it had a moment ago
        return any(os.readlink(link).endswith("accesslog") for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def bytes_read(pid: int) -> int:
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])


def test_interrupting_it_shows_what_came_so_far(mounted: Site) -> None:
    command = [sys.executable, "-m", "mountctl", "profile", str(mounted.mountpoint), "--seconds", "600"]
    with load(mounted.mountpoint):
        running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        eventually(lambda: reads_log(running.pid), "it has the log open")
        before = bytes_read(running.pid)
        eventually(lambda: bytes_read(running.pid) > before + 4_000, "it has read some lines")
        running.send_signal(signal.SIGINT)
        shown, _ = running.communicate(timeout=30)
    assert running.returncode == 0
    assert "write" in shown


def test_what_is_not_mounted_has_no_requests(site: Site) -> None:
    succeed("init", site.store)
    done = mountctl("profile", site.store)
    assert done.returncode == os.EX_NOINPUT
    assert "no store is mounted at" in done.stderr


def test_a_read_only_mount_has_no_log_to_read(site: Site) -> None:
    succeed("init", site.store)
    site.mounted("--read-only")
    done = mountctl("profile", site.mountpoint)
    assert done.returncode == os.EX_USAGE
    assert "has no access log" in done.stderr

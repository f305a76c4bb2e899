"""mountctl top: rates between two looks, and a screen that fits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsstore.accounts import Accounts
from fsstore.callers import MOST_PROCESSES, Caller, Callers
from fsstore.tree.status import callers_of
from mountctl.places import Mount
from mountctl.verbs.top import HISTORY, Look, Screen, figures, sparkline
from tests.mountctl.conftest import DEADLINE_SECONDS, Site, mountctl, succeed

MOUNT = Mount(Path("/mnt/mq"), Path("/srv/store"), read_only=False, user=0, device="0:1")


def status(
    queues: dict[str, tuple[int, int]],
    *,
    pid: int = 7,
    read: int = 0,
    physical_end: int = 0,
    callers: Callers | None = None,
) -> dict[str, Any]:
    """A status with topics of one queue each, (min offset, max offset), which one group has read up to offset 10."""
    bounds = {topic: {"0": {"min_offset": low, "max_offset": high}} for topic, (low, high) in queues.items()}
    return {
        "pid": pid,
        "mode": "write",
        "restarts": 1,
        "planned_restarts": 2,
        "stats": {
            "opened_at_ms": 1_000,
            "physical_end": physical_end,
            "durable_end": 0,
            "read_messages": read,
            "read_bytes": 10 * read,
            "disk_free_bytes": 1 << 30,
            "disk_total_bytes": 1 << 40,
        },
        "topics": {topic: {"queues": queue} for topic, queue in bounds.items()},
        "groups": {"billing": {topic: {"0": {"offset": 10, "lag": high - 10}} for topic, (_, high) in queues.items()}},
        "memory": {"budget_bytes": 512 << 20, "bytes": {"reports": 1_000, "bodies": 24}},
        "complaints": {"made": 3},
        **callers_of(callers or Callers(Accounts(0))),
    }


def test_rates_are_of_the_time_between_two_looks() -> None:
    before = Look(100.0, status({"orders": (0, 50), "idle": (0, 10)}, read=100, physical_end=5_000))
    now = figures(before, Look(102.0, status({"orders": (20, 250), "idle": (0, 10)}, read=300, physical_end=25_000)))
    assert (now.stored, now.stored_bytes, now.read, now.read_bytes) == (100, 10_000, 100, 1_000)
    assert [(topic.topic, topic.messages, topic.stored) for topic in now.topics] == [
        ("orders", 230, 100),
        ("idle", 10, 0),
    ]
    assert [(group.topic, group.lag, group.consumed) for group in now.groups] == [("orders", 240, 0), ("idle", 0, 0)]
    assert (now.restarts, now.memory_bytes, now.unflushed_bytes, now.complaints) == (3, 1_024, 25_000, 3)


def test_another_daemon_counts_its_reads_anew_and_the_store_goes_on() -> None:
    before = Look(100.0, status({"orders": (0, 50)}, read=1_000_000))
    now = figures(before, Look(101.0, status({"orders": (0, 60), "new": (0, 5)}, pid=8, read=30)))
    assert (now.read, now.stored) == (30, 15)
    gone = figures(before, Look(101.0, status({})))
    assert (gone.stored, gone.topics, gone.groups) == (0, [], [])


def test_processes_and_the_rest_of_their_users_have_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Caller, "name", property(lambda caller: "" if caller.process == 20 else "x"))
    callers = Callers(Accounts(0))
    one, other = Caller(1000, 2), Caller(1000, 3)
    callers.published(one, 10, 100)
    before = Look(100.0, status({}, callers=callers))
    callers.published(one, 20, 400)
    for process in range(10, 10 + MOST_PROCESSES):
        callers.published(Caller(1000, process), 1, 1)
    callers.published(other, 2, 50)
    found = figures(before, Look(102.0, status({}, callers=callers))).callers
    assert [(row.user, row.process, row.published, row.published_bytes) for row in found[:2]] == [
        (1000, 0, 11, 201),  # the first two are told apart no more, and one has ended
        (1000, 3, 1, 25),
    ]
    assert sum(row.published_bytes for row in found) == (400 + MOST_PROCESSES + 50) / 2


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("height", [10, 24, 50])
def test_the_screen_fits(width: int, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Caller, "name", "x\x1b[2J" * 9)
    names = {f"{'long' * number}-\x1b[2J{number}": (0, 10**number) for number in range(12)}
    screen, callers = Screen(MOUNT), Callers(Accounts(0))
    for process in range(20):
        callers.published(Caller(process, process), 1, 10**process)
    for round_ in range(HISTORY + 5):
        looked = [
            Look(float(at), status(names, physical_end=10**15 * at, callers=callers, pid=at))
            for at in (round_, round_ + 1)
        ]
        lines = screen.lines(figures(*looked), width, height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert "\x1b" not in "".join(lines)
    assert height == 10 or width < 80 or any(line.endswith("/s") for line in lines[-3:]), "no column is cut"
    assert sum("PROCESS" in line for line in lines) == (1 if height > 10 else 0)
    assert sum("TOPIC" in line for line in lines) == (2 if height > 10 else 1)


def test_a_bar_is_as_high_as_its_part_of_the_largest() -> None:
    assert sparkline(iter([0, 0.1, 50, 100])) == " ▁▄█"
    assert sparkline(iter([0, 0])) == "  "


def test_top_shows_what_is_published_meanwhile(site: Site) -> None:
    site.mounted()
    (site.mountpoint / "orders").mkdir()
    top = [sys.executable, "-m", "mountctl", "top", str(site.mountpoint), "--json", "-n", "40", "--interval", "0.1"]
    with subprocess.Popen(top, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["stored"] == 0
        (site.mountpoint / "orders/append").write_bytes(b"line\n" * 1_000)
        (site.mountpoint / "orders.log").read_bytes()
        seen = [json.loads(line) for line in watching.stdout]
        assert watching.wait(DEADLINE_SECONDS) == 0
    assert round(sum(one["stored"] * one["seconds"] for one in seen)) == pytest.approx(1_000, rel=0.01)
    assert seen[-1]["topics"][0]["messages"] == 1_000
    mine = [row for one in seen for row in one["callers"] if row["process"] == os.getpid()]
    assert {(row["user"], row["name"]) for row in mine} == {(os.getuid(), Path("/proc/self/comm").read_text().strip())}
    published = sum(row["published"] * one["seconds"] for one in seen for row in one["callers"])
    assert round(published) == pytest.approx(1_000, rel=0.01)
    assert sum(row["read_bytes"] for row in mine) > 0
    assert "TOPIC" in succeed("top", site.mountpoint, "-n", "1", "--interval", "0.1")


def test_top_of_what_is_not_mounted_says_so(site: Site) -> None:
    done = mountctl("top", site.store.parent)
    assert done.returncode == os.EX_NOINPUT
    assert "no store is mounted" in done.stderr

"""mountctl consume: each message once if all goes well, and again after a failure, by any member of the group."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mountctl.conftest import Site, eventually, mountctl, succeed

BODIES = [f"body {number}" for number in range(12)]


@pytest.fixture(params=["mounted", "not mounted"])
def place(site: Site, request: pytest.FixtureRequest) -> Path:
    """A store with twelve messages in four queues, reached either way."""
    succeed("init", site.store)
    if request.param == "mounted":
        site.mounted()
        succeed("put", site.mountpoint, "orders", *BODIES)
        return site.mountpoint
    succeed("put", site.store, "orders", *BODIES)
    return site.store


def test_a_group_has_each_message_once_and_another_group_has_them_too(place: Path) -> None:
    assert sorted(succeed("consume", place, "orders", "-g", "one").splitlines()) == sorted(BODIES)
    assert succeed("consume", place, "orders", "-g", "one") == ""
    succeed("put", place, "orders", "new")
    assert succeed("consume", place, "orders", "-g", "one", "--from", "last") == "new\n"
    assert succeed("consume", place, "orders/1", "-g", "two").splitlines() == BODIES[1::4]
    assert succeed("consume", place, "orders/2", "-g", "three", "-n", "2").splitlines() == BODIES[2:10:4]
    assert succeed("consume", place, "orders/2", "-g", "three", "--json", "-n", "1") == succeed(
        "cat", place, "orders/2/2", "--json"
    )
    assert succeed("consume", place, "orders", "-g", "late", "--from", "last") == ""


def test_what_a_command_did_not_do_comes_again(place: Path, tmp_path: Path) -> None:
    script = f'read -r body; [ "$body" != "body 6" ] || [ -e {tmp_path}/mended ] || exit 3; echo "$MQ_OFFSET $body"'
    failed = mountctl("consume", place, "orders/2", "-g", "g", "--", "sh", "-c", script, stdin=" ")
    assert (failed.returncode, failed.stdout) == (os.EX_TEMPFAIL, "0 body 2\n")
    assert failed.stderr == "mountctl: sh ended with 3 for orders/2/1: the message will be delivered again\n"
    (tmp_path / "mended").touch()
    again = mountctl("consume", place, "orders/2", "-g", "g", "--", "sh", "-c", script, stdin=" ")
    assert (again.returncode, again.stdout) == (0, "1 body 6\n2 body 10\n")
    missing = mountctl("consume", place, "orders/2", "-g", "h", "--", "no-such-program")
    assert (missing.returncode, missing.stderr) == (64, "mountctl: no-such-program: No such file or directory\n")


def test_what_could_not_be_printed_comes_again(place: Path) -> None:
    command = [sys.executable, "-m", "mountctl", "consume", str(place), "orders", "-g", "g"]
    with open("/dev/full", "wb") as full:
        assert subprocess.run(command, stdout=full, stderr=subprocess.DEVNULL, check=False).returncode == 74
    assert sorted(succeed("consume", place, "orders", "-g", "g").splitlines()) == sorted(BODIES)


def test_what_can_not_be_is_said(place: Path) -> None:
    for arguments, code, text in (
        (("orders", "-g", "no good"), 64, "a group's name holds letters, digits, %, |, - and _ alone"),
        (("missing", "-g", "g"), 64, "no topic 'missing': there are: orders"),
        (("orders/9", "-g", "g"), 64, "has no queue 9"),
        (("orders/0/1", "-g", "g"), 64, "a group goes on at its own offset, not at OFFSET: name a topic"),
        (("orders", "-g", "g", "--from", "never"), 64, "invalid time 'never'"),
    ):
        done = mountctl("consume", place, *arguments)
        assert (done.returncode, text in done.stderr) == (code, True), (arguments, done.stderr)


def test_members_of_a_group_share_the_queues_and_one_that_is_killed_leaves_its_own(site: Site) -> None:
    site.mounted()
    succeed("put", site.mountpoint, "orders", *BODIES)
    consume = [sys.executable, "-m", "mountctl", "consume", str(site.mountpoint), "-g", "g"]
    first = subprocess.Popen([*consume, "orders/1", "--follow"], stdout=subprocess.PIPE)
    assert first.stdout is not None
    assert [first.stdout.readline().decode().strip() for _ in range(3)] == BODIES[1::4]
    others = [body for body in BODIES if body not in BODIES[1::4]]
    assert sorted(succeed("consume", site.mountpoint, "orders", "-g", "g").splitlines()) == sorted(others)
    taken = mountctl("consume", site.mountpoint, "orders/1", "-g", "g")
    assert (taken.returncode, "other members of the group consume every queue" in taken.stderr) == (75, True)
    offset = site.mountpoint / "@store/groups/g/orders/1"
    eventually(lambda: offset.read_text() == "3\n", "what was printed is noted")
    first.send_signal(signal.SIGKILL)
    first.wait()
    succeed("put", site.mountpoint, "orders/1", "more")
    assert succeed("consume", site.mountpoint, "orders", "-g", "g") == "more\n"
    status = json.loads((site.mountpoint / "@store/status.json").read_text())
    assert {queue["lag"] for queue in status["groups"]["g"]["orders"].values()} == {0}


def test_who_follows_has_what_comes_and_is_ended_in_order(site: Site) -> None:
    site.mounted()
    succeed("put", site.mountpoint, "orders", *BODIES)
    command = [sys.executable, "-m", "mountctl", "consume", str(site.mountpoint), "orders", "-g", "g", "-f"]
    following = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert following.stdout is not None
    assert {following.stdout.readline().decode().strip() for _ in BODIES} == set(BODIES)
    succeed("put", site.mountpoint, "orders", "new")
    assert following.stdout.readline() == b"new\n"
    following.send_signal(signal.SIGINT)
    assert following.wait() == 130
    assert succeed("consume", site.mountpoint, "orders", "-g", "g") == ""


def test_nothing_is_noted_in_a_store_that_is_only_read(site: Site) -> None:
    site.mounted()
    succeed("put", site.mountpoint, "orders", *BODIES)
    succeed("umount", site.mountpoint)
    site.mounted("--read-only")
    done = mountctl("consume", site.mountpoint, "orders", "-g", "g")
    assert (done.returncode, done.stdout) == (77, "")


def test_many_messages_cost_few_requests_and_notes(site: Site) -> None:
    site.mounted()
    (site.mountpoint / "many@queues=2").mkdir()
    bodies = b"".join(b"%d\n" % number for number in range(20_000))
    (site.mountpoint / "many/append").write_bytes(bodies)

    def requests(operation: str) -> int:
        metrics = (site.mountpoint / "@store/metrics").read_text()
        found = re.search(rf'^fsstore_requests_total{{operation="{operation}"}} (\d+)$', metrics, re.MULTILINE)
        return int(found[1]) if found else 0

    before = requests("open"), requests("write")
    assert sorted(succeed("consume", site.mountpoint, "many", "-g", "g").splitlines(), key=int) == [
        str(number) for number in range(20_000)
    ]
    assert requests("open") - before[0] < 200
    assert requests("write") - before[1] < 100
    assert succeed("consume", site.mountpoint, "many", "-g", "g") == ""

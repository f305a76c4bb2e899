"""Verbs that read a store's files beside the daemon that writes them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from engine import CheckProgress
from mountctl.verbs.check import paced
from tests.mount.harness import Mounted, mounted, publish
from tests.mountctl.conftest import mountctl, succeed


def test_a_mounted_store_is_checked_and_its_status_tells(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        publish(mount.topic("orders") / "0" / "append", b"".join(b"%d plums\n" % number for number in range(1000)))
        assert succeed("check", mount.root).endswith("no findings\n")
        assert ": no findings\n" in succeed("status", mount.store)
        metrics = (mount.root / "@store/metrics").read_text()
        assert "\nfsstore_check_findings 0\n" in metrics
        damage(mount)
        done = mountctl("check", "--json", mount.store)
        assert (done.returncode, json.loads(done.stdout.splitlines()[0])["kind"]) == (1, "bad record")
        check = mount.status()["last_check"]
        assert (check["state"], check["findings"] > 0) == ("ended", True)
        assert "bad record" in succeed("status", mount.root)
        assert mountctl("check", "--repair", mount.root).returncode == 75


def test_a_mounted_store_is_backed_up(mount: Mounted, topic: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    publish(topic / "0" / "append", b"one\ntwo\n")
    assert "copied" in succeed("backup", mount.root, copy)
    publish(topic / "0" / "append", b"three\n")
    succeed("backup", "--verify", mount.store, copy)
    assert succeed("cat", copy, f"{topic.name}/0").split() == ["one", "two", "three"]
    done = mountctl("backup", mount.root, tmp_path)
    assert (done.returncode, "not empty" in done.stderr) == (64, True)


def test_a_backup_into_a_mount_is_refused_and_makes_no_topic(mount: Mounted, topic: Path) -> None:
    for target in (mount.root / "copied", topic / "drop/copied"):
        done = mountctl("backup", mount.root, target)
        assert (done.returncode, f"is in the mount of {mount.store}" in done.stderr) == (64, True)
    assert not (mount.root / "copied").exists()


def test_a_daemon_that_somebody_stopped_is_said_to_be(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        mount.daemon.send_signal(signal.SIGSTOP)
        done = mountctl("status", mount.root)
        mount.daemon.send_signal(signal.SIGCONT)
        assert (done.returncode, f"kill -CONT {mount.daemon.pid}" in done.stderr) == (75, True)


def test_status_is_shown_again_and_again(mount: Mounted, topic: Path) -> None:
    words = [sys.executable, "-m", "mountctl", "status", "--watch", "--json", str(mount.root)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        looks = []
        for _ in range(2):
            looks.append(json.loads(watching.stdout.readline())["stats"]["messages"])
            publish(topic / "0" / "append", b"one\n")
        watching.terminate()
    assert looks[0] < looks[1]


def damage(mount: Mounted) -> None:
    with min((mount.store / "commitlog").iterdir()).open("r+b") as log:
        log.seek(log.read(4000).rindex(b" plums"))
        log.write(b"!")


def test_a_check_reads_no_more_than_its_rate() -> None:
    now, slept = 0.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now, slept
        now, slept = now + seconds, slept + seconds

    tell = paced(lambda _: None, 100, lambda: now, sleep)
    for done in (50, 100, 300):
        tell(CheckProgress("one", done, 300))
    now += 2
    for done in (100, 300):
        tell(CheckProgress("two", done, 300))
    assert (now, slept) == (6, 4)

"""docs/semantics.md, 6 and 9: a disk that refuses below a mount, by a file system that fails by rule
(tests/durability/faultfs.c), and a store that is moved away."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.durability.faultfs import CHANGES, FaultyDisk, Rule
from tests.mount.refusing import disk as disk
from tests.mount.refusing import site as site
from tests.mountctl.conftest import Site, clear, eventually, fill, succeed

LINE = b"%d " + b"x" * 5_000
UNFLUSHED = "-o", "flushIntervalCommitLog=3600000,flushConsumeQueueThoroughInterval=3600000"
"""Data is flushed only when a test asks for it, however long the test takes."""


def status(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((site.mountpoint / "@store" / "status.json").read_text())
    return found


def wait_for_standby(site: Site) -> None:
    """Wait for the next server to be loaded: then no user waits for that after a death."""
    eventually(lambda: status(site)["outlives_daemon"], "the mount outlives its daemon")


def kill(site: Site) -> None:
    """Kill the server, and wait for the next one."""
    before = status(site)
    os.kill(before["pid"], signal.SIGKILL)
    eventually(lambda: status(site)["restarts"] > before["restarts"], "another server goes on")


def publish(site: Site, number: int, *, durably: bool) -> int:
    """Append a line; 0, or the errno with which it, or the fsync behind it, was refused."""
    try:
        append = os.open(site.mountpoint / "orders" / "0" / "append", os.O_WRONLY | os.O_APPEND)
        try:
            os.write(append, LINE % number + b"\n")
            if durably:
                os.fsync(append)
        finally:
            os.close(append)
    except OSError as error:
        return error.errno or -1
    return 0


def lines(site: Site) -> list[bytes]:
    return (site.mountpoint / "orders" / "0.log").read_bytes().splitlines()


def test_what_a_flush_failed_on_is_on_disk_before_a_later_fsync_says_so(disk: FaultyDisk, site: Site) -> None:
    """6.8 After a failed flush nothing is published until the store is mounted anew; a death or a restart of the
    daemon does not change that. An fsync on the new mount returns only when everything written before is on disk,
    too."""
    site.mounted(*UNFLUSHED)
    wait_for_standby(site)
    assert publish(site, 1, durably=False) == 0
    disk.inject(Rule("write", "*/commitlog/*"))
    assert publish(site, 2, durably=True) == errno.EIO
    disk.heal()
    failure = status(site)["read_only_reason"]
    assert "commitlog" in failure
    kill(site)
    assert status(site)["read_only_reason"] == failure, "a kill makes it writable by itself"
    succeed("restart", site.mountpoint)
    assert status(site)["read_only_reason"] == failure, "a restart makes it writable by itself"
    assert lines(site)[-2:] == [LINE % 1, LINE % 2]
    assert publish(site, 3, durably=False) == errno.EROFS
    succeed("umount", site.mountpoint)
    site.mounted()
    assert status(site)["read_only_reason"] is None
    assert publish(site, 3, durably=True) == 0
    log = (disk.backing / "store" / "commitlog" / ("0" * 20)).read_bytes()
    assert [log.count(LINE % number) for number in (1, 2, 3)] == [1, 1, 1], "confirmed, and nowhere on disk"


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_disk_that_takes_nothing_stops_no_reader_and_is_written_again_when_it_does(
    disk: FaultyDisk, site: Site, number: int
) -> None:
    """9.9 If the disk is full, read-only or broken when another daemon opens the store, readers go on. Refused calls
    and status show the reason. When the disk accepts writes again, so does the mount, unless a flush had failed."""
    site.mounted(*UNFLUSHED)
    wait_for_standby(site)
    assert publish(site, 1, durably=False) == 0
    with (site.mountpoint / "orders" / "0.log").open("rb") as reader:
        reader.readline()
        disk.inject(*(Rule(call, "*", number) for call in CHANGES))
        kill(site)
        reason = status(site)["read_only_reason"]
        assert reason.startswith("the disk refuses to be written")
        assert str(site.store) in reason
        assert os.strerror(number) in reason
        assert reader.readline() == b"order 1\n"
        assert lines(site)[-1] == LINE % 1
        assert publish(site, 2, durably=False) == errno.EROFS
        disk.heal()
        eventually(lambda: publish(site, 2, durably=True) == 0, "it takes messages again")
        assert status(site)["read_only_reason"] is None
        assert reader.read().splitlines()[-2:] == [LINE % 1, LINE % 2]
    succeed("umount", site.mountpoint)
    succeed("check", site.store)


@pytest.mark.parametrize("place", ["nothing", "an empty folder", "a copy"])
def test_a_store_that_was_moved_away_is_not_made_anew(tmp_path: Path, place: str) -> None:
    """9.10 If a store was moved, or its disk unmounted, fsstore does not make a new store in its old place, and
    neither serves nor changes another store there. Writes are refused (ESTALE), and the next daemon waits until the
    store is back."""
    site = Site(tmp_path / "store", tmp_path / "mnt", tmp_path / "mount.log")
    site.mountpoint.mkdir()
    fill(site.store)
    try:
        site.mounted()
        wait_for_standby(site)
        shutil.copytree(site.store, tmp_path / "copy")
        site.store.rename(tmp_path / "moved")
        if place != "nothing":
            (site.store.mkdir if place == "an empty folder" else lambda: (tmp_path / "copy").rename(site.store))()
        before = {path: path.stat().st_mtime_ns for path in site.store.rglob("*")}
        with pytest.raises(OSError, match="Stale") as caught:
            publish_new_topic(site)
        assert caught.value.errno == errno.ESTALE
        os.kill(status(site)["pid"], signal.SIGKILL)
        eventually(lambda: "is not the store that was there" in site.log_text(), "the next server refuses")
        assert {path: path.stat().st_mtime_ns for path in site.store.rglob("*")} == before
        assert site.store.exists() == (place != "nothing")
        if place != "nothing":
            site.store.rename(tmp_path / "other")
        (tmp_path / "moved").rename(site.store)
        assert publish(site, 1, durably=True) == 0
        assert lines(site)[-2:] == [b"order 9", LINE % 1]
    finally:
        clear([site.mountpoint])
    succeed("check", site.store)


def publish_new_topic(site: Site) -> None:
    """Make the store want files that it does not have."""
    (site.mountpoint / "made").mkdir()

"""`mountctl retention`: the next deletions, and the way from a full disk to one with room."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import Message, MessageStore
from tests.mount.harness import small_disk
from tests.mountctl.conftest import Site, eventually, mountctl, site_in, succeed, tree

FILE_BYTES = 1 << 20
SIZES = f"mappedFileSizeCommitLog={FILE_BYTES},mappedFileSizeConsumeQueue=20000,maxHashSlotNum=500,maxIndexNum=2000"
LINE = b"x" * 1_000 + b"\n"


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Site]:
    """A mount whose disk is filled to the brim by its log."""
    with small_disk(tmp_path / "disk", 16 * FILE_BYTES) as disk:
        for site in site_in(disk):
            site.mounted("-o", SIZES)
            (site.mountpoint / "big@queues=2").mkdir()
            while publish(site, 100):
                pass
            yield site


def publish(site: Site, lines: int) -> bool:
    """Whether they were all taken."""
    descriptor = os.open(site.mountpoint / "big/append", os.O_WRONLY)
    try:
        os.write(descriptor, LINE * lines)
    except OSError:
        return False
    finally:
        try:
            os.close(descriptor)
        except OSError:
            return False
    return True


def planned(place: Path, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(succeed("retention", place, "--json", *options))
    return found


def status_of(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(succeed("status", site.mountpoint, "--json"))
    return found


def first_kept(site: Site) -> dict[str, int]:
    """The oldest offset of each queue."""
    queues = status_of(site)["topics"]["big"]["queues"]
    return {queue: bounds["min_offset"] for queue, bounds in queues.items()}


def test_a_full_disk_gets_room_by_the_option_that_is_proposed(full: Site) -> None:
    before = status_of(full)["stats"]
    assert "write, refused: no space for " in succeed("status", full.mountpoint)
    now = planned(full.mountpoint)
    assert (now["files"], now["retention"], now["deletions"]) == (0, None, [])
    proposed = now["proposed"]
    assert 1 <= proposed["files"] <= 3
    assert proposed["disk_use_after"] <= 0.9
    option = f"maxBytes={proposed['options']['maxBytes']}"
    assert planned(full.mountpoint, "-o", option)["messages"] == proposed["messages"]
    text = succeed("retention", full.mountpoint)
    assert "retention  off: nothing is ever deleted" in text
    assert f"by         mountctl restart -o maxBytes={proposed['kept_files']}M {full.mountpoint}" in text
    assert first_kept(full) == {"0": 0, "1": 0}, "asking deletes nothing"

    succeed("restart", "-o", f"{option},cleanResourceInterval=50", full.mountpoint)
    eventually(lambda: status_of(full)["stats"]["expired_files"] == proposed["files"], "what was proposed has gone")
    after = status_of(full)
    assert after["stats"]["expired_messages"] == proposed["messages"] == sum(first_kept(full).values())
    assert after["stats"]["messages"] == before["messages"] - proposed["messages"]
    told, max_bytes = full.log_text(), int(proposed["options"]["maxBytes"])
    assert "retention is off" in told
    assert f"retention is on: the oldest files are deleted while the log is larger than {max_bytes:,} bytes" in told
    assert told.count("retention deleted 1 file of the log, 1,048,576 bytes, with ") == proposed["files"]
    eventually(lambda: publish(full, 100), "writing goes on")
    summary = succeed("status", full.mountpoint)
    assert "retention  the oldest files are deleted while the log is larger than" in summary
    assert f"deleted    {proposed['files']} file" in summary


def test_options_are_laid_over_those_of_the_mount_as_a_restart_does(site: Site) -> None:
    site.mounted("-o", "fileReservedTime=72")
    assert planned(site.mountpoint)["options"] == {"fileReservedTime": "72"}
    assert planned(site.mountpoint, "-o", "maxBytes=1G")["options"] == {
        "fileReservedTime": "72",
        "maxBytes": "1073741824",
    }
    done = mountctl("retention", site.mountpoint, "-o", "storePathCommitLog=/elsewhere")
    assert done.returncode == 64
    assert "give options of retention alone" in done.stderr


def test_an_unmounted_store_is_asked_by_its_own_file_or_by_options(store: Path) -> None:
    assert planned(store)["retention"] is None
    (store / "config/retention.json").write_text('{"fileReservedTime": 72}')
    assert planned(store)["options"] == {"fileReservedTime": "72"}
    before = tree(store)
    assert planned(store, "-o", "maxBytes=1")["options"] == {"maxBytes": "1"}
    assert "retention  files older than 72 h are deleted at 04 o'clock" in succeed("retention", store)
    assert tree(store) == before
    done = mountctl("retention", store, "-o", "maxBytes=much")
    assert done.returncode == 64


def test_files_that_wait_for_their_hour_are_told(tmp_path: Path) -> None:
    path = tmp_path / "store"
    succeed("init", path, "-o", SIZES)
    with MessageStore.open(path) as store:
        for _ in range(40):
            store.put(Message("big", bytes(100_000)), 0)
    for file in (path / "commitlog").iterdir():
        os.utime(file, (1_000_000_000, 1_000_000_000))
    every_hour = ";".join(f"{hour:02d}" for hour in range(24))
    going = planned(path, "-o", f"fileReservedTime=72,deleteWhen={every_hour}")
    assert (going["files"], going["waiting_files"]) == (3, 0)
    assert going["deletions"][0]["reason"] == "it is older than 72 h (fileReservedTime)"
    assert "now        3 files of the log, 3.0 MiB, " in succeed(
        "retention", path, "-o", f"fileReservedTime=72,deleteWhen={every_hour}"
    )


@pytest.mark.parametrize("is_mounted", [True, False], ids=["mounted", "not mounted"])
@pytest.mark.parametrize(("count", "size_bytes"), [(16, 700_000), (110, 100_000)], ids=["each alone", "some at a time"])
def test_a_put_that_a_full_disk_cuts_short_says_what_went_in(
    tmp_path: Path, is_mounted: bool, count: int, size_bytes: int
) -> None:
    files = [tmp_path / f"file-{number}" for number in range(count)]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * size_bytes)
    with small_disk(tmp_path / "disk", 8 * FILE_BYTES) as disk:
        for site in site_in(disk):
            succeed("init", site.store, "-o", SIZES)
            place = site.mounted().mountpoint if is_mounted else site.store
            done = mountctl("put", place, "orders/0", *(word for file in files for word in ("--file", file)))
            assert done.returncode == 74
            said = re.search(rf"mountctl: of {count} messages the first (\d+) are stored\n", done.stderr)
            assert said is not None, done.stderr
            assert int(said[1]) > 0
            assert f"messages   {said[1]} in 1 topic" in succeed("status", place)


@pytest.mark.parametrize("is_mounted", [True, False], ids=["mounted", "not mounted"])
@pytest.mark.parametrize("options", [[], ["--property", "A=B"], ["--verbose"]], ids=["lines", "labelled", "told"])
def test_a_put_of_standard_input_that_a_full_disk_cuts_short_says_what_went_in(
    tmp_path: Path, is_mounted: bool, options: list[str]
) -> None:
    lines = "\n".join(["", *(f"{number} {'x' * 20_000}\n" for number in range(500))])
    with small_disk(tmp_path / "disk", 8 * FILE_BYTES) as disk:
        for site in site_in(disk):
            succeed("init", site.store, "-o", SIZES)
            place = site.mounted().mountpoint if is_mounted else site.store
            done = mountctl("put", place, "orders/0", *options, stdin=lines)
            assert done.returncode == 74
            said = re.search(r"mountctl: of standard input the first (\d+) are stored\n", done.stderr)
            assert said is not None, done.stderr
            assert f"messages   {said[1]} in 1 topic" in succeed("status", place)

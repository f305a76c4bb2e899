"""Programs that people use, on a mounted tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mount.harness import Mounted, bodies, offset_names, publish, sh

MESSAGES = 20_000


def test_twenty_thousand_messages_written_one_by_one_are_read_back(queue: Path, tmp_path: Path) -> None:
    lines = [b"%05d %s" % (number, bytes([33 + number % 90]) * (number % 200)) for number in range(MESSAGES)]
    fd = os.open(queue / "append", os.O_WRONLY | os.O_APPEND)
    for line in lines:
        os.write(fd, line + b"\n")
    os.close(fd)
    sh(f"ls | grep -v append | xargs cat > {tmp_path}/all", queue)
    assert (tmp_path / "all").read_bytes() == b"".join(lines)
    assert (queue.parent / "0.log").read_bytes() == b"\n".join(lines) + b"\n"
    assert bodies(queue) == lines


@pytest.fixture(scope="module")
def written(mount: Mounted) -> Path:
    """A topic with messages of many lengths in two queues."""
    topic = mount.topic("tools")
    for queue in "01":
        publish(topic / queue / "append", b"".join(b"%d %s\n" % (n, b"." * (n * 31 % 5_000)) for n in range(300)))
    return topic


def test_ls_shows_every_message_once(written: Path) -> None:
    lines = sh("ls -l --time-style=full-iso", written / "0").splitlines()
    assert len([line for line in lines if line.startswith("-r--r--r--")]) == 300
    assert sh("ls", written / "0").split() == [*(f"{offset:020d}" for offset in range(300)), "append"]


def test_copies_are_equal(written: Path, tmp_path: Path) -> None:
    sh(f"cp -a 0 {tmp_path}/cp && rsync -a --exclude=append 1/ {tmp_path}/rsync", written)
    for queue, copy in (("0", "cp"), ("1", "rsync")):
        for name in offset_names(written / queue):
            assert (tmp_path / copy / name).read_bytes() == (written / queue / name).read_bytes()
            assert (tmp_path / copy / name).stat().st_mtime_ns == (written / queue / name).stat().st_mtime_ns


def test_a_second_rsync_finds_nothing_to_do(written: Path, tmp_path: Path) -> None:
    sh(f"rsync -a --exclude=append 0/ {tmp_path}/copy", written)
    assert sh(f"rsync -ai --exclude=append 0/ {tmp_path}/copy", written) == ""


def test_grep_find_and_wc_agree(written: Path) -> None:
    assert sh("grep -rl '^299 ' 0 1 | sort", written).split() == [f"{queue}/{299:020d}" for queue in "01"]
    assert sh("find 0 1 -name '0*' -type f | wc -l", written).strip() == "600"
    assert sh("cat 0.log 1.log | wc -l", written).strip() == "600"


def test_tar_holds_every_message(written: Path, tmp_path: Path) -> None:
    sh(f"tar -c 0 | tar -x -C {tmp_path}", written)
    for name in offset_names(written / "0"):
        assert (tmp_path / "0" / name).read_bytes() == (written / "0" / name).read_bytes()


def test_attributes_travel(written: Path, tmp_path: Path) -> None:
    sh(f"getfattr -R -d 0 > {tmp_path}/attributes", written)
    assert (tmp_path / "attributes").read_text().count("user.mq.msg_id=") == 300

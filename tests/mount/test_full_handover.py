"""One user can't fill the memory that outlives the daemon, and nothing is published cut when it is full."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from fsstore.handover import KEPT_BYTES
from tests.mount.test_outlives import APPENDING, bodies, kill, opened
from tests.mountctl.conftest import Site, succeed


def handover_of(site: Site) -> dict[str, int]:
    """Its figures."""
    figures: dict[str, int] = json.loads((site.mountpoint / "@store/status.json").read_bytes())["handover"]
    return figures


def shared_bytes(site: Site) -> int:
    """Shared memory that the daemon takes."""
    pid = json.loads((site.mountpoint / "@store/status.json").read_bytes())["pid"]
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssShmem"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def test_lines_that_grow_take_as_much_memory_as_they_are_long(mounted: Site, mounted_queue: Path) -> None:
    piece = b"x" * 512
    with ExitStack() as files:
        handles = [files.enter_context(opened(mounted_queue / "append", APPENDING)) for _ in range(20)]
        for _ in range(KEPT_BYTES // len(piece) - 1):
            for handle in handles:
                os.write(handle, piece)
        figures = handover_of(mounted)
        assert figures["live_bytes"] < 22 * KEPT_BYTES
        assert figures["bytes"] < 2 * figures["live_bytes"] + (2 << 20)
        assert shared_bytes(mounted) < figures["bytes"] + (1 << 20)
        kill(mounted)
        for handle in handles:
            os.write(handle, b"\n")
    assert set(map(len, bodies(mounted_queue))) == {(KEPT_BYTES // len(piece) - 1) * len(piece)}
    assert handover_of(mounted)["handles_lost"] == 0


@pytest.fixture
def shared(site: Site) -> Iterator[Site]:
    """A mount that all users may publish to, with a topic of one queue."""
    site.mountpoint.parent.chmod(0o755)
    site.mounted("--allow-other", "--append-mode", "222")
    (site.mountpoint / "t@queues=1").mkdir()
    yield site
    with suppress(AssertionError):
        succeed("umount", site.mountpoint)


ANN = 65_501
"""A user without rights."""


def begin_as(user: int, folder: Path, count: int, size: int) -> list[int]:
    """Begin so many lines of that many bytes, as a user; stay root afterwards."""
    with opened(folder, os.O_PATH) as below:  # the way there is not for everybody
        os.seteuid(user)
        try:
            handles = [os.open("append", APPENDING, dir_fd=below) for _ in range(count)]
            for handle in handles:
                os.write(handle, b"y" * size)
        finally:
            os.seteuid(0)
    return handles


@pytest.mark.skipif(os.geteuid() != 0, reason="takes other users")
@pytest.mark.parametrize("is_planned", [False, True], ids=["killed", "restarted"])
def test_what_is_beyond_a_share_is_lost_and_said_to_be_and_others_lose_nothing(shared: Site, is_planned: bool) -> None:
    queue = shared.mountpoint / "t/0"
    begun = begin_as(ANN, queue, 300, KEPT_BYTES)
    with opened(queue / "append", APPENDING) as line, opened(queue / "append@frame=file", APPENDING) as file:
        for handle in (line, file):
            os.write(handle, b"first half, ")
        lost = handover_of(shared)["handles_lost"]
        assert 0 < lost < 100
        if is_planned:
            succeed("restart", shared.mountpoint)
        else:
            kill(shared)
        os.write(line, b"second half\n")
        os.write(file, b"second half")
    outcomes = []
    for handle in begun:
        try:
            outcomes.append(os.write(handle, b"end\n"))
        except OSError as error:
            outcomes.append(-(error.errno or 0))
        with suppress(OSError):
            os.close(handle)
    assert sorted(set(outcomes)) == ([4] if is_planned else [-errno.EIO, 4])
    assert outcomes.count(-errno.EIO) == (0 if is_planned else lost)
    found = bodies(queue)
    assert found.count(b"first half, second half") == 2
    assert set(found) == {b"first half, second half", b"y" * KEPT_BYTES + b"end"}
    assert len(found) == 302 - outcomes.count(-errno.EIO)


def test_status_and_metrics_say_how_large_it_is(shared: Site) -> None:
    status = json.loads((shared.mountpoint / "@store/status.json").read_bytes())
    assert status["accounts"]["handover_bytes"]["limit"] == 128 << 20
    metrics = (shared.mountpoint / "@store/metrics").read_text()
    for name in ("bytes", "limit_bytes", "live_bytes", "names", "handles", "handles_lost", "requests"):
        assert f"\nfsstore_handover_{name} {status['handover'][name] if name == 'limit_bytes' else ''}" in metrics

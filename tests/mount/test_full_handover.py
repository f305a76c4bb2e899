"""One user can't fill the memory that outlives the daemon, and nothing is published cut when it is full."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path

from fsstore.handover.handles import KEPT_BYTES
from tests.mount.test_outlives import APPENDING, bodies, kill, opened
from tests.mountctl.conftest import Site


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


def test_status_and_metrics_say_how_large_it_is(mounted: Site) -> None:
    status = json.loads((mounted.mountpoint / "@store/status.json").read_bytes())
    assert status["accounts"]["handover_bytes"]["limit"] == 128 << 20
    metrics = (mounted.mountpoint / "@store/metrics").read_text()
    for name in ("bytes", "limit_bytes", "live_bytes", "names", "handles", "handles_lost", "requests"):
        assert f"\nfsstore_handover_{name} {status['handover'][name] if name == 'limit_bytes' else ''}" in metrics

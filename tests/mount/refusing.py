"""Fixtures of a store whose disk refuses, by a file system that fails by rule (tests/durability/faultfs.c)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability.faultfs import FaultyDisk, faulty_disk
from tests.mountctl.conftest import Site, clear, fill


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    """A disk that fails by rule, with a filled store."""
    (tmp_path / "backing").mkdir()
    fill(tmp_path / "backing" / "store")
    with faulty_disk(tmp_path / "backing", tmp_path / "disk") as found:
        yield found


@pytest.fixture
def site(disk: FaultyDisk, tmp_path: Path) -> Iterator[Site]:
    """Mount point of that store; `check` is not required of the files that a test leaves there."""
    made = Site(disk.root / "store", tmp_path / "mnt", tmp_path / "mount.log")
    made.mountpoint.mkdir()
    yield made
    disk.heal()
    clear([made.mountpoint])

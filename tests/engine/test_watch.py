"""The watch of a directory: it may cry too often, never too seldom."""

from __future__ import annotations

import os
from pathlib import Path

from engine.watch import DirectoryWatch


def test_a_change_is_said_until_its_time_was_seen_twice(tmp_path: Path) -> None:
    watch = DirectoryWatch(tmp_path)
    assert [watch.changed() for _ in range(4)] == [True, True, False, False]
    (tmp_path / "new").write_bytes(b"")
    os.utime(tmp_path, ns=(0, 1))
    assert [watch.changed() for _ in range(3)] == [True, True, False]


def test_a_directory_that_comes_or_goes_has_changed(tmp_path: Path) -> None:
    watch = DirectoryWatch(tmp_path / "later")
    assert [watch.changed() for _ in range(3)] == [True, True, False]
    (tmp_path / "later").mkdir()
    assert watch.changed()
    (tmp_path / "later").rmdir()
    assert watch.changed()

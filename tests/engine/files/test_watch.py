"""The watch of a directory or file: it may cry too often, never too seldom."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from engine.files.watch import SAME_TICK_NS, Watch


def test_a_change_is_said_until_its_time_is_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, changed_ns = Watch(tmp_path), time.time_ns()
    os.utime(tmp_path, ns=(0, changed_ns))
    monkeypatch.setattr("engine.files.watch.time.time_ns", lambda: changed_ns + SAME_TICK_NS)
    assert [watch.changed() for _ in range(4)] == [True] * 4
    monkeypatch.setattr("engine.files.watch.time.time_ns", lambda: changed_ns + SAME_TICK_NS + 1)
    assert [watch.changed() for _ in range(3)] == [True, False, False]
    os.utime(tmp_path, ns=(0, 1))
    assert [watch.changed() for _ in range(3)] == [True, False, False]


def test_a_directory_that_appears_or_disappears_has_changed(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "later")
    assert [watch.changed() for _ in range(3)] == [True, False, False]
    (tmp_path / "later").mkdir()
    assert watch.changed()
    (tmp_path / "later").rmdir()
    assert watch.changed()


def test_a_change_that_is_forgotten_is_said_again(tmp_path: Path) -> None:
    os.utime(tmp_path, ns=(0, 1))
    watch = Watch(tmp_path)
    assert [watch.changed(), watch.changed()] == [True, False]
    watch.forget()
    assert [watch.changed(), watch.changed()] == [True, False]


def test_a_time_that_is_yet_to_come_is_believed(tmp_path: Path) -> None:
    os.utime(tmp_path, ns=(0, time.time_ns() + 3_600_000_000_000))
    watch = Watch(tmp_path)
    assert [watch.changed(), watch.changed()] == [True, False]

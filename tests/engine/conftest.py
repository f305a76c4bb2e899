"""Disks for tests of the engine."""

from __future__ import annotations

import pytest

from engine.files.disk import Disk


@pytest.fixture
def hasty_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without waits, for `check` and `repair`, too: no power is cut here."""
    monkeypatch.setattr(Disk, "sync", lambda *_: None)
    monkeypatch.setattr(Disk, "sync_directory", lambda *_: None)

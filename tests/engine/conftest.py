"""What several tests of the engine want from the disk."""

from __future__ import annotations

import pytest

from engine.files.disk import Disk


@pytest.fixture
def hasty_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a disk, `check` and `repair` neither: no power is cut here."""
    monkeypatch.setattr(Disk, "sync", lambda *_: None)
    monkeypatch.setattr(Disk, "sync_directory", lambda *_: None)

"""Another writer comes and goes while a store is being opened: its messages are seen, or the opening is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import Message, MessageStore, OpenMode, StoreLockedError
from engine.files.lock import StoreLock
from engine.open.recover import recover
from tests.engine.storetools import SMALL, bodies, opened


def test_a_writer_that_died_just_before_the_lock_was_taken_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, left = tmp_path / "store", tmp_path / "left"
    with opened(path) as store:
        store.put(Message("T", b"old"), 0)
    shutil.copytree(path, left)
    with MessageStore.open(left, SMALL) as store:
        store.put(Message("T", b"of the other"), 0)
        store.wait_durable(store.physical_end)
        died = tmp_path / "died"
        shutil.copytree(left, died)

    def late(lock: Path) -> StoreLock:
        shutil.rmtree(path)
        shutil.copytree(died, path)
        return StoreLock(lock)

    monkeypatch.setattr("engine.open.open.StoreLock", late)
    with MessageStore.open(path, SMALL) as store:
        assert bodies(store, "T", 0) == [b"old", b"of the other"]
        assert store.put(Message("T", b"new"), 0).queue_offset == 2


@pytest.mark.parametrize("last_shutdown", ["abort", "lock"])
def test_a_read_only_opening_is_refused_when_a_writer_came_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_shutdown: str
) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        store.put(Message("T", b"old"), 0)

    def while_recovering(*args: Any, **more: Any) -> Any:
        recovered = recover(*args, **more)
        (path / last_shutdown).write_bytes(b"lock")
        return recovered

    read_only = replace(SMALL, mode=OpenMode.READ_ONLY)
    with monkeypatch.context() as patch:
        patch.setattr("engine.open.open.recover", while_recovering)
        with pytest.raises(StoreLockedError):
            MessageStore.open(path, read_only)
    with MessageStore.open(path, read_only) as store:
        assert bodies(store, "T", 0) == [b"old"]

"""Errors that stop nothing are counted, with the last one in words."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message, MessageStore
from engine.files.disk import Disk
from engine.read.offset_index import BLOCK_MESSAGES
from tests.engine.storetools import SMALL, opened


class RefusingDisk(Disk):
    """Refuses to sync, or to make, files whose path has this in it."""

    refused = "nothing"

    def sync(self, descriptor: int, path: Path) -> None:
        self._answer(path, errno.EIO)

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        self._answer(path, errno.ENOSPC)
        super().allocate(descriptor, path, start, size_bytes)

    def sync_directory(self, path: Path) -> None:
        """Nothing."""

    def _answer(self, path: Path, number: int) -> None:
        if self.refused in str(path):
            raise OSError(number, "refused", str(path))


@pytest.mark.parametrize(
    ("refused", "said"), [("coverage.json", "the recovery point can't be written"), ("/index/", "keys wait in memory")]
)
def test_a_mark_and_keys_that_cannot_be_written_are_counted(tmp_path: Path, refused: str, said: str) -> None:
    disk = RefusingDisk()
    with opened(tmp_path, replace(SMALL, disk=disk)) as store:
        assert (store.stats().ignored_errors, store.stats().last_ignored_error) == (0, None)
        disk.refused = refused
        for number in range(2):
            store.put(Message("orders", b"body", ["K"]), 0)
            store.flush()
            stats = store.stats()
            assert stats.ignored_errors > number
            assert said in (stats.last_ignored_error or "")
            assert refused in (stats.last_ignored_error or "")
        assert store.read_only_reason is None
        disk.refused = "nothing"


def test_sizes_that_cannot_be_kept_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "refused")

    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        store.put_lines("orders", b"line\n" * 2 * BLOCK_MESSAGES, 0)
        monkeypatch.setattr("engine.read.offset_index.open_or_create", refuse)
        store.sum_streams(10.0)
        stats = store.stats()
        assert stats.ignored_errors == 1
        assert "sizes of a stream are not kept" in (stats.last_ignored_error or "")
        monkeypatch.undo()

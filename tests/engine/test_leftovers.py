"""Remains of interrupted work after a power cut: names without bytes, partly deleted topics."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message, MessageStore, OpenMode, TopicNotFoundError, check_store
from tests.engine.storetools import SMALL, bodies, killed, opened


@pytest.mark.parametrize(
    "name",
    ["commitlog/00000000000000008192", "consumequeue/T/0/00000000000000000640", "index/29991231235959999"],
)
def test_recovery_removes_a_file_that_got_its_name_and_no_byte(tmp_path: Path, name: str) -> None:
    with killed(tmp_path / "store", tmp_path / "crashed") as store:
        store.put(Message("T", b"kept", ["key"]), 0)
    (tmp_path / "crashed" / name).unlink(missing_ok=True)
    (tmp_path / "crashed" / name).touch()
    with opened(tmp_path / "crashed") as store:
        assert bodies(store, "T", 0) == [b"kept"]
    assert not (tmp_path / "crashed" / name).exists()


def test_recovery_removes_the_only_file_of_a_log_if_it_has_no_byte(tmp_path: Path) -> None:
    with killed(tmp_path / "store", tmp_path / "crashed") as store:
        store.create_topic("T")
    for file in (tmp_path / "crashed" / "commitlog").iterdir():
        file.unlink()
    (tmp_path / "crashed" / "commitlog" / "00000000000000000000").touch()
    with opened(tmp_path / "crashed") as store:
        assert list(store.check()) == []


@pytest.mark.parametrize("name", ["commitlog/00000000000000000000", "consumequeue/T/0/00000000000000000000"])
def test_a_file_that_was_cut_can_be_opened_for_reading_alone(tmp_path: Path, name: str) -> None:
    with opened(tmp_path / "store") as store:
        for number in range(6):
            store.put(Message("T", b"kept-%d" % number, ["key"]), 0)
    os.truncate(tmp_path / "store" / name, 130)
    with MessageStore.open(tmp_path / "store", replace(SMALL, mode=OpenMode.READ_ONLY)) as store:
        expected = [b"kept-%d" % number for number in range(6)]
        assert bodies(store, "T", 0) == (expected if name.startswith("consumequeue") else expected[:1])


def test_a_crash_of_a_store_without_a_key_costs_reading_only_what_came_after_the_last_mark(tmp_path: Path) -> None:
    with killed(tmp_path / "store", tmp_path / "crashed") as store:
        store.put_lines("T", b"line\n" * 50, 0)
        store.flush()
        store.put_lines("T", b"line\n" * 7, 0)
    with opened(tmp_path / "crashed") as store:
        assert store.recovery.scanned_messages == 7


def test_a_deletion_that_was_cut_short_is_finished_by_recovery(tmp_path: Path) -> None:
    with killed(tmp_path / "store", tmp_path / "crashed") as store:
        for topic in ("kept", "gone"):
            store.put_lines(topic, b"one\ntwo\n", 0, keys=["key"])
        shutil.copytree(tmp_path / "store" / "consumequeue" / "gone", tmp_path / "queues")
        store.delete_topic("gone")
    shutil.copytree(tmp_path / "queues", tmp_path / "crashed" / "consumequeue" / "gone")
    with MessageStore.open(tmp_path / "crashed", SMALL) as store:
        with pytest.raises(TopicNotFoundError):
            store.bounds("gone", 0)
        assert store.query("gone", "key") == []
        assert bodies(store, "kept", 0) == [b"one", b"two"]
    assert list(check_store(tmp_path / "crashed")) == []

"""Topics with names that other programs give a meaning: a store with them opens, and they are topics like any other."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message, MessageStore, OpenMode
from tests.engine.storetools import SMALL, bodies, killed, lose_derived, opened

NAMES = [
    "CURRENT", "LOCK", "LOG", "IDENTITY", "MANIFEST-000001",
    "abort", "checkpoint", "commitlog", "config", "consumequeue", "fsstore", "index", "lock", "store", "topics",
    "dledger-1", "compaction", "batchconsumequeue", "consumequeue_ext", "lost-found",
    "append", "keys", "log", "last", "first", "control", "groups", "status", "queue", "topic", "parquet",
    "0", "1", "007", "4294967296", "00000000000000000000", "00000000000000008192", "20260101000000000",
    "CON", "NUL", "aux", "con_txt", "desktop_ini",
    "%", "%%", "%00", "%2E%2E", "%41", "%s", "%LMQ%", "%LMQ%a", "%RETRY%g", "%DLQ%g", "%RETRY%",
    "|", "||", "-", "--", "-rf",
    "_", "__HIVE_DEFAULT_PARTITION__", "_SUCCESS", "_temporary", "_metadata",
    "DAMAGED-BYTES", "DAMAGED", "D", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102",
    "None", "null", "true", "nan", "T" * 127,
]  # fmt: skip


def require_topics(store: MessageStore, count: int) -> None:
    assert set(NAMES) <= set(store.topics())
    for name in NAMES:
        assert bodies(store, name, 0) == [name.encode()] * count, name
        assert len(store.query(name, "K")) == count, name


def test_they_are_kept_read_and_made_anew(tmp_path: Path) -> None:
    path, left = tmp_path / "store", tmp_path / "left"
    with MessageStore.open(path, SMALL, create=True) as store:
        for name in NAMES:
            store.create_topic(name, 1)
    with killed(path, left) as store:
        for name in NAMES:
            store.put(Message(name, name.encode(), ["K"]), 0)
        store.flush()
        for name in NAMES:
            store.put_lines(name, name.encode() + b"\n", 0, keys=["K"])
        require_topics(store, 2)
    with opened(path) as store:
        require_topics(store, 2)
    for lost in (None, "fsstore", "config"):
        copy = tmp_path / f"without {lost}"
        shutil.copytree(left, copy)
        if lost:
            shutil.rmtree(copy / lost)
        with opened(copy) as store:
            require_topics(store, 2)
    lose_derived(left)
    for mode in (OpenMode.READ_ONLY, OpenMode.WRITE):
        with MessageStore.open(left, replace(SMALL, mode=mode)) as store:
            require_topics(store, 2)
            assert not list(store.check())


@pytest.mark.parametrize("name", ["CURRENT", "0", "00000000000000000000", "DAMAGED-BYTES"])
def test_a_follower_shows_them(tmp_path: Path, name: str) -> None:
    with MessageStore.open(tmp_path, SMALL, create=True) as store:
        store.put(Message(name, b"one"), 0)
        store.flush()
        with MessageStore.open(tmp_path, replace(SMALL, mode=OpenMode.FOLLOW)) as follower:
            assert bodies(follower, name, 0) == [b"one"]


def test_a_topic_that_only_a_broker_can_name_is_not_taken_for_deleted(tmp_path: Path) -> None:
    ours, theirs = "%RETRY%readers-orders", "%RETRY%readers+orders"
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, create=True) as store:
        store.put(Message("orders", b"given back"), 0)
        store.create_topic(ours, 1)
        store.put(Message(ours, b"given back"), 0)
    for file in [*(path / "commitlog").iterdir(), path / "config/topics.json"]:
        file.write_bytes(file.read_bytes().replace(ours.encode(), theirs.encode()))
    shutil.rmtree(path / "consumequeue" / ours)  # its queue is lost
    shutil.rmtree(path / "fsstore")  # as a broker leaves it
    for mode in (OpenMode.READ_ONLY, OpenMode.WRITE):
        with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
            assert store.topics() == [theirs, "orders"]
            assert bodies(store, theirs, 0) == [b"given back"]
            assert not store.settings_problems()

"""Dispatch that fails behind an append: the store stops, claims nothing, and the next opening mends it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import FlushFailedError, Message, MessageStore, ReadOnlyStoreError, StoreConfig
from engine.derived.consume_queue import ConsumeQueue
from engine.derived.index import Index
from engine.files.periodic import PeriodicThread
from tests.engine.storetools import QUIET, SMALL, bodies, opened

POOL = replace(SMALL, transient_pool_buffers=2, flush=replace(QUIET, commit_interval_ms=3_600_000))


class FailingOnce:
    """Dispatch fails at the next record or run: before anything is done, or when its queues have their entries."""

    def __init__(self, store: MessageStore, monkeypatch: pytest.MonkeyPatch, *, late: bool) -> None:
        self.failures = 0
        assert store._writer is not None
        store._writer._dispatcher.at_once = False  # in the kernel nothing fails: the long way
        dispatches = (Index, ("put", "put_many")) if late else (ConsumeQueue, ("append_one", "append"))
        for name in dispatches[1]:
            monkeypatch.setattr(dispatches[0], name, self._failing(getattr(dispatches[0], name)))

    def _failing(self, dispatch: Callable[..., None]) -> Callable[..., None]:
        def failing(*args: Any) -> None:
            self.failures += 1
            if self.failures == 1:
                raise ZeroDivisionError("dispatch")
            dispatch(*args)

        return failing


def put(store: MessageStore) -> None:
    store.put(Message("T", b"new", ["K"]), 0)


def put_batch(store: MessageStore) -> None:
    store.put_batch([Message("T", b"new", ["K"])], 0)


def put_lines(store: MessageStore) -> None:
    store.put_lines("T", b"new\n", 0, keys=["K"])


def put_special(store: MessageStore) -> None:
    store.put_batch([Message("T", b"new", ["K"]), Message("T", b"", properties={"DELAY": "1"})], 0)


PUTS = [put, put_batch, put_lines, put_special]


def require_all(path: Path, config: StoreConfig) -> None:
    """Everything in the log is there, and numbers go on behind it."""
    with opened(path, config) as store:
        assert bodies(store, "T", 0) == [b"old", b"new"]
        assert [bytes(message.body) for message in store.query("T", "K")] == [b"new"]
        assert store.put(Message("T", b"next"), 0).queue_offset == 2
        assert store.read_only_reason is None


@pytest.mark.parametrize("late", [False, True], ids=["at once", "halfway"])
@pytest.mark.parametrize("publish", PUTS)
def test_the_store_stops_and_no_mark_claims_what_was_not_dispatched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publish: Callable[[MessageStore], None], late: bool
) -> None:
    path, left = tmp_path / "store", tmp_path / "left"
    with MessageStore.open(path, SMALL, create=True) as store:
        store.put(Message("T", b"old"), 0)
        store.flush()
        coverage = (path / "fsstore" / "coverage.json").read_bytes()
        failing = FailingOnce(store, monkeypatch, late=late)
        with pytest.raises(ReadOnlyStoreError, match="dispatch"):
            publish(store)
        assert failing.failures == 1
        assert "could not follow" in str(store.read_only_reason)
        for again in PUTS:
            with pytest.raises(ReadOnlyStoreError, match="could not follow"):
                again(store)
        store.flush()  # as the thorough flush once a minute does
        assert store.durable_end == store.physical_end
        assert (path / "fsstore" / "coverage.json").read_bytes() == coverage
        shutil.copytree(path, left)
    assert (path / "abort").exists()
    assert not (path / "fsstore" / "clean.json").exists()
    require_all(left, SMALL)
    require_all(path, SMALL)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "halfway"])
@pytest.mark.parametrize("publish", PUTS)
def test_dispatch_that_was_held_back_until_the_commit_may_fail_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publish: Callable[[MessageStore], None], late: bool
) -> None:
    path, left = tmp_path / "store", tmp_path / "left"
    with MessageStore.open(path, POOL, create=True) as store:
        store.put(Message("T", b"old"), 0)
        store.flush()
        coverage = (path / "fsstore" / "coverage.json").read_bytes()
        FailingOnce(store, monkeypatch, late=late)
        publish(store)
        store.flush()
        assert "could not follow" in str(store.read_only_reason)
        with pytest.raises(ReadOnlyStoreError, match="could not follow"):
            publish(store)
        assert store.durable_end == store.physical_end
        assert (path / "fsstore" / "coverage.json").read_bytes() == coverage
        shutil.copytree(path, left)
    assert (path / "abort").exists()
    require_all(left, SMALL)
    require_all(path, SMALL)


# unexpected errors in a thread


class Broken(Exception):
    """A bug."""


def test_an_error_that_nobody_expects_ends_a_thread_and_is_told() -> None:
    told: list[Exception] = []

    def work() -> None:
        raise Broken

    thread = PeriodicThread("test", 1, work, failed=told.append)
    thread.start()
    thread._thread.join(60)
    thread.close()
    assert [type(error) for error in told] == [Broken]


@pytest.mark.parametrize("name", ["fsstore-flush-derived", "fsstore-commit", "fsstore-retention"])
def test_a_store_whose_thread_ended_takes_no_more_messages_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    flush = replace(QUIET, consume_queue_interval_ms=1, commit_interval_ms=1)
    config = replace(SMALL, flush=flush, transient_pool_buffers=2)
    path = tmp_path / "store"
    targets = {
        "fsstore-flush-derived": "engine.derived.index.Index.settle",
        "fsstore-commit": "engine.files.file_queue.FileQueue.commit",
        "fsstore-retention": "engine.write.retention.Cleaner.clean",
    }
    (path / "config").mkdir(parents=True)
    (path / "commitlog").mkdir()
    (path / "config" / "retention.json").write_text('{"fileReservedTime": 1, "cleanResourceInterval": 1}')

    def broken(*_: object) -> None:
        raise Broken

    store = MessageStore.open(path, config)
    store.put(Message("T", b"old"), 0)
    store.flush()
    with monkeypatch.context() as patch:
        patch.setattr(targets[name], broken)
        thread = next(one for one in threading.enumerate() if one.name == name)
        thread.join(60)
        assert not thread.is_alive()
    assert "Broken" in str(store.read_only_reason)
    with pytest.raises(ReadOnlyStoreError, match="Broken"):
        store.put(Message("T", b"refused"), 0)
    with suppress(FlushFailedError):
        store.close()
    with opened(path) as store:
        assert bodies(store, "T", 0) == [b"old"]

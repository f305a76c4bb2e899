"""A process that lacks memory, descriptors or threads for a moment: the failed call works later, and nothing leaks."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import Message, MessageStore, NoDescriptorError, OpenMode
from engine.derived.consume_queues import ConsumeQueues
from engine.derived.index import Index
from engine.record.kernel.files import FileMap
from tests.engine.storetools import SMALL, bodies, nothing_left_open, opened


def without_memory(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No file can be mapped."""

    def refuse(*arguments: Any, **_: Any) -> FileMap:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr("engine.files.mapped_file.FileMap", refuse)
    return monkeypatch


def put_alone(store: MessageStore) -> None:
    store.put(Message("orders", b"one"), 1)


def put_lines(store: MessageStore) -> None:
    store.put_lines("orders", b"one\ntwo\n", 1)


@pytest.mark.parametrize("put", [put_alone, put_lines])
@pytest.mark.parametrize("preallocate", [True, False])
def test_a_queue_whose_first_file_could_not_be_mapped_takes_the_next_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[MessageStore], None], *, preallocate: bool
) -> None:
    with opened(tmp_path, SMALL, preallocate=preallocate) as store:
        store.put(Message("orders", b"zero"), 0)
        with monkeypatch.context() as patched:
            without_memory(patched)
            for _ in range(2):
                with pytest.raises(OSError, match="no memory"):
                    put(store)
        put(store)
        assert bodies(store, "orders", 1)[0] == b"one"


@pytest.mark.parametrize("preallocate", [True, False])
def test_a_log_file_that_could_not_be_mapped_is_made_at_the_next_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, preallocate: bool
) -> None:
    with opened(tmp_path, SMALL, preallocate=preallocate) as store:
        with monkeypatch.context() as patched:
            without_memory(patched)
            for _ in range(2):
                with pytest.raises(OSError, match="no memory"):
                    store.put(Message("orders", b"lost"), 0)
        store.put(Message("orders", b"stored"), 0)
        assert bodies(store, "orders", 0) == [b"stored"]


def test_an_index_file_that_could_not_be_mapped_is_no_failed_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        store.put(Message("orders", b"body", ["K"]), 0)
        with monkeypatch.context() as patched:
            without_memory(patched)
            with pytest.raises(NoDescriptorError, match="no memory is left"):
                store.flush()
        assert store.read_only_reason is None
        store.flush()
        assert [bytes(one.body) for one in store.query("orders", "K")] == [b"body"]


@pytest.mark.parametrize("mode", list(OpenMode))
@pytest.mark.parametrize("fails", [(Index, "load"), (ConsumeQueues, "load"), (ConsumeQueues, "recover")])
def test_an_opening_that_fails_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: OpenMode, fails: tuple[type, str]
) -> None:
    with opened(tmp_path) as store:
        store.put(Message("orders", b"body", ["K"]), 0)
    (tmp_path / "fsstore" / "clean.json").unlink()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "bad disk")

    monkeypatch.setattr(*fails, refuse)
    with nothing_left_open():
        for _ in range(3):
            with pytest.raises(OSError, match="bad disk"):
                MessageStore.open(tmp_path, replace(SMALL, mode=mode))

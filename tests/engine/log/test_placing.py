"""A caller of put gets the slot right before the message is published."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import FileSizes, Message, MessageStore, StoreConfig

PUTS: dict[str, Callable[[MessageStore], object]] = {
    "one": lambda store: store.put(Message("t", b"one"), 0),
    "one with a key": lambda store: store.put(Message("t", b"one", keys=["k"]), 0),
    "one of a queue": lambda store: store.queue("t", 0).put(Message("t", b"one")),
    "delayed": lambda store: store.put(Message("t", b"one", properties={"DELAY": "1"}), 0),
    "batch": lambda store: store.put_batch([Message("t", b"one"), Message("t", b"two")], 0),
    "lines": lambda store: store.put_lines("t", b"one\ntwo\n", 0),
    "lines over files": lambda store: store.put_lines("t", b"x" * 5_000 + b"\n" + (b"y" * 5_000 + b"\n") * 50, 0),
}


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
def test_each_put_tells_its_place_before_anything_of_it_is_there(
    tmp_path: Path, put: Callable[[MessageStore], object]
) -> None:
    with MessageStore.open(tmp_path, StoreConfig(sizes=FileSizes(1 << 16, 1024, 5_000, 20_000)), create=True) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"first"), 0)
        told: list[tuple[int, int]] = []
        store.when_placing(lambda physical_offset: told.append((physical_offset, store.physical_end)))
        for _ in range(30):
            told.clear()
            put(store)
            [(physical_offset, end)] = told
            assert end <= physical_offset < store.physical_end
            store.at(physical_offset)


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
def test_a_process_that_dies_there_leaves_none_of_a_put(tmp_path: Path, put: Callable[[MessageStore], object]) -> None:
    config = StoreConfig(sizes=FileSizes(1 << 16, 1024, 5_000, 20_000))
    with MessageStore.open(tmp_path / "store", config, create=True) as store:
        store.create_topic("t", 1)
        end = store.put(Message("t", b"first"), 0).physical_end

        def copy(_: int) -> None:
            shutil.copytree(tmp_path / "store", tmp_path / "dead")

        store.when_placing(copy)
        put(store)
    with MessageStore.open(tmp_path / "dead", config) as store:
        assert store.physical_end == end
        assert [bytes(message.body) for message in store.read("t", 0, 0)] == [b"first"]

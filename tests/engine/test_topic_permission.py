"""`perm` of topics.json: without its write bit nothing is published, whichever call puts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import Message, MessageStore, TopicPermissionError
from tests.engine.storetools import opened

MESSAGE = Message("t", b"body")
WAYS: dict[str, Callable[[MessageStore], object]] = {
    "put": lambda store: store.put(MESSAGE),
    "put to a queue": lambda store: store.put(MESSAGE, 0),
    "put to a queue without messages": lambda store: store.put(MESSAGE, 1),
    "put later": lambda store: store.put(Message("t", b"body", properties={"DELAY": "3"})),
    "put a batch": lambda store: store.put_batch([MESSAGE, MESSAGE]),
    "put lines": lambda store: store.put_lines("t", b"one\ntwo\n"),
    "put lines later": lambda store: store.put_lines("t", b"one\ntwo\n", properties={"DELAY": "3"}),
    "put by the queue": lambda store: store.queue("t", 0).put(MESSAGE),
    "put a batch by the queue": lambda store: store.queue("t", 0).put_batch([MESSAGE]),
    "put lines by the queue": lambda store: store.queue("t", 0).put_lines(b"one\n"),
}


def give_permission(path: Path, permission: int) -> None:
    """Have topics.json of a closed store say so of the topic `t`."""
    file = path / "config/topics.json"
    content = json.loads(file.read_text())
    content["topicConfigTable"]["t"]["perm"] = permission
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("way", WAYS)
def test_a_topic_without_the_write_bit_takes_no_message(tmp_path: Path, way: str) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", 2)
        store.put(MESSAGE, 0)
    give_permission(tmp_path, 4)
    with opened(tmp_path) as store:
        before = store.physical_end
        with pytest.raises(TopicPermissionError, match=r"its perm in config/topics\.json is 4, without 2"):
            WAYS[way](store)
        assert (store.is_writable("t"), store.physical_end, bytes(store.get("t", 0, 0).body)) == (
            False,
            before,
            b"body",
        )
        store.create_topic("other", 1)
        store.put(Message("other", b"body"))
        store.delete_topic("t")
        store.create_topic("t", 2)
        WAYS[way](store)


@pytest.mark.parametrize("permission", [2, 3, 6, 7])
def test_other_bits_refuse_nothing(tmp_path: Path, permission: int) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", 2)
        store.put(MESSAGE, 0)
    give_permission(tmp_path, permission)
    with opened(tmp_path) as store:
        assert store.is_writable("t")
        for way in WAYS.values():
            way(store)
        assert bytes(store.get("t", 0, 0).body) == b"body"

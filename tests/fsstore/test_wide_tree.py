"""The tree of a store with many topics: a request does as much work as in a store with few."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from engine import Expired, Message, MessageStore
from fsstore.interface import ROOT_INODE
from tests.fsstore.conftest import Mount, open_small
from tests.steps import require_flat, steps

FEW, MANY = 10, 60
PATHS = ("{}", "{}.log", "{}/append", "{}/0", "{}/0.log", "{}/keys/K", "@parquet/topic={}/queue=0")


def visit(mount: Mount, topic: str) -> None:
    for path in PATHS:
        assert mount.stat(path.format(topic))


def let_expire(mount: Mount, topic: str) -> None:
    assert list(mount.fs.expired(Expired(topic, 0, 0, 1, np.zeros(1, np.int64))))


WORKS: dict[str, Callable[[Mount, str], object]] = {
    "a look": visit,
    "messages expire": let_expire,
    "a queue is gone": lambda mount, topic: mount.fs.queue_gone(topic, 0),
    "a line": lambda mount, topic: mount.publish(f"{topic}/append", b"line\n"),
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_it_takes_as_much_work_among_many_topics(folder: Path, work: Callable[[Mount, str], object]) -> None:
    def steps_among(topics: int) -> int:
        with open_small(folder / str(topics)) as store:
            mount = Mount(store)
            for number in range(topics):
                store.put(Message(f"topic-{number}", b"body", keys=("K",)), 0)
                visit(mount, f"topic-{number}")
            work(mount, "topic-0")  # what is done once is done now
            return steps(lambda: work(mount, "topic-1"))

    require_flat(steps_among(FEW), steps_among(MANY))


def test_a_topic_that_was_made_is_found_without_a_list_of_all(mount: Mount, store: MessageStore) -> None:
    listings = {name: patch.object(store, name, side_effect=AssertionError) for name in ("topics", "queues")}
    for number in range(3):
        store.put(Message(f"topic-{number}", b"body", keys=("K",)), 0)
        with listings["topics"], listings["queues"]:
            visit(mount, f"topic-{number}")
            mount.publish(f"topic-{number}/append", b"line\n")


def test_a_listing_of_names_makes_no_nodes_and_shows_the_inodes_of_stat(mount: Mount, store: MessageStore) -> None:
    for number in range(FEW):
        store.create_topic(f"topic-{number}", 1)
    known = set(mount.fs._inodes.nodes)
    handle, position, shown = mount.fs.opendir(ROOT_INODE).handle, 0, dict[bytes, tuple[int, int]]()
    while batch := mount.fs.readdir(handle, position, 7, with_attributes=False):
        assert isinstance(batch, list)
        shown |= {name: (attributes.st_ino, stat.S_IFMT(attributes.mode)) for name, attributes, _ in batch}
        position = batch[-1].next_position
    assert set(mount.fs._inodes.nodes) == known
    assert len(shown) == 2 + 2 * FEW
    for name, found in shown.items():
        attributes = mount.stat(name)
        assert found == (attributes.st_ino, stat.S_IFMT(attributes.mode))

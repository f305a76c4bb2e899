"""Listings of `@parquet` that the kernel answers by itself: they are right, and they ask for nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from tests.mount.daemon import HELD_LISTINGS
from tests.mount.harness import PATIENCE_S, Mounted, mounted, publish, until

LARGE = b"x" * 200_000 + b"\n"
"""Five of these fill a file of the log."""


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A mount that can be made to delay its answers to listings."""
    folder = tmp_path_factory.mktemp("gated")
    (folder / "gate").touch()
    with mounted(folder, gate=folder / "gate") as mount:
        yield mount


def partition(mount: Mounted, topic: str) -> Path:
    return mount.root / "@parquet" / f"topic={topic}" / "queue=0"


def bounds(names: list[str]) -> tuple[int, int]:
    """The queue offsets that files cover: without a gap, and none twice."""
    ranges = [(int(name[:20]), int(name[21:41])) for name in names]
    assert all(before[1] == after[0] for before, after in pairwise(ranges)), names
    assert all("tail" not in name for name in names[:-1]), names
    return ranges[0][0], ranges[-1][1]


def asks_for_nothing(mount: Mounted, folder: Path) -> bool:
    """Whether a directory that has just been listed is listed again while the mount delays its answers."""
    room = mount.root.parent
    hold, held, answered = (room / name for name in (HELD_LISTINGS, "held", "answered"))
    names = os.listdir(folder)
    hold.touch()
    with ThreadPoolExecutor(1) as thread:
        again = thread.submit(os.listdir, folder)
        until("it is listed, or has asked", lambda: again.done() or held.exists())
        has_asked = held.exists()
        hold.unlink()
        answered.touch()
        assert again.result(PATIENCE_S) == names
    answered.unlink()
    held.unlink(missing_ok=True)
    return not has_asked


def test_a_queue_that_did_not_change_is_listed_without_a_request(gated: Mounted) -> None:
    append = gated.topic("same") / "0" / "append"
    folder = partition(gated, "same")
    for _ in range(3):
        publish(append, LARGE * 7)
        # the kernel may be short of memory just then: tried until it can keep a page that long
        until("listing again asks for nothing", asks_for_nothing, gated, folder)
    assert not asks_for_nothing(gated, gated.root / "same" / "0")


def test_the_listing_after_each_message_shows_it(gated: Mounted) -> None:
    append = gated.topic("growing") / "0" / "append"
    folder = partition(gated, "growing")
    assert os.listdir(folder) == []
    for count in range(1, 30):
        publish(append, LARGE)
        for _ in range(3):
            names = os.listdir(folder)
            assert bounds(names) == (0, count)
            assert all((folder / name).stat().st_size for name in names)


def test_an_older_handle_and_newer_ones_never_mix(gated: Mounted) -> None:
    append = gated.topic("two") / "0" / "append"
    folder = partition(gated, "two")
    publish(append, LARGE * 12)
    before = os.listdir(folder)
    older = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        publish(append, LARGE * 12)
        for _ in range(3):
            assert bounds(os.listdir(folder)) == (0, 24)
            assert os.listdir(older) == before
    finally:
        os.close(older)
    assert bounds(os.listdir(folder)) == (0, 24)
    until("listing again asks for nothing", asks_for_nothing, gated, folder)


def test_listings_are_whole_whoever_else_lists_and_publishes(gated: Mounted) -> None:
    append = gated.topic("busy") / "0" / "append"
    folder = partition(gated, "busy")
    publish(append, LARGE)
    published = [1, 1]  # begun, done

    def list_often(seed: int) -> None:
        chance = random.Random(seed)
        while published[1] < 60:
            least = published[1]
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                for _ in range(chance.randint(0, 3)):
                    begin, end = bounds(os.listdir(handle))
                    assert begin == 0
                    assert least <= end <= published[0]
            finally:
                os.close(handle)

    with ThreadPoolExecutor(4) as threads:
        listing = [threads.submit(list_often, seed) for seed in range(4)]
        while published[1] < 60:
            published[0] += 1
            publish(append, LARGE)
            published[1] += 1
        for done in listing:
            done.result(PATIENCE_S)


def oldest(mount: Mounted) -> int:
    return int(mount.status()["topics"]["orders"]["queues"]["0"]["min_offset"])


def test_what_expired_or_was_deleted_is_not_listed(tmp_path: Path) -> None:
    retention = {"max_bytes": 2 << 20, "clean_interval_ms": 50, "delete_pause_ms": 0}
    with mounted(tmp_path, config={"retention": retention}) as mount:
        append = mount.topic("orders") / "0" / "append"
        folder = partition(mount, "orders")
        for _ in range(10):
            publish(append, LARGE * 10)
            before, names, after = oldest(mount), os.listdir(folder), oldest(mount)
            assert int(names[0][:20]) >= before
            bounds([name for name in names if int(name[:20]) >= after])  # others may have expired while it was listed
        assert before > 0
        publish(mount.root / "@store" / "control", b'{"delete_topic": "orders"}\n')
        mount.topic("orders")
        assert os.listdir(folder) == []
        publish(append, b"another\n")
        assert bounds(os.listdir(folder)) == (0, 1)

"""The request loop on a real mount: many requests, many who wait, rare ones among frequent ones, and a bug."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mount.daemon import DEFECT
from tests.mount.harness import PATIENCE_S, Mounted, bodies, mounted, publish, refused_with

WRITERS = 64
WRITES_EACH = 20


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A mount with a bug in its core."""
    folder = tmp_path_factory.mktemp("loop")
    (folder / "gate").touch()
    with mounted(folder, gate=folder / "gate") as mount:
        yield mount


def test_thousands_of_requests_in_a_row_are_answered(looped: Mounted) -> None:
    queue = looped.topic("row") / "0"
    fd = os.open(queue / "append", os.O_WRONLY)
    for number in range(3_000):
        os.write(fd, b"%d\n" % number)
    os.close(fd)
    assert bodies(queue) == [b"%d" % number for number in range(3_000)]


def test_more_writers_wait_for_the_disk_than_one_can_count(looped: Mounted) -> None:
    queue = looped.topic("waiting") / "0"

    def write(number: int) -> None:
        fd = os.open(queue / "append", os.O_WRONLY | os.O_DSYNC)
        for line in range(WRITES_EACH):
            os.write(fd, b"%d %d\n" % (number, line))
        os.close(fd)

    run_threads(WRITERS, write)
    lines = [tuple(map(int, body.split())) for body in bodies(queue)]
    for writer in range(WRITERS):
        assert [line for one, line in lines if one == writer] == list(range(WRITES_EACH))
    assert len(lines) == WRITERS * WRITES_EACH


def test_readers_and_waiting_writers_at_once(looped: Mounted) -> None:
    queue = looped.topic("both") / "0"
    publish(queue / "append", b"".join(b"%d\n" % number for number in range(500)))

    def use(number: int) -> None:
        if number % 2:
            fd = os.open(queue / "append", os.O_WRONLY)
            for _ in range(10):
                os.write(fd, b"more\n")
                os.fsync(fd)
            os.close(fd)
        else:
            for offset in range(500):
                assert (queue / str(offset)).read_bytes() == b"%d" % offset

    run_threads(8, use)
    assert len(bodies(queue)) == 540


def run_threads(count: int, use: Any) -> None:
    """Run `use(number)` in so many threads; all have to end well."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            use(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def test_a_bug_in_a_handler_ends_nothing(looped: Mounted) -> None:
    queue = looped.topic("bug") / "0"
    for _ in range(3):
        assert refused_with((looped.root / os.fsdecode(DEFECT)).stat) == 5
        publish(queue / "append", b"on it goes\n")
    assert len(bodies(queue)) == 3


def test_rare_requests_from_everybody_at_once_are_all_answered(looped: Mounted) -> None:
    queue = looped.topic("rare") / "0"
    publish(queue / "append@keys=K", b"one\n")

    def ask(number: int) -> None:
        for again in range(20):
            if number % 3:
                assert b"user.mq.keys" in map(os.fsencode, os.listxattr(queue / "0"))
                assert refused_with(os.getxattr, queue / "0", "user.mq.nothing") == errno.ENODATA
            else:
                assert (queue / "0").read_bytes() == b"one"
                (looped.root / f"made-{number}-{again}").mkdir()

    run_threads(WRITERS, ask)
    made = [name for name in os.listdir(looped.root) if name.startswith("made-")]
    assert len(made) == 20 * len(range(0, WRITERS, 3))


def test_a_mount_that_was_never_used_ends(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        assert mount.stop() == 0

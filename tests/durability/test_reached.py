"""Long runs check their own coverage: `Reached` notices states that never occurred."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from tests.durability.children import Ended, in_child
from tests.durability.faultfs import Rule, faulty_disk
from tests.durability.liveness import Level, level_of, not_alive, not_back
from tests.durability.reached import Reached
from tests.mount.harness import mounted


def test_a_state_that_was_never_reached_is_named() -> None:
    reached = Reached("expiry during a read", "two deaths in a row")
    reached.note("two deaths in a row")
    assert reached.missed() == ["never reached: expiry during a read"]
    reached.note("expiry during a read", 3)
    assert reached.missed() == []
    with pytest.raises(KeyError):
        reached.note("what nobody declared")


def test_a_mount_that_works_is_alive_and_one_that_grew_is_not(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        mount.topic("orders")
        before = level_of(mount.root)
        assert not_alive(mount.root, before) == []
        assert (mount.root / "orders/3/@last").read_text().startswith("alive ")
        begun = os.open(mount.root / "orders/0/append", os.O_WRONLY | os.O_APPEND)
        os.write(begun, b"a line without an end")
        assert not_back(mount.root, before) == ["not back: 21 bytes of messages_begun"]
        os.close(begun)
        smaller = Level(before.private_kib - (1 << 20), before.descriptors - 1_000)
        assert len(not_back(mount.root, smaller)) == 2


def test_a_queue_that_takes_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "backing").mkdir()
    with (
        faulty_disk(tmp_path / "backing", tmp_path / "disk") as disk,
        mounted(tmp_path, store=disk.root / "store") as mount,
    ):
        mount.topic("orders")
        disk.inject(Rule("create", "*/consumequeue/orders/2*", errno.ENOSPC))
        found = not_alive(mount.root, level_of(mount.root))
    assert [text[:24] for text in found] == ["not alive: orders/2: [Er"]


def test_a_child_that_dies_or_hangs_is_told_from_one_that_ends() -> None:
    def die() -> int:
        os.kill(os.getpid(), signal.SIGBUS)
        return 0

    def hang() -> int:
        signal.pause()
        return 0

    def fail() -> int:
        raise ZeroDivisionError

    def say() -> int:
        print("said")
        return 3

    assert in_child(die).death == "dies by SIGBUS"
    assert in_child(hang, 0.2).death == "hangs"
    assert in_child(fail).death == "prints a traceback"
    assert in_child(say) == Ended(3, "said\n", "")

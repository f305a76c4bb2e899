"""Promises 6.*: durability (docs/semantics.md)."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import MessageStore, OpenMode, StoreConfig
from tests.mount.harness import PATIENCE_S, Mounted, bodies, mounted, publish, refused_with, until

FLUSH_WHEN_ASKED = {"interval_ms": 86_400_000, "thorough_interval_ms": 86_400_000}
"""Nothing is on disk before a client waits for it."""


@pytest.fixture(scope="module")
def lazy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A mount whose store flushes only when it is asked to."""
    with mounted(tmp_path_factory.mktemp("lazy"), config={"flush": FLUSH_WHEN_ASKED}) as mount:
        yield mount


def is_durable(mount: Mounted) -> bool:
    """Whether everything published is on disk."""
    stats = mount.status()["stats"]
    return bool(stats["durable_end"] >= stats["physical_end"])


def test_the_daemons_death_costs_nothing(tmp_path: Path) -> None:
    """6.1 Once a write has returned, its messages survive the death of the daemon."""
    with mounted(tmp_path, config={"flush": FLUSH_WHEN_ASKED}) as mount:
        queue = mount.topic("orders") / "0"
        fd = os.open(queue / "append", os.O_WRONLY)
        lines = [b"%d %s\n" % (number, b"x" * (number % 700)) for number in range(5_000)]
        for start in range(0, len(lines), 7):
            os.write(fd, b"".join(lines[start : start + 7]))
        os.write(fd, b"never acknowledged as a message")
        mount.kill()
        assert refused_with(os.close, fd) in (errno.ENOTCONN, errno.ECONNABORTED)
    with mounted(tmp_path) as mount:
        queue = mount.root / "orders" / "0"
        assert bodies(queue) == [line[:-1] for line in lines]
        publish(queue / "append", b"and on\n")
        assert (queue / "@last").read_bytes() == b"and on"
    assert_clean(mount.store)


def assert_clean(store: Path) -> None:
    """The engine finds nothing wrong with a store at rest, and the last writer closed it."""
    with MessageStore.open(store, StoreConfig(mode=OpenMode.READ_ONLY)) as opened:
        assert opened.recovery.clean
        assert list(opened.check()) == []


def test_fsync_waits_for_the_disk(lazy: Mounted) -> None:
    """6.2 `fsync` returns after everything published before it is on disk."""
    queue = lazy.topic("fsynced") / "0"
    publish(queue / "append", b"by another\n")
    fd = os.open(queue / "append", os.O_WRONLY)
    os.write(fd, b"one\ntwo")
    assert not is_durable(lazy)
    os.fsync(fd)
    assert is_durable(lazy)
    os.close(fd)
    assert bodies(queue) == [b"by another", b"one", b"two"]


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC], ids=["O_SYNC", "O_DSYNC"])
def test_synchronous_handles(lazy: Mounted, flag: int) -> None:
    """6.3 A write to an `append` that was opened with O_SYNC or O_DSYNC returns after its messages are on disk."""
    queue = lazy.topic(f"flag-{flag}") / "0"
    fd = os.open(queue / "append", os.O_WRONLY | flag)
    for line in (b"one\n", b"two\nthree\n"):
        os.write(fd, line)
        assert is_durable(lazy)
    os.close(fd)


def test_a_sync_flush_store(tmp_path: Path) -> None:
    """6.4 If the store is mounted with a sync flush, every write returns after its messages are on disk."""
    with mounted(tmp_path, config={"flush": FLUSH_WHEN_ASKED | {"sync": True}}) as mount:
        queue = mount.topic("orders") / "0"
        fd = os.open(queue / "append", os.O_WRONLY)
        for line in (b"one\n", b"two\nthree\n"):
            os.write(fd, line)
            assert is_durable(mount)
        os.write(fd, b"rest")
        os.close(fd)
        assert is_durable(mount)
        assert len(bodies(queue)) == 4


def test_writers_share_flushes(tmp_path: Path) -> None:
    """6.5 Writers that wait for the disk share its flushes."""
    writers = 16
    gate = tmp_path / "gate"
    gate.touch()
    with mounted(tmp_path, gate=gate, config={"flush": FLUSH_WHEN_ASKED}) as mount:
        queue = mount.topic("orders") / "0"
        publish(queue / "append@frame=write", b"so that the log has its first file")
        fds = [os.open(queue / "append", os.O_WRONLY | os.O_DSYNC) for _ in range(writers)]
        before = mount.status()["stats"]["flushes"]
        gate.unlink()
        threads = [threading.Thread(target=os.write, args=(fd, b"line\n")) for fd in fds]
        for thread in threads:
            thread.start()
        until("all have written", lambda: mount.status()["stats"]["put_messages"] > writers)
        gate.touch()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert mount.status()["stats"]["flushes"] - before <= 3
        for fd in fds:
            os.close(fd)


def umount(mount: Mounted) -> None:
    subprocess.run(["fusermount3", "-u", str(mount.root)], check=True)
    assert mount.daemon.wait(PATIENCE_S) == 0


ENDINGS: dict[str, Callable[[Mounted], Any]] = {
    "SIGTERM": lambda mount: mount.stop(signal.SIGTERM),
    "SIGINT": lambda mount: mount.stop(signal.SIGINT),
    "umount": umount,
}


def test_clean_ends(tmp_path: Path) -> None:
    """6.6 SIGTERM, SIGINT and `umount` end the mount cleanly: everything is on disk, and the next mount has nothing
    to recover."""
    for number, (name, end) in enumerate(ENDINGS.items()):
        with mounted(tmp_path, config={"flush": FLUSH_WHEN_ASKED}) as mount:
            queue = (mount.root / "orders" if number else mount.topic("orders")) / "0"
            publish(queue / "append", name.encode() + b"\n")
            end(mount)
            assert mount.daemon.returncode == 0
        assert not (mount.store / "abort").exists()
        assert_clean(mount.store)
    with mounted(tmp_path) as mount:
        assert bodies(mount.root / "orders" / "0") == [name.encode() for name in ENDINGS]


def test_what_is_unpublished_at_the_end(tmp_path: Path) -> None:
    """6.7 When the daemon is asked to end, unpublished data of an open file may be half a message. It is not
    published, and closing the file fails."""
    with mounted(tmp_path) as mount:
        queue = mount.topic("orders") / "0"
        line, file = (os.open(queue / name, os.O_WRONLY) for name in ("append", "append@frame=file"))
        os.write(line, b"whole\nno newline yet")
        os.write(file, b"half a\nfile")
        assert mount.stop() == 0
        for fd in (line, file):
            assert refused_with(os.close, fd) in (errno.ENOTCONN, errno.ECONNABORTED)
    with mounted(tmp_path) as mount:
        assert bodies(mount.root / "orders" / "0") == [b"whole"]

"""A daemon that is killed while it notifies the kernel leaves no process waiting.

The kernel holds a directory's lock while a look-up or a listing in it waits for the daemon. A daemon that asked the
kernel to drop a name there would wait for that lock, could not be killed, and all three would wait for ever. The same
holds for dropping the end of a stream while it is being read.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.daemon import HELD_LISTINGS, HELD_NAME, HELD_STREAMS
from tests.mount.harness import PATIENCE_S, Mounted, mounted, publish, unmount_lazily, until

RETENTION = {"max_bytes": 2 << 20, "clean_interval_ms": 50, "delete_pause_ms": 0}
UNTIL_GONE = """
import os, sys, time
while True:
    try:
        os.stat(sys.argv[1])
    except FileNotFoundError:
        break
    time.sleep(0.02)
"""


@contextmanager
def process(*command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process for calls that may never return; it is asked to end at the end."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        try:
            yield started
        finally:
            started.kill()


@contextmanager
def waiting_in(directory: Path, folder: Path, request: str) -> Iterator[subprocess.Popen[bytes]]:
    """While a look-up or a listing of `directory` waits for the daemon's answer."""
    if request == "listing":
        (folder / HELD_LISTINGS).touch()
    command: list[str | Path] = (
        ["ls", directory] if request == "listing" else ["stat", directory / os.fsdecode(HELD_NAME)]
    )
    with process(*command) as started:
        until("the request has come", (folder / "held").exists)
        yield started


def expire(mount: Mounted, queue: Path) -> None:
    """Have retention remove the queue's first messages."""
    while mount.status()["topics"]["orders"]["queues"]["0"]["min_offset"] < 2:
        publish(queue / "append", b"filler %s\n" % (b"x" * 1_000) * 500)


def delete(mount: Mounted, queue: Path) -> None:
    """Delete the queue's topic."""
    publish(mount.root / "@store" / "control", b'{"delete_topic": "orders"}\n')


@pytest.mark.parametrize("request_kind", ["look-up", "listing"])
@pytest.mark.parametrize("removal", [expire, delete])
def test_nobody_waits_for_a_daemon_killed_after_it_told_what_is_gone(
    tmp_path: Path, removal: Callable[[Mounted, Path], None], request_kind: str
) -> None:
    (tmp_path / "gate").touch()
    with mounted(tmp_path, config={"retention": RETENTION}, gate=tmp_path / "gate") as mount:
        queue = mount.topic("orders") / "0"
        publish(queue / "append", b"one\ntwo\n")
        first = queue / os.listdir(queue)[-1]
        assert first.read_bytes() == b"two"  # the kernel knows its name, for a day
        with waiting_in(queue, tmp_path, request_kind) as waiter:
            removal(mount, queue)
            with process(sys.executable, "-c", UNTIL_GONE, first) as looker:
                assert looker.wait(PATIENCE_S) == 0
            assert waiter.poll() is None
            mount.daemon.kill()
            assert mount.daemon.wait(PATIENCE_S) == -signal.SIGKILL
            assert waiter.wait(PATIENCE_S) not in (0, None)
        unmount_lazily(mount.root)


def test_nobody_waits_for_a_daemon_killed_while_a_stream_that_grew_is_read(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    with mounted(tmp_path, gate=tmp_path / "gate", idle_at_once=True) as mount:
        topic = mount.topic("orders")
        for queue in ("0", "1"):
            publish(topic / queue / "append", b"one\n")
        with (topic / "1.log").open("rb") as other:
            (tmp_path / HELD_STREAMS).touch()
            with process("cat", topic / "0.log") as reader:
                until("the read has come", (tmp_path / "held").exists)
                for queue in ("0", "1"):
                    publish(topic / queue / "append", b"two\n")
                until("the kernel was told of the other stream", lambda: os.fstat(other.fileno()).st_size == 8)
                mount.daemon.kill()
                assert mount.daemon.wait(PATIENCE_S) == -signal.SIGKILL
                assert reader.wait(PATIENCE_S) not in (0, None)
        unmount_lazily(mount.root)

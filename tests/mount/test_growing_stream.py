"""A stream that grows while others look at its size, through the mount that writes it and through one that follows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest

from tests.mount.harness import PATIENCE_S, mounted, until

MESSAGES = 6_000

WRITER = """
import os, sys, time
descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for number in range(0, int(sys.argv[2]), 3):
    lines = b"".join(b"%d %s\\n" % (number + each, b"x" * 100) for each in range(3))
    assert os.write(descriptor, lines) == len(lines)
    time.sleep(0.0005)
os.close(descriptor)
"""

LOOKER = """
import os, sys
while True:
    os.stat(sys.argv[1])
"""


@contextmanager
def program(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program that runs beside the block, and no longer."""
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("mode", ["WRITE", "FOLLOW"])
def test_a_growing_stream_holds_whole_messages_only_while_others_stat_it(tmp_path: Path, mode: str) -> None:
    (tmp_path / "follower").mkdir()
    with mounted(tmp_path) as writer:
        queue = writer.topic("load") / "0"
        if mode == "WRITE":
            read_while_written(writer.root, queue)
        else:
            with mounted(tmp_path / "follower", store=writer.store, config={"mode": "FOLLOW"}) as follower:
                read_while_written(follower.root, queue)


def read_while_written(root: Path, queue: Path) -> None:
    """Read the stream below `root` as fast as it grows: every message comes once, whole, in order."""
    log = root / "load" / "0.log"
    until("the stream is there", log.exists)
    descriptor = os.open(log, os.O_RDONLY)
    try:
        with program(LOOKER, str(log)), program(WRITER, str(queue / "append"), str(MESSAGES)):
            read_messages(descriptor)
    finally:
        os.close(descriptor)


def read_messages(descriptor: int) -> None:
    """Read without a pause, which is when a reader meets the newest message, and check each line."""
    seen = 0
    deadline = time.monotonic() + PATIENCE_S
    while seen < MESSAGES:
        assert time.monotonic() < deadline, f"{seen} messages came of {MESSAGES}"
        data = os.read(descriptor, 1 << 20)
        assert data == b"" or data.endswith(b"\n"), "a read at the end of a stream ends with a message"
        for line in data.splitlines():
            assert line == b"%d %s" % (seen, b"x" * 100)
            seen += 1


READS_UNTIL_SHOWN = 150
"""Some 0.6 s where none takes long; a follower looks every 0.1 s. A turn of the request loop is at most 256
requests."""


def test_a_reader_that_asks_every_few_milliseconds_does_not_keep_the_follower_waiting(tmp_path: Path) -> None:
    (tmp_path / "follower").mkdir()
    with mounted(tmp_path) as writer:
        append = writer.topic("load") / "0" / "append"
        append.write_bytes(b"first\n")
        with mounted(tmp_path / "follower", store=writer.store, config={"mode": "FOLLOW"}) as follower:
            log = follower.root / "load" / "0.log"
            until("the stream is there", log.exists)
            with log.open("rb", buffering=0) as shown:
                until("the follower shows the first", lambda: shown.read() == b"first\n")
                for number in range(5):
                    append.write_bytes(b"%d\n" % number)
                    assert reads_until(shown, b"%d\n" % number) <= READS_UNTIL_SHOWN


def reads_until(file: FileIO, expected: bytes) -> int:
    """How many reads, a few milliseconds apart, it takes until a file has these bytes."""
    reads, deadline = 1, time.monotonic() + PATIENCE_S
    while (data := file.read()) != expected:
        assert data == b""
        assert time.monotonic() < deadline
        time.sleep(0.004)
        reads += 1
    return reads

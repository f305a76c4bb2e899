"""A stream that grows while others look at its size, through the mount that writes it and through one that follows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.harness import mounted, until

MESSAGES = 6_000

WRITER = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for number in range(0, int(sys.argv[2]), 3):
    lines = b"".join(b"%d %s\\n" % (number + each, b"x" * 100) for each in range(3))
    assert os.write(descriptor, lines) == len(lines)
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


@pytest.mark.parametrize("mode", ["write", "follow"])
def test_a_growing_stream_holds_whole_messages_only_while_others_stat_it(tmp_path: Path, mode: str) -> None:
    (tmp_path / "follower").mkdir()
    with mounted(tmp_path) as writer:
        queue = writer.topic("load") / "0"
        if mode == "write":
            read_while_written(writer.root, queue)
        else:
            with mounted(tmp_path / "follower", store=writer.store, config={"mode": "follow"}) as follower:
                read_while_written(follower.root, queue)


def read_while_written(root: Path, queue: Path) -> None:
    """Read the stream below `root` as fast as it grows: every message comes once, whole, in order."""
    log = root / "load" / "0.log"
    until(log.exists)
    descriptor = os.open(log, os.O_RDONLY)
    try:
        with program(LOOKER, str(log)), program(WRITER, str(queue / "append"), str(MESSAGES)):
            following = Following(descriptor)
            until(following.is_complete)
    finally:
        os.close(descriptor)


class Following:
    """Reads on at an open stream, and checks each line."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._messages = 0

    def is_complete(self) -> bool:
        """Read what there is now; whether all messages came."""
        while data := os.read(self._descriptor, 1 << 20):
            assert data.endswith(b"\n"), "a read at the end of a stream ends with a message"
            for line in data.splitlines():
                assert line == b"%d %s" % (self._messages, b"x" * 100)
                self._messages += 1
        return self._messages == MESSAGES

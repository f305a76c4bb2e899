"""An idle stream is served from the page cache. A reader that keeps it open sees each byte that is published later, and
never the zeros that the kernel keeps after the end of a file."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, run

import pytest

from engine import FileSizes, Message, MessageStore, OpenMode, StoreConfig
from tests.engine.storetools import cached_pages
from tests.mount.harness import PATIENCE_S, SMALL_SIZES, Mounted, mounted, publish, until

LINE = b"%08d " + b"x" * 90 + b"\n"
LINE_BYTES = 100
PAGE_BYTES = mmap.PAGESIZE
ROUNDS = 25

PRELUDE = """
import mmap, os, sys
path, lines = sys.argv[1], int(sys.argv[2])
text = b"".join(b"%08d %s\\n" % (number, b"x" * 90) for number in range(lines))

def opened():
    descriptor = os.open(path, os.O_RDONLY)
    print("open", flush=True)
    return descriptor

def check(got, start, size):
    assert got == text[start : start + len(got)], f"{size} bytes: wrong from {start} on: {got!r}"
    assert len(got) >= size - start, f"{size} bytes, but only {len(got)} of them from {start} on"
"""

READ_THE_END = """
descriptor, size = opened(), 0
while size < len(text):
    before, size = size, os.fstat(descriptor).st_size
    assert before <= size <= len(text)
    start = max(size - 5_000, 0)
    check(os.pread(descriptor, 65_536, start), start, size)
"""

READ_ON = """
descriptor, seen = opened(), 0
while seen < len(text):
    got = os.read(descriptor, 65_536)
    check(got, seen, seen)
    seen += len(got)
"""

READ_MAPPED = """
descriptor, size = opened(), 0
while size < len(text):
    before, size = size, os.fstat(descriptor).st_size
    with mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        start = max(before - 5_000, 0)
        check(mapped[start:], start, size)
"""

OPEN_AGAIN = """
os.close(opened())
size = 0
while size < len(text):
    before, size = size, os.stat(path).st_size
    assert before <= size
    with open(path, "rb") as log:
        check(log.read(), 0, size)
"""


def lines(first: int, end: int) -> bytes:
    """The lines that are published as messages [first, end)."""
    return b"".join(LINE % number for number in range(first, end))


@contextmanager
def reader(code: str, log: Path, messages: int) -> Iterator[None]:
    """A program that opens `log`, and reads it beside the block, until it has seen all, and everything right."""
    process = Popen([sys.executable, "-c", PRELUDE + code, str(log), str(messages)], stdout=PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"open\n"
        yield
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def resting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A mount where a stream is idle as soon as its last message is there."""
    with mounted(tmp_path_factory.mktemp("resting"), idle_at_once=True) as mount:
        yield mount


@contextmanager
def stopped(mount: Mounted) -> Iterator[None]:
    """A mount that answers nothing meanwhile."""
    mount.daemon.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        mount.daemon.send_signal(signal.SIGCONT)


def read_elsewhere(descriptor: int, position: int) -> bytes:
    """A page of an open file, read by a program that is killed when it gets no answer."""
    code = f"import os, sys; sys.stdout.buffer.write(os.pread({descriptor}, {PAGE_BYTES}, {position}))"
    done = run([sys.executable, "-c", code], pass_fds=[descriptor], capture_output=True, timeout=PATIENCE_S, check=True)
    return done.stdout


def is_cached(mount: Mounted, descriptor: int, text: bytes) -> bool:
    """Whether most of an open file is cached, and reads as `text` without the mount's doing."""
    pages = cached_pages(descriptor)
    if len(pages) <= len(text) // PAGE_BYTES // 2:
        return False
    position = pages[len(pages) // 2] * PAGE_BYTES
    with stopped(mount):
        return read_elsewhere(descriptor, position) == text[position : position + PAGE_BYTES]


def test_what_was_read_once_is_cached(resting: Mounted) -> None:
    text = lines(0, 20_000)
    publish(resting.topic("again") / "0" / "append", text)
    with (resting.root / "again" / "0.log").open("rb") as log:
        assert log.read() == text
        assert is_cached(resting, log.fileno(), text)


def test_what_was_cached_outlasts_growth(resting: Mounted) -> None:
    queue = resting.topic("outlasts") / "0"
    publish(queue / "append", lines(0, 20_000))
    path = resting.root / "outlasts" / "0.log"
    with path.open("rb") as log:
        assert len(log.read()) == 20_000 * LINE_BYTES
        publish(queue / "append", lines(20_000, 20_001))
        until("the handle shows the message", lambda: os.fstat(log.fileno()).st_size == 20_001 * LINE_BYTES)
        assert is_cached(resting, log.fileno(), lines(0, 20_001))
    assert path.read_bytes() == lines(0, 20_001)


def test_tail_that_began_at_rest_follows(resting: Mounted, tmp_path: Path) -> None:
    append = resting.topic("tailed") / "0" / "append"
    publish(append, lines(0, 50))
    log = resting.root / "tailed" / "0.log"
    with (tmp_path / "out").open("wb") as out:
        tail = Popen(["tail", "-s", "0.05", "-n", "50", "-F", str(log)], stdout=out, stderr=STDOUT)
    try:
        for number in range(50, 53):
            until("tail has seen all", lambda end=number: (tmp_path / "out").read_bytes() == lines(0, end))
            publish(append, lines(number, number + 1))
        until("tail has seen all", lambda: (tmp_path / "out").read_bytes() == lines(0, 53))
    finally:
        tail.kill()
        tail.wait()


@pytest.mark.parametrize("mode", ["WRITE", "FOLLOW"])
def test_all_who_read_while_a_stream_wakes_up_see_the_right_bytes(tmp_path: Path, mode: str) -> None:
    (tmp_path / "follower").mkdir()
    with ExitStack() as mounts:
        writer = mounts.enter_context(mounted(tmp_path, idle_at_once=True))
        queues = [writer.topic(f"load-{number}") / "0" for number in range(2)]
        for queue in queues:
            publish(queue / "append", lines(0, 1))
        shown = writer
        if mode == OpenMode.FOLLOW.name:
            follower = mounted(tmp_path / "follower", store=writer.store, config={"mode": "FOLLOW"}, idle_at_once=True)
            shown = mounts.enter_context(follower)
        logs = [shown.root / queue.parent.name / "0.log" for queue in queues]
        is_exact = shown is writer
        with ExitStack() as readers:
            for log in logs:
                for code in (READ_THE_END, READ_ON, READ_MAPPED, OPEN_AGAIN):
                    readers.enter_context(reader(code, log, ROUNDS))
            for number in range(1, ROUNDS):
                for queue, log in zip(queues, logs, strict=True):
                    publish(queue / "append", lines(number, number + 1))
                    if is_exact:
                        assert log.stat().st_size == (number + 1) * LINE_BYTES
                time.sleep(0.1)


def test_a_name_that_was_listed_a_moment_ago_shows_what_there_is_and_can_be_mapped(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", StoreConfig(sizes=FileSizes(**SMALL_SIZES)), create=True) as store:
        store.put_batch([Message("orders", b"one")] * 3, 0)
    with mounted(tmp_path, idle_at_once=True) as mount:
        log = mount.root / "orders.log"

        def listed_size() -> int:
            return {entry.name: entry.stat().st_size for entry in os.scandir(mount.root)}["orders.log"]

        assert listed_size() == 12
        with log.open("rb") as kept, mmap.mmap(kept.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            assert mapped[:] == kept.read() == b"one\n" * 3
        for number in range(3):
            publish(mount.root / "orders" / "0" / "append", b"more\n")
            assert log.stat().st_size == listed_size() == len(log.read_bytes()) == 12 + 5 * (number + 1)

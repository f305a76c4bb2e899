"""A broker's queue files are long and hold little: a crashed store opens by what can hold entries, not by length."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message, MessageStore, OpenMode
from tests.engine.storetools import SMALL, bodies, cached_pages, killed

QUEUES = 24
FILE_BYTES = 6_000_000


def crashed_broker_store(path: Path) -> list[Path]:
    """A killed store whose queue files are as a broker's: 300,000 entries long, and never written but for the first."""
    with killed(path.with_name("alive"), path) as store:
        store.create_topic("orders", QUEUES)
        for number in range(3 * QUEUES):
            store.put(Message("orders", b"message %d" % number), queue=number % QUEUES)
    for ours in (path / "config" / "sizes.json", path / "checkpoint"):
        ours.unlink(missing_ok=True)
    for ours in (path / "fsstore").glob("*"):
        ours.unlink()
    files = sorted((path / "consumequeue").glob("*/*/0*"))
    for file in files:
        entries = file.read_bytes().rstrip(b"\0")
        with file.open("wb") as made_anew:
            made_anew.write(entries + bytes(-len(entries) % 20))
            made_anew.truncate(FILE_BYTES)
    return files


def forget_cached(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def cached(file: Path) -> int:
    """How many of its pages the kernel holds in memory."""
    with file.open("rb") as opened:
        return len(cached_pages(opened.fileno()))


@pytest.mark.parametrize("mode", [OpenMode.READ_ONLY, OpenMode.FOLLOW])
def test_opening_a_crashed_store_reads_no_page_of_a_queue_that_was_never_written(
    tmp_path: Path, mode: OpenMode
) -> None:
    files = crashed_broker_store(tmp_path / "store")
    assert len(files) == QUEUES
    for file in files:
        forget_cached(file)
    with MessageStore.open(tmp_path / "store", replace(SMALL, sizes=None, mode=mode)) as store:
        while mode is OpenMode.FOLLOW and store.refresh():
            pass
        for queue in range(QUEUES):
            assert bodies(store, "orders", queue) == [b"message %d" % (queue + QUEUES * turn) for turn in range(3)]
        assert max(map(cached, files)) <= 2


def test_queues_that_are_rebuilt_in_memory_hold_no_descriptor(tmp_path: Path) -> None:
    crashed_broker_store(tmp_path / "store")
    before = len(os.listdir("/proc/self/fd"))
    with MessageStore.open(tmp_path / "store", replace(SMALL, sizes=None, mode=OpenMode.READ_ONLY)):
        assert len(os.listdir("/proc/self/fd")) - before < QUEUES // 2

"""A broker's queue files are long and sparse: a crashed store opens by the parts that can hold entries, not by
length."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message, MessageStore, OpenMode, StoreConfig
from tests.engine.storetools import SMALL, SMALL_SIZES, bodies, cached_pages, killed

QUEUES = 24
MANY_QUEUES = 2_000
QUEUES_A_TOPIC = 20
TOPIC = "orders-%d"
FILE_BYTES = 6_000_000
LOG_FILE_BYTES = 256 << 20
PAGE_BYTES = 4096


def crashed_broker_store(path: Path, config: StoreConfig = SMALL, topics: int = 1, queues: int = QUEUES) -> list[Path]:
    """A killed store whose queue files are as a broker's: 300,000 entries long, and never written but for the first.
    Each queue has three messages."""
    with killed(path.with_name("alive"), path, config) as store:
        for topic in range(topics):
            store.create_topic(TOPIC % topic, queues)
        for number in range(3 * topics * queues):
            place = number % (topics * queues)
            store.put(Message(TOPIC % (place // queues), b"message %d" % number), queue=place % queues)
    for ours in (path / "config" / "sizes.json", path / "checkpoint"):
        ours.unlink(missing_ok=True)
    for ours in (path / "fsstore").glob("*"):
        ours.unlink()
    files = sorted((path / "consumequeue").glob("*/*/0*"))
    for file in files:
        make_sparse(file, FILE_BYTES)
    return files


def make_sparse(file: Path, size: int) -> None:
    """Replace a file by one of `size` bytes: its content, and then space that was never written."""
    written = file.read_bytes().rstrip(b"\0")
    with file.open("wb") as made_anew:
        made_anew.write(written + bytes(-len(written) % 20))
        made_anew.truncate(size)


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


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def maps() -> int:
    """How many parts of memory the kernel counts for this process, which may have 65,530."""
    return Path("/proc/self/maps").read_text().count("\n")


@pytest.fixture(scope="module")
def many_queues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A crashed store with thousands of queues."""
    path = tmp_path_factory.mktemp("many") / "store"
    one_log_file = replace(SMALL, sizes=replace(SMALL_SIZES, commit_log_bytes=4 << 20), preallocate=False)
    crashed_broker_store(path, one_log_file, MANY_QUEUES // QUEUES_A_TOPIC, QUEUES_A_TOPIC)
    (log,) = (path / "commitlog").iterdir()
    make_sparse(log, LOG_FILE_BYTES)
    return path


@pytest.mark.parametrize("mode", [OpenMode.READ_ONLY, OpenMode.FOLLOW])
def test_thousands_of_queues_cost_a_page_each_but_no_descriptor_and_no_map(many_queues: Path, mode: OpenMode) -> None:
    files = sorted((many_queues / "consumequeue").glob("*/*/0*"))
    (log,) = (many_queues / "commitlog").iterdir()
    assert len(files) == MANY_QUEUES
    for file in (*files, log):
        forget_cached(file)
    before, maps_before = descriptors(), maps()
    with MessageStore.open(many_queues, replace(SMALL, sizes=None, mode=mode)) as store:
        assert descriptors() - before < 20
        assert maps() - maps_before < MANY_QUEUES // 10
        assert sum(map(cached, files)) <= 2 * MANY_QUEUES
        assert cached(log) * PAGE_BYTES < LOG_FILE_BYTES // 16
        last = store.bounds(TOPIC % (MANY_QUEUES // QUEUES_A_TOPIC - 1), QUEUES_A_TOPIC - 1)
        assert (last.min_offset, last.max_offset) == (0, 3)


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
            assert bodies(store, TOPIC % 0, queue) == [b"message %d" % (queue + QUEUES * turn) for turn in range(3)]
        assert max(map(cached, files)) <= 2


def test_queues_that_are_rebuilt_in_memory_hold_no_descriptor(tmp_path: Path) -> None:
    crashed_broker_store(tmp_path / "store")
    before = len(os.listdir("/proc/self/fd"))
    with MessageStore.open(tmp_path / "store", replace(SMALL, sizes=None, mode=OpenMode.READ_ONLY)):
        assert len(os.listdir("/proc/self/fd")) - before < QUEUES // 2

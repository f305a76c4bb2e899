"""Helpers for tests of stores: small file sizes, a store that is checked when it is closed, and a crash."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from engine import FileSizes, FlushPolicy, MessageStore, OpenMode, Problem, StoreConfig, check_store
from engine.files.disk import Disk

SMALL_SIZES = FileSizes(commit_log_bytes=8192, consume_queue_entries=32, index_slots=17, index_entries=48)
QUIET = FlushPolicy(
    interval_ms=3_600_000,
    thorough_interval_ms=3_600_000,
    consume_queue_interval_ms=3_600_000,
    consume_queue_thorough_interval_ms=3_600_000,
)
"""Nothing is flushed before a test asks for it."""


class HastyDisk(Disk):
    """Waits for no disk: these tests cut no power."""

    def sync(self, descriptor: int, path: Path) -> None:
        """Nothing."""

    def sync_directory(self, path: Path) -> None:
        """Nothing."""

    def sync_filesystem(self, descriptor: int, path: Path) -> bool:
        """Nothing."""
        return True


@contextmanager
def letting_forgeries_in() -> Iterator[None]:
    """Store bodies that we refuse and a broker accepts: they contain records made for their own physical offsets."""
    with patch("engine.log.commit_log.refuse_forged"):
        yield


SMALL = StoreConfig(sizes=SMALL_SIZES, flush=QUIET, disk=HastyDisk())


@contextmanager
def opened(path: Path, config: StoreConfig = SMALL, **changes: Any) -> Iterator[MessageStore]:
    """A store, made where none is to be written, that is checked before and after it is closed."""
    config = replace(config, **changes)
    with MessageStore.open(path, config, create=config.mode is OpenMode.WRITE) as store:
        yield store
        require_clean(store.check())
    require_clean(check_store(path))


@contextmanager
def killed(path: Path, target: Path, config: StoreConfig = SMALL) -> Iterator[MessageStore]:
    """A store whose process dies at the end of the block: its files are copied to `target`."""
    with MessageStore.open(path, config, create=True) as store:
        yield store
        shutil.copytree(path, target)


def require_clean(problems: Iterable[Problem]) -> None:
    """A check that found nothing."""
    found = [str(problem) for problem in problems]
    assert not found, "\n".join(found)


def contents(path: Path) -> dict[str, bytes]:
    """Every file below `path`."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def bodies(store: MessageStore, topic: str, queue: int) -> list[bytes]:
    """All bodies of a queue, in order."""
    return [bytes(message.body) for message in store.read(topic, queue, 0)]


def cached_pages(descriptor: int) -> list[int]:
    """The numbers of the pages of an open file that the kernel has cached: it may drop any of them at any time."""
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
        pages = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
        start = np.frombuffer(mapped, np.uint8).ctypes.data
        failed = libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(pages.ctypes.data))
        assert not failed, os.strerror(ctypes.get_errno())
    found: list[int] = np.flatnonzero(pages & 1).tolist()
    return found


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """No descriptor and no thread more than before; those of earlier tests may go meanwhile."""
    gc.collect()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    yield
    assert len(os.listdir("/proc/self/fd")) <= before
    assert threading.active_count() <= threads


def lose_derived(path: Path) -> None:
    """Lose everything that can be made again from the log."""
    shutil.rmtree(path / "consumequeue")
    shutil.rmtree(path / "index")
    (path / "fsstore" / "coverage.json").unlink()

"""A filesystem over a small store on a disk in memory, which refuses when it is told to."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import pytest

from engine import (
    EMBEDDED_SIZES,
    Expired,
    FileSizes,
    FlushFailedError,
    Message,
    MessageStore,
    OpenMode,
    Retention,
    StoreConfig,
    StoreListener,
)
from engine.read import offset_index
from fsstore.core import Filesystem
from fsstore.fuse.errors import errno_of
from fsstore.interface import (
    AT_END,
    ROOT_INODE,
    Attributes,
    FilesystemOptions,
    MessageColumns,
    Opened,
    SlowWork,
)
from tests.engine.storetools import QUIET, HastyDisk

T = TypeVar("T")

OPTIONS = FilesystemOptions(uid=1234, gid=5678)

FIRST_STORE_TIME_MS = 1_700_000_000_000

ONE_A_FILE = FileSizes(commit_log_bytes=200, consume_queue_entries=64, index_slots=17, index_entries=48)
"""Each message of up to 80 bytes has a log file of its own, so that retention can delete it alone."""

one_a_file = pytest.mark.parametrize("store", [ONE_A_FILE], indirect=True, ids=["one message a file"])
shared_one_a_file = pytest.mark.parametrize("shared", [ONE_A_FILE], indirect=True, ids=["one message a file"])

REPORTS = ("status.json", "config.json", "metrics", "refusals")


class Mount:
    """What a person does with a mounted tree, as calls of the core."""

    def __init__(self, store: MessageStore, options: FilesystemOptions = OPTIONS) -> None:
        self.now_ms = FIRST_STORE_TIME_MS
        self.fs = Filesystem(store, options, clock_ns=lambda: self.now_ms * 1_000_000)

    def stat(self, path: str | bytes) -> Attributes:
        """Look up each name of a path."""
        names = [name for name in os.fsencode(path).split(b"/") if name]
        attributes = self.fs.getattr(ROOT_INODE)
        for name in names:
            attributes = patiently(self.fs.lookup, attributes.inode, name)
        return attributes

    def open(self, path: str | bytes, flags: int = os.O_RDONLY) -> Opened:
        return patiently(self.fs.open, self.stat(path).inode, flags)

    def cat(self, path: str | bytes, request_bytes: int = 1 << 17) -> bytes:
        handle = self.open(path).handle
        text = b""
        while piece := bytes(patiently(self.fs.read, handle, len(text), request_bytes)):
            text += piece
        self.fs.flush(handle)
        self.fs.handles.release(handle)
        return text

    def publish(self, path: str | bytes, *requests: bytes) -> None:
        """Open for writing, one write request each, close."""
        handle = self.open(path, os.O_WRONLY).handle
        try:
            for request in requests:
                patiently(self.fs.write, handle, AT_END, request)
            patiently(self.fs.flush, handle)
        finally:
            patiently(self.fs.handles.release, handle)

    def readlink(self, path: str | bytes) -> str:
        return os.fsdecode(self.fs.readlink(self.stat(path).inode))

    def entries(self, path: str | bytes, limit: int = 7) -> dict[bytes, tuple[int, int]]:
        """Inode and size of each name that a listing shows, in its order."""
        handle = self.fs.opendir(self.stat(path).inode).handle
        shown: dict[bytes, tuple[int, int]] = {}
        position = 0
        while batch := patiently(self.fs.readdir, handle, position, limit):
            if isinstance(batch, list):
                shown |= {name: (attributes.inode, attributes.size) for name, attributes, _ in batch}
                position = batch[-1].next_position
            else:
                assert isinstance(batch, MessageColumns)
                rows = zip(batch.names.tolist(), batch.inodes.tolist(), batch.sizes.tolist(), strict=True)
                shown |= {name: (inode, size) for name, inode, size in rows}
                position = int(batch.next_positions[-1])
        self.fs.handles.release_directory(handle)
        return shown

    def ls(self, path: str | bytes) -> list[str]:
        return [os.fsdecode(name) for name in self.entries(path)]


def patiently(
    request: Callable[..., T], *arguments: object, do: Callable[[Callable[[], object]], object] = lambda work: work()
) -> T:
    """The core's answer, after whatever slow work that takes, which `do` does."""
    done = []  # held until it is answered
    while True:
        try:
            return request(*arguments)
        except SlowWork as slow:
            do(slow.work)
            done.append(slow.with_traceback(None))  # else it and this frame would hold each other


def refused_with(use: Callable[[], object]) -> int | None:
    """The errno that `use` is refused with."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 (whatever it is, its errno counts)
        use()
    return errno_of(raised.value)


class Clock:
    """The time at which messages are stored."""

    now_ms = FIRST_STORE_TIME_MS

    def __call__(self) -> int:
        return self.now_ms


class RefusingDisk(HastyDisk):
    """Refuses space or bytes while a test says so. Space is a hole, which is enough in memory and takes no time."""

    is_full = False
    is_broken = False

    def allocate(self, descriptor: int, path: Path, start: int, size_bytes: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def sync(self, descriptor: int, path: Path) -> None:
        if self.is_broken:
            raise OSError(errno.EIO, "Input/output error", str(path))


def open_small(
    path: Path, mode: OpenMode = OpenMode.WRITE, sizes: FileSizes = EMBEDDED_SIZES, **changes: Any
) -> MessageStore:
    """A store that flushes and prepares nothing by itself, with a RefusingDisk and a Clock."""
    wanted = {"flush": QUIET, "preallocate": False, "clock": Clock(), "disk": RefusingDisk()}
    config = StoreConfig(mode=mode, sizes=sizes, **wanted | changes)  # type: ignore[arg-type]
    return MessageStore.open(path, config, create=mode is OpenMode.WRITE)


def disk_of(store: MessageStore) -> RefusingDisk:
    assert isinstance(store.config.disk, RefusingDisk)
    return store.config.disk


def clock_of(store: MessageStore) -> Clock:
    assert isinstance(store.config.clock, Clock)
    return store.config.clock


class Expiries(StoreListener):
    """Notes what expired."""

    def __init__(self) -> None:
        self.noted: list[Expired] = []

    def expired(self, expired: Expired) -> None:
        self.noted.append(expired)


def expire(store: MessageStore, topic: str, queue: int, new_min: int) -> Expired:
    """Let retention remove the messages before `new_min`, of which each has a log file; what listeners are told."""
    expiries, old = Expiries(), store.bounds(topic, queue)
    unsubscribe = store.subscribe(expiries)
    is_all = new_min == old.max_offset  # but retention keeps the newest file
    kept = store.put(Message("newer", b""), 0) if is_all else store.get(topic, queue, new_min)
    store._require_write_side().cleaner.retention = Retention(
        max_bytes=store.physical_end - kept.physical_offset, delete_pause_ms=0, delete_batch_files=1000
    )
    store.clean()
    unsubscribe()
    assert store.bounds(topic, queue).min_offset == new_min
    gone = [one.physical_offsets for one in expiries.noted if (one.topic, one.queue) == (topic, queue)]
    return Expired(topic, queue, old.min_offset, new_min, np.concatenate([np.empty(0, np.int64), *gone]))


def break_disk(store: MessageStore) -> None:
    """Let a flush fail: nothing is written any more."""
    disk_of(store).is_broken = True
    with pytest.raises(FlushFailedError):
        store.flush()


def damage(store: MessageStore, physical_offset: int) -> None:
    """Overwrite the magic number of a record."""
    position = physical_offset % store.sizes.commit_log_bytes
    with open(store.path / "commitlog" / f"{physical_offset - position:020d}", "r+b") as file:
        file.seek(position + 4)
        file.write(bytes(4))


def set_offsets(store: MessageStore, table: dict[str, dict[str, int]]) -> None:
    """Commit offsets as a broker does: topic@group -> queue -> offset."""
    (store.path / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))


def forget_sums(store: MessageStore, patch: pytest.MonkeyPatch) -> None:
    """Let the sizes of orders/0's messages be unknown, and too many of them to be summed at once."""
    patch.setattr(offset_index, "QUICK_SUM_MESSAGES", 0)
    store.stream("orders", 0)._index._forget_from(0)


@contextmanager
def in_memory() -> Iterator[Path]:
    """A directory on a disk in memory, where there is one."""
    memory = "/dev/shm"
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


@pytest.fixture
def store(folder: Path, request: pytest.FixtureRequest) -> Iterator[MessageStore]:
    """A store whose files have the sizes of the test's parameter, if it has one."""
    store = open_small(folder / "store", sizes=getattr(request, "param", EMBEDDED_SIZES))
    yield store
    with suppress(FlushFailedError):  # a test broke the disk
        store.close()


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Iterator[MessageStore]:
    """As `store`, for all examples of a test."""
    with in_memory() as folder, open_small(folder / "store", sizes=getattr(request, "param", EMBEDDED_SIZES)) as store:
        yield store


@pytest.fixture
def mount(store: MessageStore) -> Mount:
    return Mount(store)

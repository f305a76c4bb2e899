"""A filesystem over a store in memory, and a real one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from engine import MessageStore
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
from tests.fsstore.fakestore import FIRST_STORE_TIME_MS, FakeStore

T = TypeVar("T")

OPTIONS = FilesystemOptions(uid=1234, gid=5678)

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


def patiently(request: Callable[..., T], *arguments: object) -> T:
    """The core's answer, after whatever slow work that takes."""
    done = []  # held until it is answered
    while True:
        try:
            return request(*arguments)
        except SlowWork as slow:
            slow.work()
            done.append(slow)


def refused_with(use: Callable[[], object]) -> int | None:
    """The errno that `use` is refused with."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 (whatever it is, its errno counts)
        use()
    return errno_of(raised.value)


@pytest.fixture
def store(tmp_path: Path) -> FakeStore:
    return FakeStore(tmp_path)


@pytest.fixture
def mount(store: FakeStore) -> Mount:
    return Mount(store.as_store())


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[MessageStore]:
    """A real store, checked at the end."""
    with MessageStore.open(tmp_path / "store", create=True) as store:
        yield store
        assert list(store.check()) == []

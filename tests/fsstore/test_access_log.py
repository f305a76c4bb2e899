"""`@store/accesslog` in the core: who reads, what a slow reader misses, what paths inodes have."""

from __future__ import annotations

import errno
import os
import stat
from typing import cast

import pytest
import trio

from engine import Message, MessageStore
from fsstore.fuse.protocol import Opcode
from fsstore.fuse.request_log import LoggedRequest, RequestLog
from fsstore.fuse.session import Channel, Handler
from fsstore.interface import ROOT_INODE
from fsstore.tree.access_log import BUFFER_BYTES
from fsstore.tree.memory_budget import BUDGET_BYTES
from tests.fsstore.conftest import Mount, refused_with

LOG = "@store/accesslog"
PARQUET_FILE = f"@parquet/topic=orders/queue=0/{0:020d}-{1:020d}.parquet"


def read(mount: Mount, handle: int, size: int = 1 << 30) -> bytes:
    return bytes(mount.fs.read(handle, 0, size))


def test_it_is_its_owners_alone_and_not_to_be_written(mount: Mount) -> None:
    attributes = mount.stat(LOG)
    assert attributes.mode == stat.S_IFREG | 0o400
    assert (attributes.entry_timeout, attributes.attr_timeout) == (0, 0)
    assert refused_with(lambda: mount.open(LOG, os.O_WRONLY)) == errno.EPERM
    assert mount.open(LOG).direct_io


def test_each_reader_has_its_own_lines_from_when_it_opened_it(mount: Mount) -> None:
    log, changes = mount.fs.access_log, []
    log.on_change = lambda: changes.append(log.is_read)
    log.add(b"nobody reads\n")
    first = mount.open(LOG).handle
    log.add(b"one\n")
    second = mount.open(LOG).handle
    log.add(b"two\n")
    assert (read(mount, first), read(mount, second)) == (b"one\ntwo\n", b"two\n")
    assert read(mount, first) == b""
    mount.fs.handles.release(first)
    log.add(b"three\n")
    assert read(mount, second, 3) + read(mount, second, 1) + read(mount, second) == b"three\n"
    mount.fs.handles.release(second)
    assert changes == [True, True, True, False]


def test_a_slow_reader_is_told_how_many_lines_it_missed(mount: Mount) -> None:
    handle, line = mount.open(LOG).handle, b"x" * 1023 + b"\n"
    for _ in range(BUFFER_BYTES // 1024 + 3):
        mount.fs.access_log.add(line)
    assert read(mount, handle) == line * (BUFFER_BYTES // 1024)
    assert read(mount, handle) == b"# 3 lines were dropped: their reader is too slow\n"
    mount.fs.access_log.add(line)
    assert read(mount, handle) == line


def test_what_was_dropped_is_told_where_it_was(mount: Mount) -> None:
    handle = mount.open(LOG).handle
    for _ in range(BUFFER_BYTES // 1024 + 2):
        mount.fs.access_log.add(b"x" * 1023 + b"\n")
    read(mount, handle, 1 << 16)
    mount.fs.access_log.add(b"late\n")
    assert read(mount, handle).endswith(b"x\n# 2 lines were dropped: their reader is too slow\nlate\n")


def test_readers_are_within_the_memory_budget(mount: Mount) -> None:
    handles = [mount.open(LOG).handle for _ in range(3)]
    assert mount.fs.memory.used["reports"] == 3 * BUFFER_BYTES
    for handle in handles:
        mount.fs.handles.release(handle)
    assert mount.fs.memory.used["reports"] == 0
    for _ in range(BUDGET_BYTES // 2 // BUFFER_BYTES):
        mount.open(LOG)
    assert refused_with(lambda: mount.open(LOG)) == errno.ENOBUFS


@pytest.mark.parametrize(
    "path",
    [
        *("orders", "orders/0", "orders/append@tags=a", "orders/0.log", "orders/keys", "orders/keys/K@all"),
        *("@store", "@store/metrics", f"orders/0/{0:020d}"),
        *("@parquet", "@parquet/topic=orders", "@parquet/topic=orders/queue=0", PARQUET_FILE),
    ],
)
def test_an_inode_is_shown_as_its_path(mount: Mount, store: MessageStore, path: str) -> None:
    store.create_topic("orders")
    store.put(Message("orders", b"x", keys=["K"]), 0)
    assert mount.fs.path_of(mount.stat(path).inode) == path


def test_an_inode_without_a_path_is_shown_as_its_number(mount: Mount) -> None:
    assert mount.fs.path_of(999_999) == "inode:999999"
    assert mount.fs.path_of((1 << 62) + 12) == f"inode:{(1 << 62) + 12}"
    assert mount.fs.path_of(ROOT_INODE) == "/"


def test_a_name_can_not_make_a_line_of_its_own() -> None:
    entry = LoggedRequest(
        0.0, 1_700_000_000_123_456_789, 1, 2, 3, Opcode.LOOKUP.name.lower(), "a b\n\x1b[2J\udcff", None, None
    )
    line = entry.line(errno.ENOENT, 0.5)
    assert line == b"2023-11-14T22:13:20.123Z 1 2 3 lookup a\\x20b\\n\\x1b[2J\\udcff - - ENOENT 0.500000\n"


def test_handlers_are_the_plain_ones_while_nobody_reads(mount: Mount) -> None:
    def plain(unique: int, inode: int, request: memoryview) -> None:
        """Answers nothing."""

    handlers: dict[int, Handler] = {Opcode.LOOKUP: plain, Opcode.READ: plain, Opcode.INTERRUPT: plain}

    async def swap() -> None:
        RequestLog(mount.fs, cast(Channel, None), handlers)
        assert set(handlers.values()) == {plain}
        first, second = mount.open(LOG).handle, mount.open(LOG).handle
        assert plain not in handlers.values()
        mount.fs.handles.release(first)
        assert plain not in handlers.values()
        mount.fs.handles.release(second)
        assert set(handlers.values()) == {plain}

    trio.run(swap)

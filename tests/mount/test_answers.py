"""The handlers without a mount: which bodies go into the kernel's cache, and what becomes of an exception."""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pyfuse3
import pytest
import trio

from engine import DamagedRecordError, MessageStore, OpenMode, StoreFullError
from fsstore.core import Filesystem
from fsstore.interface import Attributes, FilesystemError, Opened, SlowWork, WriteOutcome
from fsstore.operations import OpenBodies, StoreOperations

INODE = 77
ATTRIBUTES = Attributes(INODE, 0o100444, 1_000, 1_700_000_000_123_456_789, 1, 12, 34, 1.5, 2.5)


class ScriptedCore:
    """A core whose every method does what `script` says: an exception is raised, anything else is the answer."""

    def __init__(self, *script: object) -> None:
        self._script = list(script)

    def __getattr__(self, _: str) -> Callable[..., object]:
        def method(*arguments: object) -> object:
            outcome = self._script.pop(0) if len(self._script) > 1 else self._script[0]
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return method


class ScriptedStore:
    """A store that fails or finishes whoever waits for its disk."""

    mode = OpenMode.WRITE

    def __init__(self, failure: Exception | None = None) -> None:
        self._failure = failure

    def request_durable(self, _: int, done: Callable[[Exception | None], None]) -> None:
        done(self._failure)


def operations(*script: object, store: ScriptedStore | None = None) -> StoreOperations:
    return StoreOperations(cast(Filesystem, ScriptedCore(*script)), cast(MessageStore, store or ScriptedStore()))


def answer_to(handler: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
    async def ask() -> Any:
        return await handler(*arguments)

    return trio.run(ask)


def errno_of_answer(handler: Callable[..., Awaitable[Any]], *arguments: object) -> int:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        answer_to(handler, *arguments)
    return int(raised.value.errno)


REQUESTS: list[tuple[str, tuple[object, ...]]] = [
    ("lookup", (1, b"name", None)),
    ("getattr", (INODE, None)),
    ("setattr", (INODE, None, None, None, None)),
    ("readlink", (INODE, None)),
    ("statfs", (None,)),
    ("open", (INODE, 0, None)),
    ("read", (1, 0, 10)),
    ("write", (1, 0, b"data")),
    ("flush", (1,)),
    ("fsync", (1, True)),
    ("release", (1,)),
    ("opendir", (INODE, None)),
    ("readdir", (1, 0, None)),
    ("releasedir", (1,)),
    ("fsyncdir", (1, True)),
    ("mkdir", (1, b"name", 0o755, None)),
    ("create", (1, b"name", 0o644, 0, None)),
    ("mknod", (1, b"name", 0o644, 0, None)),
    ("unlink", (1, b"name", None)),
    ("rmdir", (1, b"name", None)),
    ("symlink", (1, b"name", b"target", None)),
    ("rename", (1, b"name", 2, b"name", 0, None)),
    ("link", (INODE, 1, b"name", None)),
    ("getxattr", (INODE, b"user.name", None)),
    ("listxattr", (INODE, None)),
    ("setxattr", (INODE, b"user.name", b"value", None)),
    ("removexattr", (INODE, b"user.name", None)),
]
"""Every handler that asks the core, with arguments as pyfuse3 gives them."""


@pytest.mark.parametrize(("name", "arguments"), REQUESTS, ids=[name for name, _ in REQUESTS])
def test_every_handler_answers_refusals_and_outlives_defects(
    name: str, arguments: tuple[object, ...], caplog: pytest.LogCaptureFixture
) -> None:
    refused = operations(FilesystemError(errno.ESTALE))
    assert errno_of_answer(getattr(refused, name), *arguments) == errno.ESTALE
    assert errno_of_answer(getattr(operations(StoreFullError(Path(), 1)), name), *arguments) == errno.ENOSPC
    assert caplog.records == []
    assert errno_of_answer(getattr(operations(KeyError("a defect")), name), *arguments) == errno.EIO
    assert caplog.records[0].levelno == logging.ERROR
    assert caplog.records[0].exc_info


def test_every_handler_of_pyfuse3_is_there() -> None:
    theirs = {name for name in vars(pyfuse3.Operations) if not name.startswith("_")}
    assert theirs <= set(dir(operations(None)))
    assert {name for name, _ in REQUESTS} == {
        name for name in theirs if name not in {"init", "stacktrace", "forget", "access", "poll"} and name.islower()
    } - {"supports_dot_lookup", "enable_writeback_cache", "enable_acl"}


def test_forget_outlives_everything(caplog: pytest.LogCaptureFixture) -> None:
    for error in (KeyError("a defect"), FilesystemError(errno.ESTALE)):
        answer_to(operations(error).forget, [(INODE, 1)])
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_attributes_are_filled_in() -> None:
    entry = answer_to(operations(ATTRIBUTES).getattr, INODE, None)
    assert (entry.st_ino, entry.st_mode, entry.st_size, entry.st_nlink) == (INODE, 0o100444, 1_000, 1)
    assert (entry.st_uid, entry.st_gid, entry.st_blocks) == (12, 34, 2)
    assert {entry.st_mtime_ns, entry.st_ctime_ns, entry.st_atime_ns} == {1_700_000_000_123_456_789}
    assert (entry.entry_timeout, entry.attr_timeout) == (1.5, 2.5)


def test_slow_work_is_done_before_the_answer() -> None:
    done: list[int] = []
    twice = operations(SlowWork(lambda: done.append(1)), SlowWork(lambda: done.append(2)), ATTRIBUTES)
    assert answer_to(twice.getattr, INODE, None).st_ino == INODE
    assert done == [1, 2]


def test_slow_work_that_fails_is_a_refusal() -> None:
    def fail() -> None:
        raise DamagedRecordError(0, "torn")

    assert errno_of_answer(operations(SlowWork(fail)).getattr, INODE, None) == errno.EIO


def test_a_write_waits_for_the_disk_and_hears_of_its_failure() -> None:
    assert answer_to(operations(WriteOutcome(4, 100)).write, 1, 0, b"data") == 4
    failing = operations(WriteOutcome(4, 100), store=ScriptedStore(StoreFullError(Path(), 1)))
    assert errno_of_answer(failing.write, 1, 0, b"data") == errno.ENOSPC


def test_the_kernel_hears_of_growth_before_the_writer_hears_of_success() -> None:
    order: list[str] = []
    growing = operations(WriteOutcome(4, 0))
    growing.published = lambda: order.append("kernel")
    answer_to(growing.write, 1, 0, b"data")
    order.append("writer")
    assert order == ["kernel", "writer"]


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Inodes whose bodies were put into the kernel's cache."""
    inodes: list[int] = []
    monkeypatch.setattr(pyfuse3, "notify_store", lambda inode, _position, _data: inodes.append(inode))
    return inodes


def test_a_small_body_goes_into_the_kernels_cache_once(pushed: list[int]) -> None:
    cache = OpenBodies()
    for handle in range(3):
        cache.opened(INODE, handle, b"body")
        cache.released(handle)
    assert pushed == [INODE]
    cache.forget(INODE)
    cache.opened(INODE, 9, b"body")
    assert pushed == [INODE, INODE]


def test_no_body_is_pushed_while_another_handle_is_open(pushed: list[int]) -> None:
    cache = OpenBodies()
    cache.opened(INODE, 1, None)
    cache.opened(INODE, 2, b"body")
    cache.released(1)
    cache.opened(INODE, 3, b"body")
    assert pushed == []
    cache.released(2)
    cache.released(3)
    cache.opened(INODE, 4, b"body")
    assert pushed == [INODE]


def test_a_kernel_that_takes_no_body_is_left_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(pyfuse3, "notify_store", refuse)
    opened = operations(Opened(5, False, True, b"body"))
    assert answer_to(opened.open, INODE, 0, None).fh == 5

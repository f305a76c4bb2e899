"""The handlers without a mount: the reply for every answer and exception of the core, and the bodies that are
pushed."""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyfuse3
import pytest
import trio

from engine import DamagedRecordError, MessageStore, OpenMode, StoreFullError
from fsstore.accounts import Accounts
from fsstore.core import Filesystem
from fsstore.fuse import protocol as wire
from fsstore.fuse.handlers import JournaledHandlers, RequestHandlers
from fsstore.fuse.notify import OpenBodies
from fsstore.fuse.protocol import Opcode
from fsstore.fuse.rare import RareOperations
from fsstore.fuse.session import Channel
from fsstore.handover.memory import Handover
from fsstore.handover.requests import RESENT
from fsstore.interface import (
    AT_END,
    WHOLE_WRITE_BYTES,
    Attributes,
    DirectoryEntry,
    FilesystemError,
    FilesystemSpace,
    ListedNames,
    MessageColumns,
    MessageNames,
    Opened,
    OpenedDirectory,
    SlowWork,
)
from fsstore.tree.drop import SetattrRequest

INODE = 77
UNIQUE = 4321
ATTRIBUTES = Attributes(INODE, 0o100444, 1_000, 1_700_000_000_123_456_789, 1, 12, 34, 15, 25)
ATTRIBUTES_REPLIED = (INODE, 1_000, 2, *(1_700_000_000,) * 3, *(123_456_789,) * 3, 0o100444, 1, 12, 34, 0, 4096, 0)
ENTRY = struct.Struct("=QQQQIIQQQQQQIIIIIIIIII")
OK = struct.pack("=IiQ", 16, 0, UNIQUE)


class ScriptedCore:
    """A core whose methods follow `script`: an exception is raised, any other object is the answer."""

    is_no_open = False

    def __init__(self, *script: object) -> None:
        self._script = list(script)
        self.handles = self

    def __getattr__(self, _: str) -> Callable[..., object]:
        def method(*arguments: object, **named: object) -> object:
            outcome = self._script.pop(0) if len(self._script) > 1 else self._script[0]
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return method


class ScriptedStore:
    """A store that fails or finishes all that wait for its disk."""

    mode = OpenMode.WRITE

    def __init__(self, failure: Exception | None = None) -> None:
        self._failure = failure

    def request_durable(self, _: int, done: Callable[[Exception | None], None]) -> None:
        done(self._failure)


class Kernel:
    """The replies that would go to the kernel."""

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        self.pushed: list[int] = []
        self.takes_bodies = True

    def send(self, reply: bytes) -> None:
        self.replies.append(reply)

    def send_with(self, head: bytes, data: bytes) -> None:
        self.replies.append(head + bytes(data))

    send_late = send

    def push(self, inode: int, _: bytes) -> bool:
        self.pushed.append(inode)
        return self.takes_bodies


class Frequent:
    """The handlers of frequent requests, over a scripted core."""

    def __init__(self, *script: object, store: ScriptedStore | None = None) -> None:
        self.kernel = Kernel()
        core, channel = cast(Filesystem, ScriptedCore(*script)), cast(Channel, self.kernel)
        self.handlers = RequestHandlers(core, cast(MessageStore, store or ScriptedStore()), channel)

    def ask(self, opcode: Opcode, arguments: bytes = bytes(40)) -> bytes:
        """The reply to a request."""
        request = struct.pack("=IIQQ16x", 40 + len(arguments), opcode, UNIQUE, INODE) + arguments
        self.handlers.by_opcode[opcode](UNIQUE, INODE, memoryview(request))
        (reply,) = self.kernel.replies or [b""]
        assert not reply or struct.unpack_from("=I", reply)[0] == len(reply)
        return reply


def result_of(reply: bytes) -> bytes:
    """The bytes after the head of a successful reply."""
    assert struct.unpack_from("=iQ", reply, 4) == (0, UNIQUE)
    return reply[16:]


# frequent requests


def test_a_look_up_answers_attributes_and_how_long_they_hold() -> None:
    fields = ENTRY.unpack(result_of(Frequent(ATTRIBUTES).ask(Opcode.LOOKUP, b"name\0")))
    assert fields == (INODE, 0, 15, 25, 0, 0, *ATTRIBUTES_REPLIED)


def test_stat_shows_another_number_than_the_kernel_is_to_ask_with() -> None:
    shown = ATTRIBUTES._replace(shown_inode=88)
    fields = ENTRY.unpack(result_of(Frequent(shown).ask(Opcode.LOOKUP, b"name\0")))
    assert fields == (INODE, 0, 15, 25, 0, 0, 88, *ATTRIBUTES_REPLIED[1:])


def test_getattr_answers_attributes() -> None:
    reply = result_of(Frequent(ATTRIBUTES).ask(Opcode.GETATTR))
    assert struct.unpack("=QIIQQQQQQIIIIIIIIII", reply) == (25, 0, 0, *ATTRIBUTES_REPLIED)


@pytest.mark.parametrize(("flags", "no_flush"), [(os.O_RDONLY, 32), (os.O_WRONLY, 0), (os.O_RDWR | os.O_APPEND, 0)])
def test_only_who_may_write_is_asked_to_flush(flags: int, no_flush: int) -> None:
    reply = Frequent(Opened(5, True, False, None)).ask(Opcode.OPEN, struct.pack("=II", flags, 0))
    assert struct.unpack("=QII", result_of(reply)) == (5, 1 | no_flush, 0)


def test_a_read_answers_the_bytes() -> None:
    assert result_of(Frequent(memoryview(b"the body")).ask(Opcode.READ)) == b"the body"


def test_a_write_answers_how_much_was_taken_and_waits_for_the_disk() -> None:
    arguments = struct.pack("=QQI20x", 5, 0, 4) + b"line"
    for physical_end in (0, 100):
        assert struct.unpack("=II", result_of(Frequent(physical_end).ask(Opcode.WRITE, arguments))) == (4, 0)


@pytest.mark.parametrize(
    ("opcode", "answer", "name", "value"),
    [
        (Opcode.GETXATTR, b"paid", b"user.mq.tags\0", b"paid"),
        (Opcode.LISTXATTR, [b"user.mq.tags", b"user.mq.keys"], b"", b"user.mq.tags\0user.mq.keys\0"),
    ],
)
def test_extended_attributes_are_answered_as_far_as_there_is_room(
    opcode: Opcode, answer: object, name: bytes, value: bytes
) -> None:
    def ask(room: int) -> bytes:
        return Frequent(answer).ask(opcode, struct.pack("=I4x", room) + name)

    assert result_of(ask(0)) == struct.pack("=I4x", len(value))
    assert result_of(ask(len(value))) == value
    assert ask(len(value) - 1) == struct.pack("=IiQ", 16, -errno.ERANGE, UNIQUE)


class NotingCore:
    """A core that records its calls."""

    is_no_open = False

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.takes_positions = False
        self.handles = self
        self.files = {5: self}

    def __getattr__(self, name: str) -> Callable[..., int]:
        def method(*arguments: object) -> int:
            self.asked.append((name, *arguments))
            return 0

        return method


def test_a_writer_is_known_by_its_descriptors_and_o_append_by_each_write() -> None:
    core = NotingCore()
    handlers = RequestHandlers(
        cast(Filesystem, core), cast(MessageStore, ScriptedStore()), cast(Channel, kernel := Kernel())
    )
    for flags in (os.O_WRONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND):
        core.takes_positions = len(kernel.replies) == 2
        request = struct.pack("=IIQQ16xQQIIQI4x", 84, Opcode.WRITE, UNIQUE, INODE, 5, 700, 4, 2, 99, flags) + b"line"
        handlers.write(UNIQUE, INODE, memoryview(request))
    handlers.flush(UNIQUE, INODE, memoryview(struct.pack("=IIQQ16xQ8xQ", 64, Opcode.FLUSH, UNIQUE, INODE, 5, 99)))
    assert [asked[:5] for asked in core.asked] == [
        ("write", 5, 700, b"line", 99),
        ("write", 5, AT_END, b"line", 99),
        ("write", 5, 700, b"line", 99),
        ("flush", 5, 99),
    ]
    assert len(kernel.replies) == 4


class SlowDisk:
    """A store whose disk is never done by itself."""

    mode = OpenMode.WRITE
    physical_end = 200

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Callable[[Exception | None], None]]] = []

    def request_durable(self, physical_end: int, done: Callable[[Exception | None], None]) -> None:
        self.waiting.append((physical_end, done))


class InheritedHandle:
    """A core that was left a handle by another server, which had done the last request of it."""

    is_no_open = False
    accounts = Accounts(0)

    def __init__(self) -> None:
        self.handles = self

    def inherited_files(self) -> list[tuple[int, int]]:
        return []

    def outcome(self, _: int, unique: int) -> int | None:
        return 0 if unique == UNIQUE else None

    def is_synced(self, _: int) -> bool:
        return True


@pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.FSYNC])
@pytest.mark.parametrize("journal_says", [100, None])
def test_what_another_server_did_is_answered_when_it_is_on_disk(opcode: Opcode, journal_says: int | None) -> None:
    memory = Handover.create()
    first = Handover(memory).requests
    first.begin(UNIQUE)
    if journal_says is not None:
        first.done(UNIQUE, journal_says)
    store, kernel, resent = SlowDisk(), Kernel(), UNIQUE | RESENT
    handlers = JournaledHandlers(
        cast(Filesystem, InheritedHandle()), cast(MessageStore, store), cast(Channel, kernel), Handover(memory).requests
    )
    os.close(memory)
    request = struct.pack("=IIQQ16xQQI20x", 84, opcode, resent, INODE, 5, 0, 4) + b"line"
    handlers.by_opcode[opcode](resent, INODE, memoryview(request))
    ((physical_end, on_disk),) = store.waiting
    assert (physical_end, kernel.replies) == (journal_says or store.physical_end, [])
    on_disk(None)
    (reply,) = kernel.replies
    assert struct.unpack_from("=iQ", reply, 4) == (0, resent)


@pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.FLUSH, Opcode.FSYNC, Opcode.FSYNCDIR])
def test_who_waits_for_the_disk_hears_of_its_failure(opcode: Opcode) -> None:
    failing = Frequent(100, store=ScriptedStore(StoreFullError(Path(), 1)))
    assert failing.ask(opcode) == struct.pack("=IiQ", 16, -errno.ENOSPC, UNIQUE)


def test_the_kernel_hears_of_growth_before_the_writer_hears_of_success() -> None:
    growing = Frequent(0)
    growing.handlers.published = lambda: growing.kernel.send(b"")
    with pytest.raises(ValueError, match="too many"):
        growing.ask(Opcode.WRITE)
    assert [bool(sent) for sent in growing.kernel.replies] == [False, True]


def test_a_store_that_nobody_writes_asks_for_no_flush() -> None:
    store = ScriptedStore()
    store.mode = OpenMode.READ_ONLY
    assert Frequent(None, store=store).ask(Opcode.FLUSH) == struct.pack("=IiQ", 16, -errno.ENOSYS, UNIQUE)


def test_forgetting_is_never_answered() -> None:
    assert Frequent(None).ask(Opcode.FORGET) == b""
    two = struct.pack("=IIQQQQ", 2, 0, INODE, 1, INODE + 1, 3)
    assert Frequent(None).ask(Opcode.BATCH_FORGET, two) == b""


@pytest.mark.parametrize(
    ("uses_cache", "keep_cache", "flags"), [(False, False, 0), (True, False, 8), (True, True, 8 | 2), (False, True, 2)]
)
def test_opendir_says_what_of_the_kernels_cache_is_right(uses_cache: bool, keep_cache: bool, flags: int) -> None:
    reply = Frequent(OpenedDirectory(5, uses_cache, keep_cache)).ask(Opcode.OPENDIR)
    assert struct.unpack("=QII", result_of(reply)) == (5, flags, 0)


NAMES = [
    DirectoryEntry(name, ATTRIBUTES, position) for position, name in enumerate([b"a", b"eight---", b"ninebytes"], 1)
]


def listing_request(position: int, room: int) -> bytes:
    return struct.pack("=QQIIQII", 1, position, room, 0, 0, 0, 0)


COLUMNS = ListedNames([name for name, _, _ in NAMES], np.full(3, INODE), np.full(3, 0o100444), np.arange(1, 4))


@pytest.mark.parametrize("names", [NAMES, COLUMNS], ids=["one by one", "columns"])
@pytest.mark.parametrize(("room", "shown"), [(4096, 3), (3 * 24 + 8 + 8 + 16, 3), (3 * 24 + 8 + 8 + 15, 2), (24, 0)])
def test_names_are_listed_as_far_as_they_fit(names: list[DirectoryEntry] | ListedNames, room: int, shown: int) -> None:
    reply = result_of(Frequent(names, []).ask(Opcode.READDIR, listing_request(0, room)))
    expected = b""
    for name, _, position in NAMES[:shown]:
        expected += struct.pack("=QQII", INODE, position, len(name), 8) + name + bytes(-len(name) % 8)
    assert reply == expected


def test_a_listing_with_attributes_answers_a_look_up_of_each_name() -> None:
    reply = result_of(Frequent(NAMES, None, None, None, []).ask(Opcode.READDIRPLUS, listing_request(0, 4096)))
    assert ENTRY.unpack_from(reply) == (INODE, 0, 15, 25, 0, 0, *ATTRIBUTES_REPLIED)
    assert reply[128:160] == struct.pack("=QQII", INODE, 1, 1, 8) + b"a" + bytes(7)


def message_columns(count: int) -> MessageColumns:
    numbers = np.arange(count, dtype=np.int64)
    names = np.array([b"%020d" % number for number in range(count)], "S20")
    readable = numbers != 1
    template = ATTRIBUTES._replace(inode=0, size=0, mtime_ns=0)
    return MessageColumns(
        names, numbers + 100, numbers * 1_000, numbers * 1_500_000_000, readable, numbers + 2, template
    )


@pytest.mark.parametrize(("opcode", "row_bytes"), [(Opcode.READDIR, 48), (Opcode.READDIRPLUS, 176)])
def test_messages_are_listed_as_other_files_are(opcode: Opcode, row_bytes: int) -> None:
    columns = message_columns(5)
    names = MessageNames(columns.names, columns.inodes, columns.next_positions, columns.template)
    batch = columns if opcode is Opcode.READDIRPLUS else names
    reply = result_of(Frequent(batch, []).ask(opcode, listing_request(1, 3 * row_bytes + 47)))
    entries = []
    for row in range(3):
        known = (15, 25) if columns.readable[row] else (0, 0)
        attributes = Attributes(100 + row, 0o100444, 1_000 * row, 1_500_000_000 * row, 1, 12, 34, *known)
        entries.append(DirectoryEntry(b"%020d" % row, attributes, row + 2))
    told = [None] * 3 if opcode is Opcode.READDIRPLUS else []  # the core's answers to `listed`
    assert reply == result_of(Frequent(entries, *told, []).ask(opcode, listing_request(1, 4096)))


RENAMED = {Opcode.RENAME: 8, Opcode.RENAME2: 16}
"""Bytes of arguments before the two names."""


@pytest.mark.parametrize("opcode", sorted(set(Opcode) - {Opcode.INIT, Opcode.INTERRUPT, Opcode.IOCTL}))
def test_every_frequent_request_has_a_handler_that_leaves_refusals_to_the_loop(opcode: Opcode) -> None:
    for error in (FilesystemError(errno.ESTALE), KeyError("a defect"), SlowWork(lambda: None)):
        asked = Frequent(error)
        arguments = struct.pack("=QQIIQII", 1, 0, 4096, 0, 0, 0, 0) + bytes(48)
        if opcode in RENAMED:
            arguments = arguments[: RENAMED[opcode]] + b"old\0new\0"
        with pytest.raises(type(error)):
            asked.ask(opcode, arguments)
        assert asked.kernel.replies == []


# rare requests


def answer_to(handler: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
    async def ask() -> Any:
        return await handler(*arguments)

    return trio.run(ask)


def errno_of_answer(handler: Callable[..., Awaitable[Any]], *arguments: object) -> int:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        answer_to(handler, *arguments)
    return int(raised.value.errno)


def rare(*script: object) -> RareOperations:
    return RareOperations(cast(Filesystem, ScriptedCore(*script)))


RARE: list[tuple[str, tuple[object, ...]]] = [
    ("statfs", (None,)),
    ("mknod", (1, b"name", 0o644, 0, None)),
    ("symlink", (1, b"name", b"target", None)),
    ("link", (INODE, 1, b"name", None)),
    ("setxattr", (INODE, b"user.name", b"value", None)),
    ("removexattr", (INODE, b"user.name", None)),
]
"""Every handler of pyfuse3's that asks the core, with arguments as pyfuse3 gives them."""


@pytest.mark.parametrize(("name", "arguments"), RARE, ids=[name for name, _ in RARE])
def test_every_rare_request_answers_refusals_and_outlives_defects(
    name: str, arguments: tuple[object, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert errno_of_answer(getattr(rare(FilesystemError(errno.ESTALE)), name), *arguments) == errno.ESTALE
    assert errno_of_answer(getattr(rare(StoreFullError(Path(), 1)), name), *arguments) == errno.ENOSPC
    assert [record.levelno for record in caplog.records] == [logging.WARNING]  # a full disk, and the remedy
    assert errno_of_answer(getattr(rare(KeyError("a defect")), name), *arguments) == errno.EIO
    assert caplog.records[1].levelno == logging.ERROR
    assert caplog.records[1].exc_info


def test_every_request_of_pyfuse3_is_answered_here_or_there() -> None:
    frequent = {"lookup", "forget", "getattr", "readlink", "open", "read", "write", "flush", "fsync", "release"}
    frequent |= {
        "mkdir",
        "opendir",
        "readdir",
        "releasedir",
        "fsyncdir",
        "setattr",
        "create",
        "unlink",
        "rmdir",
        "rename",
        "getxattr",
        "listxattr",
    }
    unasked = {"init", "stacktrace", "access", "supports_dot_lookup", "enable_writeback_cache", "enable_acl"}
    theirs = {name for name in vars(pyfuse3.Operations) if not name.startswith("_")} - unasked
    assert theirs - {"poll"} == frequent | {name for name, _ in RARE}


@pytest.mark.parametrize(
    ("valid", "size", "handle", "wanted"),
    [
        (wire.SET_SIZE | wire.SET_BY_HANDLE, 700, 5, SetattrRequest()),
        (wire.SET_SIZE, 700, None, SetattrRequest()),
        (wire.SET_BY_HANDLE | wire.SET_MODE | wire.SET_GID, None, 5, SetattrRequest(mode=0o600, gid=34)),
        (
            wire.SET_ATIME | wire.SET_MTIME | wire.SET_UID,
            None,
            None,
            SetattrRequest(None, 12, None, 7_000_000_001, 8_000_000_002),
        ),
    ],
)
def test_what_is_set_is_what_is_given(valid: int, size: int | None, handle: int | None, wanted: SetattrRequest) -> None:
    core = NotingCore()
    handlers = RequestHandlers(cast(Filesystem, core), cast(MessageStore, ScriptedStore()), cast(Channel, Kernel()))
    values = struct.pack("=IIQQQQQQIIIIIIII", valid, 0, 5, 700, 0, 7, 8, 9, 1, 2, 3, 0o600, 0, 12, 34, 0)
    request = struct.pack("=IIQQ16x", 128, Opcode.SETATTR, UNIQUE, INODE) + values
    with pytest.raises(TypeError):  # such a core has no attributes to answer
        handlers.setattr(UNIQUE, INODE, memoryview(request))
    assert core.asked == [("setattr", INODE, size, handle, wanted)]


def test_now_is_the_time_of_the_request() -> None:
    core = NotingCore()
    handlers = RequestHandlers(cast(Filesystem, core), cast(MessageStore, ScriptedStore()), cast(Channel, Kernel()))
    request = struct.pack("=IIQQ16xI84x", 128, Opcode.SETATTR, UNIQUE, INODE, wire.SET_MTIME | wire.SET_MTIME_NOW)
    before_ns = time.time_ns()
    with pytest.raises(TypeError):
        handlers.setattr(UNIQUE, INODE, memoryview(request))
    assert before_ns <= core.asked[0][4].mtime_ns <= time.time_ns()


def test_a_file_that_is_made_is_described_and_open() -> None:
    made = (ATTRIBUTES, Opened(9, False, False, None))
    reply = result_of(Frequent(made).ask(Opcode.CREATE, struct.pack("=IIII", os.O_WRONLY, 0o644, 0, 0) + b"name\0"))
    assert ENTRY.unpack_from(reply) == (INODE, 0, 15, 25, 0, 0, *ATTRIBUTES_REPLIED)
    assert struct.unpack_from("=QII", reply, ENTRY.size) == (9, 0, 0)


def test_slow_work_is_done_before_the_answer() -> None:
    done: list[int] = []
    space = FilesystemSpace(4096, 1, 1, 1, 1, 1, 255)
    twice = rare(SlowWork(lambda: done.append(1)), SlowWork(lambda: done.append(2)), space)
    assert answer_to(twice.statfs, None).f_namemax == 255
    assert done == [1, 2]


def test_slow_work_that_fails_is_a_refusal() -> None:
    def fail() -> None:
        raise DamagedRecordError(0, "torn")

    assert errno_of_answer(rare(SlowWork(fail)).statfs, None) == errno.EIO


# bodies in the kernel's cache


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def test_a_small_body_goes_into_the_kernels_cache_once(kernel: Kernel) -> None:
    cache = OpenBodies(kernel.push)
    for handle in range(3):
        cache.opened(INODE, handle, b"body")
        cache.released(handle)
    assert kernel.pushed == [INODE]
    cache.forget(INODE)
    cache.opened(INODE, 9, b"body")
    assert kernel.pushed == [INODE, INODE]


def test_no_body_is_pushed_while_another_handle_is_open(kernel: Kernel) -> None:
    cache = OpenBodies(kernel.push)
    cache.opened(INODE, 1, None)
    cache.opened(INODE, 2, b"body")
    cache.released(1)
    cache.opened(INODE, 3, b"body")
    assert kernel.pushed == []
    cache.released(2)
    cache.released(3)
    cache.opened(INODE, 4, b"body")
    assert kernel.pushed == [INODE]


def test_a_body_that_the_kernel_would_not_have_is_offered_again(kernel: Kernel) -> None:
    kernel.takes_bodies = False
    cache = OpenBodies(kernel.push)
    for handle in range(2):
        cache.opened(INODE, handle, b"body")
        cache.released(handle)
    assert kernel.pushed == [INODE, INODE]


# fields that both sides agreed on


@pytest.mark.parametrize("page_bytes", [4096, 1 << 14, 1 << 16])
@pytest.mark.parametrize("pages", [32, 256, 0xFFFF])
def test_no_request_is_larger_than_our_buffer_and_none_is_split_that_need_not_be(page_bytes: int, pages: int) -> None:
    layout = struct.Struct("=IiQIIIIHHIIHHI28x")
    flags = 1 << 22 | 1 << 12
    answer = (80, 0, UNIQUE, 7, 31, 1 << 17, flags, 12, 9, pages * page_bytes, 1, pages, 3, 5)
    changed = layout.unpack(wire.serving_as_wanted(layout.pack(*answer), page_bytes))
    assert changed[:6] == answer[:6]
    assert changed[7:9] == answer[7:9]
    assert (changed[10], *changed[12:]) == (1, 3, 5)
    assert changed[6] & flags == 1 << 22
    write_bytes, most_pages = changed[9], changed[11]
    assert write_bytes + 80 <= wire.LARGEST_REQUEST_BYTES
    if pages * page_bytes > WHOLE_WRITE_BYTES:
        assert write_bytes >= WHOLE_WRITE_BYTES
        assert (most_pages - 1) * page_bytes >= WHOLE_WRITE_BYTES
    assert most_pages <= pages


def test_a_channel_never_waits_for_a_request_that_was_taken_back(tmp_path: Path) -> None:
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with kernel:
        channel = Channel(ours.detach(), tmp_path)
        for request in (b"one", b"two"):
            kernel.send(request)
            received = channel.receive()
            assert received is not None
            assert bytes(received) == request
            assert channel.receive() is None
            assert channel.is_mounted
        channel.is_mounted = False  # nothing was mounted here that `close` could unmount
        channel.close()

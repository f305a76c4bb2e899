"""Promises 5.*: refused calls and their errnos (docs/semantics.md)."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from tests.mount.daemon import DEFECT
from tests.mount.harness import Mounted, bodies, mounted, publish, refused_with, small_disk

LIMIT_BYTES = 4 << 20
WHOLE_WRITE_BYTES = 1_044_480


def attempts(topic: Path) -> dict[str, Callable[[], object]]:
    """Everything that changes a tree, tried on a topic that has a message at 0/0."""
    message = topic / "0" / "0"
    return {
        "create": lambda: os.open(topic / "0" / "new", os.O_WRONLY | os.O_CREAT),
        "create an offset": lambda: os.open(topic / "0" / f"{7:020d}", os.O_WRONLY | os.O_CREAT),
        "make a fifo": lambda: os.mkfifo(topic / "fifo"),
        "make a folder": (topic / "0" / "folder").mkdir,
        "unlink": message.unlink,
        "unlink append": (topic / "append").unlink,
        "rmdir": (topic / "0").rmdir,
        "rename": lambda: message.rename(topic / "0" / "1"),
        "rename a topic": lambda: topic.rename(topic.with_name("renamed")),
        "link": lambda: os.link(message, topic / "0" / "link"),
        "symlink": lambda: (topic / "0" / "link").symlink_to("0"),
        "write": lambda: os.open(message, os.O_WRONLY),
        "append to a message": lambda: os.open(message, os.O_RDWR | os.O_APPEND),
        "write to a stream": lambda: os.open(topic / "0.log", os.O_WRONLY),
        "truncate": lambda: os.truncate(message, 0),
        "truncate while reading": lambda: os.open(message, os.O_RDONLY | os.O_TRUNC),
        "truncate a stream": lambda: os.open(topic / "0.log", os.O_RDONLY | os.O_TRUNC),
        "truncate a report": lambda: os.open(topic.parent / "@store" / "status.json", os.O_RDONLY | os.O_TRUNC),
        "truncate a Parquet file": lambda: os.open(parquet_file(topic), os.O_RDONLY | os.O_TRUNC),
        "chmod": lambda: message.chmod(0o600),
        "touch": lambda: os.utime(message),
        "set an attribute": lambda: os.setxattr(message, "user.mq.tags", b"x"),
        "remove an attribute": lambda: os.removexattr(message, "user.mq.store_time"),
    }


def parquet_file(topic: Path) -> Path:
    """The first Parquet file of a topic's first queue."""
    folder = topic.parent / "@parquet" / f"topic={topic.name}" / "queue=0"
    return folder / min(os.listdir(folder))


def test_changes_are_refused(topic: Path) -> None:
    """5.1 EPERM: creating, removing or renaming anything outside `drop` (10), linking, and writing to a message or
    changing it. So is O_TRUNC of anything but `append`, even when opened for reading."""
    publish(topic / "0" / "append", b"one\n")
    refused = {what: errno.errorcode[refused_with(change)] for what, change in attempts(topic).items()}
    assert refused == dict.fromkeys(refused, "EPERM")
    assert bodies(topic / "0") == [b"one"]


def test_a_read_only_mount(tmp_path: Path) -> None:
    """5.2 On a read-only mount these calls, and publishing, are EROFS."""
    with mounted(tmp_path) as mount:
        publish(mount.topic("orders") / "0" / "append", b"one\n")
    before = everything_below(mount.store)
    with mounted(tmp_path, config={"mode": "READ_ONLY"}) as mount:
        topic = mount.root / "orders"
        changes = attempts(topic) | {
            "publish": lambda: publish(topic / "append", b"two\n"),
            "publish a file": lambda: publish(topic / "append@frame=file", b"two\n"),
            "make a topic": (mount.root / "new").mkdir,
            "make a queue": (topic / "9").mkdir,
            "touch append": lambda: os.utime(topic / "append"),
        }
        refused = {what: errno.errorcode[refused_with(change)] for what, change in changes.items()}
        assert refused == dict.fromkeys(refused, "EROFS")
        assert bodies(topic / "0") == [b"one"]
        assert (topic / "0.log").read_bytes() == b"one\n"
    assert everything_below(mount.store) == before


def everything_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_unknown_options(topic: Path) -> None:
    """5.3 An `append@…` with an unknown option is ENOENT."""
    for name in (
        "append@colour=red",
        "append@frame=page",
        "append@",
        "append@keys=",
        "append@keys=a%00",
        "append@tags=a,tags=b",
        "append2",
    ):
        for folder in (topic, topic / "0"):
            assert refused_with(os.open, folder / name, os.O_WRONLY) == errno.ENOENT
            expected = errno.EPERM if name == "append2" else errno.ENOENT
            assert refused_with(os.open, folder / name, os.O_WRONLY | os.O_CREAT) == expected


def test_names_that_no_topic_can_have(mount: Mounted, topic: Path) -> None:
    """5.4 `mkdir` is EINVAL for an invalid topic name, for an unknown option, and for a queue that is not a plain
    decimal number below 1,024 (`@store/refusals` says why)."""
    for name in ("@mine", "a b", "semi;colon"):
        assert refused_with((mount.root / name).mkdir) == errno.EINVAL
    for name in ("1024", "07", "x", "-1", "9.log"):
        assert refused_with((topic / name).mkdir) == errno.EINVAL
    for name, reason in (
        ("wide@queues=0", "0 queues asked for, but a topic has 1 to 1024"),
        ("wide@queues=1025", "1025 queues asked for, but a topic has 1 to 1024"),
        ("wide@queues=many", "option queues can't be 'many': it is a number"),
        ("wide@width=1", "there is no option 'width=1': there is queues=NUMBER"),
        ("wide@", "there is no option '': there is queues=NUMBER"),
    ):
        assert refused_with((mount.root / name).mkdir) == errno.EINVAL
        assert reason in (mount.root / "@store/refusals").read_text().splitlines()[-1]


def test_a_line_over_the_limit(queue: Path) -> None:
    """5.5 A line, or a file of `frame=file`, over the message limit is EFBIG. So is every later write to that open
    file until it is closed. No part of it is published."""
    fd = os.open(queue / "append", os.O_WRONLY)
    os.write(fd, b"short\n")
    part = b"x" * (1 << 20)
    for _ in range(LIMIT_BYTES // len(part)):
        assert os.write(fd, part) == len(part)
    for request in (b"one more\n", b"and a short one\n"):
        assert refused_with(os.write, fd, request) == errno.EFBIG
    assert refused_with(os.close, fd) == errno.EFBIG
    too_long: tuple[Callable[[int], object], ...] = (
        lambda fd: os.pwrite(fd, b"x", LIMIT_BYTES),
        lambda fd: os.ftruncate(fd, LIMIT_BYTES + 1),
    )
    for make_too_long in too_long:
        fd = os.open(queue / "append@frame=file", os.O_WRONLY)
        os.write(fd, b"part")
        assert refused_with(make_too_long, fd) == errno.EFBIG
        assert refused_with(os.pwrite, fd, b"x", 0) == errno.EFBIG
        assert refused_with(os.ftruncate, fd, 2) == errno.EFBIG
        assert refused_with(os.close, fd) == errno.EFBIG
    publish(queue / "append", b"fine again\n", b"x" * WHOLE_WRITE_BYTES, b"\n")
    assert [len(body) for body in bodies(queue)] == [5, 10, WHOLE_WRITE_BYTES]


def test_a_write_that_could_have_been_split(queue: Path) -> None:
    """5.6 A write to `append@frame=write` is EFBIG if it is so long that the kernel may have split it."""
    fd = os.open(queue / "append@frame=write", os.O_WRONLY)
    assert os.write(fd, b"x" * WHOLE_WRITE_BYTES) == WHOLE_WRITE_BYTES
    assert refused_with(os.write, fd, b"x" * (1 << 20)) == errno.EFBIG
    assert os.write(fd, b"y") == 1
    os.close(fd)
    assert [len(body) for body in bodies(queue)] == [WHOLE_WRITE_BYTES, 1]


UNWRITABLE = [
    b'{"body": "a", ' + field + b"}"
    for field in (
        rb'"keys": "K\u0000"',
        rb'"keys": ["K", "\u0001"]',
        rb'"tags": "\u0000"',
        rb'"properties": {"n\u0000": "v"}',
        rb'"properties": {"n": "\u0002"}',
        rb'"properties": {"n": "\ud800"}',
        rb'"properties": {"DELAY": "soon"}',
        b'"properties": {"DELAY": "' + b"1" * 5_000 + b'"}',
    )
]
"""Messages that no record can hold, or that ask for unsupported features."""


def record_behind(body_start: int, padding: int) -> bytes:
    """A body, to stand at that physical offset, in which a record begins behind some padding."""
    return b"x" * padding + struct.pack(">iIiiiqq", 91, 0xDAA320A7, 0, 0, 0, 1, body_start + padding)


def test_a_malformed_record(queue: Path) -> None:
    """5.7 A malformed record is EINVAL (`@store/refusals` says why), and later records in the same open file are
    accepted. EINVAL as well are a NUL (or the characters 1 and 2) in a key, tag or property, a `DELAY` that is not a
    level, and a body that contains a record made for the very place in the log where it would be stored."""
    fd = os.open(queue / "append@format=json", os.O_WRONLY)
    for malformed in (b"{", b"[]", b'{"keys": "K"}', b'{"body": "a", "colour": 1}', b'{"body": 1}', *UNWRITABLE):
        assert refused_with(os.write, fd, b'{"body": "good"}\n' + malformed + b"\n") == errno.EINVAL
    os.write(fd, b'{"body": "fine"}\n')
    os.close(fd)
    assert bodies(queue) == [b"fine"]
    end = json.loads((queue.parent.parent / "@store" / "status.json").read_text())["stats"]["physical_end"]
    forged = next(made for made in map(partial(record_behind, end + 88), range(9)) if b"\n" not in made)
    for framing, text in (("line", forged + b"\n"), ("write", forged)):
        with (queue / f"append@frame={framing}").open("ab", buffering=0) as file:
            assert refused_with(file.write, text) == errno.EINVAL
    file = (queue / "append@frame=file").open("ab", buffering=0)
    file.write(forged)
    assert refused_with(file.close) == errno.EINVAL
    body = base64.b64encode(forged).decode()
    with (queue / "append@format=json").open("ab", buffering=0) as file:
        assert refused_with(file.write, b'{"body_base64":"%s"}\n' % body.encode()) == errno.EINVAL
        file.write(b'{"body":"next"}\n')
    assert bodies(queue) == [b"fine", b"next"]


def test_a_full_disk(tmp_path: Path) -> None:
    """5.8 A full disk is ENOSPC. Nothing of that write is published, and publishing goes on when there is space
    again."""
    lines = [b"%07d %s\n" % (number, b"x" * 500) for number in range(100_000)]
    taken = 0
    with small_disk(tmp_path / "disk", 12 << 20) as disk, mounted(tmp_path, store=disk / "store") as mount:
        queue = mount.topic("orders") / "0"
        (disk / "ballast").write_bytes(b"x" * (3 << 20))
        fd = os.open(queue / "append", os.O_WRONLY)
        for round_number in range(2):
            try:
                while True:
                    os.write(fd, b"".join(lines[taken : taken + 50]))
                    taken += 50
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 (a loop ends in it)
            if round_number == 0:
                assert taken > 0
                (disk / "ballast").unlink()
                os.write(fd, b"".join(lines[taken : taken + 50]))
                taken += 50
        os.close(fd)
        assert (queue.parent / "0.log").read_bytes() == b"".join(lines[:taken])


def test_space_in_steps(tmp_path: Path) -> None:
    """5.18 A queue's file takes disk space in steps, each before a message needs it; a queue of a few messages takes
    4 KiB. If the disk has no space for a step, that write is refused as in 5.8. Queues that need no step go on."""
    config = {"preallocate": False}  # nothing takes space meanwhile
    with (
        small_disk(tmp_path / "disk", 24 << 20) as disk,
        mounted(tmp_path, store=disk / "store", config=config) as mount,
    ):
        mount.topic("orders@queues=100")
        topic = mount.root / "orders"
        publish(topic / "0" / "append", b"first\n")
        (file,) = (disk / "store" / "consumequeue" / "orders" / "0").iterdir()
        assert file.stat().st_blocks * 512 == 4096
        with (disk / "ballast").open("wb") as ballast:
            free = os.statvfs(disk)
            os.posix_fallocate(ballast.fileno(), 0, free.f_bavail * free.f_frsize - (200 << 10))
        refused = []
        for queue in range(1, 100):
            try:
                publish(topic / str(queue) / "append", b"first\n")
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 (most end in it)
                refused.append(queue)
        assert 20 < len(refused) < 80
        publish(topic / "0" / "append", b"second\n")
        (disk / "ballast").unlink()
        for queue in refused:
            publish(topic / str(queue) / "append", b"first\n")
        assert (topic / "0.log").read_bytes() == b"first\nsecond\n"
        assert [(topic / f"{queue}.log").read_bytes() for queue in range(1, 100)] == [b"first\n"] * 99


def test_what_was_begun_before_a_refused_write(tmp_path: Path) -> None:
    """5.16 If a write is refused, data before it may be an unfinished message. That message is published when the
    rest arrives. A close or an fsync before that fails with the errno of the refused write, and nothing is
    published."""
    lines = [b"%07d %s\n" % (number, b"x" * 500) for number in range(100_000)]
    pieces = [b"and its end\n" + b"".join(lines[begin : begin + 50]) + b"begun, " for begin in range(0, 100_000, 50)]
    with small_disk(tmp_path / "disk", 12 << 20) as disk, mounted(tmp_path, store=disk / "store") as mount:
        queue = mount.topic("orders") / "0"
        (disk / "ballast").write_bytes(b"x" * (3 << 20))

        def fill(piece: int) -> tuple[int, int]:
            """Write pieces until one is refused: a descriptor, and which piece that is."""
            fd = os.open(queue / "append", os.O_WRONLY)
            os.write(fd, b"begun, ")
            try:
                while True:
                    os.write(fd, pieces[piece])
                    piece += 1
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 (a loop ends in it)
            return fd, piece

        fd, piece = fill(0)
        assert refused_with(os.fsync, fd) == errno.ENOSPC
        (disk / "ballast").unlink()
        os.write(fd, pieces[piece])
        os.write(fd, b"and its end\n")
        os.close(fd)
        fd, end = fill(piece + 1)
        assert refused_with(os.close, fd) == errno.ENOSPC
        publish(queue / "append", b"one more\n")
        stored = (queue.parent / "0.log").read_bytes().splitlines()
        assert stored.count(b"begun, and its end") == end + 1
        assert len(stored) == 51 * end + 2


def test_a_defect_of_ours(tmp_path: Path) -> None:
    """5.9 A bug in fsstore is EIO. Its traceback is in the log, and the mount goes on."""
    gate = tmp_path / "gate"
    gate.touch()
    with mounted(tmp_path, gate=gate) as mount:
        queue = mount.topic("orders") / "0"
        assert refused_with((mount.root / os.fsdecode(DEFECT)).stat) == errno.EIO
        publish(queue / "append", b"one\n")
        assert bodies(queue) == [b"one"]
        log = mount.log.read_text()
    assert "Traceback" in log
    assert "ZeroDivisionError: a defect, for a test" in log


def test_the_append_of_a_deleted_topic(mount: Mounted, topic: Path) -> None:
    """5.10 Publishing to an open `append` whose topic has since been deleted is ENOENT, and does not make the topic
    again."""
    names = ("append", "0/append", "append@format=json", "append@frame=file")
    handles = [os.open(topic / name, os.O_WRONLY | os.O_APPEND) for name in names]
    os.write(handles[0], b"whole\nhalf")
    os.write(handles[3], b"half")
    publish(mount.root / "@store" / "control", b'{"delete_topic": "%s"}\n' % topic.name.encode())
    for handle in handles[:3]:
        assert refused_with(os.write, handle, b'{"body": "lost"}\n') == errno.ENOENT
        assert refused_with(os.write, handle, b'"two"\n"lines"\n') == errno.ENOENT
    assert [refused_with(os.close, handle) for handle in (handles[0], handles[3])] == [errno.ENOENT] * 2
    assert topic.name not in mount.status()["topics"]
    for handle in handles[1:3]:
        os.close(handle)


def test_bytes_out_of_order(queue: Path) -> None:
    """5.11 Other framings accept bytes only in order. A write without O_APPEND is ESPIPE if it does not begin where
    the last one ended. Setting a length other than 0 or the number of bytes written is EINVAL. After such a refusal
    every call fails until the file is closed."""
    record = b'{"body": "x"}\n'
    for name in ("append", "append@format=json", "append@frame=write"):
        for position in (0, len(record) - 1, len(record) + 1, 1 << 20):
            fd = os.open(queue / name, os.O_WRONLY)
            os.write(fd, record)
            os.ftruncate(fd, len(record))
            assert refused_with(os.pwrite, fd, record, position) == errno.ESPIPE
            assert refused_with(os.write, fd, record) == errno.ESPIPE
            assert refused_with(os.close, fd) == errno.ESPIPE
        for size in (1, 100):
            fd = os.open(queue / name, os.O_WRONLY)
            assert refused_with(os.ftruncate, fd, size) == errno.EINVAL
            assert refused_with(os.close, fd) == errno.EINVAL
    published = len(bodies(queue))
    assert published == 12
    fd = os.open(queue / "append", os.O_WRONLY)
    os.write(fd, b"whole\nand half of one that is followed by a hole")
    assert refused_with(os.pwrite, fd, b"\n", 8192) == errno.ESPIPE
    assert refused_with(os.close, fd) == errno.ESPIPE
    fd = os.open(queue / "append", os.O_WRONLY)
    os.write(fd, b"before\n")
    os.ftruncate(fd, 0)
    os.write(fd, b"who did not seek\n")
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"who did\n", 0)
    os.close(fd)
    assert bodies(queue)[published:] == [b"whole", b"before", b"who did not seek", b"who did"]


def test_names_that_are_too_long(topic: Path) -> None:
    """5.12 A name of more than 255 bytes is ENAMETOOLONG."""
    publish(topic / "0" / "append", b"one\n")
    for folder in (topic.parent, topic, topic / "0", topic / "keys", topic.parent / "@store"):
        long = folder / ("n" * 256)
        for use in (
            long.stat,
            long.mkdir,
            long.unlink,
            long.rmdir,
            long.touch,
            lambda long=long: os.mkfifo(long),
            lambda long=long: long.symlink_to("x"),
            lambda long=long: os.link(topic / "0" / "0", long),
            lambda long=long: (topic / "0" / "0").rename(long),
        ):
            assert refused_with(use) == errno.ENAMETOOLONG
        assert refused_with((folder / ("n" * 255)).stat) == errno.ENOENT
    assert refused_with(os.open, topic / f"append@tags={'t' * 250}", os.O_WRONLY) == errno.ENAMETOOLONG


def test_beginnings_of_messages_are_refused_when_there_is_no_memory(tmp_path: Path) -> None:
    """5.13 An unfinished message (a line without its newline, a `frame=file`) is ENOBUFS if the daemon has no memory
    left for it, or if its user's share is used up. So is a write that takes long to publish. Nothing of that write
    is taken, and it can be repeated. Writes of a few whole lines are still published."""
    sizes = {"commit_log_bytes": 16 << 20, "consume_queue_entries": 1024, "index_slots": 5000, "index_entries": 20_000}
    piece = b"{" + b"x" * ((1 << 20) - 1)
    with mounted(tmp_path, config={"sizes": sizes}) as mount:
        queue = mount.topic("orders") / "0"
        hogs = [os.open(queue / "append@format=json", os.O_WRONLY | os.O_APPEND) for _ in range(30)]
        taken = [0] * len(hogs)
        for _ in range(20):
            for row, fd in enumerate(hogs):
                with suppress(OSError):
                    taken[row] += os.write(fd, piece)
        assert sum(taken) == 256 << 20
        assert private_bytes(mount.daemon.pid) < 450 << 20
        for name in ("append", "append@frame=file"):
            fd = os.open(queue / name, os.O_WRONLY | os.O_APPEND)
            assert refused_with(os.write, fd, b"y" * 100_000) == errno.ENOBUFS
            os.close(fd)
        publish(queue / "append", b"one\n", b"two, in ", b"two writes\n")
        assert bodies(queue) == [b"one", b"two, in two writes"]
        for fd in hogs:
            assert refused_with(os.close, fd) == errno.ENOBUFS  # 5.16
        fd = os.open(queue / "append", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"y" * 100_000)
        os.close(fd)
        assert len((queue / "2").read_bytes()) == 100_000
        assert mount.status()["memory"]["bytes"]["messages_begun"] == 0


def private_bytes(pid: int) -> int:
    """Memory that a process has allocated."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def test_reasons(mount: Mounted, queue: Path) -> None:
    """5.14 `@store/refusals` has a line for each of the newest 256 refused publications: time, process, `append`,
    line number within that open file, errno, and reason. Users see the lines of their own requests, in a file of
    mode 0400 that belongs to them. Root and the mounting user see all lines. A removal, or an opening for writing,
    that 5.1 refuses adds a line, too, which names the way that works. If a process tries several of these in a row,
    only the first adds a line."""
    shown_as = (mount.root / "@store/refusals").stat()
    assert (shown_as.st_uid, shown_as.st_mode & 0o777) == (os.getuid(), 0o400)
    began = time.time()
    with (queue / "append@format=json").open("wb", buffering=0) as file:
        file.write(b'{"body": "fine"}\n')
        assert refused_with(file.write, b'{"body": "fine"}\n{"body": 1}\n') == errno.EINVAL
    assert refused_with((queue / "append@frame=page").open, "wb") == errno.ENOENT
    topic = queue.parent.name
    shown = [line.split(" ", 5) for line in (mount.root / "@store" / "refusals").read_text().splitlines()[-2:]]
    times = [datetime.fromisoformat(line[0]).timestamp() for line in shown]
    assert began - 0.01 <= times[0] <= times[1] <= time.time() + 0.01
    assert [line[1:] for line in shown] == [
        [
            str(os.getpid()),
            f"{topic}/0/append@format=json",
            "3",
            "EINVAL",
            "illegal message: line 2 of 2: body is not a string",
        ],
        [str(os.getpid()), f"{topic}/0/append@frame=page", "-", "ENOENT", "option frame can't be 'page'"],
    ]
    for change in (queue.rmdir, queue.parent.rmdir, partial(os.open, queue.with_name("0.log"), os.O_WRONLY)):
        assert refused_with(change) == errno.EPERM
    shown = [line.split(" ", 5) for line in (mount.root / "@store" / "refusals").read_text().splitlines()[-2:]]
    assert [line[2:] for line in shown] == [
        [
            f"{topic}/0",
            "-",
            "EPERM",
            "messages are removed by retention, a topic by `mountctl topics delete`",
        ],
        [
            f"{topic}/0.log",
            "-",
            "EPERM",
            "a .log shows messages: write lines to append in the topic or the queue",
        ],
    ]
    metrics = (mount.root / "@store" / "metrics").read_text()
    assert re.search(r'^fsstore_refused_total{reason="malformed"} [1-9]', metrics, re.MULTILINE)


def test_a_topic_that_takes_no_messages(tmp_path: Path) -> None:
    """5.15 Publishing to a topic whose `perm` in `topics.json` lacks the write bit (2) is EACCES, by `drop` and by
    the `append` of the topic or of a queue. Its `append` has no write bit either. A topic without the read bit (4)
    is still readable: the mount's mode decides about reading."""
    with mounted(tmp_path) as mount:
        topic = mount.topic("orders")
        publish(topic / "0/append", b"one\n")
    permit(mount.store, 4)
    with mounted(tmp_path, store=mount.store) as mount:
        for append in (topic / "append", topic / "0/append"):
            assert refused_with(os.open, append, os.O_WRONLY | os.O_APPEND) == errno.EACCES
            assert append.stat().st_mode & 0o222 == 0
        for box in (topic / "drop", topic / "0/drop"):
            assert refused_with(os.open, box / "file", os.O_WRONLY | os.O_CREAT) == errno.EACCES
        assert "orders takes no messages" in (mount.root / "@store/refusals").read_text().replace("'", "")
        assert bodies(topic / "0") == [b"one"]
    permit(mount.store, 2)
    with mounted(tmp_path, store=mount.store) as mount:
        publish(topic / "0/append", b"two\n")
        assert bodies(topic / "0") == [b"one", b"two"]


def permit(store: Path, permission: int) -> None:
    """Have topics.json say so of `orders`."""
    path = store / "config/topics.json"
    content = json.loads(path.read_text())
    content["topicConfigTable"]["orders"]["perm"] = permission
    path.write_text(json.dumps(content))


FURTHER_QUEUES = [
    "others",
    "orders",
    "others,orders",
    "unknown",
    "CURRENT",
    "../others",
    "others,others",
    ",".join(["%LMQ%a"] * 4_000),
]


def line(body: str, **properties: str) -> bytes:
    return json.dumps({"body": body, "properties": properties}).encode() + b"\n"


def require_two_topics(mount: Mounted, published: list[bytes]) -> None:
    assert {name for name in os.listdir(mount.root) if not name.startswith("@") and "." not in name} == {
        "orders",
        "others",
    }
    assert bodies(mount.root / "orders" / "0") == published
    assert bodies(mount.root / "others" / "0") == [b"own"]


@pytest.mark.parametrize("multi_dispatch", [False, True])
def test_further_queues(tmp_path: Path, multi_dispatch: bool) -> None:
    """5.17 A published message is in one queue, whatever queues `INNER_MULTI_DISPATCH` names. With
    `enableMultiDispatch=true` a message that names any is EINVAL (`@store/refusals` says why). Without it the
    property is stored and has no effect."""
    published: list[bytes] = []
    with mounted(tmp_path, config={"multi_dispatch": multi_dispatch}) as mount:
        for name in ("orders", "others"):
            (mount.root / name).mkdir()
        (mount.root / "others" / "0" / "append").write_bytes(b"own\n")
        fd = os.open(mount.root / "orders" / "0" / "append@format=json", os.O_WRONLY)
        for names in FURTHER_QUEUES:
            lines = line("good") + line("bad", INNER_MULTI_DISPATCH=names, INNER_MULTI_QUEUE_OFFSET="0")
            if multi_dispatch:
                assert refused_with(os.write, fd, lines) == errno.EINVAL
                refused = (mount.root / "@store/refusals").read_text().splitlines()[-1]
                assert "INNER_MULTI_DISPATCH" in refused
                assert "broker" in refused
            else:
                assert os.write(fd, lines) == len(lines)
                published += [b"good", b"bad"]
        os.write(fd, line("goes on"))
        published.append(b"goes on")
        os.fsync(fd)
        os.close(fd)
        require_two_topics(mount, published)
        if not multi_dispatch:
            kept = os.getxattr(mount.root / "orders" / "0" / "1", "user.mq.property.INNER_MULTI_DISPATCH")
            assert kept == FURTHER_QUEUES[0].encode()
        mount.kill()
    with mounted(tmp_path) as mount:
        require_two_topics(mount, published)

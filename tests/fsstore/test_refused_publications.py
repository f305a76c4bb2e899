"""`@store/refusals`: why publications were refused, in words and counted."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from engine import FlushFailedError, MessageStore, OpenMode, StoreError, TopicPermissionError
from fsstore.fuse.errors import errno_for
from fsstore.interface import AT_END, ROOT_INODE, FilesystemError, SlowWork
from fsstore.tree.memory_budget import BUDGET_BYTES, Purpose
from fsstore.tree.refusals import (
    MOST_LINES,
    MOST_PATH_CHARACTERS,
    MOST_REASON_CHARACTERS,
    RefusalKind,
    Refusals,
    escaped,
)
from tests.fsstore.conftest import OPTIONS, Mount, break_disk, disk_of, open_small, patiently

PID = 4711


@pytest.fixture
def store(folder: Path) -> Iterator[MessageStore]:
    store = open_small(folder / "store", max_message_bytes=100)
    store.create_topic("orders", 2)
    yield store
    with suppress(FlushFailedError):  # a test broke the disk
        store.close()


class Writer:
    """An open `append`, whose refusals are noted as the adapter notes them."""

    def __init__(self, mount: Mount, path: str, flags: int = os.O_WRONLY) -> None:
        self._mount = mount
        self.handle = mount.open(path, flags).handle

    def write(self, data: bytes, position: int = AT_END) -> int:
        return self._asked(lambda: patiently(self._mount.fs.write, self.handle, position, data))

    def close(self) -> int:
        return self._asked(lambda: patiently(self._mount.fs.flush, self.handle))

    def _asked(self, request: Callable[[], object]) -> int:
        """The errno; 0: it was taken."""
        try:
            request()
        except (StoreError, OSError) as error:
            number = errno_for(error, "write")
            self._mount.fs.note_refused(self.handle, PID, number, error)
            return number
        return 0


def lines_of(mount: Mount) -> list[str]:
    return mount.cat("@store/refusals").decode().splitlines()


def only_line(mount: Mount) -> list[str]:
    """Its six parts."""
    (line,) = lines_of(mount)
    return line.split(" ", 5)


def counted(mount: Mount, kind: str) -> int:
    found = re.search(
        rf'^fsstore_refused_total{{reason="{kind}"}} (\d+)$', mount.cat("@store/metrics").decode(), re.MULTILINE
    )
    assert found is not None
    return int(found[1])


def test_nothing_was_refused_at_first(mount: Mount) -> None:
    assert lines_of(mount) == []
    assert counted(mount, "malformed") == 0


def test_a_bad_line_is_told_with_its_number_in_the_handle(mount: Mount) -> None:
    writer = Writer(mount, "orders/0/append@format=json")
    assert writer.write(b'{"body":"1"}\n') == 0
    assert writer.write(b'{"body":"2"}\n\n{"body":"4"}\n{"body"\n{"body":"6"}\n') == errno.EINVAL
    time, pid, path, line, name, reason = only_line(mount)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert (pid, path, line, name) == ("4711", "orders/0/append@format=json", "5", "EINVAL")
    assert "not JSON: Expecting ':' delimiter" in reason
    assert counted(mount, "malformed") == 1
    writer.write(b"{}\n")
    assert lines_of(mount)[-1].split()[3] == "7"  # what was refused counts, too


def test_a_message_that_only_the_store_refuses_is_told_by_its_line(mount: Mount) -> None:
    writer = Writer(mount, "orders/append@format=json")
    assert writer.write(b'\n{"body":"1"}\n{"body":"2","keys":["a b"]}\n{"body":"3"}\n') == errno.EINVAL
    assert only_line(mount)[2:5] == ["orders/append@format=json", "3", "EINVAL"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"x" * 101 + b"\n", "1"),
        (b"a\nb\n" + b"x" * 101 + b"\nd\n", "3"),
        (b"a\nb\n" + b"x" * 101, "3"),
        (b"a\nb\n" + b"x" * 1000 + b"\n" * 20_000, "3"),
    ],
    ids=["alone", "among others", "without its end", "in a thread"],
)
def test_a_line_that_is_too_long(mount: Mount, text: bytes, line: str) -> None:
    writer = Writer(mount, "orders/0/append")
    assert writer.write(text) == errno.EFBIG
    assert only_line(mount)[2:5] == ["orders/0/append", line, "EFBIG"]
    assert "over the limit of 100" in only_line(mount)[5]


def test_what_follows_from_a_refusal_is_counted_and_not_told(mount: Mount) -> None:
    writer = Writer(mount, "orders/0/append")
    assert [writer.write(b"x" * 101), writer.write(b"y\n"), writer.close()] == [errno.EFBIG] * 3
    assert len(lines_of(mount)) == 1
    assert counted(mount, "too_large") == 3


def test_bytes_in_another_order(mount: Mount) -> None:
    writer = Writer(mount, "orders/0/append")
    writer.write(b"one\n", 0)
    assert writer.write(b"two\n", 1000) == errno.ESPIPE
    assert only_line(mount)[4:] == [
        "ESPIPE",
        "a write begins at 1,000, but the last one ended at 4: write in order, or append",
    ]
    assert counted(mount, "position") == 1


def test_a_file_that_is_a_message_already(mount: Mount) -> None:
    writer = Writer(mount, "orders/0/append@frame=file")
    writer.write(b"body", 0)
    assert writer.close() == 0
    assert writer.write(b"more", 4) == errno.EPERM
    assert only_line(mount)[4] == "EPERM"
    assert "is a message already" in only_line(mount)[5]


def test_a_full_disk_and_memory_and_a_topic_that_went(mount: Mount, store: MessageStore) -> None:
    writer = Writer(mount, "orders/append")
    disk_of(store).is_full = True
    assert writer.write(b"a\n") == errno.ENOSPC
    disk_of(store).is_full = False
    mount.fs.memory.hold(Purpose.REPORTS, 0, BUDGET_BYTES // 2)
    mount.fs.memory.hold(Purpose.PUBLISHING, 0, BUDGET_BYTES // 4 - 10)
    assert writer.write(b"begun of a line") == errno.ENOBUFS
    mount.fs.memory.hold(Purpose.PUBLISHING, BUDGET_BYTES // 4 - 10, 0)
    store.delete_topic("orders")
    assert writer.write(b"b\n") == errno.ENOENT
    refused = [line.split(" ", 5)[3:] for line in lines_of(mount)]
    assert re.fullmatch(rf"no space for {store.path}/\S+ \([\d,]+ bytes\): free some, then try again", refused[0].pop())
    assert refused == [
        ["1", "ENOSPC"],
        ["1", "ENOBUFS", "the daemon has no memory left for messages begun: try again later"],
        ["1", "ENOENT", "no topic 'orders'"],
    ]
    assert [counted(mount, kind) for kind in ("no_space", "no_memory", "no_topic")] == [1, 1, 1]


def test_what_a_process_that_is_gone_has_left(mount: Mount) -> None:
    handle = mount.open("orders/append@format=json", os.O_WRONLY).handle
    mount.fs.write(handle, AT_END, b'{"body":"whole"}\n{"body"', 1)
    mount.fs.flush(handle, 2)
    mount.fs.handles.release(handle)
    assert only_line(mount)[1:5] == ["-", "orders/append@format=json", "2", "-"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b"append@colour=red", "there is no option 'colour': there are tags, keys, frame and format"),
        (b"append@frame=page", "option frame can't be 'page'"),
        (b"append@tags=%zz", "option tags can't be '%zz'"),
        (b"append@tags=a,tags=b", "option tags is there twice"),
        (b"append@", "there is no option '': there are tags, keys, frame and format"),
    ],
)
def test_an_option_that_is_none(mount: Mount, name: bytes, reason: str) -> None:
    queue = mount.stat("orders/0").inode
    with pytest.raises(FilesystemError) as refused:
        mount.fs.lookup(queue, name)
    mount.fs.note_refused_name(queue, name, PID, errno.ENOENT, refused.value)
    assert only_line(mount)[1:] == ["4711", f"orders/0/{name.decode()}", "-", "ENOENT", reason]
    assert counted(mount, "name") == 1
    mount.fs.note_refused_name(ROOT_INODE, name, PID, errno.ENOENT, refused.value)  # nobody publishes there
    assert len(lines_of(mount)) == 1


def test_a_store_that_turned_read_only(mount: Mount, store: MessageStore) -> None:
    inode = mount.stat("orders/append").inode
    break_disk(store)
    with pytest.raises(FilesystemError) as refused:
        mount.fs.open(inode, os.O_WRONLY)
    mount.fs.note_refused_open(inode, PID, errno.EROFS, refused.value)
    reason = f"the store is read-only: {store.read_only_reason}"
    assert only_line(mount)[1:] == ["4711", "orders/append", "-", "EROFS", reason]


def test_a_mount_that_only_reads_says_so(store: MessageStore) -> None:
    with open_small(store.path, OpenMode.FOLLOW) as followed:
        mount = Mount(followed)
        with pytest.raises(FilesystemError, match="the store is read-only: another process writes it"):
            mount.fs.open(mount.stat("orders/append").inode, os.O_WRONLY)


def test_a_topic_that_can_be_none_and_a_command_that_is_none(mount: Mount) -> None:
    with pytest.raises(StoreError) as refused:
        patiently(mount.fs.mkdir, ROOT_INODE, b"no topic")
    mount.fs.note_refused_name(ROOT_INODE, b"no topic", PID, errno.EINVAL, refused.value)
    assert Writer(mount, "@store/control").write(b"drop orders") == errno.EINVAL
    shown = [line.split(" ", 5)[2:5] for line in lines_of(mount)]
    assert shown == [["no\\x20topic", "-", "EINVAL"], ["@store/control", "-", "EINVAL"]]


def test_only_so_many_are_kept_and_all_are_counted(mount: Mount) -> None:
    writer = Writer(mount, "orders/0/append@format=json")
    for _ in range(MOST_LINES + 10):
        writer.write(b"[]\n")
    lines = lines_of(mount)
    assert len(lines) == MOST_LINES
    assert (lines[0].split()[3], lines[-1].split()[3]) == ("11", str(MOST_LINES + 10))
    assert counted(mount, "malformed") == MOST_LINES + 10


def test_hostile_text_is_escaped_and_cut(mount: Mount) -> None:
    writer = Writer(mount, "orders/0/append@format=json")
    field = "\\u001b[2J\\u202e\\n1970 forged \\ud800"
    assert writer.write(f'{{"body":"x","{field}":1}}\n'.encode()) == errno.EINVAL
    (line,) = lines_of(mount)
    assert line.isprintable()
    assert len(line) < 80 + MOST_PATH_CHARACTERS + MOST_REASON_CHARACTERS
    for text in ("\n" * 10_000, "\ud800\udcff" * 10_000, "x" * 10_000, "\\x00"):
        assert escaped(text, 100).isprintable()
        assert len(escaped(text, 100)) <= 101
    assert escaped("a\\b", 100) == "a\\\\b"


def test_reading_and_names_that_are_not_there_are_no_refused_publications(mount: Mount) -> None:
    writer = Writer(mount, "@store/metrics", os.O_RDONLY)
    assert writer.write(b"x") == errno.EBADF
    assert lines_of(mount) == []


def test_slow_work_is_no_refusal(mount: Mount) -> None:
    handle = mount.open("orders/append", os.O_WRONLY).handle
    with pytest.raises(SlowWork):
        mount.fs.write(handle, AT_END, b"x\n" * 20_000)
    assert lines_of(mount) == []


def test_each_errno_has_a_kind() -> None:
    refusals = Refusals(lambda: 0)
    for number in errno.errorcode:
        refusals.note(0, 0, "orders/append", "", number, "why")
    assert sum(refusals.counts.values()) == len(errno.errorcode)
    assert set(refusals.counts) == set(RefusalKind)


def test_each_user_sees_their_own_and_the_owner_sees_all(mount: Mount) -> None:
    for user, secret in ((1001, b"hunter1"), (1002, b"hunter2")):
        mount.fs.accounts.caller = user
        assert Writer(mount, "orders/append@format=json").write(b'{"%s": 1}\n' % secret) == errno.EINVAL
    seen = {}
    for user in (1001, 1002, 1003, 0, OPTIONS.uid):
        mount.fs.accounts.caller = user
        seen[user] = re.findall("hunter.", mount.cat("@store/refusals").decode())
        shown = mount.stat("@store/refusals")
        assert (shown.uid, shown.mode) == (user, stat.S_IFREG | 0o400)
    assert seen == {1001: ["hunter1"], 1002: ["hunter2"], 1003: [], 0: ["hunter1", "hunter2"], 1234: seen[0]}


def test_a_topic_that_takes_no_messages(mount: Mount, store: MessageStore) -> None:
    assert mount.stat("orders/append").mode & 0o777 == mount.stat("orders/0/append").mode & 0o777 == 0o644
    topics = store.path / "config" / "topics.json"
    topics.write_text(topics.read_text().replace('"perm": 6', '"perm": 4'))
    assert store._topics.reload()
    for path in ("orders/append", "orders/0/append"):
        shown = mount.stat(path)
        assert shown.mode & 0o777 == 0o444
        with pytest.raises(TopicPermissionError) as refused:
            mount.fs.open(shown.inode, os.O_WRONLY)
        mount.fs.note_refused_open(shown.inode, PID, errno_for(refused.value, "open"), refused.value)
        assert lines_of(mount)[-1].split(" ", 5)[2:] == [
            path,
            "-",
            "EACCES",
            "topic 'orders' takes no messages: its perm in config/topics.json is 4, without 2",
        ]
    assert counted(mount, "permission") == 2


@pytest.mark.parametrize("path", ["orders.log", "orders/0.log", "orders/0/0"])
def test_a_file_that_is_only_read_says_where_to_write(mount: Mount, store: MessageStore, path: str) -> None:
    store.put_lines("orders", b"one\n", queue=0)
    inode = mount.stat(path).inode
    with pytest.raises(FilesystemError) as refused:
        mount.fs.open(inode, os.O_WRONLY | os.O_APPEND)
    mount.fs.note_refused_open(inode, PID, errno.EPERM, refused.value)
    _, _, shown, line, name, reason = only_line(mount)
    assert (shown.removesuffix("0" * 19), line, name) == (path, "-", "EPERM")
    assert "to append" in reason
    assert counted(mount, "other") == 0  # nothing was to be published


def test_a_removed_topic_says_how_topics_are_deleted_once_a_process(mount: Mount) -> None:
    topic = mount.stat("orders").inode

    def remove(parent: int, name: bytes, pid: int) -> None:
        use = partial(mount.fs.rmdir, name) if parent == ROOT_INODE else partial(mount.fs.unlink, parent, name)
        with pytest.raises(FilesystemError) as refused:
            use()
        mount.fs.note_refused_removal(parent, name, pid, errno.EPERM, refused.value)

    for name in (b"append", b"0.log"):
        remove(topic, name, PID)
    remove(ROOT_INODE, b"orders", PID + 1)
    assert [line.split(" ", 5)[1:3] for line in lines_of(mount)] == [
        [str(PID), "orders/append"],
        [str(PID + 1), "orders"],
    ]
    assert all("`mountctl topics delete`" in line for line in lines_of(mount))


def test_a_name_that_is_not_removed_from_a_drop_box_is_no_refused_change(mount: Mount) -> None:
    box = mount.stat("orders/drop").inode
    with pytest.raises(FilesystemError) as refused:
        mount.fs.unlink(box, b"nothing")
    mount.fs.note_refused_removal(box, b"nothing", PID, errno.ENOENT, refused.value)
    assert lines_of(mount) == []

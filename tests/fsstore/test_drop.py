"""`drop/`: what its files take of what all share, and what is done where. No mount."""

from __future__ import annotations

import errno
import gc
import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from engine import DropBox, DroppedFile, FlushPolicy, Message, MessageStore, PutResult, StoreConfig
from fsstore.accounts import Bound, Resource, bounds_here
from fsstore.core import NO_CHANGE
from fsstore.handover.memory import Handover
from fsstore.interface import Attributes, Opened, SlowWork
from fsstore.tree.drop import MOST_CLEANED, SMALL_BYTES
from fsstore.tree.nodes import Creation
from tests.fsstore.conftest import OPTIONS, Mount, patiently, refused_with

ALICE, BOB = 64_101, 64_102
DROP = "t/drop"


class Dropping(Mount):
    """A mount, with what programs do in a box."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store)
        self.now_ms = store.config.clock()

    def create(self, name: str, user: int = ALICE, mode: int = 0o600) -> tuple[Attributes, Opened]:
        self.fs.accounts.caller = user
        how = Creation(os.O_RDWR | os.O_CREAT, mode, user, user)
        return patiently(self.fs.create, self.stat(DROP).inode, name.encode(), how)

    def drop(self, name: str, body: bytes = b"", user: int = ALICE) -> None:
        """Create, write, close."""
        _, opened = self.create(name, user)
        if body:
            patiently(self.fs.write, opened.handle, 0, body)
        patiently(self.fs.handles.release, opened.handle)

    def remove(self, name: str) -> None:
        patiently(self.fs.unlink, self.stat(DROP).inode, name.encode())

    def rename(self, name: str, new_name: str) -> None:
        box = self.stat(DROP).inode
        patiently(self.fs.rename, box, name.encode(), box, new_name.encode(), 0)

    def held(self, resource: Resource, user: int = ALICE) -> int:
        return self.fs.accounts.held(user, resource)

    def bodies(self) -> list[bytes]:
        return [self.cat(f"t/0/{name}") for name in self.ls("t/0") if name.isdigit()]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Flushed when a test asks for it: files that are messages go once these are on disk."""
    rarely = FlushPolicy(interval_ms=600_000, thorough_interval_ms=600_000)
    with MessageStore.open(tmp_path / "store", StoreConfig(flush=rarely), create=True) as store:
        store.create_topic("t", 1)
        yield store
        assert list(store.check()) == []


@pytest.fixture
def mount(store: MessageStore) -> Dropping:
    return Dropping(store)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a user has three descriptors and four waiting files."""
    few = {Resource.DESCRIPTORS: Bound(24, 3), Resource.STAGED_FILES: Bound(32, 4)}
    monkeypatch.setattr("fsstore.accounts.bounds_here", lambda: bounds_here() | few)


def again(mount: Dropping, store: MessageStore) -> Dropping:
    """The next server of the same store, which was not told anything."""
    mount.fs._background.shutdown(cancel_futures=True)
    later = Dropping(store)
    later.fs.settle()
    return later


def dropped_files() -> int:
    gc.collect()
    return sum(isinstance(one, DroppedFile) for one in gc.get_objects())


def test_a_file_that_was_removed_or_published_is_forgotten(mount: Dropping, store: MessageStore) -> None:
    before = dropped_files()
    for number in range(50):
        made, opened = mount.create(f".{number}")
        mount.remove(f".{number}")
        mount.fs.forget(made.inode, 3)
        patiently(mount.fs.handles.release, opened.handle)
        mount.drop(f"file-{number}", b"body")
        mount.fs.forget(mount.stat(f"{DROP}/file-{number}").inode, 3)
    store.flush()
    mount.now_ms = store.config.clock() + 61_000  # the dropping may have taken a while
    while mount.ls(DROP):
        pass
    assert dropped_files() == before
    assert (mount.held(Resource.STAGED_FILES), mount.held(Resource.DESCRIPTORS)) == (0, 0)
    assert len(mount.bodies()) == 50


def test_who_has_too_many_files_open_is_refused_alone(few: None, store: MessageStore) -> None:
    mount = Dropping(store)
    held = [mount.create(f".{number}")[1] for number in range(3)]
    assert refused_with(lambda: mount.create(".more")) == errno.EMFILE
    assert mount.ls(DROP) == [".0", ".1", ".2"]
    mount.fs.accounts.caller = ALICE
    assert refused_with(lambda: mount.open(f"{DROP}/.0", os.O_RDONLY)) == errno.EMFILE
    mount.drop("of-bob", b"bob", BOB)
    assert mount.bodies() == [b"bob"]
    for opened in held:
        patiently(mount.fs.handles.release, opened.handle)
    assert mount.held(Resource.DESCRIPTORS) == 0
    mount.drop("of-alice", b"alice")


def test_a_file_that_found_no_room_is_cut_to_nothing_and_its_writer_is_told(
    mount: Dropping, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, opened = mount.create("file")
    write = partial(mount.fs.write, opened.handle)
    patiently(write, 0, b"begin")
    pwrite = os.pwrite

    def fills_up(descriptor: int, data: bytes, position: int) -> int:
        if position >= 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data[:3], position)

    monkeypatch.setattr(os, "pwrite", fills_up)
    assert refused_with(lambda: patiently(write, 5, b"and more")) == errno.ENOSPC
    monkeypatch.undo()
    assert refused_with(lambda: patiently(write, 13, b"end")) == errno.ENOSPC
    patiently(mount.fs.handles.release, opened.handle)
    assert (mount.stat(f"{DROP}/file").size, mount.bodies()) == (0, [])
    mount.drop("file-again", b"whole")
    assert mount.bodies() == [b"whole"]


def test_a_file_of_which_a_write_was_refused_before_it_came_to_it_is_cut_to_nothing(mount: Dropping) -> None:
    _, opened = mount.create("file")
    patiently(mount.fs.write, opened.handle, 0, b"begin")
    mount.fs.write_refused(opened.handle, 7, errno.ENOBUFS)
    assert refused_with(lambda: patiently(mount.fs.write, opened.handle, 5, b"end")) == errno.ENOBUFS
    patiently(mount.fs.handles.release, opened.handle)
    assert (mount.stat(f"{DROP}/file").size, mount.bodies()) == (0, [])


def test_who_has_too_many_files_waiting_is_refused_alone(few: None, store: MessageStore) -> None:
    mount = Dropping(store)
    for number in range(4):
        mount.drop(f".{number}")
    assert refused_with(lambda: mount.create(".more")) == errno.EDQUOT
    assert mount.held(Resource.DESCRIPTORS) == 0
    mount.drop("of-bob", b"bob", BOB)
    mount.fs.accounts.caller = ALICE
    mount.rename(".0", ".1")  # in place of that
    mount.drop(".more")
    assert refused_with(lambda: mount.create(".more still")) == errno.EDQUOT
    mount.remove(".2")
    mount.drop("published", b"alice")
    assert mount.held(Resource.STAGED_FILES) == 3
    mount.drop(".last")
    handle = mount.open(f"{DROP}/published", os.O_WRONLY).handle
    assert refused_with(lambda: patiently(mount.fs.write, handle, 0, b"again")) == errno.EDQUOT
    patiently(mount.fs.handles.release, handle)
    assert mount.cat(f"{DROP}/published") == b"alice"
    assert mount.bodies() == [b"bob", b"alice"]


def test_what_waits_counts_after_a_restart(few: None, mount: Dropping, store: MessageStore) -> None:
    for number in range(4):
        mount.drop(f".{number}")
    later = again(mount, store)
    assert later.held(Resource.STAGED_FILES) == 0  # nobody has asked for the box
    assert refused_with(lambda: later.create(".more")) == errno.EDQUOT
    assert later.held(Resource.STAGED_FILES) == 4


def test_the_files_of_a_box_are_found_when_it_is_used_in_a_thread(mount: Dropping, store: MessageStore) -> None:
    mount.drop(".waits")
    found: list[str] = []
    later = again(mount, store)
    box = later.stat(DROP).inode
    with pytest.raises(SlowWork) as slow:
        later.fs.lookup(box, b".waits")
    thread = threading.Thread(target=lambda: found.append(str(slow.value.work())))
    thread.start()
    thread.join()
    assert later.fs.lookup(box, b".waits").uid == ALICE
    assert later.fs.lookup(box, b".waits").mode == stat.S_IFREG | 0o600


def test_a_restart_finds_only_the_files_that_were_about_to_be_messages(
    mount: Dropping, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount.drop(".waits")
    later = again(mount, store)
    looked: list[str] = []
    look = DropBox.__init__

    def count(box: DropBox, *arguments: object) -> None:
        looked.append("box")
        look(box, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(DropBox, "__init__", count)
    later = again(later, store)
    assert looked == []
    later.drop("sent", b"body")
    looked.clear()
    again(later, store)
    assert looked == ["box"]


def test_a_listing_encodes_and_describes_some_names_at_a_time(mount: Dropping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsstore.tree.listing.DESCRIBING_S", 60.0)
    names = [f".{number:04}" for number in range(600)]
    for name in names:
        mount.drop(name)
    handle = mount.fs.opendir(mount.stat(DROP).inode).handle
    first = mount.fs.readdir(handle, 0, 10_000)
    assert len(first) == 256
    mount.remove(names[0])
    mount.remove(names[-1])
    assert len(mount.fs.readdir(handle, 512, 10_000)) == 87
    assert mount.ls(DROP) == names[1:-1]


def test_the_newest_messages_stay_and_some_of_the_others_go_at_a_time(
    mount: Dropping, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsstore.tree.drop.MOST_SENT", 5)
    for number in range(30):
        mount.drop(f"file-{number:02}", b"body")
    assert len(mount.ls(DROP)) == 30  # none is on disk
    store.flush()
    assert len(mount.ls(DROP)) == 30 - MOST_CLEANED
    assert mount.ls(DROP) == [f"file-{number}" for number in range(25, 30)]
    mount.fs.close()
    assert [path for path in (store.path / "fsstore/drop").rglob("*") if path.is_file()] == []


def test_owner_and_mode_are_kept(mount: Dropping, store: MessageStore) -> None:
    mount.drop(".secret", b"draft")
    mount.fs.accounts.caller = 0
    inode = mount.stat(f"{DROP}/.secret").inode
    patiently(mount.fs.setattr, inode, None, None, replace_wanted(mode=0o4640, gid=BOB))
    for later in (mount, again(mount, store)):
        shown = later.stat(f"{DROP}/.secret")
        assert (shown.uid, shown.gid, stat.S_IMODE(shown.mode)) == (ALICE, BOB, 0o640)


def test_a_file_that_is_open_without_a_name_can_be_given_away(mount: Dropping) -> None:
    made, opened = mount.create(".gone")
    mount.remove(".gone")
    patiently(mount.fs.setattr, made.inode, None, None, replace_wanted(mode=0o644))
    assert stat.S_IMODE(mount.fs.getattr(made.inode).mode) == 0o644
    patiently(mount.fs.handles.release, opened.handle)


def replace_wanted(**wanted: int) -> object:
    return NO_CHANGE._replace(**wanted)


def test_of_what_nobody_knows_the_owner_alone_sees_something(
    mount: Dropping, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no attributes")

    monkeypatch.setattr(os, "geteuid", lambda: BOB)
    monkeypatch.setattr(os, "setxattr", refuse)
    mount.drop(".secret", b"draft")
    shown = mount.stat(f"{DROP}/.secret")
    assert (shown.uid, stat.S_IMODE(shown.mode)) == (ALICE, 0o600)
    shown = again(mount, store).stat(f"{DROP}/.secret")
    assert (shown.uid, shown.gid, stat.S_IMODE(shown.mode)) == (OPTIONS.uid, OPTIONS.gid, 0o600)


@pytest.mark.parametrize("way", ["close", "rename"])
def test_a_file_is_there_while_a_thread_puts_it(
    mount: Dropping, store: MessageStore, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """What the loop does meanwhile finds box and disk in agreement."""
    begun, may_end, put = threading.Event(), threading.Event(), MessageStore.put

    def slow_put(store: MessageStore, message: Message, queue: int | None = None) -> PutResult:
        begun.set()
        assert may_end.wait(60)
        return put(store, message, queue)

    monkeypatch.setattr(MessageStore, "put", slow_put)
    body, name = b"x" * (SMALL_BYTES + 1), "long" if way == "close" else ".long"
    made, opened = mount.create(name)
    mount.fs.write(opened.handle, 0, body)
    box = mount.stat(DROP).inode
    request: Callable[[], object] = lambda: mount.fs.handles.release(opened.handle)  # noqa: E731 - one of two
    if way == "rename":
        request()
        request = lambda: mount.fs.rename(box, b".long", box, b"long", 0)  # noqa: E731
    with pytest.raises(SlowWork) as slow, ThreadPoolExecutor(1) as thread:
        request()
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(slow.value.work)
        assert begun.wait(60)
        assert mount.fs.getattr(made.inode).size == len(body)
        listed = mount.fs.readdir(mount.fs.opendir(box).handle, 0, 10)
        assert isinstance(listed, list)
        assert [entry.name.decode() for entry in listed] == [name]
        with pytest.raises(SlowWork):
            mount.fs.lookup(box, name.encode())
        mount.drop("other", b"")
        may_end.set()
        done.result()
    request()
    assert mount.ls(DROP) == ["other", "long"]
    assert mount.bodies() == [body]


def test_a_put_that_fails_in_a_thread_leaves_the_file_waiting(mount: Dropping, store: MessageStore) -> None:
    mount.drop(".long", b"x" * (SMALL_BYTES + 1))
    store.config = replace(store.config, max_message_bytes=100)
    box = mount.stat(DROP).inode
    mount.fs._drops.box("t", None).dropped._limit_bytes = 100
    with pytest.raises(SlowWork) as slow:
        mount.fs.rename(box, b".long", box, b"long", 0)
    slow.value.work()
    assert refused_with(lambda: mount.fs.rename(box, b".long", box, b"long", 0)) == errno.EFBIG
    assert (mount.ls(DROP), mount.bodies()) == ([".long"], [])
    assert mount.held(Resource.STAGED_FILES) == 1


def test_what_another_store_planted_is_told_in_the_log(
    store: MessageStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("t/all/sent/AA-²", "t/٣", "gone/all/sent/x", "t/0/staged"):
        (store.path / "fsstore/drop" / name).mkdir(parents=True)
    Dropping(store).fs.settle()
    told = sorted(record.getMessage().removeprefix(f"{store.path}/fsstore/drop/") for record in caplog.records)
    assert told == [
        "gone/all: there is no such topic: its files are left alone",
        "t/all/sent/AA-²: no file was sent there: it is left alone",
        "t/٣: no queue has that name: its files are left alone",
    ]


def test_a_reopened_handle_is_refused_to_nobody(few: None, store: MessageStore) -> None:
    mount = Dropping(store)
    mount.drop(".file")
    mount.fs.accounts.caller = ALICE
    for _ in range(3):
        mount.open(f"{DROP}/.file")
    assert refused_with(lambda: mount.open(f"{DROP}/.file")) == errno.EMFILE
    with mount.fs.handles._reopening(ALICE):
        mount.open(f"{DROP}/.file")
    assert mount.held(Resource.DESCRIPTORS) == 4


def test_the_next_server_is_told_of_open_files_alone_and_whose_they_are(store: MessageStore) -> None:
    Dropping(store).drop(".seen")
    memory = Handover.create()
    first, records = Dropping(store), Handover(memory)
    first.fs.survive(records)
    first.stat(f"{DROP}/.seen")
    made, opened = first.create(".open")
    first.drop(".waits")
    again_opened = patiently(first.fs.open, first.stat(f"{DROP}/.waits").inode, os.O_RDONLY)
    assert [text.kind for _, text, *_ in records.nodes.all()].count("DropFile") == 2
    patiently(first.fs.handles.release, again_opened.handle)
    assert [number for number, text, *_ in records.nodes.all() if text.kind == "DropFile"] == [made.inode]
    first.fs._background.shutdown(cancel_futures=True)
    later = Dropping(store)
    later.fs.accounts.caller = BOB
    later.fs.survive(Handover(memory))
    later.fs.settle()
    assert (later.held(Resource.DESCRIPTORS), later.held(Resource.DESCRIPTORS, BOB)) == (1, 0)
    assert later.stat(f"{DROP}/.open").inode == made.inode
    assert later.stat(f"{DROP}/.waits").inode > made.inode
    patiently(later.fs.write, opened.handle, 0, b"goes on")
    patiently(later.fs.handles.release, opened.handle)
    assert later.cat(f"{DROP}/.open") == b"goes on"
    assert later.held(Resource.DESCRIPTORS) == 0
    os.close(memory)

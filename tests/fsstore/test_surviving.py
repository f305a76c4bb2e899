"""What one user may have the next server know: opens and names, within a share."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Message, MessageStore
from fsstore import accounts
from fsstore.accounts import Bound, Resource
from fsstore.handover.layout import RECORD_BYTES
from fsstore.handover.memory import Handover
from fsstore.handover.records import LEAST_CHARGED_BYTES
from fsstore.handover.shares import QUANTUM_BYTES
from fsstore.interface import AT_END, FilesystemError
from fsstore.tree.figures import handover_figures
from tests.fsstore.conftest import Mount, open_small, patiently

ANN, BOB = 1001, 1002
SHARE, FLOOR = 64, 8


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = Handover.create()
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def surviving(memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    """A mount of which users get little, with a topic and a key."""
    monkeypatch.setitem(accounts.BOUNDS, Resource.NAMES, Bound(SHARE * 8, FLOOR))
    monkeypatch.setitem(accounts.BOUNDS, Resource.HANDOVER_BYTES, Bound(1 << 20, QUANTUM_BYTES))
    with MessageStore.open(tmp_path / "store", create=True) as store:
        store.create_topic("t", 1)
        for number in range(200):
            store.put(Message("t", b"%d" % number, (f"key{number}",)), 0)
        mount = Mount(store)
        mount.fs.survive(Handover(memory))
        mount.fs.accounts.caller = ANN
        yield mount


def names_of(memory: int) -> int:
    return handover_figures(Handover(memory)).names


def test_names_that_are_looked_up_are_a_share_and_nothing_that_outlives_the_daemon(
    surviving: Mount, memory: int
) -> None:
    first = surviving.stat("t/append@keys=0").inode
    before = names_of(memory)
    handle = surviving.open("t/append@keys=open", os.O_WRONLY).handle
    for number in range(1, 10 * SHARE):
        surviving.stat(f"t/append@keys={number}")
    assert surviving.fs.accounts.held(ANN, Resource.NAMES) == SHARE
    assert names_of(memory) == before + 1
    with pytest.raises(FilesystemError) as stale:
        surviving.fs.getattr(first)
    assert stale.value.errno == errno.ESTALE
    surviving.fs.forget(first, 1)
    surviving.fs.write(handle, 0, b"line\n")
    surviving.fs.handles.release(handle)
    surviving.publish("t/append@keys=0", b"line\n")
    surviving.fs.accounts.caller = BOB
    surviving.publish("t/append@keys=0", b"line\n")


def test_a_stream_that_was_listed_outlives_the_daemon_once_it_is_open(folder: Path, memory: int) -> None:
    with open_small(folder) as store:
        store.put(Message("t", b"body"), 0)
    with open_small(folder) as store:
        mount = Mount(store)
        mount.fs.survive(Handover(memory))
        mount.stat("t")
        before = names_of(memory)
        (inode, _) = mount.entries("")[b"t.log"]
        assert inode
        assert names_of(memory) == before
        opened = mount.open("t.log")
        assert mount.stat("t.log").inode == inode
        assert names_of(memory) == before + 1
        assert Mount(store).fs.survive(Handover(memory)).count(inode) == 1
        mount.fs.handles.release(opened.handle)


@pytest.mark.parametrize("name", ["t/append@keys=one", "t/0/append", "@store/status.json"])
def test_a_program_that_opens_a_file_while_two_servers_die_opens_it(folder: Path, memory: int, name: str) -> None:
    with open_small(folder) as store:
        store.put(Message("t", b"body"), 0)
        first, second, third = (Mount(store) for _ in range(3))
        first.fs.survive(Handover(memory))
        looked_up = first.stat(name).inode
        second.fs.survive(Handover(memory))
        with pytest.raises(FilesystemError) as stale:
            second.fs.open(looked_up, os.O_RDONLY)
        assert stale.value.errno == errno.ESTALE, "the kernel looks the name up again, but only once"
        looked_up = second.stat(name).inode
        third.fs.survive(Handover(memory))
        assert patiently(lambda: third.fs.getattr(looked_up)).inode == looked_up


def test_a_user_who_has_a_share_of_names_open_gets_no_more(surviving: Mount) -> None:
    handles = [surviving.open(f"t/append@keys={number}").handle for number in range(SHARE)]
    with pytest.raises(FilesystemError) as refused:
        surviving.stat("t/append@keys=more")
    assert refused.value.errno == errno.ENOBUFS
    surviving.fs.handles.release(handles[0])
    surviving.stat("t/append@keys=more")


@pytest.mark.parametrize("pattern", ["t/keys/key{}@all", "t/0/@{}"])
def test_other_names_that_users_make_up_are_a_share(surviving: Mount, memory: int, pattern: str) -> None:
    times = [surviving.stat(f"t/0/{number}").mtime_ns // 1_000_000 for number in range(100)]
    for number, time_ms in enumerate(times):
        surviving.stat(pattern.format(number if "key" in pattern else time_ms))
    assert surviving.fs.accounts.held(ANN, Resource.NAMES) <= SHARE
    assert names_of(memory) < SHARE + 30


def test_names_are_counted_to_the_same_user_after_a_restart(surviving: Mount, memory: int) -> None:
    listing = surviving.fs.opendir(surviving.stat("t/keys/key1@all").inode).handle
    handle = surviving.open("t/append@keys=1", os.O_WRONLY).handle
    surviving.stat("t/keys/key2@all")
    again = Mount(surviving.fs._store)
    again.fs.survive(Handover(memory))
    assert again.fs.accounts.held(ANN, Resource.NAMES) == 3
    assert again.fs.accounts.held(ANN, Resource.HANDOVER_BYTES) > 0
    again.fs.handles.release_directory(listing)
    again.fs.handles.release(handle)
    assert again.fs.accounts.held(ANN, Resource.HANDOVER_BYTES) < QUANTUM_BYTES
    assert again.fs.accounts.held(ANN, Resource.NAMES) == 2


@pytest.mark.parametrize("is_known", [True, False], ids=["before", "after"])
def test_half_a_message_is_not_published_by_the_next_server(surviving: Mount, memory: int, is_known: bool) -> None:
    """Whichever of them refused the write behind it, perhaps before it came to the file."""
    handle = surviving.open("t/append", os.O_WRONLY).handle
    surviving.fs.write(handle, AT_END, b"half")
    surviving.fs.handles.keep(handle, 6, 0)
    if is_known:
        surviving.fs.write_refused(handle, 7, errno.ENOSPC)
    again = Mount(surviving.fs._store)
    again.fs.survive(Handover(memory))
    if not is_known:
        again.fs.write_refused(handle, 7, errno.ENOSPC)
    with pytest.raises(FilesystemError) as refused:
        again.fs.flush(handle)
    assert refused.value.errno == errno.ENOSPC
    again.fs.handles.release(handle)
    assert surviving.fs._store.bounds("t", 0).max_offset == 200


def test_opens_beyond_a_share_are_refused_and_leave_nothing(surviving: Mount, memory: int) -> None:
    most = (1 << 17) // (LEAST_CHARGED_BYTES + RECORD_BYTES)
    handles = [surviving.open("t/0/5").handle for _ in range(most)]
    for path in ("t/0/6", "t/append", "t", "t/0.log"):
        with pytest.raises(FilesystemError) as refused:
            surviving.fs.opendir(surviving.stat(path).inode) if path == "t" else surviving.open(path)
        assert refused.value.errno == errno.ENOBUFS
    assert handover_figures(Handover(memory)).handles == len(handles)
    surviving.fs.accounts.caller = BOB
    surviving.publish("t/append", b"line\n")
    surviving.fs.accounts.caller = ANN
    for handle in handles:
        surviving.fs.handles.release(handle)
    surviving.publish("t/append", b"line\n")
    assert handover_figures(Handover(memory)).handles == 0

"""A store that was moved away is not made again where it was, and another one in its place is not taken for it."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from engine import (
    AnotherStoreError,
    FlushFailedError,
    Message,
    MessageStore,
    OpenMode,
    StoreError,
    back_up,
)
from engine.settings import identity as identity_module
from tests.engine.storetools import SMALL, bodies, contents, opened

READING = (OpenMode.READ_ONLY, OpenMode.FOLLOW)


def fill(path: Path) -> None:
    with opened(path) as store:
        for number in range(30):
            store.put(Message("orders", b"body-%d" % number * 20, ["K"]), 0)


def named(path: Path) -> str:
    found = json.loads((path / "fsstore" / "id").read_bytes())
    assert found["inode"] == path.stat().st_ino
    return str(found["id"])


# its name can't be read


@pytest.mark.parametrize("mode", [*READING, OpenMode.WRITE])
def test_a_store_whose_name_the_disk_refuses_is_known_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: OpenMode
) -> None:
    path, before = tmp_path / "store", tmp_path / "before"
    fill(path)
    with opened(path) as store:
        identity = store.identity
    name = named(path)

    def refused(file: Path, most_bytes: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error", str(file))

    monkeypatch.setattr(identity_module, "read_file", refused)
    with MessageStore.open(path, replace(SMALL, mode=mode, identity=identity)) as store:
        assert store.bounds("orders", 0).max_offset == 30
    assert named(path) == name
    path.rename(before)
    shutil.copytree(before, path)
    with pytest.raises(AnotherStoreError):
        MessageStore.open(path, replace(SMALL, mode=mode, identity=identity))


def test_a_name_that_can_not_be_understood_is_made_anew(tmp_path: Path) -> None:
    fill(tmp_path)
    with opened(tmp_path) as store:
        identity = store.identity
    (tmp_path / "fsstore" / "id").write_bytes(b"")
    with MessageStore.open(tmp_path, replace(SMALL, mode=OpenMode.FOLLOW, identity=identity)) as store:
        assert store.identity.name is None
    with opened(tmp_path) as store:
        assert store.identity.name == named(tmp_path) != identity.name


# while it is open


def put_to_new_topic(store: MessageStore) -> None:
    store.put(Message("another", b"body"), 0)


def put_to_new_queue(store: MessageStore) -> None:
    store.put(Message("orders", b"body"), 3)


def put_much(store: MessageStore) -> None:
    for _ in range(200):  # several files of log, queue and index
        store.put(Message("orders", b"x" * 500, ["K1", "K2", "K3"]), 0)


def make_topic(store: MessageStore) -> None:
    store.create_topic("made", 2)


def commit(store: MessageStore) -> None:
    store.commit_offset("group", "orders", 0, 1)


WORK = (put_to_new_topic, put_to_new_queue, put_much, make_topic, commit, MessageStore.flush, MessageStore.clean)


def put_another(path: Path) -> None:
    fill(path.with_name("another"))
    path.with_name("another").rename(path)


PLACES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda path: None,
    "an empty folder": Path.mkdir,
    "another store": put_another,
}


@pytest.mark.parametrize("preallocate", [True, False])
@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_made_where_a_store_was_that_was_moved_away(
    tmp_path: Path, work: Callable[[MessageStore], object], place: str, *, preallocate: bool
) -> None:
    path, moved = tmp_path / "store", tmp_path / "moved"
    fill(path)
    store = MessageStore.open(path, replace(SMALL, preallocate=preallocate))
    store.put(Message("orders", b"before"), 0)
    path.rename(moved)
    PLACES[place](path)
    before = contents(path), sorted(path.rglob("*"))
    with suppress(StoreError, OSError):
        work(store)
    with suppress(FlushFailedError, OSError):
        store.close()
    assert (contents(path), sorted(path.rglob("*"))) == before
    assert path.exists() == (place != "nothing")
    with MessageStore.open(moved, SMALL) as found:
        assert bodies(found, "orders", 0)[30] == b"before"


def test_who_puts_into_a_store_that_was_moved_is_told(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    store = MessageStore.open(tmp_path / "store", SMALL)
    (tmp_path / "store").rename(tmp_path / "moved")
    with pytest.raises(OSError, match="moved away or unmounted") as caught:
        put_to_new_queue(store)
    assert caught.value.errno == errno.ESTALE
    assert caught.value.filename == str(tmp_path / "store")
    (tmp_path / "moved").rename(tmp_path / "store")
    put_to_new_queue(store)
    store.close()


def test_a_log_folder_on_a_disk_that_went_is_not_made_anew(tmp_path: Path) -> None:
    path, log = tmp_path / "store", tmp_path / "disk" / "log"
    log.parent.mkdir()
    config = replace(SMALL, commit_log_paths=(log,))
    store = MessageStore.open(path, config, create=True)
    store.put(Message("orders", b"before"), 0)
    log.parent.rename(tmp_path / "unmounted")
    log.parent.mkdir()
    with pytest.raises(OSError, match="moved away or unmounted"):
        put_much(store)
    with suppress(FlushFailedError, OSError):
        store.close()
    assert list(log.parent.iterdir()) == []


def test_what_was_held_is_free_after_the_close(tmp_path: Path) -> None:
    for _ in range(2):
        fill(tmp_path / "store")
        shutil.rmtree(tmp_path / "store")


# the next user of the folder


@pytest.mark.parametrize("mode", list(OpenMode))
def test_the_next_one_finds_the_store_that_it_was_told_of(tmp_path: Path, mode: OpenMode) -> None:
    fill(tmp_path / "store")
    with MessageStore.open(tmp_path / "store", replace(SMALL, mode=mode)) as store:
        identity = store.identity
    (tmp_path / "store").rename(tmp_path / "moved")
    with MessageStore.open(tmp_path / "moved", replace(SMALL, mode=mode, identity=identity)) as store:
        assert store.identity == identity


@pytest.mark.parametrize("mode", list(OpenMode))
@pytest.mark.parametrize("place", [*PLACES, "a copy", "a file"])
def test_the_next_one_refuses_what_is_there_instead(tmp_path: Path, mode: OpenMode, place: str) -> None:
    path, moved = tmp_path / "store", tmp_path / "moved"
    fill(path)
    with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
        identity = store.identity
    path.rename(moved)
    if place == "a copy":
        shutil.copytree(moved, path)
    elif place == "a file":
        path.touch()
    else:
        PLACES[place](path)
    before = contents(path)
    with pytest.raises(AnotherStoreError, match="is not the store that was there"):
        MessageStore.open(path, replace(SMALL, mode=mode, identity=identity), create=mode is OpenMode.WRITE)
    assert contents(path) == before
    assert not path.is_dir() or bool(before) == bool(list(path.iterdir()))


@pytest.mark.parametrize("mode", list(OpenMode))
def test_the_next_one_refuses_a_store_that_was_made_anew_in_the_same_folder(tmp_path: Path, mode: OpenMode) -> None:
    fill(tmp_path)
    with MessageStore.open(tmp_path, replace(SMALL, mode=mode)) as store:
        identity = store.identity
    for member in tmp_path.iterdir():
        if member.is_dir():
            shutil.rmtree(member)
        else:
            member.unlink()
    fill(tmp_path)
    with pytest.raises(AnotherStoreError, match="another store is there now"):
        MessageStore.open(tmp_path, replace(SMALL, mode=mode, identity=identity))


def test_a_stump_of_a_store_is_refused_too(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    with MessageStore.open(tmp_path / "store", SMALL) as store:
        identity = store.identity
    (tmp_path / "store").rename(tmp_path / "moved")
    (tmp_path / "store" / "consumequeue" / "orders" / "0").mkdir(parents=True)
    with pytest.raises(AnotherStoreError):
        MessageStore.open(tmp_path / "store", replace(SMALL, identity=identity))


# the name


def test_a_name_is_made_once_and_a_copy_gets_its_own_when_it_is_written(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    name = named(tmp_path / "store")
    fill(tmp_path / "store")
    assert named(tmp_path / "store") == name
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    for mode in READING:
        with MessageStore.open(tmp_path / "copy", replace(SMALL, mode=mode)) as store:
            assert store.identity.name == ""
    with MessageStore.open(tmp_path / "copy", SMALL) as store:
        assert store.identity.name == named(tmp_path / "copy") != name
    assert named(tmp_path / "store") == name


def test_a_backup_has_a_name_of_its_own(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    back_up(tmp_path / "store", tmp_path / "backup", config=SMALL)
    backup = named(tmp_path / "backup")
    assert backup != named(tmp_path / "store")
    fill(tmp_path / "store")
    back_up(tmp_path / "store", tmp_path / "backup", config=SMALL)
    assert named(tmp_path / "backup") == backup


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version": 2}', b'{"version": 1, "id": 5}', b"\xff"])
def test_a_name_that_cannot_be_understood_is_made_again(tmp_path: Path, content: bytes) -> None:
    fill(tmp_path / "store")
    (tmp_path / "store" / "fsstore" / "id").write_bytes(content)
    fill(tmp_path / "store")
    assert len(named(tmp_path / "store")) == 32

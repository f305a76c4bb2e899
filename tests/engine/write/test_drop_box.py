"""Dropped files across deaths of every kind: a copy of the store at any moment has each file once."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from pathlib import Path

import pytest

from engine import (
    DropBox,
    FileOwner,
    Message,
    MessageStore,
    PutResult,
    ReadOnlyStoreError,
    StoreConfig,
    TopicNotFoundError,
)
from engine.errors import IllegalMessageError
from tests.engine.storetools import SMALL, opened

OWNER = FileOwner(os.getuid(), os.getgid(), 0o640)


def write(box: DropBox, name: str, body: bytes) -> None:
    _, descriptor = box.create(name, OWNER)
    os.write(descriptor, body)
    os.close(descriptor)


def bodies(store: MessageStore) -> list[bytes]:
    return sorted(bytes(message.body) for queue in store.queues("t") for message in store.read("t", queue, 0))


def settled(path: Path) -> list[bytes]:
    """The messages of a store that is opened after a death."""
    with opened(path) as store:
        for found in store.drop_boxes():
            assert store.drop_box(found.topic, found.queue).settle() == []
        return bodies(store)


@pytest.mark.parametrize("moment", ["before it is put", "after it was put", "after it was sent"])
def test_a_death_at_any_moment_leaves_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    put = MessageStore.put

    def put_and_copy(store: MessageStore, message: Message, queue: int | None = None) -> PutResult:
        if moment == "before it is put":
            shutil.copytree(store.path, tmp_path / "copy")
        result = put(store, message, queue)
        if moment == "after it was put":
            shutil.copytree(store.path, tmp_path / "copy")
        return result

    with opened(tmp_path / "store") as store:
        store.create_topic("t", 2)
        box = store.drop_box("t")
        for name in ("waits~", "sent"):
            write(box, name, name.encode())
        monkeypatch.setattr(MessageStore, "put", put_and_copy)
        box.send(box.files["sent"], "sent")
        monkeypatch.undo()
        if moment == "after it was sent":
            shutil.copytree(store.path, tmp_path / "copy")
    for _ in range(2):
        assert settled(tmp_path / "copy") == [b"sent"]
    with opened(tmp_path / "copy") as store:
        box = store.drop_box("t")
        assert set(box.files) == {"waits~", "sent"}
        store.flush()
        assert box.discard(box.files["sent"])
        assert set(box.files) == {"waits~"}
        box.send(box.files["waits~"], "waited")
        assert bodies(store) == [b"sent", b"waits~"]


def test_a_message_that_the_log_lost_is_put_again(tmp_path: Path) -> None:
    """As when the machine dies before the log is on disk."""
    with opened(tmp_path / "store") as store:
        store.create_topic("t", 1)
        store.flush()
        shutil.copytree(store.path, tmp_path / "before")
        box = store.drop_box("t", 0)
        write(box, "file", b"body")
        box.send(box.files["file"], "file")
        shutil.copytree(store.path / "fsstore/drop", tmp_path / "before/fsstore/drop")
    assert settled(tmp_path / "before") == [b"body"]


def test_what_is_not_on_disk_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", 1)
        box = store.drop_box("t", 0)
        write(box, "file", b"body")
        box.send(box.files["file"], "file")
        file = box.files["file"]
        assert not box.discard(file)
        store.flush()
        assert box.discard(file)
        assert (box.files, box.by_number) == ({}, {})
        assert [path for path in (tmp_path / "fsstore/drop").rglob("*") if path.is_file()] == []


def test_what_can_not_be_put_is_staged_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> PutResult:
        raise IllegalMessageError("no")

    with opened(tmp_path) as store:
        store.create_topic("t", 1)
        box = store.drop_box("t", 0)
        write(box, ".file", b"body")
        with monkeypatch.context() as patch:
            patch.setattr(MessageStore, "put", refuse)
            with pytest.raises(IllegalMessageError):
                box.send(box.files[".file"], "file")
        assert (set(box.files), box.files[".file"].sent) == ({".file"}, "")
        store.delete_topic("t")
        with pytest.raises(TopicNotFoundError):
            box.send(box.files[".file"], "file")
        assert store.topics() == []
        store.create_topic("t", 1)
        box.send(box.files[".file"], "file")
        assert bodies(store) == [b"body"]


def test_names_move_and_go_and_messages_stay(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", 1)
        box = store.drop_box("t", 0)
        for name in ("a", "b", "c"):
            write(box, name, name.encode())
        box.send(box.files["a"], "a")
        box.send(box.files["b"], "b")
        box.rename(box.files["b"], "a")
        box.rename(box.files["c"], "a")
        assert {name: box.path(file).read_bytes() for name, file in box.files.items()} == {"a": b"c"}
        box.send(box.files["a"], "a")
        box.change(box.files["a"])
        box.path(box.files["a"]).write_bytes(b"changed")
        box.send(box.files["a"], "a")
        box.remove(box.files["a"])
        assert box.files == {}
        assert bodies(store) == [b"a", b"b", b"c", b"changed"]
    with opened(tmp_path) as store:
        store.drop_box("t", 0).settle()
        assert len(bodies(store)) == 4


def test_there_is_none_where_nothing_is_written_or_no_such_topic_is(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for missing in (("t", None), ("t", 0)):
            with pytest.raises(TopicNotFoundError):
                store.drop_box(*missing)
        store.create_topic("t", 1)
        with (
            MessageStore.open(tmp_path, StoreConfig(mode=SMALL.mode.FOLLOW)) as follower,
            pytest.raises(ReadOnlyStoreError),
        ):
            follower.drop_box("t", 0)


KEY = "0123456789ABCDEF" * 2


def planted(path: Path, name: str, body: bytes = b"planted") -> Path:
    """A file in a store that is closed, as another store's `sent` may have one; where it is."""
    file = path / "fsstore/drop/t/0/sent" / name / "file"
    file.parent.mkdir(parents=True)
    file.write_bytes(body)
    return file


def with_topic(path: Path) -> Path:
    with opened(path) as store:
        store.create_topic("t", 1)
    return path


@pytest.mark.parametrize(
    "name", ["AA-0", f"{KEY}-²", f"{KEY}-٣", f"{KEY}-", f"{KEY}-0-1", f"{KEY}-00", "nl\nforged", KEY]
)
def test_what_we_did_not_send_is_left_alone(tmp_path: Path, name: str) -> None:
    file = planted(with_topic(tmp_path), name)
    with opened(tmp_path) as store:
        box = store.drop_box("t", 0)
        (sentence,) = box.settle()
        assert sentence == f"{file.parent}: no file was sent there: it is left alone"
        assert (box.files, bodies(store), file.read_bytes()) == ({}, [], b"planted")


def test_no_file_there_is_left_alone_too(tmp_path: Path) -> None:
    file = planted(with_topic(tmp_path), f"{KEY}-0")
    file.unlink()
    os.mkfifo(file)
    with opened(tmp_path) as store:
        assert len(store.drop_box("t", 0).settle()) == 1
        assert bodies(store) == []


def test_a_folder_that_a_kill_left_empty_goes(tmp_path: Path) -> None:
    file = planted(with_topic(tmp_path), f"{KEY}-0")
    file.unlink()
    with opened(tmp_path) as store:
        assert store.drop_box("t", 0).settle() == []
        assert not file.parent.exists()


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    file = planted(with_topic(tmp_path), f"{KEY}-0")
    os.truncate(file, 1 << 31)
    with opened(tmp_path) as store:
        box = store.drop_box("t", 0)
        tracemalloc.start()
        (sentence,) = box.settle()
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert sentence.endswith("body of 2,147,483,648 bytes is over the limit of 4,194,304: it waits in its box")
        assert most_bytes < 1 << 20
        assert (bodies(store), set(box.files), box.files["file"].sent) == ([], {"file"}, "")


def test_what_can_not_be_put_waits_and_the_others_are_put(tmp_path: Path) -> None:
    with_topic(tmp_path)
    for number, name in enumerate(("0", "a\1b", "2")):
        file = planted(tmp_path, f"{KEY[:-1]}{number}-0", b"%d" % number)
        file.rename(file.with_name(name))
    with opened(tmp_path) as store:
        box = store.drop_box("t", 0)
        (sentence,) = box.settle()
        assert "it waits in its box" in sentence
        assert (bodies(store), set(box.files)) == ([b"0", b"2"], {"0", "a\1b", "2"})
        store.flush()
        assert [box.discard(file) for file in box.sent] == [True, True]
        assert set(box.files) == {"a\1b"}


def test_what_may_be_a_message_waits_where_the_log_begins_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = planted(with_topic(tmp_path), f"{KEY}-0")
    with opened(tmp_path) as store:
        monkeypatch.setattr(MessageStore, "log_begin", 1)
        box = store.drop_box("t", 0)
        (sentence,) = box.settle()
        monkeypatch.undo()
        assert sentence == f"{file}: the log does not tell any more whether it is a message: it waits in its box"
        assert (bodies(store), box.path(box.files["file"]).read_bytes()) == ([], b"planted")


def test_what_can_not_wait_under_its_name_is_kept_for_the_next_opening(tmp_path: Path) -> None:
    """Its name is taken by another file that waits."""
    file = planted(with_topic(tmp_path), f"{KEY}-0", b"x" * 100)
    staged = tmp_path / "fsstore/drop/t/0/staged/file"
    staged.parent.mkdir()
    staged.write_bytes(b"another")
    with opened(tmp_path, max_message_bytes=99) as store:
        box = store.drop_box("t", 0)
        assert len(box.settle()) == 1
        assert (box.sent, box.path(box.files["file"])) == ([], staged)
        assert file.read_bytes() == b"x" * 100
    assert settled(tmp_path) == [b"x" * 100]


def test_boxes_that_are_none_are_named(tmp_path: Path) -> None:
    drop = with_topic(tmp_path) / "fsstore/drop"
    for name in ("t/٣", "t/007", "t/99999999999", "t/other", "t/0/sent"):
        (drop / name).mkdir(parents=True)
    with opened(tmp_path) as store:
        found = {box.path.name: bool(box.problem) for box in store.drop_boxes()}
    assert found == {"٣": True, "007": True, "99999999999": True, "other": True, "0": False}


def test_a_file_is_where_it_is_while_it_is_put(tmp_path: Path) -> None:
    """Between begin and finish, which a thread may do the work of, box and disk agree."""
    with opened(tmp_path) as store:
        store.create_topic("t", 1)
        box = store.drop_box("t", 0)
        write(box, ".file", b"body")
        file = box.files[".file"]
        sending = box.begin(file, "file")
        assert (box.path(file).read_bytes(), list(box.files), sending.is_done) == (b"body", [".file"], False)
        sending.put()
        assert (box.path(file).read_bytes(), list(box.files), sending.is_done) == (b"body", [".file"], True)
        box.finish(sending)
        assert (box.path(file).read_bytes(), list(box.files)) == (b"body", ["file"])
        assert bodies(store) == [b"body"]


def test_a_file_in_place_of_a_folder_is_told(tmp_path: Path) -> None:
    drop = with_topic(tmp_path) / "fsstore/drop"
    (drop / "t/0").mkdir(parents=True)
    for name in ("staged", "sent"):
        (drop / "t/0" / name).touch()
        with opened(tmp_path) as store, pytest.raises(NotADirectoryError, match=name):
            store.drop_box("t", 0)
        with opened(tmp_path) as store:
            assert [bool(found.problem) for found in store.drop_boxes()] == [name == "sent"]
        (drop / "t/0" / name).unlink()
    shutil.rmtree(drop)
    os.mkfifo(drop)
    with opened(tmp_path) as store, pytest.raises(NotADirectoryError):
        store.drop_boxes()

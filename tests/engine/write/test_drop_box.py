"""Dropped files across deaths of every kind: at whatever moment a store is copied, its copy has each file once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from engine import DropBox, Message, MessageStore, PutResult, ReadOnlyStoreError, StoreConfig, TopicNotFoundError
from engine.errors import IllegalMessageError
from tests.engine.storetools import SMALL, opened

LATER = 1 << 60


def write(box: DropBox, name: str, body: bytes) -> None:
    _, descriptor = box.create(name)
    os.write(descriptor, body)
    os.close(descriptor)


def bodies(store: MessageStore) -> list[bytes]:
    return sorted(bytes(message.body) for queue in store.queues("t") for message in store.read("t", queue, 0))


def settled(path: Path) -> list[bytes]:
    """The messages of a store that somebody opens after a death."""
    with opened(path) as store:
        for topic, queue in store.drop_boxes():
            store.drop_box(topic, queue).settle()
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
        box.clean(LATER)
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
        assert box.clean(LATER) == []
        store.flush()
        assert box.clean(0) == []
        assert [file.name for file in box.clean(LATER)] == ["file"]
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

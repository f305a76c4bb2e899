"""A folder in place of a file of the store, or a file in place of a folder: opening and publishing name it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine import (
    ConfigFileError,
    Message,
    MessageStore,
    ObstructedError,
    OpenMode,
    ProblemKind,
    check_store,
    repair_store,
)
from tests.engine.storetools import SMALL, bodies, contents, nothing_left_open, opened, require_clean

KEPT_FILES = [
    "abort",
    "checkpoint",
    "lock",
    "config/retention.json",
    "config/sizes.json",
    "config/topics.json",
    "config/topics.json.bak",
    "fsstore/clean.json",
    "fsstore/coverage.json",
    "fsstore/deleted.json",
]
BODIES = [b"kept-%d" % number for number in range(40)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of one queue, closed."""
    with opened(tmp_path / "store") as store:
        put(store, BODIES)
    return tmp_path / "store"


def put(store: MessageStore, texts: list[bytes]) -> None:
    for text in texts:
        store.put(Message("T", text, ["key"]), 0)


def publish_on(store: MessageStore, stored: list[bytes]) -> None:
    """Publish until a message is refused, adding the others to `stored`."""
    for number in range(1000):
        put(store, [b"more-%d" % number])
        stored.append(b"more-%d" % number)


def make_folder(path: Path) -> Path:
    """A folder with something in it, where a file was or will be; the file is kept beside it."""
    if path.exists():
        path.rename(path.with_name("kept"))
    path.mkdir()
    (path / "something").touch()
    return path


def take_away(folder: Path) -> None:
    """The remedy for a person."""
    (folder / "something").unlink()
    folder.rmdir()
    if folder.with_name("kept").exists():
        folder.with_name("kept").rename(folder)


@pytest.mark.parametrize("name", KEPT_FILES)
def test_a_folder_in_place_of_a_kept_file_is_named_and_nothing_is_changed(path: Path, name: str) -> None:
    folder = make_folder(path / name)
    before = contents(path)
    with nothing_left_open():
        for opening in (lambda: MessageStore.open(path, SMALL), lambda: list(repair_store(path))):
            with pytest.raises(ObstructedError) as caught:
                opening()
            assert (caught.value.path, caught.value.needed) == (folder, "file")
    assert name in [problem.path for problem in check_store(path) if problem.kind is ProblemKind.FOREIGN_FILE]
    assert contents(path) == before
    take_away(folder)
    with opened(path) as store:
        assert bodies(store, "T", 0) == BODIES


@pytest.mark.parametrize("mode", [OpenMode.READ_ONLY, OpenMode.FOLLOW])
@pytest.mark.parametrize("name", sorted({*KEPT_FILES} - {"lock", "config/retention.json"}))
def test_who_only_reads_does_without_a_kept_file(path: Path, name: str, mode: OpenMode) -> None:
    make_folder(path / name)
    with MessageStore.open(path, replace(SMALL, mode=mode)) as store:
        store.refresh()
        assert bodies(store, "T", 0) == BODIES


@pytest.mark.parametrize("mode", list(OpenMode))
@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index", "config", "fsstore"])
def test_a_file_in_place_of_a_folder_is_named(path: Path, name: str, mode: OpenMode) -> None:
    (path / name).rename(path / "kept")
    (path / name).write_bytes(b"what is this")
    with nothing_left_open(), pytest.raises(ObstructedError) as caught:
        MessageStore.open(path, replace(SMALL, mode=mode))
    assert (caught.value.path, caught.value.needed) == (path / name, "folder")


@pytest.mark.parametrize("name", ["commitlog/00000000000000008192", "consumequeue/T/0/00000000000000001280"])
def test_publishing_into_a_folder_stores_nothing_and_goes_on_when_it_is_gone(path: Path, name: str) -> None:
    folder = make_folder(path / name)
    stored = list(BODIES)
    with MessageStore.open(path, replace(SMALL, preallocate=False)) as store:
        with pytest.raises(ObstructedError) as caught:
            publish_on(store, stored)
        assert caught.value.path == folder
        with pytest.raises(ObstructedError):
            store.put_lines("T", b"line\n" * 1000, 0)
        assert bodies(store, "T", 0) == stored
        assert store.read_only_reason is None
        take_away(folder)
        put(store, [b"last"])
        assert bodies(store, "T", 0) == [*stored, b"last"]
    require_clean(check_store(path))


def test_publishing_into_a_folder_of_the_preallocated_log_stores_nothing(path: Path) -> None:
    folder = make_folder(path / "commitlog" / "00000000000000008192")
    with MessageStore.open(path, SMALL) as store:
        with pytest.raises(ObstructedError):
            store.put_lines("T", b"line\n" * 1000, 0)
        assert bodies(store, "T", 0) == BODIES
        take_away(folder)
        put(store, [b"last"])
        assert bodies(store, "T", 0) == [*BODIES, b"last"]
    require_clean(check_store(path))


def test_a_folder_among_the_index_files_does_not_keep_the_index_from_being_rebuilt(path: Path) -> None:
    (file,) = (path / "index").iterdir()
    file.unlink()
    folder = make_folder(file)
    with MessageStore.open(path, SMALL) as store:
        assert [bytes(message.body) for message in store.query("T", "key", 1)] == [BODIES[-1]]
    assert (folder / "something").exists()


def test_offsets_of_consumers_that_are_a_folder_are_a_config_file_that_is_not_understood(path: Path) -> None:
    make_folder(path / "config" / "consumerOffset.json")
    with MessageStore.open(path, SMALL) as store, pytest.raises(ConfigFileError, match="folder"):
        store.consumer_offsets()

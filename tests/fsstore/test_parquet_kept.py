"""Maps of Parquet files that are kept for later mounts: what they spare, when they are believed, what damage makes of
them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import MessageStore, OpenMode, StoreConfig
from fsstore.interface import FilesystemError
from fsstore.parquet import dataset, kept
from fsstore.parquet.file_map import FileMap
from fsstore.parquet.kept import Kept, decode, encode
from fsstore.parquet.layout import Layout
from tests.fsstore.parquetfiles import layout_of, mapped, rows, small_files
from tests.fsstore.test_parquet_tree import QUEUE, ParquetMount, mount_with

MESSAGES = 12_000
DAMAGED = 7


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of 12,000 messages in three files of the log, of which a mount has rendered every footer."""
    with MessageStore.open(tmp_path / "store", small_files(), create=True) as store:
        store.create_topic("orders", 1)
        store.put_lines("orders", b"".join(b"%0100d\n" % number for number in range(MESSAGES)), 0)
        store.flush()
        assert count(ParquetMount(store)) == MESSAGES
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(path) as opened:
        yield opened


def footer_rows(text: bytes) -> int:
    found = re.search(rb"fsstore\.range.{1,3}?(\d+)-(\d+).*?fsstore\.left_out.{1,3}?(\d+)", text, re.DOTALL)
    assert found is not None
    begin, end, left_out = map(int, found.groups())
    return end - begin - left_out


def count(mount: ParquetMount) -> int:
    """count(*), which reads the end of each file."""
    total = 0
    for name in mount.ls(QUEUE):
        opened = mount.open(f"{QUEUE}/{name}")
        size = mount.stat(f"{QUEUE}/{name}").size
        total += footer_rows(mount.read(opened.handle, size - 3000, 3000))
        mount.fs.handles.release(opened.handle)
    return total


def damage(path: Path, *, hide: bool) -> None:
    """Flip a byte of a body; `hide`: the file of the log gets back its time."""
    log = min((path / "commitlog").iterdir())
    before = log.stat()
    with log.open("r+b") as file:
        file.seek(log.read_bytes().index(b"%0100d" % DAMAGED))
        file.write(b"X")
    os.utime(log, ns=(0, before.st_mtime_ns if hide else before.st_mtime_ns + 1))


@pytest.mark.parametrize("mode", OpenMode)
def test_the_next_mount_reads_no_message_of_full_files(path: Path, mode: OpenMode) -> None:
    with MessageStore.open(path, StoreConfig(mode=mode)) as store:
        mount = ParquetMount(store)
        assert count(mount) == MESSAGES
        assert mount.parquet()["rendered_files"] == 1, "of three: the newest file of the log is not full"


def test_files_are_the_same_byte_for_byte(path: Path, store: MessageStore) -> None:
    mount = ParquetMount(store)
    found = [(name, mount.cat(f"{QUEUE}/{name}")) for name in mount.ls(QUEUE)]
    assert mount.parquet()["rendered_files"] == 1
    for file in (path / "fsstore" / "ranges").iterdir():
        file.write_bytes(b"")
    store.known_ranges.forget_log()
    mount = ParquetMount(store)
    assert [(name, mount.cat(f"{QUEUE}/{name}")) for name in mount.ls(QUEUE)] == found
    assert mount.parquet()["rendered_files"] == 3


def test_a_map_without_room_in_memory_is_not_rendered_again(store: MessageStore) -> None:
    mount = mount_with(store, memory_bytes=0)
    name = mount.ls(QUEUE)[0]
    for _ in range(3):
        mount.read(mount.open(f"{QUEUE}/{name}").handle, mount.stat(f"{QUEUE}/{name}").size - 1, 1)
    assert mount.parquet()["rendered_files"] == 0


def test_ranges_that_are_no_segments_are_not_kept(store: MessageStore) -> None:
    name = f"{0:020d}-{2_000:020d}.parquet"
    mount = ParquetMount(store)
    mount.cat(f"{QUEUE}/{name}")
    mount = ParquetMount(store)
    mount.cat(f"{QUEUE}/{name}")
    assert mount.parquet()["rendered_files"] == 1


def test_damage_that_changed_the_files_time_is_counted_at_once(path: Path) -> None:
    damage(path, hide=False)
    with MessageStore.open(path) as store:
        assert count(ParquetMount(store)) == MESSAGES - 1


def test_hidden_damage_is_counted_until_it_is_read_then_an_error_with_its_place_then_right(path: Path) -> None:
    with MessageStore.open(path) as store:
        physical_offset = store.get("orders", 0, DAMAGED).physical_offset
    damage(path, hide=True)
    with MessageStore.open(path) as store:
        mount = ParquetMount(store)
        assert count(mount) == MESSAGES
        name = mount.ls(QUEUE)[0]
        before, opened = mount.stat(f"{QUEUE}/{name}"), mount.open(f"{QUEUE}/{name}")
        with pytest.raises(FilesystemError, match=rf"physical offset {physical_offset}: message {DAMAGED} ") as error:
            mount.read(opened.handle, 0, before.size)
        assert error.value.errno == errno.EIO
        with pytest.raises(FilesystemError) as error:
            mount.fs.open(before.inode, os.O_RDONLY)
        assert error.value.errno == errno.ESTALE, "the kernel looks the name up again"
        assert count(mount) == MESSAGES - 1
        assert mount.stat(f"{QUEUE}/{name}").inode != before.inode
        assert [row["queue_offset"] for row in rows(mount.cat(f"{QUEUE}/{name}"))][:8] == [0, 1, 2, 3, 4, 5, 6, 8]
        with pytest.raises(FilesystemError):
            mount.read(opened.handle, 0, before.size)
    with MessageStore.open(path) as store:
        assert count(ParquetMount(store)) == MESSAGES - 1, "it is forgotten below the store, too"


def test_a_mount_that_only_reads_forgets_in_memory(path: Path) -> None:
    damage(path, hide=True)
    with MessageStore.open(path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        mount = ParquetMount(store)
        name = mount.ls(QUEUE)[0]
        assert count(mount) == MESSAGES
        with pytest.raises(FilesystemError):
            mount.cat(f"{QUEUE}/{name}")
        assert count(mount) == MESSAGES - 1


def test_damage_of_the_page_cache_after_a_check_is_noticed_by_the_bodies_too(path: Path) -> None:
    """The columns were read whole, and the body is damaged before its chunk is encoded."""
    with MessageStore.open(path) as store:
        mount = mount_with(store, memory_bytes=64 << 20)
        name = mount.ls(QUEUE)[0]
        handle = mount.open(f"{QUEUE}/{name}").handle
        mount.read(handle, 0, 5000)
        damage(path, hide=True)
        with pytest.raises(FilesystemError, match=r"physical offset"):
            mount.read(handle, 0, mount.stat(f"{QUEUE}/{name}").size)
        assert count(mount) == MESSAGES - 1


@pytest.fixture
def whole(store: MessageStore) -> Kept:
    layout = layout_of(store, "orders", end=3000)
    return Kept(layout, mapped(store, layout)[0])


def test_what_is_encoded_is_decoded(whole: Kept) -> None:
    found = decode(whole.layout.key, encode(whole))
    assert found is not None
    assert found.layout == whole.layout
    assert found.map.starts.tolist() == whole.map.starts.tolist()
    assert (found.map.sizes, found.map.footer, found.map.left_out) == (whole.map.sizes, whole.map.footer, 0)


def test_what_another_version_kept_is_rendered_anew(whole: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    content = encode(whole)
    monkeypatch.setattr(kept, "_LEAD", b"fsstore version 0\0")
    assert decode(whole.layout.key, content) is None


def test_a_newer_version_keeps_its_own_instead(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_LEAD", b"fsstore version 99999\0")
    for rendered in (3, 1):
        with MessageStore.open(path) as store:
            mount = ParquetMount(store)
            assert count(mount) == MESSAGES
            assert mount.parquet()["rendered_files"] == rendered


def test_content_that_cannot_be_right_is_refused(whole: Kept) -> None:
    layout, found = whole
    key, content = layout.key, encode(whole)
    lead = len(content) - len(found.footer)
    assert all(decode(key, content[:size]) is None for size in range(lead))
    [group] = layout.row_groups
    for other in (
        Layout(key, (group._replace(begin=1),), layout.size, layout.mtime_ms),
        Layout(key, (group._replace(end=2999),), layout.size, layout.mtime_ms),
        Layout(key, (group._replace(most_bytes=-1),), layout.size, layout.mtime_ms),
        Layout(key, layout.row_groups, 4096, layout.mtime_ms),
    ):
        assert decode(key, encode(Kept(other, found))) is None
    for size in (-1, 0, 1 << 60):
        sizes = ((size, *found.sizes[0][1:]),)
        assert decode(key, encode(Kept(layout, FileMap(found.starts, sizes, found.footer, 0)))) is None


def test_short_files_are_not_kept(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (store.path / "fsstore" / "ranges").iterdir():
        file.write_bytes(b"")
    monkeypatch.setattr(dataset, "LEAST_KEPT", MESSAGES)
    count(ParquetMount(store))
    assert all(not file.read_bytes() for file in (store.path / "fsstore" / "ranges").iterdir())


# footers in advance


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "empty", small_files(), create=True) as opened:
        opened.create_topic("orders", 2)
        yield opened


def publish(store: MessageStore, queue: int = 0) -> None:
    store.put_lines("orders", b"%0100d\n" % 7 * MESSAGES, queue)
    store.flush()


def look_ahead(mount: ParquetMount) -> int:
    """How many steps it took."""
    return 1 + sum(1 for _ in iter(lambda: mount.fs.look_ahead(0), True))


def test_what_was_written_is_looked_through_step_by_step(empty: MessageStore) -> None:
    mount = ParquetMount(empty)
    assert look_ahead(mount) == 1
    publish(empty)
    assert look_ahead(mount) == 1 + 2 + 1, "of three files of the log two are full; a queue is a step, too"
    assert mount.parquet()["rendered_files"] == 2
    publish(empty, 1)
    publish(empty)
    look_ahead(mount)
    assert (mount.parquet()["rendered_files"], look_ahead(mount)) == (7, 1)
    assert [len(list(ParquetMount(empty).ls(f"@parquet/topic=orders/queue={queue}"))) for queue in (0, 1)] == [6, 3]
    kept = {int(file.name) >> 20 for file in (empty.path / "fsstore" / "ranges").iterdir()}
    assert kept == {0, 1, 2, 3, 4, 6, 7}, "2 ended with a tail at first, as 5 does now; 8 is not full"


def test_what_was_there_before_is_not_read_in_advance(empty: MessageStore) -> None:
    publish(empty)
    mount = ParquetMount(empty)
    assert look_ahead(mount) == 1
    assert mount.parquet()["rendered_files"] == 0


def test_a_mount_that_only_reads_looks_at_nothing_in_advance(path: Path) -> None:
    with MessageStore.open(path, StoreConfig(mode=OpenMode.READ_ONLY)) as store:
        assert look_ahead(ParquetMount(store)) == 1


def test_a_topic_that_goes_meanwhile_is_passed_over(empty: MessageStore) -> None:
    mount = ParquetMount(empty)
    publish(empty)
    empty.create_topic("others", 1)
    empty.put_lines("others", b"%0100d\n" % 7 * MESSAGES, 0)
    empty.flush()
    assert not mount.fs.look_ahead(0)
    empty.delete_topic("orders")
    mount.fs.topics_changed()
    look_ahead(mount)
    assert mount.parquet()["rendered_files"] > 1

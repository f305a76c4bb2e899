"""`append`: publishing, options, all or nothing, errors that come late."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from engine import (
    FlushFailedError,
    FlushPolicy,
    IllegalMessageError,
    MessageStore,
    MessageTooLargeError,
    ReadOnlyStoreError,
    StoreFullError,
)
from fsstore.interface import AT_END, WHOLE_WRITE_BYTES, FilesystemError
from tests.engine.storetools import bodies
from tests.fsstore.conftest import Mount, break_disk, disk_of, expire, one_a_file, open_small, refused_with


@pytest.fixture(autouse=True)
def topic(store: MessageStore) -> None:
    store.create_topic("orders", 2)


def test_what_was_written_is_read_by_every_name(mount: Mount) -> None:
    mount.publish("orders/0/append@keys=K", b"body\n")
    for name in ("0/0", "0.log"):
        assert mount.cat(f"orders/{name}").rstrip() == b"body"
    assert mount.readlink("orders/0/@last") == mount.readlink("orders/0/@first") == "0" * 20
    assert mount.readlink("orders/keys/K") == "../0/" + "0" * 20


def test_a_topics_append_deals_messages_to_the_queues_in_turn(mount: Mount, store: MessageStore) -> None:
    mount.publish("orders/append", b"a\nb\n", b"c\n", b"d\n")
    assert bodies(store, "orders", 0) == [b"a", b"c"]
    assert bodies(store, "orders", 1) == [b"b", b"d"]


def test_options_in_the_name_hold_for_every_message(mount: Mount, store: MessageStore) -> None:
    mount.publish("orders/0/append@tags=paid,keys=A+B%2BC", b"one\n", b"two\nthree\n", b"rest")
    for offset in range(4):
        message = store.get("orders", 0, offset)
        assert (message.tags, message.keys) == ("paid", ["A", "B+C"])


def test_an_unterminated_line_is_published_by_fsync_and_by_close(mount: Mount, store: MessageStore) -> None:
    handle = mount.open("orders/0/append", os.O_WRONLY).handle
    mount.fs.write(handle, AT_END, b"half")
    assert bodies(store, "orders", 0) == []
    mount.fs.fsync(handle)
    assert bodies(store, "orders", 0) == [b"half"]
    mount.fs.write(handle, AT_END, b"rest")
    mount.fs.flush(handle)
    mount.fs.flush(handle)
    mount.fs.handles.release(handle)
    assert bodies(store, "orders", 0) == [b"half", b"rest"]


@pytest.mark.parametrize("options", ["", "@frame=file", "@frame=write", "@format=json"])
def test_opening_and_closing_publishes_nothing(mount: Mount, store: MessageStore, options: str) -> None:
    mount.publish(f"orders/0/append{options}")
    assert bodies(store, "orders", 0) == []


def test_append_has_size_zero_and_reads_as_empty(mount: Mount) -> None:
    mount.publish("orders/0/append", b"line\n")
    assert mount.stat("orders/0/append").size == 0
    assert mount.cat("orders/0/append") == b""
    handle = mount.open("orders/0/append", os.O_RDWR | os.O_TRUNC).handle
    assert mount.fs.read(handle, 0, 100) == b""


def test_sizes_times_and_modes_of_append_are_set_to_no_effect(mount: Mount) -> None:
    inode = mount.stat("orders/0/append").inode
    assert mount.fs.setattr(inode) == mount.fs.getattr(inode)


def test_a_write_through_a_handle_for_reading_is_a_bad_descriptor(mount: Mount) -> None:
    with pytest.raises(FilesystemError) as refused:
        mount.fs.write(mount.open("orders/0/append").handle, AT_END, b"x\n")
    assert refused.value.errno == errno.EBADF


def test_each_lookup_gives_an_inode_that_was_never_given_before(mount: Mount) -> None:
    seen = []
    for path in ("orders/append", "orders/0/append", "orders/0/append", "orders/0/append@tags=a", "orders/append"):
        attributes = mount.stat(path)
        assert attributes.entry_timeout == 0
        seen.append(attributes.inode)
        mount.fs.forget(attributes.inode, 1)
    assert len(set(seen)) == len(seen)


def test_a_forgotten_append_is_dropped(mount: Mount) -> None:
    inode = mount.stat("orders/0/append").inode
    mount.fs.forget(inode, 1)
    with pytest.raises(FilesystemError) as refused:
        mount.fs.getattr(inode)
    assert refused.value.errno == errno.ESTALE


def test_the_handle_is_direct(mount: Mount) -> None:
    assert mount.open("orders/0/append", os.O_WRONLY).direct_io


@pytest.mark.parametrize("name", ["append@color=red", "append@", "appendix", "append@tags="])
def test_an_unknown_option_is_not_found_even_when_it_is_to_be_created(mount: Mount, name: str) -> None:
    queue = mount.stat("orders/0").inode
    assert refused_with(lambda: mount.fs.lookup(queue, name.encode())) == errno.ENOENT
    number = errno.ENOENT if "@" in name else errno.EPERM
    assert refused_with(lambda: mount.fs.refuse_creation(queue, name.encode())) == number


# what must wait for the disk


def test_a_plain_write_waits_for_nothing_and_fsync_for_everything(mount: Mount, store: MessageStore) -> None:
    handle = mount.open("orders/0/append", os.O_WRONLY).handle
    assert mount.fs.write(handle, AT_END, b"line\n") == 0
    assert mount.fs.flush(handle) == 0
    mount.publish("orders/1/append", b"of another handle\n")
    assert mount.fs.fsync(handle) == store.physical_end


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
def test_a_write_on_a_sync_handle_waits_for_its_messages(mount: Mount, store: MessageStore, flag: int) -> None:
    handle = mount.open("orders/0/append", os.O_WRONLY | flag).handle
    assert mount.fs.write(handle, AT_END, b"line\nhal") == store.physical_end
    assert mount.fs.write(handle, AT_END, b"f") == 0
    assert mount.fs.flush(handle) == store.physical_end


def test_every_write_waits_in_a_store_that_flushes_synchronously(folder: Path) -> None:
    with open_small(folder / "sync", flush=FlushPolicy(sync=True)) as store:
        store.create_topic("orders")
        mount = Mount(store)
        handle = mount.open("orders/0/append", os.O_WRONLY).handle
        assert mount.fs.write(handle, AT_END, b"line\n") == store.physical_end


# what is refused


@pytest.fixture
def small(folder: Path) -> Iterator[tuple[MessageStore, Mount]]:
    """A store whose messages have at most 10 bytes."""
    with open_small(folder / "small", max_message_bytes=10) as store:
        store.create_topic("orders")
        yield store, Mount(store)


def test_a_line_over_the_limit_breaks_the_handle_until_it_is_closed(small: tuple[MessageStore, Mount]) -> None:
    store, mount = small
    handle = mount.open("orders/0/append", os.O_WRONLY).handle
    mount.fs.write(handle, AT_END, b"0123456789")
    with pytest.raises(MessageTooLargeError):
        mount.fs.write(handle, AT_END, b"0")
    for _ in range(2):
        with pytest.raises(FilesystemError) as refused:
            mount.fs.write(handle, AT_END, b"tail of it\n")
        assert refused.value.errno == errno.EFBIG
    with pytest.raises(FilesystemError):
        mount.fs.flush(handle)
    mount.fs.handles.release(handle)
    assert bodies(store, "orders", 0) == []
    mount.publish("orders/0/append", b"fine\n")
    assert bodies(store, "orders", 0) == [b"fine"]


def test_a_request_with_a_rest_over_the_limit_stores_none_of_its_lines(small: tuple[MessageStore, Mount]) -> None:
    store, mount = small
    with pytest.raises(MessageTooLargeError):
        mount.fs.write(mount.open("orders/0/append", os.O_WRONLY).handle, AT_END, b"good\n" + b"x" * 11)
    assert bodies(store, "orders", 0) == []


def test_a_file_over_the_limit_is_refused_and_none_of_it_published(small: tuple[MessageStore, Mount]) -> None:
    store, mount = small
    handle = mount.open("orders/0/append@frame=file", os.O_WRONLY).handle
    mount.fs.write(handle, AT_END, b"01234567")
    with pytest.raises(MessageTooLargeError):
        mount.fs.write(handle, AT_END, b"89a")
    with pytest.raises(FilesystemError):
        mount.fs.flush(handle)
    assert bodies(store, "orders", 0) == []


def test_a_write_that_may_have_been_split_is_refused_but_the_next_one_is_not(mount: Mount, store: MessageStore) -> None:
    handle = mount.open("orders/0/append@frame=write", os.O_WRONLY).handle
    with pytest.raises(MessageTooLargeError):
        mount.fs.write(handle, AT_END, bytes(WHOLE_WRITE_BYTES + 1))
    mount.fs.write(handle, AT_END, bytes(WHOLE_WRITE_BYTES))
    mount.fs.flush(handle)
    assert [len(body) for body in bodies(store, "orders", 0)] == [WHOLE_WRITE_BYTES]


def test_a_malformed_line_is_refused_with_its_request_and_dropped(mount: Mount, store: MessageStore) -> None:
    handle = mount.open("orders/0/append@format=json", os.O_WRONLY).handle
    mount.fs.write(handle, AT_END, b'{"bo')
    with pytest.raises(IllegalMessageError):
        mount.fs.write(handle, AT_END, b'x"}\n{"body": "of the same request"}\n')
    mount.fs.write(handle, AT_END, b'{"body": "next"}\n')
    mount.fs.flush(handle)
    assert bodies(store, "orders", 0) == [b"next"]


def test_a_rest_that_close_cannot_publish_is_reported_and_not_published_behind_ones_back(
    mount: Mount, store: MessageStore
) -> None:
    handle = mount.open("orders/0/append", os.O_WRONLY).handle
    mount.fs.write(handle, AT_END, b"rest")
    disk_of(store).is_full = True
    with pytest.raises(StoreFullError):
        mount.fs.flush(handle)
    disk_of(store).is_full = False
    mount.fs.handles.release(handle)
    assert bodies(store, "orders", 0) == []


def test_close_reports_that_the_disk_refused_what_the_handle_wrote(mount: Mount, store: MessageStore) -> None:
    handle, other = (mount.open("orders/0/append", os.O_WRONLY).handle for _ in range(2))
    mount.fs.write(handle, AT_END, b"line\n")
    break_disk(store)
    with pytest.raises(ReadOnlyStoreError):
        mount.fs.write(handle, AT_END, b"more\n")
    with pytest.raises(FlushFailedError):
        mount.fs.flush(handle)
    assert mount.fs.flush(other) == 0  # wrote nothing: lost nothing
    with pytest.raises(FilesystemError) as refused:
        mount.open("orders/0/append", os.O_WRONLY)
    assert refused.value.errno == errno.EROFS


def test_ending_the_mount_publishes_no_half_of_a_message(mount: Mount, store: MessageStore) -> None:
    for path, data in (("append", b"whole\nhalf"), ("append@frame=file", b"half"), ("append@format=json", b"{")):
        mount.fs.write(mount.open(f"orders/0/{path}", os.O_WRONLY).handle, AT_END, data)
    mount.fs.write(mount.open("orders/0/append", os.O_WRONLY).handle, AT_END, b"whole, too\n")
    assert mount.fs.close() == 3
    assert bodies(store, "orders", 0) == [b"whole", b"whole, too"]


@pytest.mark.parametrize("path", ["append", "0/append"])
def test_publishing_to_a_topic_that_was_deleted_does_not_make_it_again(
    mount: Mount, store: MessageStore, path: str
) -> None:
    directory = mount.stat(f"orders/{path}".rpartition("/")[0]).inode
    store.delete_topic("orders")
    assert refused_with(lambda: mount.fs.lookup(directory, b"append")) == errno.ENOENT


@pytest.mark.parametrize("path", ["append", "0/append"])
def test_an_append_looked_up_before_its_topic_was_deleted_publishes_to_one_made_again(
    mount: Mount, store: MessageStore, path: str
) -> None:
    inode = mount.stat(f"orders/{path}").inode
    early = mount.open(f"orders/{path}", os.O_WRONLY).handle
    store.delete_topic("orders")
    late = mount.fs.open(inode, os.O_WRONLY).handle
    for handle in (early, late):
        assert refused_with(partial(mount.fs.write, handle, AT_END, b"lost\n")) == errno.ENOENT
    store.create_topic("orders")
    for handle in (early, late):
        mount.fs.write(handle, AT_END, b"new\n")
    assert [body for queue in range(4) for body in bodies(store, "orders", queue)] == [b"new", b"new"]


def test_every_look_up_is_another_inode_and_stat_shows_one(mount: Mount) -> None:
    looked_up = {mount.stat("orders/append").inode for _ in range(5)}
    assert len(looked_up) == 5
    shown = {mount.fs.getattr(inode).st_ino for inode in looked_up}
    assert len(shown) == 1
    others = ("orders/0/append", "orders/1/append", "orders/append@tags=T")
    shown |= {mount.fs.getattr(mount.stat(path).inode).st_ino for path in others}
    assert len(shown) == 3


@one_a_file
def test_a_queues_append_and_its_stream_show_one_number_wherever_the_queue_begins(
    mount: Mount, store: MessageStore
) -> None:
    seen = set()
    for number in range(3):
        mount.publish("orders/0/append", b"line\n")
        expire(store, "orders", 0, number)
        shown = {mount.stat(path).st_ino for path in ("orders/0.log", "orders/0/append", "orders/0/append@keys=K")}
        assert len(shown) == 1
        seen |= shown
    assert len(seen) == 3


def test_an_append_costs_nothing_once_its_last_handle_is_closed(mount: Mount) -> None:
    inode = mount.stat("orders/0/append@keys=K").inode
    first, second = (mount.fs.open(inode, flags).handle for flags in (os.O_WRONLY, os.O_RDONLY))
    mount.fs.handles.release(first)
    assert mount.fs.getattr(inode).inode
    mount.fs.handles.release(second)
    assert refused_with(lambda: mount.fs.getattr(inode)) == errno.ESTALE
    mount.fs.forget(inode, 1)
    assert mount.stat("orders/0/append@keys=K").inode != inode


# a handle without O_APPEND: positions and lengths


FILE = "orders/0/append@frame=file"


class File:
    """An `append` that a process has open; `owner` stands for its table of descriptors."""

    def __init__(self, mount: Mount, path: str, flags: int = os.O_WRONLY) -> None:
        self._fs = mount.fs
        self.inode = mount.stat(path).inode
        self.handle = mount.fs.open(self.inode, flags).handle

    def write(self, position: int, data: bytes, owner: int = 1) -> None:
        self._fs.write(self.handle, position, data, owner)

    def truncate(self, size: int) -> None:
        assert self._fs.setattr(self.inode, size, self.handle).size == size

    def read(self) -> bytes:
        return bytes(self._fs.read(self.handle, 0, 1 << 20))

    @property
    def size(self) -> int:
        return self._fs.getattr(self.inode).size

    def close(self, owner: int = 1) -> None:
        try:
            self._fs.flush(self.handle, owner)
        finally:
            self._fs.handles.release(self.handle)


@pytest.mark.parametrize("seed", range(30))
def test_a_framed_file_is_what_a_file_would_be(mount: Mount, store: MessageStore, tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    file = File(mount, FILE, os.O_RDWR)
    with open(tmp_path / "file", "w+b", buffering=0) as model:
        for _ in range(chosen.randrange(1, 20)):
            if chosen.random() < 0.3:
                size = chosen.randrange(200)
                file.truncate(size)
                model.truncate(size)
            else:
                position, data = chosen.randrange(300), chosen.randbytes(chosen.randrange(1, 50))
                file.write(position, data)
                os.pwrite(model.fileno(), data, position)
            wanted = os.pread(model.fileno(), 1_000, 0)
            assert file.read() == wanted
            assert file.size == len(wanted)
    file.close()
    assert bodies(store, "orders", 0) == ([wanted] if wanted else [])


def test_a_file_that_is_only_a_hole_is_zeros_and_one_cut_to_nothing_is_none(mount: Mount, store: MessageStore) -> None:
    hole, nothing = File(mount, FILE), File(mount, FILE)
    hole.truncate(1_000)
    nothing.write(0, b"bytes")
    nothing.truncate(0)
    hole.close()
    nothing.close()
    assert bodies(store, "orders", 0) == [bytes(1_000)]


@pytest.mark.parametrize("how", ["far write", "hole", "overlap"])
def test_a_file_that_becomes_too_long_is_not_published_in_part(small: tuple[MessageStore, Mount], how: str) -> None:
    store, mount = small
    file = File(mount, FILE)
    file.write(0, b"01234567")
    uses: dict[str, Callable[[], object]] = {
        "far write": lambda: file.write(1 << 40, b"x"),
        "hole": lambda: file.truncate(11),
        "overlap": lambda: file.write(7, b"7890"),
    }
    assert refused_with(uses[how]) == errno.EFBIG
    for use in (lambda: file.write(0, b"x"), lambda: file.truncate(1), file.close):
        assert refused_with(use) == errno.EFBIG
    assert bodies(store, "orders", 0) == []


@pytest.mark.parametrize("path", [FILE, "orders/0/append"])
def test_a_size_set_without_a_handle_changes_no_open_file(mount: Mount, store: MessageStore, path: str) -> None:
    file = File(mount, path)
    file.write(0, b"bytes")
    for size in (0, 3, 1 << 40):
        mount.fs.setattr(file.inode, size)
    file.close()
    assert bodies(store, "orders", 0) == [b"bytes"]


def test_o_append_may_come_and_go(mount: Mount, store: MessageStore) -> None:
    file = File(mount, FILE)
    file.write(0, b"hello")
    file.write(AT_END, b", world")
    file.write(0, b"J")
    file.close()
    assert bodies(store, "orders", 0) == [b"Jello, world"]


def test_a_published_file_can_be_read_in_its_queue_alone(mount: Mount, store: MessageStore) -> None:
    file = File(mount, FILE, os.O_RDWR)
    file.write(0, b"body")
    mount.fs.fsync(file.handle)
    assert refused_with(file.read) == errno.ESTALE
    assert refused_with(lambda: file.write(4, b"more")) == errno.EPERM
    file.close()
    assert bodies(store, "orders", 0) == [b"body"]


def test_a_file_that_is_no_record_is_dropped_and_what_follows_is_no_record_either(
    mount: Mount, store: MessageStore
) -> None:
    file = File(mount, FILE + ",format=json")
    file.write(0, b"no JSON")
    assert refused_with(lambda: mount.fs.fsync(file.handle)) == errno.EINVAL
    assert refused_with(lambda: file.write(0, b'{"body": "x"}')) == errno.EPERM
    file.close()
    assert bodies(store, "orders", 0) == []


@pytest.mark.parametrize("options", ["", "@format=json", "@frame=write"])
@pytest.mark.parametrize("position", [0, 13, 15, 1 << 40])
def test_bytes_out_of_order_are_refused_until_the_file_is_closed(
    mount: Mount, store: MessageStore, options: str, position: int
) -> None:
    file = File(mount, f"orders/0/append{options}")
    record = b'{"body": "x"}\n'
    file.write(0, record)
    for use in (lambda: file.write(position, record), lambda: file.write(14, record), file.close):
        assert refused_with(use) == errno.ESPIPE
    assert len(bodies(store, "orders", 0)) == 1


def test_a_line_before_a_hole_is_not_published_in_part(mount: Mount, store: MessageStore) -> None:
    file = File(mount, "orders/0/append")
    file.write(0, b"whole\nhalf")
    assert refused_with(lambda: file.write(20, b"\n")) == errno.ESPIPE
    assert refused_with(file.close) == errno.ESPIPE
    assert bodies(store, "orders", 0) == [b"whole"]


@pytest.mark.parametrize("goes_on_at", [0, 10])
def test_lines_begin_anew_when_the_file_is_cut_to_nothing(mount: Mount, store: MessageStore, goes_on_at: int) -> None:
    file = File(mount, "orders/0/append")
    file.write(0, b"whole\nhalf")
    file.truncate(10)
    file.truncate(0)
    file.write(goes_on_at, b"line\n")
    file.write(goes_on_at + 5, b"line\n")
    assert refused_with(lambda: file.write(3, b"line\n")) == errno.ESPIPE
    assert bodies(store, "orders", 0) == [b"whole", b"line", b"line"]


@one_a_file
def test_a_refused_request_may_come_again_at_its_place(mount: Mount, store: MessageStore) -> None:
    file = File(mount, "orders/0/append")
    file.write(0, b"one\n")
    disk_of(store).is_full = True
    assert refused_with(lambda: file.write(4, b"two\n")) == errno.ENOSPC
    disk_of(store).is_full = False
    file.write(4, b"two\n")
    file.close()
    assert bodies(store, "orders", 0) == [b"one", b"two"]


BEGINNINGS = [
    ("", b"half, ", b"whole\n"),
    ("@format=json", b'{"body":"ha', b'lf, whole"}\n'),
    ("@frame=file", b"half, ", b"whole"),
]


@pytest.mark.parametrize(("options", "begun", "rest"), BEGINNINGS)
def test_what_was_begun_before_a_refused_write_is_published_by_a_close_only_when_that_came_again(
    mount: Mount, store: MessageStore, options: str, begun: bytes, rest: bytes
) -> None:
    for comes_again in (False, True):
        handle = mount.open(f"orders/0/append{options}", os.O_WRONLY).handle
        mount.fs.write(handle, AT_END, begun)
        mount.fs.write_refused(handle, 7, errno.ENOSPC)  # as the adapter says of each request that failed
        for request in (mount.fs.fsync, mount.fs.flush):
            assert refused_with(partial(request, handle)) == errno.ENOSPC
        if comes_again:
            mount.fs.write(handle, AT_END, rest)
            mount.fs.flush(handle)
        mount.fs.handles.release(handle)
    assert [body.rstrip() for body in bodies(store, "orders", 0)] == [b"half, whole"]


def test_a_close_after_a_refused_write_succeeds_where_nothing_was_begun(mount: Mount, store: MessageStore) -> None:
    handle = mount.open("orders/0/append", os.O_WRONLY).handle
    mount.fs.write(handle, AT_END, b"whole\n")
    mount.fs.write_refused(handle, 7, errno.ENOSPC)
    mount.fs.flush(handle)
    mount.fs.handles.release(handle)
    assert bodies(store, "orders", 0) == [b"whole"]


def test_a_size_set_through_o_append_changes_no_lines(mount: Mount, store: MessageStore) -> None:
    file = File(mount, "orders/0/append", os.O_WRONLY | os.O_APPEND)
    for size in (0, 100):
        file.write(AT_END, b"half, ")
        assert mount.fs.setattr(file.inode, size, file.handle).size == 0
    file.close()
    assert bodies(store, "orders", 0) == [b"half, half, "]


# whose close publishes


@pytest.mark.parametrize("path", [FILE, "orders/0/append"])
def test_a_close_publishes_only_what_its_process_wrote_last(mount: Mount, store: MessageStore, path: str) -> None:
    file = File(mount, path)
    file.write(0, b"ours, ", owner=1)
    mount.fs.flush(file.handle, 2)
    file.write(6, b"theirs", owner=2)
    mount.fs.flush(file.handle, 1)
    assert bodies(store, "orders", 0) == []
    file.close(owner=2)
    assert bodies(store, "orders", 0) == [b"ours, theirs"]


def test_what_no_close_has_published_the_last_one_does(mount: Mount, store: MessageStore) -> None:
    file = File(mount, "orders/0/append")
    file.write(0, b"by a process that is gone", owner=1)
    file.close(owner=2)
    assert bodies(store, "orders", 0) == [b"by a process that is gone"]


def test_what_nobody_hears_of_is_in_the_log(
    mount: Mount, store: MessageStore, caplog: pytest.LogCaptureFixture
) -> None:
    file = File(mount, "orders/0/append")
    file.write(0, b"by a process that is gone", owner=1)
    disk_of(store).is_full = True
    file.close(owner=2)
    assert "not published" in caplog.text
    assert refused_with(lambda: mount.fs.getattr(file.inode)) == errno.ESTALE

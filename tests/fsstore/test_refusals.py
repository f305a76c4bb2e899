"""mkdir, and what the tree refuses: each operation has an answer."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator

import pytest

from engine import IllegalTopicError, Message, MessageStore, OpenMode, TopicExistsError
from fsstore.interface import ROOT_INODE, FilesystemError, FilesystemOptions, SlowWork
from tests.fsstore.conftest import Mount, break_disk, open_small, patiently, refused_with


def test_mkdir_makes_a_topic_of_four_queues_and_grows_it(mount: Mount, store: MessageStore) -> None:
    topic = patiently(mount.fs.mkdir, ROOT_INODE, b"orders")
    assert stat.S_ISDIR(topic.mode)
    assert store.queues("orders") == [0, 1, 2, 3]
    queue = patiently(mount.fs.mkdir, topic.inode, b"7")
    assert store.queues("orders") == list(range(8))
    assert mount.stat("orders/7").inode == queue.inode


def test_mkdir_waits_for_the_disk_in_a_thread(mount: Mount, store: MessageStore) -> None:
    with pytest.raises(SlowWork) as made:
        mount.fs.mkdir(ROOT_INODE, b"orders")
    assert store.topics() == []
    made.value.work()
    topic = mount.fs.mkdir(ROOT_INODE, b"orders").inode
    with pytest.raises(SlowWork) as grown:
        mount.fs.mkdir(topic, b"5")
    grown.value.work()
    mount.fs.mkdir(topic, b"5")
    assert store.queues("orders") == list(range(6))
    assert refused_with(lambda: patiently(mount.fs.mkdir, topic, b"5")) == errno.EEXIST


@pytest.mark.parametrize("name", [b"07", b"1024", b"-1", b"x", b"8.log", b"append2"])
def test_a_queue_that_is_no_plain_decimal_below_1024_is_invalid(mount: Mount, name: bytes) -> None:
    topic = patiently(mount.fs.mkdir, ROOT_INODE, b"orders").inode
    assert refused_with(lambda: patiently(mount.fs.mkdir, topic, name)) == errno.EINVAL


def test_mkdir_of_what_is_there_or_cannot_be_says_so(mount: Mount) -> None:
    topic = patiently(mount.fs.mkdir, ROOT_INODE, b"orders").inode
    with pytest.raises(TopicExistsError):
        patiently(mount.fs.mkdir, ROOT_INODE, b"orders")
    with pytest.raises(IllegalTopicError):
        patiently(mount.fs.mkdir, ROOT_INODE, b"no topic")
    with pytest.raises(IllegalTopicError):
        patiently(mount.fs.mkdir, ROOT_INODE, b"\xff")
    assert refused_with(lambda: patiently(mount.fs.mkdir, topic, b"0")) == errno.EEXIST


@pytest.fixture(params=["write", "read_only", "follow", "failed"])
def mounted(request: pytest.FixtureRequest, store: MessageStore) -> Iterator[tuple[Mount, int]]:
    """A mount of each kind with a message, and the errno of its refusals."""
    store.put(Message("orders", b"x", keys=["K"]), 0)
    if request.param in ("read_only", "follow"):
        store.close()
        with open_small(store.path, OpenMode[request.param.upper()]) as shown:
            yield Mount(shown), errno.EROFS
        return
    mount = Mount(store)
    if request.param == "failed":
        break_disk(store)
    yield mount, errno.EPERM if request.param == "write" else errno.EROFS


PATHS = ["/", "orders", "orders/0", "orders/keys", "orders/keys/K@all", "@store", "@store/groups"]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_made_below_any_directory(mounted: tuple[Mount, int], path: str) -> None:
    mount, number = mounted
    directory = mount.stat(path).inode
    assert refused_with(lambda: mount.fs.refuse_creation(directory, b"file")) == number
    if path not in ("/", "orders") and (path != "@store/groups" or number == errno.EROFS):
        assert refused_with(lambda: patiently(mount.fs.mkdir, directory, b"1")) == number


@pytest.mark.parametrize(
    "path", [*PATHS, "orders/0/0", "orders/0.log", "orders/0/@last", "orders/keys/K", "@store/metrics"]
)
def test_nothing_but_append_can_be_changed(mounted: tuple[Mount, int], path: str) -> None:
    mount, number = mounted
    inode = mount.stat(path).inode
    assert refused_with(lambda: mount.fs.setattr(inode)) == number
    assert refused_with(lambda: mount.fs.setxattr(inode)) == number
    assert refused_with(mount.fs.refuse) == number
    if stat.S_ISREG(patiently(mount.fs.getattr, inode).mode):
        for flags in (os.O_WRONLY, os.O_RDONLY | os.O_TRUNC):
            assert refused_with(lambda flags=flags: mount.fs.open(inode, flags)) == number  # type: ignore[misc]


def test_a_read_only_mount_publishes_nothing(mounted: tuple[Mount, int]) -> None:
    mount, number = mounted
    topic, append = mount.stat("orders").inode, mount.stat("orders/0/append")
    if number == errno.EPERM:
        assert append.mode & 0o222
        assert mount.fs.setattr(append.inode) == mount.fs.getattr(append.inode)
        return
    assert not append.mode & 0o222
    assert mount.fs.read_only
    for use in (
        lambda: mount.fs.open(append.inode, os.O_WRONLY),
        lambda: mount.fs.setattr(append.inode),
        lambda: patiently(mount.fs.mkdir, ROOT_INODE, b"other"),
        lambda: patiently(mount.fs.mkdir, topic, b"7"),
    ):
        assert refused_with(use) == errno.EROFS


def test_only_append_says_that_it_has_no_extended_attributes_to_set(mount: Mount, store: MessageStore) -> None:
    store.create_topic("orders")
    inode = mount.stat("orders/append").inode
    assert refused_with(lambda: mount.fs.setxattr(inode)) == errno.ENOTSUP


def test_modes_and_owner_are_the_options(store: MessageStore) -> None:
    store.create_topic("orders")
    mount = Mount(store, FilesystemOptions(uid=7, gid=8, append_mode=0o622, directory_mode=0o775))
    assert mount.stat("orders/append").mode == stat.S_IFREG | 0o622
    assert mount.stat("orders").mode == stat.S_IFDIR | 0o775
    assert (mount.stat("orders").uid, mount.stat("orders").gid) == (7, 8)


@pytest.mark.parametrize("path", ["", "orders/", "orders/0/", "@store/"])
def test_only_checksum_names_are_cached_as_absent(mount: Mount, store: MessageStore, path: str) -> None:
    store.create_topic("orders")
    absent = mount.stat(f"{path}.part-0.crc")
    assert absent.inode == 0
    assert absent.entry_timeout > 3600
    for name in (".hidden", "part-0.crc", "orders2"):
        assert refused_with(lambda name=name: mount.stat(path + name)) == errno.ENOENT  # type: ignore[misc]


def test_a_key_may_look_like_a_checksum_name(mount: Mount, store: MessageStore) -> None:
    store.create_topic("orders")
    assert refused_with(lambda: mount.stat("orders/keys/.a.crc")) == errno.ENOENT
    store.put(Message("orders", b"x", keys=[".a.crc"]), 0)
    assert mount.readlink("orders/keys/.a.crc")


@pytest.mark.parametrize(("mode", "entry_timeout", "attr_timeout"), [(OpenMode.WRITE, 0, 300), (OpenMode.FOLLOW, 0, 0)])
def test_sizes_that_another_process_changes_are_not_cached(
    store: MessageStore, mode: OpenMode, entry_timeout: float, attr_timeout: float
) -> None:
    store.put(Message("orders", b"x"), 0)
    store.close()
    with open_small(store.path, mode) as shown:
        mount = Mount(shown)
        stream = mount.stat("orders/0.log")
        assert (stream.entry_timeout, stream.attr_timeout) == (entry_timeout, attr_timeout)
        assert mount.stat("orders/0/" + "0" * 20).attr_timeout > 3600  # bodies are cached all the same


@pytest.mark.parametrize("use", ["lookup", "readlink", "opendir"])
def test_an_operation_on_the_wrong_kind_of_file_is_refused(mount: Mount, store: MessageStore, use: str) -> None:
    store.create_topic("orders")
    append = mount.stat("orders/append").inode
    calls: dict[str, Callable[[], object]] = {
        "lookup": lambda: mount.fs.lookup(append, b"x"),
        "readlink": lambda: mount.fs.readlink(append),
        "opendir": lambda: mount.fs.opendir(append),
    }
    expected = {"lookup": errno.ENOTDIR, "readlink": errno.EINVAL, "opendir": errno.ENOTDIR}
    assert refused_with(calls[use]) == expected[use]
    assert refused_with(lambda: mount.fs.open(ROOT_INODE, os.O_RDONLY)) == errno.EISDIR


def test_an_inode_that_stands_for_nothing_is_stale(mount: Mount) -> None:
    with pytest.raises(FilesystemError) as refused:
        mount.fs.getattr(999_999)
    assert refused.value.errno == errno.ESTALE


@pytest.mark.parametrize("path", PATHS)
def test_a_name_over_255_bytes_is_too_long_whatever_is_asked_of_it(mounted: tuple[Mount, int], path: str) -> None:
    mount, number = mounted
    directory = mount.stat(path).inode
    for name in (b"n" * 256, b"append@tags=" + b"n" * 250, b"1" * 1024):
        for use in (
            lambda name=name: mount.fs.lookup(directory, name),
            lambda name=name: mount.fs.mkdir(directory, name),
            lambda name=name: mount.fs.refuse_creation(directory, name),
            lambda name=name: mount.fs.refuse(name),
            lambda name=name: mount.fs.refuse(b"name", name),
        ):
            assert refused_with(use) == errno.ENAMETOOLONG
    assert refused_with(lambda: mount.fs.refuse(b"n" * 255)) == number

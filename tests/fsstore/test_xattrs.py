"""Metadata of a message as extended attributes."""

from __future__ import annotations

import errno
import zlib

import pytest

from engine import Host, Message, MessageStore
from fsstore.interface import FilesystemError
from tests.fsstore.conftest import FIRST_STORE_TIME_MS, Mount


@pytest.fixture
def inode(mount: Mount, store: MessageStore) -> int:
    properties = {"UNIQ_KEY": "U1", "city": "Köln"}
    born = FIRST_STORE_TIME_MS - 1, Host.parse("127.0.0.1:1234")
    store.put(Message("orders", b"body", ["A", "B"], "paid", properties, 7, 0, *born), 0)
    return mount.stat("orders/0/0").inode


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keys", "A B"),
        ("tags", "paid"),
        ("unique_key", "U1"),
        ("msg_id", "7F00000100002A9F" + "0" * 16),
        ("queue_offset", "0"),
        ("physical_offset", "0"),
        ("store_size", "142"),
        ("born_time", str(FIRST_STORE_TIME_MS - 1)),
        ("store_time", str(FIRST_STORE_TIME_MS)),
        ("born_host", "127.0.0.1:1234"),
        ("store_host", "127.0.0.1:10911"),
        ("sys_flag", "0"),
        ("flag", "7"),
        ("reconsume_times", "0"),
        ("body_crc", str(zlib.crc32(b"body") & 0x7FFFFFFF)),
        ("property.KEYS", "A B"),
        ("property.UNIQ_KEY", "U1"),
        ("property.city", "Köln"),
    ],
)
def test_each_fact_is_an_attribute(mount: Mount, inode: int, name: str, value: str) -> None:
    assert mount.fs.getxattr(inode, f"user.mq.{name}".encode()) == value.encode()


def test_every_listed_attribute_can_be_read(mount: Mount, inode: int) -> None:
    names = mount.fs.listxattr(inode)
    listed = {"keys", "tags", "unique_key", "queue_offset", "born_time", "store_time", "born_host"}
    listed |= {f"property.{name}" for name in ("KEYS", "TAGS", "UNIQ_KEY", "city")}
    assert sorted(names) == sorted(f"user.mq.{name}".encode() for name in listed)
    assert all(mount.fs.getxattr(inode, name) for name in names)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (b"user.mq.color", errno.ENODATA),
        (b"user.mq.property.none", errno.ENODATA),
        (b"user.mq.", errno.ENODATA),
        (b"user.other", errno.ENODATA),
        (b"user.\xff", errno.ENODATA),
        (b"security.selinux", errno.ENOTSUP),
        (b"system.posix_acl_access", errno.ENOTSUP),
        (b"mq.keys", errno.ENOTSUP),
    ],
)
def test_what_is_no_attribute_is_missing_or_not_supported(mount: Mount, inode: int, name: bytes, number: int) -> None:
    with pytest.raises(FilesystemError) as refused:
        mount.fs.getxattr(inode, name)
    assert refused.value.errno == number


def test_facts_that_a_message_lacks_are_left_out(mount: Mount, store: MessageStore) -> None:
    store.put(Message("plain", b""), 0)
    inode = mount.stat("plain/0/0").inode
    names = mount.fs.listxattr(inode)
    assert not {b"user.mq.keys", b"user.mq.tags", b"user.mq.unique_key"} & set(names)
    with pytest.raises(FilesystemError) as refused:
        mount.fs.getxattr(inode, b"user.mq.keys")
    assert refused.value.errno == errno.ENODATA


def test_names_that_the_kernel_cannot_take_are_left_out_of_the_list(mount: Mount, store: MessageStore) -> None:
    fits, too_long = "n" * (255 - len("user.mq.property.")), "m" * (256 - len("user.mq.property."))
    store.put(Message("orders", b"", properties={fits: "1", too_long: "2", "nul_": "3"}), 0)
    (log,) = (store.path / "commitlog").iterdir()
    with log.open("r+b") as file:  # as a broker stores it, and we refuse it
        file.seek(file.read(1000).index(b"nul_") + 3)
        file.write(b"\0")
    names = mount.fs.listxattr(mount.stat("orders/0/0").inode)
    assert f"user.mq.property.{fits}".encode() in names
    assert max(map(len, names)) == 255
    assert not any(b"\0" in name for name in names)


def test_a_list_stays_within_64_kib(mount: Mount, store: MessageStore) -> None:
    store.put(Message("orders", b"", properties={f"{number:04}": "x" for number in range(4000)}), 0)
    names = mount.fs.listxattr(mount.stat("orders/0/0").inode)
    assert 60_000 < sum(len(name) + 1 for name in names) <= 65_536


@pytest.mark.parametrize("path", ["/", "orders", "orders/0.log", "orders/0/append", "orders/0/@last"])
def test_only_messages_have_attributes(mount: Mount, store: MessageStore, path: str) -> None:
    store.put(Message("orders", b""), 0)
    inode = mount.stat(path).inode
    assert mount.fs.listxattr(inode) == []
    for name, number in ((b"user.mq.keys", errno.ENODATA), (b"security.selinux", errno.ENOTSUP)):
        with pytest.raises(FilesystemError) as refused:
            mount.fs.getxattr(inode, name)
        assert refused.value.errno == number

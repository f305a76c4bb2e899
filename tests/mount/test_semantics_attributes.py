"""Promises 4.*: attributes (docs/semantics.md)."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

from tests.mount.harness import Mounted, publish, refused_with, sh

LISTED = {
    *("keys", "tags", "queue_offset", "born_time", "store_time", "born_host"),
    *("property.KEYS", "property.TAGS", "property.colour"),
}
BY_NAME = {"msg_id", "physical_offset", "store_size", "store_host", "sys_flag", "flag", "reconsume_times", "body_crc"}


def test_metadata_are_attributes(queue: Path) -> None:
    """4.1 `getfattr -d` shows a message's key, tag, times and place as `user.mq.*`, and its properties as
    `user.mq.property.*`. The other attributes are read by name: `msg_id`, `physical_offset`, `store_size`,
    `store_host`, `sys_flag`, `flag`, `reconsume_times` and `body_crc`."""
    record = {"body": "one", "keys": "K", "tags": "T", "properties": {"colour": "red"}}
    publish(queue / "append@format=json", json.dumps(record).encode() + b"\n")
    shown = dict(line.split("=", 1) for line in sh("getfattr -d 0", queue).splitlines() if "=" in line)
    assert set(shown) == {f"user.mq.{name}" for name in LISTED}
    assert all(os.getxattr(queue / "0", f"user.mq.{name}") for name in BY_NAME)
    assert [shown[f"user.mq.{name}"] for name in ("keys", "tags", "queue_offset", "property.colour")] == [
        '"K"',
        '"T"',
        '"0"',
        '"red"',
    ]


def test_a_list_fits_what_ls_offers_for_it(queue: Path) -> None:
    """4.6 The attribute list of a message with a key and a tag fits into the 152 bytes that `ls -l` offers, so `ls
    -l` asks once for each file."""
    publish(queue / "append@format=json", b'{"body": "one", "keys": "ORDER-17", "tags": "paid"}\n')
    assert sum(len(name) + 1 for name in os.listxattr(queue / "0")) <= 152


def test_attributes_that_are_not_there(queue: Path) -> None:
    """4.2 An attribute that a message lacks is ENODATA. An attribute outside `user.` is ENOTSUP."""
    publish(queue / "append", b"one\n")
    assert refused_with(os.getxattr, queue / "0", "user.mq.property.colour") == errno.ENODATA
    assert refused_with(os.getxattr, queue / "0", "user.other") == errno.ENODATA
    assert refused_with(os.getxattr, queue / "0", "security.selinux") == errno.ENOTSUP
    assert refused_with(os.getxattr, queue / "0", "system.posix_acl_access") == errno.ENOTSUP


def test_names_that_are_too_long(queue: Path) -> None:
    """4.3 An attribute with a name of more than 255 bytes is left out of the list; the others stay."""
    record = {"body": "one", "properties": {"n" * 239: "too long", "m" * 238: "just right"}}
    publish(queue / "append@format=json", json.dumps(record).encode() + b"\n")
    names = os.listxattr(queue / "0")
    assert f"user.mq.property.{'m' * 238}" in names
    assert not [name for name in names if "nnn" in name]
    assert "user.mq.store_time" in names


def test_owner_and_modes(mount: Mounted, topic: Path) -> None:
    """4.4 Everything belongs to the mounting user, except files in `drop` (10) and `@store/refusals` (5.14).
    Messages and streams have mode 0444."""
    publish(topic / "0" / "append", b"one\n")
    for path in (mount.root, topic, topic / "0", topic / "0.log", topic / "0" / "0", topic / "append", topic / "keys"):
        assert (path.stat().st_uid, path.stat().st_gid) == (os.getuid(), os.getgid())
    assert stat.filemode((topic / "0" / "0").stat().st_mode) == "-r--r--r--"
    assert stat.filemode((topic / "0.log").stat().st_mode) == "-r--r--r--"
    assert stat.filemode((topic / "0").stat().st_mode) == "drwxr-xr-x"
    assert stat.filemode((topic / "append").stat().st_mode) == "-rw-r--r--"
    assert sh("ls -l", topic / "0").splitlines()[1].startswith("-r--r--r--")


def test_statfs(mount: Mounted, queue: Path) -> None:
    """4.5 statfs shows the space on the store's disk, and the number of messages as the number of files."""
    disk, shown = os.statvfs(mount.store), os.statvfs(mount.root)
    assert (shown.f_frsize, shown.f_blocks) == (disk.f_frsize, disk.f_blocks)
    used = shown.f_files - shown.f_ffree
    assert used == mount.status()["stats"]["messages"]
    publish(queue / "append", b"one\ntwo\n")
    after = os.statvfs(mount.root)
    assert after.f_files - after.f_ffree == used + 2

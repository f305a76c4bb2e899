"""A mounted store as the verbs reach it: they read its files, and its daemon writes."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine import IllegalMessageError, Message
from mountctl import connect
from mountctl.errors import CommandError
from mountctl.local_store import LocalStore
from mountctl.mount_client import MountClaim, MountClient
from mountctl.options import StoreSettings
from mountctl.places import Answer, Mount, answer_of, find
from tests.mountctl.conftest import DEADLINE_SECONDS, Site, clear, eventually, fill, mountctl, succeed, tree

NOBODY = 65534
READING: tuple[tuple[list[str], str, str], ...] = (
    (["cat", "orders"], "cat {}/orders.log", "order 3"),
    (["cat", "orders/0/3", "--json"], "cat {}/orders/0/3", "order 3"),
    (["cat", "orders", "--key", "ORDER-4"], "cat {}/orders/keys/ORDER-4", "order 4"),
    (["tail", "orders/0"], "tail {}/orders/0.log", "order 9"),
    (["tail", "-f", "orders"], "tail -f {}/orders.log", "order 9"),
    (["grep", "order [34]", "orders", "orders/0"], "grep -P 'order [34]' {}/orders.log {}/orders/0.log", "order 4"),
    (["grep", "order 3"], "grep -P 'order 3' {}/*.log", "order 3"),
    (["consume", "orders", "-g", "billing"], "tail -n +1 -f {}/orders.log", "order 9"),
    (["wait", "orders/0/3"], "tail -n 0 -f {}/orders/0.log", ""),
    (["copy", "orders", "{}", "again"], "cat {}/orders.log", "order 9"),
)
"""Verbs that read messages, and their remedies for a user who may not read the store's files."""


def mount_of(site: Site) -> Mount:
    mount = find(str(site.mountpoint)).mount
    assert mount is not None
    return mount


@pytest.fixture
def filled(site: Site) -> Site:
    """A mounted store of ten messages."""
    fill(site.store)
    return site.mounted()


def requests(site: Site, operation: str) -> int:
    """How often the kernel has asked the daemon for that."""
    metrics = (site.mountpoint / "@store/metrics").read_text()
    found = re.search(rf'^fsstore_requests_total{{operation="{operation}"}} (\d+)$', metrics, re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_sign_of_life_is_the_daemons_and_counts_no_messages(filled: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "statvfs")
    for _ in range(2):
        before = requests(filled, "listxattr")
        assert answer_of(filled.mountpoint) is Answer.YES
        assert requests(filled, "listxattr") == before + 1


def test_a_user_who_may_not_read_the_store_is_told_what_to_use_below_the_mount(filled: Site) -> None:
    root = str(filled.mountpoint)
    assert filled.mountpoint.joinpath("orders.log").read_bytes()  # the daemon has the queues' files open from now on
    moved = filled.store.with_name("moved")
    filled.store.rename(moved)
    for words, plainly, shown in READING:
        verb, *rest = [word.format(root) for word in words]
        refused = mountctl(verb, root, *rest)
        assert (refused.returncode, refused.stdout) == (os.EX_NOPERM, "")
        plain = plainly.format(*[root] * 2)
        assert refused.stderr.startswith("mountctl: the files of the store can't be read here (")
        assert refused.stderr.endswith(f"): through the mount: {plain}\n"), words
        done = subprocess.run(["sh", "-c", f"timeout 0.5 {plain}"], capture_output=True, text=True, check=False)
        assert shown in done.stdout, done.stderr
    assert succeed("topics", root).splitlines()[1].split() == ["orders", "4", "10"]
    moved.rename(filled.store)


@pytest.fixture
def open_site() -> Iterator[Site]:
    """Where a store is mounted for every user, in folders that all may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o711)
        made = Site(folder / "store", folder / "mnt", folder / "mount.log")
        made.mountpoint.mkdir()
        yield made
        clear([made.mountpoint])


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user")
def test_another_user_publishes_through_the_mount_and_reads_there(open_site: Site) -> None:
    open_site.mounted("--allow-other", "--append-mode", "222")
    root = open_site.mountpoint
    succeed("put", root, "orders/0", "first")
    succeed("cat", root, "orders")  # what it imports need not be there for everybody
    os.seteuid(NOBODY)
    try:
        assert succeed("put", root, "orders/0", "second") == ""
        refused = mountctl("cat", root, "orders/0")
        read = (root / "orders/0.log").read_text()
    finally:
        os.seteuid(0)
    assert refused.returncode == os.EX_NOPERM
    assert f"{open_site.store}" in refused.stderr
    assert refused.stderr.endswith(f"Permission denied): through the mount: cat {root}/orders/0.log\n")
    assert read == "first\nsecond\n"


def test_a_copy_in_the_place_of_the_store_is_not_read(filled: Site) -> None:
    moved = filled.store.with_name("moved")
    filled.store.rename(moved)
    shutil.copytree(moved, filled.store)
    refused = mountctl("cat", filled.mountpoint, "orders")
    assert (refused.returncode, refused.stdout) == (os.EX_NOPERM, "")
    assert "another folder, or a copy of the store, is there now" in refused.stderr
    shutil.rmtree(filled.store)
    moved.rename(filled.store)


@pytest.mark.parametrize("mode", ["--read-only", "--follow"])
def test_a_store_without_queues_is_read_as_its_mount_shows_it(site: Site, mode: str) -> None:
    fill(site.store)
    shutil.rmtree(site.store / "consumequeue")
    shutil.rmtree(site.store / "index")
    (site.store / "checkpoint").unlink()
    site.mounted(mode)
    before = tree(site.store)
    bodies = "".join(f"order {number}\n" for number in range(10))
    eventually(lambda: (site.mountpoint / "orders.log").read_text() == bodies, "the daemon has derived queues")
    assert succeed("cat", site.mountpoint, "orders") == bodies
    assert succeed("tail", site.mountpoint, "orders", "-n", "1") == "order 9\n"
    assert succeed("cat", site.mountpoint, "orders", "--key", "ORDER-4") == "order 4\n"
    assert tree(site.store) == before
    succeed("umount", site.mountpoint)
    succeed("check", "--repair", site.store)


def test_reading_asks_the_daemon_for_no_message(filled: Site) -> None:
    expected = [f"order {number}\n" for number in range(10)]
    for words in (["cat", "orders"], ["tail", "orders"], ["grep", "order", "orders"], ["consume", "orders", "-g", "g"]):
        assert succeed(words[0], filled.mountpoint, *words[1:]) == "".join(expected)
    figures = json.loads((filled.mountpoint / "@store/status.json").read_text())["stats"]
    assert figures["read_messages"] == 0


def test_a_log_that_can_not_be_read_as_far_as_the_daemon_has_it_is_an_error(
    filled: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = MountClient.status

    def further(self: MountClient) -> dict[str, object]:
        status = answer(self)
        status["stats"]["physical_end"] += 1
        status["topics"]["orders"]["queues"]["0"]["max_offset"] += 1
        return status

    monkeypatch.setattr(MountClient, "status", further)
    monkeypatch.setattr(connect, "CATCHING_UP_SECONDS", 0.1)
    refused = mountctl("cat", filled.mountpoint, "orders")
    assert (refused.returncode, refused.stdout) == (os.EX_IOERR, "")
    assert re.search(
        rf"can be read up to byte [\d,]+ here, and the daemon has more: through the mount: cat {filled.mountpoint}",
        refused.stderr,
    )


def test_a_daemon_of_an_earlier_version_that_tells_no_identity_is_read_beside(
    filled: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = MountClient(mount_of(filled))._config
    monkeypatch.setattr(MountClient, "_config", {**told, "identity": "StoreIdentity(name='x', inode=1)"})
    assert succeed("cat", filled.mountpoint, "orders/0/3") == "order 3"


def test_a_topic_that_is_deleted_while_it_is_waited_for_is_said_to_be_gone(
    filled: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def deleting(seconds: float) -> None:
        if not slept:
            MountClient(mount_of(filled)).delete_topic("orders")
        slept.append(seconds)

    monkeypatch.setattr("mountctl.verbs.wait.time", SimpleNamespace(monotonic=time.monotonic, sleep=deleting))
    gone = mountctl("wait", filled.mountpoint, "orders/0/99", "--timeout", str(DEADLINE_SECONDS))
    assert slept
    assert (gone.returncode, gone.stderr) == (64, "mountctl: no topic 'orders'\n")


@pytest.mark.parametrize("way", ["by the daemon", "by the engine"])
def test_messages_of_one_call_are_stored_all_or_none(site: Site, way: str) -> None:
    succeed("init", site.store)
    if way == "by the daemon":
        site.mounted()
    messages = [Message("orders", b"first"), Message("orders", b"second"), Message("orders", b"third", ["no key"])]
    with connect.connect(find(str(site.store)), StoreSettings()) as client:
        assert isinstance(client, MountClient if way == "by the daemon" else LocalStore)
        with pytest.raises(IllegalMessageError):
            client.publish(0, messages)
        assert client.published == 0
        assert not any(topic.messages for topic in client.topics())


@pytest.mark.parametrize("options", ["mappedFileSizeCommitLog=65536", "transientStorePoolEnable=true"])
def test_it_is_said_where_the_messages_of_a_batch_are(tmp_path: Path, options: str) -> None:
    succeed("init", "-o", options, tmp_path / "store")
    bodies = [f"{number} " + "x" * 9_000 for number in range(20)]
    told = succeed("put", "-v", "-o", options, tmp_path / "store", "orders", *bodies).splitlines()
    assert len(set(told)) == 20
    assert len(list((tmp_path / "store/commitlog").iterdir())) > 2 or "Pool" in options, "there is no end of a file"
    for place, body in zip(told, bodies, strict=True):
        assert succeed("cat", tmp_path / "store", place) == body


def test_a_group_whose_file_cannot_be_read_is_told_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(self))

    problems = ["topics.json: another one", "config/consumerOffset.json: it can't be read"]
    monkeypatch.setattr(MountClient, "status", lambda self: {"settings_problems": problems})
    monkeypatch.setattr(Path, "mkdir", refused)
    mounted = MountClient(Mount(tmp_path, tmp_path / "store", read_only=False, user=0, device="0:1"))
    with pytest.raises(CommandError) as error:
        mounted.claim("billing", "orders", 0)
    assert error.value.exit_code == os.EX_IOERR
    assert str(error.value).startswith("config/consumerOffset.json")
    folder = os.open(tmp_path, os.O_RDONLY)  # reading it is refused as well
    try:
        claim = MountClaim(folder, lambda error: CommandError(f"as the status says of {error.strerror}"))
        with pytest.raises(CommandError, match="as the status says of Is a directory"):
            claim.offset()
    finally:
        os.close(folder)


def test_a_mount_that_keeps_this_user_out_says_whose_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    mount = Mount(tmp_path, tmp_path / "store", read_only=False, user=1234, device="0:1")
    connect.require_access(mount)
    monkeypatch.setattr("os.stat", refused)
    with pytest.raises(CommandError, match="is accessible only to user 1234") as caught:
        connect.require_access(mount)
    monkeypatch.undo()
    assert caught.value.exit_code == 77

"""A mounted store as the verbs read it: what one message answers, and what all of them do."""

from __future__ import annotations

import errno
import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine import Message, MessageStore, TopicNotFoundError
from mountctl import reach
from mountctl.access import MessageRow
from mountctl.errors import CommandError
from mountctl.places import Mount
from mountctl.through_mount import MountedClaim, MountedStore


def read(mountpoint: Path) -> list[MessageRow]:
    mounted = MountedStore(Mount(mountpoint, mountpoint / "store", read_only=False, user=0, device="0:1"))
    return list(mounted.messages("orders", 0, 0, None, attributes=False))


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """What a mount shows of a queue of three messages, the second of which has gone."""
    queue = tmp_path / "orders" / "0"
    queue.mkdir(parents=True)
    for name, offset in (("@first", 0), ("@last", 2)):
        (queue / name).symlink_to(f"{offset:020d}")
    for offset in (0, 2):
        (queue / f"{offset:020d}").write_bytes(b"%d" % offset)
    return queue


def test_a_message_that_has_gone_is_left_out(queue: Path) -> None:
    assert [message.body for message in read(queue.parents[1])] == [b"0", b"2"]


@pytest.mark.parametrize("unseen", [0, 1])
def test_a_follower_is_asked_where_it_sees_all_that_the_daemon_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unseen: int
) -> None:
    with MessageStore.open(tmp_path / "store", create=True) as store:
        store.put(Message("orders", b"seen"), 0)
        status = {"pid": os.getpid(), "stats": {"physical_end": store.physical_end + unseen}}
        monkeypatch.setattr(MountedStore, "status", lambda self: status)
        monkeypatch.setattr(MountedStore, "has_own_log", lambda self: True)
        monkeypatch.setattr(MountedStore, "body_limit_bytes", lambda self: 1024)
        mounted = MountedStore(Mount(tmp_path, tmp_path / "store", read_only=False, user=0, device="0:1"))
        with ExitStack() as stack:
            assert (reach._beside(stack, tmp_path / "store", mounted) is None) == bool(unseen)


def test_a_group_whose_file_cannot_be_read_is_told_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(self))

    problems = ["topics.json: another one", "config/consumerOffset.json: it can't be read"]
    monkeypatch.setattr(MountedStore, "status", lambda self: {"settings_problems": problems})
    monkeypatch.setattr(Path, "mkdir", refused)
    mounted = MountedStore(Mount(tmp_path, tmp_path / "store", read_only=False, user=0, device="0:1"))
    with pytest.raises(CommandError) as error:
        mounted.claim("billing", "orders", 0)
    assert error.value.exit_code == os.EX_IOERR
    assert str(error.value).startswith("config/consumerOffset.json")
    folder = os.open(tmp_path, os.O_RDONLY)  # reading it is refused as well
    try:
        claim = MountedClaim(folder, lambda error: CommandError(f"as the status says of {error.strerror}"))
        with pytest.raises(CommandError, match="as the status says of Is a directory"):
            claim.offset()
    finally:
        os.close(folder)


def test_a_failure_that_is_not_one_messages_ends_the_reading(queue: Path) -> None:
    (queue / f"{1:020d}").symlink_to(f"{1:020d}")
    with pytest.raises(OSError, match="symbolic links") as caught:
        read(queue.parents[1])
    assert caught.value.errno == errno.ELOOP


def test_a_mount_that_keeps_this_user_out_says_whose_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    mount = Mount(tmp_path, tmp_path / "store", read_only=False, user=1234, device="0:1")
    reach.require_access(mount)
    monkeypatch.setattr("os.stat", refused)
    with pytest.raises(CommandError, match="shows itself to user 1234 alone") as caught:
        reach.require_access(mount)
    monkeypatch.undo()
    assert caught.value.exit_code == 77


@pytest.mark.parametrize(
    ("topics", "said"),
    [({}, "no topic 'orders'"), ({"orders": {"queues": {"1": {}}}}, "topic 'orders' has no queue 0")],
    ids=["the topic", "the queue"],
)
def test_a_topic_that_was_deleted_meanwhile_is_said_to_be_gone(tmp_path: Path, topics: object, said: str) -> None:
    (tmp_path / "@store").mkdir()
    (tmp_path / "@store/status.json").write_text(json.dumps({"topics": topics}))
    mounted = MountedStore(Mount(tmp_path, tmp_path / "store", read_only=False, user=0, device="0:1"))
    with pytest.raises(TopicNotFoundError) as caught:
        mounted.bounds("orders", 0)
    assert str(caught.value) == said

"""Promises 8.*: retention and followers (docs/semantics.md)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mount.harness import Mounted, bodies, mounted, offset_names, publish, refused_with, small_disk, until

RETENTION = {"max_bytes": 2 << 20, "clean_interval_ms": 50, "delete_pause_ms": 0}
LARGE = b"held " * 60_000


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A mount that keeps about two files of 1 MiB of the commit log."""
    with mounted(tmp_path_factory.mktemp("cleaned"), config={"retention": RETENTION}) as mount:
        yield mount


def min_offset(mount: Mounted, topic: str) -> int:
    return int(mount.status()["topics"][topic]["queues"]["0"]["min_offset"])


def fill(mount: Mounted, queue: Path) -> None:
    """Publish until the first messages of the queue have expired."""
    while min_offset(mount, queue.parent.name) < 1:
        publish(queue / "append", b"filler %s\n" % (b"x" * 1_000) * 500)


def has_size(path: Path, size: int) -> bool:
    return path.stat().st_size == size


def is_gone(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    return False


def test_expired_messages_are_gone(cleaned: Mounted) -> None:
    """8.1 A message that retention removed is gone from the mount: it is ENOENT by name, and not listed."""
    queue = cleaned.topic("gone") / "0"
    publish(queue / "append", b"one\ntwo\n")
    known = [*(queue / name for name in offset_names(queue)), queue / "1"]
    assert [path.read_bytes() for path in known] == [b"one", b"two", b"two"]
    fill(cleaned, queue)
    for path in known:
        until("the kernel has noticed", is_gone, path)
        assert refused_with(path.open) == errno.ENOENT
    first = min_offset(cleaned, "gone")
    listed = offset_names(queue)
    assert int(listed[0]) >= first
    assert refused_with((queue / "0").stat) == errno.ENOENT
    assert int((queue / "@first").readlink().name) >= first


def test_open_messages_stay(cleaned: Mounted) -> None:
    """8.2 An open message stays readable after its removal, for the time that the store's configuration gives."""
    queue = cleaned.topic("held") / "0"
    publish(queue / "append@frame=file", LARGE)
    publish(queue / "append", b"small\n")
    large, small = (os.open(queue / name, os.O_RDONLY) for name in "01")
    assert os.pread(large, 10, 0) == LARGE[:10]
    fill(cleaned, queue)
    until("the name is gone", is_gone, queue / f"{0:020d}")
    os.posix_fadvise(large, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(large, len(LARGE), 0) == LARGE
    assert os.pread(small, 100, 0) == b"small"
    assert os.fstat(small).st_size == 5
    for fd in (large, small):
        os.close(fd)
    for name in "01":
        until("the name that was open is gone", is_gone, queue / name)


def test_streams_begin_anew(cleaned: Mounted) -> None:
    """8.3 After retention `0.log` and `orders.log` begin at the new first message. A file opened before keeps its
    positions; its expired bytes are EIO."""
    queue = cleaned.topic("stream") / "0"
    publish(queue / "append", b"the first line\n")
    before = os.open(queue.parent / "0.log", os.O_RDONLY)
    merged = queue.parent.parent / "stream.log"
    merged_before = os.open(merged, os.O_RDONLY)
    for descriptor in (before, merged_before):
        assert os.pread(descriptor, 100, 0) == b"the first line\n"
    fill(cleaned, queue)

    def begins_at_first() -> bool:
        with suppress(OSError), (queue.parent / "0.log").open("rb") as log:  # retention may go on meanwhile
            return os.fstat(log.fileno()).st_ino != os.fstat(before).st_ino and log.read(7) == b"filler "
        return False

    def topics_is_the_same() -> bool:
        with suppress(OSError):  # as above
            return merged.read_bytes() == (queue.parent / "0.log").read_bytes()
        return False

    until("the stream begins at the new first message", begins_at_first)
    until("so does the topic's", topics_is_the_same)
    for descriptor in (before, merged_before):
        size = os.fstat(descriptor).st_size
        assert os.pread(descriptor, 5, size - 5) == b"xxxx\n"  # and the bytes read before are gone
        assert refused_with(os.pread, descriptor, 10, 0) == errno.EIO
        os.close(descriptor)


def test_a_follower_sees_what_the_writer_does(tmp_path: Path) -> None:
    """8.4 A mount that follows another writer shows each of its messages, and the sizes of its streams, without being
    mounted anew."""
    (tmp_path / "follower").mkdir()
    with (
        mounted(tmp_path) as writer,
        mounted(tmp_path / "follower", store=writer.store, config={"mode": "FOLLOW"}) as follower,
    ):
        assert refused_with((follower.root / "orders").stat) == errno.ENOENT
        queue = writer.topic("orders") / "0"
        followed = follower.root / "orders" / "0"
        publish(queue / "append@keys=K", b"one\n")
        until("the follower sees the first message", (followed / "0").exists)
        until("and its key", (follower.root / "orders" / "keys" / "K").exists)
        assert (follower.root / "orders" / "keys" / "K").read_bytes() == b"one"
        text = b"one\n"
        for number in range(5):
            line = b"line %d\n" % number
            publish(queue / "append", line * 1_000)
            text += line * 1_000
            until("the size has grown", has_size, follower.root / "orders" / "0.log", len(text))
            assert (follower.root / "orders" / "0.log").read_bytes() == text
            assert (followed / "@last").read_bytes() == line[:-1]
        assert len(bodies(followed)) == 5_001
        assert refused_with(publish, followed / "append", b"no\n") == errno.EROFS


def test_retention_deletes_what_was_asked_and_says_so(tmp_path: Path) -> None:
    """8.7 Retention deletes only by the options that were set, and no more files than they ask for.
    `@store/status.json`, `@store/metrics` and the daemon's log show the options in force and each deletion with its
    reason."""
    kept_bytes = 5 << 20
    config = {"retention": RETENTION | {"max_bytes": kept_bytes, "disk_warn_ratio": 1.0}}
    with (
        small_disk(tmp_path / "disk", 64 << 20) as disk,
        mounted(tmp_path, store=disk / "store", config=config) as mount,
    ):
        (disk / "ballast").write_bytes(bytes(50 << 20))  # over every limit that was not named
        queue = mount.topic("asked") / "0"
        publish(queue / "append", *[b"filler %s\n" % (b"x" * 1_000) * 400] * 16)  # two in a file of the log
        until("a file has gone", lambda: min_offset(mount, "asked") > 0)
        until("it is counted", lambda: mount.status()["stats"]["expired_files"] >= 1)
        status = mount.status()
        stats = status["stats"]
        log_bytes = stats["physical_end"] - stats["min_physical_offset"]
        assert kept_bytes - (1 << 20) < log_bytes
        assert f"larger than {kept_bytes:,} bytes" in status["retention"]["in_force"]
        assert status["retention"]["options"]["maxBytes"] == str(kept_bytes)
        assert stats["last_deletion"]["reason"] == f"the log is larger than {kept_bytes:,} bytes (maxBytes)"
        metrics = (mount.root / "@store/metrics").read_text()
        assert f'maxBytes="{kept_bytes}"' in metrics
        assert "fsstore_expired_messages_total" in metrics
        assert "retention deleted 1 file of the log" in mount.log.read_text()


def test_writes_go_on_when_there_is_room(tmp_path: Path) -> None:
    """8.8 On a disk over `diskSpaceWarningLevelRatio` a write is EROFS. Writes succeed again about a second after
    there is space."""
    retention = {"max_bytes": 1 << 30, "disk_warn_ratio": 0.5, "clean_interval_ms": 200}
    with (
        small_disk(tmp_path / "disk", 24 << 20) as disk,
        mounted(tmp_path, store=disk / "store", config={"retention": retention}) as mount,
    ):
        queue = mount.topic("orders") / "0"
        publish(queue / "append", b"one\n")
        (disk / "ballast").write_bytes(b"x" * (12 << 20))
        until("writes are refused", lambda: mount.status()["read_only_reason"] is not None)
        assert refused_with(publish, queue / "append", b"no\n") == errno.EROFS
        (disk / "ballast").unlink()

        def is_taken() -> bool:
            with suppress(OSError):
                publish(queue / "append", b"two\n")
                return True
            return False

        until("a write is taken", is_taken)
        assert bodies(queue) == [b"one", b"two"]

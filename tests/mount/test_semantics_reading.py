"""Promises 2.*: reading (docs/semantics.md)."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import FileSizes, Message, MessageStore, PutResult, StoreConfig
from tests.mount.harness import SMALL_SIZES, Mounted, bodies, mounted, publish, refused_with, until

COMPRESSED_FLAG = 0x1
LARGE = bytes(range(256)) * 1_000
TEXT = b"the same again and again, " * 1_000


@pytest.fixture(scope="module")
def stored() -> list[PutResult]:
    """Where the messages of `prepared` went."""
    return []


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, stored: list[PutResult]) -> Iterator[Mounted]:
    """A mount of a store that was written before: offset 1 is compressed, offset 3 is damaged."""
    folder = tmp_path_factory.mktemp("prepared")
    with MessageStore.open(folder / "store", StoreConfig(sizes=FileSizes(**SMALL_SIZES)), create=True) as store:
        store.create_topic("letters", 1)
        for body in (b"first", b"", b"third", b"to be spoilt", b"fifth"):
            message = Message("letters", body) if body else _compressed()
            stored.append(store.put(message, 0))
    _spoil(folder / "store", stored[3].physical_offset, b"to be spoilt")
    with mounted(folder) as mount:
        yield mount


def _compressed() -> Message:
    return Message("letters", zlib.compress(TEXT), sys_flag=COMPRESSED_FLAG)


def _spoil(store: Path, physical_offset: int, body: bytes) -> None:
    """Flip a bit of a body that lies in the first file of the log."""
    log = store / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        position = file.read().index(body, physical_offset)
        file.seek(position)
        file.write(bytes([body[0] ^ 1]))


def has_line(path: Path, line: bytes) -> bool:
    return line in path.read_bytes()


def test_a_message_file_is_the_body(queue: Path) -> None:
    """2.1 A message file holds the body, byte for byte. Any range of it can be read, and stat shows its length."""
    publish(queue / "append@frame=file", LARGE)
    publish(queue / "append@frame=file", b"\x00small\n")
    assert bodies(queue) == [LARGE, b"\x00small\n"]
    assert [(queue / offset).stat().st_size for offset in "01"] == [len(LARGE), 7]
    with (queue / "0").open("rb") as file:
        for position, size in ((100_000, 70_000), (255_990, 100), (0, 1), (300_000, 5)):
            assert os.pread(file.fileno(), size, position) == LARGE[position : position + size]


def test_times_are_the_store_time(queue: Path) -> None:
    """2.2 A message's modification time and change time are its store time."""
    publish(queue / "append", b"one\n")
    store_time_ns = int(os.getxattr(queue / "0", "user.mq.store_time")) * 1_000_000
    found = (queue / "0").stat()
    assert (found.st_mtime_ns, found.st_ctime_ns) == (store_time_ns, store_time_ns)


def test_what_is_written_is_there(topic: Path) -> None:
    """2.3 Once a write has returned, its messages are found by every name: offset, `@last`, key, stream."""
    queue = topic / "1"
    fd = os.open(queue / "append@keys=K", os.O_WRONLY)
    text = b""
    for number in range(200):
        line = b"message %d\n" % number
        os.write(fd, line)
        text += line
        assert (queue / str(number)).read_bytes() == line[:-1]
        assert (queue / "@last").read_bytes() == line[:-1]
        assert (topic / "keys" / "K").read_bytes() == line[:-1]
        assert (topic / "1.log").read_bytes() == text
    os.close(fd)


def test_a_compressed_body_reads_decompressed(prepared: Mounted) -> None:
    """2.4 A body that was stored compressed is read decompressed, and stat shows the decompressed length."""
    message = prepared.root / "letters" / "0" / "1"
    assert message.read_bytes() == TEXT
    assert message.stat().st_size == len(TEXT)


def test_the_stream_is_the_bodies_in_order(queue: Path) -> None:
    """2.5 `0.log` has the bodies of the queue in queue order, with a newline after each."""
    publish(queue / "append", b"one\ntwo\n")
    publish(queue / "append@frame=write", b"three\nand more\n", b"\x00")
    assert (queue.parent / "0.log").read_bytes() == b"one\ntwo\nthree\nand more\n\n\x00\n"


def test_the_streams_size_is_exact(queue: Path) -> None:
    """2.6 stat of `0.log` always shows its exact size, even right after it has grown."""
    log = queue.parent / "0.log"
    size = 0
    assert log.stat().st_size == 0
    fd = os.open(queue / "append", os.O_WRONLY)
    with log.open("rb") as open_before:
        for number in range(300):
            size += os.write(fd, b"x" * number + b"y\n")
            assert log.stat().st_size == os.fstat(open_before.fileno()).st_size == size
            assert os.pread(open_before.fileno(), 100, size - 2) == b"y\n"
    os.close(fd)


def test_any_range_of_the_stream_can_be_read(queue: Path) -> None:
    """2.7 Any range of `0.log` can be read by itself."""
    lines = b"".join(b"%d %s\n" % (number, b"z" * (number * 37 % 211)) for number in range(5_000))
    for start in range(0, len(lines), 200_000):
        publish(queue / "append", lines[start : start + 200_000])
    text = (queue.parent / "0.log").read_bytes()
    assert text.replace(b"\n", b"") == lines.replace(b"\n", b"")
    with (queue.parent / "0.log").open("rb", buffering=0) as log:
        for position, size in ((400_003, 1), (111_111, 22_222), (7, 300_000), (len(text) - 9, 50), (len(text), 1)):
            os.posix_fadvise(log.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(log.fileno(), size, position) == text[position : position + size]


def test_tail_follows_the_stream(queue: Path, tmp_path: Path) -> None:
    """2.8 `tail -f 0.log` prints each message as it comes; 2.11 gives the longest delay."""
    publish(queue / "append", b"before\n")
    with (tmp_path / "out").open("wb") as out:
        tail = subprocess.Popen(["tail", "-f", "-s", "0.05", "-n", "1", str(queue.parent / "0.log")], stdout=out)
    try:
        until("tail has begun", lambda: (tmp_path / "out").read_bytes() == b"before\n")
        for number in range(3):
            publish(queue / "append", b"line %d\n" % number)
            until("tail saw the line", has_line, tmp_path / "out", b"line %d\n" % number)
        assert (tmp_path / "out").read_bytes() == b"before\nline 0\nline 1\nline 2\n"
    finally:
        tail.kill()
        tail.wait()


def test_what_rests_is_cached(tmp_path: Path) -> None:
    """2.11 If the newest message of a `0.log` is older than 10 s, the file is cached and can be mapped shared. A
    handle opened in that state shows later messages one or two seconds after they came, each of them whole. By its
    name the file always shows its current state."""
    with mounted(tmp_path, idle_at_once=True) as mount:
        append, log = mount.topic("orders") / "0" / "append", mount.root / "orders" / "0.log"
        publish(append, b"one\n")
        with log.open("rb") as kept:
            with mmap.mmap(kept.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                assert mapped[:] == kept.read() == b"one\n"
            publish(append, b"two\n")
            assert (log.read_bytes(), log.stat().st_ino) == (b"one\ntwo\n", os.fstat(kept.fileno()).st_ino)
            until("the handle shows the message", lambda: os.fstat(kept.fileno()).st_size == 8)
            assert kept.read() == b"two\n"


def test_a_topic_is_one_text_in_the_order_of_its_messages(prepared: Mounted, topic: Path, tmp_path: Path) -> None:
    """2.12 `orders.log` is the same kind of text (2.5 to 2.9) for all messages of the topic, in the order in which
    they were stored. Lines written to `orders/append` read back in order."""
    log = topic.with_name(topic.name + ".log")
    assert log.stat().st_size == 0
    with (tmp_path / "out").open("wb") as out:
        tail = subprocess.Popen(["tail", "-f", "-s", "0.05", "-c", "+1", str(log)], stdout=out)
    try:
        expected = b""
        for number in range(40):
            lines = b"".join(b"%d %d\n" % (number, line) for line in range(number % 7))
            publish(topic / "append", lines)
            publish(topic / f"{number % 4}/append", b"alone %d\n" % number)
            expected += lines + b"alone %d\n" % number
            assert log.stat().st_size == len(expected)
        assert log.read_bytes() == expected
        until("tail saw the last line", has_line, tmp_path / "out", b"alone 39\n")
        assert (tmp_path / "out").read_bytes() == expected
    finally:
        tail.kill()
        tail.wait()
    with log.open("rb", buffering=0) as file:
        for position, size in ((300, 1), (100, 222), (len(expected) - 9, 50), (len(expected), 1)):
            assert os.pread(file.fileno(), size, position) == expected[position : position + size]
    assert (prepared.root / "letters.log").read_bytes() == (prepared.root / "letters" / "0.log").read_bytes()


def test_damage_costs_one_message(prepared: Mounted) -> None:
    """2.9 A damaged message reads as EIO. Its neighbours stay readable, and `0.log` leaves it out. The same holds
    for a message in a page that the disk can't read, until the disk can read it again; the reason names the file and
    the byte."""
    queue = prepared.root / "letters" / "0"
    assert refused_with((queue / "3").read_bytes) == errno.EIO
    assert [(queue / offset).read_bytes() for offset in "024"] == [b"first", b"third", b"fifth"]
    assert (prepared.root / "letters" / "0.log").read_bytes() == b"\n".join((b"first", TEXT, b"third", b"fifth", b""))


def test_inode_numbers_stay(prepared: Mounted, stored: list[PutResult]) -> None:
    """2.10 A message file's inode number is the same for every spelling and every mount, and never means another
    message. (Where a followed log was rewritten, 8.5, its messages have new numbers.) A message that was stored
    later has a greater number."""
    queue = prepared.root / "letters" / "0"
    numbers = [(queue / str(put.queue_offset)).stat().st_ino for put in stored if put.queue_offset != 3]
    assert numbers == sorted(set(numbers))
    for put, name in zip(stored, sorted(entry for entry in os.listdir(queue) if entry.isdigit()), strict=True):
        if put.queue_offset == 3:
            continue
        assert {(queue / spelling).stat().st_ino for spelling in (name, name.lstrip("0") or "0", "0" + name)} == {
            put.physical_offset | 1 << 62
        }
